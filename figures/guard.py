"""Section 1.2: what a dead engine writes into its log, and what the guard does about it."""

from __future__ import annotations

import importlib
import io
import lzma
import re
import statistics
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from figures import evidence
from figures.evidence import Access, EvidenceError
from figures.registry import Figure, figure
from figures.sources import log_distance, measured, published
from figures.style import Style
from figures.values import Value

KILLED = "h200-miles/kill_noft"
LAB = "h200-miles"
WINDOW_S = 60  # one check of the watchdog looks back so far
FINE = ("finished", "stopped")  # recorded verdicts of the runs that a guard must leave alone
FAILED = "failed requests|requests|errors"
_NOUNS = {
    **dict.fromkeys(("errors", "least_minute", "busy_errors", "busy_minute"), FAILED),
    "pauses": "pauses|times",
    "offsets": "offsets",
}
LOGS = "logs|runs"
RULE_OF_THREE = 3  # no event in n trials: at 95 percent confidence the rate is at most 3/n

_KILL = re.compile(rb"^# (\d{4}-\d\d-\d\dT[\d:.]+)Z killer: ", re.MULTILINE)
_FIRST_FAILED = re.compile(
    rb"\[(\d{4}-\d\d-\d\d) ([\d:.]+) rollout_manager\] http_utils\.py:\d+ - "
    rb"Error: Server error '503"
)


@figure("fig-1-2-gb10-dead")
def gb10_dead() -> Figure:
    """The published counts of a dead engine's run and of a busy run that finished."""
    dead = {
        "failed requests in the log": _count("errors", "failed-run-errors"),
        "time from the first to the last": published(
            "minutes", "gb10", "failed-run-minutes", kind="time"
        ),
        "fewest in a full minute": _count("least_minute", "failed-run-min-per-minute"),
        "size of the log": published("log_mb", "gb10", "failed-run-log-mb", kind="memory"),
    }
    busy = {
        "failed requests in the log": _count("busy_errors", "n16-errors"),
        "longest burst": published("busy_burst", "gb10", "n16-burst", kind="time"),
        "most in one minute": _count("busy_minute", "n16-max-minute"),
        "gap between two bursts": published("busy_gap", "gb10", "n16-burst-gap", kind="time"),
    }
    normal = {
        "runs that ended normally": _count("normal_runs", "normal-runs"),
        "failed requests in all of them": published(
            "normal_errors", "gb10", "normal-runs-503", kind="count", unit="", noun=FAILED
        ),
    }
    groups = {
        "engine died at the start": dead,
        "16 answers a prompt, finished": busy,
        "other runs": normal,
    }
    rows = [
        {"run": run, "what": what, "published": value.text, "number": value.number}
        for run, values in groups.items()
        for what, value in values.items()
    ]
    return Figure(
        shape="A table of published counts and times.",
        values=[value for values in groups.values() for value in values.values()],
        rows=rows,
        columns={"run": "Run", "what": "What", "published": "Published"},
    )


@figure("fig-1-2-replay-gb10")
def replay_gb10() -> Figure:
    """The replay table that the GB10 lab published for its busy run, one row a setting."""
    values: list[Value] = []
    rows = []
    for checks in (6, 8, 10):
        asked = _count(f"checks_{checks}", f"replay-checks-{checks}")
        stopped = _count(f"stopped_{checks}", f"replay-stopped-{checks}")
        most = _count(f"most_{checks}", f"replay-most-{checks}")
        dead = published(f"dead_{checks}", "gb10", f"replay-dead-{checks}", kind="time")
        values += [asked, stopped, most, dead]
        rows.append(
            {
                "checks": asked.bare,
                "offsets_stopped": stopped.bare,
                "most_in_a_row": most.bare,
                "dead_engine_stopped_after": dead.text,
            }
        )
    offsets = _count("offsets", "replay-offsets")
    live = published("live", "gb10", "live-stopped", kind="time")
    burst_end = published("burst_end", "gb10", "burst-test-end", kind="time")
    return Figure(
        shape="A table with one row for each number of checks in a row.",
        values=[*values, offsets, live, burst_end],
        rows=rows,
        columns={
            "checks": "Checks in a row",
            "offsets_stopped": f"Busy run stopped, of {offsets.bare} offsets",
            "most_in_a_row": "Most checks in a row above the limit",
            "dead_engine_stopped_after": "Dead engine stopped after",
        },
    )


@figure("fig-1-2-heat-gb10")
def heat_gb10() -> Figure:
    """What the GB10 lab published about its heat guard."""
    values = {
        "pauses in its log": _count("pauses", "pauses"),
        "days that they cover": published("days", "gb10", "pause-days", kind="time"),
        "Ctrl+C in a pause to the resume, at most": published(
            "ctrl_c", "gb10", "guard-ctrl-c", kind="time"
        ),
    }
    return Figure(
        shape="A table of published values.",
        values=list(values.values()),
        rows=[
            {"what": what, "published": value.text, "number": value.number}
            for what, value in values.items()
        ],
        columns={"what": "Heat guard of the GB10 lab", "published": "Published"},
    )


