"""Incremental parser of a Miles log: bytes in, typed events out.

``LogParser.feed(data)`` takes any cut of the log and returns the events of the lines that became
complete (a carriage return completes a bar); ``close()`` returns those of the rest.  Memory is
constant: one partial line of at most MAX_LINE bytes (the rest of a longer line is dropped up to
its newline) and a few bounded caches.

Speed comes from three things: most lines are dropped by their last bytes alone; a whole line that
held nothing is remembered; a retry record is read from two remembered halves, so that only its
time is parsed.
"""

from __future__ import annotations

import logrecords as rec
from dictline import parse_dict
from errors_table import WRAP_HINT, classify
from events import (
    CutLine,
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
    RunStart,
    Step,
    Timer,
)
from lineshape import ANSI, BAR, HEAD, RECORD, Clock, clean_text, repeat_count

MAX_LINE = 256 * 1024
_CACHE = 2048
_CACHED_LINE = 1024
# Ends of the engine's access log and of its most frequent notice; no event line ends in these.
_NOTHING = (
    b'" 200 OK',
    b"successfully!",
    b'" 503 Service Unavailable',
    b'" 404 Not Found',
    b'" 500 Internal Server Error',
)
_MISS = object()
# A Ray prefix with an address and colours is shorter than this.
_LONGEST_PREFIX = 90
_BATCH = (b"Deco", b"Pref")
_DICT_KINDS = {
    b"step": "step",
    b"critic-step": "critic",
    b"rollout": "rollout",
    b"perf": "perf",
    b"eval": "eval",
    b"multi_turn": "multi_turn",
}
_NUMBERED = ("step", "critic", "rollout", "perf-rollout", "perf-trainer")
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
_SOMETHING, _NOTHING_HERE, _COPY_BEGINS = 0, 1, 2
_make_retry = Retry._make


