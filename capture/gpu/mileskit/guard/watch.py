"""The watchdog's loop: read what comes, check when it is due, act on the decision."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mileskit.common import command
from mileskit.guard.guardlimits import Limits
from mileskit.guard.guardlive import LiveLog
from mileskit.guard.rules import Decision, Guard
from mileskit.guard.watchsource import Lost

HOOK_S = 300.0  # seconds that --on-stop may take
LINGER_S = 5.0  # after an end, for a restart under the same name
_MEM = re.compile(r"^(MemTotal|MemAvailable): +(\d+) kB", re.M)


class End(NamedTuple):
    """How the watch ended; ``decision`` is None when nothing was ever read."""

    decision: Decision | None
    guard: Guard | None
    acted: bool
    stopped: bool
    action: str
    machine: dict


class Watch:
    """One run (and its restarts under the same name) until it ends or is stopped."""

    def __init__(
        self,
        source,
        limits: Limits,
        *,
        note: Callable[[str], None],
        lost_after: int = 3,
        dry_run: bool = False,
        fault_tolerance: bool = False,
        utc_offset_s: float = 0.0,
    ):
        self.source, self.limits, self.note = source, limits, note
        self.lost_after, self.dry_run = lost_after, dry_run
        self._options = {"fault_tolerance": fault_tolerance, "utc_offset_s": utc_offset_s}
        self.log = self._fresh()
        self.silent = 0
        self._bytes = -1
        self._said: set[str] = set()

    def _fresh(self) -> LiveLog:
        self._said = set()
        return LiveLog(self.limits, time.monotonic(), time.time(), **self._options)

    def run(self) -> End:
        """Blocks until the end.  Raises watchsource.Lost."""
        state = self.source.look()
        self.note(
            f"{self.source.name}: a check every {self.limits.every:g} s, "
            f"limit {self.limits.limit}, {self.limits.checks} checks"
        )
        due = time.monotonic()
        while True:
            if state.new:
                self.note(f"{self.source.name}: a new life of the run: its guard starts anew")
                self.log = self._fresh()
            if state.word == "ended":
                state = self._restarted()
                if state is None:
                    return self._ended()
                continue
            if not self.log.live:
                self._read_past()
                due = time.monotonic()
            if time.monotonic() >= due:
                decision = self._check(state)
                if decision.stop:
                    return self._stop(decision)
                if self._file_is_over():
                    return self._ended()
                due = max(due + self.limits.every, time.monotonic())
            self._read_until(due, look_early=state.word != "silent")
            state = self.source.look()

    def _restarted(self):
        """After an end: the state of the next life of the run, or None when none comes."""
        end = time.monotonic() + LINGER_S
        while time.monotonic() < end:
            time.sleep(0.5)
            state = self.source.look()
            if state.new and state.word != "ended":
                return state
        return None

    def _file_is_over(self) -> bool:
        """A log file whose run has ended and that grew no more since the last check."""
        over = self.log.bytes == self._bytes
        self._bytes = self.log.bytes
        return over and not self.source.stoppable and self.log.guard.ended is not None

    def _read_past(self) -> None:
        while not self.log.live and not self.source.over:
            self.log.feed(self.source.read(0.3), time.monotonic())
        self.log.go_live(time.monotonic())

    def _read_until(self, due: float, look_early: bool) -> None:
        """Reads until a check is due; ``look_early``: less when the output is over."""
        while (left := due - time.monotonic()) > 0:
            if self.source.over:
                time.sleep(min(left, 0.2))
                if look_early:
                    return
            else:
                data = self.source.read(min(left, 1.0))
                if data:
                    self.log.feed(data, time.monotonic())

    def _check(self, state) -> Decision:
        mono = time.monotonic()
        if state.word == "silent":
            self.silent += 1
            self.note(f"{self.source.name}: {state.why}: this check does not count")
            if self.silent >= self.lost_after:
                raise Lost(
                    f"{self.source.name}: no answer in {self.silent} checks in a row: "
                    "the run has no guard"
                )
            return self.log.check(mono, docker_ok=False)
        self.silent = 0
        decision = self.log.check(mono, paused=state.word == "paused")
        for word, text in decision.warnings.items():
            if word not in self._said:
                self._said.add(word)
                self.note(f"{self.source.name}: warning {word}: {text}")
        if sys.stderr.isatty():
            self.note(
                f"{self.source.name}: {decision.verdict}: {decision.why}; "
                f"{decision.failed} failed requests in {self.limits.window:g} s"
            )
        return decision

    def _stop(self, decision: Decision) -> End:
        machine = machine_state()
        if self.dry_run:
            return End(decision, self.log.guard, True, False, "would stop the run", machine)
        done, action = self.source.stop()
        acted = done or not self.source.stoppable
        return End(decision, self.log.guard, acted, done, action, machine)

    def _ended(self) -> End:
        """Reads the rest of the output and judges the whole."""
        end = time.monotonic() + 10.0
        while not self.source.over and time.monotonic() < end:
            data = self.source.read(0.3)
            if not data and not self.source.stoppable:
                break
            self.log.feed(data, time.monotonic())
        if not self.log.bytes:
            return End(None, None, False, False, "the run ended", {})
        decision = self.log.final(time.monotonic())._replace(stop=False)
        return End(decision, self.log.guard, False, False, "the run ended", {})


def machine_state() -> dict:
    """Memory and GPU of this host as short texts; what cannot be read is left out."""
    found = {}
    try:
        sizes = dict(_MEM.findall(Path("/proc/meminfo").read_text()))
        free, total = (int(sizes[k]) / 2**20 for k in ("MemAvailable", "MemTotal"))
        found["memory"] = f"{free:.1f} of {total:.1f} GiB available"
    except (OSError, KeyError):
        pass
    query = "utilization.gpu,memory.used,memory.total,temperature.gpu"
    ran = command.run_program(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], timeout_s=5.0
    )
    if ran.status == 0 and ran.out.strip():
        found["gpu"] = "; ".join(line.strip() for line in ran.out.strip().splitlines()[:8])
    return found


def hook(shell_command: str, name: str, found: dict) -> None:
    """Runs the user's command with the decision in its environment; says when it fails."""
    root = found["root"] or {}
    extra = {
        "MILES_RUN": name,
        "MILES_VERDICT": found["verdict"],
        "MILES_WHY": found["why"],
        "MILES_ROOT": root.get("text", ""),
        "MILES_ROOT_LINE": str(root.get("line", "")),
    }
    clean = {key: value.replace("\0", "") for key, value in extra.items()}
    try:
        done = subprocess.run(
            shell_command,
            shell=True,
            env={**os.environ, **clean},
            timeout=HOOK_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        trouble = f"ended with status {done.returncode}" if done.returncode else ""
    except subprocess.TimeoutExpired:
        trouble = f"was ended after {HOOK_S:g} s"
    if trouble:
        print(f"watchdog: --on-stop command {trouble}", file=sys.stderr)
