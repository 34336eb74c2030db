"""One health report: every section as plain data (what ``--json`` prints)."""

from __future__ import annotations

import itertools
import math
import statistics

from mileskit.judge import (
    clockcheck,
    healthdrift,
    healthrules,
    rangejudge,
    ranges,
    resumecheck,
    setupdiff,
    signals,
    step0,
)
from mileskit.judge.rangejudge import HIDDEN, INSIDE, NONE, OUTSIDE
from mileskit.judge.ranges import FIRST_TEN, Range, Reference
from mileskit.judge.runload import Loaded
from mileskit.judge.setupdiff import Facts


def report(
    one: Loaded, mine: Facts, reference: Reference, record=None, timing: bool = True
) -> dict:
    """The report of a run against a reference; record: its clock samples (`runload.samples`)."""
    run = one.run
    numbers = signals.numbers(run)
    found = _findings(one, mine, reference)
    clock = clockcheck.check(one, mine, record)
    found += clock.findings
    common, beyond = _common(numbers, reference)
    first = [n for n in common if n in FIRST_TEN]
    seen = {s.id: signals.see(run, s, mine.settings) for s in signals.SIGNALS}
    updates = setupdiff.updates_per_rollout(mine.settings) or signals.updates_seen(run)
    once = updates is not None and updates <= 1

    def row(signal, number, steps, what):
        return _row(signal, number, seen[signal.id], steps, reference, what, once)

    five = [row(s, s.five, first, "first ten") for s in signals.SIGNALS if s.five]
    eight = [row(s, s.eight, common, "all steps") for s in signals.SIGNALS]
    for row in eight:
        _add_findings(row, found)
    checks = [_check(c) for c in step0.checks(one, mine, reference)]
    verdicts = [row["verdict"] for row in (*five, *eight, *checks)]
    outside = OUTSIDE in verdicts or bool(found)
    judged = any(v in (INSIDE, OUTSIDE) for v in verdicts)
    return {
        "run": one.name,
        "source": one.source,
        "notes": [
            *one.notes,
            *_step_notes(run, numbers, beyond),
            *resumecheck.load_notes(run, mine),
        ],
        "seeds": mine.seeds,
        "steps": len(run["steps"]["index"]),
        "rollouts": numbers,
        "ended": run.get("ended", {}).get("how"),
        "reference": _reference(reference),
        "first_ten": five,
        "signals": eight,
        "noise": _noise(run, mine, reference),
        "step0": checks,
        "findings": [f._asdict() for f in found],
        "timing": _timing(clock, timing, run, mine.setup.get("shared") is True),
        "verdict": OUTSIDE if outside else INSIDE if judged else NONE,
    }


def _findings(one: Loaded, mine: Facts, reference: Reference) -> list[rangejudge.Finding]:
    run, settings = one.run, mine.settings or {}

    def series(signal):
        return signals.see(run, signals.BY_ID[signal], mine.settings).series

    gap, reward = series("gap"), signals.column(run, signals.REWARD)
    others = [signals.column(o.run, signals.GAP) for o, _ in reference.runs]
    floor = reward_floor(run, mine)
    found = [
        healthrules.nonfinite(signals.broken_steps(run)),
        healthrules.gap_high(signals.column(run, signals.GAP)),
        healthrules.gap_zero(gap, settings),
        healthdrift.gap_drift(gap, others),
        healthrules.no_signal(signals.column(run, signals.GRAD), series("groups")),
        healthrules.cut_high(signals.column(run, signals.CUT)),
        healthrules.reward_falls(reward, floor),
        healthrules.falls("length", signals.column(run, signals.LENGTH), reward, floor),
        healthrules.falls("entropy", series("entropy"), reward, floor),
        healthrules.grad_spike(signals.column(run, signals.GRAD)),
    ]
    return [f for f in found if f is not None] + resumecheck.anomalies(one, mine)


def reward_floor(run: dict, mine: Facts) -> float | None:
    """The median binomial floor of a step's reward; None when a reward is not 0 or 1."""
    if not (signals.rewards_named(run) or {0.0}) <= {0.0, 1.0}:
        return None
    answers = answers_per_step(mine.settings)
    cells = [v for v in signals.column(run, signals.REWARD).values() if math.isfinite(v)]
    return _floor(cells, answers)


def _common(numbers: list[int], reference: Reference) -> tuple[list[int], list[int]]:
    """The run's rollouts that a reference run has too, and those beyond; all without any."""
    if not reference.runs:
        return numbers, []
    have = {n for other, _ in reference.runs for n in signals.numbers(other.run)}
    return [n for n in numbers if n in have], [n for n in numbers if n not in have]


