"""Core's balancing loss beside other ways to compute it: masks, ranks, other code bases.

Figures of chapter 7 of the second manual, from recorded findings of a processor.
"""

from __future__ import annotations

from typing import Any

from figures import corelab
from figures.corelab import value
from figures.coreparts import bars, table
from figures.registry import Figure, figure
from figures.style import Style


@figure("fig-core-7-masked")
def masked_prompts() -> Figure:
    """Core's balancing loss, by the share of labels that the mask keeps."""
    name = "masked_prompts"
    factors = [
        value(key, name, "factors", 1, unit="" if key == "all" else "times", at=n)
        for n, key in enumerate(("all", "half", "quarter", "eighth"))
    ]
    own = [
        value("own_all", name, "own_all", 3),
        value("own_few", name, "own_few", 3),
    ]
    labels = ("all of them", "half of them", "a quarter", "an eighth")
    rows = [
        {"labels kept": label, "factor": found.low}
        for label, found in zip(labels, factors, strict=True)
    ]

    def draw(style: Style) -> Any:
        return bars(style, labels, factors, ["trainer", *["failure"] * 3], log=False)

    return Figure(
        shape="Four bars: each is twice as long as the one above it.",
        values=[*factors, *own],
        rows=rows,
        draw=draw,
    )


@figure("fig-core-7-ranks")
def router_ranks() -> Figure:
    """Balancing loss of six documents on one process and on two ranks, for three ways to divide."""
    name = "router_ranks"
    combinations = corelab.read(name, "every")
    ways = {
        "alone": "One process, one pack",
        "ranks": "Two ranks, counts of the step",
        "naive": "Two ranks, own counts",
    }
    values, rows = [], []
    for grouping in ("sequence", "pack"):
        at = combinations.index([grouping, "token"])
        row = {"grouping": f"`{grouping}`, over tokens"}
        for way in ways:
            found = value(f"{way}_{grouping}", name, way, 4, at=at)
            values.append(found)
            row[way] = found.text
        rows.append(row)
    values.append(value("gap", name, "gap", 1, exponent=True))
    for key in ("pack_gap", "naive_gap"):
        values.append(value(key, name, key, 1, unit="percent", scale=100))
    return Figure(
        shape="A table with one row for each grouping and one column for each way to divide.",
        values=values,
        rows=rows,
        columns={"grouping": "Grouping", **ways},
    )


@figure("fig-core-7-others")
def others() -> Figure:
    """One router, the balancing loss of three code bases."""
    name = "router_losses"
    return table(
        [
            ("Core, first layer", value("core", name, "core", 4, at=0)),
            ("transformers, the same layer", value("hf", name, "hf", 4, at=0)),
            (
                "transformers over Core",
                value("factor", name, "factor", 1, unit="times", at=0),
            ),
            ("Core, both layers added", value("core_sum", name, "core_sum", 4)),
            (
                "transformers, both layers in one histogram",
                value("hf_pooled", name, "hf_pooled", 4),
            ),
            (
                "Megatron against Core, largest difference",
                value("megatron", name, "megatron_gap", 1, exponent=True),
            ),
            ("z loss, Megatron against Core", value("z", name, "z_gap", 0)),
        ]
    )
