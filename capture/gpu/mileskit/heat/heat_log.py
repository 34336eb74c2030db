"""The files that the heat guard appends to: its log of actions and its samples.

A full disk must not keep a run paused, so writing reports trouble and never raises.
"""

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

from mileskit.heat.gpusample import Reading, sample_fields
from mileskit.summary import pauses


def format_action(
    when: float,
    kind: str,
    container: str,
    temp_c: float | None,
    reason: str,
    paused_s: float | None = None,
) -> str:
    """One action as a line of the heat-guard log, without its newline.

    when: Unix seconds; of a pause, the moment before the container is asked to freeze, of a
    resume, the moment after it runs again, so that the window never looks shorter than it was.

    >>> format_action(1795958839.12, "pause", "miles-plain", 84.0, "hot")
    '2026-11-29T13:27:19.120Z pause container=miles-plain temp_c=84 reason=hot'
    """
    shown = int(temp_c) if temp_c is not None and temp_c == int(temp_c) else temp_c
    if kind == "pause":
        line = pauses.pause_line(when, container, shown, reason)
    else:
        line = pauses.resume_line(when, container, shown, reason, paused_s or 0.0)
    return line.rstrip("\n")


class Journal:
    """Appends lines to one file; `say` is told once when writing stops working."""

    def __init__(self, path: Path | None, say: Callable[[str], None]):
        self.path = path
        self._say = say
        self._trouble = ""

    def write(self, line: str) -> None:
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_line(self.path, line)
        except OSError as error:
            trouble = f"cannot write {self.path}: {error.strerror}"
            if trouble != self._trouble:
                self._say(trouble)
            self._trouble = trouble
        else:
            self._trouble = ""

    def write_reading(self, reading: Reading) -> None:
        for fields in sample_fields(reading):
            self.write(json.dumps(fields))


def append_line(path: Path, line: str) -> None:
    """Append one line; a torn line that a killed writer left is ended first."""
    with path.open("ab+") as out:
        size = out.seek(0, 2)
        torn = False
        if size:
            out.seek(size - 1)
            torn = out.read(1) != b"\n"
        out.write(b"\n" * torn + line.encode() + b"\n")


def pause_in_log(path: Path, pause_line: str, container: str) -> str:
    """What the log says of one pause: "absent", "open" (no resume follows), or "closed"."""
    found = "absent"
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                line = line.rstrip("\n")
                if line == pause_line:
                    found = "open"
                elif found == "open" and f" resume container={container} " in line:
                    found = "closed"
    except OSError:
        return "absent"
    return found


def say(text: str) -> None:
    """A line on standard error that survives a closed terminal."""
    with contextlib.suppress(OSError, ValueError):
        print(f"heat-guard: {text}", file=sys.stderr, flush=True)
