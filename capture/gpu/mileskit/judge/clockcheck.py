"""Timing validity: pauses, time since the last one, SM clock and temperature of every step.

A time without a clock record is "clock unknown": a GPU that is stuck in a low-power state, or
throttled, gives clean-looking slow steps.
"""

from __future__ import annotations

import datetime as dt
import functools
import statistics
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from mileskit.heat.gpusample import Sample
from mileskit.judge import runload
from mileskit.judge.rangejudge import Finding
from mileskit.judge.runload import Loaded
from mileskit.judge.setupdiff import Facts
from mileskit.judge.signals import steps_text

BUSY_PCT = 50.0  # a clock says something about load from here
SLOW = 0.5  # of the highest clock known, under load
LOW_MHZ = 700.0
"""Under load no data-centre GPU since 2020 stays below this (an idle H200 of ours: 345 MHz)."""


class StepTime(NamedTuple):
    """One rollout number: seconds, cleanness (None = unknown), pauses and the clock.

    clock_mhz, temp_c: medians of the samples inside the whole step (inside the rollout when the
    step's end is unknown), None without samples; samples: how many; stuck: the clock stayed low
    under load.
    """

    step: int
    rollout_s: float | None
    step_s: float | None
    rollout_clean: bool | None
    step_clean: bool | None
    pause_s: float | None
    since_pause_s: float | None
    clock_mhz: float | None
    temp_c: float | None
    samples: int
    stuck: bool


class Timing(NamedTuple):
    """The steps, the badge (what a time of this run must carry), findings and the record."""

    steps: tuple[StepTime, ...]
    badge: tuple[str, ...]
    findings: tuple[Finding, ...]
    record: str | None


def seconds_of(text: str | None) -> float | None:
    """Unix seconds of a time of a summary."""
    if not text:
        return None
    return dt.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def check(one: Loaded, mine: Facts, record: tuple[list[Sample], str] | None) -> Timing:
    """The timing validity of a run; record: its samples in the order of time, or None."""
    samples = record[0] if record else []
    clocks = [s.sm_mhz for s in samples if s.sm_mhz is not None]
    gpu = str(mine.setup.get("gpu") or "")
    known = top_clock(gpu) if clocks and gpu else None
    top = max([*clocks, *([known] if known else [])], default=None)
    steps = tuple(_steps(one.run, samples, top))
    never = _never_left(one.run, samples, top)
    if never:
        steps = tuple(s._replace(stuck=s.clock_mhz is not None) for s in steps)
    findings = []
    stuck = [s.step for s in steps if s.stuck]
    if stuck:
        text = f"the SM clock stayed low under load in {steps_text(stuck)}: a stuck low-power state"
        if never:
            text = f"the SM clock never left a low state: {never}"
        findings.append(Finding("stuck-clock", "time", text))
    badge = _badge(one, mine, steps, record)
    if stuck:
        badge += (f"{len(stuck)} steps at a stuck clock do not count as clean",)
    elif clocks and known is None and top is not None:
        badge += (f"the GPU's own top clock is not known: all is judged by {top:.0f} MHz",)
    return Timing(steps, badge, tuple(findings), record[1] if record else None)


@functools.lru_cache
def top_clock(gpu: str) -> float | None:
    """The highest SM clock, MHz, in the clock records of stored runs on this GPU; None without."""
    found = []
    for name in runload.stored_runs():
        other = runload.load(name)
        setup = (other.toml or {}).get("setup") or {}
        if setup.get("gpu") == gpu and setup.get("clock_record"):
            record = runload.samples(other)
            found += [s.sm_mhz for s in (record[0] if record else []) if s.sm_mhz is not None]
    return max(found, default=None)


def _never_left(run: dict, samples: list[Sample], top: float | None) -> str:
    """Why the clock was low in the whole run: no sample of it exceeds half of the top; else "".

    The GPU worked in a run with steps, whatever single utilizations say; a record in which it is
    idle throughout belongs to another GPU.
    """
    first, last = (seconds_of(run.get(k)) for k in ("first_time", "last_time"))
    if first is None or last is None or top is None:
        return ""
    inside = [s for s in samples if first <= s.time <= last and s.sm_mhz is not None]
    if not inside or all(s.util_pct == 0 for s in inside):
        return ""
    highest = max(s.sm_mhz for s in inside)
    if highest > SLOW * top and highest >= LOW_MHZ:
        return ""
    against = f"and this GPU reaches {top:.0f}" if highest <= SLOW * top else "an idle clock"
    return f"at most {highest:.0f} MHz in {len(inside)} samples, {against}"