def _step_notes(run: dict, numbers: list[int], beyond: list[int]) -> list[str]:
    notes = []
    missing = resumecheck.gaps(run)
    if missing:
        notes.append(f"{signals.steps_text(missing)} missing in this log")
    if numbers and numbers[0] > 0:
        notes.append(
            f"the log begins with step {numbers[0]}: it has no step 0"
            + (", and none of the first ten steps" if numbers[0] > FIRST_TEN[-1] else "")
        )
    if beyond:
        notes.append(f"{signals.steps_text(beyond)}: no reference run has them, so not judged")
    return notes


def _row(signal, number, seen, steps, reference: Reference, what: str, once: bool) -> dict:
    """once: whether a rollout gets one update, so that KL and clip fraction must be 0."""
    zeros = once and signal.id in ("kl", "clip")
    covered = ranges.covered(reference, signal, steps, zeros)
    steps = steps if covered is None else covered
    window = list(FIRST_TEN) if what == "first ten" else steps
    range_ = ranges.of(reference, signal, window, what, zeros)
    judged = rangejudge.judge(seen.series, steps, range_, signal.column)
    verdict, why, notes = judged.verdict, judged.why, list(seen.notes)
    if seen.hidden:
        verdict, why = HIDDEN, seen.hidden
    elif what == "all steps" and verdict == INSIDE and range_ is not None and reference.runs:
        late, silent = _late(signal, seen, steps, reference)
        if late:
            verdict, why = OUTSIDE, late
        if silent:
            notes.append(f"the rule of the last five steps was not applied: {silent}")
    if verdict in (INSIDE, OUTSIDE) and range_ and range_.tier == "measured" and range_.seeds < 2:
        notes.append("the range rests on one seed: a weak reference")
    return {
        "id": signal.id,
        "number": number,
        "name": signal.name,
        "column": signal.column,
        "unit": signal.unit,
        "digits": signal.digits,
        "steps": signals.steps_text(steps) if steps else "no step",
        "n": judged.n,
        "mean": judged.mean,
        "low": judged.low,
        "high": judged.high,
        "range": _range(range_),
        "verdict": verdict,
        "why": why,
        "notes": notes,
    }


def _late(signal, seen, steps: list[int], reference: Reference) -> tuple[str | None, str]:
    """Why the late steps are off (None: they are not), and why the rule does not apply ("").

    Judged are the last five steps that two seeds have, and the last five of all, which may have
    one seed.
    """
    mine = [n for n in steps if n in seen.series and math.isfinite(seen.series[n])]
    seeds = ranges.seeds_at(reference, signal)
    two = [n for n in mine if seeds.get(n, 0) > 1]
    windows = [w[-rangejudge.LATE :] for w in (two, mine) if len(w) >= rangejudge.LATE]
    noise = max(
        (
            healthdrift.noise(healthrules.finite(series)[1])
            for series in ranges.series_of(reference, signal)
        ),
        default=0.0,
    )
    for window in windows:
        range_ = ranges.of(reference, signal, window, "all steps")
        means = [
            healthdrift.mean([series[n] for n in window])
            for series in ranges.series_of(reference, signal)
            if healthdrift.covers(series, window)
        ]
        why = rangejudge.late(seen.series, window, range_, means, noise)
        if why:
            return why, ""
    if windows:
        return None, ""
    return None, f"this run has {len(mine)} steps that a reference run has too"


def _range(range_: Range | None) -> dict | None:
    return None if range_ is None else {**range_._asdict(), "runs": list(range_.runs)}


def _add_findings(row: dict, found: list) -> None:
    """A finding about a signal makes it outside, whatever its range says."""
    mine = [f.text for f in found if f.signal == row["id"]]
    if mine:
        row["verdict"] = OUTSIDE
        row["why"] = "; ".join([*mine, row["why"]] if row["why"] else mine)


def _check(check: step0.Check) -> dict:
    return {**check._asdict(), "range": _range(check.range)}


def _reference(reference: Reference) -> dict:
    nearest = None
    if reference.nearest:
        name, differs = reference.nearest
        nearest = {"run": name, "differs": [str(d) for d in differs]}
    named = {other.name for other, _ in reference.runs}
    return {
        "chosen": reference.chosen,
        "runs": [
            {
                "run": other.name,
                "seeds": theirs.seeds,
                "steps": len(other.run["steps"]["index"]),
                "tier": "measured",
                "differs": reference.differs.get(other.name, []),
            }
            for other, theirs in reference.runs
        ],
        "reported": sorted({r.what for r in reference.reported.values()}),
        "nearest": nearest,
        "lab_differs": {n: d for n, d in reference.differs.items() if n not in named},
        "unstated": list(reference.unstated),
        "notes": list(reference.notes),
    }


