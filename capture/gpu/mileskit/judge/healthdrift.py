"""Does the log-probability gap drift?  The rules for a rise that no single step shows."""

from __future__ import annotations

import itertools
import math
import statistics

from mileskit.judge.rangejudge import LATE, Finding

STEPS = 10
Z = 2.576  # one-sided 0.5 percent
RISE = 1.1
CLEAR = 1.3
TURN = 1.4
"""Ratios of two means of five steps that need no allowance for correlated steps: of healthy runs
whose steps correlate by 0.8 and are 10 percent wide, about 1 in 100 reaches one with its trend."""
AWAY = 1.5  # of the distance to the reference, over the same steps
MOST_CORRELATED = 0.9
ROUNDING = 1e-5
"""Nats: two float32 programs that compute the same differ by less, by 2e-7 in `capture/core`."""


def gap_drift(gap: dict, others: list[dict]) -> Finding | None:
    """A gap that creeps up although no single step need look wrong; at least ten steps.

    Three rules, the first that holds is told:

    - the last five steps have at least twice the mean of the first five and rise (the rule of the
      run guard), or 1.1 times and the trend over all steps is upward, or 1.3 times and the
      Mann-Kendall test without its allowance for correlated steps says so;
    - after its lowest five steps the gap rises again: the last five have 1.4 times that mean, and
      the steps from there on rise;
    - the gap moves away from the mean of the reference runs over the same steps: the ratio of the
      two rises by half and keeps rising, and the last five lie above every reference value.

    A trend is upward when z of :func:`trend` is above 2.576; where the two means are far apart the
    plain z of :func:`mann_kendall` has to be.  others: the gap of the reference
    runs; a rise that one of them shows over the same steps is how this setup behaves, and no
    finding by the first two rules. A gap whose last five steps are rounding (below 1e-5) does not
    drift, whatever its trend.
    """
    steps = [n for n in sorted(gap) if math.isfinite(gap[n])]
    if len(steps) < STEPS:
        return None
    values = [gap[n] for n in steps]
    if mean(values[-LATE:]) < ROUNDING:
        return None
    same = [[o[n] for n in steps] for o in others if covers(o, steps)]
    text = _creeps(values, same) or _turns(steps, values, same) or _leaves(gap, steps, others)
    return Finding("gap-drift", "gap", text) if text else None


def covers(other: dict, steps: list[int]) -> bool:
    """Whether a series has a finite value at each of the steps."""
    return all(n in other and math.isfinite(other[n]) for n in steps)


def _creeps(values: list[float], same: list[list[float]]) -> str | None:
    first, last = mean(values[:LATE]), mean(values[-LATE:])
    if first <= 0 or last < RISE * first:
        return None
    z = mann_kendall(values) if last >= CLEAR * first else trend(values)
    doubled = last >= 2 * first and last > mean(values[-2 * LATE : -LATE])
    if z < Z and not doubled:
        return None
    if any(_ratio(o[:LATE], o[-LATE:]) >= last / first for o in same):
        return None
    return (
        f"the gap creeps up: mean {first:.4g} in the first five steps, {last:.4g} in the last"
        f" five of {len(values)} (trend z = {z:.1f})"
    )


def _turns(steps: list[int], values: list[float], same: list[list[float]]) -> str | None:
    means = [mean(values[i : i + LATE]) for i in range(len(values) - 2 * LATE + 1)]
    at = min(range(len(means)), key=means.__getitem__)
    low, last = means[at], mean(values[-LATE:])
    if low <= 0 or last < TURN * low:
        return None
    z = mann_kendall(values[at + LATE // 2 :])
    if z < Z or any(_ratio(o[at : at + LATE], o[-LATE:]) >= last / low for o in same):
        return None
    return (
        f"the gap rises again after its low: mean {low:.4g} in steps {steps[at]} to"
        f" {steps[at + LATE - 1]}, {last:.4g} in the last five (trend z = {z:.1f})"
    )


def _leaves(gap: dict, steps: list[int], others: list[dict]) -> str | None:
    near = {n: [o[n] for o in others if n in o and math.isfinite(o[n])] for n in steps}
    both = [n for n in steps if near[n] and gap[n] > 0 and min(near[n]) > 0]
    if len(both) < STEPS:
        return None
    middle = {n: mean(near[n]) for n in both}
    tail, head = both[-LATE:], both[:LATE]
    before = mean([gap[n] for n in head]) / mean([middle[n] for n in head])
    after = mean([gap[n] for n in tail]) / mean([middle[n] for n in tail])
    z = mann_kendall([gap[n] / middle[n] for n in both])
    above = mean([gap[n] for n in tail]) > max(v for n in tail for v in near[n])
    if after < AWAY * before or z < Z or not above:
        return None
    return (
        f"the gap leaves that of the reference: {before:.2g} times its mean in steps {head[0]} to"
        f" {head[-1]}, {after:.2g} times in steps {tail[0]} to {tail[-1]} (trend z = {z:.1f})"
    )


def _ratio(first: list[float], last: list[float]) -> float:
    return mean(last) / max(mean(first), 1e-30)


def mean(values: list[float]) -> float:
    """The mean of at least one value."""
    return math.fsum(values) / len(values)


def trend(values: list[float]) -> float:
    """z of the Mann-Kendall test with its variance inflated for correlated steps.

    The inflation is that of a series whose neighbours correlate by r: 1 + 2 sum (1 - k/n) r**k;
    r is the lag-1 correlation of what remains beside the straight line, corrected for its bias in
    short series, and counts only when positive.  Rule from outside: Hamed and Rao (1998), A
    modified Mann-Kendall trend test for autocorrelated data, with r**k for lag k.
    """
    n, z = len(values), mann_kendall(values)
    r = min(MOST_CORRELATED, lag_correlation(values))
    if r <= 0:
        return z
    factor = 1 + 2 * sum((1 - k / n) * r**k for k in range(1, n))
    return z / math.sqrt(factor)


def lag_correlation(values: list[float]) -> float:
    """Correlation of neighbouring steps beside the straight line through them, 0 under 5 values."""
    n = len(values)
    if n < 5:
        return 0.0
    center, level = (n - 1) / 2, mean(values)
    spread = sum((i - center) ** 2 for i in range(n))
    slope = sum((i - center) * (v - level) for i, v in enumerate(values)) / spread
    rest = [v - level - slope * (i - center) for i, v in enumerate(values)]
    power = math.fsum(x * x for x in rest)
    if power <= 1e-24 * max(1e-300, math.fsum(v * v for v in values)):
        return 0.0
    raw = math.fsum(a * b for a, b in itertools.pairwise(rest)) / power
    return (n * raw + 2) / (n - 4) if n > 4 else raw


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


def noise(values: list[float]) -> float:
    """Standard deviation of one step by the moves from step to step; a trend hardly adds to it."""
    moves = [abs(b - a) for a, b in itertools.pairwise(values)]
    return 1.4826 * statistics.median(moves) / math.sqrt(2) if moves else 0.0
