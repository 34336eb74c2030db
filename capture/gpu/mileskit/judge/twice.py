"""Numbered lines that a log prints again with other numbers: the summary keeps the first of them.

A line that repeats another word for word (a Megatron trainer prints each twice) makes no event.
"""

from __future__ import annotations

from mileskit.log.events import Perf, Rollout, RunStart, Step
from mileskit.summary.summarize import Summary


class Twice:
    """Watches a summary's events for numbered lines that the last run printed again."""

    def __init__(self, one: Summary):
        self._pass_on = one._events  # the one place that sees every event once
        one._events = self._watch
        self._clear()

    def _clear(self) -> None:
        self._seen: dict[tuple, dict] = {}
        self._other: set[tuple] = set()

    def _watch(self):
        for events in self._pass_on():
            for ev in events:
                kind = type(ev)
                if kind in _LINES:
                    self._take(_LINES[kind](ev), ev.metrics)
                elif kind is RunStart:
                    self._clear()
            yield events

    def _take(self, key: tuple, metrics: dict) -> None:
        before = self._seen.get(key)
        self._seen[key] = metrics
        if before and any(repr(before[k]) != repr(metrics[k]) for k in before.keys() & metrics):
            self._other.add(key)

    def notes(self) -> tuple[str, ...]:
        """What a reader must know of them."""
        if not self._other:
            return ()
        lines = _some(self._other)
        return (f"printed more than once with different numbers, the first counts: {lines}",)


_LINES = {
    Rollout: lambda ev: ("rollout", ev.index),
    Perf: lambda ev: (f"perf ({ev.side})", ev.index),
    Step: lambda ev: ("step" if ev.role == "actor" else f"{ev.role}-step", ev.index),
}


def _some(keys) -> str:
    by_word: dict[str, list[int]] = {}
    for word, index in sorted(keys):
        by_word.setdefault(word, []).append(index)
    return "; ".join(
        f"{word} {', '.join(map(str, at[:6]))}"
        + (f" and {len(at) - 6} more" if len(at) > 6 else "")
        for word, at in by_word.items()
    )
