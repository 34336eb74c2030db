"""Diagrams of memory and placement: whose turn it is, and how the weights move."""

from __future__ import annotations

from figures.diagram import figure as diagram
from figures.registry import Figure, figure
from figures.sketch import Sketch


@figure("fig-8-4-memory-turns")
def memory_turns() -> Figure:
    """What lies in which memory in the three turns of a colocated step."""

    def make(narrow: bool) -> Sketch:
        d = Sketch(narrow, [1, 1, 1], gap=(16, 18) if narrow else (34, 18), rows_gap={0: 4})
        for column, text in enumerate(("Rollout", "Training", "Weight update, next rollout")):
            d.heading(f"time-{column}", text, at=(column, 0))
        for row, (name, gpu, host, moved) in {
            1: ("apart", "GPU memory", "Host memory", "copied over the bus"),
            3: ("pool", "Unified memory: one pool", "", "stays in the pool"),
        }.items():
            top, low = (f"{name}-{part}" for part in ("gpu", "host"))
            d.box(f"{top}-0", "engine", "Engine", "weights, KV cache", at=(0, row))
            text = "weights, gradients, optimizer"
            d.box(f"{top}-1", "trainer", "Trainer", text, at=(1, row))
            d.box(f"{top}-2", "engine", "Engine", "new weights, KV cache", at=(2, row))
            d.box(f"{low}-0", "trainer", "Trainer state", at=(0, row + 1))
            d.box(f"{low}-2", "trainer", "Trainer state", moved, at=(2, row + 1))
            members = [*(f"{top}-{n}" for n in range(3)), f"{low}-0", f"{low}-2"]
            if host:
                d.group(top, gpu, members[:3])
                d.group(low, host, members[3:])
            else:
                d.group(name, gpu, members)
            d.arrow(f"{low}-0", f"{top}-1", route="r-b", at=(0.5, 0.35))
            d.arrow(f"{top}-1", f"{low}-2", route="b-l", at=(0.65, 0.5))
        return d

    return diagram(["code", "manual"], make)


@figure("fig-6-1-placement")
def placement() -> Figure:
    """Trainer and engine on the same GPUs or apart, and the paths of the weights."""

    def make(narrow: bool) -> Sketch:
        if narrow:
            d = Sketch(narrow, [1, 1], gap=(66, 30))
            at = {"trainer": (0, 0), "engine": (1, 0), "far": (0, 1), "away": (1, 1)}
            at["folder"] = (0, 2)
        else:
            d = Sketch(narrow, [1, 1], gap=(130, 24))
            at = {"trainer": (0, 0), "engine": (1, 0), "far": (0, 1), "away": (1, 1)}
            at["folder"] = (0, 2)
        d.box(
            "trainer", "trainer", "Trainer", "its turn, then it gives memory back", at=at["trainer"]
        )
        d.box("engine", "engine", "Engine", "its turn, then it gives memory back", at=at["engine"])
        d.arrow("trainer", "engine", "copy inside the GPU")
        d.group("same", "Colocated: the same GPUs", ["trainer", "engine"])
        d.box("far", "trainer", "Trainer", "GPUs of its own", at=at["far"])
        d.box("away", "engine", "Engine", "GPUs of its own", at=at["away"])
        d.box("folder", "durable", "Shared folder", "only changed bytes", at=at["folder"])
        d.arrow("far", "away", "broadcast", at=(0.3, 0.3))
        d.arrow("far", "away", "p2p", at=(0.75, 0.75))
        d.arrow("far", "folder", "disk-delta", room=60)
        d.arrow("folder", "away", "patches", route="r-b")
        d.group("split", "Split: GPUs apart", ["far", "away", "folder"])
        return d

    return diagram(["code", "manual"], make)
