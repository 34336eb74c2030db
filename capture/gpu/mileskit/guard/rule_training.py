"""What the training numbers say: non-finite steps, no signal, a high or drifting gap."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from mileskit.guard.guardlimits import Limits
from mileskit.log.events import Perf, Step

GAP = "train/train_rollout_logprob_abs_diff"
_NUMBERS = ("train/loss", "train/grad_norm", "train/value_loss")
_SPAN = 5


class Training:
    """Streaks over the steps of one run; each warning keeps the step event that completed it."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self.steps = 0
        self.nonfinite: tuple[Step, Step] | None = None
        self.warned: dict[str, tuple[int, str]] = {}
        self._bad: dict[str, Step | None] = {}
        self._flat = 0
        self._one_reward: bool | None = None
        self._high = 0
        self._first_gaps: list[float] = []
        self._gaps: deque = deque(maxlen=2 * _SPAN)
        self._gap_count = 0

    def rollout(self, event: Perf) -> None:
        """Keeps whether every group of the rollout had one reward (needs a binary reward)."""
        shares = [
            event.metrics.get(f"rollout/zero_std/all_{word}_percentage") for word in ("zero", "one")
        ]
        self._one_reward = None if None in shares else sum(shares) >= 1 - 1e-9

    def step(self, event: Step) -> None:
        """One trainer step."""
        if self._count_nonfinite(event) and self.nonfinite is None:
            self.nonfinite = (self._bad[event.role], event)
        self._bad[event.role] = event if self._is_bad(event) else None
        if event.role != "actor":
            return
        self.steps += 1
        self._signal(event)
        self._gap(event)

    def _is_bad(self, event: Step) -> bool:
        found = [event.metrics[key] for key in _NUMBERS if key in event.metrics]
        return any(not math.isfinite(value) for value in found)

    def _count_nonfinite(self, event: Step) -> bool:
        return self._is_bad(event) and self._bad.get(event.role) is not None

    def _signal(self, event: Step) -> None:
        norm = event.metrics.get("train/grad_norm")
        flat = norm == 0 or bool(self._one_reward)
        self._flat = self._flat + 1 if flat else 0
        if self._flat == self.limits.signal_steps:
            text = f"every group had one reward in {self._flat} steps in a row"
            self._warn("no-signal", event, text)

    def _gap(self, event: Step) -> None:
        gap = event.metrics.get(GAP)
        if gap is None or not math.isfinite(gap):
            return
        high = gap > self.limits.gap
        self._high = self._high + 1 if high else 0
        if self._high == 2:
            self._warn(
                "gap-high", event, f"gap {gap:.4g} in step {event.index}, two steps in a row"
            )
        self._gap_count += 1
        if len(self._first_gaps) < _SPAN:
            self._first_gaps.append(gap)
        self._gaps.append(gap)
        text = self._drift()
        if text:
            self.warned["gap-drift"] = (event.line, text)
        else:
            self.warned.pop("gap-drift", None)

    def _drift(self) -> str | None:
        """Text when the median of the last five gaps is at least twice that of the first five,
        rising and not yet above the limit (one step far off is no drift)."""
        if self._gap_count < 2 * _SPAN:
            return None
        before, last = list(self._gaps)[:_SPAN], list(self._gaps)[_SPAN:]
        first, then, now = median(self._first_gaps), median(before), median(last)
        if not 0 < 2 * first <= now <= self.limits.gap or now <= then:
            return None
        return f"median gap {first:.4g} in the first five steps, {now:.4g} in the last five"

    def _warn(self, word: str, event: Step, text: str) -> None:
        self.warned.setdefault(word, (event.line, text))
