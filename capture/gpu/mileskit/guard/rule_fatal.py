"""Fatal lines that wait for a recovery, and rewards that cannot work.

A fatal line is held until something proves that the run survived it:

- a counter advances (for a dead engine: a rollout that had not been generated before; the
  trainer's own lines prove nothing about the engine);
- the engine's server gets ready again, or it generates after a restart.

Weaker signs only postpone the stop.  What was under way when the line came (``STRAGGLER``
seconds) proves nothing, since lines of several processes overtake each other; but where the line
is not the engine's, a counter then is a reason to wait for the next one (``DOUBT``): a tool or a
worker of the reward can have printed it, and the training that follows prints nothing for minutes.
A line of the driver or of the engine that tells a death ends the doubt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mileskit.guard.rule_progress import COUNTER, WORK
from mileskit.guard.verdicts import OF_KIND, SPECIFIC
from mileskit.log.events import (
    EngineCapture,
    EngineDecode,
    EngineKvCache,
    EnginePrefill,
    EngineReady,
    EngineStart,
    EngineWeights,
    ErrorLine,
    Eval,
    Perf,
    Progress,
    Rollout,
    TaskRaised,
)

STRAGGLER = 15.0  # seconds
READY = 2.0  # the same for the server's ready line, which its own process prints last
DOUBT = 140.0  # seconds that a line waits when the run may well survive it
LINKED = 120.0  # seconds from a cause to the death of the engine that it is linked to
_MOST = 64
# Words of a program that met the condition and went another way.
_WENT_ON = re.compile(
    r"\bskipp(?:ed|ing)\b|\bfall(?:ing|s)?[ -]?back\b|\bignor(?:ed|ing)\b|\bretrying\b"
    r"|\bretry with\b|\b[Ww]ill (?:use|retry|try)\b|may not be an issue"
    # NCCL's WARN is its level of errors; c10d warns with "[W".
    r"|(?<!NCCL )\bWARN(?:ING)?\b|\w+Warning:|\A(?:\[rank\d+\]:? ?)?\[W[\d ]"
    # In an exception, or behind these words, "instead" is advice.
    r"|\A(?!(?:\[rank\d+\]:? ?)?[\w.]+(?:Error|Exception): )"
    r"(?!.*\b(?:[Pp]lease|[Cc]onsider|[Tt]ry|[Ss]hould)\b.*\binstead).*\binstead\b"
)
_CAN_GO_ON = ("cuda-oom", "kernel-missing", "port-in-use")
_ENGINE = (
    EngineCapture,
    EngineDecode,
    EngineKvCache,
    EnginePrefill,
    EngineReady,
    EngineStart,
    EngineWeights,
)
_ENGINE_BARS = ("Capturing", "Multi-thread loading", "Loading safetensors", "Rollout generation")


@dataclass
class Fatal:
    """One fatal line that nothing has contradicted yet; ``at`` on the guard's clock."""

    verdict: str
    event: ErrorLine
    at: float
    engine: bool
    rollout: float
    sign: float
    restarted: bool = False
    doubted: bool = False


