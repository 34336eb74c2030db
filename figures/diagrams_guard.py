"""Diagrams of guarding and going on: the watchdog's decision, checkpoint and resume."""

from __future__ import annotations

from figures.diagram import figure as diagram
from figures.registry import Figure, figure
from figures.sketch import Sketch

RULES = {
    "fatal": ("Fatal line", "and no recovery after it"),
    "outage": ("Outage", "failed requests in a row of checks"),
    "silence": ("No progress", "past the deadline of its phase"),
    "reward": ("Reward error", "tasks raise, no rollout comes"),
    "numbers": ("Not finite", "loss or gradient, two steps"),
}


@figure("fig-1-2-decision")
def decision() -> Figure:
    """What a check of the watchdog leads to, and its exit codes."""

    def make(narrow: bool) -> Sketch:
        if narrow:
            d = Sketch(narrow, [1, 1], gap=(22, 10), rows_gap={0: 26, 1: 34, 4: 28, 5: 24})
            cells = [(0, 2), (1, 2), (0, 3), (1, 3), (0, 4)]
            at = {"ended": (0, 0), "lost": (1, 0), "check": (0, 1)}
            at |= {"verdict": (0, 5), "stop": (0, 6)}
            wide, tall = (2, 1), (1, 1)
        else:
            d = Sketch(narrow, [0.8, 1.25, 0.85, 0.95], gap=(40, 9), rows_gap={0: 4, 5: 12})
            cells = [(1, row) for row in range(1, 6)]
            at = {"ended": (3, 0), "lost": (3, 6), "check": (0, 0)}
            at |= {"verdict": (2, 2), "stop": (3, 2)}
            wide, tall = (1, 7), (1, 3)
        d.box("check", "lifecycle", "Check", "reads the new log lines", at=at["check"], span=wide)
        for (name, (title, note)), cell in zip(RULES.items(), cells, strict=True):
            d.box(name, "lifecycle", title, note, at=cell)
        d.group("rules", "Does one rule hold?", list(RULES))
        side = (2, 1) if narrow else tall
        text = "the most specific cause"
        d.box("verdict", "lifecycle", "Verdict", text, at=at["verdict"], span=side)
        d.box("stop", "failure", "Exit code 1", "the run is stopped", at=at["stop"], span=side)
        d.box("ended", "lifecycle", "Exit code 0", "the run ended", at=at["ended"])
        text = "sight lost, or no run in the log"
        d.box("lost", "failure", "Exit code 2 or 3", text, at=at["lost"])
        if narrow:
            d.arrow("check", "ended", route="t-b", at=(None, 0.5))
            d.arrow("check", "lost", route="t-b", at=(None, 0.5))
            d.arrow("check", "rules", route="b-t", at=(None, 0.6))
            d.arrow("rules", "check", "none", route="t-b", at=(None, 0.75))
        else:
            d.arrow("check", "ended", route="r-l", at=(None, 0.5))
            d.arrow("check", "lost", route="r-l", at=(None, 0.5))
            d.arrow("check", "rules", route="r-l", at=(None, 0.4))
            d.arrow("rules", "check", "none", route="l-r", at=(0.6, None))
        d.arrow("rules", "verdict", "yes")
        d.arrow("verdict", "stop")
        return d

    return diagram(["kit"], make)


@figure("fig-6-3-resume")
def resume() -> Figure:
    """What a save writes, and what a resume of the FSDP trainer reads."""

    def make(narrow: bool) -> Sketch:
        if narrow:
            d = Sketch(narrow, [1, 1], gap=(18, 26))
            at = {"trainer": (0, 0), "rollout": (1, 0), "weights": (0, 1), "prompts": (1, 1)}
            at |= {"tracker": (0, 2), "resume": (0, 3), "next": (0, 4), "over": (1, 4)}
        else:
            d = Sketch(narrow, [0.75, 1.2, 1, 0.95], gap=(36, 14))
            at = {"trainer": (0, 0), "rollout": (0, 2), "weights": (1, 0), "prompts": (1, 2)}
            at |= {"tracker": (1, 1), "resume": (2, 1), "next": (3, 2), "over": (3, 0)}
        side = (2, 1) if narrow else (1, 1)
        d.box("trainer", "trainer", "Trainer", at=at["trainer"])
        d.box("rollout", "data", "Rollout side", at=at["rollout"])
        text = "weights, optimizer, schedule, random state"
        d.box("weights", "durable", "iter_ folder", text, at=at["weights"])
        d.box(
            "tracker", "durable", "Tracker file", "names the last save", at=at["tracker"], span=side
        )
        d.box("prompts", "durable", "Prompt position", at=at["prompts"])
        d.group("save", "Folder of --save", ["weights", "tracker", "prompts"])
        text = "same folder in --load, new log file"
        d.box("resume", "lifecycle", "Resume", text, at=at["resume"], span=side)
        d.box("next", "trainer", "Next step", "where the save ended", at=at["next"])
        text = "weights not readable, one log line says so"
        d.box("over", "failure", "Step 0 again", text, at=at["over"])
        if narrow:
            d.arrow("trainer", "weights", at=(0.9, 0.9), route="b-t")
            d.arrow("rollout", "prompts")
            d.arrow("save", "resume", route="b-t")
            d.arrow("resume", "next")
            d.arrow("resume", "over")
        else:
            d.arrow("trainer", "weights")
            d.arrow("rollout", "prompts")
            d.arrow("save", "resume", route="r-l")
            d.arrow("resume", "next", route="b-l")
            d.arrow("resume", "over", route="t-l")
        return d

    return diagram(["code", "manual"], make)
