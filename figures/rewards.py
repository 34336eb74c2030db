"""Sections 3.4 and 3.5: published gaps of mixtures of experts, and published faults of rewards."""

from __future__ import annotations

from figures.citations import cited
from figures.registry import Figure, figure
from figures.sources import published
from figures.tablefigure import published_table
from figures.values import Value

LOST = "lost"
_MOE_COLUMNS = {
    "model": "Model",
    "nodes": "Nodes",
    "gpus": "GB300 GPUs a node",
    "steps": "First steps",
    "gap": "Gap",
}


@figure("fig-3-4-notes")
def release_notes() -> Figure:
    """The jobs of the release notes v0.1.1: their machine, and that models and gaps are lost."""
    nodes = cited("nodes", "miles-release-v0-1-1.nodes")
    gpus = cited("gpus", "miles-release-v0-1-1.gpus-per-node")
    return Figure(
        shape="A table with one row. Models, steps and gaps are lost.",
        values=[nodes, gpus],
        rows=[{"model": LOST, "nodes": nodes.bare, "gpus": gpus.bare, "steps": LOST, "gap": LOST}],
        columns=_MOE_COLUMNS,
    )


@figure("fig-3-4-glm")
def glm_run() -> Figure:
    """The longer run of the documentation, with routing replay."""
    values = [
        cited(name, f"miles-docs-glm.{value_id}")
        for name, value_id in (
            ("nodes", "nodes"),
            ("gpus", "gpus-per-node"),
            ("steps", "steps"),
            ("gap", "gap"),
        )
    ]
    row = {"model": "GLM-5.3-Flash", **{value.name: value.bare for value in values}}
    return Figure(shape="A table with one row.", values=values, rows=[row], columns=_MOE_COLUMNS)


@figure("fig-3-5-import")
def reward_import() -> Figure:
    """What the GB10 lab published of a reward that could not be imported."""
    hours = published("hours", "gb10", "import-test-hours", kind="time")
    failed = published(
        "failed",
        "gb10",
        "import-test-503",
        kind="count",
        unit="",
        noun="failed requests|requests|lines",
    )
    return _two_columns([("time that the job stayed up", hours), ("503 lines in it", failed)])


@figure("fig-3-5-reported")
def equal_rewards() -> Figure:
    """What the issue tracker says of a group with equal fractional rewards."""
    source = "miles-issue-fractional-rewards"
    return _two_columns(
        [
            ("answers of the group", cited("answers", f"{source}.answers")),
            ("reward of each answer", cited("reward", f"{source}.reward")),
            ("advantage of each answer", cited("advantage", f"{source}.advantage")),
        ]
    )


def _two_columns(rows: list[tuple[str, Value]]) -> Figure:
    columns = {"what": "What", "published": "Published"}
    return published_table([value for _, value in rows], rows, columns)
