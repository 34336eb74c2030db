"""Tables that are made from code and hold no measured number: the `table` fences."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from scripts import (
    coregputables,
    coretables,
    featuretables,
    flagtables,
    glossary,
    insidetables,
    labtables,
    levertables,
    make_kit,
    memorytables,
    placementtables,
    recipetables,
    sourcetables,
)
from scripts.guardtables import guard_cases, guard_rules
from scripts.metrictables import metrics_without_ranges, run_record
from scripts.tree import Tree


def _launcher(tree: Tree):
    folder = str(tree.root / "capture" / "gpu")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module("miles_grpo")


def launcher_flags(tree: Tree) -> list[list[str]]:
    """Flags of the default recipe: flag, value, meaning."""
    launcher = _launcher(tree)
    settings = launcher.read_settings({})
    rows = [["flag", "value", "meaning"]]
    for flag in launcher.RECIPE:
        value = flag.value(settings) if callable(flag.value) else flag.value
        shown = "" if value is None else f"`{value}`"
        since = f" Since {flag.since}." if flag.since else ""
        rows.append([f"`{flag.name}`", shown, flag.meaning + since])
    return rows


def launcher_env(tree: Tree) -> list[list[str]]:
    """Environment variables of the launcher: variable, default, meaning."""
    rows = [["variable", "default", "meaning"]]
    for setting in _launcher(tree).SETTINGS:
        shown = f"`{setting.default}`" if setting.default else "empty"
        rows.append([f"`{setting.name}`", shown, setting.meaning])
    return rows


def launcher_traps(tree: Tree) -> list[list[str]]:
    """Traps that the launcher looks for: trap, severity, what it says, where it was read."""
    rows = [["trap", "severity", "what the launcher says", "source"]]
    for trap in _launcher(tree).TRAPS:
        rows.append([trap.id, trap.severity, trap.advice, trap.source])
    return rows


def kit_file(tree: Tree) -> list[list[str]]:
    """The one-file kit that the site offers: name, size in bytes, SHA-256."""
    kit = make_kit.pack(make_kit.members(tree.root))
    name = Path(make_kit.OUT).name
    digest = hashlib.sha256(kit).hexdigest()
    return [["file", "bytes", "SHA-256"], [f"`{name}`", f"{len(kit):,}", f"`{digest}`"]]


TABLES: dict[str, Callable[[Tree], list[list[str]]]] = {
    "feature-counts": featuretables.counts,
    "features-first": featuretables.first,
    "features-second": featuretables.second,
    "launcher-flags": launcher_flags,
    "launcher-env": launcher_env,
    "launcher-traps": launcher_traps,
    "kit-file": kit_file,
    "guard-rules": guard_rules,
    "guard-cases": guard_cases,
    "run-record": run_record,
    "metrics-without-ranges": metrics_without_ranges,
    **memorytables.TABLES,
    **levertables.TABLES,
    **placementtables.TABLES,
    **insidetables.TABLES,
    **flagtables.TABLES,
    **recipetables.TABLES,
    **labtables.TABLES,
    **sourcetables.TABLES,
    **coregputables.TABLES,
    **coretables.TABLES,
    **glossary.TABLES,
}


def markdown(rows: list[list[str]]) -> str:
    """Rows as a Markdown table; the first row is the heading."""

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(rows[0]), "|" + " --- |" * len(rows[0]), *map(line, rows[1:])])
