"""What a diagram is made of once it is laid out, and what can be wrong with the layout.

All places are points (1/72 inch) from the top left corner. Nothing here draws: `scenedraw` does.
Text is measured in DejaVu Sans, which is wider than the fonts that a page uses.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

LINE = 1.24  # height of a text line in font sizes
ASCENT = 0.76
DESCENT = 0.2
TOUCH = 0.6  # points by which two things may overlap and still count as touching

# Points that the outline of a role takes from the text: left and right, top, bottom.
INSETS = {
    "lifecycle": (5.0, 0.0, 0.0),
    "data": (1.0, 2.0, 0.0),
    "durable": (0.0, 6.0, 1.0),
    "failure": (3.0, 0.0, 0.0),
}


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle."""

    x: float
    y: float
    w: float
    h: float

    @property
    def right(self) -> float:
        return self.x + self.w

    @property
    def bottom(self) -> float:
        return self.y + self.h

    @property
    def middle(self) -> tuple[float, float]:
        return self.x + self.w / 2, self.y + self.h / 2

    def overlaps(self, other: Rect) -> bool:
        """True when the two share more than their edges."""
        across = min(self.right, other.right) - max(self.x, other.x)
        down = min(self.bottom, other.bottom) - max(self.y, other.y)
        return across > TOUCH and down > TOUCH

    def holds(self, other: Rect) -> bool:
        """True when `other` lies inside."""
        return (
            other.x >= self.x - TOUCH
            and other.y >= self.y - TOUCH
            and other.right <= self.right + TOUCH
            and other.bottom <= self.bottom + TOUCH
        )


@dataclass(frozen=True, slots=True)
class Shape:
    """An outline in the form of its role; `kind` is 'box', 'group', 'key' (of the
    legend) or 'plain' (text without an outline)."""

    id: str
    role: str
    place: Rect
    kind: str = "box"


