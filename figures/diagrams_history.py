"""The diagram of slime and Miles in time."""

from __future__ import annotations

from figures.diagram import figure as diagram
from figures.registry import Figure, figure
from figures.sketch import Sketch


@figure("fig-8-7-timeline")
def timeline() -> Figure:
    """Dates that the manual and the code give, slime to the left and Miles to the right."""

    def make(narrow: bool) -> Sketch:
        d = Sketch(narrow, [1, 1, 1] if narrow else [0.45, 1, 1], gap=(10, 14))
        for row, text in enumerate(
            ("June 2025", "November 2025", "2026-08-18", "2026-08-21", "2026-10-15", "2026-10-20")
        ):
            d.heading(f"date-{row}", text, at=(0, row))
        text = "Megatron trainer, SGLang engines, a data buffer"
        d.box("slime", "outside", "slime starts", text, at=(1, 0))
        d.box("first", "lifecycle", "Miles: first post", "a copy of slime", at=(2, 1))
        d.box("tag", "lifecycle", "Miles v0.1.0", "tagged", at=(2, 2))
        d.box("code", "durable", "Code", "that this manual reads", at=(2, 3))
        d.box("image", "durable", "Image", "that the GB10 lab ran", at=(2, 4))
        text = "v0.3.0: agent module. v0.4.0: two modes"
        d.box("later", "outside", "slime by then", text, at=(1, 5))
        text = "more trainers, transfers, recipes"
        d.box("miles", "lifecycle", "Miles by then", text, at=(2, 5))
        d.arrow("slime", "first", route="r-t")
        d.arrow("slime", "later")
        for start, end in (
            ("first", "tag"),
            ("tag", "code"),
            ("code", "image"),
            ("image", "miles"),
        ):
            d.arrow(start, end)
        return d

    return diagram(["code", "manual"], make)
