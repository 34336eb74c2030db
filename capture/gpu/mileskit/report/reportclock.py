"""The charts of a report over clock time: phases, failed requests, memory, clock, temperature."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from mileskit.heat.gpusample import Sample
from mileskit.judge.clockcheck import seconds_of
from mileskit.report import svgchart
from mileskit.report.reportcharts import View, caption, seconds_or_none
from mileskit.report.reporthtml import block, figure, note
from mileskit.report.svgchart import Lane, Line, Part, legend
from mileskit.report.svgscale import bounds, ticks

_MINUTE = 60
_MOST_MINUTES = 240  # bars; a longer outage is drawn as means of several minutes
_MINUTES = "minutes since the first line"
_LONG = 3 * 3600.0  # seconds from which the time line counts hours


def timeline(view: View) -> str:
    """The run over clock time: phases, pauses, saves and failed requests in lanes."""
    run = view.run
    first, last = seconds_of(run.get("first_time")), seconds_of(run.get("last_time"))
    if first is None or last is None or last <= first:
        return note("no line of this log carries a time")
    rows = [row for row in _lanes(run, first, last) if row.spans]
    if not rows:
        return note("no phase of this log carries a time")
    unit, name = (60.0, "minutes") if last - first < _LONG else (3600.0, "hours")
    span = (0.0, (last - first) / unit)
    rows = [
        row._replace(spans=[((a - first) / unit, (b - first) / unit) for a, b in row.spans])
        for row in rows
    ]
    about = f"time line of {view.name}: {span[1]:.1f} {name}, {len(run['steps']['index'])} steps"
    words = f"{name} since {run['first_time'][:19].replace('T', ' ')} UTC"
    return svgchart.lanes(rows, span, about, words, x_ticks=ticks(*span, 6))


def _lanes(run: dict, first: float, last: float) -> Iterator[Lane]:
    table = run["rollouts"]

    def column(name):
        return table["columns"].get(name) or [None] * len(table["index"])

    # The engine's own line ends the drawn rollout; the trainer's comes later, after its
    # log-probability pass.
    names = ("time/rollout_perf_line", "time/rollout_line")
    ends = [seconds_of(a or b) for a, b in zip(*map(column, names), strict=True)]
    perf = [seconds_of(v) for v in column("time/perf_line")]
    rollout = _spans(ends, column("perf/rollout_time"))
    ready = seconds_of((run.get("startup") or {}).get("ready", {}).get("time"))
    begun = ready or min((span[0] for span in rollout), default=None)
    yield Lane("start-up", [(first, begun)] if begun and begun > first else [], "lifecycle")
    yield Lane("rollout", rollout, "engine")
    yield Lane("training", _spans(perf, column("perf/train_time")), "trainer", "h-trainer")
    pauses = [(seconds_of(p["start"]), seconds_of(p["end"]) or last) for p in run["pauses"]]
    yield Lane("paused", pauses, "lifecycle", "h-lifecycle")
    saves = [seconds_of(s.get("time")) for s in run.get("saves") or []]
    yield Lane("saved", [(s, s) for s in saves if s is not None], "durable")
    yield Lane("failed requests", list(_retry_spans(run)), "failure", "h-failure")


def _spans(ends, lengths) -> list[tuple[float, float]]:
    found = []
    for end, length in zip(ends, lengths, strict=True):
        length = seconds_or_none(length)
        if end is not None and length is not None and length < 1e9:
            found.append((end - length, end))
    return found


def _per_second(run: dict) -> tuple[str | None, list]:
    per = (run.get("retries") or {}).get("per_second") or {}
    return per.get("start"), per.get("runs") or []


def _retry_spans(run: dict) -> Iterator[tuple[float, float]]:
    start, runs = _per_second(run)
    at = seconds_of(start)
    for count, seconds in runs:
        if count:
            yield at, at + seconds
        at += seconds


def per_minute(run: dict) -> list[int]:
    """Failed requests of each minute since the second of the first one."""
    found: list[int] = []
    at = 0
    for count, seconds in _per_second(run)[1]:
        end = at + seconds
        while count and at < end:
            minute = at // _MINUTE
            stop = min(end, (minute + 1) * _MINUTE)
            found += [0] * (minute + 1 - len(found))
            found[minute] += count * (stop - at)
            at = stop
        at = end
    return found


def retries_block(views: Sequence[View]) -> str:
    """Failed requests per minute of each run that had any."""
    title = "Failed requests per minute"
    counts = [per_minute(view.run) for view in views]
    told = [view.run["retries"]["total"] for view in views]
    if not any(counts) and not any(told):
        return block(title, "no failed request in this report", [])
    panels = [
        _retries(views, view, per)
        for view, per, total in zip(views, counts, told, strict=True)
        if per or total
    ]
    none = ", ".join(v.name for v, n in zip(views, told, strict=True) if not n)
    return block(title, f"none in {none}" if none else "", panels)


def _retries(views, view: View, per: list[int]) -> str:
    retries = view.run["retries"]
    status = ", ".join(
        f"{n} with {'no answer' if s == 'none' else f'HTTP {s}'}"
        for s, n in retries["by_status"].items()
    )
    notes = [f"{retries['total']} failed requests: {status}"]
    if retries.get("max_attempt"):
        notes.append(f"deepest attempt {retries['max_attempt']}")
    if retries.get("exhausted"):
        notes.append(f"{retries['exhausted']} given up after their last attempt")
    if not per:
        return figure(caption(views, view), "", [*notes, "none of them carries a time"])
    start = view.run["retries"]["per_second"]["start"][:19].replace("T", " ")
    words, about = f"minutes since {start} UTC", f"failed requests per minute, {view.name}"
    about += f": at most {max(per)}"
    size = math.ceil(len(per) / _MOST_MINUTES)
    groups = [per[i : i + size] for i in range(0, len(per), size)]
    means = [sum(group) / len(group) for group in groups]
    xs, top = [i * size for i in range(len(means))], bounds(means, zero=True)[1]
    if size > 1:
        notes.append(f"a value is the mean of {size} minutes")
        body = svgchart.lines([Line("failed", xs, means, "failure")], about, words, (0, top))
    else:
        part = Part("failed requests", means, "failure", "h-failure")
        body = svgchart.stacked(xs, [part], about, words, top)
    return figure(caption(views, view), body, notes)


def memory_block(views: Sequence[View]) -> str:
    """Memory of the GPU: the trainer's own lines of the log, and samples where there are any."""
    panels = []
    for view in views:
        found = [p for p in (_memory_lines(views, view), _memory_samples(views, view)) if p]
        if not found:
            why = view.input.no_log or "no memory line of the trainer in this log"
            found = [figure(caption(views, view), "", [why, view.no_samples])]
        panels += found
    return block("Memory", "GB of 2**30 bytes, as the programs print them", panels)


