"""One message of a Miles log to its events, with the state that spans lines.

The base of :class:`logparse.LogParser`, which finds the lines.
"""

from __future__ import annotations

from mileskit.log import logrecords as rec
from mileskit.log.dictline import parse_dict
from mileskit.log.errors_table import WRAP_ENDS, WRAP_HINT, classify, suspicious
from mileskit.log.events import (
    Begun,
    EngineReady,
    EngineStart,
    EngineWeights,
    ErrorLine,
    Eval,
    JobEnd,
    MultiTurn,
    Perf,
    Progress,
    Retry,
    Rollout,
    Step,
    Timer,
)
from mileskit.log.lineshape import BAR, MESSAGE_SOURCE, RECORD, Clock, clean_text, repeat_count
from mileskit.log.retryrecords import first_half, one_line, second_half
from mileskit.log.runtrack import RunTracker

CACHED_LINE = 1024
# A Ray prefix with an address and colours is shorter than this.
LONGEST_PREFIX = 90
_CACHE = 2048
_DICT_KINDS = {
    b"step": "step",
    b"critic-step": "critic",
    b"rollout": "rollout",
    b"perf": "perf",
    b"eval": "eval",
    b"multi_turn": "multi_turn",
}
_MAKERS = {
    "step": Step,
    "critic": lambda n, t, i, d: Step(n, t, i, d, "critic"),
    "rollout": Rollout,
    "perf-rollout": lambda n, t, i, d: Perf(n, t, i, d, "rollout"),
    "perf-trainer": lambda n, t, i, d: Perf(n, t, i, d, "trainer"),
    "eval": Eval,
    "multi_turn": MultiTurn,
}
# Events that a cut line may still give: they hold no number that the cut could shorten.
_SAFE_CUT = (EngineStart, EngineReady, JobEnd)
_MAX_WRAP = 64 * 1024
SOMETHING, NOTHING_HERE, COPY_BEGINS = 0, 1, 2


