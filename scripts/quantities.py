"""Numbers with units as an author writes them: reading, comparing, finding.

Named `quantities` and not `numbers`, because a script started as `python3 scripts/x.py` has this
folder first on its path and the standard library's `numbers` must stay importable there.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal, InvalidOperation

#: canonical unit -> the ways it is written. Case matters for symbols, not for words.
MEASURES: dict[str, tuple[str, ...]] = {
    "s": ("s", "sec", "secs", "second", "seconds"),
    "ns": ("ns", "nanosecond", "nanoseconds"),
    "ms": ("ms", "millisecond", "milliseconds"),
    "us": ("us", "µs", "μs", "microsecond", "microseconds"),
    "min": ("min", "mins", "minute", "minutes"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "d": ("d", "day", "days"),
    "week": ("week", "weeks"),
    "month": ("month", "months"),
    "year": ("year", "years"),
    "B": ("B", "bytes", "byte"),
    "kB": ("kB", "KB", "kilobyte", "kilobytes"),
    "MB": ("MB", "megabyte", "megabytes"),
    "GB": ("GB", "gigabyte", "gigabytes"),
    "TB": ("TB", "terabyte", "terabytes"),
    "PB": ("PB", "petabyte", "petabytes"),
    "KiB": ("KiB", "kibibyte", "kibibytes"),
    "MiB": ("MiB", "mebibyte", "mebibytes"),
    "GiB": ("GiB", "gibibyte", "gibibytes"),
    "TiB": ("TiB", "tebibyte", "tebibytes"),
    "%": ("%", "percent", "per cent"),
    "pp": ("pp", "percentage point", "percentage points"),
    "x": ("times", "x", "\u00d7", "fold"),
    "degC": ("°C", "degC", "C", "degrees Celsius", "degrees"),
    "W": ("W", "watt", "watts"),
    "kW": ("kW", "kilowatt", "kilowatts"),
    "Wh": ("Wh", "watt-hour", "watt-hours"),
    "kWh": ("kWh", "kilowatt-hour", "kilowatt-hours"),
    "MHz": ("MHz", "megahertz"),
    "GHz": ("GHz", "gigahertz"),
    "TFLOPS": ("TFLOPS", "TFLOP/s", "teraflops"),
    "dollar": ("dollar", "dollars", "USD"),
    "euro": ("euro", "euros", "EUR"),
    "tokens/s": ("tokens/s", "tok/s", "tokens per second", "tokens a second"),
    "GB/s": ("GB/s", "gigabytes per second"),
}

#: nouns whose count is a measured-looking number, singular -> plural
COUNTED: dict[str, str] = {
    "step": "steps",
    "token": "tokens",
    "error": "errors",
    "retry": "retries",
    "group": "groups",
    "answer": "answers",
    "run": "runs",
    "seed": "seeds",
    "sample": "samples",
    "prompt": "prompts",
    "problem": "problems",
    "rollout": "rollouts",
    "request": "requests",
    "response": "responses",
    "restart": "restarts",
    "pause": "pauses",
    "crash": "crashes",
    "failure": "failures",
    "warning": "warnings",
    "attempt": "attempts",
    "iteration": "iterations",
    "update": "updates",
    "batch": "batches",
    "save": "saves",
    "record": "records",
    "line": "lines",
    "question": "questions",
    "sequence": "sequences",
    "kill": "kills",
    "file": "files",
    "test": "tests",
    "log": "logs",
    "machine": "machines",
    "engine": "engines",
    "worker": "workers",
    "epoch": "epochs",
    "job": "jobs",
    "gpu": "gpus",
    "node": "nodes",
    "offset": "offsets",
    "event": "events",
    "timeout": "timeouts",
    "miss": "misses",
    "check": "checks",
}

# fmt: off
_SMALL = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
# fmt: on
WORDS: dict[str, int] = {word: value for value, word in enumerate(_SMALL)}
WORDS |= {word: 20 + 10 * place for place, word in enumerate(_TENS)}
WORDS |= {f"{tens}-{unit}": WORDS[tens] + WORDS[unit] for tens in _TENS for unit in _SMALL[1:10]}
WORDS |= {"hundred": 100, "a hundred": 100, "one hundred": 100, "thousand": 1000}

# Words that end the search for a counted noun: in "from 3 the runs" nothing counts runs.
STOP = (
    "the|a|an|in|to|and|or|is|are|was|were|be|for|with|on|by|at|from|as|that|this|these|it|you|its|"
    "when|if|per|has|have|into|than|then|but|not|so|only|after|before|until|while|which|who|what"
)

_UNITS = {spelling: unit for unit, spellings in MEASURES.items() for spelling in spellings}
_PLURAL = {plural: noun for noun, plural in COUNTED.items()}

NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+\u2212]?\d+)?"
SIGN = r"[-+\u2212]?"
NUMBER_WORD = "|".join(sorted(map(re.escape, WORDS), key=len, reverse=True))
_SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE = "|".join(_SCALES)
_UNIT = r"[^\W\d_][^\d,;:()]*|%|\u00d7|°C"
_FULL = re.compile(
    rf"(?:(?:about|around|roughly)\s+)?"
    rf"(?P<low>{SIGN}{NUMBER}|(?i:{NUMBER_WORD})(?![a-z]))(?:\s(?P<scale1>{_SCALE})\b)?"
    rf"(?:\s*-?(?P<unit1>%|\u00d7|°C|[^\W\d_]+))??"
    rf"(?:(?:\s*[\u2013\u2014]\s*|-|\s+(?:to|and)\s+)"
    rf"(?P<high>{SIGN}{NUMBER}|(?i:{NUMBER_WORD})(?![a-z]))(?:\s(?P<scale>{_SCALE})\b)?)?"
    rf"(?:\s*-?(?P<unit>{_UNIT}))?"
)


_EXPONENT = re.compile(r"\d[eE][-+\u2212]?\d")


class QuantityError(ValueError):
    """The text is no number with a unit."""


@dataclass(frozen=True)
class Quantity:
    """A written number, or range when `high` is set. `unit` is canonical, "" when none is written.

    The exponent of each Decimal is the place of its last written digit.
    """

    text: str
    low: Decimal
    high: Decimal | None
    unit: str

    @property
    def exponents(self) -> tuple[int, ...]:
        """Place of the last digit of each number: 0 for units, -2 for hundredths."""
        ends = (self.low,) if self.high is None else (self.low, self.high)
        return tuple(int(end.as_tuple().exponent) for end in ends)


def squeeze(text: str) -> str:
    """The text with every run of white space, no-break spaces too, as one space."""
    return " ".join(text.split())


def canonical_unit(unit: str) -> str:
    """The canonical name of a unit: "seconds" gives "s", "steps" gives "step", "" gives ""."""
    unit = squeeze(unit)
    if unit in ("of them", "of these", "of those"):
        return ""
    lowered = unit.lower()
    if unit in _UNITS:
        return _UNITS[unit]
    if len(unit) > 2 and lowered in _UNITS:
        return _UNITS[lowered]
    if lowered in _PLURAL:
        return _PLURAL[lowered]
    last = lowered.rsplit(" ", 1)[-1]
    if last in _PLURAL or last in COUNTED:
        return lowered[: len(lowered) - len(last)] + _PLURAL.get(last, last)
    return lowered[:-1] if lowered.endswith("s") and len(lowered) > 3 else lowered


def to_decimal(text: str) -> Decimal:
    """One number or number word as a Decimal. QuantityError when it is neither."""
    lowered = text.lower()
    if lowered in WORDS:
        return Decimal(WORDS[lowered])
    try:
        return Decimal(text.replace(",", "").replace("\u2212", "-"))
    except InvalidOperation:
        raise QuantityError(f"{text!r} is not a number") from None


def parse(text: str) -> Quantity:
    """Read "233 s", "0.0141 to 0.0164", "40 to 45 percent", "200,533", "1.5 times", "twelve steps".

    The whole text must be one number or one range with at most one unit; QuantityError otherwise.
    """
    clean = squeeze(text)
    match = _FULL.fullmatch(clean)
    if match is None:
        raise QuantityError(f"{clean!r} is not one number with a unit")
    unit = canonical_unit(match["unit"] or "")
    first_unit = canonical_unit(match["unit1"] or "")
    if first_unit and match["high"] is None:
        unit = canonical_unit(f"{match['unit1']} {match['unit'] or ''}".strip())
    elif first_unit and first_unit != unit:
        raise QuantityError(f"{clean!r} has two units")
    scale = _SCALES.get(match["scale"] or "", 0)
    high = None if match["high"] is None else to_decimal(match["high"]).scaleb(scale)
    low = to_decimal(match["low"]).scaleb(_SCALES.get(match["scale1"] or "", scale))
    return Quantity(clean, low, high, unit)


def unit_of(text: str) -> str:
    """The canonical unit of a written number, "" when it has none or is no number."""
    try:
        return parse(text).unit
    except QuantityError:
        return ""


def is_measure(unit: str) -> bool:
    """True for units of time, memory, share, ratio, heat and rate; False for counts and ""."""
    return unit in MEASURES


def unit_problem(written: str, expected: str, nouns: Collection[str] = ()) -> str | None:
    """Why canonical unit `written` does not state `expected`, or None when it does.

    A count may leave its noun out ("12" for 12 steps), a measure may not. A value without a unit
    may be written with one of its own `nouns` (canonical) and with nothing else.
    """
    if written == expected or (not is_measure(expected) and (not written or written in nouns)):
        return None
    wanted = " or ".join([expected or "none", *(noun for noun in nouns if noun != expected)])
    return f"unit {written or 'missing'!r}, expected {wanted!r}"


def exact(number: float | int | Decimal) -> Decimal:
    """The number as the Decimal that its shortest decimal form names."""
    return number if isinstance(number, Decimal) else Decimal(repr(number))


def rounds_to(number: Decimal, written: Decimal) -> bool:
    """True when `written` is `number` rounded to the last digit of `written`; either tie counts."""
    place = Decimal(1).scaleb(int(written.as_tuple().exponent))
    return any(
        number.quantize(place, rounding=rule) == written
        for rule in (ROUND_HALF_EVEN, ROUND_HALF_UP)
    )


def mismatch(
    written: Quantity,
    shown: Quantity,
    numbers: tuple[Decimal, ...],
    nouns: Collection[str] = (),
) -> str | None:
    """Why `written` does not state the value displayed as `shown`, or None when it does.

    At the displayed precision the digits must be the displayed ones. With fewer decimals they must
    be a correct rounding of `numbers` (one number, or the two ends of a range), not of the display.
    More decimals than displayed are refused: nothing vouches for them.
    """
    problem = unit_problem(written.unit, shown.unit, nouns)
    if problem:
        return problem
    if _EXPONENT.search(written.text) and not _EXPONENT.search(shown.text):
        return "an exponent that the figure does not show"
    if (written.high is None) != (shown.high is None):
        return "a range" if written.high is not None else "one number for a range"
    ends = [(written.low, shown.low, numbers[0])]
    if written.high is not None:
        ends.append((written.high, shown.high, numbers[-1]))
    for end, display, number in ends:
        place, display_place = end.as_tuple().exponent, display.as_tuple().exponent
        if place < display_place:
            return "more digits than the figure shows"
        if place == display_place and end != display:
            return "another number"
        if place > display_place and not rounds_to(number, end):
            return "not a correct rounding"
    return None
