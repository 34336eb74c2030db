"""Sections 4.1, 4.3 and 4.6: ages of samples in our runs, and what other teams published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from figures import evidence
from figures.five_numbers import SEEDS
from figures.registry import Figure, figure
from figures.sources import cited, measured, published
from figures.tablefigure import published_table
from figures.values import Value

_VERSION = "rollout/weight_version/"
MIXED = f"{_VERSION}mixed_version_ratio"


@figure("fig-4-1-ages")
def ages() -> Figure:
    """Which weight versions wrote the answers of each step in our synchronous runs."""
    runs = [evidence.run(run_id) for run_id in SEEDS]
    rows, spreads, lags, mixed = [], [], [], []
    for run in runs:
        low, high = run.column(f"{_VERSION}min"), run.column(f"{_VERSION}max")
        share = run.column(MIXED)
        spreads += [b - a for a, b in zip(low, high, strict=True)]
        # the first update gives version 1, so a step that lags behind nothing has its number plus 1
        lags += [step + 1 - oldest for step, oldest in zip(run.index, low, strict=True)]
        mixed += share
        rows.append(
            {
                "run": run.name,
                "steps": len(low),
                "versions": f"{low[0]:.0f} to {high[-1]:.0f}",
                "oldest": f"{max(lags[-len(low) :]):.0f}",
                "mixed": f"{max(share):.0f}",
            }
        )

    def count(name: str, number: float, what: str, noun: str) -> Value:
        return measured(name, number, "", 0, what=what, runs=SEEDS, kind="count", noun=noun)

    return Figure(
        shape="A table with one row for each of three runs.",
        values=[
            count("age", max(lags), "weight_version:largest age of a sample", "versions"),
            count("spread", max(spreads), "weight_version:most versions in a step", "versions"),
            count("mixed", max(mixed), f"{MIXED}:largest", "answers"),
            count("steps", len(lags), "steps of three runs", "steps"),
        ],
        rows=rows,
        columns={
            "run": "Run",
            "steps": "Steps",
            "versions": "Weight versions, first to last step",
            "oldest": "Versions behind, at most",
            "mixed": "Answers of several versions",
        },
    )


def _table(shape: str, listed: Sequence[tuple[str, str, Value]]) -> Figure:
    """A table of published values: what, who, value."""
    columns = {"what": "Number", "who": "Published by", "published": "Published"}
    return published_table([value for _, _, value in listed], listed, columns, shape)


@figure("fig-4-1-rate")
def learning_rate() -> Figure:
    """What the study of collapse in asynchronous GRPO found for the learning rate."""
    by = "the study"
    return _table(
        "A table of three published values.",
        [
            (
                "largest stable learning rate, twice the steps between updates",
                by,
                cited("factor", "async-scaling.lr-factor"),
            ),
            ("smaller model", by, cited("small", "async-scaling.model-small")),
            ("larger model", by, cited("large", "async-scaling.model-large")),
        ],
    )


@figure("fig-4-3-limits")
def precision_limits() -> Figure:
    """Where other teams saw FP8 rollout with BF16 training hold, drift and collapse."""
    study, post, docs = "the FP8 study", "the FP8 post", "Miles documentation"
    return _table(
        "A table of published values: three rollout lengths, three model sizes and a block size.",
        [
            ("matched BF16 below this length", study, cited("matched", "jet-rl.length-matched")),
            ("drifted at this length", study, cited("drifted", "jet-rl.length-drifted")),
            ("collapsed at this length", study, cited("collapsed", "jet-rl.length-collapsed")),
            ("smallest model of the post", post, cited("smallest", "unified-fp8.model-small")),
            ("largest model of the post", post, cited("largest", "unified-fp8.model-large")),
            ("side of a block", docs, cited("block", "miles-docs.fp8-block")),
            (
                "dense model, BF16 is enough below about",
                docs,
                cited("enough", "miles-docs-low-precision.bf16-enough"),
            ),
        ],
    )


_TRUE_ON_POLICY: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("gap of every step, healthy runs", "gap", "healthy-gap", {"kind": "metric", "unit": ""}),
    ("time that the trainer went on", "hour", "failed-run-hour-3", {}),
)


@figure("fig-4-6-gb10")
def true_on_policy() -> Figure:
    """The failed true on-policy run of the GB10 lab, and the range of its healthy gaps."""
    return _table(
        "A table of two published values.",
        [
            (what, "the GB10 lab", published(name, "gb10", value_id, **how))
            for what, name, value_id, how in _TRUE_ON_POLICY
        ],
    )
