"""Verdicts on a series against a range.

Why a single step outside the range is not enough: a further healthy run puts the largest of its
ten steps above the largest of n reference values about 10 times in (n + 10), so with three seeds
of ten steps one healthy run in four would fail for each number and side.  The verdict therefore
rests on the mean of five steps or more, and on single steps only when they are off by more than
the width of the range.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from mileskit.judge.ranges import MIN_STEPS, Range
from mileskit.judge.signals import steps_text

INSIDE = "inside"
OUTSIDE = "outside"
HIDDEN = "not visible in this setup"
FEW = "not enough steps"
NONE = "no reference"

LATE = 5
NOISES = 3.0  # standard deviations of one step, beside the width of a range
SPREADS = 2.0  # times the distance of the means of the reference runs
SIGMAS = 4.0  # standard deviations of the difference of two means
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


def late(
    series: dict,
    steps: list[int],
    range_: Range | None,
    means: list[float] = (),
    noise: float = 0.0,
) -> str | None:
    """Why the mean over these late steps is off, None when it is not.

    range_: the reference at those same steps, means: the mean of each reference run that has all
    of them, noise: standard deviation of one step of a reference run.  Off is a mean that misses
    the range by more than its width, or (with two means) the means by more than twice their
    distance; and in both cases by more than 3 or 4 times what noise explains.
    """
    cells = [series[n] for n in steps if n in series and math.isfinite(series[n])]
    if range_ is None or not cells:
        return None
    mean = math.fsum(cells) / len(cells)
    slack = max(range_.width, NOISES * noise)
    low, high = range_.low - slack, range_.high + slack
    if len(means) > 1:
        spread = max(
            SPREADS * (max(means) - min(means)), SIGMAS * noise * math.sqrt(2 / len(cells))
        )
        low, high = max(low, min(means) - spread), min(high, max(means) + spread)
    if low <= mean <= high:
        return None
    side = "below" if mean < range_.low else "above"
    seeds = "one seed" if range_.seeds == 1 else f"{range_.seeds} seeds"
    return f"the mean of {steps_text(steps)} lies {side} the range of {seeds} at those steps"


class Finding(NamedTuple):
    """Something wrong: id, the signal it concerns, and one sentence with its steps."""

    id: str
    signal: str
    text: str
