"""Figures of recorded runs of the trainer's examples on a processor."""

from __future__ import annotations

import statistics
from typing import Any

from figures import corelab
from figures.evidence import CORE_LAB
from figures.registry import Figure, figure
from figures.sources import measured

MECHANICS = f"{CORE_LAB}/mechanics"
ASYNC = f"{CORE_LAB}/async"
ENDS = 5  # evaluations whose mean the program prints


@figure("fig-core-2-reward")
def reward() -> Figure:
    """Held-out reward after each collection of the recorded example, across its restart."""
    logs = ("run.log", "run-2.log")
    rewards = corelab.logged("mechanics", "eval/arithmetic", *logs)
    steps = corelab.column("mechanics", "step")
    first, last = (statistics.fmean(part) for part in (rewards[:ENDS], rewards[-ENDS:]))

    def value(name: str, number: float, digits: int, what: str, noun: str = "") -> Any:
        kind = "count" if noun else ""
        runs = [MECHANICS]
        return measured(name, number, "", digits, what=what, runs=runs, kind=kind, noun=noun)

    rows = [{"collections": n, "reward": number} for n, number in enumerate(rewards)]

    def draw(style: Any) -> Any:
        drawing, axes = style.axes(height=2.4)
        axes.plot(range(len(rewards)), rewards, color=style.colour("data"))
        axes.axvline(40, color=style.colour("lifecycle"), linestyle="--", linewidth=1)
        axes.set_xlabel("collections trained on")
        axes.set_ylabel("held-out reward")
        axes.set_ylim(0, 1)
        return drawing

    return Figure(
        shape="A line that rises from left to right; a dashed line marks the restart.",
        values=[
            value("first", first, 3, "eval/arithmetic:first5"),
            value("last", last, 3, "eval/arithmetic:last5"),
            value("collections", len(steps), 0, "collections", "collections"),
        ],
        rows=rows,
        draw=draw,
    )


@figure("fig-core-11-lag")
def lag() -> Figure:
    """Trained less consumed version of each step of the recorded async run, and its distance."""
    trained = corelab.column("async", "versions.trained")
    consumed = corelab.column("async", "versions.consumed")
    collections = corelab.column("async", "collection")
    error = corelab.column("async", "probability_error.all.mean")
    ages = [a - b for a, b in zip(trained, consumed, strict=True)]
    later = [e for e, c in zip(error, collections, strict=True) if c > 0]
    allowed = corelab.column("async", "versions.allowed_lag")[0]
    rows = [
        {"step": n, "age": age, "collection": c, "mean_error_nats": e}
        for n, (age, c, e) in enumerate(zip(ages, collections, error, strict=True), start=1)
    ]

    def draw(style: Any) -> Any:
        drawing, axes = style.axes(height=2.2)
        axes.bar(range(1, len(ages) + 1), ages, **style.bar("trainer"))
        axes.axhline(allowed, color=style.colour("failure"), linestyle="--", linewidth=1)
        axes.set_xlabel("optimizer step")
        axes.set_ylabel("age in steps")
        axes.set_yticks(range(allowed + 1))
        return drawing

    runs = [ASYNC]
    return Figure(
        shape="Bars that alternate between two heights, below or at a dashed line.",
        values=[
            measured("age", (min(ages), max(ages)), "", 0, what="age", runs=runs),
            measured("steps", len(ages), "steps", 0, what="steps", runs=runs, kind="count"),
            measured("fresh", error[0], "nats", 1, what="error:first", runs=runs, exponent=True),
            measured("stale", (min(later), max(later)), "nats", 3, what="error:later", runs=runs),
        ],
        rows=rows,
        draw=draw,
    )


@figure("fig-core-12-ranks")
def ranks() -> Figure:
    """Local policy objectives of the first step of both ranks, and the global one."""
    local = [corelab.column("two-ranks", "policy.local", rank=n)[0] for n in (0, 1)]
    both = [corelab.column("two-ranks", "policy.global", rank=n)[0] for n in (0, 1)]
    if both[0] != both[1]:
        raise ValueError("two-ranks: the global objective differs between the ranks")
    runs = [f"{CORE_LAB}/two-ranks"]
    values = [
        measured("first", local[0], "", 4, what="policy.local:rank0:step1", runs=runs),
        measured("second", local[1], "", 4, what="policy.local:rank1:step1", runs=runs),
        measured("mean", both[0], "", 4, what="policy.global:step1", runs=runs),
    ]
    labels = ("rank 0, local", "rank 1, local", "both ranks, global")
    rows = [
        {"what": label, "value": found.text} for label, found in zip(labels, values, strict=True)
    ]
    return Figure(
        shape="A table of three objectives.",
        values=values,
        rows=rows,
        columns={"what": "Objective of the first step", "value": "Recorded"},
    )


@figure("fig-core-6-run")
def experts() -> Figure:
    """Load of the busiest expert at each step of the recorded mixture, and its replay."""
    loads = [max(layers) for layers in corelab.column("moe", "router.imbalance")]
    moved = [max(layers) for layers in corelab.column("moe", "router.disagreement")]
    rewards = corelab.logged("moe", "eval/arithmetic")
    runs = [f"{CORE_LAB}/moe"]
    rows = [
        {"step": n, "busiest_over_mean": load, "share_that_live_routing_moves": share}
        for n, (load, share) in enumerate(zip(loads, moved, strict=True), start=1)
    ]

    def draw(style: Any) -> Any:
        drawing, axes = style.axes(height=2.2)
        axes.plot(range(1, len(loads) + 1), loads, color=style.colour("trainer"))
        axes.axhline(1, color=style.colour("outside"), linestyle="--", linewidth=1)
        axes.set_xlabel("optimizer step")
        axes.set_ylabel("busiest expert over mean")
        axes.set_ylim(0)
        return drawing

    def value(name: str, number: float, digits: int, what: str, unit: str = "") -> Any:
        return measured(name, number, unit, digits, what=what, runs=runs)

    return Figure(
        shape="A line that stays above the dashed line of an even load.",
        values=[
            measured("steps", len(loads), "steps", 0, what="steps", runs=runs, kind="count"),
            value("first", loads[0], 2, "router.imbalance:first", "times"),
            value("last", loads[-1], 2, "router.imbalance:last", "times"),
            value("moved", max(moved), 0, "router.disagreement:max"),
            value("before", statistics.fmean(rewards[:ENDS]), 3, "eval/arithmetic:first5"),
            value("after", statistics.fmean(rewards[-ENDS:]), 3, "eval/arithmetic:last5"),
        ],
        rows=rows,
        draw=draw,
    )
