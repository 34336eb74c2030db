"""Diagrams of one step: who talks to whom, what the run mounts, where hooks and requests go."""

from __future__ import annotations

import itertools

from figures.diagram import figure as diagram
from figures.registry import Figure, figure
from figures.sequence import Sequence
from figures.sketch import Sketch


@figure("fig-1-1-one-step")
def one_step() -> Figure:
    """The messages of one colocated, synchronous step."""

    def make(narrow: bool) -> Sequence:
        d = Sequence(narrow)
        d.party("launcher", "outside", "Launcher")
        d.party("ray", "outside", "Ray")
        d.party("manager", "data", "Rollout manager")
        d.party("reward", "data", "Reward")
        d.party("router", "engine", "Router")
        d.party("engine", "engine", "Engine")
        d.party("trainer", "trainer", "Trainer")
        d.phase("start", "Start, once")
        d.message("launcher", "ray", "submits the job")
        d.message("ray", "manager", "starts the processes")
        d.phase("rollout", "Rollout")
        d.message("manager", "router", "prompts")
        d.message("router", "engine", "passes them on")
        d.message("engine", "manager", "tokens and log-probabilities, through the router")
        d.message("manager", "reward", "answer")
        d.message("reward", "manager", "score")
        d.phase("training", "Training")
        d.message("manager", "trainer", "samples with their rewards")
        d.act("trainer", "log-probs, loss, update")
        d.phase("update", "Weight update")
        d.message("trainer", "engine", "new weights")
        return d

    return diagram(["code", "manual"], make)


@figure("fig-1-1-lab-folder")
def lab_folder() -> Figure:
    """The lab folder, the container that mounts it, and the two guards outside."""

    def make(narrow: bool) -> Sketch:
        if narrow:
            d = Sketch(narrow, [1, 1], gap=(56, 14), rows_gap={1: 34})
        else:
            d = Sketch(narrow, [1, 0.85, 1], gap=(78, 14))
        d.box("watch", "lifecycle", "Watchdog", "reads the log, asks if steps advance", at=(0, 0))
        d.box("heat", "lifecycle", "Heat guard", "reads the GPU temperature", at=(0, 1))
        d.box("engine", "engine", "Engine", at=(1, 0))
        d.box("trainer", "trainer", "Trainer", at=(1, 1))
        lab, cache = ((0, 2), (1, 2)) if narrow else ((2, 0), (2, 1))
        d.box("lab", "durable", "~/miles-lab", "launcher, model, data, logs", at=lab)
        d.box("cache", "durable", "~/.cache/\nhuggingface", "downloads", at=cache)
        d.group("container", "Container of the run", ["engine", "trainer"])
        d.arrow("watch", "container", "stops")
        d.arrow("heat", "container", "pauses and resumes")
        way = "t-b" if narrow else "l-r"
        d.arrow("lab", "container", "mounted as /root/lab", route=way)
        d.arrow("cache", "container", "mounted", route=way)
        return d

    return diagram(["kit", "manual"], make)


@figure("fig-8-5-hooks")
def hooks() -> Figure:
    """The stages of one step with the flags that replace their code."""

    def make(narrow: bool) -> Sketch:
        order = ["prompts", "generate", "reward", "filter", "batch", "advantages", "loss", "eval"]
        if narrow:
            d = Sketch(narrow, [1], gap=(0, 15), rows_gap={0: 20, 4: 20})
            places = {name: (0, row) for row, name in enumerate(order)}
        else:
            d = Sketch(narrow, [1, 1, 1], gap=(20, 24))
            cells = [(0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (1, 2), (2, 2), (0, 2)]
            places = dict(zip(order, cells, strict=True))
        d.box("prompts", "data", "Prompts", "--data-source-path", at=places["prompts"])
        text = "--custom-generate-function-path"
        d.box("generate", "engine", "One sample", text, at=places["generate"])
        d.box("reward", "data", "Reward", "--custom-rm-path", at=places["reward"])
        text = "--dynamic-sampling-filter-path"
        d.box("filter", "data", "Each finished group", text, at=places["filter"])
        d.box("batch", "data", "Batch complete", "--rollout-sample-filter-path", at=places["batch"])
        text = "--custom-reward-post-process-path"
        d.box("advantages", "data", "Advantages", text, at=places["advantages"])
        text = "--custom-loss-function-path --custom-tis-function-path"
        d.box("loss", "trainer", "Loss", text, at=places["loss"])
        d.box("eval", "lifecycle", "Evaluation", "--eval-function-path", at=places["eval"])
        whole = ["generate", "reward", "filter", "batch"]
        d.group("whole", "--rollout-function-path replaces all of this", whole)
        for start, end in itertools.pairwise(order[:-1]):
            at = (0.95, 0.95) if narrow and start == "prompts" else (None, None)
            d.arrow(start, end, route="b-t" if narrow else "", at=at)
        d.arrow("loss", "eval", "when due", route="" if narrow else "b-b", out=14, side="b")
        return d

    return diagram(["code"], make)


@figure("fig-8-6-request")
def request() -> Figure:
    """One request from the rollout through the router to an engine and back."""

    def make(narrow: bool) -> Sketch:
        if narrow:
            d = Sketch(narrow, [1, 1], gap=(62, 40))
            at = {"client": (0, 0), "router": (0, 1), "none": (1, 1), "one": (0, 2), "two": (1, 2)}
        else:
            d = Sketch(narrow, [1, 1, 1], gap=(84, 34))
            at = {"client": (0, 0), "router": (1, 0), "one": (2, 0), "none": (0, 1), "two": (2, 1)}
        text = "sends one sample, waits for its answer"
        d.box("client", "data", "Rollout", text, at=at["client"])
        text = "picks one, or keeps a session on one"
        d.box("router", "engine", "Router", text, at=at["router"])
        d.box("one", "engine", "Engine", at=at["one"])
        d.box("two", "engine", "Other engine", at=at["two"])
        d.box("none", "failure", "Status 503", "no engine can take it", at=at["none"])
        back = "tokens and log-probs"
        if narrow:
            for one, other, there, here in (
                ("client", "router", "request", back),
                ("router", "one", "request", "answer"),
            ):
                d.arrow(one, other, there, route="b-t", at=(0.5, 0.5), side="l", room=40)
                d.arrow(other, one, here, route="t-b", at=(0.62, 0.62), room=60)
            d.arrow("router", "two", route="b-t", at=(0.97, 0.5), bend=0.2, dashed=True)
            d.arrow("router", "none", "none is free")
            d.arrow("none", "client", "try again", route="t-r", on=0)
        else:
            for one, other, there, here in (
                ("client", "router", "request", back),
                ("router", "one", "request", "answer"),
            ):
                d.arrow(one, other, there, route="r-l", at=(0.3, 0.3))
                d.arrow(other, one, here, route="l-r", at=(0.7, 0.7), side="b")
            d.arrow("router", "two", route="b-l", at=(0.6, 0.5), dashed=True)
            d.arrow("router", "none", "none is free", route="b-r", at=(0.4, 0.5), on=1)
            d.arrow("none", "client", "try again")
        return d

    return diagram(["code", "manual"], make)
