"""Intervals of printed numbers, and a small expression language over them.

A printed number stands for every number that rounds to it: "11.5" is 11.45 to 11.55, "233" is
232.5 to 233.5.  A count stands for itself.  All arithmetic is exact (``fractions.Fraction``), so a
relation that only just touches is decided the same way on every machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

NUMBER_WORDS = {
    "no": "0",
    "a": "1",
    "an": "1",
    "one": "1",
    "once": "1",
    "two": "2",
    "twice": "2",
    "three": "3",
    "four": "4",
    "five": "5",
    "six": "6",
    "seven": "7",
    "eight": "8",
    "nine": "9",
    "ten": "10",
    "eleven": "11",
    "twelve": "12",
    "half": "0.5",
    "quarter": "0.25",
}
NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?")
RANGE = re.compile(r"(\S+) (?:to|and) (\S+)")
TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)"
    r"|(?P<name>[a-z][a-z0-9]*(?:[-.][a-z0-9]+)*)"
    r"|(?P<op>[-+*/()]))"
)


class Interval(NamedTuple):
    """A closed interval of exact numbers, ``low <= high``."""

    low: Fraction
    high: Fraction

    def __add__(self, other: Interval) -> Interval:  # type: ignore[override]
        return Interval(self.low + other.low, self.high + other.high)

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __sub__(self, other: Interval) -> Interval:
        return self + (-other)

    def __mul__(self, other: Interval) -> Interval:  # type: ignore[override]
        ends = [a * b for a in self for b in other]
        return Interval(min(ends), max(ends))

    def __truediv__(self, other: Interval) -> Interval:
        if other.low <= 0 <= other.high:
            raise ValueError("division by an interval that holds 0")
        return self * Interval(1 / other.high, 1 / other.low)

    def contains(self, number: Fraction) -> bool:
        """Whether ``number`` lies in the interval, ends included."""
        return self.low <= number <= self.high

    def overlaps(self, other: Interval) -> bool:
        """Whether the two share a number, ends included."""
        return self.low <= other.high and other.low <= self.high


def point(number: Fraction | int) -> Interval:
    """The interval that holds one number."""
    return Interval(Fraction(number), Fraction(number))


def logarithm(interval: Interval) -> Interval:
    """Natural logarithm of a positive interval; the ends are floats of ``math.log``."""
    if interval.low <= 0:
        raise ValueError("logarithm of an interval that reaches 0")
    return Interval(Fraction(math.log(interval.low)), Fraction(math.log(interval.high)))


def number_text(printed: str) -> str:
    """Digits of a printed number or number word; ValueError when it is neither."""
    text = NUMBER_WORDS.get(printed.lower(), printed)
    if not NUMBER.fullmatch(text):
        raise ValueError(f"{printed!r} is not a number")
    return text.replace(",", "")


def parse_printed(printed: str) -> tuple[Fraction, ...]:
    """The number of "200,533" or "two"; both ends of "0.53 to 0.74" or "0.0151 and 0.0153"."""
    ends = RANGE.fullmatch(printed)
    texts = ends.groups() if ends else (printed,)
    return tuple(Fraction(number_text(text)) for text in texts)


def half_unit(printed: str, trailing_zeros_count: bool = True) -> Fraction:
    """Half of the last printed digit's place: 1/20 for "11.5", 1/2 for "233".

    With ``trailing_zeros_count`` false, the last digit that is not 0 counts: 50 for "1,200".
    """
    text = number_text(printed).lstrip("+-")
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, decimals = mantissa.partition(".")
    place = -len(decimals)
    if not trailing_zeros_count and not decimals and whole.strip("0"):
        place = len(whole) - len(whole.rstrip("0"))
    return Fraction(10) ** (place + int(exponent or 0)) / 2


def printed_intervals(
    printed: str, exact: bool = False, trailing_zeros_count: bool = True
) -> tuple[Interval, ...]:
    """One interval for a printed number, two for the ends of a printed range."""
    ends = RANGE.fullmatch(printed)
    texts = ends.groups() if ends else (printed,)
    out = []
    for text in texts:
        number = Fraction(number_text(text))
        half = Fraction(0) if exact else half_unit(text, trailing_zeros_count)
        out.append(Interval(number - half, number + half))
    return tuple(out)


def tokens(formula: str) -> list[tuple[str, str]]:
    """(kind, text) of a formula; names are kebab-case, so an operator stands between spaces."""
    out, at = [], 0
    text = formula.rstrip()
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"cannot read {text[at:].strip()!r}")
        kind = match.lastgroup
        assert kind is not None
        out.append((kind, match[kind]))
        at = match.end()
    return out


def names(formula: str) -> list[str]:
    """Names that a formula uses, in order, ``log`` left out."""
    return [text for kind, text in tokens(formula) if kind == "name" and text != "log"]


def evaluate(formula: str, lookup: Callable[[str], Interval]) -> Interval:
    """Interval of a formula: numbers (exact), names, + - * / parentheses and log( ).

    ``lookup`` gives the interval of a name and raises ValueError for an unknown one.
    """
    stream = tokens(formula)
    position = 0

    def peek() -> str:
        return stream[position][1] if position < len(stream) else ""

    def take() -> tuple[str, str]:
        nonlocal position
        if position == len(stream):
            raise ValueError("the formula ends too early")
        position += 1
        return stream[position - 1]

    def expect(text: str) -> None:
        if peek() != text:
            raise ValueError(f"expected {text!r} before {peek() or 'the end'!r}")
        take()

    def total() -> Interval:
        left = product()
        while peek() in ("+", "-"):
            left = left + product() if take()[1] == "+" else left - product()
        return left

    def product() -> Interval:
        left = factor()
        while peek() in ("*", "/"):
            left = left * factor() if take()[1] == "*" else left / factor()
        return left

    def factor() -> Interval:
        kind, text = take()
        if kind == "number":
            return point(Fraction(text))
        if text == "-":
            return -factor()
        if text == "log":
            expect("(")
            inner = total()
            expect(")")
            return logarithm(inner)
        if kind == "name":
            return lookup(text)
        if text == "(":
            inner = total()
            expect(")")
            return inner
        raise ValueError(f"{text!r} is out of place")

    result = total()
    if position < len(stream):
        raise ValueError(f"{peek()!r} is out of place")
    return result


RELATIONS: dict[str, Callable[[Interval, Interval], bool]] = {
    "=": lambda formula, result: formula.overlaps(result),
    "within": lambda formula, result: formula.overlaps(result),
    "<": lambda formula, result: formula.low < result.high,
    "<=": lambda formula, result: formula.low <= result.high,
    ">=": lambda formula, result: formula.high >= result.low,
}
"""Whether a relation can hold for some of the numbers that round to what was printed."""
