"""Failed requests per second: from a log, from a per-second file, or from a summary.

A per-second file has one line a second, ``SECOND COUNT``; the second is a number or a time like
``2026-10-22 07:16:29``.  Lines that start with ``#`` are comments.
"""

from __future__ import annotations

import io
import json
import re
from typing import NamedTuple

from mileskit.guard.guardlimits import UsageError
from mileskit.guard.logdrive import load, retry_seconds
from mileskit.guard.rule_progress import WORK, level
from mileskit.log.lineshape import Clock
from mileskit.log.logsource import LogSourceError, open_log

_LINE = re.compile(rb"(?:(\d{1,12})|(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)Z?)[\s,]+(\d{1,9})\s*")
_HEAD = 1 << 16


class Failures(NamedTuple):
    """``seconds``: (second, failed requests) in order of time; ``advances``: times at which a
    counter advanced (a log only); ``start`` and ``end`` of what was looked at, in seconds."""

    seconds: list
    advances: list
    start: float
    end: float

    @property
    def total(self) -> int:
        return sum(n for _, n in self.seconds)


def read_failures(path: str) -> list[Failures]:
    """One entry for each run of the file.  Raises UsageError that names file, line and value."""
    try:
        with open_log(path) as stream:
            head = stream.read(_HEAD)
            if head.lstrip()[:1] == b"{":
                return _of_summary(path, head + stream.read())
            first = next((x for x in head.split(b"\n") if x.strip() and x[:1] != b"#"), b"")
            if _LINE.fullmatch(first.strip()):
                return [_of_lines(path, head + stream.read())]
            return _of_log(io.BufferedReader(_Joined(head, stream)))
    except LogSourceError as error:
        raise UsageError(str(error)) from None


class _Joined(io.RawIOBase):
    """Bytes already read, then the rest of their stream."""

    def __init__(self, head: bytes, rest):
        super().__init__()
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        data = self._head or self._rest.read(len(buffer))
        take, self._head = data[: len(buffer)], data[len(buffer) :]
        buffer[: len(take)] = take
        return len(take)


def _of_log(stream) -> list[Failures]:
    found = []
    for run in load(stream).runs:
        moves = [
            now for event, now in zip(run.events, run.times, strict=True) if level(event) >= WORK
        ]
        found.append(
            Failures(
                retry_seconds(zip(run.events, run.times, strict=True)), moves, run.start, run.end
            )
        )
    return found


def _of_lines(path: str, data: bytes) -> Failures:
    clock, seconds = Clock(), []
    for number, line in enumerate(data.split(b"\n"), 1):
        line = line.strip()
        if not line or line.startswith(b"#"):
            continue
        m = _LINE.fullmatch(line)
        second = None
        if m:
            second = int(m[1]) if m[1] else clock.second(m[2] + b" " + m[3])
        if second is None or (seconds and second <= seconds[-1][0]):
            shown = line[:60].decode("utf-8", "replace")
            raise UsageError(f"{path}:{number}: not 'SECOND COUNT' in rising order: {shown!r}")
        seconds.append((int(second), int(m[4])))
    if not seconds:
        raise UsageError(f"{path}: no line")
    return Failures([s for s in seconds if s[1]], [], seconds[0][0], seconds[-1][0] + 1)


def _of_summary(path: str, data: bytes) -> list[Failures]:
    try:
        found = []
        for run in json.loads(data)["runs"]:
            told = run["retries"]["per_second"]
            start = at = int(Clock().second(told["start"][:19].encode())) if told["runs"] else 0
            seconds = []
            for count, length in told["runs"]:
                if count:
                    seconds += [(at + k, count) for k in range(length)]
                at += length
            found.append(Failures(seconds, [], start, at))
        return found
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: not a summary with retries per second ({error})") from None
