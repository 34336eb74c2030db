"""Drives the guard over a log on the log's own clock: for ``--clock log``, replay and diagnosis.

A log is read once into the events that the rules use: failed requests are summed per second, of
engine batches and bars one a second is kept, so that memory grows with the hours of a run and not
with its lines.  A file of several runs gives several :class:`RunLog`; each is judged alone, since
between two of them nothing ran.

The log's clock can be stepped.  A step back (more than a minute) takes no time.  A step forward
looks like silence; it is taken out only when the trainer's own ``perf/step_time`` of the step
around it shows that the time did not pass.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from typing import BinaryIO, NamedTuple

from events import (
    CutLine,
    EngineDecode,
    EnginePrefill,
    ErrorLine,
    JobEnd,
    Marker,
    Perf,
    Progress,
    Retry,
    RunStart,
    TaskRaised,
)
from guardlimits import Limits
from logclock import LogClock
from logparse import LogParser
from pauses import PauseSet
from rule_progress import level
from rules import Decision, Guard
from verdicts import OF_KIND

CHUNK = 1 << 18
STEP_LEAST = 600.0  # a forward clock step shorter than this cannot pass a deadline alone
ZONE = 1800.0  # time zones differ by multiples of this
_WEEK = 7 * 86400.0
_BUSY = (EngineDecode, EnginePrefill, Progress)


class RunLog:
    """One run of a log: ``events`` and ``times`` (guard's clock, never falling), same length."""

    def __init__(self, first_line: int):
        self.first_line = first_line
        self.events: list = []
        self.times: list[float] = []
        self.cut: CutLine | None = None

    @property
    def start(self) -> float:
        return self.times[0] if self.times else 0.0

    @property
    def end(self) -> float:
        return self.times[-1] if self.times else 0.0


class LogRuns(NamedTuple):
    """``runs`` of a log (at least one), its lines and bytes, and the last time (guard's clock)."""

    runs: list
    lines: int
    bytes: int
    last_time: float | None


class _Thin:
    """Passes events on, summed or thinned out where they are many."""

    def __init__(self):
        self.out: list = []
        self._retries: dict = {}
        self._second: int | None = None
        self._kept: dict = {}

    def add(self, event: tuple) -> None:
        kind = type(event)
        if kind is Retry:
            second = None if event.time is None else math.floor(event.time)
            if second != self._second:
                self._second, self._retries = second, {}
            place = self._retries.get(event.status)
            if place is None:
                self._retries[event.status] = len(self.out)
                self.out.append(event)
            else:
                old = self.out[place]
                deep = max(old.attempt or 0, event.attempt or 0) or None
                self.out[place] = old._replace(count=old.count + event.count, attempt=deep)
            return
        if kind in _BUSY:
            how = level(event)
            name = (kind, how, getattr(event, "label", "")[:12])
            last = self._kept.get(name)
            if not how or (last is not None and event.time == last):
                return
            self._kept[name] = event.time
        self._second = None  # order of progress and failures matters
        self.out.append(event)


class Collector:
    """Collects the events of a whole log that somebody parses, for :func:`drive`."""

    def __init__(self):
        self._thin = _Thin()

    def add(self, events: Iterable[tuple]) -> None:
        """The events of one ``LogParser.feed`` (or of its ``close``), in order."""
        add = self._thin.add
        for event in events:
            add(event)

    def runs(self, parser: LogParser, size: int) -> LogRuns:
        """The log's runs, once the closed ``parser`` has read all of its ``size`` bytes."""
        events = self._thin.out
        times = _clock(events)
        return LogRuns(_split(events, times), parser.line, size, _last(parser, events, times))


def load(stream: BinaryIO, utc_offset_s: float = 0.0) -> LogRuns:
    """Reads a whole log.  Raises logsource.LogSourceError from the stream."""
    parser, collector, size = LogParser(utc_offset_s), Collector(), 0
    while data := stream.read(CHUNK):
        size += len(data)
        collector.add(parser.feed(data))
    collector.add(parser.close())
    return collector.runs(parser, size)


def _last(parser: LogParser, events: list, times: list[float]) -> float | None:
    """The guard's time of the log's last timestamp, which may stand after the last event."""
    if parser.time is None or not times:
        return parser.time or (times[-1] if times else None)
    behind = next((e.time for e in reversed(events) if e.time is not None), parser.time)
    return times[-1] + min(max(0.0, parser.time - behind), _WEEK)


def _clock(events: list) -> list[float]:
    """Guard's time of each event: never falling, steps of the log's clock taken out."""
    zone = _zone(events)
    clock, times = LogClock(), []
    clock.at(next((e.time for e in events if e.time is not None), 0.0))
    perf_at: int | None = None
    for i, event in enumerate(events):
        raw = event.time
        if zone and raw is not None and _by_marker(event):
            raw += zone
        times.append(clock.at(raw))
        if type(event) is Perf and event.side == "trainer":
            gone = _stepped(event, times, perf_at, i)
            if gone:
                clock.take_out(gone)
            perf_at = i
    return times


def _by_marker(event: tuple) -> bool:
    return type(event) is Marker or (type(event) is JobEnd and event.by == "marker")


def _stepped(event: Perf, times: list[float], perf_at: int | None, here: int) -> float:
    """Takes a forward step of the clock out of the last step's times; its seconds, else 0."""
    took = event.metrics.get("perf/step_time")
    if perf_at is None or took is None or not math.isfinite(took):
        return 0.0
    extra = times[here] - times[perf_at] - took
    if extra < STEP_LEAST:
        return 0.0
    place = max(range(perf_at + 1, here + 1), key=lambda k: times[k] - times[k - 1])
    gap = times[place] - times[place - 1]
    if gap < STEP_LEAST or abs(gap - extra) > took:
        return 0.0
    gone = min(gap, extra)
    for k in range(place, here + 1):
        times[k] -= gone
    return gone


def _zone(events: list) -> float:
    """Seconds to add to the launcher's UTC markers to reach the log's local time.

    Read off the start marker and the first line after it: a whole number of half hours, at least
    one hour, that leaves less than ten minutes between the two.
    """
    marks = [e for e in events[:50] if type(e) is Marker and e.name == "date" and e.time]
    rest = [e for e in events if type(e) is not Marker and e.time is not None]
    if not marks or not rest:
        return 0.0
    apart = rest[0].time - marks[0].time
    halves = round(apart / ZONE)
    return halves * ZONE if abs(halves) >= 2 and abs(apart - halves * ZONE) < 600 else 0.0


def _split(events: list, times: list[float]) -> list[RunLog]:
    starts = [e for e in events if type(e) is RunStart]
    runs = [RunLog(1)] + [RunLog(e.since_line) for e in starts]
    firsts = [run.first_line for run in runs]
    for event, now in zip(events, times, strict=True):
        if type(event) is RunStart:
            continue
        place = max(0, bisect_right(firsts, event.line) - 1)
        if type(event) is CutLine:
            place = len(runs) - 1
            runs[place].cut = event
        runs[place].events.append(event)
        runs[place].times.append(now)
    return runs


class Outcome(NamedTuple):
    """What driving one run gave.

    ``stopped_at`` guard's time of the decision to stop or None; ``seconds`` from the first failed
    request or fatal line of the trouble to it; ``longest`` run of bad checks; ``guard`` as the
    last check left it.
    """

    decision: Decision
    stopped_at: float | None
    seconds: float | None
    checks: int
    longest: int
    guard: Guard


def drive(
    run: RunLog,
    limits: Limits | None = None,
    *,
    offset: float = 0.0,
    until: float | None = None,
    pauses: PauseSet | None = None,
    fault_tolerance: bool = False,
    act: bool = True,
) -> Outcome:
    """Checks every ``limits.every`` s, the first ``offset`` s after the run's first second.

    ``until``: guard's time to which checks go on after the last event (default: that event).
    ``act``: end at the first decision to stop; else only observe.  Without one the decision is
    the verdict on the whole run.  When the last events are a cause to stop that waits for a
    recovery and no end was logged, the guard goes on to wait, as a live one would.
    """
    limits = limits or Limits()
    guard = Guard(limits, fault_tolerance=fault_tolerance)
    origin = math.floor(run.start)
    end = run.end if until is None else max(run.end, until)
    due, checks, longest = origin + offset, 0, 0
    stops = zip([*run.events, None, None], [*run.times, end, end], strict=True)
    final = None
    for event, now in stops:
        if final is not None:
            if not (act and final.stop):
                break
            now += limits.grace_ft + limits.every
        if now - due > _WEEK:
            due += limits.every * math.floor((now - due - _WEEK) / limits.every)
        while due <= now if event is None else due < now:
            decision = _check(guard, due, origin, pauses)
            checks += decision.counted
            longest = max(longest, guard.outage.streak)
            if act and decision.stop:
                first = decision.first_at
                seconds = None if first is None else due - first
                return Outcome(decision, due, seconds, checks, longest, guard)
            due += limits.every
        if event is not None:
            guard.observe(event, now)
        elif final is None:
            final = guard.final(end, paused_s=pauses.seconds(origin, end) if pauses else None)
    return Outcome(final, None, None, checks, longest, guard)


def _check(guard: Guard, due: float, origin: float, pauses: PauseSet | None) -> Decision:
    if pauses is None:
        return guard.check(due)
    spent = pauses.seconds(origin, due)
    return guard.check(due, paused=not pauses.clean(due, due), paused_s=spent)


def first_sign(run: RunLog) -> tuple | None:
    """The first failed request, fatal line or reward error of a run, or None."""
    return next((e for e in run.events if _is_sign(e)), None)


def _is_sign(event: tuple) -> bool:
    if type(event) is ErrorLine:
        return event.severity == "fatal" and event.kind in OF_KIND
    return type(event) is Retry or (type(event) is TaskRaised and event.kind.startswith("reward-"))


def retry_seconds(timed: Iterable[tuple]) -> list[tuple[int, int]]:
    """(second, failed requests) of a run's (event, time) pairs, in order of time."""
    found: dict[int, int] = {}
    for event, now in timed:
        if type(event) is Retry:
            second = math.floor(now)
            found[second] = found.get(second, 0) + event.count
    return sorted(found.items())
