"""Miles' own event files (`--save-debug-event-data FOLDER`) as a run of a summary.

Each process appends JSON lines to `FOLDER/TAG.jsonl`.  A line of type ``metric`` holds one dict
of metrics with its axis key (``rollout/step``, ``train/step``, ``eval/step``), a UTC time and the
process; other types are passed over.  Non-finite numbers are ``null`` there, so a null in a
metric that has numbers elsewhere counts as NaN.  Rule from outside: Miles of 2026-08-21,
miles/utils/tracking_utils/tracking.py and miles/utils/audit_utils/event_logger/models.py.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterable
from pathlib import Path

from mileskit.summary.pauses import PauseSet
from mileskit.summary.tables import Table, medians_of, plain, stamp, timing_columns

_AXES = ("train/step", "rollout/step", "eval/step")


class EventError(ValueError):
    """A file that is no event file; the text names file, line and value."""


def read_folder(folder: Path) -> tuple[dict, tuple[str, ...]]:
    """The run of all `*.jsonl` files of a folder (see :func:`read_files`)."""
    return read_files(sorted(folder.glob("*.jsonl")))


def read_files(paths: list[Path]) -> tuple[dict, tuple[str, ...]]:
    """A run as in a summary, and notes on what such files cannot say.

    Raises EventError on a line that is no JSON object; a last line without its newline is
    dropped (a killed writer leaves one).
    """
    events = []
    for path in paths:
        with path.open("rb") as file:
            events += _metrics(file, str(path))
    events.sort(key=lambda event: event[0])
    notes = ("event files: no start-up facts, no retries, no errors and no end of the run in them",)
    return _run(events), notes


def _metrics(lines: Iterable[bytes], name: str) -> list[tuple[float, str, dict]]:
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
            kind = event["type"]
            if kind == "metric":
                component = str((event.get("source") or {}).get("component", ""))
                found.append((_time(event["timestamp"]), component, dict(event["metrics"])))
        except (ValueError, KeyError, TypeError, AttributeError):
            if not line.endswith(b"\n"):
                break
            shown = line[:80].decode("utf-8", "replace").strip()
            raise EventError(f"{name}:{number}: not an event of Miles: {shown!r}") from None
    return found


def _time(text: str) -> float:
    text = text[:-1] + "+00:00" if text.endswith("Z") else text
    moment = dt.datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)).timestamp()


def _number(value):
    if value is None:
        return math.nan
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _run(events: list[tuple[float, str, dict]]) -> dict:
    rollouts, steps, evals = Table(), Table(), Table()
    trainer: set[str] = set()
    newest = None
    for when, component, metrics in events:
        axis = next((key for key in _AXES if isinstance(metrics.get(key), (int, float))), None)
        if axis is None or component == "critic":
            continue
        number = int(metrics[axis])
        row = {k: _number(v) for k, v in metrics.items() if k not in _AXES}
        row = {k: v for k, v in row.items() if v is not None}
        if axis == "train/step":
            steps.put(number, {**row, "time/step_line": when, "rollout": newest})
        elif axis == "eval/step":
            evals.put(number, row)
        elif "perf/rollout_time" in row:
            rollouts.put(number, {**row, "time/rollout_perf_line": when})
        elif "perf/step_time" in row or "perf/train_time" in row:
            trainer |= {k for k in row if k.startswith("perf/")}
            rollouts.put(number, {**row, "time/perf_line": when})
        else:
            if "rollout/raw_reward" in row or "rollout/response_lengths" in row:
                newest = number
                row["time/rollout_line"] = when
            rollouts.put(number, row)
    raw, raw_steps = rollouts.as_dict(), steps.as_dict()
    for name in ("time/rollout_line", "time/rollout_perf_line", "time/perf_line"):
        raw["columns"].setdefault(name, [None] * len(raw["index"]))
    timing = timing_columns(raw, PauseSet([]))
    medians = medians_of(raw, raw_steps, timing, trainer)
    number_of = raw_steps["columns"].pop("rollout", [None] * len(raw_steps["index"]))
    times = [event[0] for event in events]
    return {
        "started": None,
        "first_time": stamp(min(times)) if times else None,
        "last_time": stamp(max(times)) if times else None,
        "started_by": "file",
        "first_line": None,
        "markers": {},
        "notes": [],
        "startup": {},
        "rollouts": plain(rollouts),
        "steps": {**plain(steps), "rollout": number_of},
        "evals": plain(evals),
        "timers": {},
        "saves": [],
        "loads": [],
        "loads_failed": [],
        "retries": {"total": 0},
        "errors": [],
        "pauses": [],
        "timing": timing,
        "medians": medians,
        "ended": {"how": "running", "status": None, "line": None, "time": None},
    }
