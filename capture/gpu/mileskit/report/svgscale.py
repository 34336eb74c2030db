"""Numbers of a chart: how they are printed, where the ticks stand, and which points are kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

LARGEST = 1e300  # beyond it the arithmetic of an axis would overflow
MOST_POINTS = 300  # of a line; more are thinned to the smallest and largest of each group


def drawable(value: float | None) -> bool:
    """Whether a value has a place on an axis: a finite number below LARGEST."""
    return value is not None and -LARGEST < value < LARGEST


def number(value: float) -> str:
    """A coordinate: at most one decimal, no trailing zero.

    >>> number(3.0), number(2.25), number(-0.01)
    ('3', '2.2', '0')
    """
    text = f"{value:.1f}"
    text = text[:-2] if text.endswith(".0") else text
    return "0" if text == "-0" else text


def label(value: float) -> str:
    """A number as the axis prints it.

    >>> label(0.05), label(1500000.0), label(250.0), label(1e-05), label(0.1 + 0.2)
    ('0.05', '1.5M', '250', '1e-05', '0.3')
    """
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e15 or size < 1e-4:
        return f"{value:.3g}"
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            divisor = 1e3 if letter == "k" else limit
            return f"{value / divisor:.4g}{letter}"
    return f"{value:.4g}"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from low to high, at most ``most`` + 1 of them.

    Their step is 1, 2 or 5 times a power of ten.

    >>> ticks(0, 10), ticks(0.31, 0.52)
    ([0, 2, 4, 6, 8, 10], [0.35, 0.4, 0.45, 0.5])
    """
    span = high - low
    if not 1e-300 < span < math.inf:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * m for m in (1, 2, 5, 10, 20) if span / (power * m) <= most)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    found = [round(k * step, places) for k in range(first, last + 1)]
    return [int(v) if v == int(v) and abs(v) < 1e15 else v for v in found]


def whole_ticks(low: float, high: float, most: int = 6) -> list[int]:
    """Ticks that are whole numbers (steps, counts)."""
    return sorted({int(t) for t in ticks(low, high, most) if t == int(t)}) or [math.ceil(low)]


def bounds(values: Iterable[float | None], zero: bool = False) -> tuple[float, float]:
    """Smallest and largest finite value with a little room; (0, 1) without any."""
    finite = [v for v in values if drawable(v)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= abs(high) * 1e-12:
        room = abs(high) * 0.1 or 1.0
        return (low if zero and low == 0 else low - room), high + room
    room = (high - low) * 0.06
    if not math.isfinite(room):
        return low, high
    return (low if zero and low == 0 else low - room), high + room


def thin(xs: Sequence[float], ys: Sequence, most: int = MOST_POINTS) -> tuple[list, list]:
    """At most about ``most`` points: of each group of neighbours the smallest and largest stay."""
    if len(xs) <= most:
        return list(xs), list(ys)
    size = math.ceil(2 * len(xs) / most)
    keep: set[int] = set()
    for start in range(0, len(xs), size):
        group = range(start, min(start + size, len(xs)))
        known = [i for i in group if drawable(ys[i])]
        bad = [i for i in group if not drawable(ys[i])]
        keep.update(bad[:1])
        if known:
            keep |= {min(known, key=lambda i: ys[i]), max(known, key=lambda i: ys[i])}
    order = sorted(keep)
    return [xs[i] for i in order], [ys[i] for i in order]


def merged(spans: Iterable[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """The spans sorted, those joined that overlap or lie less than ``gap`` apart.

    >>> merged([(5, 6), (0, 1), (1.2, 2)], 0.5)
    [(0, 2), (5, 6)]
    """
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start - found[-1][1] < gap:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found