class MessageReader:
    """Reads messages into ``self._out``; the subclass gives the lines and their times."""

    def __init__(self, utc_offset_s: float):
        self.time: float | None = None
        self.begun: list[Begun] = []  # first line with a timestamp, of each run
        self.of_miles = False  # a record of a Miles logger was seen
        self._awaited = True
        self._aside: dict = {}
        self._clock = Clock(utc_offset_s)
        self._out: list = []
        self._runs = RunTracker()
        self._memo: dict = {}  # whole line -> None (nothing) or second half of a retry
        self._tails: dict = {}  # text behind a stamp -> None, event, or first half of a retry
        self._pending: dict = {}  # Ray prefix -> first half that waits for its second
        self._resolved = -1
        self._line_prefix = b""
        self._bars: dict = {}
        self._bar_memo: dict = {}
        self._wrap: tuple | None = None
        self._wrap_head: tuple | None = None
        self._cut_head: tuple | None = None
        self._copy = False
        self._copy_since: float | None = None

    def _time_before(self, i: int) -> float | None:
        raise NotImplementedError

    def _slow(self, i: int, n: int, line: bytes, finished: bool = True) -> bool:
        raise NotImplementedError

    def _message(self, i, n, t, line, msg, stamp, fraction, source, finished):
        """Looks at one message; says whether it held something."""
        if stamp is None and self._wrap_head is not None and self._continue_dict(n, msg):
            return SOMETHING
        if self._cut_head is not None and self._continue_head(n, msg, stamp, finished):
            return SOMETHING
        if stamp is None and line.startswith(b"# "):
            ev = rec.marker(n, t, line, self._clock)
            if finished or rec.is_whole(ev):
                self._marker(i, ev)
            return SOMETHING
        if stamp is None and msg.startswith(b"Status message:"):
            self._error(n, t, msg[15:].strip(), False, True)
            self._copy, self._copy_since = True, self.time
            return COPY_BEGINS
        if source is not None and (m := rec.NUMBERED.match(msg)):
            self._dict(n, t, m, (stamp, fraction), finished)
            return SOMETHING
        if stamp is not None and self._is_cut_head(msg, source):
            self._cut_head = (n, t, (stamp, fraction), msg, source)
            return SOMETHING
        key = msg[:4]
        if key == b"Erro" and stamp is not None:
            if self._first_half(n, t, line, msg):
                return SOMETHING
        elif key == b"For " or (stamp is None and b"retrying... (attempt " in msg[:500]):
            if self._second_half(n, t, line, msg):
                return SOMETHING
        elif key == b"eval" and source is not None and (ev := rec.eval_skipped(n, t, msg)):
            return self._emit(ev)
        reader = rec.BY_START.get(key)
        if reader is not None:
            ev = reader(n, t, msg)
            if ev is rec.NOTHING:
                return NOTHING_HERE
            if type(ev) is Timer and finished:
                self._remember_tail(line, Timer._make, ev[2:])
            if ev is not None:
                return self._emit(ev) if finished or type(ev) in _SAFE_CUT else SOMETHING
        if b"%" in msg[:300] and (m := BAR.match(msg)):
            if finished:
                known = rec.bar(m)
                self._bar(i, n, *known)
            after = RECORD.search(msg, m.end(), m.end() + 400)
            if after and after.start() - m.end() <= 8:
                tail = msg[after.start() :].lstrip()
                if not tail.startswith(b"("):
                    tail = self._line_prefix + b" " + tail
                self._slow(i, n, tail)
            return SOMETHING
        told = self._tolerant(n, t, msg)
        found = self._error(n, t, msg, source is not None, stamp is not None)
        return SOMETHING if told else found

    def _tolerant(self, n, t, msg):
        """Emits that the run has fault tolerance; no part of a run begins with it."""
        if b"fault" not in msg and b"Killing actor" not in msg:
            return False
        ev = rec.fault_tolerance(n, t, msg)
        if ev is not None:
            self._out.append(ev)
        return ev is not None

    def _emit(self, ev):
        kind = type(ev)
        if kind is EngineStart or kind is EngineWeights:
            is_job = kind is EngineStart and ev.what == "job"
            self._begin(self._runs.start_like(ev.line, ev.time, is_job))
        elif kind is JobEnd:
            self._runs.ended = True
        self._runs.content = True
        self._out.append(ev)
        return SOMETHING

    def _begin(self, start):
        """Announces a further run."""
        if start is not None:
            self._bars.clear()
            if not self._awaited:
                self._aside, self._awaited = dict(self._tails), True
                self._tails.clear()  # every line is looked at until the run's first timestamp
            self._out.append(start)

    def _marker(self, i, ev):
        if ev.name == "run":
            self._begin(self._runs.run_marker(ev.line, ev.time))
        self._out.append(ev)
        if ev.time is not None and ev.name in ("date", "end"):
            self.time = ev.time
            self._resolved = max(self._resolved, i)
        if ev.name == "end":
            self._runs.ended = True
            if ev.status is not None:
                how = rec.how_by_status(ev.status)
                self._out.append(JobEnd(ev.line, ev.time, how, ev.status, "marker"))

    def _bare_bar(self, i, n, piece) -> bool:
        """A redrawn part that is a bar and nothing else."""
        m = BAR.match(piece) if b"%" in piece[:300] else None
        if m is None or m.end() < len(piece) - 1:
            return False
        known = rec.bar(m)
        if len(piece) < CACHED_LINE:
            remember(self._bar_memo, piece, known)
        self._bar(i, n, *known)
        return True

    def _bar(self, i, n, name, label, done, total, elapsed):
        """Emits a bar only if it moved (its label names the batch that is being captured)."""
        state = (label, done, total)
        before = self._bars.get(name)
        if before == state:
            return
        if len(self._bars) >= 256:
            self._bars.clear()
        self._bars[name] = state
        if done > 0 or before is not None:
            self._runs.content = True
            self._out.append(Progress(n, self._time_before(i), label, done, total, elapsed))

    # -- metrics ---------------------------------------------------------------------------------

    def _dict(self, n, t, m, stamp, finished):
        kind, index, raw = _DICT_KINDS[m[1]], int(m[2][:12]), m[3]
        metrics = parse_dict(raw)
        if metrics is None:
            raw, _ = repeat_count(raw)
            metrics = parse_dict(raw)
        if metrics is None:
            if finished and len(raw) < _MAX_WRAP:
                self._wrap_head = (n, n, t, kind, index, stamp, raw)
            return
        self._numbered(n, t, kind, index, raw, stamp, metrics)

    def _continue_dict(self, n, msg):
        """Joins a dict that a terminal wrapped; True when the line belongs to it."""
        newest, first, t, kind, index, stamp, raw = self._wrap_head
        joined = raw + msg
        self._wrap_head = None
        if n > newest + 1 or len(joined) > _MAX_WRAP or msg.startswith((b"(", b"# ")):
            return False
        metrics = parse_dict(joined)
        if metrics is None:
            self._wrap_head = (n, first, t, kind, index, stamp, joined)
        else:
            self._numbered(first, t, kind, index, joined, stamp, metrics)
        return True

    @staticmethod
    def _is_cut_head(msg, source):
        """Whether a terminal's wrap may have cut a record before its dict or exception."""
        if source is not None:
            return rec.is_cut_head(msg)
        return len(msg) <= 90 and rec.CUT_SOURCE.fullmatch(msg) is not None

    def _continue_head(self, n, msg, stamp, finished):
        """Joins a record that was cut before its dict; True when the line belongs to it."""
        first, t, stamps, head, source = self._cut_head
        self._cut_head = None
        if stamp is not None or n != first + 1:
            return False
        for joined in (head + msg, head + b" " + msg):
            at = 0
            if source is None:
                m = MESSAGE_SOURCE.match(joined)
                if m is None:
                    continue
                at = m.end()
            if m := rec.NUMBERED.match(joined, at):
                self._dict(first, t, m, stamps, finished)
                if self._wrap_head is not None:
                    self._wrap_head = (n, *self._wrap_head[1:])
                return True
            if (ev := rec.task_raised(first, t, joined[at:])) is not None:
                self._emit(ev)
                return True
        return False

    def _numbered(self, n, t, kind, index, raw, stamp, metrics):
        if kind == "perf":
            side = "trainer"
            if "perf/rollout_time" in metrics or any(k.startswith("rollout/") for k in metrics):
                side = "rollout"
            kind = f"perf-{side}"
        take, start = self._runs.numbered(n, t, kind, index, stamp, raw)
        self._begin(start)
        if take:
            self._emit(_MAKERS[kind](n, t, index, metrics))

    # -- retries ---------------------------------------------------------------------------------

    def _first_half(self, n, t, line, msg):
        half = first_half(msg)
        if half is None:
            fields = one_line(msg)
            if fields is None:
                return False
            self._remember_tail(line, Retry._make, fields)
            self._emit(Retry(n, t, *fields))
            return True
        prefix = line[: max(0, line.find(b"[20"))]
        if prefix in self._pending:
            self._orphan(prefix)
        if len(self._pending) >= 64:
            self._orphan(next(iter(self._pending)))
        self._pending[prefix] = (n, t, half)
        self._runs.content = True
        self._remember_tail(line, None, half)
        return True

    def _remember_tail(self, line, make, rest):
        """Remembers what follows a logger prefix: a first half, an event, or nothing."""
        j = line.find(b"] ")
        if 0 <= line.find(b"[20", 0, max(j, 0)) <= LONGEST_PREFIX and len(line) < CACHED_LINE:
            remember(self._tails, line[j:], None if rest is None else (make, rest))

    def _second_half(self, n, t, line, msg):
        found = second_half(msg)
        if found is None:
            return False
        status, half = found
        prefix = line[: max(0, line.find(b"For more"))]
        known = (prefix, half, status)
        if len(line) < CACHED_LINE and msg.startswith(b"For more"):
            remember(self._memo, line, known)
        if prefix not in self._pending and self._pending and not prefix:
            prefix = next(reversed(self._pending))  # a wrapped line has lost its Ray prefix
        first = self._pending.pop(prefix, None)
        if first is None:
            self._second_alone(n, t, known)
        else:
            a, t, (status, times) = first
            self._emit(Retry(a, t, status, *half[:4], max(times, half[4])))
        return True

    def _second_alone(self, n, t, known):
        """A second half whose first is missing: the log may begin inside a record."""
        self._emit(Retry(n, t, known[2], *known[1]))

    def _orphan(self, prefix):
        """A first half whose second never came."""
        n, t, (status, count) = self._pending.pop(prefix)
        self._emit(Retry(n, t, status, None, None, None, None, count))

    # -- errors ----------------------------------------------------------------------------------

    def _error(self, n, t, msg, sourced, stamped):
        msg = msg[:4096]
        if self._wrap is None and not suspicious(msg) and not msg.endswith(WRAP_ENDS):
            return NOTHING_HERE
        msg, count = repeat_count(msg)
        row = classify(msg, anchored=sourced)
        wrap, self._wrap = self._wrap, None
        if wrap is not None and not stamped and n <= wrap[0] + 3:
            # A terminal cuts inside a word and after a blank, a text filler drops the blank.
            joined = wrap[2] + msg[:400]
            whole = classify(joined)
            if whole is None or whole.kind == wrap[3]:
                spaced = wrap[2] + b" " + msg[:400]
                joined, whole = spaced, classify(spaced)
            if whole is not None and whole.kind not in (wrap[3], row.kind if row else None):
                self._emit(
                    ErrorLine(wrap[0], wrap[1], whole.kind, whole.severity, clean_text(joined))
                )
                return SOMETHING
            if row is None:
                self._wrap = (wrap[0], wrap[1], joined, wrap[3])
                return SOMETHING
        if not sourced and len(msg) < 400 and WRAP_HINT.search(msg[-200:]):
            self._wrap = (n, t, msg, row.kind if row else None)
        if row is None:
            return NOTHING_HERE if self._wrap is None else SOMETHING
        return self._emit(ErrorLine(n, t, row.kind, row.severity, clean_text(msg), count))


def remember(cache: dict, key, value) -> None:
    if len(cache) >= _CACHE:
        cache.clear()
    cache[key] = value
