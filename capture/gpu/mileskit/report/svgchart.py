"""A small SVG writer: line charts, stacked bars and time lanes as text, for one HTML page.

Colours are CSS classes (`f-ROLE` fills, `s-ROLE` strokes), so that one drawing serves a light and
a dark page.  A chart is as wide as a phone; a wide page shows several side by side.  The same
input gives the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from mileskit.report.svgscale import (
    bounds,
    drawable,
    label,
    merged,
    number,
    thin,
    ticks,
    whole_ticks,
)

WIDTH, HEIGHT = 340, 172
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 10, 32
MOST_BARS = 64
DASHES = ("", "6 3", "2 3", "8 3 2 3")
BAD = "\N{MULTIPLICATION SIGN}"  # where a value is not finite
CHAR = 5.9  # width of a character of the 11-pixel text, generous


class Line(NamedTuple):
    """One line: its points in the order of x; y None or not finite breaks it.

    role: palette role; dash: index of DASHES; points: draw a mark at every point.
    """

    label: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    role: str
    dash: int = 0
    points: bool = False


class Part(NamedTuple):
    """One part of stacked bars, as long as the bars' xs; hatch: id of a pattern or ""."""

    label: str
    ys: Sequence[float | None]
    role: str
    hatch: str = ""


class Lane(NamedTuple):
    """One lane of a time line: spans (start, end) in seconds, drawn as boxes."""

    label: str
    spans: Sequence[tuple[float, float]]
    role: str
    hatch: str = ""


class Chart:
    """Collects elements of one chart; ``x`` and ``y`` turn data into coordinates."""

    def __init__(self, x, y, height: int = HEIGHT, left: int = LEFT, top: int = TOP):
        self.height, self.left, self.top = height, left, top
        self.x_range, self.y_range = x, y
        self._out: list[str] = []

    def x(self, value: float) -> float:
        low, high = self.x_range
        share = (value - low) / (high - low) if high > low else 0.5
        return self.left + share * (WIDTH - self.left - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_range
        share = (value - low) / (high - low) if high > low else 0.5
        return self.height - BOTTOM - share * (self.height - BOTTOM - self.top)

    def add(self, element: str) -> None:
        self._out.append(element)

    def box(self, x: float, y: float, width: float, height: float, css: str, about="") -> None:
        """A rectangle; about: what a pointer over it shows."""
        size = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
        inner = f"<title>{escape(about)}</title></rect>" if about else "</rect>"
        self.add(f'<rect {size} class="{css}">{inner}')

    def filled(self, x, y, width, height, role: str, hatch: str = "", about: str = "") -> None:
        """A box of a role, with a pattern on it when hatch names one."""
        self.box(x, y, width, height, f"f-{role}", about)
        if hatch:
            self.add(
                f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}"'
                f' height="{number(height)}" fill="url(#{hatch})" pointer-events="none"/>'
            )

    def text(self, x: float, y: float, words: str, anchor: str = "start", css: str = "") -> None:
        extra = f' class="{css}"' if css else ""
        place = f'x="{number(x)}" y="{number(y)}" text-anchor="{anchor}"'
        self.add(f"<text {place}{extra}>{escape(words)}</text>")

    def grid(self, y_ticks, show: Callable[[float], str] = label) -> None:
        right = WIDTH - RIGHT
        for tick in y_ticks:
            at = number(self.y(tick))
            self.add(f'<path d="M{self.left} {at}H{right}" class="grid"/>')
            self.text(self.left - 5, self.y(tick) + 3.8, show(tick), "end")

    def below(self, x_ticks, words: str, show: Callable[[float], str] = label) -> None:
        base = self.height - BOTTOM
        self.add(f'<path d="M{self.left} {number(base)}H{WIDTH - RIGHT}" class="axis"/>')
        last = -math.inf
        for tick in x_ticks:
            at, text = self.x(tick), show(tick)
            half = len(text) * CHAR / 2
            if at - half < last or at + half > WIDTH:
                continue
            last = at + half + 6
            self.add(f'<path d="M{number(at)} {number(base)}v4" class="axis"/>')
            self.text(at, base + 14, text, "middle")
        self.text((self.left + WIDTH - RIGHT) / 2, self.height - 3, words, "middle", "quiet")

    def line(self, one: Line) -> None:
        xs, ys = thin(one.xs, one.ys)
        path, single, pen = [], [], False
        for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
            if not drawable(y):
                pen = False
                continue
            at = f"{number(self.x(x))} {number(self.y(y))}"
            path.append(("L" if pen else "M") + at)
            after = ys[i + 1] if i + 1 < len(ys) else None
            if not pen and not drawable(after):
                single.append((x, y))
            pen = True
        dash = DASHES[one.dash % len(DASHES)]
        extra = f' stroke-dasharray="{dash}"' if dash else ""
        if path:
            self.add(f'<path d="{"".join(path)}" class="line s-{one.role}"{extra}/>')
        marks = zip(xs, ys, strict=True) if one.points else single
        for x, y in marks:
            if drawable(y):
                place = f'cx="{number(self.x(x))}" cy="{number(self.y(y))}"'
                self.add(f'<circle {place} r="2.4" class="f-{one.role}"/>')
        for x, y in zip(xs, ys, strict=True):
            if y is not None and not drawable(y):
                self.text(self.x(x), self.top + 8, BAD, "middle", "bad")

    def done(self, about: str) -> str:
        """The chart as one element; about: what a screen reader says."""
        head = f'viewBox="0 0 {WIDTH} {self.height}" role="img" aria-label="{escape(about)}"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {head}>{"".join(self._out)}</svg>'


