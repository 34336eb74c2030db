"""The rule engine of the run guard: events and checks in, decisions out.

The same :class:`Guard` serves the live watchdog, ``--follow``, the replay and the diagnosis.  It
reads no clock: the caller gives the time of every event and check, in seconds of one clock that
never goes back.  Paused time and time without sight of the container do not count: all rules run
on what is left (the active clock).

The rules and their words are those of :mod:`verdicts`; every number is in
:class:`guardlimits.Limits`.
"""

from __future__ import annotations

from typing import NamedTuple

from mileskit.guard.guardlimits import Limits
from mileskit.guard.rule_fatal import DOUBT, Fatals, Rewards
from mileskit.guard.rule_outage import Outage
from mileskit.guard.rule_progress import WORK, Deadlines, Missed, level
from mileskit.guard.rule_training import Training
from mileskit.guard.verdicts import SPECIFIC, STOPS, WARNINGS
from mileskit.log.events import (
    CutLine,
    EngineKvCache,
    EngineReady,
    EngineStart,
    EngineWeights,
    ErrorLine,
    FaultTolerance,
    JobEnd,
    Marker,
    Perf,
    Progress,
    RetriesExhausted,
    Retry,
    Rollout,
    RunStart,
    Step,
    TaskRaised,
)
from mileskit.log.lineshape import BAR

QUIET_CUT = 600.0  # seconds of silence after which an unfinished line is a cut one
TEARDOWN = 60.0  # seconds before a clean end in which dying servers are its cascade
DOUBT_STEPS = 1.5  # median steps within which a run that lives shows its next counter
FT_FLAG = "--use-fault-tolerance"


# With fault tolerance these are a recovery under way, which can outlast ten checks.
_RESTARTS = (EngineStart, EngineWeights, EngineKvCache, EngineReady)


class Decision(NamedTuple):
    """What a check or a diagnosis concludes.

    ``root`` is the event that shows the cause (None when there is none), ``first_at`` the time of
    the first failed request or fatal line of the trouble, ``missed`` a passed deadline,
    ``warnings`` texts by verdict word.
    """

    verdict: str
    stop: bool
    why: str
    root: tuple | None = None
    first_at: float | None = None
    missed: Missed | None = None
    warnings: dict = {}  # noqa: RUF012 - never changed
    counted: bool = True
    failed: int = 0


