"""Diagrams of the gap: where a token's probability can differ, and routing replay."""

from __future__ import annotations

from figures.diagram import figure as diagram
from figures.registry import Figure, figure
from figures.sketch import Sketch

# source -> (what the engine does, what the trainer does)
SOURCES = {
    "Staleness": ("an older version of the weights", "the newest weights"),
    "Tokens": ("the tokens it wrote", "text made into tokens again"),
    "Routing": ("experts that it chose", "experts chosen once more"),
    "Numbers": ("kernels for speed", "kernels for gradients"),
    "Sampling": ("over the kept tokens", "over the whole vocabulary"),
}


@figure("fig-8-1-five-sources")
def five_sources() -> Figure:
    """Two programs on the way to one probability, with the five places where they can part."""

    def make(narrow: bool) -> Sketch:
        columns = [1.3, 0.9, 1.3] if narrow else [1, 0.6, 1]
        d = Sketch(narrow, columns, gap=(8, 13) if narrow else (14, 13))
        d.heading("engine", "Engine", at=(0, 0))
        d.heading("trainer", "Trainer", at=(2, 0))
        d.heading("source", "Source", at=(1, 0))
        before = ""
        for row, (name, (left, right)) in enumerate(SOURCES.items(), start=1):
            key = name.lower()
            d.heading(key, name, at=(1, row))
            d.box(f"engine-{key}", "engine", "", left, at=(0, row))
            d.box(f"trainer-{key}", "trainer", "", right, at=(2, row))
            if before:
                d.arrow(f"engine-{before}", f"engine-{key}")
                d.arrow(f"trainer-{before}", f"trainer-{key}")
            before = key
        text = "the two probabilities of one token differ"
        d.box("gap", "data", "Gap", text, at=(0, 6), span=(3, 1))
        d.arrow("engine-sampling", "gap", route="b-t", at=(0.5, None))
        d.arrow("trainer-sampling", "gap", route="b-t", at=(0.5, None))
        return d

    return diagram(["manual"], make)


@figure("fig-3-4-routing-replay")
def routing_replay() -> Figure:
    """One token of a mixture of experts without and with routing replay."""

    def make(narrow: bool) -> Sketch:
        columns, gap = ([1, 1], (46, 26)) if narrow else ([1, 1, 1], (50, 22))
        d = Sketch(narrow, columns, gap=gap)
        if narrow:
            at = {"free": (0, 0), "again": (1, 0), "flip": (1, 1)}
            at |= {"chosen": (0, 2), "used": (1, 3), "record": (1, 2)}
        else:
            at = {"free": (0, 0), "again": (1, 0), "flip": (2, 0)}
            at |= {"chosen": (0, 1), "record": (1, 1), "used": (2, 1)}
        d.box("free", "engine", "Engine", "picks experts A and B", at=at["free"])
        d.box("again", "trainer", "Trainer", "rounds, picks A and C", at=at["again"])
        text = "other weights, other probability"
        d.box("flip", "failure", "Flipped choice", text, at=at["flip"])
        d.arrow("free", "again", "tokens")
        d.arrow("again", "flip")
        d.group("without", "Without replay", ["free", "again", "flip"])
        d.box("chosen", "engine", "Engine", "picks experts A and B", at=at["chosen"])
        d.box("record", "data", "Sample", "tokens and chosen experts", at=at["record"])
        d.box("used", "trainer", "Trainer", "uses A and B", at=at["used"])
        d.arrow("chosen", "record", "records")
        d.arrow("record", "used")
        d.group("with", "With replay", ["chosen", "record", "used"])
        return d

    return diagram(["manual"], make)