def _steps(run: dict, samples: list[Sample], top: float | None):
    rollouts, timing = run["rollouts"], run["timing"]
    times = [s.time for s in samples]

    def column(name):
        return rollouts["columns"].get(name) or [None] * len(rollouts["index"])

    ends = [
        seconds_of(a or b)
        for a, b in zip(column("time/rollout_line"), column("time/rollout_perf_line"), strict=True)
    ]
    perf = [seconds_of(v) for v in column("time/perf_line")]
    rollout_s, step_s = column("perf/rollout_time"), column("perf/step_time")
    for i, number in enumerate(rollouts["index"]):
        window = _window(perf[i], step_s[i]) or _window(ends[i], rollout_s[i])
        inside: list[Sample] = []
        if window:
            inside = samples[bisect_left(times, window[0]) : bisect_right(times, window[1])]
        clocks = [s.sm_mhz for s in inside if s.sm_mhz is not None]
        temps = [s.temp_c for s in inside if s.temp_c is not None]
        pauses = [timing[k][i] for k in ("rollout_pause_s", "step_pause_s")]
        pauses = [p for p in pauses if p is not None]
        yield StepTime(
            number,
            rollout_s[i],
            step_s[i],
            timing["rollout_clean"][i],
            timing["step_clean"][i],
            max(pauses, default=None),
            timing["since_pause_s"][i],
            statistics.median(clocks) if clocks else None,
            statistics.median(temps) if temps else None,
            len(inside),
            _stuck(inside, top),
        )


def _window(end: float | None, length: float | None) -> tuple[float, float] | None:
    if end is None or length is None or not 0 <= length < 1e9:
        return None
    return end - length, end


def _stuck(inside: list[Sample], top: float | None) -> bool:
    """Whether the clock stayed low while the GPU worked; without a utilization it worked."""
    busy = [
        s.sm_mhz
        for s in inside
        if s.sm_mhz is not None and (s.util_pct is None or s.util_pct >= BUSY_PCT)
    ]
    if not busy or top is None:
        return False
    middle = statistics.median(busy)
    return middle < LOW_MHZ or middle < SLOW * top


def _badge(one: Loaded, mine: Facts, steps, record) -> tuple[str, ...]:
    shared = mine.setup.get("shared")
    words = []
    if shared is True:
        others = [str(name) for name in mine.setup.get("shared_with") or []]
        with_ = f" with {', '.join(others)}" if others else ""
        words.append(f"GPU shared{with_}: these times are no timing result")
    elif shared is False:
        words.append("alone on the GPU")
    else:
        words.append(_unknown_sharing(mine.setup.get("gpu_used_mib_at_start")))
    have = [s for s in steps if s.clock_mhz is not None]
    if record is None:
        words.append("clock unknown")
    elif not have:
        words.append("clock unknown: no sample of the record falls into a step")
    else:
        low, high = min(s.clock_mhz for s in have), max(s.clock_mhz for s in have)
        words.append(
            f"median SM clock of a step {low:.0f} to {high:.0f} MHz"
            f" ({len(have)} of {len(steps)} steps have samples)"
        )
    if one.pause_log and not _touched(one.run):
        words.append(
            "no pause of the guard's log falls into the steps of this run: there was none, or the"
            " two clocks differ (check --utc-offset)"
        )
    elif one.pause_log or one.run.get("pauses"):
        clean = sum(s.step_clean is True for s in steps)
        words.append(f"{clean} of {len(steps)} whole steps clean of pauses")
    else:
        words.append("no heat-guard log: taken as without pauses")
    return tuple(words)


def _touched(run: dict) -> bool:
    """Whether a pause overlaps the time from the first step's start to the last step's end."""
    table = run["rollouts"]
    columns = [
        table["columns"].get(name) or [None] * len(table["index"])
        for name in ("time/rollout_line", "perf/rollout_time", "time/perf_line", "perf/step_time")
    ]
    windows = []
    for line, rollout_s, perf, step_s in zip(*columns, strict=True):
        windows += [_window(seconds_of(line), rollout_s), _window(seconds_of(perf), step_s)]
    known = [w for w in windows if w]
    if not known:
        return bool(run.get("pauses"))
    first, last = min(w[0] for w in known), max(w[1] for w in known)
    return any(
        seconds_of(p["start"]) <= last and (p["end"] is None or seconds_of(p["end"]) >= first)
        for p in run.get("pauses") or []
    )


def _unknown_sharing(used_mib) -> str:
    """Words for a run whose log does not state whether other work shared its GPU."""
    words = "alone on the GPU or not: unknown, the log does not say"
    if isinstance(used_mib, (int, float)) and used_mib > 0:
        words += f"; {used_mib:g} MiB were in use at its start, so maybe shared"
    return words


def first_step(run: dict) -> int | None:
    """The step that no median time may hold: the first of a log that starts the run up.

    `perf 0` holds the first offload and the first weight update too, and the first step of any
    start compiles and fills caches.  None for a log that begins later.
    """
    index = run["rollouts"]["index"]
    if not index or (index[0] != 0 and not run.get("startup")):
        return None
    return index[0]


def timed(steps: tuple[StepTime, ...], run: dict, part: str) -> list[StepTime]:
    """The steps that may count for a median time; part: "step" or "rollout".

    Without the first step, without a step that a pause touches, and without a stuck clock.
    """
    left_out = first_step(run)
    return [
        s
        for s in steps
        if s.step != left_out
        and getattr(s, f"{part}_clean")
        and getattr(s, f"{part}_s") is not None
        and not s.stuck
    ]
