"""Diagrams of the second manual: the parts of the trainer, and the order of what it does."""

from __future__ import annotations

from figures.diagram import figure as diagram
from figures.registry import Figure, figure
from figures.sketch import Sketch


@figure("fig-core-1-parts")
def parts() -> Figure:
    """One collection through the loop; the group is what OLMo-core replaces."""

    def make(narrow: bool) -> Sketch:
        if narrow:
            d = Sketch(narrow, [1, 1], gap=(26, 24))
            at = {"task": (0, 0), "engine": (1, 0), "sample": (1, 1), "advantage": (0, 1)}
            at |= {"hook": (1, 2), "core": (0, 2), "driver": (1, 3), "publish": (0, 3)}
        else:
            d = Sketch(narrow, [1, 1, 1, 1], gap=(26, 30))
            at = {"task": (0, 0), "engine": (1, 0), "sample": (2, 0), "advantage": (3, 0)}
            at |= {"hook": (3, 1), "core": (2, 1), "publish": (1, 1), "driver": (0, 1)}
        d.box("task", "data", "Task", "prompts and rewards", at=at["task"])
        d.box("engine", "engine", "Engine", "writes a group of responses", at=at["engine"])
        d.box("sample", "data", "Samples", "tokens, masks, versions", at=at["sample"])
        d.box("advantage", "data", "Advantages", "of each group", at=at["advantage"])
        d.box("hook", "trainer", "Objective hook", "the policy loss", at=at["hook"])
        d.box("core", "trainer", "OLMo-core", "forward, backward, step", at=at["core"])
        d.box("publish", "lifecycle", "Publication", "weights in buckets", at=at["publish"])
        d.box("driver", "lifecycle", "Driver", "moves the version", at=at["driver"])
        d.arrow("task", "engine")
        d.arrow("engine", "sample")
        d.arrow("sample", "advantage")
        d.arrow("advantage", "hook", bend=0.3)
        d.arrow("hook", "core")
        d.arrow("core", "publish")
        d.arrow("driver", "publish")
        if not narrow:
            d.arrow("publish", "engine")
        d.group("replaced", "In the place of Megatron", ["hook", "core"])
        return d

    return diagram(["core", "core-contract"], make)
