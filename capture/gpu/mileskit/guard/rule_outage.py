"""The outage rule: failed requests per second over a window, and bad checks in a row."""

from __future__ import annotations

import math
from collections import Counter

from mileskit.log.events import Retry


class Outage:
    """Failed requests since the last counter advanced.

    Times are seconds of the guard's clock (see rules.Guard).  Memory is bounded by the window:
    one count a second.
    """

    def __init__(self, window: float, limit: int, checks: int):
        self.window, self.limit, self.checks = window, limit, checks
        self.streak = 0
        self.held = 0  # longest streak that broke the rule since a counter advanced
        self.longest = 0
        self.total = 0
        self.first: Retry | None = None
        self.last: Retry | None = None
        self.first_at: float | None = None
        self.statuses: Counter = Counter()
        self.deepest: tuple[int, int] | None = None
        self._seconds: dict[int, int] = {}

    def failed(self, event: Retry, at: float) -> None:
        """One failed request (or ``event.count`` of them)."""
        second = math.floor(at)
        if second not in self._seconds and len(self._seconds) > 2 * self.window + 4:
            self._forget(second)
        self._seconds[second] = self._seconds.get(second, 0) + event.count
        self.total += event.count
        if self.first is None:
            self.first, self.first_at = event, at
        self.last = event
        self.statuses[event.status] += event.count
        if event.attempt is not None and (self.deepest is None or event.attempt > self.deepest[0]):
            self.deepest = (event.attempt, event.limit or 0)

    def advanced(self) -> None:
        """A counter advanced: what failed before it is no outage."""
        if self.first is None and not self.streak:
            return
        self.streak = self.held = 0
        self.first = self.last = self.first_at = self.deepest = None
        self.statuses.clear()
        self._seconds.clear()

    def count(self, now: float) -> int:
        """Failed requests of the last ``window`` seconds, since the last progress."""
        oldest = math.floor(now) - self.window
        return sum(n for second, n in self._seconds.items() if second > oldest)

    def check(self, now: float) -> int:
        """One check that counts; returns its failed requests."""
        self._forget(math.floor(now))
        failed = self.count(now)
        self.streak = self.streak + 1 if failed > self.limit else 0
        self.longest = max(self.longest, self.streak)
        if self.streak >= self.checks:
            self.held = max(self.held, self.streak)
        return failed

    @property
    def holds(self) -> bool:
        """Ten bad checks came in a row; silence afterwards is no recovery, a counter is."""
        return self.held > 0

    @property
    def verdict(self) -> str:
        """request-refused when most of the failed requests were answered with 4xx."""
        refused = sum(n for status, n in self.statuses.items() if status and 400 <= status < 500)
        return "request-refused" if 2 * refused > sum(self.statuses.values()) else "engine-dead"

    def _forget(self, second: int) -> None:
        oldest = second - self.window
        for old in [s for s in self._seconds if s <= oldest]:
            del self._seconds[old]
