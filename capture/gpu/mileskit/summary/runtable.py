"""Accumulates the events of one run into the ``runs[]`` object of a summary.

The object's schema is in SUMMARY.md.  Memory grows with the steps of this one run only.
"""

from __future__ import annotations

from mileskit.log.events import (
    EngineCapture,
    EngineKvCache,
    EngineReady,
    EngineWeights,
    ErrorLine,
    Eval,
    EvalSkipped,
    JobEnd,
    Load,
    LoadFailed,
    Marker,
    MultiTurn,
    Perf,
    RetriesExhausted,
    Rollout,
    Save,
    Step,
    TaskRaised,
    Timer,
)
from mileskit.summary.pauses import PauseSet
from mileskit.summary.tables import Table, medians_of, plain, stamp, timing_columns

_MAX_LIST = 1000


class RunTable:
    """Facts of one run."""

    def __init__(self, started_by: str = "file", line: int = 1):
        self.started_by = started_by
        self.line = line
        self.first_time: float | None = None
        self.last_time: float | None = None
        self.markers: dict = {}
        self.notes: list = []
        self.date: float | None = None
        self.startup: dict = {}
        self.rollout: int | None = None  # of the newest rollout line: its steps follow it
        self.rollouts = Table()
        self.steps = Table()
        self.critic_steps = Table()
        self.evals = Table()
        self.trainer_columns: set[str] = set()
        self.evals_skipped: list = []
        self.timers: dict[str, list] = {}
        self.saves: list = []
        self.loads: list = []
        self.loads_failed: list = []
        self.not_listed = 0
        self.retries: dict[tuple, int] = {}
        self.retry_seconds: dict[int, int] = {}
        self.retries_untimed = 0
        self.max_attempt = 0
        self.exhausted = 0
        self.tasks: dict[str, list] = {}
        self.errors: dict[tuple, list] = {}
        self.end: dict | None = None
        self.cut: int | None = None

    # -- events ----------------------------------------------------------------------------------

    def retry(self, ev) -> None:
        """Counts a Retry (called for each of many thousands)."""
        _, t, status, attempt, _, code, _, count = ev
        key = (status, code)
        retries = self.retries
        retries[key] = retries.get(key, 0) + count
        if attempt is not None and attempt > self.max_attempt:
            self.max_attempt = attempt
        if t is None:
            self.retries_untimed += count
        else:
            self.last_time = t
            second = int(t // 1)
            seconds = self.retry_seconds
            seconds[second] = seconds.get(second, 0) + count

    def add(self, ev) -> None:
        """Takes any other event; types without a place in the summary only widen the times."""
        if type(ev) is not Marker or ev.name in ("date", "end"):
            self.seen(ev.time)
        reader = _READERS.get(type(ev))
        if reader is not None:
            reader(self, ev)

    def _listed(self, where: list, item: dict) -> None:
        if len(where) < _MAX_LIST:
            where.append(item)
        else:
            self.not_listed += 1

    def _marker(self, ev):
        if ev.name == "note":
            self._listed(self.notes, {"line": ev.line, "text": ev.text})
        else:
            self.markers.setdefault(ev.name, ev.text)
            if ev.name == "date":
                self.date = ev.time

    def _weights(self, ev):
        self.startup.setdefault(
            "weights_loaded",
            {
                "time": stamp(ev.time),
                "seconds": ev.seconds,
                "gb": ev.gb,
                "type": ev.type,
                "avail_gb": ev.avail_gb,
            },
        )

    def _kv(self, ev):
        fact = {"time": stamp(ev.time), "dtype": ev.dtype, "tokens": ev.tokens}
        fact.update({"k_gb": ev.k_gb, "v_gb": ev.v_gb})
        if ev.kv_gb is not None:
            fact["kv_gb"] = ev.kv_gb
        self.startup.setdefault("kv_cache", fact)

    def _capture(self, ev):
        if ev.phase == "end":
            fact = {"time": stamp(ev.time), "seconds": ev.seconds}
            self.startup.setdefault("cuda_graph", fact)

    def _ready(self, ev):
        self.startup.setdefault("ready", {"time": stamp(ev.time)})

    def _rollout(self, ev):
        self.rollout = ev.index
        self.rollouts.put(ev.index, {**ev.metrics, "time/rollout_line": ev.time})

    def _perf(self, ev):
        if ev.side == "rollout":
            self.rollouts.put(ev.index, {**ev.metrics, "time/rollout_perf_line": ev.time})
        else:
            self.trainer_columns.update(ev.metrics)
            self.rollouts.put(ev.index, {**ev.metrics, "time/perf_line": ev.time})

    def _multi_turn(self, ev):
        self.rollouts.put(ev.index, ev.metrics)

    def _step(self, ev):
        table = self.steps if ev.role == "actor" else self.critic_steps
        row = {**ev.metrics, "time/step_line": ev.time}
        if self.rollout is not None:
            row["rollout"] = self.rollout
        table.put(ev.index, row)

    def _eval(self, ev):
        self.evals.put(ev.index, {**ev.metrics, "time/eval_line": ev.time})

    def _eval_skipped(self, ev):
        self._listed(self.evals_skipped, {"index": ev.index, "reason": ev.reason})

    def _timer(self, ev):
        got = self.timers.setdefault(ev.name, [0, 0.0])
        got[0] += 1
        got[1] += ev.seconds

    def _save(self, ev):
        self._listed(self.saves, {"line": ev.line, "time": stamp(ev.time), "path": ev.path})

    def _load(self, ev):
        fact = {"line": ev.line, "time": stamp(ev.time), "what": ev.what, "path": ev.path}
        self._listed(self.loads, fact)

    def _load_failed(self, ev):
        fact = {"line": ev.line, "time": stamp(ev.time), "what": ev.what, "path": ev.path}
        self._listed(self.loads_failed, {**fact, "reason": ev.reason, "skipped": ev.skipped})

    def _exhausted(self, ev):
        self.exhausted += ev.count

    def _task(self, ev):
        self._count_error(ev, f"task-{ev.kind}", "error")

    def _error(self, ev):
        self._count_error(ev, ev.kind, ev.severity)

    def _count_error(self, ev, kind, severity):
        got = self.errors.get(kind)
        if got is None:
            self.errors[kind] = [severity, ev.count, ev.line, ev.time, ev.text]
        else:
            got[1] += ev.count

    def _job_end(self, ev):
        if self.end is None or ev.by == "marker":
            self.end = {"how": ev.how, "status": ev.status, "line": ev.line, "time": ev.time}

    def started(self) -> bool:
        """True once the run has printed a numbered line."""
        return bool(self.rollouts.index or self.steps.index or self.evals.index)

    # -- results ---------------------------------------------------------------------------------

    def seen(self, t: float | None) -> None:
        """Widens the run's time range."""
        if t is not None:
            if self.first_time is None:
                self.first_time = t
            self.last_time = t

    def absorb(self, other: RunTable) -> None:
        """Takes the facts of a part that turned out to belong to this run."""
        self.seen(other.last_time)
        for name in ("markers", "startup"):
            mine = getattr(self, name)
            for key, value in getattr(other, name).items():
                mine.setdefault(key, value)
        for name in ("rollouts", "steps", "critic_steps", "evals"):
            getattr(self, name).absorb(getattr(other, name))
        self.trainer_columns |= other.trainer_columns
        for name in ("notes", "evals_skipped", "saves", "loads", "loads_failed"):
            for item in getattr(other, name):
                self._listed(getattr(self, name), item)
        for name, (n, total) in other.timers.items():
            got = self.timers.setdefault(name, [0, 0.0])
            got[0] += n
            got[1] += total
        for name in ("retries", "retry_seconds"):
            mine = getattr(self, name)
            for key, n in getattr(other, name).items():
                mine[key] = mine.get(key, 0) + n
        self.retries_untimed += other.retries_untimed
        self.not_listed += other.not_listed
        self.max_attempt = max(self.max_attempt, other.max_attempt)
        self.exhausted += other.exhausted
        for kind, fact in other.errors.items():
            if kind in self.errors:
                self.errors[kind][1] += fact[1]
            else:
                self.errors[kind] = fact
        self.end = other.end or self.end
        self.date = self.date if self.date is not None else other.date

    def result(self, pauses: list, last: bool) -> dict:
        """The run's object of the summary.

        ``pauses``: all pauses of the heat guard; ``last``: no other run follows in the file.
        """
        first, final = self.first_time, self.last_time
        mine = [
            p
            for p in pauses
            if first is not None
            and (p.end is None or p.end >= first)
            and (p.start <= final or (last and not self.end))
        ]
        rollouts, steps = self.rollouts.as_dict(), self.steps.as_dict()
        timing = timing_columns(rollouts, PauseSet(pauses))
        medians = medians_of(rollouts, steps, timing, self.trainer_columns)
        for table in (rollouts, steps):
            for name, column in table["columns"].items():
                if name.startswith("time/"):
                    table["columns"][name] = [stamp(v) for v in column]
        steps["rollout"] = steps["columns"].pop("rollout", [None] * len(steps["index"]))
        steps = {"index": steps["index"], "rollout": steps["rollout"], "columns": steps["columns"]}
        out = {
            "started": stamp(self.date),
            "first_time": stamp(first),
            "last_time": stamp(final),
            "started_by": self.started_by,
            "first_line": self.line,
            "markers": self.markers,
            "notes": self.notes,
            "startup": self.startup,
            "rollouts": rollouts,
            "steps": steps,
        }
        if self.critic_steps.index:
            out["critic_steps"] = plain(self.critic_steps)
        out["evals"] = plain(self.evals)
        out["evals_skipped"] = self.evals_skipped
        out["timers"] = {
            k: {"n": n, "total_s": round(s, 1)} for k, (n, s) in sorted(self.timers.items())
        }
        out["saves"] = self.saves
        out["loads"] = self.loads
        out["loads_failed"] = self.loads_failed
        out["not_listed"] = self.not_listed
        out["retries"] = self._retries()
        out["errors"] = self._errors()
        out["pauses"] = [
            {
                "start": stamp(p.start),
                "end": stamp(p.end),
                "seconds": None if p.end is None else round(p.end - p.start, 3),
                "reason": p.reason,
            }
            for p in mine
        ]
        out["timing"] = timing
        out["medians"] = medians
        out["ended"] = self._ended(last)
        return out

    def _retries(self) -> dict:
        by_status: dict[str, int] = {}
        by_code: dict[str, int] = {}
        for (status, code), n in self.retries.items():
            status = "none" if status is None else str(status)
            by_status[status] = by_status.get(status, 0) + n
            code = "none" if code is None else code
            by_code[code] = by_code.get(code, 0) + n
        seconds = sorted(self.retry_seconds)
        runs: list[list[int]] = []
        before = None
        for second in seconds:
            if before is not None and second > before + 1:
                runs.append([0, second - before - 1])
            count = self.retry_seconds[second]
            if runs and runs[-1][0] == count:
                runs[-1][1] += 1
            else:
                runs.append([count, 1])
            before = second
        return {
            "total": sum(by_status.values()),
            "by_status": dict(sorted(by_status.items())),
            "by_code": dict(sorted(by_code.items())),
            "max_attempt": self.max_attempt,
            "exhausted": self.exhausted,
            "untimed": self.retries_untimed,
            "per_second": {"start": stamp(seconds[0]) if seconds else None, "runs": runs},
        }

    def _errors(self) -> list:
        rows = sorted(self.errors.items(), key=lambda item: (item[1][2], item[0]))
        return [
            {
                "kind": kind,
                "severity": severity,
                "count": count,
                "first_line": line,
                "first_time": stamp(t),
                "text": text,
            }
            for kind, (severity, count, line, t, text) in rows
        ]

    def _ended(self, last: bool) -> dict:
        if self.end is not None:
            return {**self.end, "time": stamp(self.end["time"])}
        how = "cut" if self.cut is not None or not last else "running"
        return {"how": how, "status": None, "line": self.cut, "time": stamp(self.last_time)}


_READERS = {
    Marker: RunTable._marker,
    EngineWeights: RunTable._weights,
    EngineKvCache: RunTable._kv,
    EngineCapture: RunTable._capture,
    EngineReady: RunTable._ready,
    Rollout: RunTable._rollout,
    Perf: RunTable._perf,
    MultiTurn: RunTable._multi_turn,
    Step: RunTable._step,
    Eval: RunTable._eval,
    EvalSkipped: RunTable._eval_skipped,
    Timer: RunTable._timer,
    Save: RunTable._save,
    Load: RunTable._load,
    LoadFailed: RunTable._load_failed,
    RetriesExhausted: RunTable._exhausted,
    TaskRaised: RunTable._task,
    ErrorLine: RunTable._error,
    JobEnd: RunTable._job_end,
}
