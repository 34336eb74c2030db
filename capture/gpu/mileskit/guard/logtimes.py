"""The guard's time of every event of a log: seconds that never fall, from the log's own clock.

The log's clock can be stepped.  A step back (more than a minute) takes no time.  A step forward
looks like silence; it is taken out only when the trainer's own ``perf/step_time`` of the step
around it shows that the time did not pass.

A bar carries no timestamp, and a phase may print nothing else for longer than a deadline: its own
elapsed time places it between the timestamps around it.
"""

from __future__ import annotations

import math

from mileskit.log.events import Begun, JobEnd, Marker, Perf, Progress
from mileskit.log.logclock import LogClock
from mileskit.log.logparse import LogParser

STEP_LEAST = 600.0  # a forward clock step shorter than this cannot pass a deadline alone
ZONE = 1800.0  # time zones differ by multiples of this
WEEK = 7 * 86400.0


def series(event: Progress) -> str:
    """What the bars of one loop share: the label up to what it says of the item at hand."""
    return event.label.split("(", 1)[0][:40]


def with_begins(events: list, begun: list[Begun]) -> list:
    """Events with the first timestamped line of each run among them."""
    found, place = [], 0
    for event in events:
        while place < len(begun) and begun[place].line < event.line:
            found.append(begun[place])
            place += 1
        found.append(event)
    return found + begun[place:]


def place_bars(events: list, times: list[float], end: float) -> None:
    """Moves bars on by their own elapsed time, from where each began to the next timestamp.

    Bars stand at the timestamp before them in ``times``.  Where none follows and the log ends at
    that time (``end``), nothing bounds them.
    """
    bounds, bound, behind = [], end if end > times[-1] else math.inf, times[-1]
    for now in reversed(times):
        if now < behind:
            bound, behind = behind, now
        bounds.append(bound)
    began: dict[str, tuple[float, float]] = {}  # series -> guard's time of its start, elapsed
    now = times[0]
    for i, (event, bound) in enumerate(zip(events, reversed(bounds), strict=True)):
        now = max(now, times[i])
        if type(event) is Progress and event.elapsed is not None:
            start, seen = began.get(series(event), (0.0, math.inf))
            if event.elapsed < seen:  # another bar, or the first
                start = now - event.elapsed
            start = max(start, times[i] - event.elapsed)
            if len(began) >= 4096:
                began.clear()
            began[series(event)] = start, event.elapsed
            now = max(now, min(start + event.elapsed, bound))
        times[i] = now


def last_time(parser: LogParser, events: list, times: list[float]) -> float | None:
    """The guard's time of the log's last timestamp, which may stand after the last event."""
    if parser.time is None or not times:
        return parser.time or (times[-1] if times else None)
    behind = next((e.time for e in reversed(events) if e.time is not None), parser.time)
    return times[-1] + min(max(0.0, parser.time - behind), WEEK)


def clock_times(events: list) -> list[float]:
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