def lines(
    series: Sequence[Line],
    about: str,
    x_words: str = "step",
    y_range: tuple[float, float] | None = None,
    x_range: tuple[float, float] | None = None,
    show_x: Callable[[float], str] = label,
    x_ticks: Sequence[float] | None = None,
    bands: Sequence[tuple[float, float]] = (),
) -> str:
    """A line chart; bands: spans of x behind the lines (pauses)."""
    xs = [x for one in series for x in one.xs]
    if x_range is None:
        x_range = (min(xs), max(xs)) if xs else (0, 1)
    chart = Chart(x_range, y_range or bounds(y for one in series for y in one.ys))
    for low, high in bands:
        left, right = chart.x(max(low, x_range[0])), chart.x(min(high, x_range[1]))
        if right >= left:
            _band(chart, left, right)
    chart.grid(ticks(*chart.y_range))
    chart.below(whole_ticks(*x_range) if x_ticks is None else x_ticks, x_words, show_x)
    for one in series:
        chart.line(one)
    return chart.done(about)


def _band(chart: Chart, left: float, right: float) -> None:
    height = chart.height - BOTTOM - chart.top
    chart.filled(left, chart.top, max(right - left, 1.5), height, "pause", "h-lifecycle", "pause")


def stacked(
    xs: Sequence[int],
    parts: Sequence[Part],
    about: str,
    x_words: str = "step",
    top: float | None = None,
    marked: Sequence[int] = (),
    unit: str = "",
    x_range: tuple[int, int] | None = None,
) -> str:
    """Bars by whole-numbered x, parts on top of each other; marked: x with a pause
    behind it; x_range: first and last x of the axis.

    Over more than MOST_BARS values of x the sums are drawn as lines, one above the other.
    """
    sums, below = [], [0.0] * len(xs)
    for part in parts:
        below = [b + (v if drawable(v) else 0.0) for b, v in zip(below, part.ys, strict=True)]
        sums.append(below)
    high = top if top is not None else bounds([v for s in sums for v in s], zero=True)[1]
    first, last = x_range or (xs[0], xs[-1])
    if last - first >= MOST_BARS:
        pairs = enumerate(zip(parts, sums, strict=True))
        drawn = [Line(p.label, xs, s, p.role, i) for i, (p, s) in pairs]
        bands = [(x - 0.5, x + 0.5) for x in marked]
        return lines(drawn, about, x_words, (0, high), (first, last), bands=bands)
    chart = Chart((first - 0.6, last + 0.6), (0.0, high or 1.0))
    width = (chart.x(1) - chart.x(0)) * 0.8
    for x in marked:
        _band(chart, chart.x(x - 0.5), chart.x(x + 0.5))
    chart.grid(ticks(*chart.y_range))
    base = [0.0] * len(xs)
    for part, upper in zip(parts, sums, strict=True):
        for x, low, up, value in zip(xs, base, upper, part.ys, strict=True):
            if not value or not drawable(value):
                continue
            box = (chart.x(x) - width / 2, chart.y(up), width, chart.y(low) - chart.y(up))
            words = f"{x_words} {x}: {part.label} {value:.4g}{unit}"
            chart.filled(*box, part.role, part.hatch, words)
        base = upper
    chart.below(whole_ticks(first, last), x_words)
    return chart.done(about)


