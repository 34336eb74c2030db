"""Rows of a measured run, one JSON object a line, and what both sides' rows say.

A run's file has a `setup` line, a `step` line for every optimizer step, and an `end` line when the
run ended by itself. The seconds of a step are the wall time from the end of the step before it to
its own end, with the device waited for at each end; so the first step, which has no step before
it, has none. Steps of a warm-up are left out of all times, by the same number on both sides.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError, ContractError

WARMUP = 3
"""First steps that no time of a summary counts: libraries and recorded graphs are set up there."""
LAST = 5
"""Steps of the end whose rewards are averaged."""
LEAST_TIMED = 3
"""Timed steps from which a run whose time was up still says how fast it was."""
TIME_IS_UP = "time is up"
"""The status of such a run."""


class Writer:
    """Appends rows; each is on disk before the call returns. ConfigError for an unusable path."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = self.path.open("w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--out: {error.filename}: {error.strerror}") from None

    def row(self, kind: str, **values: Any) -> None:
        """Append a row; kind: "setup", "step" or "end"."""
        self._stream.write(json.dumps({"kind": kind, **values}) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


class Device:
    """The clock and the memory of the device that a run uses."""

    def __init__(self, name: str) -> None:
        self.name = name

    def now(self) -> float:
        """Seconds, when the device has done what it was given."""
        if self.name == "cuda":
            import torch

            torch.cuda.synchronize()
        return time.perf_counter()

    def memory(self) -> dict[str, int]:
        """Peaks since the process began, in bytes; empty on a CPU."""
        if self.name != "cuda":
            return {}
        import torch

        return {
            "peak_allocated": torch.cuda.max_memory_allocated(),
            "peak_reserved": torch.cuda.max_memory_reserved(),
        }


def read(path: Path | str) -> list[dict[str, Any]]:
    """The rows of a file. ContractError names the line that is none."""
    found = []
    for number, line in enumerate(Path(path).read_text("utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or row.get("kind") not in ("setup", "step", "end"):
            raise ContractError("peer-rows", f"{path}:{number}: no row: {line[:80]!r}")
        found.append(row)
    return found


def summary(rows: Sequence[dict[str, Any]], warmup: int = WARMUP) -> dict[str, Any]:
    """What one run's rows say. ContractError when no step is left after the warm-up."""
    steps = [row for row in rows if row["kind"] == "step"]
    if [row["step"] for row in steps] != list(range(len(steps))):
        raise ContractError("peer-rows", "steps are not numbered from 0 in order")
    timed = [row for row in steps if row["step"] >= max(warmup, 1)]
    if not timed:
        raise ContractError("peer-rows", f"{len(steps)} steps, none after {warmup} of warm-up")
    seconds = [row["seconds"] for row in timed]
    found: dict[str, Any] = {
        "steps": len(steps),
        "timed_steps": len(timed),
        "ended": any(row["kind"] == "end" for row in rows),
        "samples_per_second": sum(row["samples"] for row in timed) / sum(seconds),
        "step_seconds_median": statistics.median(seconds),
        "step_seconds_least": min(seconds),
        "step_seconds_most": max(seconds),
        "response_tokens_per_second": sum(row["response_tokens"] for row in timed) / sum(seconds),
        "response_length": sum(row["response_tokens"] for row in steps)
        / sum(row["samples"] for row in steps),
        "samples": sum(row["samples"] for row in steps),
        "reward_first": statistics.fmean(row["reward"] for row in steps[:LAST]),
        "reward_last": statistics.fmean(row["reward"] for row in steps[-LAST:]),
    }
    for part in ("generation_seconds", "train_seconds"):
        values = [row[part] for row in timed if row.get(part) is not None]
        if len(values) == len(timed):
            found[f"{part}_median"] = statistics.median(values)
    for peak in ("peak_allocated", "peak_reserved"):
        values = [row[peak] for row in steps if peak in row]
        if values:
            found[peak] = max(values)
    return found


def fastest(entries: Sequence[dict[str, Any]]) -> str | None:
    """The configuration of the candidate with the most samples a second, None if none ended well.

    entries: as `compared` takes them.
    """
    good = [e for e in entries if e["status"] == 0 and "samples_per_second" in e]
    if not good:
        return None
    return max(good, key=lambda e: e["samples_per_second"])["configuration"]


def compared(entries: Sequence[dict[str, Any]], warmup: int) -> dict[str, Any]:
    """The summary: means over the repeats of each configuration, and the ratios.

    entries: one a started process, its `phase` ("try" or another), `configuration`, `status` (0, an
    exit code or TIME_IS_UP) and what `summary` says of its rows. Rates are a second, memory bytes.

    A configuration none of whose runs ended in time counts by what a run had done until then, if
    that is LEAST_TIMED steps; `steps` says how far its rewards go.
    """
    sides: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(e["configuration"] for e in entries if e["phase"] != "try"):
        ran = [e for e in entries if e["configuration"] == name and e["phase"] != "try"]
        own = [e for e in ran if e["status"] == 0] or [
            e for e in ran if e["status"] == TIME_IS_UP and e.get("timed_steps", 0) >= LEAST_TIMED
        ]
        if not own:
            continue
        sides[name] = {
            "runs": len(own),
            "steps": min(e["steps"] for e in own),
            "cut": own[0]["status"] == TIME_IS_UP,
            **{
                key: sum(e[key] for e in own) / len(own)
                for key in ("samples_per_second", "step_seconds_median", "reward_first",
                            "reward_last", "response_length", "response_tokens_per_second")
            },
            **{
                key: max(e[key] for e in own)
                for key in ("peak_allocated", "peak_reserved")
                if all(key in e for e in own)
            },
        }  # fmt: skip
    ours = sides.get("core")
    ratios = {
        name: ours["samples_per_second"] / side["samples_per_second"]
        for name, side in sides.items()
        if ours and name != "core"
    }
    return {
        "warmup_steps": warmup,
        "sides": sides,
        "times_as_many_samples": ratios,
        "runs": entries,
    }