class Guard:
    """State of the run that a log shows last.

    ``observe(event, now)`` for every event, ``check(now)`` every ``limits.every`` seconds,
    ``final(now)`` for the verdict on what was seen so far.
    """

    def __init__(self, limits: Limits | None = None, *, fault_tolerance: bool = False):
        self.limits = limits or Limits()
        self.runs = 1
        self.paused = 0.0  # seconds so far that do not count
        self._asked_ft = fault_tolerance
        self._ft_line = 0  # the newest line that says that the run has fault tolerance
        self._ft_then = 0  # the first event behind it
        self._last_check: float | None = None
        self._last_blind = False
        self._new_run()

    def _new_run(self) -> None:
        lim = self.limits
        self.outage = Outage(lim.window, lim.limit, lim.checks)
        self.deadlines = Deadlines(lim)
        self.training = Training(lim)
        self.fatals = Fatals()
        self.fatals.fault_tolerance = self._asked_ft
        self.rewards = Rewards()
        self.exhausted = 0
        self.ended: JobEnd | None = None
        self.ended_at = 0.0
        self.cut: CutLine | None = None
        self.cut_at = 0.0
        self.hint: ErrorLine | None = None
        self.since_line = 1

    # -- input -----------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Starts the clock of start-up (else the first event that is no marker does)."""
        self.deadlines.start(now - self.paused)

    def observe(self, event: tuple, now: float) -> None:
        """One event of the log, seen at ``now``."""
        at = now - self.paused
        kind = type(event)
        if kind is FaultTolerance:
            self.fatals.fault_tolerance = True
            self._ft_line, self._ft_then = event.line, 0
            return
        if not self._ft_then and kind not in (Marker, RunStart):
            self._ft_then = event.line
        if kind is Retry:
            self.start(now)
            self.outage.failed(event, at)
        elif kind is RunStart:
            self._next_run(event)
        elif kind is Marker:
            if event.name == "command" and FT_FLAG in event.text:
                self.fatals.fault_tolerance = True
        elif kind is JobEnd:
            self.ended, self.ended_at = event, at
        elif kind is CutLine:
            self.cut, self.cut_at = event, at
        elif kind is ErrorLine:
            self.start(now)
            self._error(event, at)
        elif kind is TaskRaised:
            self.start(now)
            self.rewards.task(event, at)
        elif kind is RetriesExhausted:
            self.exhausted += event.count
        else:
            self._progress(event, at)

    def _error(self, event: ErrorLine, at: float) -> None:
        if self.ended is not None and self.ended.how == "finished":
            return
        if self.hint is None and event.severity in ("fatal", "error"):
            self.hint = event
        self.fatals.line(event, at)
        self.rewards.line(event, at)

    def _progress(self, event: tuple, at: float) -> None:
        how = level(event)
        self.deadlines.start(at)
        if not how:
            return
        self.deadlines.advanced(event, how, at)
        self.fatals.advanced(event, how, at)
        if how >= WORK or (self.fatals.fault_tolerance and type(event) in _RESTARTS):
            self.outage.advanced()
        kind = type(event)
        if kind is Step:
            self.training.step(event)
            self.hint = None
        elif kind is Rollout or (kind is Perf and event.side == "rollout"):
            self.rewards.rollout()
            if kind is Perf:
                self.training.rollout(event)
        elif kind is Progress:
            self.rewards.bar(event)
        elif kind is EngineStart and self.ended is not None:
            self.ended = None

    def _next_run(self, event: RunStart) -> None:
        fatals, rewards = self.fatals, self.rewards
        self._new_run()
        self.runs += 1
        self.since_line = event.since_line
        fatals.forget_before(event.since_line)
        rewards.forget_before(event.since_line)
        # A launcher prints its command before the line that shows that a further run begins.
        command = self._ft_line and not 0 < self._ft_then < event.since_line
        fatals.fault_tolerance = self._asked_ft or bool(command)
        self.fatals, self.rewards = fatals, rewards

    # -- output ----------------------------------------------------------------------------------

    def check(
        self,
        now: float,
        *,
        paused: bool = False,
        docker_ok: bool = True,
        paused_s: float | None = None,
    ) -> Decision:
        """One check.  ``paused``: the container is frozen; ``docker_ok``: it could be looked at.

        A check that does not count changes no streak, and the time since the check before is
        paused time.  ``paused_s``: paused seconds so far, when they are known exactly.
        """
        blind = paused or not docker_ok
        before = now if self._last_check is None else self._last_check
        self._last_check = now
        if paused_s is not None:
            self.paused = paused_s
        elif blind or self._last_blind:
            self.paused += now - before
        self._last_blind = blind
        if blind:
            why = "paused" if paused else "no answer from Docker"
            return Decision("healthy", False, f"{why}: this check does not count", counted=False)
        at = now - self.paused
        failed = self.outage.check(at)
        decision = self._judge(at, whole=False)
        return decision._replace(failed=failed)

    def final(self, now: float, *, paused_s: float | None = None) -> Decision:
        """The verdict on the whole log, judged at ``now``: no grace, end markers count."""
        if paused_s is not None:
            self.paused = paused_s
        at = now - self.paused
        return self._judge(at, whole=True)._replace(failed=self.outage.count(at))

    def _judge(self, at: float, whole: bool) -> Decision:
        if self.ended is not None:
            at, whole = self.ended_at, True
            if self.ended.how == "finished":
                self._forgive_teardown()
        lost = self._lost(at, whole)
        cut = whole and self._mid_line(at)
        if lost is not None and not (cut and lost.verdict == "no-progress"):
            return lost._replace(stop=self.ended is None and lost.verdict in STOPS)
        if cut:
            why = f"the log stops inside line {self.cut.line} and nothing follows"
            return Decision("ends-mid-line", False, why, self.cut)
        if self.ended is not None and self.ended.how == "failed":
            return Decision("failed", False, self._end_text(), self.hint or self.ended)
        warned = self.training.warned
        texts = {word: warned[word][1] for word in WARNINGS if word in warned}
        if texts:
            word = next(iter(texts))
            return Decision(word, False, texts[word], warnings=texts)
        if self.ended is not None:
            word = "finished" if self.ended.how == "finished" else "stopped"
            return Decision(word, False, self._end_text(), self.ended)
        if not self.training.steps:
            return Decision("starting", False, f"{self.deadlines.phase}, no step yet")
        return Decision("healthy", False, f"{self.training.steps} steps, nothing wrong found")

    def _lost(self, at: float, whole: bool) -> Decision | None:
        """The cause on which a run is stopped, once one of the rules holds; else None."""
        out, rewards = self.outage, self.rewards
        failing = sum(out.statuses.values()) > self.limits.limit
        cause = self.fatals.cause(failing)
        finished = self.ended is not None and self.ended.how == "finished"
        missed = None if finished else self.deadlines.missed(at)
        patience = max(self.limits.grace, DOUBT)  # another sample may show that the reward works
        waited = rewards.holds and (whole or at - rewards.first_at >= patience)
        rules = (self._ripe(cause, at, whole), waited, self.training.nonfinite, out.holds, missed)
        if not any(rules):
            return None
        found = []  # seen is enough here: one rule holds, and the oldest specific cause wins
        if cause is not None and cause[0] in SPECIFIC:
            found.append((cause[1].event.line, cause[0], cause[1].event, cause[1].at))
        if rewards.holds:
            found.append((rewards.first.line, "reward-error", rewards.first, rewards.first_at))
        if self.training.nonfinite:
            root = self.training.nonfinite[0]
            found.append((root.line, "nonfinite", root, None))
        if found:
            _, word, root, first = min(found, key=lambda item: item[0])
        elif cause is not None:
            word, root, first = cause[0], cause[1].event, cause[1].at
        elif out.holds:
            word, root, first = out.verdict, out.first, out.first_at
        else:
            word, root, first = "no-progress", self.hint, out.first_at
        first = None if first is None else first + self.paused
        return Decision(word, True, self._why(word, root, missed), root, first, missed)

    def _ripe(self, cause: tuple | None, at: float, whole: bool) -> bool:
        """Whether a fatal line has waited long enough for a recovery."""
        if cause is None:
            return False
        tolerant = self.fatals.fault_tolerance
        if whole and (not tolerant or self.ended is not None):
            return True
        grace = self.limits.grace_ft if tolerant else self.limits.grace
        if cause[1].doubted:
            grace = max(grace, DOUBT, DOUBT_STEPS * self.deadlines.usual)
        return at - max(cause[1].at, cause[1].sign) >= grace

    def _why(self, word: str, root: tuple | None, missed: Missed | None) -> str:
        if type(root) is Retry:
            rows = f"{self.outage.held} checks in a row"
            return f"more than {self.outage.limit} failed requests in each of {rows}"
        if word == "no-progress" and missed is not None:
            what = "progress" if missed.deadline == "stall" else "rollout, step, eval or save"
            waited = f"{missed.waited:.0f} s (allowed {missed.allowed:.0f} s)"
            return f"{missed.phase}: no {what} for {waited}"
        if word == "nonfinite":
            first, second = self.training.nonfinite
            return f"loss or gradient norm not finite in steps {first.index} and {second.index}"
        if word == "reward-error":
            return f"{self.rewards.count} tasks raised and no rollout came since"
        return getattr(root, "text", "")

    def _end_text(self) -> str:
        status = "" if self.ended.status is None else f" with status {self.ended.status}"
        return f"the job ended{status} ({self.ended.how})"

    def _forgive_teardown(self) -> None:
        """Servers that die within a minute of a clean end belong to the end."""
        if self.outage.first is not None:
            return
        late = self.ended_at - TEARDOWN
        fatals = self.fatals
        fatals.pending = [f for f in fatals.pending if f.verdict in SPECIFIC or f.at < late]

    def _mid_line(self, at: float) -> bool:
        """A cut line that is no progress bar, and silence since."""
        if self.cut is None or self.ended is not None:
            return False
        return BAR.search(self.cut.text.encode()) is None and at - self.cut_at >= QUIET_CUT
