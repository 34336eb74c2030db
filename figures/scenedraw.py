"""Draws a laid-out diagram with Matplotlib, in the palette and through the pipeline of the charts.

The outline says the role as much as the colour: trainer a plain rectangle, engine rounded, data a
sheet with a folded corner, lifecycle pointed, durable a drum, failure with cut corners, outside
dashed.
"""

from __future__ import annotations

import math
from typing import Any

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import PathPatch, Polygon
from matplotlib.path import Path

from figures.scene import ASCENT, Line, Rect, Scene, Shape, Text
from figures.style import Style

TINT = 0.1
ROUND = 7.0
CORNER = 7.0
DRUM = 4.0
POINT = 5.0
HEAD = (6.0, 2.8)  # length and half width of an arrow head
_CURVE = 0.5523  # control points of a quarter circle


def draw(scene: Scene, style: Style) -> Any:
    """The scene as a Matplotlib figure of exactly its size."""
    made = Canvas(figsize=(scene.width / 72, scene.height / 72))
    FigureCanvasSVG(made)
    ax = made.add_axes((0, 0, 1, 1))
    ax.set_axis_off()
    ax.set_xlim(0, scene.width)
    ax.set_ylim(scene.height, 0)
    for shape in sorted(scene.shapes, key=lambda shape: shape.kind != "group"):
        _shape(ax, shape, style)
    for line in sorted(scene.lines, key=lambda line: not line.quiet):
        _line(ax, line, style)
    for text in scene.texts:
        _text(ax, text, scene.font, style)
    return made


def outline(role: str, at: Rect) -> tuple[Path, Path | None]:
    """The closed outline of a role's shape, and a line inside it or None."""
    x, y, right, bottom = at.x, at.y, at.right, at.bottom
    small = min(1.0, at.h / 20, at.w / 24)
    if role == "engine":
        return _rounded(at, ROUND * small), None
    if role == "lifecycle":
        cut, middle = POINT * small, y + at.h / 2
        points = [(x + cut, y), (right - cut, y), (right, middle), (right - cut, bottom)]
        return _closed([*points, (x + cut, bottom), (x, middle)]), None
    if role == "failure":
        cut = CORNER * small
        points = [(x + cut, y), (right - cut, y), (right, y + cut), (right, bottom - cut)]
        points += [(right - cut, bottom), (x + cut, bottom), (x, bottom - cut), (x, y + cut)]
        return _closed(points), None
    if role == "data":
        cut = CORNER * small
        points = [(x, y), (right - cut, y), (right, y + cut), (right, bottom), (x, bottom)]
        fold = Path([(right - cut, y), (right - cut, y + cut), (right, y + cut)])
        return _closed(points), fold
    if role == "durable":
        return _drum(at, DRUM * small)
    return _closed([(x, y), (right, y), (right, bottom), (x, bottom)]), None


def _closed(points: list[tuple[float, float]]) -> Path:
    codes = [Path.MOVETO] + [Path.LINETO] * (len(points) - 1) + [Path.CLOSEPOLY]
    return Path([*points, points[0]], codes)


def _rounded(at: Rect, radius: float) -> Path:
    x, y, right, bottom, r = at.x, at.y, at.right, at.bottom, radius
    k = r * (1 - _CURVE)
    points = [(x + r, y), (right - r, y)]
    points += [(right - k, y), (right, y + k), (right, y + r), (right, bottom - r)]
    points += [(right, bottom - k), (right - k, bottom), (right - r, bottom), (x + r, bottom)]
    points += [(x + k, bottom), (x, bottom - k), (x, bottom - r), (x, y + r)]
    points += [(x, y + k), (x + k, y), (x + r, y), (x + r, y)]
    side = [Path.CURVE4] * 3
    codes = [Path.MOVETO, Path.LINETO, *side, Path.LINETO, *side, Path.LINETO, *side]
    return Path(points, [*codes, Path.LINETO, *side, Path.CLOSEPOLY])


def _drum(at: Rect, depth: float) -> tuple[Path, Path]:
    x, y, right, bottom = at.x, at.y + depth, at.right, at.bottom - depth
    d = depth * 4 / 3  # a cubic whose control points lie this far out bulges by `depth`
    points = [(x, y), (x, y - d), (right, y - d), (right, y), (right, bottom)]
    points += [(right, bottom + d), (x, bottom + d), (x, bottom), (x, y)]
    curve = [Path.CURVE4] * 3
    codes = [Path.MOVETO, *curve, Path.LINETO, *curve, Path.CLOSEPOLY]
    rim = Path([(x, y), (x, y + d), (right, y + d), (right, y)], [Path.MOVETO, *curve])
    return Path(points, codes), rim


def _shape(ax: Any, shape: Shape, style: Style) -> None:
    colour = style.colour(shape.role)
    if shape.kind == "plain":
        return
    if shape.kind == "group":
        look = {"edgecolor": colour, "facecolor": "none", "linestyle": (0, (1, 2))}
        ax.add_patch(PathPatch(_rounded(shape.place, 4), linewidth=1.1, **look))
        return
    path, inside = outline(shape.role, shape.place)
    dashes = (0, (4, 2)) if shape.role == "outside" else "-"
    fill = PathPatch(path, facecolor=colour, edgecolor="none", alpha=TINT, linewidth=0)
    ax.add_patch(fill)
    for part in (path, inside):
        if part is not None:
            edge = {"edgecolor": colour, "linewidth": 1.2, "linestyle": dashes}
            ax.add_patch(PathPatch(part, facecolor="none", **edge))


def _line(ax: Any, line: Line, style: Style) -> None:
    colour = style.colour(line.role)
    points = list(line.points)
    if line.head:
        (x0, y0), (x1, y1) = points[-2:]
        far = math.hypot(x1 - x0, y1 - y0)
        dx, dy = (x1 - x0) / far, (y1 - y0) / far
        long, half = HEAD
        base = (x1 - long * dx, y1 - long * dy)
        corners = [(x1, y1), (base[0] - half * dy, base[1] + half * dx)]
        corners.append((base[0] + half * dy, base[1] - half * dx))
        ax.add_patch(Polygon(corners, facecolor=colour, edgecolor="none", linewidth=0))
        points[-1] = (x1 - 0.8 * long * dx, y1 - 0.8 * long * dy)
    dashes = (0, (3, 2)) if line.dashed else "-"
    path = PathPatch(Path(points), facecolor="none", edgecolor=colour, linestyle=dashes)
    path.set_linewidth(0.8 if line.quiet else 1.2)
    ax.add_patch(path)


def _text(ax: Any, text: Text, font: float, style: Style) -> None:
    if text.backed:
        at = text.place
        back = Rect(at.x - 2, at.y - 1, at.w + 4, at.h + 2)
        path, _ = outline("trainer", back)
        ax.add_patch(PathPatch(path, facecolor=style.colour("paper"), edgecolor="none"))
    ax.text(
        text.place.middle[0],
        text.place.y + ASCENT * font,
        text.text,
        ha="center",
        va="baseline",
        fontsize=font,
        fontweight="bold" if text.bold else "normal",
        color=style.colour(text.role),
    )
