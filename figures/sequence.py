"""Messages between parties in the order of time.

Wide: one column a party, with a line down from its head. Narrow: there is no room for that many
columns, so each message stands between two small boxes of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from figures import scene
from figures.diagram import (
    MARGIN,
    PAD,
    Board,
    Node,
    node_height,
    node_lines,
    put_node,
    put_text,
    text_height,
)
from figures.scene import Line, Rect, Scene

CHIP = 68.0  # width of a small box in the narrow variant
APART = 9.0  # between two messages


@dataclass(frozen=True, slots=True)
class Item:
    """A message, an act of one party (start equals end) or a phase (start is its node)."""

    kind: str
    start: str
    end: str
    text: str


class Sequence(Board):
    """Parties from left to right, then messages, acts and phases from the top down."""

    def __init__(self, narrow: bool) -> None:
        super().__init__(narrow)
        self.parties: list[str] = []
        self.items: list[Item] = []

    def party(self, name: str, role: str, title: str, note: str = "") -> None:
        """Someone who sends or gets messages."""
        self.node(name, role, title, note)
        self.parties.append(name)

    def phase(self, name: str, title: str) -> None:
        """A bar across: what the messages below belong to."""
        self.node(name, "lifecycle", title)
        self.items.append(Item("phase", name, name, title))

    def message(self, start: str, end: str, text: str) -> None:
        """An arrow from one party to another."""
        self.edge(start, end, text)
        self.items.append(Item("message", start, end, text))

    def act(self, party: str, text: str) -> None:
        """What a party does by itself."""
        self.edge(party, party, text)
        self.items.append(Item("act", party, party, text))

    def layout(self, made: Scene) -> None:
        """Heads and lifelines, or pairs of boxes."""
        made.height = MARGIN
        if self.narrow:
            self._pairs(made)
        else:
            self._columns(made)

    def _phase(self, made: Scene, item: Item) -> None:
        node = self.nodes[item.start]
        room = made.width - 2 * MARGIN
        at = Rect(MARGIN, made.height, room, node_height(node, room, made.font) - 2)
        put_node(made, node, at)
        made.height = at.bottom + APART - 1

    def _columns(self, made: Scene) -> None:
        room = (made.width - 2 * MARGIN) / len(self.parties)
        middle = {name: MARGIN + room * (n + 0.5) for n, name in enumerate(self.parties)}
        heads = [self.nodes[name] for name in self.parties]
        tall = max(node_height(node, room - 8, made.font) for node in heads)
        for node in heads:
            x = middle[node.id] - room / 2 + 4
            put_node(made, node, Rect(x, made.height, room - 8, tall))
        made.height = since = made.height + tall
        made.height += APART
        for number, item in enumerate(self.items):
            if item.kind == "phase":
                self._lifelines(made, middle, since, made.height)
                self._phase(made, item)
                since = made.shapes[-1].place.bottom
            elif item.kind == "act":
                self._act(made, item, number, middle[item.start], room)
            else:
                self._message(made, item, number, middle)
        self._lifelines(made, middle, since, made.height)

    def _lifelines(self, made: Scene, middle: dict[str, float], top: float, bottom: float) -> None:
        """A thin line below each head, broken where an act stands on it."""
        for name, x in middle.items():
            at = top
            acts = [s.place for s in made.shapes if s.id.startswith(f"{name}!")]
            for place in [p for p in acts if top < p.y < bottom]:
                self._quiet(made, name, x, at, place.y)
                at = place.bottom
            self._quiet(made, name, x, at, bottom)

    @staticmethod
    def _quiet(made: Scene, name: str, x: float, top: float, bottom: float) -> None:
        if bottom - top > 1:
            look = {"role": "muted", "dashed": True, "head": False, "quiet": True}
            line = f"{name}|{len(made.lines)}"
            made.lines.append(Line(line, ((x, top), (x, bottom)), (name, name), **look))

    def _message(self, made: Scene, item: Item, number: int, middle: dict[str, float]) -> None:
        x0, x1 = middle[item.start], middle[item.end]
        name = f"{item.start}>{item.end}-{number}"
        lines = scene.wrap(item.text, abs(x1 - x0) - 12, made.font)
        texts = [(line, False) for line in lines]
        low = put_text(made, texts, (x0 + x1) / 2, made.height, name, backed=True)
        y = low + 3.5
        role = self.nodes[item.start].role
        made.lines.append(Line(name, ((x0, y), (x1, y)), (item.start, item.end), role))
        made.height = y + APART

    def _act(self, made: Scene, item: Item, number: int, x: float, room: float) -> None:
        node = Node(f"{item.start}!{number}", self.nodes[item.start].role, "", item.text)
        wide = room - 4
        x = min(max(x, MARGIN + wide / 2), made.width - MARGIN - wide / 2)
        at = Rect(x - wide / 2, made.height, wide, node_height(node, wide, made.font) - 4)
        put_node(made, node, at)
        made.height = at.bottom + APART

    def _pairs(self, made: Scene) -> None:
        for number, item in enumerate(self.items):
            if item.kind == "phase":
                self._phase(made, item)
            elif item.kind == "act":
                party = self.nodes[item.start]
                node = Node(f"{party.id}!{number}", party.role, party.title, item.text)
                room = made.width - 2 * MARGIN - 60
                at = Rect(MARGIN + 30, made.height, room, node_height(node, room, made.font) - 4)
                put_node(made, node, at)
                made.height = at.bottom + APART
            else:
                self._pair(made, item, number)

    def _pair(self, made: Scene, item: Item, number: int) -> None:
        size = made.font
        ends = [
            Node(f"{name}@{number}{side}", self.nodes[name].role, self.nodes[name].title)
            for name, side in ((item.start, "a"), (item.end, "b"))
        ]
        tall = max(
            text_height(len(node_lines(node, CHIP, size)), size) + 2 * PAD[1] for node in ends
        )
        x0, x1 = MARGIN + CHIP, made.width - MARGIN - CHIP
        lines = scene.wrap(item.text, x1 - x0 - 14, size)
        above = max(text_height(len(lines), size) + 3.5, tall / 2)
        y = made.height + above
        for node, x in zip(ends, (MARGIN, x1), strict=True):
            put_node(made, node, Rect(x, y - tall / 2, CHIP, tall))
        name = f"{item.start}>{item.end}-{number}"
        top = y - 3.5 - text_height(len(lines), size)
        put_text(made, [(line, False) for line in lines], (x0 + x1) / 2, top, name)
        role = self.nodes[item.start].role
        made.lines.append(Line(name, ((x0, y), (x1, y)), (ends[0].id, ends[1].id), role))
        made.height = y + tall / 2 + APART - 2
