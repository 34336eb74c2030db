"""Whether a difference between two sides may be called one, and what would settle it.

The rule is the same from both sides, so the order of the sides only flips signs: the ranges of
the two sides' runs must not overlap, and their distance must be larger than the spread of either.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from quantities import Quantity
from ranges import MIN_STEPS
from setupdiff import own
from sides import Between, Side

MIN_SEEDS = 2
FLIP_PAIRS = 6  # the smallest two-sided p of a sign-flip test is 2 / 2**pairs: 1/32 for six pairs
FLIP_MOST = 16


class Claim(NamedTuple):
    """word: what B is called ("faster"), None when refused; reasons: why it is refused;
    settle: what would settle it; chance: how often all runs of two sides separate like this when
    the setting does nothing."""

    word: str | None
    reasons: tuple[str, ...]
    settle: tuple[str, ...]
    chance: float


def decide(
    quantity: Quantity,
    a: Side,
    b: Side,
    lefts: list[float],
    rights: list[float],
    steps: int,
    what: Between,
    per_token: tuple[list[float], list[float]] | None,
    stuck: list[str],
) -> Claim:
    """The claim on one quantity.

    lefts, rights: the middle of each run over the common clean steps; per_token: the same of a
    time divided by the answer length; stuck: runs with a stuck clock.
    """
    reasons, settle = [], []

    def refuse(why: str, cure: str) -> None:
        reasons.append(why)
        if cure not in settle:
            settle.append(cure)

    if steps < MIN_STEPS:
        refuse(f"{steps} common clean steps, fewer than {MIN_STEPS}", "longer runs on both sides")
    _same_setting(quantity, what, refuse)
    if quantity.is_time:
        _timing(what, stuck, refuse)
    few = [side for side in (a, b) if side.seeds < MIN_SEEDS]
    if few:
        words = " and ".join(f"{side.name} has {_seeds(side)}" for side in few)
        refuse(words, f"at least {MIN_SEEDS} seeds on each side, the same ones")
    low, high = (min(lefts), max(lefts)), (min(rights), max(rights))
    _spread(quantity, low, high, lefts, rights, len(few), refuse)
    if per_token and not few and not _overlap(low, high):
        x, y = per_token
        if _overlap((min(x), max(x)), (min(y), max(y))):
            refuse(
                "the time follows the answer length: per token of an answer the sides overlap",
                "steps of equal answer length, or a fixed set of prompts and answers",
            )
    word = None
    if not reasons:
        word = quantity.words[0] if low[0] < high[0] else quantity.words[1]
        if min(len(lefts), len(rights)) < 4:
            settle.append("a further seed on each side makes chance a weaker explanation")
    return Claim(word, tuple(reasons), tuple(settle), chance(len(lefts), len(rights)))


def _seeds(side: Side) -> str:
    if side.seeds == 0:
        return "no known seed"
    more = f" in {len(side.members)} runs" if len(side.members) > side.seeds else ""
    return f"{side.seeds} seed{'' if side.seeds == 1 else 's'}{more}"


def _same_setting(quantity: Quantity, what: Between, refuse) -> None:
    if not what.known:
        refuse(
            "the flags of a run are unknown, so nothing says what differs",
            "logs that begin with their command, or a run.toml beside them",
        )
        return
    differ = own(list(what.samples)) or list(what.samples)
    if quantity.is_time:
        differ += _timed(what.time)
    if len(differ) > 1:
        names = ", ".join(d.name for d in differ)
        refuse(f"{len(differ)} settings differ: {names}", "a pair that differs in one of them only")
    elif not differ:
        refuse("no setting differs between the sides", "nothing: there is no change to judge")
    if what.inner:
        names = ", ".join(d.name for d in what.inner)
        refuse(f"the runs of one side differ in {names}", "runs of one setting on each side")
    if quantity.is_time and what.inner_time:
        names = ", ".join(d.name for d in what.inner_time)
        refuse(
            f"the runs of one side differ in what can change a time: {names}",
            "runs of one setting on each side",
        )


def _timed(found) -> list:
    """A reference model is one difference, though two flags ask for it."""
    names = {d.name for d in found}
    return [d for d in found if not (d.name == "ref-load" and "use-kl-loss" in names)]


def _timing(what: Between, stuck: list[str], refuse) -> None:
    if what.shared:
        refuse(f"GPU shared in {', '.join(what.shared)}", "runs that have the GPU to themselves")
    if stuck:
        refuse(f"stuck low clock in {', '.join(stuck)}", "a run with the clock at its usual speed")


def _overlap(low: tuple[float, float], high: tuple[float, float]) -> bool:
    return low[0] <= high[1] and high[0] <= low[1]


def _spread(quantity, low, high, lefts, rights, few: int, refuse) -> None:
    """Refuses a difference that lies inside the spread of one side's runs."""
    distance = abs(_mean(rights) - _mean(lefts))
    if distance == 0 and low == high:
        refuse("no difference", "nothing: the two sides are equal here")
        return
    if few == 2 and len(lefts) == len(rights) == 1:
        return  # one run on each side has no spread to lie inside
    spread = max(low[1] - low[0], high[1] - high[0])
    if _overlap(low, high):
        refuse("the ranges of the two sides overlap", "more seeds, or a larger effect")
    elif distance <= spread:
        refuse(
            f"the difference is not larger than the spread of the seeds, {spread:.3g}",
            "more seeds, or a larger effect",
        )


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def chance(n: int, m: int) -> float:
    """How often n and m runs of one distribution separate completely, either way round."""
    return min(1.0, 2 / math.comb(n + m, n))


def sign_flip(differences: list[float]) -> float | None:
    """Two-sided p of the exact sign-flip test; None below six pairs, where no p can reach 0.05.

    Above sixteen pairs None too: the kit does not enumerate so many signs.
    """
    n = len(differences)
    if not FLIP_PAIRS <= n <= FLIP_MOST:
        return None
    seen = abs(math.fsum(differences)) * (1 - 1e-12)
    flips = itertools.product((1, -1), repeat=n)
    hits = sum(
        abs(math.fsum(s * d for s, d in zip(f, differences, strict=True))) >= seen for f in flips
    )
    return hits / 2**n
