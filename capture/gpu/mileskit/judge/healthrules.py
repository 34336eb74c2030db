"""The rules that need no reference: numbers that are wrong in every setup.

A fall of reward, answer length or entropy is judged against the run's own first or best five
steps.  Answer length and entropy also fall while a healthy run learns (in a stored run of 20 steps
the entropy falls to 0.22 of its first five while the reward rises), so half is wrong only when the
reward did not rise with it; the more it rose, the lower the bound.
"""

from __future__ import annotations

import itertools
import math
import statistics

from mileskit.judge import signals
from mileskit.judge.healthdrift import mean, noise
from mileskit.judge.rangejudge import LATE, Finding
from mileskit.judge.signals import steps_text

GAP_HIGH = 0.1  # the run guard's limit, in two steps in a row
SIGNAL_STEPS = 5
CUT_HIGH, CUT_STEPS = 0.5, 3
FALLEN = 0.5  # of the first five steps, while the reward does not rise
UNSURE = 0.25  # the same, while the reward rises by no more than noise
COLLAPSED = {"length": 0.2, "entropy": 0.1}  # the same, whatever the reward does
SIGMAS = 4.0  # of the difference of two means of five steps
RISEN = 2.0  # the same, for a reward that counts as risen
SPIKE = 10.0  # times the median of the run, and as many median deviations above it
ENOUGH = 2 * LATE


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


def cut_high(cut: dict) -> Finding | None:
    """More than half of the answers cut in three steps in a row: most rewards judge a torso."""
    streak: list[int] = []
    for n in sorted(cut):
        streak = [*streak, n] if cut[n] > CUT_HIGH else []
        if len(streak) == CUT_STEPS:
            text = f"more than half of the answers were cut from step {streak[0]} to step {n} or"
            return Finding("cut-high", "cut", f"{text} longer")
    return None


def reward_falls(reward: dict, floor: float | None) -> Finding | None:
    """The reward of the last five steps far below the best five before them.

    floor: the binomial floor of one step, None when it is unknown or does not apply; the noise
    that counts is the larger of it and what the run's own moves from step to step show.
    """
    steps, values = finite(reward)
    if len(values) < ENOUGH:
        return None
    means = [mean(values[i : i + LATE]) for i in range(len(values) - 2 * LATE + 1)]
    at = max(range(len(means)), key=means.__getitem__)
    last = mean(values[-LATE:])
    if means[at] - last <= SIGMAS * pooled(values, floor) or last >= means[at]:
        return None
    text = (
        f"the reward fell: mean {means[at]:.3f} in steps {steps[at]} to {steps[at + LATE - 1]},"
        f" {last:.3f} in the last five"
    )
    return Finding("reward-falls", "reward", text)


def falls(signal: str, series: dict, reward: dict, floor: float | None) -> Finding | None:
    """Answer length or entropy that collapses; signal: "length" or "entropy"."""
    _, values = finite(series)
    if len(values) < ENOUGH:
        return None
    first, last = mean(values[:LATE]), mean(values[-LATE:])
    if first <= 0 or last >= FALLEN * first:
        return None
    _, scores = finite(reward)
    rise = mean(scores[-LATE:]) - mean(scores[:LATE]) if len(scores) >= ENOUGH else 0.0
    limit = FALLEN
    if rise > 0:
        limit = COLLAPSED[signal] if rise > RISEN * pooled(scores, floor) else UNSURE
    if last >= limit * first:
        return None
    name = signals.BY_ID[signal].name
    text = f"{name} collapses: mean {first:.3g} in the first five steps, {last:.3g} in the last"
    return Finding(f"{signal.replace('_', '-')}-collapse", signal, f"{text} five of {len(values)}")


def grad_spike(grad: dict) -> Finding | None:
    """A gradient norm over ten times the run's median, and over ten median deviations above it."""
    steps, values = finite(grad)
    if len(values) < LATE:
        return None
    middle = statistics.median(values)
    spread = statistics.median(abs(v - middle) for v in values)
    high = [
        n for n, v in zip(steps, values, strict=True) if v > SPIKE * middle > 0
        and v > middle + SPIKE * spread
    ]  # fmt: skip
    if not high:
        return None
    text = f"gradient norm above {SPIKE:g} times the run's median {middle:.3g} in"
    return Finding("grad-spike", "grad_norm", f"{text} {steps_text(high)}")


def finite(series: dict) -> tuple[list[int], list[float]]:
    """Steps in order with a finite value, and the values."""
    steps = [n for n in sorted(series) if math.isfinite(series[n])]
    return steps, [series[n] for n in steps]


def pooled(values: list[float], floor: float | None) -> float:
    """Standard deviation of the difference of two means of five steps by noise alone."""
    return max(noise(values), floor or 0.0) * math.sqrt(2 / LATE)


def binomial_floor(reward: float, answers: int) -> float | None:
    """Standard deviation of the mean of independent 0/1 rewards: sqrt(p (1 - p) / n).

    None when the mean is not between 0 and 1.
    """
    if answers < 1 or not 0 <= reward <= 1:
        return None
    return math.sqrt(reward * (1 - reward) / answers)
