"""Drives the guard over a log on the log's own clock: for ``--clock log``, replay and diagnosis.

A log is read once into the events that the rules use: failed requests are summed per second, of
engine batches and bars one a second is kept, so that memory grows with the hours of a run and not
with its lines.  A file of several runs gives several :class:`RunLog`; each is judged alone, since
between two of them nothing ran.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import BinaryIO, NamedTuple

from mileskit.guard.guardlimits import Limits
from mileskit.guard.logtimes import WEEK, clock_times, last_time, place_bars, series, with_begins
from mileskit.guard.rule_progress import level
from mileskit.guard.rules import Decision, Guard
from mileskit.guard.verdicts import OF_KIND
from mileskit.log.events import (
    CutLine,
    EngineDecode,
    EnginePrefill,
    EngineStart,
    ErrorLine,
    FaultTolerance,
    Marker,
    Progress,
    Retry,
    RunStart,
    TaskRaised,
)
from mileskit.log.logparse import LogParser
from mileskit.summary.pauses import PauseSet

CHUNK = 1 << 18
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
    """``runs`` of a log (at least one), its lines and bytes, and the last time (guard's clock).

    ``of_miles``: some line of it is one of a Miles run.
    """

    runs: list
    lines: int
    bytes: int
    last_time: float | None
    of_miles: bool


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
            name, now = (kind, how), (event.time, None)
            if kind is Progress:
                name, now = (how, series(event)), (event.time, event.elapsed)
            if not how or self._kept.get(name) == now:
                return
            if len(self._kept) >= 4096:
                self._kept.clear()
            self._kept[name] = now
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
        kept = self._thin.out
        of_miles = parser.of_miles or any(type(e) is not CutLine for e in kept)
        events = with_begins(kept, parser.begun)
        times = clock_times(events)
        last = last_time(parser, events, times)
        if times:
            place_bars(events, times, last)
            last = max(last, times[-1])
        return LogRuns(_split(events, times), parser.line, size, last, of_miles)


def load(stream: BinaryIO, utc_offset_s: float = 0.0) -> LogRuns:
    """Reads a whole log.  Raises logsource.LogSourceError from the stream."""
    parser, collector, size = LogParser(utc_offset_s), Collector(), 0
    while data := stream.read(CHUNK):
        size += len(data)
        collector.add(parser.feed(data))
    collector.add(parser.close())
    return collector.runs(parser, size)


def _split(events: list, times: list[float]) -> list[RunLog]:
    """The runs of a log.

    The first lines of a further run may carry no timestamp (a marker, the job's submission); they
    stand at its first one, not at the last of the run before.
    """
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
    for before, run in pairwise(runs):
        if run.events and _has_no_stamp(run.events[0]):
            first = next((t for t in run.times if t > run.start), run.start)
            run.times = [max(t, first) for t in run.times]
        while before.events and type(before.events[-1]) is FaultTolerance:  # the new run's command
            run.events.insert(0, before.events.pop())
            run.times.insert(0, run.start or before.times[-1])
            before.times.pop()
    return runs


def _has_no_stamp(event: tuple) -> bool:
    return type(event) is Marker or (type(event) is EngineStart and event.what in ("job", "ray"))


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
    if all(type(e) is Marker for e in run.events):
        guard.start(run.start)
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
        if now - due > WEEK:
            due += limits.every * math.floor((now - due - WEEK) / limits.every)
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
