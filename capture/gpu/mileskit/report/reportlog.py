"""The input of a report: a run, the guard's view of its log, and what the log says of memory.

A log is parsed once: the summary is made of the same events that the guard judges.
"""

from __future__ import annotations

import ast
import math
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from mileskit.common import kitfiles
from mileskit.guard import logdrive
from mileskit.guard.guardlimits import Limits
from mileskit.guard.guardreport import evidence
from mileskit.judge import runload
from mileskit.judge.clockcheck import seconds_of
from mileskit.judge.runload import LOGS, Loaded, LoadError
from mileskit.log.lineshape import Clock
from mileskit.log.logsource import LogSourceError, open_log
from mileskit.summary.pauses import Pause, PauseSet
from mileskit.summary.summarize import Summary, parse_offset

_MEMORY = b"Memory-Usage "
_MOST_MEMORY = 20_000  # lines kept, the newest ones
_MOST_LINE = 2_000


class Memory(NamedTuple):
    """One memory line of the trainer: Unix seconds, when in the step, and GB by name."""

    time: float
    when: str
    gpu: str
    gb: dict


class Input(NamedTuple):
    """loaded: the run; verdict: the guard's evidence (guardreport.evidence) or None without the
    log, then ``no_log`` says why; memory: memory lines of the run in the order of time."""

    loaded: Loaded
    verdict: dict | None
    memory: tuple[Memory, ...]
    no_log: str = ""


def read(text: str, heat_guard: str | None = None, utc_offset: str = "+00:00") -> Input:
    """Everything of one run, its log read once.  Raises runload.LoadError and NothingError."""
    lines: deque[bytes] = deque(maxlen=_MOST_MEMORY)
    made: list[_Tapped] = []

    def reader(stream, pause_log, offset):
        made.append(_Tapped(_Watch(stream, lines), pause_log, offset))
        return made[-1]

    one = runload.load(text, heat_guard, utc_offset, reader)
    try:
        offset = parse_offset(utc_offset)
        if made:
            log = made[0].collector.runs(made[0].parser, made[0].bytes)
            return _input(one, log, lines, offset)
        path = _log_of(one)
        if path is None:
            return Input(one, None, (), _why(one))
        with open_log(path) as stream:
            log = logdrive.load(_Watch(stream, lines), offset)
    except (LogSourceError, ValueError) as error:
        raise LoadError(str(error)) from None
    return _input(one, log, lines, offset)


class _Tapped(Summary):
    """A summary that shows its events to the guard's collector as well."""

    def __init__(self, *args):
        super().__init__(*args)
        self.collector = logdrive.Collector()

    def _events(self) -> Iterator[list]:
        for events in super()._events():
            self.collector.add(events)
            yield events


class _Watch:
    """Passes reads on and keeps the memory lines that go by."""

    def __init__(self, stream: BinaryIO, lines: deque):
        self._stream, self._lines, self._rest = stream, lines, b""

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        text = self._rest + data
        at = text.find(_MEMORY)
        done = text.rfind(b"\n") + 1
        while 0 <= at < done:
            end = text.find(b"\n", at)
            self._lines.append(text[max(text.rfind(b"\n", 0, at) + 1, at - 300) : end])
            at = text.find(_MEMORY, end)
        rest = text[done:]
        self._rest = rest if len(rest) <= _MOST_LINE else b""
        return data


def memory_line(line: bytes, clock: Clock) -> Memory | None:
    """``... [2026-11-29 12:46:58.336 ...] ... Memory-Usage before offload model: {...}``."""
    head, _, tail = line.partition(_MEMORY)
    when, colon, cells = tail.partition(b": ")
    time = clock.of_line(head)
    if time is None or not colon:
        return None
    try:
        found = ast.literal_eval(cells.decode().strip())
        gb = {k: float(v) for k, v in found.items() if isinstance(v, (int, float))}
        gb = {k: v for k, v in gb.items() if math.isfinite(v)}
        gpu = str(found.get("gpu", ""))
    except (ValueError, SyntaxError, AttributeError, TypeError, OverflowError):
        return None
    return Memory(time, when.decode("utf-8", "replace"), gpu, gb) if gb else None


def _input(one: Loaded, log: logdrive.LogRuns, lines, offset: float) -> Input:
    clock = Clock(offset)
    found = [memory_line(line, clock) for line in dict.fromkeys(lines) if len(line) <= _MOST_LINE]
    first, last = seconds_of(one.run.get("first_time")), seconds_of(one.run.get("last_time"))
    inside = [
        m
        for m in found
        if m is not None and (first is None or last is None or first - 1 <= m.time <= last + 1)
    ]
    return Input(one, _verdict(one, log), tuple(sorted(inside, key=lambda m: m.time)))


def _verdict(one: Loaded, log: logdrive.LogRuns) -> dict:
    pauses = [
        Pause(seconds_of(p["start"]), seconds_of(p["end"]), p.get("reason") or "")
        for p in one.run.get("pauses") or []
    ]
    run = log.runs[-1]
    last = max(run.end, log.last_time or run.end)
    result = logdrive.drive(
        run, Limits(), until=last, pauses=PauseSet(pauses) if pauses else None, act=False
    )
    return evidence(result.guard, result.decision)


def _log_of(one: Loaded) -> Path | None:
    """The log beside a run that came from its summary."""
    if one.source == "stored run":
        if kitfiles.archive() is not None:
            return None
        folder = Path(kitfiles.program()).parent / one.path
    elif one.source == "run folder":
        folder = Path(one.path)
    else:
        return None
    return next((folder / name for name in LOGS if (folder / name).exists()), None)


def _why(one: Loaded) -> str:
    if one.source == "stored run" and kitfiles.archive() is not None:
        return "the one-file kit holds summaries and no logs"
    return (
        f"the input is {'a summary' if one.source != 'event files' else 'event files'}, not a log"
    )
