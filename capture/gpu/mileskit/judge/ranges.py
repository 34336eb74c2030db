"""Reference ranges: which runs they come from, and the smallest and largest value per signal.

Measured ranges are computed from stored runs (or from any run that the caller names); reported
ones come from `reported.toml` of a lab that published no logs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from mileskit.common import kitfiles, tomlio
from mileskit.judge import runload, setupdiff, signals
from mileskit.judge.runload import Loaded
from mileskit.judge.setupdiff import Difference, Facts

FIRST_TEN = tuple(range(10))
MIN_STEPS = 5


class Range(NamedTuple):
    """A reference range.

    low, high: over the values of single steps; values: how many; runs: names; seeds: distinct
    ones; tier: "measured" or "reported"; steps: text of the steps it covers; what: the statistic.
    """

    low: float
    high: float
    values: int
    runs: tuple[str, ...]
    seeds: int
    tier: str
    steps: str
    what: str = "smallest and largest step"

    @property
    def width(self) -> float:
        return self.high - self.low


class Reference(NamedTuple):
    """The reference runs of one judgement.

    runs: pairs of a run and its facts; reported: signal id -> list of (steps, Range) of a lab
    without logs; chosen: "equal setup", "named" or "none"; differs: run name -> differences that
    count; nearest: for "none", the closest stored run and what differs.
    """

    runs: tuple[tuple[Loaded, Facts], ...]
    reported: dict
    chosen: str
    differs: dict
    nearest: tuple[str, list[Difference]] | None = None
    notes: tuple[str, ...] = ()
    unstated: tuple[str, ...] = ()


def choose(one: Loaded, mine: Facts, against: list[str]) -> Reference:
    """The reference runs: those that ``against`` names, else the stored runs of equal setup.

    Raises runload.LoadError for a name that is no run.
    """
    if against:
        return _named(one, mine, against)
    stored, nearest = [], None
    notes = []
    for name in runload.stored_runs():
        other = runload.load(name)
        if _is_same(one, other):
            notes.append(f"{name} is this run and is left out of its own reference")
            continue
        theirs = setupdiff.facts(other)
        found = setupdiff.differences(mine, theirs)
        if found is None or not usable(other):
            continue
        real = setupdiff.metric_differences(found)
        if not real:
            stored.append((other, theirs))
        key = (len(setupdiff.own(real)), name)
        if real and (nearest is None or key < nearest[0]):
            nearest = (key, name, real)
    if stored:
        missing = unstated(mine, [theirs for _, theirs in stored])
        return Reference(tuple(stored), {}, "equal setup", {}, None, tuple(notes), missing)
    lab = reported_lab(mine)
    if lab:
        ranges, why = _reported(lab)
        return Reference((), ranges, "equal setup", {}, None, (*notes, why))
    if mine.settings is None:
        notes.append("the flags of this run are unknown, so no stored run can be called equal")
    near = (nearest[1], nearest[2]) if nearest else None
    return Reference((), {}, "none", {}, near, tuple(notes))


_STATED = {
    "model": ("model", "hf-checkpoint"),
    "data": ("data", "prompt-data"),
    "miles_commit": ("Miles commit", ""),
    "engine": ("engine", ""),
    "gpu": ("GPU", ""),
}  # field of the setup -> its name in output, and the flag that says it too


def unstated(mine: Facts, others: list[Facts]) -> tuple[str, ...]:
    """Names of what the others state of their setup and this run does not."""
    settings = mine.settings or {}
    found = []
    for field, (words, flag) in _STATED.items():
        theirs = any(o.setup.get(field) not in (None, "") for o in others)
        if theirs and mine.setup.get(field) in (None, "", "not stated") and not settings.get(flag):
            found.append(words)
    return tuple(found)


def usable(one: Loaded) -> bool:
    """Whether a stored run may be a reference: it ended by itself and has five steps."""
    ended = ((one.toml or {}).get("ended") or {}).get("verdict")
    return ended == "finished" and len(one.run["steps"]["index"]) >= MIN_STEPS


def _is_same(one: Loaded, other: Loaded) -> bool:
    return one.sha256 is not None and one.sha256 == other.sha256


def _named(one: Loaded, mine: Facts, against: list[str]) -> Reference:
    runs, reported, differs, notes = [], {}, {}, []
    for name in against:
        if name in _reported_labs():
            ranges, why = _reported(name)
            reported.update(ranges)
            notes.append(why)
            unlike = reported_differences(mine, name)
            if unlike:
                differs[name] = unlike
            continue
        other = runload.load(name)
        theirs = setupdiff.facts(other)
        found = setupdiff.differences(mine, theirs)
        if found is None:
            differs[other.name] = ["the flags of one side are unknown"]
        else:
            real = setupdiff.metric_differences(found)
            if real:
                differs[other.name] = [str(d) for d in real]
        if _is_same(one, other):
            notes.append(f"{other.name} is this run itself: it lies inside its own range")
        notes += [f"{other.name}: {note}" for note in other.notes]
        runs.append((other, theirs))
    missing = unstated(mine, [theirs for _, theirs in runs])
    return Reference(tuple(runs), reported, "named", differs, None, tuple(notes), missing)


def of(
    reference: Reference, signal: signals.Signal, steps: list[int], what: str, zeros: bool = False
) -> Range | None:
    """The range of a signal over these rollout numbers; None when the reference has no value.

    what: "first ten", "all steps" or "step 0" chooses the reported range of a lab without logs;
    zeros: whether zeros that this setup forces still are a range (for a run that is not 0).
    """
    values, names, seeds, covered = [], [], set(), set()
    for other, theirs in reference.runs:
        if _unusable(other, signal.column):
            continue
        seen = signals.see(other.run, signal, theirs.settings)
        if seen.hidden and not zeros:
            continue
        cells = {n: seen.series[n] for n in steps if n in seen.series}
        cells = {n: v for n, v in cells.items() if math.isfinite(v)}
        if cells:
            values += cells.values()
            covered |= set(cells)
            names.append(other.name)
            seeds.add(theirs.seeds)
    if values:
        text = signals.steps_text(sorted(covered))
        return Range(
            min(values), max(values), len(values), tuple(names), len(seeds), "measured", text
        )
    return reference.reported.get((signal.id, what))


def covered(
    reference: Reference, signal: signals.Signal, steps: list[int], zeros: bool = False
) -> list[int] | None:
    """Those of the steps that a reference run has a value of; None when there is no such run."""
    have: set[int] = set()
    for series in series_of(reference, signal, zeros):
        have |= {n for n, v in series.items() if math.isfinite(v)}
    return [n for n in steps if n in have] if have else None


def series_of(reference: Reference, signal: signals.Signal, zeros: bool = False) -> list[dict]:
    """The series of a signal in each reference run that shows it."""
    found = []
    for other, theirs in reference.runs:
        seen = signals.see(other.run, signal, theirs.settings)
        if not _unusable(other, signal.column) and (zeros or not seen.hidden):
            found.append(seen.series)
    return found


def seeds_at(reference: Reference, signal: signals.Signal) -> dict[int, int]:
    """Rollout number -> how many seeds of the reference have a finite value of the signal."""
    found: dict[int, set] = {}
    for other, theirs in reference.runs:
        if not _unusable(other, signal.column):
            seen = signals.see(other.run, signal, theirs.settings)
            for n, v in seen.series.items():
                if math.isfinite(v):
                    found.setdefault(n, set()).add(theirs.seeds)
    return {n: len(seeds) for n, seeds in found.items()}


def _unusable(other: Loaded, column: str) -> bool:
    return any(item.get("column") == column for item in (other.toml or {}).get("unusable") or [])


# -- labs that published values and no logs --------------------------------------------------------

# (signal, steps) -> id of the published value, the steps in words, runs and seeds it rests on
_PUBLISHED = {
    "gb10": {
        ("reward", "first ten"): ("first10-reward", "steps 0 to 9"),
        ("gap", "first ten"): ("first10-gap", "steps 0 to 9"),
        ("gap", "all steps"): ("healthy-gap", "every step"),
        ("gap", "step 0"): ("healthy-gap-0", "step 0"),
    }
}


def _reported_labs() -> list[str]:
    names = set(kitfiles.names("out-"))
    return [lab for lab in _PUBLISHED if f"out-{lab}/reported.toml" in names]


def _read(name: str) -> dict:
    return tomlio.loads(kitfiles.read_bytes(name).decode("utf-8"))


def reported_lab(mine: Facts) -> str | None:
    """The lab without logs whose stated setup is that of the run, by its stated settings."""
    if mine.settings is None:
        return None
    return next((lab for lab in _reported_labs() if not reported_differences(mine, lab)), None)


def reported_differences(mine: Facts, lab: str) -> list[str]:
    """What a run's setup has unlike the stated one of a lab without logs, as texts (run / lab)."""
    if mine.settings is None:
        return ["the flags of this run are unknown"]
    stated = _read(f"out-{lab}/reported.toml").get("setting", [])
    setup = _read(f"out-{lab}/lab.toml").get("setup", {})
    settings, found = mine.settings, []
    model = mine.setup.get("model") or str(settings.get("hf-checkpoint", "")).rstrip("/")
    data = mine.setup.get("data") or str(settings.get("prompt-data", ""))
    if str(model).rsplit("/", 1)[-1].lower() != str(setup["model"]).lower():
        found.append(f"model: {model or 'not stated'} / {setup['model']}")
    if str(setup["data"]).lower() not in str(data).lower():
        found.append(f"data: {data or 'not stated'} / {setup['data']}")
    flags = {item["name"][2:]: item["value"] for item in stated if item["id"] in _RECIPE}
    found += [
        f"{name}: {settings.get(name, '(not set)')} / {value}"
        for name, value in flags.items()
        if settings.get(name) != value
    ]
    found += [
        f"{name}: {settings[name]} / (not set)"
        for name, off in _PLAIN.items()
        if settings.get(name) not in (None, off)
    ]
    return found


_RECIPE = ("prompts-per-step", "answers-per-prompt", "samples-per-step", "answer-limit")
# Flags that the lab's published ranges exclude, and the value that leaves them off.
_PLAIN = {
    "rollout-top-p": 1.0,
    "rollout-top-k": -1,
    "dynamic-sampling-filter-path": None,
    "true-on-policy-mode": False,
    "use-rollout-logprobs": False,
}


def _reported(lab: str) -> tuple[dict, str]:
    """The published ranges of a lab, and one line on where they come from."""
    document = _read(f"out-{lab}/reported.toml")
    values = {item["id"]: item for item in document["value"]}
    found = {}
    for key, (name, steps) in _PUBLISHED[lab].items():
        item = values.get(name)
        if item is None:
            continue
        runs = item.get("run") or "runs that the source does not name"
        runs = tuple(runs) if isinstance(runs, list) else (runs,)
        seeds = len(runs) if item.get("run") else 0
        found[key] = Range(
            item["low"], item["high"], 0, runs, seeds, "reported", steps, f"published as {name}"
        )
    source = document.get("lab", {}).get("source", lab)
    return found, f"ranges of {lab} are reported, not measured here: {source}"
