"""Boxes on a grid, with arrows along the gaps and groups around neighbours."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from figures import scene
from figures.diagram import MARGIN, Board, Node, node_height, put_node, put_text, text_height
from figures.scene import Line, Rect, Scene, Shape

GROUP = 7.0  # between the outline of a group and its boxes
AWAY = {"r": (1, 0), "l": (-1, 0), "t": (0, -1), "b": (0, 1)}


class Sketch(Board):
    """`columns` are relative widths, `gap` the points between columns and between rows.

    `rows_gap` gives the gap below single rows. Rows are as high as their fullest box.
    """

    def __init__(
        self,
        narrow: bool,
        columns: Sequence[float],
        gap: tuple[float, float] = (24.0, 24.0),
        rows_gap: dict[int, float] | None = None,
    ) -> None:
        super().__init__(narrow)
        self.columns = list(columns)
        self.gap = gap
        self.rows_gap = rows_gap or {}
        self.headings: dict[str, Node] = {}
        self.places: dict[str, tuple[int, int, int, int]] = {}
        self.routes: list[dict] = []

    def box(
        self,
        name: str,
        role: str,
        title: str,
        note: str = "",
        *,
        at: tuple[int, int],
        span: tuple[int, int] = (1, 1),
    ) -> None:
        """A box at (column, row) of the grid."""
        self.node(name, role, title, note)
        self.places[name] = (*at, *span)

    def heading(self, name: str, title: str, *, at: tuple[int, int]) -> None:
        """Bold text in a cell of the grid: the name of a lane, or a date."""
        self.headings[name] = Node(name, "ink", title)
        self.places[name] = (*at, 1, 1)

    def arrow(
        self,
        start: str,
        end: str,
        label: str = "",
        *,
        route: str = "",
        at: tuple[float | None, float | None] = (None, None),
        role: str = "muted",
        dashed: bool = False,
        bend: float = 0.5,
        out: float = 10.0,
        on: int | None = None,
        room: float | None = None,
        side: str = "",
    ) -> None:
        """An arrow.

        route  sides on which it leaves and arrives, such as 'r-l' or 'b-t'; found when not given
        at     where on these sides, 0 to 1
        bend   where between two opposite sides it turns; out: how far a loop goes out
        on     the part (0 first) that carries the label; room: its width; side: 'l', 'r', 't', 'b'
        """
        self.edge(start, end, label)
        self.routes.append(
            {"route": route, "at": at, "role": role, "dashed": dashed, "bend": bend}
            | {"out": out, "on": on, "room": room, "side": side}
        )

    def group(self, name: str, title: str, members: Sequence[str]) -> None:
        """A dotted outline around boxes that fill a part of the grid."""
        self.groups[name] = (Node(name, "muted", title), tuple(members))

    def find(self, name: str) -> Node:
        """A box, a group or a heading by its id."""
        return self.headings[name] if name in self.headings else super().find(name)

    def rows(self) -> list[dict[str, str]]:
        """The rows of any board, and the headings."""
        rows = super().rows()
        empty = dict.fromkeys(rows[0], "")
        for name, node in self.headings.items():
            rows.append({**empty, "kind": "heading", "id": name, "text": node.title})
        return rows

    def words(self) -> str:
        """The sentences of any board, and the headings."""
        titles = "; ".join(node.title for node in self.headings.values())
        return super().words() + (f" Headings: {titles}." if titles else "")

    def layout(self, made: Scene) -> None:
        """Columns by weight, rows by text, then groups and arrows."""
        places = self._place(made)
        edges = dict(places)
        for group, members in self.groups.values():
            around = self._around(group, members, places, made)
            made.shapes.append(Shape(group.id, group.role, around, "group"))
            edges[group.id] = around
            lines = [(line, True) for line in self._group_lines(group, around.w, made.font)]
            wide = max(scene.width(line, made.font, True) for line, _ in lines)
            put_text(made, lines, around.x + 5 + wide / 2, around.y + 4, group.id)
        for name, at in places.items():
            plain = name in self.headings
            put_node(made, self.find(name), at, "plain" if plain else "box")
        made.height = max(shape.place.bottom for shape in made.shapes)
        for number, (edge, how) in enumerate(zip(self.edges, self.routes, strict=True)):
            points = route(edges[edge.start], edges[edge.end], how)
            name = f"{edge.start}>{edge.end}-{number}"
            look = {"role": how["role"], "dashed": how["dashed"]}
            made.lines.append(Line(name, points, (edge.start, edge.end), **look))
            if edge.label:
                _label(made, name, edge.label, points, how)
            low = max(y for _, y in points) + 2
            made.height = max(made.height, low)
        made.height = max(made.height, *(text.place.bottom for text in made.texts))

    def _place(self, made: Scene) -> dict[str, Rect]:
        side = MARGIN + (GROUP if self.groups else 0)
        free = made.width - 2 * side - self.gap[0] * (len(self.columns) - 1)
        widths = [free * weight / sum(self.columns) for weight in self.columns]
        lefts = [side + sum(widths[:n]) + n * self.gap[0] for n in range(len(widths))]

        def room(column: int, span: int) -> float:
            return sum(widths[column : column + span]) + self.gap[0] * (span - 1)

        count = 1 + max(row + down - 1 for _, row, _, down in self.places.values())
        heights = [0.0] * count
        for name, (column, row, across, down) in self.places.items():
            if down == 1:
                need = node_height(self.find(name), room(column, across), made.font)
                heights[row] = max(heights[row], need)
        for name, (column, row, across, down) in self.places.items():
            gaps = sum(self.rows_gap.get(r, self.gap[1]) for r in range(row, row + down - 1))
            need = node_height(self.find(name), room(column, across), made.font)
            missing = need - sum(heights[row : row + down]) - gaps
            for one in range(row, row + down):
                heights[one] += max(missing, 0) / down
        above, below = self._group_space(widths, made.font, count)
        tops, y = [], MARGIN
        for row in range(count):
            y += above[row]
            tops.append(y)
            y += heights[row] + below[row] + self.rows_gap.get(row, self.gap[1])
        return {
            name: Rect(
                lefts[column],
                tops[row],
                room(column, across),
                tops[row + down - 1] + heights[row + down - 1] - tops[row],
            )
            for name, (column, row, across, down) in self.places.items()
        }

    def _group_space(
        self, widths: Sequence[float], font: float, count: int
    ) -> tuple[list[float], list[float]]:
        above, below = [0.0] * count, [0.0] * count
        for group, members in self.groups.values():
            cells = [self.places[name] for name in members]
            left, right = min(c[0] for c in cells), max(c[0] + c[2] for c in cells)
            room = sum(widths[left:right]) + self.gap[0] * (right - left - 1) + 2 * GROUP
            first = min(c[1] for c in cells)
            last = max(c[1] + c[3] - 1 for c in cells)
            lines = len(self._group_lines(group, room, font))
            above[first] = max(above[first], text_height(lines, font) + 9)
            below[last] = max(below[last], GROUP)
        return above, below

    def _group_lines(self, group: Node, room: float, font: float) -> list[str]:
        return scene.wrap(group.title, room - 8, font, True)

    def _around(
        self, group: Node, members: Sequence[str], places: dict[str, Rect], made: Scene
    ) -> Rect:
        boxes = [places[name] for name in members]
        x = min(at.x for at in boxes) - GROUP
        right = max(at.right for at in boxes) + GROUP
        lines = len(self._group_lines(group, right - x, made.font))
        y = min(at.y for at in boxes) - text_height(lines, made.font) - 9
        return Rect(x, y, right - x, max(at.bottom for at in boxes) + GROUP - y)


def route(start: Rect, end: Rect, how: dict) -> tuple[tuple[float, float], ...]:
    """The corners of an arrow from the edge of one box to the edge of another."""
    leave, _, arrive = (how["route"] or _sides(start, end)).partition("-")
    x0, y0 = _anchor(start, leave, how["at"][0])
    x1, y1 = _anchor(end, arrive, how["at"][1])
    level = leave in "lr"
    if level and arrive in "lr" and leave != arrive:
        y0, y1 = _level((start.y, start.bottom), (end.y, end.bottom), (y0, y1), how["at"])
    if not level and arrive in "tb" and leave != arrive:
        x0, x1 = _level((start.x, start.right), (end.x, end.right), (x0, x1), how["at"])
    if leave == arrive:  # a loop around the same side
        if level:
            far = max(x0, x1) + how["out"] if leave == "r" else min(x0, x1) - how["out"]
            return ((x0, y0), (far, y0), (far, y1), (x1, y1))
        far = max(y0, y1) + how["out"] if leave == "b" else min(y0, y1) - how["out"]
        return ((x0, y0), (x0, far), (x1, far), (x1, y1))
    if level != (arrive in "lr"):  # one corner
        return ((x0, y0), (x1, y0) if level else (x0, y1), (x1, y1))
    if level:
        if abs(y0 - y1) < 0.01:
            return ((x0, y0), (x1, y1))
        turn = x0 + (x1 - x0) * how["bend"]
        return ((x0, y0), (turn, y0), (turn, y1), (x1, y1))
    if abs(x0 - x1) < 0.01:
        return ((x0, y0), (x1, y1))
    turn = y0 + (y1 - y0) * how["bend"]
    return ((x0, y0), (x0, turn), (x1, turn), (x1, y1))


def _sides(start: Rect, end: Rect) -> str:
    if min(start.bottom, end.bottom) > max(start.y, end.y):
        return "r-l" if end.x > start.x else "l-r"
    return "b-t" if end.y > start.y else "t-b"


def _anchor(at: Rect, side: str, where: float | None) -> tuple[float, float]:
    share = 0.5 if where is None else where
    dx, dy = AWAY[side]
    x = {1: at.right, -1: at.x}.get(dx, at.x + at.w * share)
    y = {1: at.bottom, -1: at.y}.get(dy, at.y + at.h * share)
    return x, y


def _level(
    start: tuple[float, float],
    end: tuple[float, float],
    found: tuple[float, float],
    given: tuple[float | None, float | None],
) -> tuple[float, float]:
    """Where an arrow leaves and arrives: on one level when what is not given allows it."""
    low, high = max(start[0], end[0]), min(start[1], end[1])
    if high <= low or None not in given:
        return found
    if given == (None, None):
        return (low + high) / 2, (low + high) / 2
    fixed = found[0] if given[1] is None else found[1]
    return (fixed, fixed) if low <= fixed <= high else found


def _label(
    made: Scene, name: str, label: str, points: tuple[tuple[float, float], ...], how: dict
) -> None:
    """The label of an arrow beside its longest part, or beside the part that `on` names."""
    parts = list(itertools.pairwise(points))
    lengths = [abs(x1 - x0) + abs(y1 - y0) for (x0, y0), (x1, y1) in parts]
    which = lengths.index(max(lengths)) if how["on"] is None else how["on"]
    (x0, y0), (x1, y1) = parts[which]
    size = made.font
    if abs(y0 - y1) < 0.01:
        lines = scene.wrap(label, how["room"] or max(lengths[which] - 10, 20), size)
        tall = text_height(len(lines), size)
        top = y0 + 3 if how["side"] == "b" else y0 - 3 - tall
        put_text(made, [(line, False) for line in lines], (x0 + x1) / 2, top, name)
        return
    lines = scene.wrap(label, how["room"] or 80.0, size)
    wide = max(scene.width(line, size) for line in lines)
    centre = x0 - 4 - wide / 2 if how["side"] == "l" else x0 + 4 + wide / 2
    top = (y0 + y1) / 2 - text_height(len(lines), size) / 2
    put_text(made, [(line, False) for line in lines], centre, top, name)