_MEMORY = (
    ("before offload", "used_GB", "whole GPU, trainer loaded", "outside", 0),
    ("after offload", "used_GB", "whole GPU, trainer offloaded", "outside", 1),
    ("before offload", "reserved_GB", "trainer, reserved", "lifecycle", 2),
    ("before offload", "allocated_GB", "trainer, allocated", "trainer", 3),
)  # part of the line's words, its field, label, role, dash


def _memory_lines(views, view: View) -> str:
    memory = view.input.memory
    if not memory:
        return ""
    gpus = sorted({m.gpu for m in memory})
    memory = [m for m in memory if m.gpu == gpus[0]]
    first = seconds_of(view.run["first_time"]) or memory[0].time
    lines = []
    for when, key, words, role, dash in _MEMORY:
        points = [m for m in memory if when in m.when and key in m.gb]
        if points:
            xs = [(m.time - first) / _MINUTE for m in points]
            lines.append(Line(words, xs, [m.gb[key] for m in points], role, dash))
    if not lines:
        xs = [(m.time - first) / _MINUTE for m in memory]
        lines = [Line("whole GPU", xs, [m.gb.get("used_GB") for m in memory], "outside")]
    peak = max(memory, key=lambda m: m.gb.get("used_GB", 0.0))
    most = f"{peak.gb.get('used_GB', 0):g} of {peak.gb.get('total_GB', 0):g} GB"
    notes = [f"{len(memory)} lines of the log; most used: {most}, {peak.when}"]
    if len(gpus) > 1:
        notes.append(f"GPU {gpus[0]} of {len(gpus)}")
    if view.shared:
        notes.append("GPU shared: what the whole GPU uses holds other work too")
    scale = bounds([y for one in lines for y in one.ys], True)
    about = f"memory over time, {view.name}: at most {most}"
    body = svgchart.lines(lines, about, _MINUTES, scale)
    body += legend([(one.label, one.role, f"dash {one.dash}") for one in lines])
    return figure(caption(views, view), body, notes)


def _inside(view: View) -> list[Sample]:
    first, last = (seconds_of(view.run.get(k)) for k in ("first_time", "last_time"))
    if first is None or last is None:
        return []
    return [s for s in view.samples if first <= s.time <= last]


def _sampled(view: View, field: str, words: str, role: str, factor: float = 1.0) -> Line | None:
    known = [s for s in _inside(view) if getattr(s, field) is not None]
    if not known:
        return None
    first = seconds_of(view.run["first_time"])
    xs = [(s.time - first) / _MINUTE for s in known]
    return Line(words, xs, [getattr(s, field) * factor for s in known], role)


def _memory_samples(views, view: View) -> str:
    line = _sampled(view, "memory_mib", "used", "outside", 1 / 1024)
    if line is None:
        return ""
    most = f"{max(line.ys):.1f} GB"
    notes = [f"{len(line.xs)} samples of the whole GPU; most used: {most}"]
    if view.shared:
        notes.append("GPU shared: the samples hold other work too")
    about = f"sampled GPU memory, {view.name}: at most {most}"
    body = svgchart.lines([line], about, _MINUTES, bounds(line.ys, True))
    return figure(caption(views, view), body, notes)


_CLOCK = (("sm_mhz", "SM clock, MHz", "lifecycle"), ("temp_c", "temperature, °C", "failure"))


def clock_block(views: Sequence[View]) -> str:
    """SM clock and temperature over time, where samples exist."""
    panels = []
    for view in views:
        for field, words, role in _CLOCK:
            line = _sampled(view, field, words, role)
            if line is None:
                continue
            about = f"{words} over time, {view.name}: {min(line.ys):g} to {max(line.ys):g}"
            body = svgchart.lines([line], about, _MINUTES, bounds(line.ys, field == "sm_mhz"))
            panels.append(figure(f"{view.name}: {words}" if len(views) > 1 else words, body, []))
        if not any(s.sm_mhz is not None for s in _inside(view)):
            panels.append(figure(caption(views, view), "", [f"clock unknown: {view.no_samples}"]))
    return block("Clock and temperature", "", panels)
