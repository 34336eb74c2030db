"""Diagrams of the second manual: denominators, replay through packs, router losses, the head."""

from __future__ import annotations

from figures.diagram import figure as diagram
from figures.registry import Figure, figure
from figures.sequence import Sequence
from figures.sketch import Sketch


@figure("fig-core-5-where")
def denominators() -> Figure:
    """Which sum is divided by what, and where the ranks come in."""

    def make(narrow: bool) -> Sketch:
        if narrow:
            d = Sketch(narrow, [1, 1], gap=(22, 22))
            at = {"histogram": (0, 0, 1), "router": (0, 1, 1), "policy": (1, 1, 1)}
            at |= {"documents": (0, 2, 1), "active": (1, 2, 1), "local": (0, 3, 2)}
            at |= {"mean": (0, 4, 1), "record": (1, 4, 1)}
        else:
            d = Sketch(narrow, [1, 1, 1], gap=(34, 22))
            at = {"histogram": (0, 0, 1), "router": (1, 0, 1), "policy": (2, 0, 1)}
            at |= {"documents": (1, 1, 1), "active": (2, 1, 1), "local": (1, 2, 2)}
            at |= {"record": (0, 2, 1), "mean": (1, 3, 2)}
        boxes = (
            ("histogram", "trainer", "Expert histogram", "over its own tokens: a pack, a document"),
            ("router", "trainer", "Router losses", "of all model tokens"),
            ("policy", "trainer", "Policy loss", "of active response tokens"),
            ("documents", "data", "Model tokens or documents", "of the step, all ranks"),
            ("active", "data", "Active tokens or responses", "of the step, all ranks"),
            ("local", "trainer", "Local objective", "a rank's sum, times the ranks, over a count"),
            ("mean", "lifecycle", "Mean over ranks", "as gradients are averaged"),
            ("record", "durable", "Contract record", "counts and denominators"),
        )
        for name, role, title, note in boxes:
            x, y, wide = at[name]
            d.box(name, role, title, note, at=(x, y), span=(wide, 1))
        d.arrow("histogram", "router")
        d.arrow("router", "documents")
        d.arrow("policy", "active")
        d.arrow("documents", "local", route="b-t", at=(0.5, None))
        d.arrow("active", "local", route="b-t", at=(0.5, None))
        d.arrow("local", "mean", route="b-t", at=(None, 0.5))
        d.arrow("local", "record", route="b-t" if narrow else "l-r", at=(None, 0.5))
        return d

    return diagram(["core", "core-contract"], make)


@figure("fig-core-6-path")
def replay_path() -> Figure:
    """An expert choice from the engine into the backward pass."""

    def make(narrow: bool) -> Sequence:
        d = Sequence(narrow)
        d.party("engine", "engine", "Engine")
        d.party("sample", "data", "Sample")
        d.party("pack", "trainer", "Pack")
        d.party("router", "trainer", "Routers")
        d.message("engine", "sample", "expert ids of each token that was forwarded")
        d.act("sample", "the last token was not: it has no ids")
        d.message("sample", "pack", "ids go where their sample goes")
        d.act("pack", "shape, layers, range and doubles checked")
        d.act("pack", "synthetic tail after each document")
        d.phase("forward", "Forward")
        d.message("pack", "router", "each layer gets its ids")
        d.act("router", "weights of these ids from the scores of this forward")
        d.phase("backward", "Backward, with the same ids still there")
        d.act("router", "recomputes with them")
        d.message("router", "pack", "gradient through the weights")
        return d

    return diagram(["core", "core-contract"], make)


@figure("fig-core-7-order")
def router_losses() -> Figure:
    """From the router's logits to the objective: grouping, averaging, coefficient."""

    def make(narrow: bool) -> Sketch:
        d = Sketch(narrow, [1, 1, 1], gap=(20 if narrow else 40, 24))
        d.box("logits", "trainer", "Logits", "of this forward", at=(0, 0))
        d.box("scores", "trainer", "Scores", "gradients flow here", at=(1, 0))
        d.box("counts", "data", "Counts", "what ran, or was chosen", at=(2, 0))
        d.box("square", "trainer", "z penalty", "of each document", at=(0, 1))
        d.box("penalty", "trainer", "Balancing penalty", "of each document", at=(1, 1))
        d.box("group", "lifecycle", "Grouping", "pack or document", at=(2, 1))
        d.box("own", "lifecycle", "Averaging", "by a field of its own", at=(0, 2))
        d.box("average", "lifecycle", "Averaging", "token or response", at=(1, 2))
        d.box(
            "objective", "trainer", "Objective", "each with its coefficient", at=(0, 3), span=(2, 1)
        )
        d.box("policy", "trainer", "Policy loss", "not touched", at=(2, 3))
        d.arrow("logits", "scores")
        d.arrow("logits", "square")
        d.arrow("scores", "penalty")
        d.arrow("counts", "group")
        d.arrow("group", "penalty")
        d.arrow("square", "own")
        d.arrow("penalty", "average")
        d.arrow("own", "objective", route="b-t", at=(0.5, None))
        d.arrow("average", "objective", route="b-t", at=(0.5, None))
        d.arrow("policy", "objective")
        return d

    return diagram(["core", "core-contract"], make)


@figure("fig-core-8-path")
def head() -> Figure:
    """Where an ordinary head and the FP32-output head round, forward and backward."""

    def make(narrow: bool) -> Sketch:
        if narrow:
            d = Sketch(narrow, [1, 1], gap=(22, 22))
            at = {"operands": (0, 0), "sum": (1, 0), "kept": (0, 1), "rounded": (1, 1)}
            at |= {"softmax": (0, 2), "gradient": (1, 2), "narrowed": (1, 3), "products": (0, 3)}
        else:
            d = Sketch(narrow, [1, 1, 1, 1], gap=(26, 24))
            at = {"operands": (0, 0), "sum": (1, 0), "kept": (2, 0), "rounded": (2, 1)}
            at |= {"softmax": (3, 0), "gradient": (3, 1), "narrowed": (3, 2), "products": (2, 2)}
        boxes = (
            ("operands", "trainer", "Operands", "hidden states and weights in BF16"),
            ("sum", "trainer", "Products", "added up in FP32"),
            ("kept", "data", "FP32-output head", "the sum stays FP32"),
            ("rounded", "lifecycle", "Ordinary head", "each logit is rounded to BF16"),
            ("softmax", "trainer", "Log-softmax", "over the vocabulary, in FP32"),
            ("gradient", "trainer", "Gradient", "of the logits"),
            ("narrowed", "lifecycle", "Rounded to BF16", "with either head"),
            ("products", "trainer", "Two BF16 products", "gradients of states and weights"),
        )
        for name, role, title, note in boxes:
            d.box(name, role, title, note, at=at[name])
        d.arrow("operands", "sum")
        if narrow:
            d.arrow("sum", "rounded")
            d.arrow("sum", "kept", route="b-t", at=(0.25, 0.5))
            d.arrow("kept", "softmax")
            d.arrow("rounded", "softmax", route="b-t", at=(0.25, 0.8), bend=0.5)
            d.arrow("softmax", "gradient")
        else:
            d.arrow("sum", "kept")
            d.arrow("sum", "rounded", route="b-l", at=(0.5, 0.5))
            d.arrow("kept", "softmax")
            d.arrow("rounded", "softmax", route="r-l", at=(0.3, 0.8), bend=0.6)
            d.arrow("softmax", "gradient")
        d.arrow("gradient", "narrowed")
        d.arrow("narrowed", "products")
        return d

    return diagram(["core", "core-contract"], make)
