"""Ours and TRL's trainer after each other on one machine, and what both sides' rows say.

`python -m capture.core.peer.compare RUN_FILE --out FOLDER [--seconds 540]`. Each run is a process
of its own; no two run at once. First TRL's candidates run a few steps each. Then ours, TRL's
fastest candidate, its fastest with float32 weights, as ours, and TRL's default run `--steps` steps.
The default is by far the slowest, so it comes last: it gets what is left of `--seconds`, and what
it has done until then still gives its speed. What fits into the rest runs once more in the opposite
order, the default first if all fit. Everything goes into FOLDER: one file of rows a run,
`summary.json`, and the output of runs that failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import ContractError
from . import rows
from .trl_grpo import CONFIGURATIONS

SPARE = 5.0
"""Seconds kept for writing the summary."""
LONGEST_TRY = 75.0
"""Seconds that a candidate may take with its start."""
MARGIN = 1.2
"""A run may take so many times what is expected of it."""
TAIL = 2000  # characters of a failed run's output that are kept


class Runs:
    """Starts runs and keeps what they left."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.folder = given, Path(given.out)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.until = time.monotonic() + given.seconds - SPARE
        self.found: list[dict[str, Any]] = []

    def left(self) -> float:
        """Seconds until all must have ended."""
        return self.until - time.monotonic()

    def run(
        self, configuration: str, *, steps: int, phase: str, warmup: int, most: float = 1e9
    ) -> dict[str, Any]:
        """One run of at most so many seconds; its entry of the summary."""
        given = self.given
        name = f"{phase}-{configuration}"
        out = self.folder / f"{name}.jsonl"
        module = "own" if configuration == "core" else "trl_grpo"
        command = [sys.executable, "-m", f"capture.core.peer.{module}", given.file]
        command += ["--out", str(out), "--steps", str(steps)]
        if module == "trl_grpo":
            command += ["--configuration", configuration]
        if given.seed is not None:
            command += ["--seed", str(given.seed)]
        command += [word for change in given.changes for word in ("--set", change)]
        started = time.monotonic()
        entry: dict[str, Any] = {"phase": phase, "configuration": configuration, "file": out.name}
        log = self.folder / f"{name}.log"
        try:
            with log.open("wb") as stream:
                done = subprocess.run(
                    command, stdout=stream, stderr=subprocess.STDOUT, check=False,
                    timeout=max(min(self.left(), most), 1.0),
                )  # fmt: skip
            entry["status"] = done.returncode
        except subprocess.TimeoutExpired:
            entry["status"] = rows.TIME_IS_UP
        entry["process_seconds"] = time.monotonic() - started
        try:
            entry.update(rows.summary(rows.read(out), warmup))
        except (ContractError, OSError) as error:
            entry["problem"] = str(error)
        if entry["status"] == 0:
            log.unlink()
        else:
            entry["output"] = log.read_text("utf-8", "replace")[-TAIL:]
        self.found.append(entry)
        print(line(entry), flush=True)
        return entry


def expected(tried: dict[str, Any], steps: int) -> float:
    """Seconds of a run of so many steps, from the entry of a shorter one."""
    more = (steps - tried["steps"]) * tried["step_seconds_median"]
    return MARGIN * (tried["process_seconds"] + more)


def line(entry: dict[str, Any]) -> str:
    """An entry as a person reads it."""
    start = f"{entry['phase']:<8} {entry['configuration']:<18}"
    if "samples_per_second" not in entry:
        return f"{start} {entry['status']}: {entry.get('problem', '')}"
    peak = entry.get("peak_allocated", 0) / 2**30
    return (
        f"{start} {entry['samples_per_second']:8.2f} samples/s, step"
        f" {entry['step_seconds_median']:.3f} s, peak {peak:.2f} GiB, reward"
        f" {entry['reward_first']:.3f} to {entry['reward_last']:.3f}, {entry['steps']} steps"
    )


def main(argv: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m capture.core.peer.compare")
    parser.add_argument("file", help="run file (TOML) of both sides")
    parser.add_argument("--out", required=True, help="folder of what is found")
    parser.add_argument("--steps", type=int, default=12, help="optimizer steps of a run")
    parser.add_argument("--warmup", type=int, default=rows.WARMUP, help="of them, not timed")
    parser.add_argument("--try-steps", type=int, default=3, help="steps of a candidate")
    parser.add_argument(
        "--candidates", default=",".join(n for n in CONFIGURATIONS if n != "default")
    )
    parser.add_argument("--seconds", type=float, default=540.0, help="when all must have ended")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    given = parser.parse_args(argv)
    candidates = [name for name in given.candidates.split(",") if name]
    unknown = [name for name in candidates if name not in CONFIGURATIONS]
    if unknown or given.steps <= given.warmup or given.try_steps < 2:
        parser.error(f"candidates {unknown}" if unknown else "too few steps")
    try:
        runs = Runs(given)
    except OSError as error:
        parser.error(f"--out: {error.filename}: {error.strerror}")
    share = given.seconds * 0.4  # the candidates' part of the time
    tried = []
    for name in candidates:
        if runs.left() < given.seconds - share:
            print(f"try      {name:<18} left out: no time", flush=True)
            continue
        tried.append(runs.run(name, steps=given.try_steps, phase="try", warmup=1, most=LONGEST_TRY))
    best = rows.fastest(tried)
    same = rows.fastest([e for e in tried if not CONFIGURATIONS[e["configuration"]][2]])
    order = list(dict.fromkeys(name for name in ("core", best, same, "default") if name))
    needs = {
        entry["configuration"]: expected(entry, given.steps)
        for entry in tried
        if entry["configuration"] in order
    }
    first = {}
    for place, name in enumerate(order):
        later = sum(needs.get(other, 0.0) for other in order[place + 1 :])
        first[name] = runs.run(
            name, steps=given.steps, phase="first", warmup=given.warmup, most=runs.left() - later
        )
    for place in reversed(range(len(order))):
        # of this run and those after it: the slow default must not keep the others from theirs
        if runs.left() > MARGIN * sum(
            first[name]["process_seconds"] for name in order[: place + 1]
        ):
            runs.run(order[place], steps=given.steps, phase="second", warmup=given.warmup)
    found = rows.compared(runs.found, given.warmup)
    (runs.folder / "summary.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(json.dumps(found["times_as_many_samples"]))
    return 0 if {"core", "default"} <= found["sides"].keys() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
