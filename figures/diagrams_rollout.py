"""Diagrams of the rollout: the filter, partial rollout, age of samples, places of evaluation."""

from __future__ import annotations

from figures.diagram import figure as diagram
from figures.registry import Figure, figure
from figures.sketch import Sketch


@figure("fig-3-2-filter-loop")
def filter_loop() -> Figure:
    """The loop of the zero-variance filter, with the settings of section 3.2."""

    def make(narrow: bool) -> Sketch:
        if narrow:
            d = Sketch(narrow, [1, 1], gap=(60, 34))
            at = {"source": (0, 0), "engine": (1, 0), "filter": (1, 1), "dropped": (0, 1)}
            at |= {"kept": (1, 2), "trainer": (0, 2)}
        else:
            d = Sketch(narrow, [0.9, 1, 1, 1.15], gap=(52, 34))
            at = {"source": (0, 0), "engine": (1, 0), "filter": (2, 0), "dropped": (2, 1)}
            at |= {"kept": (3, 0), "trainer": (3, 1)}
        d.box("source", "data", "Data source", at=at["source"])
        d.box("engine", "engine", "Engine", "answers each prompt", at=at["engine"])
        text = "do the rewards of the group differ?"
        d.box("filter", "lifecycle", "Filter", text, at=at["filter"])
        d.box("dropped", "outside", "Dropped", "teaches nothing", at=at["dropped"])
        text = "32 end the rollout and stop all other requests"
        d.box("kept", "data", "Kept groups", text, at=at["kept"])
        d.box("trainer", "trainer", "Trainer", at=at["trainer"])
        d.arrow("source", "engine", "48 prompts", side="b" if narrow else "")
        d.arrow("engine", "filter", "finished group", side="l" if narrow else "", room=44)
        d.arrow("filter", "kept", "yes")
        d.arrow("filter", "dropped", "no", route="l-r" if narrow else "")
        more = "48 more, when 32 are out of reach"
        how = {"room": 70} if narrow else {"route": "l-b", "on": 0}
        d.arrow("dropped", "source", more, **how)
        d.arrow("kept", "trainer", "32 groups")
        return d

    return diagram(["code", "manual"], make)


@figure("fig-4-2-partial-rollout")
def partial_rollout() -> Figure:
    """A long answer that two rollouts write."""

    def make(narrow: bool) -> Sketch:
        if narrow:
            d = Sketch(narrow, [1, 1], gap=(36, 32))
            at = {"short": (0, 0), "first": (1, 0), "train": (0, 1), "buffer": (1, 1)}
            at |= {"second": (1, 2), "later": (0, 2)}
        else:
            d = Sketch(narrow, [1, 1, 1, 1], gap=(52, 34))
            at = {"short": (0, 0), "train": (1, 0), "first": (0, 1), "buffer": (1, 1)}
            at |= {"second": (2, 1), "later": (3, 1)}
        d.box("short", "engine", "Short answers", "end in this rollout", at=at["short"])
        d.box("first", "engine", "Long answer", "first part, older weights", at=at["first"])
        d.box("train", "trainer", "This step", "trains on what has ended", at=at["train"])
        d.box("buffer", "data", "Data buffer", "keeps the tokens so far", at=at["buffer"])
        d.box("second", "engine", "Long answer", "second part, newer weights", at=at["second"])
        d.box("later", "trainer", "Later step", "trains on both parts", at=at["later"])
        d.arrow("short", "train")
        d.arrow("first", "buffer", "stopped")
        d.arrow("buffer", "second", "goes on")
        d.arrow("second", "later")
        return d

    return diagram(["code", "manual"], make)


@figure("fig-4-1-staleness")
def staleness() -> Figure:
    """Which weights wrote the samples that a step trains on, in the two modes."""

    def make(narrow: bool) -> Sketch:
        d = Sketch(narrow, [1] * 6, gap=(9, 18), rows_gap={1: 26})
        d.box("r0", "engine", "Rollout 0", "weights 0", at=(0, 0), span=(2, 1))
        d.box("r1", "engine", "Rollout 1", "weights 0", at=(2, 0), span=(2, 1))
        d.box("r2", "engine", "Rollout 2", "weights 1", at=(4, 0), span=(2, 1))
        d.box("t0", "trainer", "Train on 0", "makes weights 1", at=(2, 1), span=(2, 1))
        d.box("t1", "trainer", "Train on 1", "makes weights 2", at=(4, 1), span=(2, 1))
        d.arrow("r0", "t0", route="b-l")
        d.arrow("r1", "t1", route="b-t", at=(0.75, 0.25))
        d.group("ahead", "One step ahead", ["r0", "r1", "r2", "t0", "t1"])
        text = "writes all the time, with the weights it has"
        d.box("worker", "engine", "Background worker", text, at=(0, 2), span=(6, 1))
        text = "samples wait and get older, a limit can drop them"
        d.box("buffer", "data", "Buffer", text, at=(0, 3), span=(3, 1))
        d.box("train", "trainer", "Train", "on what is there", at=(3, 3), span=(3, 1))
        d.arrow("worker", "buffer", at=(None, 0.5))
        d.arrow("buffer", "train")
        d.arrow("train", "worker", "new weights", at=(0.5, None))
        d.group("fully", "Fully async", ["worker", "buffer", "train"])
        return d

    return diagram(["code", "manual"], make)


@figure("fig-6-2-evaluation")
def evaluation() -> Figure:
    """Three places where an evaluation can run."""

    def make(narrow: bool) -> Sketch:
        if narrow:
            d = Sketch(narrow, [1, 1], gap=(48, 30))
            at = {"trainer": (0, 0), "engines": (1, 0), "folder": (0, 1), "fleet": (1, 1)}
            at |= {"service": (1, 2)}
        else:
            d = Sketch(narrow, [1, 1, 1], gap=(80, 20))
            at = {"trainer": (0, 0), "engines": (2, 0), "folder": (1, 1), "fleet": (2, 1)}
            at |= {"service": (2, 2)}
        tall = (1, 1) if narrow else (1, 3)
        d.box("trainer", "trainer", "Training loop", at=at["trainer"], span=tall)
        d.box("engines", "engine", "Training engines", "hold these weights", at=at["engines"])
        d.box("folder", "durable", "Snapshot", "a folder", at=at["folder"])
        d.box("fleet", "engine", "Dedicated fleet", "GPUs and router of its own", at=at["fleet"])
        d.box("service", "outside", "Your service", "your function asks it", at=at["service"])
        if narrow:
            d.arrow("trainer", "engines", "waits")
            d.arrow("trainer", "folder", "writes, goes on", side="r", room=50)
            d.arrow("folder", "fleet", "loads")
            d.arrow("folder", "service", "or", route="b-l")
        else:
            d.arrow("trainer", "engines", "waits")
            d.arrow("trainer", "folder", "writes, goes on")
            d.arrow("folder", "fleet", "loads")
            d.arrow("folder", "service", "or", route="b-l")
        return d

    return diagram(["code", "manual"], make)