@dataclass(frozen=True, slots=True)
class Text:
    """One line of text: its box, and the id of the shape or line that it belongs to."""

    text: str
    place: Rect
    owner: str
    bold: bool = False
    role: str = "ink"
    backed: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A polyline from one shape to another; `quiet` is a line that labels may cover."""

    id: str
    points: tuple[tuple[float, float], ...]
    ends: tuple[str, str]
    role: str = "muted"
    dashed: bool = False
    head: bool = True
    quiet: bool = False

    @property
    def parts(self) -> Iterator[Rect]:
        """Each straight part as a rectangle without width."""
        for (x0, y0), (x1, y1) in itertools.pairwise(self.points):
            yield Rect(min(x0, x1), min(y0, y1), abs(x1 - x0), abs(y1 - y0))


@dataclass(slots=True)
class Scene:
    """A laid-out diagram."""

    width: float
    height: float
    font: float
    shapes: list[Shape] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    def shape(self, name: str) -> Shape:
        """The shape with this id."""
        return next(shape for shape in self.shapes if shape.id == name)


def inner(shape: Shape) -> Rect:
    """Where the text of a shape may stand."""
    side, top, bottom = (
        INSETS.get(shape.role, (0.0, 0.0, 0.0)) if shape.kind == "box" else (0, 0, 0)
    )
    at = shape.place
    return Rect(at.x + side, at.y + top, at.w - 2 * side, at.h - top - bottom)


@functools.cache
def _advance(character: str, bold: bool) -> float:
    from matplotlib.font_manager import FontProperties, findfont
    from matplotlib.ft2font import FT2Font, LoadFlags

    font = FT2Font(
        findfont(FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal"))
    )
    font.set_size(100, 72)
    glyph = font.load_char(ord(character), flags=LoadFlags.NO_HINTING)
    return glyph.linearHoriAdvance / 65536 / 100


def width(text: str, size: float, bold: bool = False) -> float:
    """Points that a line of text needs."""
    return size * sum(_advance(character, bold) for character in text)


def wrap(text: str, room: float, size: float, bold: bool = False) -> list[str]:
    """The text in as few lines as `room` allows, and these about equally long."""
    lines = _greedy(text, room, size, bold)
    low, high = 0.0, room
    for _ in range(7):  # the least room that needs no further line
        middle = (low + high) / 2
        tried = _greedy(text, middle, size, bold)
        fits = all(width(line, size, bold) <= middle for line in tried)
        low, high = (low, middle) if fits and len(tried) == len(lines) else (middle, high)
    return _greedy(text, high, size, bold)


def _greedy(text: str, room: float, size: float, bold: bool) -> list[str]:
    lines: list[str] = []
    for piece in text.split("\n"):
        line = ""
        for word, space in _pieces(piece, room, size, bold):
            longer = f"{line}{space}{word}" if line else word
            if line and width(longer, size, bold) > room:
                lines.append(line)
                line = word
            else:
                line = longer
        if line:
            lines.append(line)
    return lines


def _pieces(text: str, room: float, size: float, bold: bool) -> Iterator[tuple[str, str]]:
    """Words with the space before each; a word that is too long comes apart after its hyphens."""
    for word in text.split():
        if width(word, size, bold) <= room:
            yield word, " "
            continue
        for place, part in enumerate(re.findall(r"-*[^-]+-?|-+", word)):
            yield part, "" if place else " "


def problems(scene: Scene) -> list[str]:
    """Everything that a reader would see as a fault of the layout; empty when it is clean."""
    page = Rect(0, 0, scene.width, scene.height)
    found = [f"{text.text!r} leaves the page" for text in scene.texts if not page.holds(text.place)]
    found += [
        f"{shape.id} leaves the page" for shape in scene.shapes if not page.holds(shape.place)
    ]
    found += [
        f"arrow {line.id} leaves the page"
        for line in scene.lines
        if not all(page.holds(part) for part in line.parts)
    ]
    shapes = {shape.id: shape for shape in scene.shapes}
    for text in scene.texts:
        owner = shapes.get(text.owner)
        if owner and owner.kind != "key" and not inner(owner).holds(text.place):
            found.append(f"{text.text!r} leaves its box {owner.id}")
        found += [
            f"{text.text!r} lies on {shape.id}"
            for shape in scene.shapes
            if shape.kind != "group" and shape is not owner and shape.place.overlaps(text.place)
        ]
    for one, other in itertools.combinations(scene.texts, 2):
        if one.place.overlaps(other.place):
            found.append(f"{one.text!r} and {other.text!r} overlap")
    return found + _shape_problems(scene) + _line_problems(scene)


def _shape_problems(scene: Scene) -> list[str]:
    found = []
    for one, other in itertools.combinations(scene.shapes, 2):
        if not one.place.overlaps(other.place):
            continue
        nested = [
            a.kind == "group" and a.place.holds(b.place) for a, b in ((one, other), (other, one))
        ]
        if not any(nested):
            found.append(f"{one.id} and {other.id} overlap")
    return found


def _line_problems(scene: Scene) -> list[str]:
    found = []
    for line in scene.lines:
        for part in line.parts:
            found += [
                f"arrow {line.id} goes through {shape.id}"
                for shape in scene.shapes
                if shape.kind in ("box", "plain") and _crosses(part, shape.place)
            ]
            found += [
                f"arrow {line.id} goes through {text.text!r}"
                for text in scene.texts
                if not (line.quiet and text.backed) and _crosses(part, text.place)
            ]
    loud = [line for line in scene.lines if not line.quiet]
    for one, other in itertools.combinations(loud, 2):
        if not set(one.ends) & set(other.ends) and any(
            _along(a, b) for a in one.parts for b in other.parts
        ):
            found.append(f"arrows {one.id} and {other.id} lie on each other")
    return found


def _crosses(part: Rect, place: Rect) -> bool:
    """True when a line part enters a rectangle and does not only touch its edge."""
    across = min(part.right, place.right - TOUCH) - max(part.x, place.x + TOUCH)
    down = min(part.bottom, place.bottom - TOUCH) - max(part.y, place.y + TOUCH)
    return across >= 0 and down >= 0


def _along(one: Rect, other: Rect) -> bool:
    """True when two line parts run on one line for more than a moment."""
    across = min(one.right, other.right) - max(one.x, other.x)
    down = min(one.bottom, other.bottom) - max(one.y, other.y)
    return (across > 2 and abs(down) < TOUCH and one.h == other.h == 0) or (
        down > 2 and abs(across) < TOUCH and one.w == other.w == 0
    )
