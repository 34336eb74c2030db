"""The guard over a log that grows: bytes and checks in, decisions out, on a clock that counts.

While the log's past is read, its own times count (history of steps, deaths and recoveries).
Once the past is read, time is that of the computer's monotonic clock, so that a step of either
wall clock fires no deadline; silence before the guard came is not counted.
"""

from __future__ import annotations

from mileskit.guard.guardlimits import Limits
from mileskit.guard.rules import Decision, Guard
from mileskit.log.events import ErrorLine
from mileskit.log.logclock import LogClock
from mileskit.log.logparse import LogParser

FRESH = 1.0  # seconds between two looks at how fast the log's time runs
FASTER = 3.0  # the past is being read while the log's time runs this much faster than ours


class LiveLog:
    """Parser, guard and clock of one life of a run.

    ``mono``: seconds of a monotonic clock; ``wall``: seconds since the epoch at that moment, used
    only when the log has no timestamp.
    """

    def __init__(
        self,
        limits: Limits,
        mono: float,
        wall: float,
        *,
        fault_tolerance=False,
        utc_offset_s: float = 0.0,
    ):
        self.parser = LogParser(utc_offset_s)
        self.guard = Guard(limits, fault_tolerance=fault_tolerance)
        self.bytes = 0
        self._clock = LogClock()
        self._wall = wall
        self._zero: float | None = None  # guard's time minus monotonic time, once live
        self._mark = (mono, None)
        self._peeked: set = set()  # (line, kind) of errors that an unfinished line told

    @property
    def live(self) -> bool:
        """Whether the past has been read."""
        return self._zero is not None

    def now(self, mono: float) -> float:
        """The guard's time."""
        if self._zero is not None:
            return mono + self._zero
        return self._wall if self._clock.now is None else self._clock.now

    def feed(self, data: bytes, mono: float) -> None:
        """What the log has grown by; b"" says that there is no more for now."""
        self.bytes += len(data)
        for event in self.parser.feed(data):
            if self._zero is None:
                self._clock.at(event.time)
            self._observe(event, self.now(mono))
        if self._zero is None:
            self._catch_up(data, mono)

    def _observe(self, event: tuple, now: float) -> None:
        if type(event) is not ErrorLine or (event.line, event.kind) not in self._peeked:
            self.guard.observe(event, now)

    def _peek(self, now: float) -> None:
        """Shows the guard what a line tells that nobody has ended yet."""
        for event in self.parser.peek():
            self._observe(event, now)
            if type(event) is ErrorLine:
                self._peeked.add((event.line, event.kind))

    def _catch_up(self, data: bytes, mono: float) -> None:
        if self.parser.time is not None:
            self._clock.at(self.parser.time)
        since, then = self._mark
        if data and mono - since < FRESH:
            return
        here = self._clock.now
        slow = here is None or (then is not None and here - then <= FASTER * (mono - since))
        self._mark = (mono, here)
        if not data or slow:
            self.go_live(mono)

    def go_live(self, mono: float) -> None:
        """The past is read: from here on the monotonic clock counts."""
        if self._zero is None:
            self._zero = self.now(mono) - mono
            self.guard.start(self.now(mono))

    def check(self, mono: float, *, paused: bool = False, docker_ok: bool = True) -> Decision:
        """One check of the guard."""
        self.go_live(mono)
        self._peek(self.now(mono))
        return self.guard.check(self.now(mono), paused=paused, docker_ok=docker_ok)

    def final(self, mono: float) -> Decision:
        """The verdict when no more will come."""
        now = self.now(mono)
        for event in self.parser.close():
            self._observe(event, now)
        return self.guard.final(now)