class Fatals:
    """Fatal lines of one run, oldest first."""

    def __init__(self):
        self.pending: list[Fatal] = []
        self.fault_tolerance = False
        self._rollout = float("-inf")

    def line(self, event: ErrorLine, at: float) -> None:
        """A line of the errors table; kinds that end no run are left out."""
        verdict = OF_KIND.get(event.kind)
        if verdict is None or event.severity != "fatal" or len(self.pending) >= _MOST:
            return
        if verdict in _CAN_GO_ON and _WENT_ON.search(event.text):
            return
        if verdict in ("engine-dead", "worker-died"):
            for other in self.pending:
                other.doubted = False
        engine = verdict == "engine-dead"
        if engine:
            for other in self.pending:
                other.engine = other.engine or at - other.at <= LINKED
        self.pending.append(Fatal(verdict, event, at, engine, self._rollout, at))

    def advanced(self, event: tuple, how: int, at: float) -> None:
        """Progress of level ``how``: clears or postpones what it contradicts."""
        kind = type(event)
        if self.pending:
            self.pending = [f for f in self.pending if not self._survived(f, event, how, at)]
        if kind is Perf and event.side == "rollout":
            self._rollout = max(self._rollout, event.index)

    def _survived(self, fatal: Fatal, event: tuple, how: int, at: float) -> bool:
        kind = type(event)
        if kind in (EngineStart, EngineWeights):
            fatal.restarted = True
        if kind is EngineReady and at - fatal.at > READY:
            return True
        if at - fatal.at <= STRAGGLER:
            fatal.doubted = fatal.doubted or (how == COUNTER and not fatal.engine)
            return False
        of_engine = kind in _ENGINE or (kind is Progress and event.label.startswith(_ENGINE_BARS))
        if of_engine and how == WORK and fatal.engine and fatal.restarted:
            return True
        if how == COUNTER and (not fatal.engine or self._new_rollout(fatal, event)):
            return True
        if of_engine or self.fault_tolerance or (how < COUNTER and not fatal.engine):
            fatal.sign = max(fatal.sign, at)
        return False

    @staticmethod
    def _new_rollout(fatal: Fatal, event: tuple) -> bool:
        """Whether a counter needed the engine after the fatal line."""
        if type(event) in (Perf, Rollout):
            return event.index > fatal.rollout
        return type(event) is Eval

    def cause(self, failing: bool) -> tuple[str, Fatal] | None:
        """Verdict and line of the cause that wins: the oldest specific one, else the oldest.

        ``failing``: requests fail since, so that what died was the engine, or took it along.
        """
        if not self.pending:
            return None
        for fatal in self.pending:
            if fatal.verdict in SPECIFIC:
                return fatal.verdict, fatal
        if failing:
            engines = [f for f in self.pending if f.engine]
            return "engine-dead", (engines or self.pending)[0]
        return self.pending[0].verdict, self.pending[0]

    def forget_before(self, line: int) -> None:
        """Drops what belongs to an earlier run."""
        self.pending = [f for f in self.pending if f.event.line >= line]
        self._rollout = float("-inf")
        for fatal in self.pending:
            fatal.rollout = self._rollout


class Rewards:
    """Rewards that raised since the last rollout, for reasons that no answer can change."""

    def __init__(self):
        self.first: TaskRaised | ErrorLine | None = None
        self.first_at = 0.0
        self.raised = 0
        self._lines = 0
        self._done = 0.0
        self.last: TaskRaised | ErrorLine | None = None

    def task(self, event: TaskRaised, at: float) -> None:
        """A rollout task raised.

        A missing attribute counts only when a module lacks it: else it can depend on the answer.
        """
        if not event.kind.startswith("reward-"):
            return
        if event.exception == "AttributeError" and "module " not in event.text:
            return
        self._note(event, at)
        self.raised += event.count

    def line(self, event: ErrorLine, at: float) -> None:
        """The last line of a traceback of an await error (its task line may be missing)."""
        if event.kind == "reward-await":
            self._note(event, at)
            self._lines += event.count

    def _note(self, event, at: float) -> None:
        if self.first is None:
            self.first, self.first_at = event, at
        self.last = event

    @property
    def count(self) -> int:
        return max(self.raised, self._lines)

    @property
    def holds(self) -> bool:
        return self.count >= 2

    def bar(self, event: Progress) -> None:
        """The bar of the generation moved: the reward of some group worked since."""
        if event.label.startswith("Rollout generation"):
            if event.done > self._done:
                self.rollout()
            self._done = event.done

    def rollout(self) -> None:
        """A rollout came through: the reward works."""
        self.first = self.last = None
        self.raised = self._lines = 0

    def forget_before(self, line: int) -> None:
        if self.first is not None and self.first.line < line:
            self.rollout()
