"""One grammar for diagrams: nodes with a role, arrows with labels, groups, lanes and messages.

A topic module writes a function that takes `narrow` and returns a `Board`: a `sketch.Sketch` (boxes
on a grid, whose headings name lanes or dates) or a `sequence.Sequence` (messages between parties,
from the top down). The board lays itself out as a `scene.Scene`, with its text measured, so that
`scene.problems` can find clipped text, overlaps and arrows through boxes. `figure` makes a
`registry.Figure` of it: no values, its nodes and arrows as the data, and what it was drawn from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from figures import scene
from figures.registry import Figure
from figures.scene import ASCENT, DESCENT, LINE, Rect, Scene, Shape, Text

ROLES = {
    "trainer": "trainer",
    "engine": "rollout engine",
    "data": "data and rewards",
    "lifecycle": "lifecycle step",
    "durable": "stored on disk",
    "failure": "failure",
    "outside": "outside Miles",
}
MARGIN = 4.0
PAD = (4.5, 4.5)  # between the outline of a box and its text
KEY = (16.0, 10.0)  # an outline in the legend


class DiagramError(ValueError):
    """A diagram that names an unknown role or node, or gives one name twice."""


@dataclass(frozen=True, slots=True)
class Node:
    """A thing or a moment: a bold title and a note below it."""

    id: str
    role: str
    title: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """What leads from one node to another."""

    start: str
    end: str
    label: str = ""


def name_of(node: Node) -> str:
    """The title of a node, or its note when it has no title."""
    return node.title or node.note


class Board:
    """Nodes and edges of a diagram; a subclass knows how to lay them out."""

    def __init__(self, narrow: bool) -> None:
        self.narrow = narrow
        self.nodes: dict[str, Node] = {}
        self.edges: list[Edge] = []
        self.groups: dict[str, tuple[Node, tuple[str, ...]]] = {}

    def node(self, name: str, role: str, title: str, note: str = "") -> Node:
        """Add a node."""
        if role not in ROLES:
            raise DiagramError(f"{name}: no role {role!r}; there are {', '.join(ROLES)}")
        if name in self.nodes or name in self.groups:
            raise DiagramError(f"two nodes are called {name!r}")
        self.nodes[name] = Node(name, role, title, note)
        return self.nodes[name]

    def edge(self, start: str, end: str, label: str = "") -> Edge:
        """Add an edge between two nodes that are there."""
        for name in (start, end):
            if name not in self.nodes and name not in self.groups:
                raise DiagramError(f"arrow {start} to {end}: no node {name!r}")
        self.edges.append(Edge(start, end, label))
        return self.edges[-1]

    def rows(self) -> list[dict[str, str]]:
        """Nodes, groups and edges as the rows of the data file."""
        empty = dict.fromkeys(("kind", "id", "role", "text", "note", "inside", "from", "to"), "")
        inside = {name: node.title for node, members in self.groups.values() for name in members}
        rows = []
        for node in self.nodes.values():
            mine = {"id": node.id, "role": node.role, "text": node.title, "note": node.note}
            rows.append({**empty, "kind": "node", **mine, "inside": inside.get(node.id, "")})
        for group, _ in self.groups.values():
            mine = {"id": group.id, "role": group.role, "text": group.title}
            rows.append({**empty, "kind": "group", **mine})
        for edge in self.edges:
            mine = {"text": edge.label, "from": edge.start, "to": edge.end}
            rows.append({**empty, "kind": "arrow", **mine})
        return rows

    def words(self) -> str:
        """Nodes, groups and arrows as sentences, for a reader who cannot see the drawing."""
        parts = [
            f"{node.title}: {node.note}" if node.title and node.note else name_of(node)
            for node in self.nodes.values()
        ]
        sentences = ["Diagram", "Parts: " + "; ".join(parts)]
        for group, members in self.groups.values():
            inside = ", ".join(name_of(self.find(name)) for name in members)
            sentences.append(f"{group.title}: {inside}")
        arrows = []
        for edge in self.edges:
            label = f" ({edge.label})" if edge.label else ""
            ends = (name_of(self.find(name)) for name in (edge.start, edge.end))
            arrows.append(" to ".join(ends) + label)
        if arrows:
            sentences.append("Arrows: " + "; ".join(arrows))
        return ". ".join(sentences).replace("\n", " ") + "."

    def find(self, name: str) -> Node:
        """A node or a group by its id."""
        return self.nodes[name] if name in self.nodes else self.groups[name][0]

    def layout(self, made: Scene) -> None:
        """Fill the scene and set its height; a subclass does it."""
        raise NotImplementedError

    def scene(self, width: float, font: float) -> Scene:
        """The diagram laid out at a width, with the legend of its roles below it."""
        made = Scene(width, 0.0, font)
        self.layout(made)
        roles = {shape.role for shape in made.shapes}
        legend(made, [role for role in ROLES if role in roles])
        return made


def put_text(
    made: Scene,
    lines: Sequence[tuple[str, bool]],
    centre: float,
    top: float,
    owner: str,
    *,
    backed: bool = False,
) -> float:
    """Lines of text around `centre`, the first at `top`. Returns the bottom of the last."""
    size = made.font
    for text, bold in lines:
        room = scene.width(text, size, bold)
        place = Rect(centre - room / 2, top, room, (ASCENT + DESCENT) * size)
        made.texts.append(Text(text, place, owner, bold, backed=backed))
        top += LINE * size
    return top - (LINE - ASCENT - DESCENT) * size


def text_height(lines: int, size: float) -> float:
    """Height of so many lines."""
    return (lines * LINE - (LINE - ASCENT - DESCENT)) * size if lines else 0.0


def node_lines(node: Node, room: float, size: float) -> list[tuple[str, bool]]:
    """Title and note wrapped into a box of this outer width."""
    free = scene.inner(Shape("", node.role, Rect(0, 0, room, 100))).w - 2 * PAD[0]
    lines = [(line, True) for line in scene.wrap(node.title, free, size, True)]
    return lines + [(line, False) for line in scene.wrap(node.note, free, size)]


def node_height(node: Node, room: float, size: float) -> float:
    """Height that a box of this outer width needs for its text."""
    lost = 100 - scene.inner(Shape("", node.role, Rect(0, 0, room, 100))).h
    return text_height(len(node_lines(node, room, size)), size) + lost + 2 * PAD[1]


def put_node(made: Scene, node: Node, at: Rect, kind: str = "box") -> None:
    """A box with its text in the middle; of the kind 'plain' it has no outline."""
    shape = Shape(node.id, node.role, at, kind)
    made.shapes.append(shape)
    lines = node_lines(node, at.w, made.font)
    free = scene.inner(shape)
    centre, middle = free.middle
    put_text(made, lines, centre, middle - text_height(len(lines), made.font) / 2, node.id)


def legend(made: Scene, roles: Sequence[str]) -> None:
    """A row of outlines with the names of their roles, below everything else."""
    size, (key_w, key_h) = made.font, KEY
    x, y = MARGIN, made.height + 12.0
    for role in roles:
        room = scene.width(ROLES[role], size)
        if x > MARGIN and x + key_w + 4 + room > made.width - MARGIN:
            x, y = MARGIN, y + 16.0
        made.shapes.append(Shape(f"key-{role}", role, Rect(x, y, key_w, key_h), "key"))
        top = y + key_h / 2 - (ASCENT + DESCENT) * size / 2
        put_text(made, [(ROLES[role], False)], x + key_w + 4 + room / 2, top, f"key-{role}")
        x += key_w + 4 + room + 12
    made.height = y + key_h + MARGIN


def figure(drawn_from: Sequence[str], make: Callable[[bool], Board], shape: str = "") -> Figure:
    """A registry figure of a diagram. `drawn_from` are keys of `registry.DRAWN_FROM`."""
    board = make(False)

    def draw(style: Any) -> Any:
        from figures import scenedraw  # Matplotlib is slow to import and claims need none

        return scenedraw.draw(make(style.narrow).scene(style.width * 72, style.font), style)

    return Figure(
        shape=f"{shape} {board.words()}".strip(),
        values=(),
        rows=board.rows(),
        draw=draw,
        drawn_from=tuple(drawn_from),
        scene=lambda narrow, width, font: make(narrow).scene(width, font),
    )
