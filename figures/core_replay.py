"""Routing replay of tiny mixtures of experts, and their gradients on two ranks.

Figures of chapter 6 of the second manual, from recorded findings of a processor.
"""

from __future__ import annotations

from typing import Any

from figures import corelab
from figures.corelab import value
from figures.coreparts import bars, table
from figures.evidence import EvidenceError
from figures.registry import Figure, figure
from figures.style import Style


@figure("fig-core-6-cache")
def recompute_cache() -> Figure:
    """Why Core's recompute cache is no replay: ids and weights of different choices."""
    name = "recompute_cache"
    return table(
        [
            (
                "tokens whose experts live routing would have changed",
                value("moved", name, "moved", 0, unit="percent", scale=100),
            ),
            (
                "of those, tokens that ran with weights of other experts",
                value("wrong", name, "moved_wrong", 0, unit="percent", scale=100),
            ),
            ("largest difference of an expert weight", value("largest", name, "largest", 2)),
            ("the same in the replay of this trainer", value("own", name, "own_gap", 0)),
        ]
    )


@figure("fig-core-6-import")
def moe_import() -> Figure:
    """A mixture of experts between transformers and Core, and its gradient packed and alone."""
    name = "moe_import"
    return table(
        [
            (
                "transformers against Core, largest difference of a log-probability",
                value("gap", name, "gap", 1, unit="nats", exponent=True),
            ),
            (
                "gradient packed against one by one, sequence grouping, relative",
                value("sequence", name, "sequence_grouping", 1, exponent=True),
            ),
            (
                "the same with pack grouping",
                value("pack", name, "pack_grouping", 0, unit="percent", scale=100),
            ),
            ("recomputation on against off", value("recompute", name, "recompute", 0)),
        ]
    )


@figure("fig-core-6-experts")
def expert_gradients() -> Figure:
    """Raw gradients under two expert-parallel ranks, against one, before and after intake."""
    name = "expert_gradients"
    return table(
        [
            (
                "gradient of an expert, two ranks over one",
                value("factor", name, "factor", 1, unit="times"),
            ),
            (
                "all other gradients, relative difference",
                value("others", name, "others", 1, exponent=True),
            ),
            (
                "global gradient norm after intake, relative difference",
                value("norm", name, "norm_gap", 0),
            ),
            (
                "all weights after the step, relative difference",
                value("weights", name, "weights", 1, exponent=True),
            ),
        ]
    )


@figure("fig-core-6-gap")
def replay_gap() -> Figure:
    """Mean gap to the engine that sampled, of each seed, with own routing and with replay."""
    seeds = range(len(corelab.read("replay_depth", "live_seeds")))
    if corelab.read("replay_depth", "smaller") is not True:
        raise EvidenceError("replay_depth.json: replay is not the smaller one in every seed")
    cosines = [value(f"cosine_{n}", "replay_depth", "router_cosine", 2, at=n) for n in (0, 2)]
    by_seed = {
        way: [
            value(f"{way}_{n}", "replay_depth", f"{way}_seeds", 4, unit="nats", at=n) for n in seeds
        ]
        for way in ("live", "replay")
    }
    rows = [
        {
            "seed": n,
            "own routing": by_seed["live"][n].low,
            "recorded experts": by_seed["replay"][n].low,
        }
        for n in seeds
    ]

    def draw(style: Style) -> Any:
        labels = [f"seed {n}, {way}" for n in seeds for way in ("own routing", "replay")]
        shown = [by_seed[way][n] for n in seeds for way in ("live", "replay")]
        return bars(style, labels, shown, ["outside", "trainer"] * len(seeds), log=False)

    return Figure(
        shape="Pairs of bars, one pair a seed; the bar of replay is the shorter one of each.",
        values=[*by_seed["live"], *by_seed["replay"], *cosines],
        rows=rows,
        draw=draw,
    )


@figure("fig-core-6-depth")
def replay_depth() -> Figure:
    """Share of tokens with another expert set by layer, and the mean gap of both ways."""
    name = "replay_depth"
    layers = len(corelab.read(name, "layers"))
    shares = [
        value(f"layer_{n}", name, "layers", 1, unit="percent", scale=100, at=n)
        for n in range(layers)
    ]
    gaps = [
        value("live", name, "live", 4, unit="nats"),
        value("replay", name, "replay", 4, unit="nats"),
    ]
    rows = [
        {"layer": n, "percent_of_tokens": found.low, "mean_gap_live": gaps[0].low}
        for n, found in enumerate(shares)
    ]

    def draw(style: Style) -> Any:
        labels = [f"layer {n}" for n in range(layers)]
        return bars(style, labels, shares, ["engine"] * layers, log=False)

    return Figure(
        shape="Bars that grow from the first layer to the last.",
        values=[*shares, *gaps],
        rows=rows,
        draw=draw,
    )


@figure("fig-core-6-stale")
def replay_stale() -> Figure:
    """The gap to an engine with the same weights, with live routing and with older recorded ids."""
    name = "replay_depth"
    steps = [int(item) for item in corelab.read(name, "stale")]
    live = [
        value(f"live_{s}", name, "stale_live", 3, unit="nats", at=n) for n, s in enumerate(steps)
    ]
    old = [
        value(f"replay_{s}", name, "stale_replay", 3, unit="nats", at=n)
        for n, s in enumerate(steps)
    ]
    moved = [
        value(f"moved_{s}", name, "stale_moved", 0, unit="percent", scale=100, at=n)
        for n, s in enumerate(steps)
    ]
    rows = [
        {"steps": step, "live": a.text, "replay": b.text, "moved": c.text}
        for step, a, b, c in zip(steps, live, old, moved, strict=True)
    ]
    return Figure(
        shape="A table with one row for each age of the recorded ids.",
        values=[*live, *old, *moved],
        rows=rows,
        columns={
            "steps": "Steps since the ids were recorded",
            "live": "Gap, live routing",
            "replay": "Gap, recorded ids",
            "moved": "Tokens that moved, last layer",
        },
    )
