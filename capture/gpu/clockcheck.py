"""Timing validity: pauses, time since the last one, SM clock and temperature of every step.

A time without a clock record is "clock unknown": a GPU that is stuck in a low-power state, or
throttled, gives clean-looking slow steps.
"""

from __future__ import annotations

import datetime as dt
import statistics
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from gpusample import Sample
from rangejudge import Finding
from runload import Loaded
from setupdiff import Facts
from signals import steps_text

BUSY_PCT = 50.0  # a clock says something about load from here
SLOW = 0.5  # of the highest clock of the record, under load
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
    top = max(clocks, default=None)
    steps = tuple(_steps(one.run, samples, top))
    findings = []
    stuck = [s.step for s in steps if s.stuck]
    if stuck:
        text = f"the SM clock stayed low under load in {steps_text(stuck)}: a stuck low-power state"
        findings.append(Finding("stuck-clock", "time", text))
    return Timing(
        steps, _badge(one, mine, steps, record), tuple(findings), record[1] if record else None
    )


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
    if shared:
        others = [str(name) for name in mine.setup.get("shared_with") or []]
        with_ = f" with {', '.join(others)}" if others else ""
        words.append(f"GPU shared{with_}: these times are no timing result")
    elif shared is None:
        words.append("alone on the GPU or not: unknown")
    else:
        words.append("alone on the GPU")
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
    if one.pause_log or one.run.get("pauses"):
        clean = sum(s.step_clean is True for s in steps)
        words.append(f"{clean} of {len(steps)} whole steps clean of pauses")
    else:
        words.append("no heat-guard log: taken as without pauses")
    return tuple(words)
