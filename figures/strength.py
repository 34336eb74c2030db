"""What stands behind a figure: tier, runs, seeds, steps and setups, and how it may be worded.

Everything here is computed from recorded reads (`evidence.Access`), never written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from figures import citations, evidence, reported
from figures.evidence import Access

# Two runs have one setup when these agree. The rest of the fingerprint is circumstance:
# it is named where it differs, but it does not make two experiments out of one.
IDENTITY = {
    "model": "model",
    "data": "data",
    "reward": "reward",
    "miles_commit": "Miles commit",
    "miles_date": "Miles date",
    "engine": "engine",
    "container": "container",
    "image": "image",
    "gpu": "GPU",
    "gpus": "number of GPUs",
    "attention_engine": "engine attention",
    "attention_trainer": "trainer attention",
    "sampling": "sampling code",
    "software": "software",
}
CIRCUMSTANCE = {"shared": "GPU alone or shared"}
NO_MILES = (
    "none"  # setup.miles_commit of a run without Miles; its log has the line shapes of a date
)
MOST_NAMED = 5  # a badge that lists more is not read; the table of runs lists all


@dataclass(frozen=True, slots=True)
class Setup:
    """One setup as its badge shows it, and the fingerprint it was made from."""

    text: str
    identity: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Strength:
    """How much evidence there is.

    tier     'measured', 'reported' or 'measured and reported'
    runs     ids of the runs, sorted
    unnamed  True when a published value belongs to a run that its source does not name
    seeds    number of different seeds, None when the source does not say
    steps    (fewest, most) steps read from one run, None when no per-step value was read
    clean    clean steps of the runs whose times are shown, None when no time is shown
    setups   the setups, one or several
    differs  names of what differs between the runs
    """

    tier: str
    runs: tuple[str, ...]
    unnamed: bool
    seeds: int | None
    steps: tuple[int, int] | None
    clean: tuple[int, int] | None
    setups: tuple[Setup, ...]
    differs: tuple[str, ...]

    @property
    def one_run(self) -> bool:
        """True when everything rests on one run."""
        return len(self.runs) + self.unnamed == 1

    @property
    def text(self) -> str:
        """The strength badge, for example '3 runs, 3 seeds, 10 steps each'."""
        parts = [_counted(len(self.runs), "run")] if self.runs else []
        if self.unnamed:
            parts.append("a run without a name")
        if self.seeds:
            parts.append(_counted(self.seeds, "seed"))
        if self.steps:
            low, high = self.steps
            each = " each" if len(self.runs) > 1 else ""
            parts.append(
                f"{_counted(high, 'step') if low == high else f'{low} to {high} steps'}{each}"
            )
            if self.clean and self.clean != self.steps:
                low, high = self.clean
                parts.append(f"{low if low == high else f'{low} to {high}'} clean")
        if self.tier == "reported":
            return ", ".join(["published values", *parts])
        return ", ".join(parts)

    @property
    def setup_text(self) -> str:
        """The setup badge; several setups are joined, with what differs named last."""
        text = " | ".join(setup.text for setup in self.setups)
        if not self.differs:
            return text
        named = ", ".join(self.differs[:MOST_NAMED])
        more = len(self.differs) - MOST_NAMED
        return f"{text}; differs: {named}{f' and {more} more' if more > 0 else ''}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def tier(accesses: Iterable[Access]) -> str:
    """The tier of what was read: 'measured', 'reported', or both."""
    found = {access.tier for access in accesses}
    if not found:
        return "measured"
    return " and ".join(sorted(found))


def of(accesses: Sequence[Access], only: Iterable[str] | None = None) -> Strength:
    """The strength of what was read, of all runs or only of the run ids in `only`."""
    if only is not None:
        wanted = set(only)
        accesses = [access for access in accesses if access.run in wanted]
    measured = sorted({a.run for a in accesses if a.tier == "measured"})
    places = {a.run for a in accesses if a.tier == "reported"}
    published = sorted(place for place in places if place.partition("/")[2])
    runs = [evidence.run(name) for name in measured]
    counts = _steps_per_run(accesses)
    timed = [run for run in runs if any(a.timing and a.run == run.id for a in accesses)]
    setups, differs = _setups(runs, {run.id for run in timed})
    labs = sorted({place.partition("/")[0] for place in places})
    setups += [_lab_setup(lab, [p for p in published if p.startswith(f"{lab}/")]) for lab in labs]
    return Strength(
        tier=tier(accesses),
        runs=(*measured, *published),
        unnamed=any(place.endswith("/") for place in places),
        seeds=_count_seeds(runs, published),
        steps=(min(counts.values()), max(counts.values())) if counts else None,
        clean=_clean(timed, counts),
        setups=tuple(setups),
        differs=tuple(differs),
    )


def _count_seeds(runs: Sequence[evidence.Run], published: Sequence[str]) -> int | None:
    """Different seeds of all runs, None when the source of one does not give its seed."""
    if any(not run.on_gpu or "record" in run.toml for run in runs):
        return None  # what the seeds of a recording are for differs from one to the next
    seeds = {_seed(run) for run in runs}
    for run_id in published:
        seed = str(reported.run_entry(run_id).get("seed", ""))
        if not re.search(r"\d", seed):
            return None
        seeds.add((run_id.partition("/")[0], seed))
    return len(seeds) or None


def _seed(run: evidence.Run) -> tuple[Any, Any]:
    return run.seed, run.toml.get("run", {}).get("rollout_seed")


def _steps_per_run(accesses: Sequence[Access]) -> dict[str, int]:
    most: dict[str, int] = {}
    for access in accesses:
        if access.steps is not None:
            most[access.run] = max(most.get(access.run, 0), access.steps)
    return most


def _clean(timed: Sequence[evidence.Run], counts: dict[str, int]) -> tuple[int, int] | None:
    """Clean steps of the timed runs, where every stored step was read."""
    clean = []
    for run in timed:
        marks = run.clean_steps()
        if marks is not None and counts.get(run.id) == len(run.index):
            clean.append(marks)
    return (min(clean), max(clean)) if clean else None


def _lab_setup(lab: str, published: Sequence[str]) -> Setup:
    """The setup of a lab whose values are reported, or of a source that is cited.

    published: the runs of that lab, as 'LAB/RUN'. Where one of them had another model than the
    lab's usual one, the badge names the models of these runs.
    """
    if lab.startswith(citations.PREFIX):
        cited = citations.source(lab.removeprefix(citations.PREFIX))
        return Setup(cited.setup, (("source", cited.id),))
    whole = reported.table(lab)
    setup = dict(whole.get("lab", {}))
    for entry in whole.get("setting", []):
        if entry["id"] in ("model", "data"):
            setup[entry["id"]] = entry["value"]
    if models := _models(published, str(setup.get("model", ""))):
        setup["model"] = " and ".join(filter(None, (", ".join(models[:-1]), models[-1])))
    setup.setdefault("container", bool(setup.get("image")))
    return Setup(_text(setup, alone=None, clock=None), (("lab", lab),))


def _models(published: Sequence[str], usual: str) -> list[str]:
    """The models of published runs, small ones first; `usual` where a run names no other.

    A run names its model in `differs`, with the name of the usual model up to its size.
    """
    family = usual.rpartition("-")[0]
    pattern = re.compile(rf"\b{re.escape(family)}-[\d.]+B\b")
    found = set()
    for run_id in published:
        named = pattern.search(str(reported.run_entry(run_id).get("differs", "")))
        found.add(named.group() if family and named else usual)
    return sorted(found - {""}, key=_size)


def _size(model: str) -> float:
    digits = re.search(r"([\d.]+)B$", model)
    return float(digits.group(1)) if digits else 0.0


def _text(setup: dict[str, Any], alone: bool | None, clock: bool | None) -> str:
    parts = [
        setup.get("model"),
        setup.get("data"),
        str(setup.get("gpu", "")).removeprefix("NVIDIA ") or None,
    ]
    if alone is not None:
        parts.append("alone on GPU" if alone else "GPU shared")
    if clock is not None:
        parts.append("clock recorded" if clock else "clock unknown")
    if "container" in setup:
        parts.append("container" if setup["container"] else "no container")
    if setup.get("software"):
        parts.append(setup["software"])
    if setup.get("miles_commit") == NO_MILES:
        parts.append("OLMo-core trainer, no Miles")
    elif setup.get("miles_date"):
        parts.append(f"Miles {setup['miles_date']}")
    return ", ".join(str(part) for part in parts if part)


def _setups(runs: Sequence[evidence.Run], timed: set[str]) -> tuple[list[Setup], list[str]]:
    setups: dict[Any, Setup] = {}
    for run in runs:
        identity = tuple((key, str(run.setup.get(key, ""))) for key in IDENTITY)
        clock = run.clock_known if run.id in timed else None
        text = _text(run.setup, alone=not run.shared if run.on_gpu else None, clock=clock)
        if identity not in setups:
            setups[identity] = Setup(text, identity)
        elif text not in setups[identity].text:
            # One setup under two circumstances: the badge says both.
            both = setups[identity].text.replace("alone on GPU", "GPU alone or shared")
            both = both.replace("GPU shared", "GPU alone or shared")
            setups[identity] = Setup(both, identity)
    named = {**IDENTITY, **CIRCUMSTANCE}
    differs = [
        label for key, label in named.items() if len({str(run.setup.get(key)) for run in runs}) > 1
    ]
    differs += _flags_that_differ(runs)
    return list(setups.values()), differs


def _flags_that_differ(runs: Sequence[evidence.Run]) -> list[str]:
    """Flags that one run changed and another did not."""
    changed = [set(run.changed) for run in runs]
    return sorted(set().union(*changed) - set.intersection(*changed)) if changed else []
