"""The deadlines: what counts as progress, and how long a phase may go without it."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from mileskit.guard.guardlimits import Limits
from mileskit.log.events import (
    EngineCapture,
    EngineDecode,
    EngineKvCache,
    EnginePrefill,
    EngineReady,
    EngineStart,
    EngineWeights,
    Eval,
    Load,
    MultiTurn,
    Perf,
    Progress,
    Rollout,
    Save,
    Step,
    Timer,
)

COUNTER, WORK, MARK = 3, 2, 1
_COUNTERS = (Rollout, Step, Perf, Eval, Save, MultiTurn)
_MARKS = (EngineStart, EngineWeights, EngineKvCache, EngineCapture, EngineReady, Load, Timer)
_HISTORY = 201


def level(event: tuple) -> int:
    """How much an event proves: COUNTER (rollout, step, eval, save), WORK (the engine or a
    generation bar moves), MARK (another bar or phase moves), 0 nothing.

    A prefill of one token a sequence is the router's health check and proves nothing.
    """
    kind = type(event)
    if kind in _COUNTERS:
        return COUNTER
    if kind is EngineDecode:
        return WORK if event.tokens_per_s > 0 else 0
    if kind is EnginePrefill:
        return WORK if event.tokens > event.sequences else 0
    if kind is Progress:
        if event.label.startswith("Eval") and event.done > 0:
            return COUNTER
        return WORK if event.label.startswith("Rollout generation") and event.done > 0 else MARK
    return MARK if kind in _MARKS else 0


class Missed(NamedTuple):
    """A deadline that passed: which, seconds since the last progress, and the limit."""

    phase: str
    deadline: str
    waited: float
    allowed: float


class Deadlines:
    """Last progress and the phase of the run, on the guard's clock."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self.phase = "start-up"
        self.started: float | None = None
        self.moved: float | None = None
        self.counted: float | None = None
        self.last: tuple | None = None
        self.steps: list[float] = []
        self._rollout_at: float | None = None
        self._timed = False

    def start(self, at: float) -> None:
        if self.started is None:
            self.started = self.moved = self.counted = at

    def advanced(self, event: tuple, how: int, at: float) -> None:
        """Progress of level ``how`` at time ``at``."""
        self.start(at)
        self.moved = max(self.moved, at)
        self.last = event
        if how == COUNTER:
            self.counted = max(self.counted, at)
        if self.phase == "start-up" and (how >= WORK or type(event) is EngineReady):
            self.phase, self.counted = "first step", at
        if type(event) is Step or (type(event) is Perf and event.side == "trainer"):
            self.phase = "later steps"
        self._history(event, at)

    def _history(self, event: tuple, at: float) -> None:
        """Step times: those that the trainer prints, else the distance of rollouts."""
        if type(event) is Perf and event.side == "trainer":
            took = event.metrics.get("perf/step_time")
            if took is not None and 0 < took < 1e7:
                if not self._timed:
                    self.steps, self._timed = [], True
                self.steps.append(took)
        elif type(event) is Rollout:
            if not self._timed and self._rollout_at is not None and at > self._rollout_at:
                self.steps.append(at - self._rollout_at)
            self._rollout_at = at
        del self.steps[:-_HISTORY]

    @property
    def usual(self) -> float:
        """Median step in seconds; 0 before the first."""
        return median(self.steps) if self.steps else 0.0

    def allowed(self) -> tuple[float, float | None]:
        """(stall, ceiling) of this phase in seconds; no ceiling in start-up."""
        lim = self.limits
        if self.phase == "start-up":
            return lim.startup_stall, None
        if self.phase == "first step":
            return lim.first_stall, lim.first_ceiling
        usual = self.usual
        return max(lim.stall, lim.stall_steps * usual), max(lim.ceiling, lim.ceiling_steps * usual)

    def missed(self, now: float) -> Missed | None:
        """The deadline that has passed at ``now``, or None."""
        if self.started is None:
            return None
        stall, ceiling = self.allowed()
        if now - self.moved >= stall:
            return Missed(self.phase, "stall", now - self.moved, stall)
        if ceiling is not None and now - self.counted >= ceiling:
            return Missed(self.phase, "ceiling", now - self.counted, ceiling)
        return None
