"""Checkpoints, resuming, names of weights and checks of a transfer.

Figures of chapters 9 and 10 of the second manual, from recorded findings of a processor.
"""

from __future__ import annotations

from typing import Any

from figures import corelab
from figures.corelab import value
from figures.coreparts import table
from figures.registry import Figure, figure
from figures.style import Style


@figure("fig-core-9-ranks")
def checkpoint_ranks() -> Figure:
    """What Core and the manifest say when a checkpoint of two ranks is loaded by one."""
    name = "checkpoint_ranks"
    saved = value("saved", name, "saved_ranks", 0, kind="count", noun="ranks")
    answers = (
        ("Core, both files there", "complained", "raises", "loads it without a word"),
        ("Core, the file of the second rank missing", "complained_of_half", "raises",
         "loads it without a word"),
        ("the manifest", "refused", "refuses before anything is loaded", "lets it pass"),
    )  # fmt: skip
    rows = [
        {"who": who, "ranks": saved.text, "does": yes if corelab.read(name, key) else no}
        for who, key, yes, no in answers
    ]
    return Figure(
        shape="A table of what each of three does.",
        values=[saved],
        rows=rows,
        columns={"who": "Who is asked", "ranks": "Saved by ranks", "does": "What it does"},
    )


@figure("fig-core-9-resume")
def resume() -> Figure:
    """A resumed run against an unbroken one, with all state and with weights alone."""
    name = "resume"
    return table(
        [
            ("resumed from a checkpoint", value("resumed", name, "resumed", 0)),
            (
                "weights and step number alone",
                value("without", name, "without", 1, exponent=True),
            ),
            (
                "what the unbroken run moved in these two steps",
                value("moved", name, "moved", 1, exponent=True),
            ),
        ],
        what="Largest difference of a weight",
    )


@figure("fig-core-9-names")
def norm_mapping() -> Figure:
    """Core's conversion of HF weights with and without the model type."""
    name = "norm_mapping"
    return table(
        [
            (
                "with the model type, largest difference of a logit",
                value("named", name, "named", 0),
            ),
            (
                "without it, weights that got no value",
                value("unloaded", name, "unloaded", 0, kind="count", noun="norms|weights"),
            ),
            ("without it, largest difference of a logit", value("off", name, "unnamed", 1)),
            ("largest logit of the model", value("largest", name, "largest", 1)),
        ]
    )


@figure("fig-core-10-matrix")
def detection() -> Figure:
    """Every fault of a transfer against every check."""
    name = "detection_matrix"
    faults, checks, caught = (corelab.read(name, key) for key in ("faults", "checks", "caught"))
    places = {fault: n for n, fault in enumerate(faults)}
    swapped = value(
        "swapped", name, "gaps", 1, unit="nats", exponent=True,
        at=places["swapped mapping, every transfer"] - 1,
    )  # fmt: skip
    stale = value(
        "stale", name, "gaps", 3, unit="nats", at=places["stale weights, every transfer"] - 1
    )
    words = {True: "caught", False: "missed"}
    rows = []
    for fault, found in zip(faults, caught, strict=True):
        answer = {True: "alarm", False: "passes"} if fault == "no fault" else words
        rows.append({"fault": fault, **{c: answer[x] for c, x in zip(checks, found, strict=True)}})

    def draw(style: Style) -> Any:
        drawing, axes = style.axes(height=0.33 * len(faults) + 0.7, left=False, grid=None)
        for y, row in enumerate(reversed(rows)):
            for x, check in enumerate(checks):
                role = "data" if row[check] in ("caught", "passes") else "failure"
                axes.text(
                    x, y, row[check], ha="center", va="center", color=style.colour(role),
fontweight="bold" if role == "failure" and not style.narrow else "normal",
                )  # fmt: skip
        axes.set_xlim(-0.6, len(checks) - 0.4)
        axes.set_ylim(-0.6, len(faults) - 0.4)
        heads = ["load", "HF", "round\ntrip", "log-\nprob."]
        axes.set_xticks(range(len(checks)), heads if style.narrow else checks)
        texts = [f.replace(", ", ",\n") if style.narrow else f for f in reversed(faults)]
        axes.set_yticks(range(len(faults)), texts)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.spines["bottom"].set_visible(False)
        return drawing

    return Figure(
        shape="A grid of words: one row a fault, one column a check.",
        values=[swapped, stale],
        rows=rows,
        draw=draw,
    )
