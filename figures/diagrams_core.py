"""Diagrams of the second manual: the parts of the trainer, and the order of what it does."""

from __future__ import annotations

from figures.diagram import figure as diagram
from figures.registry import Figure, figure
from figures.sequence import Sequence
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


@figure("fig-core-4-levels")
def levels() -> Figure:
    """Three cuts from a collection to a forward, none of which goes through a sample."""

    def make(narrow: bool) -> Sketch:
        if narrow:
            d = Sketch(narrow, [1, 1], gap=(14, 24))
            at = {"collection": (0, 0, 2), "first": (0, 1, 1), "second": (1, 1, 1)}
            at |= {"rank0": (0, 2, 1), "rank1": (1, 2, 1), "packs": (0, 3, 1), "filler": (1, 3, 1)}
        else:
            d = Sketch(narrow, [1, 1, 1, 1], gap=(16, 24))
            at = {"collection": (1, 0, 2), "first": (0, 1, 2), "second": (2, 1, 2)}
            at |= {"rank0": (0, 2, 1), "rank1": (1, 2, 1), "packs": (0, 3, 1), "filler": (1, 3, 1)}
        boxes = (
            ("collection", "data", "Collection", "the samples of one rollout"),
            ("first", "lifecycle", "Optimizer step", "first partition"),
            ("second", "lifecycle", "Optimizer step", "second partition"),
            ("rank0", "trainer", "Rank 0", "as many samples as the other"),
            ("rank1", "trainer", "Rank 1", "as many samples as the other"),
            ("packs", "trainer", "Two packs", "one forward each"),
            ("filler", "trainer", "Pack and filler", "the same number of forwards"),
        )
        for name, role, title, note in boxes:
            x, y, wide = at[name]
            d.box(name, role, title, note, at=(x, y), span=(wide, 1))
        d.arrow("collection", "first", route="b-t")
        d.arrow("collection", "second", route="b-t")
        d.arrow("first", "rank0", route="b-t")
        if narrow:
            d.arrow("first", "rank1", route="b-t", at=(0.8, None))
        else:
            d.arrow("first", "rank1", route="b-t")
        d.arrow("rank0", "packs")
        d.arrow("rank1", "filler")
        return d

    return diagram(["core"], make)


@figure("fig-core-9-order")
def checkpoint_order() -> Figure:
    """A checkpoint becomes one by a rename; a restore reads in the other order."""

    def make(narrow: bool) -> Sequence:
        d = Sequence(narrow)
        d.party("driver", "lifecycle", "Driver")
        d.party("core", "trainer", "OLMo-core")
        d.party("disk", "durable", "Run folder")
        d.phase("save", "Save")
        d.message("driver", "core", "write into a hidden folder")
        d.message("core", "disk", "weights, optimizer, state of each rank")
        d.message("driver", "disk", "manifest: sizes and hashes of all files, cursor, lock")
        d.message("driver", "disk", "rename: now it is a checkpoint")
        d.phase("restore", "Restore")
        d.message("disk", "driver", "manifest first: shape, cursor, lock, files")
        d.act("driver", "refuse, or take the place of the cursor")
        d.message("driver", "core", "only now: load")
        d.message("core", "driver", "optimizer step and next learning rate must agree")
        return d

    return diagram(["core", "core-contract"], make)


@figure("fig-core-10-checks")
def publication_checks() -> Figure:
    """What each of the three publication checks compares."""

    def make(narrow: bool) -> Sequence:
        d = Sequence(narrow)
        d.party("trainer", "trainer", "Trainer")
        d.party("engine", "engine", "Engine")
        d.party("check", "data", "Check")
        d.phase("first", "HF comparison: first publication of a fresh run")
        d.message("engine", "check", "snapshot of what it loaded from the HF folder")
        d.act("engine", "weights reset")
        d.message("trainer", "engine", "publication")
        d.message("engine", "check", "equal to the snapshot?")
        d.phase("again", "Round trip: resumed, and every so many rollouts")
        d.message("engine", "check", "snapshot of what serves")
        d.act("engine", "weights reset")
        d.message("trainer", "engine", "the same version once more")
        d.message("engine", "check", "equal to the snapshot?")
        d.phase("logp", "Log-probability check")
        d.message("trainer", "check", "its score of some responses")
        d.message("engine", "check", "its score of the same")
        return d

    return diagram(["core", "core-contract"], make)


@figure("fig-core-11-clock")
def clock() -> Figure:
    """One collection and the policy clock: what is checked before each move."""

    def make(narrow: bool) -> Sequence:
        d = Sequence(narrow)
        d.party("producer", "engine", "Producer")
        d.party("clock", "lifecycle", "Clock")
        d.party("ranks", "trainer", "Ranks")
        d.message("clock", "producer", "is the serving version new enough to begin?")
        d.act("producer", "each token keeps its version")
        d.message("producer", "clock", "collection is taken: age of each step checked again")
        d.phase("step", "Each optimizer step")
        d.message("ranks", "clock", "one vote each: step, learning rate, success")
        d.act("clock", "version moves by one")
        d.phase("publish", "Publication")
        d.message("ranks", "producer", "last bucket has landed")
        d.message("producer", "clock", "this version serves now")
        return d

    return diagram(["core", "core-contract"], make)
