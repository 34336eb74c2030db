"""Verdicts on a series against a range, and the rules that need no reference.

Why a single step outside the range is not enough: a further healthy run puts the largest of its
ten steps above the largest of n reference values about 10 times in (n + 10), so with three seeds
of ten steps one healthy run in four would fail for each number and side.  The verdict therefore
rests on the mean of five steps or more, and on single steps only when they are off by more than
the width of the range.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from ranges import MIN_STEPS, Range
from signals import steps_text

INSIDE = "inside"
OUTSIDE = "outside"
HIDDEN = "not visible in this setup"
FEW = "not enough steps"
NONE = "no reference"

LATE = 5
GAP_HIGH = 0.1  # the run guard's limit, in two steps in a row
DRIFT_Z = 2.576  # one-sided 0.5 percent
DRIFT_RISE = 1.1
DRIFT_STEPS = 10
SIGNAL_STEPS = 5
# Below these a number that is 0 in the reference is rounding: the bounds that Miles asserts in its
# own tests (5.2 of the source manual).
ROUNDING = {"train/ppo_kl": 1e-9, "train/pg_clipfrac": 1e-10}


class Judged(NamedTuple):
    """A verdict and why; mean, low, high and n describe the judged steps (None without any)."""

    verdict: str
    why: str
    n: int
    mean: float | None
    low: float | None
    high: float | None


def judge(series: dict, steps: list[int], range_: Range | None, column: str = "") -> Judged:
    """The verdict on the values of a series at these steps.

    Outside when a value is not finite, when the mean of at least five steps lies outside the
    range (outside the range widened by its width, when it rests on one seed), or when a single
    step lies further outside than the range is wide.
    """
    cells = {n: series[n] for n in steps if n in series}
    bad = [n for n, v in cells.items() if not math.isfinite(v)]
    good = [v for v in cells.values() if math.isfinite(v)]
    stats = _stats(good)
    if bad:
        return Judged(OUTSIDE, f"not finite in {steps_text(bad)}", *stats)
    if not good:
        return Judged(FEW, "no value in these steps", *stats)
    if range_ is None:
        few = len(good) < MIN_STEPS
        return Judged(FEW if few else NONE, f"{len(good)} steps" if few else "", *stats)
    slack = max(range_.width, ROUNDING.get(column, 0.0))
    far = [n for n, v in cells.items() if v < range_.low - slack or v > range_.high + slack]
    if far:
        return Judged(OUTSIDE, f"{steps_text(far)} off by more than the range is wide", *stats)
    if len(good) < MIN_STEPS:
        why = f"{len(good)} of the {MIN_STEPS} steps that a mean needs"
        return Judged(FEW, why, *stats)
    mean = math.fsum(good) / len(good)
    spare = slack if range_.tier == "measured" and range_.seeds < 2 else 0.0
    spare = max(spare, ROUNDING.get(column, 0.0))
    if not range_.low - spare <= mean <= range_.high + spare:
        side = "below" if mean < range_.low else "above"
        return Judged(OUTSIDE, f"the mean lies {side} the range", *stats)
    beyond = [n for n, v in cells.items() if not range_.low <= v <= range_.high]
    why = f"{steps_text(beyond)} a little outside, the mean inside" if beyond else ""
    return Judged(INSIDE, why, *stats)


def _stats(good: list[float]) -> tuple:
    if not good:
        return 0, None, None, None
    return len(good), math.fsum(good) / len(good), min(good), max(good)


def late(series: dict, steps: list[int], range_: Range | None) -> str | None:
    """Why the mean of the last five steps is off, None when it is not.

    range_: the reference at those same steps; it must be missed by more than its width.
    """
    cells = [series[n] for n in steps[-LATE:] if n in series and math.isfinite(series[n])]
    if range_ is None or len(cells) < LATE:
        return None
    mean = math.fsum(cells) / len(cells)
    if range_.low - range_.width <= mean <= range_.high + range_.width:
        return None
    side = "below" if mean < range_.low else "above"
    return f"the mean of the last {LATE} steps lies {side} the range at those steps"


# -- rules that need no reference ------------------------------------------------------------------


class Finding(NamedTuple):
    """Something wrong: id, the signal it concerns, and one sentence with its steps."""

    id: str
    signal: str
    text: str


def nonfinite(broken: list[int]) -> Finding | None:
    """Loss, gradient norm or a log-probability that is NaN or infinite."""
    if not broken:
        return None
    text = f"loss, gradient norm or a log-probability is not finite in {steps_text(broken)}"
    return Finding("nonfinite", "grad_norm", text)


def gap_high(gap: dict) -> Finding | None:
    """The gap above 0.1 in two consecutive steps (the rule of the run guard)."""
    steps = sorted(gap)
    high = {n for n in steps if gap[n] > GAP_HIGH}
    found = [n for a, b in itertools.pairwise(steps) if {a, b} <= high for n in (a, b)]
    if not found:
        return None
    return Finding("gap-high", "gap", f"gap above {GAP_HIGH} in {steps_text(sorted(set(found)))}")


def gap_zero(gap: dict, settings: dict) -> Finding | None:
    """A gap of exactly 0 in every step, which two programs with different kernels do not give."""
    allowed = settings.get("true-on-policy-mode") or settings.get("use-rollout-logprobs")
    if not gap or allowed or any(v != 0 for v in gap.values()):
        return None
    text = "the gap is exactly 0 in every step: a mask or zeroed non-finite values, not agreement"
    return Finding("gap-zero", "gap", text)


def no_signal(grad: dict, share: dict) -> Finding | None:
    """Five steps in a row in which every group had one reward, or the gradient norm was 0."""
    streak: list[int] = []
    for n in sorted(set(grad) | set(share)):
        flat = grad.get(n) == 0 or share.get(n, 0) >= 1 - 1e-9
        streak = [*streak, n] if flat else []
        if len(streak) == SIGNAL_STEPS:
            text = f"every group had one reward from step {streak[0]} to step {n} or longer"
            return Finding("no-signal", "groups", text)
    return None


def gap_drift(gap: dict, others: list[dict]) -> Finding | None:
    """A gap that creeps up although no single step need look wrong.

    Either the last five steps have at least twice the mean of the first five and rise (the rule
    of the run guard), or the trend over at least ten steps is upward by the Mann-Kendall test
    (z above 2.576) and the mean of the last five is at least 1.1 times that of the first five.
    others: the gap of the reference runs; a rise that one of them shows over the same steps is
    how this setup behaves, and no finding.
    """
    steps = [n for n in sorted(gap) if math.isfinite(gap[n])]
    values = [gap[n] for n in steps]
    if len(values) < DRIFT_STEPS:
        return None
    first, last = _mean(values[:LATE]), _mean(values[-LATE:])
    if first <= 0 or last < DRIFT_RISE * first:
        return None
    z = mann_kendall(values)
    doubled = last >= 2 * first and last > _mean(values[-2 * LATE : -LATE])
    if z < DRIFT_Z and not doubled:
        return None
    for other in others:
        theirs = [other[n] for n in steps if n in other and math.isfinite(other[n])]
        enough = len(theirs) == len(steps)
        if enough and _mean(theirs[-LATE:]) / max(_mean(theirs[:LATE]), 1e-30) >= last / first:
            return None
    return Finding(
        "gap-drift",
        "gap",
        f"the gap creeps up: mean {first:.4g} in the first five steps, {last:.4g} in the last"
        f" five of {len(values)} (trend z = {z:.1f})",
    )


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def mann_kendall(values: list[float]) -> float:
    """z of the Mann-Kendall trend test, positive for a rise, 0 for fewer than three values.

    Rule from outside: Kendall, Rank Correlation Methods (1975): S counts pairs that rise minus
    pairs that fall; its variance is corrected for ties; z uses the continuity correction.
    """
    n = len(values)
    if n < 3:
        return 0.0
    s = sum((b > a) - (b < a) for i, a in enumerate(values) for b in values[i + 1 :])
    ties: dict[float, int] = {}
    for v in values:
        ties[v] = ties.get(v, 0) + 1
    spread = n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties.values())
    if spread <= 0 or s == 0:
        return 0.0
    return (s - (1 if s > 0 else -1)) / math.sqrt(spread / 18)


def binomial_floor(reward: float, answers: int) -> float | None:
    """Standard deviation of the mean of independent 0/1 rewards: sqrt(p (1 - p) / n).

    None when the mean is not between 0 and 1.
    """
    if answers < 1 or not 0 <= reward <= 1:
        return None
    return math.sqrt(reward * (1 - reward) / answers)