class LogParser:
    """Parser state of one log.

    ``utc_offset_s``: seconds that the log's clock is ahead of UTC.
    ``line``: complete physical lines so far; ``time``: time of the newest timestamped line;
    ``partial``: bytes of the unfinished line; ``cut``: after close, the log stopped inside a line.
    """

    def __init__(self, utc_offset_s: float = 0.0):
        self.line = 0
        self.time: float | None = None
        self.cut = False
        self._clock = Clock(utc_offset_s)
        self._rest = b""
        self._drop = False
        self._out: list = []
        self._memo: dict = {}
        self._tails: dict = {}
        self._has_return = False
        self._pending: dict = {}
        self._lines: list = []
        self._resolved = -1
        self._line_prefix = b""
        self._bars: dict = {}
        self._bar_memo: dict = {}
        self._wrap: tuple | None = None
        self._wrap_head: tuple | None = None
        self._copy = False
        self._copy_since: float | None = None
        self._last: dict = {}
        self._seen: dict = {}
        self._maybe: tuple | None = None
        self._content = False
        self._ended = False
        self._marked = False

    @property
    def partial(self) -> int:
        return len(self._rest)

    def feed(self, data: bytes) -> list:
        """Events of the lines that ``data`` completes."""
        self._out = out = []
        if self._drop:
            ends = [p for p in (data.find(b"\n"), data.find(b"\r")) if p >= 0]
            if not ends:
                return out
            data = data[min(ends) :]
            self._drop = False
        if self._rest:
            data = self._rest + data
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if data[cut - 1 : cut] == b"\r" and cut == len(data):
            # Half of a line end perhaps: wait for the next byte, but no longer than one feed.
            cut = max(data.rfind(b"\n", 0, cut - 1), data.rfind(b"\r", 0, cut - 1)) + 1
        self._rest = data[cut:]
        if len(self._rest) > MAX_LINE:
            self._rest = self._rest[:MAX_LINE]
            self._drop = True
        if cut:
            self._body(data[:cut])
        return out

    def close(self) -> list:
        """Events of an unfinished last line, and a CutLine if there is one."""
        self._out = out = []
        rest, self._rest, self._drop = self._rest, b"", False
        if rest:
            self.cut = True
            pieces = rest.rstrip(b"\r").split(b"\r")
            self._lines, self._resolved = [rest], -1
            for piece in pieces:
                if piece and not self._copy:
                    self._slow(0, self.line + 1, piece, finished=False)
            self.time = self._time_before(1)
            out.append(CutLine(self.line + 1, self.time, clean_text(rest[-200:], 200)))
        for prefix in list(self._pending):
            self._orphan(prefix)
        return out

    # -- lines -----------------------------------------------------------------------------------

    def _body(self, body: bytes) -> None:
        if b"\r\n" in body:
            body = body.replace(b"\r\n", b"\n")
        self._has_return = b"\r" in body
        lines = body.split(b"\n")
        finished = len(lines) - 1
        if not lines[-1]:
            lines.pop()
        self._lines, self._resolved = lines, -1
        at, end = 0, len(lines)
        while at < end:
            at = self._skip_copy(at) if self._copy else self._scan(at)
        self.time = self._time_before(end)
        self.line += finished
        self._lines = []
        if len(lines) == finished:
            self._line_prefix = b""

    def _scan(self, start: int) -> int:
        """Parses lines from ``start``; returns where to go on (earlier than the end when a copy
        of the log begins)."""
        lines, out, memo, tails = self._lines, self._out, self._memo, self._tails
        has_return = self._has_return
        pending, seconds = self._pending, self._clock.second
        base = self.line + 1
        numbered = enumerate(lines[start:] if start else lines, start)
        for i, line in [(i, x) for i, x in numbered if not x.endswith(_NOTHING)]:
            if has_return and b"\r" in line:
                if self._redrawn(i, base + i, line):
                    return i + 1
                continue
            j = line.find(b"] ")
            k = line.find(b"[20", 0, j) if j > 0 else -1
            if not 0 <= k <= _LONGEST_PREFIX:
                known = memo.get(line, _MISS)
                if known is None:
                    continue
                if known is not _MISS:
                    first = pending.pop(known[0], None)
                    if first is None:
                        self._second_alone(base + i, self._time_before(i), known)
                        continue
                    a, t, (status, times) = first
                    attempt, limit, code, url, more = known[1]
                    times = times if times > more else more
                    out.append(_make_retry((a, t, status, attempt, limit, code, url, times)))
                    continue
            else:
                known = tails.get(line[j:], _MISS)
                if known is None:
                    continue
                if known is _MISS:
                    known = rec.batch(line, j + 2) if line[j + 2 : j + 6] in _BATCH else None
                t = seconds(line[k + 1 : k + 20]) if known is not None else None
                if t is not None:
                    if line[k + 20] == 46 and line[k + 24] == 32:
                        t += float(line[k + 20 : k + 24])
                    self.time = t
                    self._resolved = i
                    self._content = True
                    make, rest = known
                    if make is not None:
                        out.append(make((base + i, t, *rest)))
                        continue
                    prefix = line[:k]
                    if prefix in pending:
                        self._orphan(prefix)
                    pending[prefix] = (base + i, t, rest)
                    continue
            if self._slow(i, base + i, line):
                return i + 1
        return len(lines)

    def _skip_copy(self, start: int) -> int:
        """Skips the copy of the log tail that Ray prints after "Status message:"."""
        for i in range(start, len(self._lines)):
            line = self._lines[i]
            if line.startswith((b"# ", b"EXEC:", b"Job submission server address")):
                self._copy = False
            else:
                t = self._clock.of_line(line)
                if t is not None and self._copy_since is not None and t > self._copy_since + 2:
                    self._copy = False
            if not self._copy:
                return i
            self._resolved = i
        return len(self._lines)

    def _time_before(self, i: int) -> float | None:
        """Time of the newest timestamped line before index ``i`` of the current lines."""
        of_line, lines = self._clock.of_line, self._lines
        for k in range(i - 1, self._resolved, -1):
            t = of_line(lines[k])
            if t is not None:
                self.time = t
                break
        self._resolved = max(self._resolved, i - 1)
        return self.time

    def _slow(self, i: int, n: int, line: bytes, finished: bool = True) -> bool:
        """One line that the caches do not know; True when a copy of the log begins after it."""
        if b"\r" in line:
            return self._redrawn(i, n, line, finished)
        m = HEAD.match(line)
        prefix, stamp, fraction, source = m.groups()
        end = m.end()
        t = None
        if stamp is not None:
            t = self._clock.at(stamp, fraction)
        if t is None:
            t = self._time_before(i)
        else:
            self.time = t
            self._resolved = i
        if prefix:
            self._line_prefix = line[: m.end(1)]
        msg = line[end:]
        if b"\x1b" in msg:
            msg = ANSI.sub(b"", msg)
        found = self._message(i, n, t, line, msg, stamp, fraction, source, finished)
        if found is _NOTHING_HERE and finished and len(line) < _CACHED_LINE:
            if stamp is None:
                _remember(self._memo, line, None)
            else:
                self._remember_tail(line, None, None)
        return found is _COPY_BEGINS

    def _redrawn(self, i: int, n: int, line: bytes, finished: bool = True) -> bool:
        """A line whose parts were drawn over each other: bars, perhaps with a record behind."""
        stop = False
        for piece in line.split(b"\r"):
            known = self._bar_memo.get(piece)
            if known is not None and finished:
                self._bar(i, n, *known)
            elif piece.endswith(b") ") and piece.startswith(b"(") and len(piece) <= _LONGEST_PREFIX:
                self._line_prefix = piece[:-1]
            elif piece:
                stop = self._slow(i, n, piece, finished) or stop
        return stop

    # -- messages --------------------------------------------------------------------------------

    def _message(self, i, n, t, line, msg, stamp, fraction, source, finished):
        """Looks at one message; says whether it held something."""
        if stamp is None and self._wrap_head is not None and self._continue_dict(n, msg):
            return _SOMETHING
        if stamp is None and line.startswith(b"# "):
            if finished:
                self._marker(rec.marker(n, t, line, self._clock))
            return _SOMETHING
        if stamp is None and msg.startswith(b"Status message:"):
            self._copy, self._copy_since = True, self.time
            return _COPY_BEGINS
        if source is not None and (m := rec.NUMBERED.match(msg)):
            self._dict(n, t, m, (stamp, fraction), finished)
            return _SOMETHING
        key = msg[:4]
        if key == b"Erro" and stamp is not None:
            if self._first_half(n, t, line, msg):
                return _SOMETHING
        elif key == b"For " or (stamp is None and b"retrying... (attempt " in msg[:500]):
            if self._second_half(n, t, line, msg):
                return _SOMETHING
        elif key == b"eval" and source is not None and (ev := rec.eval_skipped(n, t, msg)):
            return self._emit(ev)
        reader = rec.BY_START.get(key)
        if reader is not None:
            ev = reader(n, t, msg)
            if ev is rec.NOTHING:
                return _NOTHING_HERE
            if type(ev) is Timer and finished:
                self._remember_tail(line, Timer._make, ev[2:])
            if ev is not None:
                return self._emit(ev) if finished or type(ev) in _SAFE_CUT else _SOMETHING
        if b"%" in msg[:300] and (m := BAR.match(msg)):
            if finished:
                known = rec.bar(m)
                self._bar(i, n, *known)
                if m.end() >= len(msg) - 1 and line == msg and len(line) < _CACHED_LINE:
                    _remember(self._bar_memo, line, known)
            after = RECORD.search(msg, m.end(), m.end() + 400)
            if after and after.start() - m.end() <= 8:
                tail = msg[after.start() :].lstrip()
                if not tail.startswith(b"("):
                    tail = self._line_prefix + b" " + tail
                self._slow(i, n, tail)
            return _SOMETHING
        return self._error(n, t, msg, source is not None, stamp is not None)

    def _emit(self, ev):
        kind = type(ev)
        if kind is EngineStart or kind is EngineWeights:
            self._start_like(ev)
        elif kind is JobEnd:
            self._ended = True
        self._content = True
        self._out.append(ev)
        return _SOMETHING

    def _new_run(self, n, t, why, since):
        self._out.append(RunStart(n, t, why, since))
        self._last.clear()
        self._bars.clear()
        self._maybe = None
        self._content = self._ended = self._marked = False

    def _start_like(self, ev):
        """The engine or the job starts: a new run if the last one ended, else perhaps one."""
        if self._content and (self._ended or getattr(ev, "what", "") == "job"):
            self._new_run(ev.line, ev.time, "after-end" if self._ended else "job", ev.line)
        elif self._maybe is None:
            self._maybe = (ev.line, ev.time)

    def _marker(self, ev):
        if ev.name == "run":
            if self._content or self._ended or self._marked:
                self._new_run(ev.line, ev.time, "marker", ev.line)
            self._marked = True
        self._out.append(ev)
        if ev.time is not None and ev.name in ("date", "end"):
            self.time = ev.time
            self._resolved = max(self._resolved, ev.line - self.line - 1)
        if ev.name == "end":
            self._ended = True
            if ev.status is not None:
                how = rec.how_by_status(ev.status)
                self._out.append(JobEnd(ev.line, ev.time, how, ev.status, "marker"))

    def _bar(self, i, n, name, label, done, total):
        """Emits a bar only if it moved (its label names the batch that is being captured)."""
        state = (label, done, total)
        before = self._bars.get(name)
        if before == state:
            return
        if len(self._bars) >= 256:
            self._bars.clear()
        self._bars[name] = state
        if done > 0 or before is not None:
            self._content = True
            self._out.append(Progress(n, self._time_before(i), label, done, total))

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

    def _numbered(self, n, t, kind, index, raw, stamp, metrics):
        if kind == "perf":
            side = "trainer"
            if "perf/rollout_time" in metrics or any(k.startswith("rollout/") for k in metrics):
                side = "rollout"
            kind = f"perf-{side}"
        mark = (stamp, hash(raw))
        if kind in _NUMBERED:
            last = self._last.get(kind)
            if last is not None and index <= last[0]:
                if self._seen.get((kind, index)) == mark:
                    return  # time and text seen before: a copy of the log's tail
                if index == last[0] and self._maybe is None:
                    if mark[1] == last[1]:
                        return  # Megatron prints a step line twice
                else:
                    self._new_run(n, t, "number-down", self._maybe[0] if self._maybe else n)
            self._last[kind] = (index, mark[1])
            if len(self._seen) >= 512:
                self._seen.clear()
            self._seen[(kind, index)] = mark
        self._maybe = None
        make = _MAKERS[kind]
        self._emit(make(n, t, index, metrics))

    # -- retries ---------------------------------------------------------------------------------

    def _first_half(self, n, t, line, msg):
        m = rec.FIRST_HALF.match(msg)
        prefix = line[: max(0, line.find(b"[20"))]
        if m is None:
            msg, count = repeat_count(msg)
            m = rec.ONE_LINE.match(msg)
            if m is None:
                return False
            code = rec.router_code(m[5]) or clean_text(m[1], 80) or None
            url = clean_text(m[4], 200)
            rest = (None, int(m[2][:9]), int(m[3][:9]), code, url, count)
            self._remember_tail(line, Retry._make, rest)
            self._emit(Retry(n, t, *rest))
            return True
        _, count = repeat_count(msg)
        half = (int(m[1]), count)
        if prefix in self._pending:
            self._orphan(prefix)
        if len(self._pending) >= 64:
            self._orphan(next(iter(self._pending)))
        self._pending[prefix] = (n, t, half)
        self._content = True
        self._remember_tail(line, None, half)
        return True

    def _remember_tail(self, line, make, rest):
        """Remembers what follows a logger prefix: a first half, an event, or nothing."""
        j = line.find(b"] ")
        if 0 <= line.find(b"[20", 0, max(j, 0)) <= _LONGEST_PREFIX and len(line) < _CACHED_LINE:
            _remember(self._tails, line[j:], None if rest is None else (make, rest))

    def _second_half(self, n, t, line, msg):
        bare, count = repeat_count(msg)
        m = rec.SECOND_HALF.match(bare)
        if m is None:
            return False
        prefix = line[: max(0, line.find(b"For more"))]
        status = int(m[1]) if m[1] else None
        half = (int(m[2][:9]), int(m[3][:9]), rec.router_code(m[5] or b""), _text(m[4]), count)
        known = (prefix, half, status)
        if len(line) < _CACHED_LINE and msg.startswith(b"For more"):
            _remember(self._memo, line, known)
        if prefix not in self._pending and self._pending and not prefix:
            prefix = next(reversed(self._pending))  # a wrapped line has lost its Ray prefix
        first = self._pending.pop(prefix, None)
        if first is None:
            self._second_alone(n, t, known)
        else:
            a, t, (status, times) = first
            self._emit(Retry(a, t, status, *half[:4], max(times, count)))
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
        msg, count = repeat_count(msg[:4096])
        row = classify(msg, anchored=sourced)
        wrap, self._wrap = self._wrap, None
        if wrap is not None and not stamped and n <= wrap[0] + 3:
            joined = wrap[2] + b" " + msg[:400]
            whole = classify(joined)
            if whole is not None and whole.kind not in (wrap[3], row.kind if row else None):
                self._emit(
                    ErrorLine(wrap[0], wrap[1], whole.kind, whole.severity, clean_text(joined))
                )
                return _SOMETHING
            if row is None:
                self._wrap = (wrap[0], wrap[1], joined, wrap[3])
                return _SOMETHING
        if not sourced and len(msg) < 400 and WRAP_HINT.search(msg[-200:]):
            self._wrap = (n, t, msg, row.kind if row else None)
        if row is None:
            return _NOTHING_HERE if self._wrap is None else _SOMETHING
        return self._emit(ErrorLine(n, t, row.kind, row.severity, clean_text(msg), count))


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else clean_text(raw, 200)


def _remember(cache: dict, key, value) -> None:
    if len(cache) >= _CACHE:
        cache.clear()
    cache[key] = value
