"""Named values: a number, its unit and the precision at which it is shown.

A value is what a claim sentence or a prose link may cite. It keeps the exact number;
`text` shows it at the display precision. Rounding is half up on the decimal form of
the number (0.0625 at three decimals is 0.063), the rule that a reader with a pencil uses.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal

LOG_DISTANCE = "log-distance"  # seconds between two lines of a log, no speed of any work
KINDS = ("time", "memory", "share", "count", "metric", LOG_DISTANCE)
TIERS = ("measured", "reported")

_KIND_OF_UNIT = {
    **dict.fromkeys(("ms", "s", "min", "h", "d", "seconds", "minutes", "hours", "days"), "time"),
    **dict.fromkeys(("B", "kB", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB"), "memory"),
    **dict.fromkeys(("percent", "%"), "share"),
}
_RATE = re.compile(r"(?:/|\bper )(?:ms|s|min|h|second|minute|hour|day)\b|^(?:ms|s|min|h)/")

_NO_SPACE_BEFORE = frozenset({"%", "K tokens"})
_WORDS = ((10**12, "trillion"), (10**9, "billion"))  # of round numbers of parameters


class ValueProblem(ValueError):
    """A value that cannot be shown honestly: not finite, no unit rule, a reversed range."""


def rounded(number: float, digits: int) -> Decimal:
    """`number` rounded half up to `digits` decimals; negative digits round to tens, hundreds."""
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueProblem(f"{number!r} cannot be rounded")
    exact = number if isinstance(number, Decimal) else Decimal(repr(number))
    return exact.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP)


def number_text(number: float, digits: int) -> str:
    """`number` at `digits` decimals with thousands separators, for example '1,929,501'.

    A number that rounds to zero loses its sign, and an exact zero is '0' at any precision.
    """
    if number == 0:
        return "0"
    shown = rounded(number, digits)
    if shown == 0:
        shown = abs(shown)
    return f"{shown:,f}" if digits > 0 else f"{int(shown):,}"


def _with_word(number: float, digits: int) -> str:
    """`number` with the word for its size where it is round: '13 billion', '1,929,501,000'."""
    for size, word in _WORDS:
        if number >= size and number % size == 0:
            return f"{number_text(number / size, 0)} {word}"
    return number_text(number, digits)


def with_unit(text: str, unit: str, one: bool = False) -> str:
    """`text` and `unit` as prose writes them; `one` drops the plural of a word such as 'steps'."""
    if not unit:
        return text
    if one and len(unit) > 2 and unit.endswith("s"):
        unit = unit[:-1]
    return f"{text}{unit}" if unit in _NO_SPACE_BEFORE else f"{text} {unit}"


def kind_of(unit: str) -> str:
    """The kind that a unit implies: 's' and 'tokens/s' are times; '' when it implies none."""
    return "time" if _RATE.search(unit) else _KIND_OF_UNIT.get(unit, "")


@dataclass(frozen=True, slots=True)
class Value:
    """One named number of a figure.

    name      the name that claims and links use, unique in its figure
    number    the exact number, or (low, high) for a range
    unit      '' or the unit as written in prose: s, min, GB, tokens, percent, ...
    digits    decimals shown
    quantity  stable id of what this is; the same quantity on two pages must agree
    runs      ids of the runs it comes from ('h200-miles/plain_s1234'); reported: 'gb10/plain'
    kind      time, memory, share, count or metric; follows from the unit where the unit implies
              one. Seconds may also be a log-distance, see `sources.log_distance`
    note      what a reader must know about it (for example the id of a contradiction)
    noun      what a bare count counts, 'groups', or all its names: 'failed requests|requests'
    tier      measured, or reported: a published value of another lab
    exponent  shown as 1.2e-07, with `digits` decimals before the e
    """

    name: str
    number: float | int | tuple[float, float]
    unit: str
    digits: int
    quantity: str
    runs: tuple[str, ...] = ()
    kind: str = ""
    note: str = field(default="", compare=False)
    noun: str = field(default="", compare=False)
    tier: str = field(default="measured", compare=False)
    exponent: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        implied = kind_of(self.unit)
        if not self.kind:
            object.__setattr__(self, "kind", implied or "metric")
        if self.kind not in KINDS:
            raise ValueProblem(f"{self.name}: unknown kind {self.kind!r}")
        if self.tier not in TIERS:
            raise ValueProblem(f"{self.name}: unknown tier {self.tier!r}")
        distance = self.kind == LOG_DISTANCE
        if distance and (implied != "time" or _RATE.search(self.unit)):
            raise ValueProblem(f"{self.name}: a log distance in {self.unit!r}")
        if implied and self.kind != implied and not distance:
            raise ValueProblem(
                f"{self.name}: the unit {self.unit!r} makes it a {implied}, not a {self.kind}"
            )
        for number in self.numbers:
            if isinstance(number, float) and not math.isfinite(number):
                raise ValueProblem(f"{self.name}: {number!r} is not a number that can be shown")
        if self.is_range and self.low > self.high:
            raise ValueProblem(f"{self.name}: the range {self.number} runs backwards")

    @property
    def is_range(self) -> bool:
        """True when the value is a low and a high end."""
        return isinstance(self.number, tuple)

    @property
    def numbers(self) -> tuple[float, ...]:
        """The exact number, or both ends of the range."""
        return self.number if isinstance(self.number, tuple) else (self.number,)

    @property
    def low(self) -> float:
        """The number, or the low end of the range."""
        return self.numbers[0]

    @property
    def high(self) -> float:
        """The number, or the high end of the range."""
        return self.numbers[-1]

    @property
    def shown(self) -> tuple[Decimal, ...]:
        """The number or both ends as displayed."""
        return tuple(rounded(number, self.digits) for number in self.numbers)

    @property
    def bare(self) -> str:
        """The number without its unit: '233', '0.0141 to 0.0164', '345,645'."""
        shown = number_text if self.unit != "parameters" else _with_word
        if self.exponent:
            return " to ".join(f"{number:.{self.digits}e}" for number in self.numbers)
        return " to ".join(shown(number, self.digits) for number in self.numbers)

    @property
    def text(self) -> str:
        """The value as a claim shows it: '233 s', '0.0141 to 0.0164', '345,645 tokens'."""
        return with_unit(self.bare, self.unit, one=self.shown == (1,))

    def agrees_with(self, written: tuple[float | Decimal, ...], digits: int | None = None) -> bool:
        """True when numbers written with `digits` decimals round from the exact ones.

        `digits` defaults to the display precision. More decimals than the value shows are
        allowed only when they are true of the exact number.
        """
        if len(written) != len(self.numbers):
            return False
        digits = self.digits if digits is None else digits
        return all(
            rounded(exact, digits) == Decimal(str(number))
            for exact, number in zip(self.numbers, written, strict=True)
        )
