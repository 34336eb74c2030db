"""The reference page: every metric key, with the range of our runs and what was published of it.

Keys, units and meanings come from manuals/data/miles-metrics.yaml; ranges are computed from the
stored runs. A time is shown from the run that had its GPU to itself, and from no other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import yaml

from figures import evidence
from figures.five_numbers import SEEDS
from figures.health import STEPS
from figures.registry import Figure, figure
from figures.sources import measured, published
from figures.values import Value

METRICS = "manuals/data/miles-metrics.yaml"
ALONE = SEEDS[:1]
LATER = tuple(range(1, 20))  # steps of that run after its first
MOST_DIGITS = 6
TINY = 10**-MOST_DIGITS / 2  # rounds to 0 at so many decimals
_UNITS = {"tokens": ("tokens", "count"), "seconds": ("s", "time")}
_COUNTS = ("0.0", "1.0")  # how Miles prints the two rewards of these runs in a key

# key -> (what the source says of it, name of the value, id in reported.toml, unit or None)
PUBLISHED: dict[str, tuple[tuple[str, str, str, str | None], ...]] = {
    "rollout/raw_reward": (
        ("first ten steps, three seeds", "gb10_reward", "first10-reward", ""),
        ("mean of the last eight steps", "gb10_reward_last", "reward-last", ""),
    ),
    "rollout/response_lengths": (
        ("early steps, about", "gb10_length_early", "early-length", None),
        ("later steps, about", "gb10_length_late", "late-length", None),
    ),
    "rollout/truncated": (
        ("first eight steps", "gb10_cut_first", "cut-first", ""),
        ("last eight steps", "gb10_cut_last", "cut-last", ""),
    ),
    "rollout/zero_std/count_R": (
        ("count_0 of step 0", "gb10_zero", "zero-std-zero-0", ""),
        ("count_1 of step 0", "gb10_one", "zero-std-one-0", ""),
    ),
    "train/entropy_loss": (("every step", "gb10_entropy_loss", "entropy-loss", ""),),
    "train/pg_clipfrac": (("step 0", "gb10_clip", "clipfrac-0", ""),),
    "train/train_rollout_logprob_abs_diff": (
        ("every step of the runs with the default sampler", "gb10_gap", "healthy-gap", ""),
        ("step 0", "gb10_gap0", "healthy-gap-0", ""),
        ("another page of the source", "gb10_gap_rounded", "gap-8-1", ""),
    ),
    "perf/step_time": (
        ("first step of one run", "gb10_first", "plain-first-step", None),
        ("median of that run", "gb10_median", "plain-median-step", None),
        ("median of the longer run", "gb10_median48", "plain48-median-step", None),
    ),
    "perf/rollout_time": (
        ("median of the longer run", "gb10_rollout48", "plain48-median-rollout", None),
        ("median of the clean steps of one run", "gb10_clean", "e6a-clean-rollout", None),
    ),
    "perf/log_probs_time": (("a typical step", "gb10_logprob", "plain-logprob", None),),
    "perf/train_time": (("a typical step", "gb10_train", "plain-train", None),),
    "perf/update_weights_time": (("a typical step", "gb10_update", "plain-update", None),),
    "perf/sleep_time": (("median, run not named", "gb10_sleep", "offload-median", None),),
}


def metrics() -> list[dict[str, Any]]:
    """The entries of the facts file that this Miles has."""
    found = yaml.load(evidence.read(METRICS), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return [entry for entry in found["metrics"] if entry.get("in_snapshot", True)]


def meaning(entry: dict[str, Any]) -> str:
    """Meaning, condition and note of a key as one text."""
    text = entry["meaning"].rstrip(".") + "."
    condition = entry.get("condition", "")
    if condition and not condition.startswith("same"):
        text += f" Condition: {condition}."
    if entry.get("note"):
        text += f" Note: {entry['note'].rstrip('.')}."
    return text.replace("the seed", "the GB10 manual")


def digits_for(cells: Sequence[float]) -> int:
    """Decimals that show three digits of the largest cell, none for whole numbers."""
    if all(float(cell).is_integer() for cell in cells):
        return 0
    largest = max(abs(cell) for cell in cells)
    return min(MOST_DIGITS, max(0, 2 - math.floor(math.log10(largest))))


def slug(key: str) -> str:
    """A key as the name of a value: 'rollout/raw_reward' is 'rollout_raw_reward'."""
    return re.sub(r"\W+", "_", key).strip("_")


def unusable(key: str) -> bool:
    """True when a record of one of these runs says that the column is wrong."""
    runs = [evidence.run(run_id) for run_id in SEEDS]
    return any(e.get("column") == key for run in runs for e in run.toml.get("unusable", []))


def stored(runs: Sequence[evidence.Run], key: str) -> bool:
    """True when every run has the column."""
    return all(run.has_column(key) for run in runs)


def measured_range(
    key: str, unit: str, runs: Sequence[str], steps: Sequence[int], missing: float | None = None
) -> Value | None:
    """Smallest and largest cell of a column over these steps; one number when they are equal.

    None when every cell is within rounding of 0 and not all of them are 0.
    """
    cells = [c for run_id in runs for c in evidence.run(run_id).column(key, steps, missing=missing)]
    low, high = min(cells), max(cells)
    if 0 < max(-low, high) < TINY:
        return None
    shown, kind = _UNITS.get(unit, ("", "metric"))
    return measured(
        slug(key),
        low if low == high else (low, high),
        shown,
        digits_for(cells),
        what=f"{key}:range:steps {steps[0]} to {steps[-1]}{':all' if low == high else ''}",
        runs=runs,
        kind=kind,
    )


def _measured(
    entry: dict[str, Any], runs: Sequence[str], steps: Sequence[int]
) -> tuple[str, list[Value]]:
    """The cell of a metric's range and the values in it."""
    key, unit = entry["key"], entry["unit"]
    if unusable(key):
        return "marked unusable, section 5.2", []
    if key == "rollout/zero_std/count_R":
        made = [measured_range(key[:-1] + r, unit, runs, steps, missing=0) for r in _COUNTS]
        found = [value for value in made if value is not None]
        texts = [f"count_{r}: {value.text}" for r, value in zip(_COUNTS, found, strict=True)]
        return "; ".join(texts), found
    if not stored([evidence.run(run_id) for run_id in runs], key):
        return "", []
    value = measured_range(key, unit, runs, steps)
    return ("0 but for rounding", []) if value is None else (value.text, [value])