@figure("fig-1-2-kill")
def kill() -> Figure:
    """Failed requests in each second after we killed the engine of a run.

    The run shared its GPU. The seconds here are distances between lines of its log and no speed
    of any work (`sources.log_distance`).
    """
    run = evidence.run(KILLED)
    killed_at, first_failed = marks(run)
    counts = per_second(run)
    total = run.fact("retries", "total")
    if sum(counts) != total:
        raise EvidenceError(f"{KILLED}: the seconds sum to {sum(counts)}, the total is {total}")
    start = run.log_fact("retries", "per_second")["start"]
    offset = evidence.seconds_between(killed_at, start)
    (death,) = [e for e in run.log_fact("errors") if e["kind"] == "engine-died"]
    said_dead = evidence.seconds_between(killed_at, death["first_time"])
    to_first = evidence.seconds_between(killed_at, first_failed)
    path = run.folder / "run.log.xz"
    _, _, table = _guard(str(path), evidence.read(path))
    stop_from, stop_to = table["seconds"]
    windows = [sum(counts[at : at + WINDOW_S]) for at in range(len(counts) - WINDOW_S + 1)]

    def value(
        name: str, number: Any, unit: str, what: str, kind: str = "count", noun: str = ""
    ) -> Value:
        return measured(name, number, unit, 0, what=what, runs=[KILLED], kind=kind, noun=noun)

    def distance(name: str, seconds: float, what: str) -> Value:
        return log_distance(name, seconds, "s", 0, what=what, runs=[KILLED])

    values = [
        value("total", total, "failed requests", "retries:total", noun=FAILED),
        distance("watched", len(counts), "retries:per_second:length"),
        value(
            "per_second", statistics.median(counts), "", "retries:per_second:median", noun=FAILED
        ),
        value("most_per_second", max(counts), "", "retries:per_second:maximum", noun=FAILED),
        value("least_window", min(windows), "failed requests", "retries:least in 60 s"),
        distance("death_line", said_dead, "kill to the engine's own line"),
        distance("first_retry_after_kill_s", to_first, "kill to first retry"),
        value(
            "max_attempt",
            run.fact("retries", "max_attempt"),
            "",
            "retries:max_attempt",
            noun="attempts",
        ),
        value("steps", len(run.index), "steps", "steps"),
    ]
    after = [offset + at for at in range(len(counts))]
    rows = [
        {
            "seconds_after_kill": round(at, 1),
            "failed_requests": n,
            "guard_may_stop": said_dead + stop_from <= at <= said_dead + stop_to,
        }
        for at, n in zip(after, counts, strict=True)
    ]

    def draw(style: Style) -> Any:
        made, ax = style.axes(3.1 if style.narrow else 2.8)
        ax.bar(after, counts, width=1.0, align="edge", facecolor=style.colour("failure"))
        early, late = said_dead + stop_from, said_dead + stop_to
        ax.axvspan(
            early, late, facecolor=style.colour("grid"), edgecolor=style.colour("muted"), zorder=0
        )
        ax.axvline(0, color=style.colour("ink"), linewidth=1.2)
        stopped = "stopped by the guard" if style.narrow else "the guard has stopped the run"
        for place, text in ((0, "engine killed"), (late, stopped)):
            ax.annotate(
                text,
                (place, 1),
                xycoords=("data", "axes fraction"),
                xytext=(2, 2),
                textcoords="offset points",
                ha="left",
                va="bottom",
            )
        ax.set_xlim(-8, after[-1] + 4)
        ax.set_ylim(0, max(counts) * 1.02)
        ax.set_xlabel("seconds after the kill")
        ax.set_ylabel("failed requests in the second" if not style.narrow else "failed requests")
        return made

    return Figure(
        shape=(
            f"Bars, one for each of {len(counts)} seconds; they rise and fall in waves and do not "
            "end before the run does. A shaded band marks the seconds in which the guard stops it."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


class Guarded(NamedTuple):
    """What the guard does on one stored log, over every offset of its checks.

    run: the run's id. fine: its record says that it must be left alone. verdict: the diagnosis of
    its log. hours: length of the log. offsets: of the checks. stopped: how many of them stop it.
    seconds: fewest and most from the first failed request or fatal line to the decision to stop.
    """

    run: str
    fine: bool
    verdict: str
    hours: float
    offsets: int
    stopped: int
    seconds: tuple[float, float] | None


@figure("fig-1-2-detection")
def detection() -> Figure:
    """Each stored log through all rules of the guard, at each of the 30 offsets of its checks.

    Seconds are those of the log's own clock. As in `kill` they are no speed of any work.
    """
    found = list(guarded_runs())
    everything = [row.run for row in found]
    healthy = [row for row in found if row.fine]
    (dead,) = [row for row in found if row.run == KILLED]
    hours = sum(row.hours for row in healthy)
    fine = [row.run for row in healthy]

    def over(
        name: str, number: Any, unit: str, digits: int, what: str, kind: str, noun: str = ""
    ) -> Value:
        return measured(name, number, unit, digits, what=what, runs=fine, kind=kind, noun=noun)

    bound = 100 * RULE_OF_THREE / len(healthy)
    values = [
        measured(
            "logs",
            len(found),
            "",
            0,
            what="runs:runs",
            runs=everything,
            kind="count",
            noun="logs|runs",
        ),
        over("healthy", len(healthy), "", 0, "guard:logs that must not be stopped", "count", LOGS),
        log_distance("hours", hours, "h", 1, what="guard:hours of log", runs=fine),
        over(
            "false_stops",
            sum(bool(row.stopped) for row in healthy),
            "",
            0,
            "guard:healthy logs stopped at any offset",
            "count",
            LOGS,
        ),
        over("bound", bound, "percent", 0, "guard:3 over healthy logs", "share"),
        over(
            "bound_hours", RULE_OF_THREE / hours, "", 1, "guard:3 over hours", "metric", "an hour"
        ),
        measured(
            "killed_stops",
            dead.stopped,
            "",
            0,
            what="guard:offsets that stop",
            runs=[KILLED],
            kind="count",
            noun="offsets",
        ),
        log_distance(
            "killed_stop", dead.seconds, "s", 0, what="guard:seconds to the stop", runs=[KILLED]
        ),
        measured(
            "offsets",
            dead.offsets,
            "",
            0,
            what="guard:offsets",
            runs=everything,
            kind="count",
            noun="offsets|start times",
        ),
    ]
    rows = [
        {
            "run": row.run.partition("/")[2],
            "verdict": row.verdict,
            "minutes": round(60 * row.hours, 1),
            "offsets_stopped": f"{row.stopped} of {row.offsets}",
            "seconds": "{:.0f} to {:.0f}".format(*row.seconds) if row.seconds else "",
        }
        for row in found
    ]
    return Figure(
        shape="A table with one row for each stored log.",
        values=values,
        rows=rows,
        columns={
            "run": "Run",
            "verdict": "Diagnosis",
            "minutes": "Minutes of log",
            "offsets_stopped": "Offsets that stop it",
            "seconds": "Seconds from the first sign",
        },
    )


def guarded_runs() -> Iterator[Guarded]:
    """Every stored run of our lab through the guard, dead ones first."""
    found = []
    for run_id in evidence.run_ids(LAB):
        run = evidence.run(run_id)
        path = run.folder / "run.log.xz"
        verdict, hours, table = _guard(str(path), evidence.read(path))
        evidence.record(Access(run.id, "run.log.xz:through the guard", log=True))
        fine = run.info("ended", "verdict") in FINE
        span = tuple(table["seconds"]) if table["seconds"] else None
        numbers = (table["offsets"], table["stopped"], span)
        found.append(Guarded(run_id, fine, verdict, hours, *numbers))
    return iter(sorted(found, key=lambda row: (row.fine, not row.stopped, row.run)))


@lru_cache(maxsize=64)
def _guard(name: str, data: bytes) -> tuple[str, float, dict[str, Any]]:
    """Verdict, hours and the replay table of one log. `name` keeps its errors readable."""
    logdrive = _kit("mileskit.guard.logdrive")
    log = logdrive.load(io.BytesIO(lzma.decompress(data)))
    if len(log.runs) != 1:
        raise EvidenceError(f"{name}: holds {len(log.runs)} runs, one is expected")
    (run,) = log.runs
    table = _kit("watchdog_replay").full_table(
        run, _kit("mileskit.guard.guardlimits").Limits(), run.end
    )
    verdict = logdrive.drive(run, act=False).decision.verdict
    return verdict, (run.end - run.start) / 3600, table


def _kit(module: str) -> Any:
    """A module of the capture kit, which is no package but a folder of flat modules."""
    folder = str(evidence.ROOT / "capture" / "gpu")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(module)


def per_second(run: evidence.Run) -> list[int]:
    """Failed requests in each second from the first to the last, without gaps."""
    record = run.log_fact("retries", "per_second")
    return [count for count, seconds in record["runs"] for _ in range(seconds)]


def marks(run: evidence.Run) -> tuple[str, str]:
    """When the engine was killed, and when the first request failed (ISO times, UTC).

    The summary has whole seconds only, so both are read from the log itself.
    """
    path = run.folder / "run.log.xz"
    found = _marks(str(path), evidence.read(path))
    evidence.record(Access(run.id, "run.log.xz:killer and first failed request", log=True))
    return found


@lru_cache(maxsize=4)
def _marks(name: str, data: bytes) -> tuple[str, str]:
    text = lzma.decompress(data)
    killed, failed = _KILL.search(text), _FIRST_FAILED.search(text)
    if killed is None or failed is None:
        raise EvidenceError(f"{name}: no line of the killer, or no failed request")
    if b'/generate HTTP/1.1" 200' in text[killed.end() :]:
        raise EvidenceError(f"{name}: a request was answered after the kill")
    return f"{killed[1].decode()}Z", f"{failed[1].decode()}T{failed[2].decode()}Z"


def _count(name: str, value_id: str) -> Value:
    noun = _NOUNS.get(name, "")
    return published(name, "gb10", value_id, kind="count", unit="", noun=noun)
