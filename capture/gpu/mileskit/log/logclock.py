"""One clock for a log: seconds that never go back, whatever the log's own clock does."""

from __future__ import annotations

BACK = 60.0  # seconds that lines of several processes may overtake each other


class LogClock:
    """Turns the times of a log's events, in their order, into times that never fall.

    A step back of more than BACK seconds takes no time: the log goes on from where it was.
    """

    def __init__(self):
        self.now: float | None = None
        self._raw = 0.0
        self._shift = 0.0

    def at(self, raw: float | None) -> float | None:
        """Time of the next event, whose own time is ``raw`` (None: that of the one before)."""
        if raw is None:
            return self.now
        if self.now is None:
            self.now = raw
        elif raw < self._raw - BACK:
            self._shift = self.now - raw
        self.now = max(self.now, raw + self._shift)
        self._raw = raw
        return self.now

    def take_out(self, seconds: float) -> None:
        """What comes next is this much earlier: a forward step of the log's clock was found."""
        self.now -= seconds
        self._shift -= seconds
