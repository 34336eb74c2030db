"""What a run tells the person in front of it: one line that moves on, and one at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from .driver import Result

ENDS = 5  # evaluations at either end whose means are told


def line(done: int, horizon: int, result: Result) -> str:
    """Where a run is: collections done of those asked for, and the newest rewards."""
    text = f"collection {done} of {horizon}"
    if result.rewards:
        text += f", reward {result.rewards[-1]:.3f}"
    if result.evaluations:
        text += f", held out {result.evaluations[-1].mean:.3f}"
    return text


def ending(name: str, result: Result) -> str:
    """How a run ended; with ten evaluations or more, also where the held-out reward went."""
    how = "complete" if result.completed else "stopped on purpose, can be resumed"
    text = (
        f"{name}: {how}: {result.collections} collections, {result.optimizer_step} optimizer steps"
    )
    found = [evaluation.mean for evaluation in result.evaluations]
    if len(found) >= 2 * ENDS:
        first, last = sum(found[:ENDS]) / ENDS, sum(found[-ENDS:]) / ENDS
        text += f"; held-out reward {first:.3f} in the first {ENDS} evaluations, {last:.3f} in the"
        text += f" last {ENDS}"
    return text


def on_terminal(horizon: int, out: TextIO | None = None) -> Callable[[int, Result], None]:
    """A callback that keeps one line of a terminal up to date, and is quiet anywhere else."""
    stream = sys.stderr if out is None else out
    if not stream.isatty():
        return lambda done, result: None

    def show(done: int, result: Result) -> None:
        end = "\n" if done >= horizon else ""
        stream.write(f"\r\x1b[K{line(done, horizon, result)}{end}")
        stream.flush()

    return show
