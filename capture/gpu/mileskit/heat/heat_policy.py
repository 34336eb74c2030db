"""When to pause a hot run and when to resume it: pure functions, no clock, no container, no GPU.

The live guard, its dry run and the replay of stored samples all call `decide`. Time is any clock in
seconds that never goes back.
"""

from typing import NamedTuple

from mileskit.heat.gpusample import Sample
from mileskit.host.containers import Container


class Limits(NamedTuple):
    """The thresholds. The defaults are those of the reference lab's GB10 (its manual, lab notes).

    pause_c: pause at this temperature or above. resume_c: resume at this one or below.
    min_pause_s: a pause lasts at least so long. max_pause_s: and at most so long.
    """

    pause_c: float = 84.0
    resume_c: float = 74.0
    min_pause_s: float = 45.0
    max_pause_s: float = 120.0

    def wrong(self) -> str:
        """Why these limits cannot work, "" when they can."""
        if not self.resume_c < self.pause_c:
            return f"resume temperature {self.resume_c:g} must be below pause {self.pause_c:g}"
        if not 0 <= self.min_pause_s <= self.max_pause_s:
            return f"minimum pause {self.min_pause_s:g} must be 0 to maximum {self.max_pause_s:g}"
        if self.max_pause_s <= 0:
            return f"maximum pause {self.max_pause_s:g} must be above 0"
        return ""


class State(NamedTuple):
    """paused_at: when the pause began, None while the run is not paused by this guard.

    not_before: no pause before this time, because somebody else just resumed the run.
    """

    paused_at: float | None = None
    not_before: float | None = None


class Action(NamedTuple):
    """kind: "pause" or "resume". reason: one word of the heat-guard log."""

    kind: str
    reason: str
    paused_s: float | None = None


def decide(
    limits: Limits, state: State, sample: Sample | None, now: float
) -> tuple[State, Action | None]:
    """What to do at time `now` (seconds) with the newest sample (None: the GPU cannot be read).

    Pause: reason "hot". Resume: "cool", or when the maximum time is over "max-time" (readable but
    not cool) or "unreadable" (no temperature). An unreadable GPU never starts a pause.
    """
    temp_c = None if sample is None else sample.temp_c
    if state.paused_at is None:
        held = state.not_before is not None and now < state.not_before
        if temp_c is None or temp_c < limits.pause_c or held:
            return state, None
        return State(paused_at=now), Action("pause", "hot")
    paused_s = now - state.paused_at
    if temp_c is not None and temp_c <= limits.resume_c and paused_s >= limits.min_pause_s:
        return State(), Action("resume", "cool", paused_s)
    if paused_s >= limits.max_pause_s:
        reason = "unreadable" if temp_c is None else "max-time"
        return State(), Action("resume", reason, paused_s)
    return state, None


def interrupted(
    limits: Limits, state: State, reason: str, now: float
) -> tuple[State, Action | None]:
    """A pause that ended without this guard (unpaused by somebody, restarted, ended, gone).

    After "unpaused" the run is left alone for the minimum pause time, so that the guard does not
    fight whoever resumed it (a watchdog that resumes a run in order to stop it).
    """
    if state.paused_at is None:
        return state, None
    left_alone = now + limits.min_pause_s if reason == "unpaused" else None
    return State(not_before=left_alone), Action("resume", reason, now - state.paused_at)


def why_not_paused(before: Container, seen: Container | None) -> str:
    """How a container that this guard paused stopped being so, "" while it still is.

    before: as it was when the guard paused it. seen: as the engine describes it now, None: gone.
    """
    if seen is None:
        return "gone"
    if seen.status not in ("running", "paused", "restarting"):
        return "ended"
    if not seen.same_life(before):
        return "restarted"
    return "" if seen.paused else "unpaused"


def due_in(limits: Limits, state: State, now: float) -> float | None:
    """Seconds until a running pause must end at the latest, None when nothing is paused."""
    if state.paused_at is None:
        return None
    return max(0.0, state.paused_at + limits.max_pause_s - now)
