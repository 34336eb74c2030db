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

import copy

from mileskit.log.errors_table import suspicious
from mileskit.log.events import Begun, CutLine, ErrorLine, JobEnd, Retry
from mileskit.log.lineshape import ANSI, HEAD, OUTER, OUTER_FIRST, clean_text
from mileskit.log.logmessages import (
    CACHED_LINE,
    COPY_BEGINS,
    LONGEST_PREFIX,
    NOTHING_HERE,
    MessageReader,
    remember,
)
from mileskit.log.logrecords import batch

MAX_LINE = 256 * 1024
# Ends of the engine's access log and of its most frequent notice; no event line ends in these.
_NOTHING = (
    b'" 200 OK',
    b"successfully!",
    b'" 503 Service Unavailable',
    b'" 404 Not Found',
    b'" 500 Internal Server Error',
)
_MISS = object()
_BATCH = (b"Deco", b"Pref")
_RECORD_START = (b"", b"(", b"[", b"\x1b")
_make_retry = Retry._make


class LogParser(MessageReader):
    """Parser state of one log.

    ``utc_offset_s``: seconds that the log's clock is ahead of UTC.
    ``line``: complete physical lines so far; ``time``: time of the newest timestamped line;
    ``partial``: bytes of the unfinished line; ``cut``: after close, the log stopped inside a line;
    ``begun``: the first timestamped line of each run; ``of_miles``: a Miles logger wrote in it.
    """

    def __init__(self, utc_offset_s: float = 0.0):
        super().__init__(utc_offset_s)
        self.line = 0
        self.cut = False
        self._rest = b""
        self._drop = False
        self._has_return = False
        self._outer = False  # every line has a timestamp of the log's reader before it
        self._lines: list = []

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
            if self._outer:
                rest = _without_outer([rest])[0]
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

    def peek(self) -> list:
        """Errors, and the end of the run, that the unfinished line tells; changes nothing.

        A process that died may never end its last line.
        """
        if not (suspicious(self._rest) or b"# end " in self._rest[:64]):
            return []
        return [e for e in copy.deepcopy(self).close() if type(e) in (ErrorLine, JobEnd)]

    # -- lines -----------------------------------------------------------------------------------

    def _body(self, body: bytes) -> None:
        if b"\r\n" in body:
            body = body.replace(b"\r\n", b"\n")
        self._has_return = b"\r" in body
        lines = body.split(b"\n")
        finished = len(lines) - 1
        if not lines[-1]:
            lines.pop()
        if self._outer:
            lines = _without_outer(lines)
        self._lines, self._resolved = lines, -1
        at, end = 0, len(lines)
        while at < end:
            outer = self._outer
            at = self._skip_copy(at) if self._copy else self._scan(at)
            if self._outer and not outer:
                lines[at:] = _without_outer(lines[at:])
        self.time = self._time_before(end)
        self.line += finished
        self._lines = []
        if len(lines) == finished:
            self._line_prefix = b""

    def _scan(self, start: int) -> int:
        """Parses lines from ``start``; returns where to go on (earlier than the end when a copy
        of the log begins)."""
        lines, out, memo, tails = self._lines, self._out, self._memo, self._tails
        has_return, runs = self._has_return, self._runs
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
            if not 0 <= k <= LONGEST_PREFIX:
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
                    known = batch(line, j + 2) if line[j + 2 : j + 6] in _BATCH else None
                t = seconds(line[k + 1 : k + 20]) if known is not None else None
                if t is not None:
                    if line[k + 20] == 46 and line[k + 24] == 32:
                        t += float(line[k + 20 : k + 24])
                    self.time = t
                    self._resolved = i
                    runs.content = True
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
        if not self._outer and line[:2] == b"20" and (m := OUTER_FIRST.match(line)):
            self._outer = True
            self._slow(i, n, line[m.end() :], finished)
            return True
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
        if source is not None and stamp is not None:
            self.of_miles = True
        if self._awaited and not line.startswith(b"# "):
            first = t if stamp is not None else self._clock.of_line(line)
            if first is not None:
                self._awaited = False
                self._tails.update(self._aside)
                self.begun.append(Begun(n, first))
        if prefix:
            self._line_prefix = line[: m.end(1)]
        msg = line[end:]
        if b"\x1b" in msg:
            msg = ANSI.sub(b"", msg)
        found = self._message(i, n, t, line, msg, stamp, fraction, source, finished)
        if found is NOTHING_HERE and finished and len(line) < CACHED_LINE:
            if stamp is None:
                remember(self._memo, line, None)
            else:
                self._remember_tail(line, None, None)
        return found is COPY_BEGINS

    def _redrawn(self, i: int, n: int, line: bytes, finished: bool = True) -> bool:
        """A line whose parts were drawn over each other: bars, perhaps with a record behind."""
        stop = False
        for piece in line.split(b"\r"):
            known = self._bar_memo.get(piece)
            if known is not None and finished:
                self._bar(i, n, *known)
            elif piece.endswith(b") ") and piece.startswith(b"(") and len(piece) <= LONGEST_PREFIX:
                self._line_prefix = piece[:-1]
            elif finished and piece[:1] not in _RECORD_START and self._bare_bar(i, n, piece):
                continue
            elif piece:
                stop = self._slow(i, n, piece, finished) or stop
        return stop


def _without_outer(lines: list) -> list:
    """Lines without the timestamp that ``docker logs -t`` puts before each."""
    match = OUTER.match
    return [line[m.end() :] if (m := match(line)) else line for line in lines]
