"""The heat guard's log, and the arithmetic of pauses against time windows.

One line an action, times in UTC:

    2026-11-29T13:27:19.120Z pause container=NAME temp_c=84 reason=hot
    2026-11-29T13:28:09.003Z resume container=NAME temp_c=74 reason=cool paused_s=49.9

Lines that start with ``#`` are comments.  A pause without a resume lasts to the end of the log.
Times are seconds since the epoch.  A window and a pause that only touch overlap.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from functools import lru_cache
from typing import NamedTuple

from mileskit.log.lineshape import Clock

_LINE = re.compile(
    rb"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?(Z|[+-]\d\d:?\d\d)? +(pause|resume)\b(.*)"
)
_FIELD = re.compile(rb"(\w+)=(\S+)")


class PauseLogError(ValueError):
    """A line of the heat-guard log that cannot be read; the message names line and value."""


class Pause(NamedTuple):
    """One pause; ``end`` is None while it lasts (or when the guard's log stops inside it)."""

    start: float
    end: float | None
    reason: str


def iso(t: float) -> str:
    """UTC time with milliseconds, ``2026-11-29T13:27:19.120Z``."""
    days, ms = divmod(math.floor(t * 1000 + 0.5), 86_400_000)
    s, ms = divmod(ms, 1000)
    return f"{_date(days)}T{s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}.{ms:03d}Z"


@lru_cache(maxsize=64)
def _date(days: int) -> str:
    """Civil date of days since 1970-01-01 (proleptic Gregorian, eras of 400 years)."""
    z = days + 719468
    era, doe = divmod(z, 146097)
    yoe = (doe - doe // 1460 + doe // 36524 - doe // 146096) // 365
    doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
    mp = (5 * doy + 2) // 153
    month = mp + 3 if mp < 10 else mp - 9
    return f"{yoe + era * 400 + (month <= 2):04d}-{month:02d}-{doy - (153 * mp + 2) // 5 + 1:02d}"


def pause_line(t: float, container: str, temp_c: int | None, reason: str) -> str:
    """The line of a pause at time ``t`` (with its newline)."""
    return f"{iso(t)} pause container={container} temp_c={_na(temp_c)} reason={reason}\n"


def resume_line(t: float, container: str, temp_c: int | None, reason: str, paused_s: float) -> str:
    """The line of a resume at time ``t`` (with its newline); ``paused_s`` in seconds."""
    temp = _na(temp_c)
    return (
        f"{iso(t)} resume container={container} temp_c={temp} reason={reason} "
        f"paused_s={paused_s:.1f}\n"
    )


def _na(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def read_pauses(data: bytes, name: str = "heat-guard log") -> list[Pause]:
    """Pauses of a heat-guard log in the order of their start.

    A second pause line inside a pause is the same pause; a resume without a pause is left out.
    A last line without a newline may be cut and is read only if it is whole.  Raises
    PauseLogError on any other line that is neither an action nor a comment.
    """
    clock = Clock()
    found: list[Pause] = []
    open_: tuple[float, str] | None = None
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        line = line.rstrip(b"\r")
        if not line.strip() or line.startswith(b"#"):
            continue
        m = _LINE.match(line)
        t = clock.at(m[1], m[2]) if m else None
        if t is None:
            if number == len(lines):
                break
            shown = line[:80].decode("utf-8", "replace")
            raise PauseLogError(f"{name}:{number}: not a pause or resume line: {shown!r}")
        t -= _zone(m[3])
        fields = dict(_FIELD.findall(m[5]))
        if m[4] == b"pause":
            if open_ is None:
                open_ = (t, fields.get(b"reason", b"").decode("utf-8", "replace"))
        elif open_ is not None:
            found.append(Pause(open_[0], max(open_[0], t), open_[1]))
            open_ = None
    if open_ is not None:
        found.append(Pause(open_[0], None, open_[1]))
    return sorted(found, key=lambda p: p.start)


def _zone(text: bytes | None) -> float:
    if not text or text == b"Z":
        return 0.0
    digits = text[1:].replace(b":", b"")
    offset = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return -float(offset) if text[:1] == b"-" else float(offset)


class PauseSet:
    """Pauses merged into disjoint spans, for questions about windows [start, end] in seconds."""

    def __init__(self, pauses: list[Pause]):
        self.spans: list[tuple[float, float]] = []
        for start, end, _ in sorted(pauses, key=lambda p: p.start):
            stop = math.inf if end is None else end
            if self.spans and start <= self.spans[-1][1]:
                self.spans[-1] = (self.spans[-1][0], max(self.spans[-1][1], stop))
            else:
                self.spans.append((start, stop))
        self._ends = [stop for _, stop in self.spans]

    def clean(self, start: float, end: float) -> bool:
        """True when no pause overlaps or touches the window."""
        i = bisect_left(self._ends, start)
        return i >= len(self.spans) or self.spans[i][0] > end

    def seconds(self, start: float, end: float) -> float:
        """Paused seconds inside the window."""
        total = 0.0
        for i in range(bisect_left(self._ends, start), len(self.spans)):
            a, b = self.spans[i]
            if a > end:
                break
            total += max(0.0, min(b, end) - max(a, start))
        return total

    def since(self, t: float) -> float | None:
        """Seconds from the end of the last pause to ``t``: 0 inside a pause, None before any."""
        i = bisect_left(self._ends, t)
        if i < len(self.spans) and self.spans[i][0] <= t:
            return 0.0
        return t - self._ends[i - 1] if i else None
