"""Whether a difference between two sides may be called one, and what would settle it.

The rule is the same from both sides, so the order of the sides only flips signs: the ranges of
the two sides' runs must not overlap, their distance must be larger than the spread of either and
than that of the stored runs of either setup, and as many seeds must stand on each side that runs
without any effect seldom separate so far.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from mileskit.judge.quantities import Quantity, steps_text
from mileskit.judge.ranges import MIN_STEPS
from mileskit.judge.setupdiff import own
from mileskit.judge.sides import Between, Side

MOST_CHANCE = 0.1  # 3 seeds against 3
FLIP_PAIRS = 6  # the smallest two-sided p of a sign-flip test is 2 / 2**pairs: 1/32 for six pairs
FLIP_MOST = 16
MORE_SEEDS = "at least 3 seeds on each side, the same ones"
_EFFECT = "more seeds, or a larger effect"
_FAMILIES = (
    ("save", "save-interval", "save-hf"),
    ("eval-", "n-samples-per-eval-prompt", "skip-eval-before-train"),
    ("save-debug-", "dump-details"),
)


class Values(NamedTuple):
    """The middles of a side: of every run, and of every known seed (the mean over its repeats)."""

    side: Side
    runs: tuple[float, ...]
    seeds: tuple[float, ...]

    @property
    def range(self) -> tuple[float, float]:
        return min(self.runs), max(self.runs)

    @property
    def mean(self) -> float:
        values = self.seeds or self.runs
        return math.fsum(values) / len(values)


class Stored(NamedTuple):
    """What the stored runs of a side's setup say: their range with the side's own runs.

    steps: the steps it covers; full: whether these are all that are compared; runs: their names.
    """

    side: str
    low: float
    high: float
    steps: tuple[int, ...]
    full: bool
    runs: tuple[str, ...]

    @property
    def width(self) -> float:
        return self.high - self.low


class Circumstances(NamedTuple):
    """What besides the values decides on a claim.

    what: the differences; stored: of either setup; broken: run name -> steps whose numbers are
    not finite; both: runs that stand on both sides; stuck: runs with a stuck clock; lengths:
    (name, left, right) of what a time follows; no_length: runs of unknown length.
    """

    what: Between
    stored: tuple[Stored, ...] = ()
    broken: dict | None = None
    both: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
    lengths: tuple[tuple[str, list[float], list[float]], ...] = ()
    no_length: tuple[str, ...] = ()


class Claim(NamedTuple):
    """word: what B is called ("faster"), None when refused; reasons: why it is refused;
    settle: what would settle it; chance: how often the seeds of two sides separate like this when
    the setting does nothing."""

    word: str | None
    reasons: tuple[str, ...]
    settle: tuple[str, ...]
    chance: float


class _Refusals:
    def __init__(self):
        self.reasons: list[str] = []
        self.cures: list[str] = []

    def __call__(self, why: str, cure: str = "") -> None:
        self.reasons.append(why)
        if cure and cure not in self.cures:
            self.cures.append(cure)


def decide(quantity: Quantity, a: Values, b: Values, steps: int, given: Circumstances) -> Claim:
    """The claim on one quantity whose middles over ``steps`` common clean steps are a and b."""
    refuse = _Refusals()
    odds = chance(len(a.seeds), len(b.seeds))
    if steps < MIN_STEPS:
        refuse(f"{steps} common clean steps, fewer than {MIN_STEPS}", "longer runs on both sides")
    if given.broken:
        words = (f"{name} in {steps_text(at)}" for name, at in sorted(given.broken.items()))
        refuse(f"not finite: {', '.join(words)}", "runs whose numbers stay finite")
    _same_setting(quantity, given, refuse)
    if quantity.is_time:
        _timing(given, refuse)
    few = [v.side for v in (a, b) if len(v.seeds) < 2]
    if few:
        refuse(" and ".join(f"{side.name} has {_seeds(side)}" for side in few), MORE_SEEDS)
    if all(map(math.isfinite, (*a.runs, *b.runs))):
        apart = _spread(a, b, given.stored, refuse)
        if apart and not few and odds > MOST_CHANCE:
            refuse(
                f"the sides are apart, and so few seeds are so by chance in 1 of {1 / odds:.3g}"
                " comparisons",
                MORE_SEEDS,
            )
        if apart and quantity.is_time:
            _length(quantity, a, b, given, refuse)
    word = None
    cures = refuse.cures
    if MORE_SEEDS in cures:
        cures = [c for c in cures if c != _EFFECT]
    if not refuse.reasons:
        word = quantity.words[0] if a.mean < b.mean else quantity.words[1]
        if odds > 0.03:  # 4 seeds against 4: 1 of 35
            cures = ["a further seed on each side makes chance a weaker explanation"]
    return Claim(word, tuple(refuse.reasons), tuple(cures), odds)


def _seeds(side: Side) -> str:
    if side.seeds == 0:
        return "no known seed"
    more = f" in {len(side.members)} runs" if len(side.members) > side.seeds else ""
    return f"{side.seeds} seed{'' if side.seeds == 1 else 's'}{more}"


def _names(found) -> str:
    return ", ".join(sorted(set(found)))


def _same_setting(quantity: Quantity, given: Circumstances, refuse) -> None:
    what = given.what
    if given.both:
        refuse(f"{_names(given.both)} stands on both sides", "runs of its own on each side")
    if not what.known:
        refuse(
            "the flags of a run are unknown, so nothing says what differs",
            "logs that begin with their command, or a run.toml beside them",
        )
        return
    differ = [d.name for d in own(list(what.samples)) or list(what.samples)]
    if quantity.is_time:
        differ += _timed(what.time)
    if len(differ) > 1:
        names = ", ".join(differ)
        refuse(f"{len(differ)} settings differ: {names}", "a pair that differs in one of them only")
    elif not differ:
        refuse("no setting differs between the sides", "sides that differ in one setting")
    if what.inner:
        names = _names(d.name for d in what.inner)
        refuse(f"the runs of one side differ in {names}", "runs of one setting on each side")
    if quantity.is_time and what.inner_time:
        names = _names(d.name for d in what.inner_time)
        refuse(
            f"the runs of one side differ in what can change a time: {names}",
            "runs of one setting on each side",
        )


def _timed(found) -> list[str]:
    """Names of the differences; flags that ask for one thing together are one difference."""
    names = sorted(d.name for d in found)
    if "use-kl-loss" in names:
        names = [n for n in names if n != "ref-load"]
    out: dict[object, list[str]] = {}
    for name in names:
        key = next((family for family in _FAMILIES if _belongs(name, family)), name)
        out.setdefault(key, []).append(name)
    return [" with ".join(names) for names in out.values()]


def _belongs(name: str, family: tuple[str, ...]) -> bool:
    return any(name.startswith(n) if n.endswith("-") else name == n for n in family)


def _timing(given: Circumstances, refuse) -> None:
    what = given.what
    if what.shared:
        refuse(f"GPU shared in {_names(what.shared)}", "runs that have the GPU to themselves")
    if what.unsaid:
        refuse(
            f"nothing says whether the GPU was shared in {_names(what.unsaid)}",
            "runs that have the GPU to themselves and say so, in a run.toml or by a first line"
            " `# gpu NAME, DRIVER, TOTAL MiB, 0 MiB`",
        )
    if given.stuck:
        refuse(
            f"stuck low clock in {_names(given.stuck)}", "a run with the clock at its usual speed"
        )
    if given.no_length:
        refuse(
            f"no answer length in {_names(given.no_length)}, which a time follows",
            "logs with their rollout lines",
        )


def _length(quantity: Quantity, a: Values, b: Values, given: Circumstances, refuse) -> None:
    """Refuses a time that the answer length explains, or whose sign turns when length counts."""
    cure = "steps of equal answer length, or a fixed set of prompts and answers"
    for name, left, right in given.lengths:
        if quantity.is_rate:
            if not _overlap(_range(left), _range(right)):
                refuse(f"a rate follows the {name}, and the sides differ in it", cure)
            continue
        x = [time / n for time, n in zip(a.runs, left, strict=True)]
        y = [time / n for time, n in zip(b.runs, right, strict=True)]
        if _overlap(_range(x), _range(y)):
            refuse(f"the time follows the {name}: per token of it the sides overlap", cure)
        elif (max(x) < min(y)) != (a.mean < b.mean):
            refuse(f"the time follows the {name}: per token of it the order is the other one", cure)


def _range(values) -> tuple[float, float]:
    return min(values), max(values)


def _overlap(low: tuple[float, float], high: tuple[float, float]) -> bool:
    return low[0] <= high[1] and high[0] <= low[1]


def _spread(a: Values, b: Values, stored: tuple[Stored, ...], refuse) -> bool:
    """Refuses a difference inside the spread of the seeds; whether the sides are apart."""
    distance = abs(b.mean - a.mean)
    if distance == 0 and a.range == b.range:
        refuse("no difference")
        return False
    before = len(refuse.reasons)
    spread = max(high - low for low, high in (a.range, b.range))
    if _overlap(a.range, b.range):
        refuse("the ranges of the two sides overlap", _EFFECT)
    elif distance <= spread:
        refuse(f"the difference is not larger than the spread of the seeds, {spread:.3g}", _EFFECT)
    else:
        _against_stored(a, b, distance, stored, refuse)
    return len(refuse.reasons) == before


def _against_stored(a: Values, b: Values, distance: float, stored, refuse) -> None:
    before = len(refuse.reasons)
    # an order that does not depend on the sides' letters
    for s in sorted(stored, key=lambda s: (-s.full, -s.width, s.runs)):
        other = b if s.side == a.side.name else a
        if s.full and _overlap((s.low, s.high), other.range):
            inside = s.low <= other.range[0] and other.range[1] <= s.high
            how = "lies inside" if inside else "overlaps"
            name = other.side.name
            refuse(f"{name} {how} the range of the stored runs of {s.side}'s setup", _EFFECT)
        elif distance <= s.width:
            over = "" if s.full else f" over {steps_text(list(s.steps))}"
            refuse(
                "the difference is not larger than the spread of the stored runs of"
                f" {s.side}'s setup, {s.width:.3g}{over}",
                _EFFECT,
            )
    wide = {v.side.name: v.range for v in (a, b)}
    wide |= {s.side: (s.low, s.high) for s in stored if s.full}
    if len(refuse.reasons) == before and _overlap(*wide.values()):
        refuse("with the stored runs of both setups the ranges overlap", _EFFECT)


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