def lanes(
    rows: Sequence[Lane],
    x_range: tuple[float, float],
    about: str,
    x_words: str,
    marks: Sequence[tuple[float, str]] = (),
    show_x: Callable[[float], str] = label,
    x_ticks: Sequence[float] = (),
) -> str:
    """Lanes under one time axis; marks: numbered moments, drawn as lines through all lanes."""
    row, top = 22, 16 if marks else 6
    height = top + row * len(rows) + BOTTOM
    left = math.ceil(max(len(one.label) for one in rows) * CHAR) + 8
    chart = Chart(x_range, (0.0, 1.0), height, left, top)
    for place, one in enumerate(rows):
        y = top + place * row
        chart.add(f'<path d="M{left} {y + row - 2}H{WIDTH - RIGHT}" class="grid"/>')
        chart.text(left - 5, y + row / 2 + 3, one.label, "end")
        for start, end in merged(one.spans, (x_range[1] - x_range[0]) / 600):
            start, end = max(start, x_range[0]), min(end, x_range[1])
            if end >= start:
                at, to = chart.x(start), chart.x(end)
                chart.filled(at, y + 2, max(to - at, 0.8), row - 6, one.role, one.hatch)
    last = -math.inf
    for when, words in marks:
        at = chart.x(when)
        chart.add(f'<path d="M{number(at)} {top - 3}V{height - BOTTOM}" class="mark"/>')
        at = max(at, last + 9)
        chart.text(at, top - 5, words, "middle", "strong")
        last = at
    chart.below(x_ticks, x_words, show_x)
    return chart.done(about)


def legend(entries: Sequence[tuple[str, str, str]]) -> str:
    """Keys of a chart: (label, role, look) where look is a pattern id, "" or "dash N"."""
    parts = []
    for words, role, look in entries:
        if look.startswith("dash "):
            dash = DASHES[int(look[5:]) % len(DASHES)]
            extra = f' stroke-dasharray="{dash}"' if dash else ""
            mark = f'<path d="M1 6H27" class="line s-{role}"{extra}/>'
            width = 28
        else:
            mark = f'<rect width="12" height="12" class="f-{role}"/>'
            mark += f'<rect width="12" height="12" fill="url(#{look})"/>' if look else ""
            width = 12
        key = f'<svg viewBox="0 0 {width} 12" width="{width}" height="12" aria-hidden="true">'
        parts.append(f"<span>{key}{mark}</svg> {escape(words)}</span>")
    return f'<p class="legend">{"".join(parts)}</p>'


PATTERNS = (
    '<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>'
    '<pattern id="h-trainer" width="5" height="5" patternUnits="userSpaceOnUse">'
    '<path d="M-1 6L6 -1M-1 1L1 -1M4 6L6 4" class="hatch"/></pattern>'
    '<pattern id="h-lifecycle" width="5" height="5" patternUnits="userSpaceOnUse">'
    '<path d="M-1 -1L6 6M4 -1L6 1M-1 4L1 6" class="hatch"/></pattern>'
    '<pattern id="h-failure" width="5" height="5" patternUnits="userSpaceOnUse">'
    '<path d="M0 0L5 5M5 0L0 5" class="hatch"/></pattern>'
    '<pattern id="h-data" width="4" height="4" patternUnits="userSpaceOnUse">'
    '<path d="M0 2H4" class="hatch"/></pattern>'
    "</defs></svg>"
)
"""The patterns that charts name; put once into the page."""
