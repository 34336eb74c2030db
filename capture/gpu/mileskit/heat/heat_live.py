"""The live heat guard: reads the GPU, asks the policy, acts on the container, writes it down."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mileskit.heat.gpusample import SMI_S, Reading, Smi
from mileskit.heat.heat_log import Journal, format_action, pause_in_log, say
from mileskit.heat.heat_owner import Owner, Pause
from mileskit.heat.heat_policy import (
    Action,
    Limits,
    State,
    decide,
    due_in,
    interrupted,
    why_not_paused,
)
from mileskit.host.containers import Answer, Container, Engine
from mileskit.summary.pauses import iso

DOUBT_S = 60.0
"""How long a pause request without an answer is watched for taking effect late."""

TRIES = 3
"""How often a resume at the end, or a repair, is tried when the engine does not answer."""


class _Asked(NamedTuple):
    """A pause request whose effect is not known: which container, its record, when (monotonic)."""

    container: Container
    record: Pause
    at: float


class Guard:
    """One guard over the container that `find` names.

    owner: held by this process; None in a dry run, which acts on nothing.
    """

    def __init__(
        self,
        limits: Limits,
        engine: Engine,
        find: Callable[[], Answer],
        smi: Smi,
        journal: Journal,
        samples: Journal,
        owner: Owner | None,
        smi_s: float = SMI_S,
    ):
        self.limits = limits
        self.engine = engine
        self.find = find
        self.smi = smi
        self.journal = journal
        self.samples = samples
        self.owner = owner
        self.smi_s = smi_s
        self.state = State()
        self.counts: Counter[str] = Counter()
        self.last = Reading(0.0)
        self._paused: Container | None = None
        self._unanswered: _Asked | None = None
        self._acted_at = -1.0
        self._told: dict[str, str] = {}
        self._unrepaired = owner is not None and owner.left is not None

    # What it says

    def note(self, topic: str, text: str, relief: str = "") -> None:
        """Say `text` when it differs from the last one of its topic; count every one.

        An empty text means that the trouble is over; `relief` is then said once.
        """
        if text:
            self.counts[topic] += 1
        if text == self._told.get(topic, ""):
            return
        self._told[topic] = text
        self._comment(text or relief)

    def _comment(self, text: str) -> None:
        if text:
            say(text)
            self.journal.write(f"# {iso(time.time())} {' '.join(text.split())}")

    def _engine_answered(self, answer: Answer) -> bool:
        self.note("engine", answer.why if answer.silent else "", "the engine answers again")
        return not answer.silent

    # One check

    def read(self) -> Reading:
        """Read the GPU, store the sample, say a change from or to unreadable."""
        left_s = due_in(self.limits, self.state, time.monotonic())
        wait_s = self.smi_s if left_s is None else min(self.smi_s, max(1.0, left_s))
        self.last = self.smi.read(time.time(), wait_s)
        self.samples.write_reading(self.last)
        self.counts["readings"] += 1
        self.counts["readable"] += self.last.hottest is not None
        self.note("gpu", self.last.trouble, "the GPU can be read again")
        return self.last

    def check(self) -> None:
        """One round: read, see what became of the container, decide, act."""
        sample = self.read().hottest
        self._look()
        now = time.monotonic()
        state, action = decide(self.limits, self.state, sample, now)
        if action is None or self._perform(action, now):
            self.state = state

    def until_next(self, due: float) -> float:
        """Seconds to sleep until `due` (monotonic), less when the maximum pause ends earlier."""
        now = time.monotonic()
        left_s = due_in(self.limits, self.state, now)
        # An overdue pause could not be ended just now: try again with the next reading.
        return max(0.0, min(due - now, left_s) if left_s else due - now)

    def _perform(self, action: Action, now: float) -> bool:
        """Do it; False when it could not be done, so that the next check decides again."""
        if self.owner is None:
            line = self._line(time.time(), action.kind, "dry-run", action.reason, action.paused_s)
            print(f"would {line.split(' ', 1)[1]}", flush=True)
            self.counts["pauses"] += action.kind == "pause"
            return True
        if action.kind == "pause":
            return self._pause(action.reason, now)
        return self._resume(action.reason)

    def _pause(self, reason: str, now: float) -> bool:
        found = self.find()
        if not self._engine_answered(found):
            return False
        container = found.value
        if container is None or not container.running:
            what = "no such container runs" if container is None else f"it is {container.status}"
            self.note("target", f"hot, but nothing to pause: {what}", "there is a run to pause")
            return False
        self.note("target", "", "")
        if self._unanswered is not None and self._unanswered.container.id != container.id:
            return False
        since = time.time()
        line = self._line(since, "pause", container.name, reason)
        record = Pause(
            *(container.id, container.started_at, container.name, self.engine.program),
            *(since, str(self.journal.path), line),
        )
        try:
            self.owner.record(record)
        except OSError as error:
            why = f"cannot write {self.owner.path} ({error.strerror})"
            self.note("owner", f"{why}: not pausing, since no one could repair the pause")
            return False
        earlier, self._unanswered = self._unanswered, _Asked(container, record, now)
        answer = self.engine.pause(container.id)
        if not self._engine_answered(answer):
            return False
        self._unanswered = earlier
        if answer.no:
            self.note("pause", f"{container.name} cannot be paused: {answer.why}")
            self._forget()
            return False
        self._adopt(container, line)
        return True

    def _adopt(self, container: Container, line: str) -> None:
        """The container is paused and the pause is ours."""
        self._paused = container
        self._acted_at = time.monotonic()
        self.journal.write(line)
        self.counts["pauses"] += 1

    def _landed(self) -> None:
        """A request without an answer took effect: it becomes our pause."""
        container, record, asked_at = self._unanswered
        self._unanswered = None
        if asked_at < self._acted_at:
            # Other actions stand in the log since: the line must not go back in time.
            asked_at, now = time.monotonic(), time.time()
            line = self._line(now, "pause", container.name, "late")
            record = record._replace(line=line, since=now)
            self._record(record)
        self.state = State(paused_at=asked_at)
        self._adopt(container, record.line)

    def _resume(self, reason: str) -> bool:
        container = self._paused
        answer = self.engine.unpause(container.id)
        if not self._engine_answered(answer):
            return False
        if answer.no:
            seen = self.engine.by_id(container.id)
            if not self._engine_answered(seen):
                return False
            reason = why_not_paused(container, seen.value) if seen.yes else ""
            if not reason:
                self.note("resume", f"{container.name} cannot be resumed: {answer.why}")
                return False
        self._write_resume(reason, time.monotonic() - self.state.paused_at)
        return True

    def _write_resume(self, reason: str, paused_s: float) -> None:
        name = self._paused.name
        self.journal.write(self._line(time.time(), "resume", name, reason, paused_s))
        self._forget()

    def _forget(self) -> None:
        """Nothing is paused any more; a request without an answer stays written down."""
        self._paused = None
        self._acted_at = time.monotonic()
        self._record(self._unanswered and self._unanswered.record)

    def _record(self, pause: Pause | None) -> None:
        try:
            self.owner.record(pause)
        except OSError as error:
            self.note("owner", f"cannot write {self.owner.path}: {error.strerror}")

    def _look(self) -> None:
        """Find out whether somebody else ended our pause, or a doubtful one took effect."""
        watched = self._paused or (self._unanswered and self._unanswered.container)
        if not watched:
            return
        seen = self.engine.by_id(watched.id)
        if not self._engine_answered(seen) or not seen.yes:
            return
        reason = why_not_paused(watched, seen.value)
        now = time.monotonic()
        if self._paused:
            if reason:
                self.state, action = interrupted(self.limits, self.state, reason, now)
                self._write_resume(action.reason, action.paused_s)
        elif not reason:
            self._landed()
        elif reason != "unpaused" or now - self._unanswered.at > DOUBT_S:
            self._unanswered = None
            self._forget()

    def _line(
        self, when: float, kind: str, name: str, reason: str, paused_s: float | None = None
    ) -> str:
        hottest = self.last.hottest
        temp_c = hottest.temp_c if hottest else None
        return format_action(when, kind, name, temp_c, reason, paused_s)

    # Its beginning and its end

    def repair(self) -> bool:
        """Resume what a killed guard left paused. False when the engine did not let us."""
        left = self.owner.left if self.owner else None
        if self.owner and self.owner.damaged:
            self._comment(
                f"the owner file was unreadable and is now {self.owner.damaged}; "
                "look for a container that is still paused"
            )
        if left is None:
            return True
        engine = Engine(left.engine, self.engine.timeout_s)
        seen = _until_answered(lambda: engine.by_id(left.container_id))
        if not seen.yes:
            return self._not_repaired(left, seen.why)
        before = Container(left.container_id, left.name, "", "", "paused", left.started_at)
        reason = why_not_paused(before, seen.value)
        if not reason:
            answer = _until_answered(lambda: engine.unpause(left.container_id))
            if not answer.yes:
                return self._not_repaired(left, answer.why)
            self._comment(f"resumed {left.name}, which a killed guard had left paused")
            self.counts["repairs"] += 1
        log = Journal(Path(left.log), say)
        logged = pause_in_log(Path(left.log), left.line, left.name)
        if logged == "absent" and not reason:
            log.write(left.line)
            logged = "open"
        if logged == "open":
            now = time.time()
            paused_s = max(0.0, now - left.since)
            why = reason if reason in ("gone", "ended", "restarted") else "repair"
            log.write(self._line(now, "resume", left.name, why, paused_s))
        if logged == "absent" and reason == "unpaused":
            # The killed guard's request may still be on its way: watch for it.
            self._unanswered = _Asked(seen.value, left, time.monotonic())
        else:
            self._forget()
        self._unrepaired = False
        return True

    def _not_repaired(self, left: Pause, why: str) -> bool:
        self._comment(
            f"{left.name} may be paused since {iso(left.since)} and cannot be resumed "
            f"({why}); try: {left.engine} unpause {left.name}"
        )
        return False

    def finish(self, reason: str) -> bool:
        """Resume before the end. False when a run may still be paused: keep the record then."""
        if self._unrepaired:
            return False
        done = self.owner is None or any(self._released(reason, n) for n in range(TRIES))
        if not done:
            container = self._paused or self._unanswered.container
            self._comment(
                f"{container.name} may still be paused; "
                f"try: {self.engine.program} unpause {container.name}"
            )
        counts = self.counts
        self._comment(
            f"stopped ({reason}): {counts['pauses']} pauses, {counts['readings']} readings, "
            f"{counts['gpu']} of them with trouble, {counts['engine']} calls of "
            f"{self.engine.program} without an answer"
        )
        return done

    def _released(self, reason: str, attempt: int) -> bool:
        if attempt:
            time.sleep(1)
        if self._paused:
            done = self._resume(reason)
            self.state = State() if done else self.state
            if not done:
                return False
        if self._unanswered:
            answer = self.engine.unpause(self._unanswered.container.id)
            if answer.silent:
                return False
            if answer.yes:
                self._landed()
                self._write_resume(reason, time.monotonic() - self.state.paused_at)
            self._unanswered = None
            self._forget()
        return True


def _until_answered(ask: Callable[[], Answer]) -> Answer:
    answer = ask()
    for _ in range(TRIES - 1):
        if not answer.silent:
            break
        time.sleep(1)
        answer = ask()
    return answer