def _noise(run: dict, mine: Facts, reference: Reference) -> dict:
    """The binomial floor of the reward of one step, beside the spread over the reference seeds.

    floor: median over the first ten steps of sqrt(p (1 - p) / answers), None without the flags
    or with other rewards than 0 and 1; spread: standard deviation over the reference runs with
    different seeds (two or more), the root mean square over these steps (a median of deviations
    of two values is too low by a third); move: largest change from one step to the next.
    """
    reward = signals.column(run, signals.REWARD)
    cells = [reward[n] for n in FIRST_TEN if n in reward and math.isfinite(reward[n])]
    pairs = [
        (reward[a], reward[b])
        for a, b in itertools.pairwise(FIRST_TEN)
        if a in reward and b in reward
    ]
    moves = [abs(y - x) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]
    answers = answers_per_step(mine.settings)
    lines = _seed_lines(reference)
    both = [[line[n] for line in lines] for n in FIRST_TEN if all(n in line for line in lines)]
    many = len(lines) > 1 and bool(both)
    spreads = [statistics.stdev(row) for row in both] if many else []
    means = [statistics.fmean(row) for row in both] if many else []
    binary = (signals.rewards_named(run) or {0.0}) <= {0.0, 1.0}
    answers = answers if binary else None
    return {
        "answers": answers,
        "binary": binary,
        "floor": _floor(cells, answers),
        "reference_floor": _floor(means, answers),
        "spread": math.sqrt(statistics.fmean(s * s for s in spreads)) if spreads else None,
        "spread_range": [min(spreads), max(spreads)] if spreads else None,
        "widest": max((max(row) - min(row) for row in both), default=None) if many else None,
        "seeds": len(lines),
        "move": max(moves, default=None),
    }


def answers_per_step(settings: dict | None) -> int | None:
    """Answers of one step by the flags."""
    try:
        return int(settings["rollout-batch-size"] * settings["n-samples-per-prompt"])
    except (KeyError, TypeError):
        return None


def _floor(means: list[float], answers: int | None) -> float | None:
    floors = [healthrules.binomial_floor(p, answers) for p in means] if answers else []
    return statistics.median(floors) if floors and None not in floors else None


def _seed_lines(reference: Reference) -> list[dict]:
    """One reward series a seed."""
    by_seed = {}
    for other, theirs in reference.runs:
        by_seed.setdefault(theirs.seeds, signals.column(other.run, signals.REWARD))
    return list(by_seed.values())


def _timing(clock: clockcheck.Timing, wanted: bool, run: dict, shared: bool) -> dict:
    """Medians only of a run that did not share its GPU: a shared time is no result."""
    clean = clockcheck.timed(clock.steps, run, "step")
    rollout = clockcheck.timed(clock.steps, run, "rollout")
    return {
        "badge": list(clock.badge),
        "record": clock.record,
        "left_out": clockcheck.first_step(run),
        "clean_steps": [s.step for s in clean],
        "clean_rollouts": [s.step for s in rollout],
        "step_s": statistics.median(s.step_s for s in clean) if clean and not shared else None,
        "rollout_s": statistics.median(s.rollout_s for s in rollout)
        if rollout and not shared
        else None,
        "steps": [s._asdict() for s in clock.steps] if wanted else [],
    }


def resume_report(first: Loaded, second: Loaded) -> dict:
    """The restart test as data: its checks, whether it passed, and what no line shows."""
    facts = [setupdiff.facts(x) for x in (first, second)]
    answers = answers_per_step(facts[0].settings)
    floor = reward_floor(first.run, facts[0]) if answers else None
    parts = resumecheck.compare(first, second, *facts, floor)
    names = [x.name if first.name != second.name else x.path for x in (first, second)]
    return {
        "first": names[0],
        "second": names[1],
        "checks": [p._asdict() for p in parts],
        "passed": not any(p.ok is False for p in parts),
        "not_shown": [p.name for p in parts if p.ok is None],
        "notes": [
            f"{name}: {n}" for name, x in zip(names, (first, second), strict=True) for n in x.notes
        ],
        "seeds": [x.seeds for x in facts],
    }
