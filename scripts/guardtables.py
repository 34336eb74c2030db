"""Tables of section 1.2 that follow from the guard's code: its rules, and the made-up logs."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

from scripts.tree import Tree

CASES = "tests/fixtures/synthetic-cases"


def _kit(tree: Tree, module: str) -> ModuleType:
    folder = str(tree.root / "capture" / "gpu")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(module)


def guard_rules(tree: Tree) -> list[list[str]]:
    """Rules of the guard with their default limits: rule, what it sees, when it stops the run."""
    lim = _kit(tree, "mileskit.guard.guardlimits").Limits()
    look = f"{lim.checks} checks in a row, each with over {lim.limit} failed requests in the last "
    deadline = (
        f"start-up: {_minutes(lim.startup_stall)} without a new mark; first step: "
        f"{_minutes(lim.first_stall)} without progress, {_hours(lim.first_ceiling)} in all; later: "
        f"{_minutes(lim.stall)} or {lim.stall_steps:g} median steps without progress, "
        f"{_hours(lim.ceiling)} or {lim.ceiling_steps:g} median steps without a rollout, step, "
        "evaluation or save; of two values the larger one holds"
    )
    return [
        ["rule", "what it sees", "when it stops the run"],
        [
            "outage",
            "every request fails or is refused",
            f"{look}{lim.window:g} s, and no counter advances in between",
        ],
        [
            "process death",
            "a process that says it died, or a fatal line",
            f"{lim.grace:g} s without a recovery, with fault tolerance {lim.grace_ft:g} s",
        ],
        ["no progress", "silence, or work that leads to nothing", deadline],
        [
            "non-finite",
            "a loss or gradient norm that is NaN or infinite",
            "two such steps in a row",
        ],
    ]


def guard_cases(tree: Tree) -> list[list[str]]:
    """Made-up logs through the guard: case, made after, verdict, offsets and seconds of a stop."""
    logdrive, logsource = (
        _kit(tree, "mileskit.guard.logdrive"),
        _kit(tree, "mileskit.log.logsource"),
    )
    replay, limits = (
        _kit(tree, "watchdog_replay"),
        _kit(tree, "mileskit.guard.guardlimits").Limits(),
    )
    expected = json.loads(tree.text(f"{CASES}/expected.json"))
    rows = [["made-up log", "made after", "verdict", "stopped at", "seconds to the stop"]]
    for name, case in expected.items():
        with logsource.open_log(str(_case(tree.root, name))) as stream:
            run = logdrive.load(stream).runs[-1]
        until = run.end + case.get("now_after_s", 0)
        verdict = logdrive.drive(run, until=until, act=False).decision.verdict
        table = replay.full_table(run, limits, until)
        span = "{:.0f} to {:.0f}".format(*table["seconds"]) if table["seconds"] else ""
        where = f"{table['stopped']} of {table['offsets']}" if table["stopped"] else "no offset"
        rows.append([name, case["source"], verdict, where, span])
    return rows


def _case(root: Path, name: str) -> Path:
    (path,) = (root / CASES).glob(f"{name}.log*")
    return path


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:g} min"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:g} h"
