"""Front matter: every stored run at a glance."""

from __future__ import annotations

import re
from typing import Any

from figures import evidence
from figures.registry import Figure, figure
from figures.sources import measured
from figures.values import Value

LAB = "h200-miles"

_ENDED = {
    "finished": "by itself",
    "time-limit": "time limit",
    "failed": "by itself, with an error",
    "killed": "killed",
    "cut": "log ends",
}


@figure("fig-front-runs")
def front_runs() -> Figure:
    """All runs of our lab: what differs, how many steps, how it ended, who shared the GPU."""
    runs = [evidence.run(run_id) for run_id in evidence.run_ids(LAB)]
    runs.sort(key=lambda run: (str(run.info("run", "started", "")), run.id))
    rows = [_row(run) for run in runs]
    everything = [run.id for run in runs]
    finished = [row for row in rows if row["ended"] == _ENDED["finished"]]

    def count(name: str, number: int, noun: str = "runs") -> Value:
        what = f"runs:{name}"
        return measured(name, number, "", 0, what=what, runs=everything, kind="count", noun=noun)

    return Figure(
        shape="A table with one row for each stored run.",
        values=[
            count("runs", len(rows)),
            count("finished", len(finished)),
            count("retries_total", sum(row["retries"] for row in rows), "failed requests|requests"),
        ],
        rows=rows,
        columns={
            "run": "Run",
            "seed": "Seed",
            "differs": "What differs",
            "steps": "Steps",
            "ended": "Ended",
            "verdict": "Verdict",
            "gpu": "GPU",
            "retries": "Failed requests",
        },
    )


def _row(run: evidence.Run) -> dict[str, Any]:
    how = run.fact("ended", "how")
    steps = run.fact("steps", "index")
    return {
        "run": run.name,
        "lab": run.lab,
        "seed": str(run.seed),
        "differs": ", ".join(_short(flag) for flag in run.changed) or "nothing",
        "steps": len(steps),
        "ended": _ENDED.get(how, how),
        "verdict": run.info("ended", "verdict", ""),
        "gpu": "shared" if run.shared else "alone",
        "retries": run.fact("retries", "total"),
    }


def _short(flag: str) -> str:
    """A flag with a dotted Python path cut to its last name."""
    return re.sub(r"(?<= )[A-Za-z_]+(?:\.\w+)*\.([A-Za-z_]\w*)$", r"…\1", flag)
