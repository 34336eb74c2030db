"""Sections 3.4 and 3.5: published gaps of mixtures of experts, and published faults of rewards."""

from __future__ import annotations

from figures.citations import cited
from figures.registry import Figure, figure
from figures.sources import published

LOST = "lost"

_IMPORT = (
    ("import that failed", "time the job stayed up", "import_hours", "import-test-hours", None, ""),
    (
        "import that failed",
        "503 lines in that time",
        "import_503",
        "import-test-503",
        "",
        "failed requests|requests|lines",
    ),
)


@figure("fig-3-5-reported")
def reward_faults() -> Figure:
    """What was published of a reward that cannot be imported, and of equal fractional rewards."""
    values = [
        published(name, "gb10", value_id, unit=unit, noun=noun, kind="count" if noun else "time")
        for _, _, name, value_id, unit, noun in _IMPORT
    ]
    rows = [
        {"fault": row[0], "what": row[1], "published": value.text}
        for row, value in zip(_IMPORT, values, strict=True)
    ]
    source = "miles-issue-fractional-rewards"
    for what, name in (
        ("answers of the group", "answers"),
        ("reward of each answer", "reward"),
        ("advantage of each answer", "advantage"),
    ):
        value = cited(name, f"{source}.{name}")
        values.append(value)
        rows.append({"fault": "equal fractional rewards", "what": what, "published": value.text})
    return Figure(
        shape="A table of published values, one row each.",
        values=values,
        rows=rows,
        columns={"fault": "Fault", "what": "What", "published": "Published"},
    )


@figure("fig-3-4-reported")
def moe_gaps() -> Figure:
    """The gaps that the Miles team published for mixtures of experts with routing replay."""
    notes, page = "miles-release-v0-1-1", "miles-docs-glm"
    nodes = cited("nodes", f"{notes}.nodes")
    gpus = cited("gpus", f"{notes}.gpus-per-node")
    glm_nodes = cited("glm_nodes", f"{page}.nodes")
    glm_gpus = cited("glm_gpus", f"{page}.gpus-per-node")
    steps = cited("glm_steps", f"{page}.steps")
    gap = cited("glm_gap", f"{page}.gap")
    rows = [
        {
            "source": "release notes v0.1.1",
            "model": LOST,
            "nodes": nodes.text,
            "gpus": gpus.text,
            "steps": LOST,
            "gap": LOST,
        },
        {
            "source": "documentation, page of the model",
            "model": "GLM-5.3-Flash",
            "nodes": glm_nodes.text,
            "gpus": glm_gpus.text,
            "steps": steps.text,
            "gap": gap.text,
        },
    ]
    return Figure(
        shape="A table with one row a source. Models and gaps of the release notes are lost.",
        values=[nodes, gpus, glm_nodes, glm_gpus, steps, gap],
        rows=rows,
        columns={
            "source": "Source",
            "model": "Model",
            "nodes": "Nodes",
            "gpus": "GB300 GPUs a node",
            "steps": "First steps",
            "gap": "Gap",
        },
    )
