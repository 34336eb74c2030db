"""Tells where a further run begins in a file, and which numbered lines are repeats."""

from __future__ import annotations

from mileskit.log.events import RunStart

_NUMBERED = ("step", "critic", "rollout", "perf-rollout", "perf-trainer")
_REMEMBERED = 512


class RunTracker:
    """State of the current run: newest numbers, whether it has begun, whether it has ended."""

    def __init__(self):
        self.content = False
        self.ended = False
        self._marked = False
        self._maybe: int | None = None
        self._last: dict = {}
        self._seen: dict = {}

    def _new(self, n, t, why, since) -> RunStart:
        self._last.clear()
        self._maybe = None
        self.content = self.ended = self._marked = False
        return RunStart(n, t, why, since)

    def run_marker(self, n, t) -> RunStart | None:
        """At a ``# run`` marker."""
        start = None
        if self.content or self.ended or self._marked:
            start = self._new(n, t, "marker", n)
        self._marked = True
        return start

    def start_like(self, n, t, is_job: bool) -> RunStart | None:
        """At an engine start or a job submission: a run if the last one ended, else perhaps."""
        if self.content and (self.ended or is_job):
            return self._new(n, t, "after-end" if self.ended else "job", n)
        if self._maybe is None:
            self._maybe = n
        return None

    def numbered(self, n, t, kind: str, index: int, stamp, raw: bytes):
        """At a numbered dict: (take it, RunStart or None).

        A number below the newest of its kind is a further run, unless the same text with the same
        timestamp was seen before (a copy of the log's tail).  An equal number is a repeat
        (Megatron prints a step line twice), unless an engine has started since.
        """
        start = None
        if kind in _NUMBERED:
            text = hash(raw)
            last = self._last.get(kind)
            if last is not None and index <= last[0]:
                if self._seen.get((kind, index)) == (stamp, text):
                    return False, None
                if index == last[0] and self._maybe is None:
                    if text == last[1]:
                        return False, None
                else:
                    since = n if self._maybe is None else self._maybe
                    start = self._new(n, t, "number-down", since)
            self._last[kind] = (index, text)
            if len(self._seen) >= _REMEMBERED:
                self._seen.clear()
            self._seen[(kind, index)] = (stamp, text)
        self._maybe = None
        return True, start
