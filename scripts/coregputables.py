"""Tables of the lab `h200-core`: the machine, the runs, and the measurements that are no run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scripts.tree import Tree, toml

LAB = "capture/gpu/out-h200-core"
DASH = "\u2013"


def _toml(tree: Tree, path: str) -> dict[str, Any]:
    return toml(tree.text(path))


def _folders(tree: Tree, file: str) -> list[str]:
    return sorted(
        path.parent.relative_to(tree.root).as_posix()
        for path in (tree.root / LAB).glob(f"*/{file}")
    )


def machine(tree: Tree) -> list[list[str]]:
    """Machine and software: fact, value."""
    lab = _toml(tree, f"{LAB}/lab.toml")
    about, software = lab["machine"], lab["software"]
    rows = [
        ["fact", "value"],
        ["GPU", about["gpu"]],
        ["GPUs", str(about["gpus"])],
        ["memory of the GPU", f"{about['gpu_memory_mib']:,} MiB"],
        ["driver", about["driver"]],
        ["container", "yes" if about["container"] else "no"],
        ["GPU shared", "yes" if lab["setup"]["shared"] else "no"],
    ]
    rows += [[f"`{name}`", f"`{version}`"] for name, version in software["versions"].items()]
    rows += [["not stock", item] for item in lab["setup"]["not_stock"]]
    rows.append(["recorded", str(lab["lab"]["recorded"])])
    return rows


def _when(moment: Any) -> str:
    return f"{moment:%H:%M}"


def stored(tree: Tree) -> list[list[str]]:
    """Runs and measurements in the order they were made: name, what it is, when, clock, note."""
    found = []
    for folder in _folders(tree, "run.toml"):
        made = _toml(tree, f"{folder}/run.toml")
        run, setup = made["run"], made["setup"]
        clock = "recorded" if setup["clock_record"] else "unknown"
        what = f"a run of {made['ended']['steps']} steps, seed {run['seed']}"
        found.append((run["started"], run["name"], what, clock, run["note"]))
    for folder in _folders(tree, "record.toml"):
        made = _toml(tree, f"{folder}/record.toml")
        record, setup = made["record"], made["setup"]
        clock = "recorded" if setup["clock_record"] else "unknown"
        lines = sum(made["lines"].values())
        what = f"{lines} lines in {len(made['lines'])} files"
        what = what.replace("in 1 files", "in one file")
        found.append((record["started"], record["name"], what, clock, record["note"]))
    rows = [["name", "what is stored", "begun, UTC", "clock", "note"]]
    for started, name, what, clock, note in sorted(found):
        rows.append([f"`{name}`", what, _when(started), clock, note or DASH])
    return rows


TABLES: dict[str, Callable[[Tree], list[list[str]]]] = {
    "core-h200-machine": machine,
    "core-h200-stored": stored,
}
