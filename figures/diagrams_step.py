"""Diagrams of one step: who talks to whom, where the hooks are, what a request passes."""

from __future__ import annotations

from figures.diagram import figure as diagram
from figures.registry import Figure, figure
from figures.sketch import Sketch


@figure("fig-1-1-lab-folder")
def lab_folder() -> Figure:
    """The lab folder, the container that mounts it, and the two guards outside."""

    def make(narrow: bool) -> Sketch:
        if narrow:
            d = Sketch(narrow, [1, 1], gap=(56, 14), rows_gap={1: 34})
            at = {"watch": (0, 0), "heat": (0, 1), "engine": (1, 0), "trainer": (1, 1)}
            at |= {"lab": (0, 2), "cache": (1, 2)}
        else:
            d = Sketch(narrow, [1, 0.85, 1], gap=(78, 14))
            at = {"watch": (0, 0), "heat": (0, 1), "engine": (1, 0), "trainer": (1, 1)}
            at |= {"lab": (2, 0), "cache": (2, 1)}
        d.box(
            "watch", "lifecycle", "Watchdog", "reads the log, asks if steps advance", at=at["watch"]
        )
        d.box("heat", "lifecycle", "Heat guard", "reads the GPU temperature", at=at["heat"])
        d.box("engine", "engine", "Engine", at=at["engine"])
        d.box("trainer", "trainer", "Trainer", at=at["trainer"])
        d.box("lab", "durable", "~/miles-lab", "launcher, model, data, logs", at=at["lab"])
        d.box("cache", "durable", "~/.cache/\nhuggingface", "downloads", at=at["cache"])
        d.group("container", "outside", "Container of the run", ["engine", "trainer"])
        d.arrow("watch", "container", "stops")
        d.arrow("heat", "container", "pauses and resumes", role="lifecycle")
        d.arrow("lab", "container", "mounted as /root/lab", route="t-b" if narrow else "l-r")
        d.arrow("cache", "container", "mounted", route="t-b" if narrow else "l-r")
        return d

    return diagram(["kit", "manual"], make)