def _table(prefix: str, runs: Sequence[str], steps: Sequence[int]) -> Figure:
    values: list[Value] = []
    rows = []
    for entry in metrics():
        key = entry["key"]
        if not key.startswith(prefix) or "/fully_async/" in key:
            continue
        text, ours = _measured(entry, runs, steps)
        theirs = [
            (label, published(name, "gb10", value_id, kind="metric", unit=unit))
            for label, name, value_id, unit in PUBLISHED.get(key, ())
        ]
        values += [*ours, *(value for _, value in theirs)]
        rows.append(
            {
                "key": key,
                "measured": text,
                "published": "; ".join(f"{value.text} ({label})" for label, value in theirs),
                "meaning": meaning(entry),
                "unit": entry["unit"],
                "line": entry["line"],
            }
        )
    return Figure(
        shape=(
            f"A table of {len(rows)} metrics, one row each: key, measured range, published value, "
            "meaning, unit, line."
        ),
        values=values,
        rows=rows,
        columns={
            "key": "Key",
            "measured": "Measured, H200",
            "published": "Reported, GB10",
            "meaning": "Meaning",
            "unit": "Unit",
            "line": "Line",
        },
    )


@figure("fig-ranges-rollout")
def rollout() -> Figure:
    """Metrics of answers and rewards."""
    return _table("rollout/", SEEDS, STEPS)


@figure("fig-ranges-training")
def training() -> Figure:
    """Metrics of an update."""
    return _table("train/", SEEDS, STEPS)


@figure("fig-ranges-time")
def times() -> Figure:
    """Times and rates, from the one run that had the GPU to itself, without its first step."""
    return _table("perf/", ALONE, LATER)
