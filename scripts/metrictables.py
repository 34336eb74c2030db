"""Tables of the reference page and of section 7.2 that hold no range: metric keys, record fields.

The keys come from the facts file of the figures; the fields from the kit's own list, so that a
field without a sentence here is an error.
"""

from __future__ import annotations

import importlib
import sys

from figures import ranges
from scripts.tree import Tree, yaml_document

RANGED = ("rollout/", "train/", "perf/")

# field -> (what it says, who writes it): the log says it itself, `kit run` finds it out, you
_RECORD = {
    "run.lab": ("lab: one machine with one software pin", "you, `store --lab`"),
    "run.name": ("name of the run in its lab", "you, `store --run`"),
    "run.started": ("start, UTC", "the log"),
    "run.command": ("full command, masked", "the log"),
    "run.seed": ("seed of trainer and engine", "the log"),
    "run.rollout_seed": ("seed of the prompt order", "the log"),
    "run.num_rollout": ("steps asked for", "the log"),
    "run.changed": ("flags that differ from the plain recipe", "computed"),
    "run.note": ("one sentence: why this run", "you, `run --note`"),
    "ended.how": ("finished, time limit, failed or killed", "the log"),
    "ended.status": ("exit status", "the log"),
    "ended.steps": ("steps with an update", "computed"),
    "ended.partial": ("true when it made less than was asked for", "computed"),
    "ended.verdict": ("verdict word of `diagnose`", "`kit run`, or you"),
    "setup.model": ("model", "`kit run`"),
    "setup.data": ("data set", "`kit run`"),
    "setup.reward": ("reward in words", "`kit run`"),
    "setup.miles_commit": ("Miles commit", "`kit run`"),
    "setup.miles_date": ("date of that commit", "`kit run`"),
    "setup.engine": ("SGLang version and build", "`kit run`"),
    "setup.versions": ("versions of torch and other packages", "the log, or you"),
    "setup.container": ("in a container or not", "`kit run`"),
    "setup.image": ("image by its digest", "`kit run`"),
    "setup.launcher": ("what started the run", "`kit run`"),
    "setup.gpu": ("GPU", "`kit run`"),
    "setup.gpus": ("number of GPUs", "`kit run`"),
    "setup.gpu_memory_mib": ("its memory", "`kit run`"),
    "setup.driver": ("driver version", "`kit run`"),
    "setup.shared": ("other work on the GPU, yes or no", "`kit run`"),
    "setup.shared_with": ("which work", "`kit run`"),
    "setup.clock_record": ("file of clock samples, empty when the clock is unknown", "`store`"),
    "setup.attention_engine": ("attention code of the engine", "`kit run`"),
    "setup.attention_trainer": ("attention code of the trainer", "`kit run`"),
    "setup.sampling": ("sampling code of the engine", "`kit run`"),
    "setup.not_stock": ("everything that is not the manual's image and launcher", "`kit run`, you"),
}


def run_record(tree: Tree) -> list[list[str]]:
    """Fields of run.toml: field, what it says, who writes it. KeyError for one without a text."""
    folder = str(tree.root / "capture" / "gpu")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    info = importlib.import_module("mileskit.evidence.runinfo")
    tables = {"run": info.RUN_FIELDS, "ended": info.ENDED_FIELDS, "setup": info.SETUP_FIELDS}
    rows = [["field of `run.toml`", "what it says", "who writes it"]]
    for table, fields in tables.items():
        for field in fields:
            name = f"{table}.{field}"
            rows.append([f"`{name}`", *_RECORD[name]])
    return rows


def metrics_without_ranges(tree: Tree) -> list[list[str]]:
    """Metric keys of evaluation, async and agents: key, meaning, unit, line."""
    rows = [["Key", "Meaning", "Unit", "Line"]]
    for entry in yaml_document(tree.read(ranges.METRICS))["metrics"]:
        key = entry["key"]
        if not entry.get("in_snapshot", True):
            continue
        if not key.startswith(RANGED) or "/fully_async/" in key:
            rows.append([key, ranges.meaning(entry), entry["unit"], entry["line"]])
    return rows
