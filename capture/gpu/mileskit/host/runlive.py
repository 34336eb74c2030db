"""One guarded run while it lives: the container, its watchdog, its heat guard, its time limit.

Every helper is a process in a session of its own, so that a Ctrl+C or a closed terminal reaches
this program only, which then ends them in the right order: heat guard (it resumes the run),
container, watchdog.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from mileskit.host import runspec
from mileskit.host.containers import Container, Engine
from mileskit.host.runspec import Spec
from mileskit.log.events import Rollout, Step
from mileskit.log.logparse import LogParser

CLIENT_FAILED = 125
NOT_STARTED = (CLIENT_FAILED, 126, 127)
"""Exit statuses of `docker run` when Docker failed, or the container had no such program."""

STOPS = 3  # tries to stop a container while Docker gives no answer
RESTARTS = 3  # of a heat guard that ended by itself while the run goes on


class Timing(NamedTuple):
    """Seconds. appear: until the container must be there. grace: of `docker stop`, before it kills.
    settle: for a watchdog to see that the run ended. heat: for a heat guard to refuse its start.
    after: from a watchdog's end to that of the run that it stopped, besides `grace`.
    again: before another try to stop it when Docker gave no answer."""

    poll: float = 0.5
    appear: float = 120.0
    grace: int = 10
    settle: float = 45.0
    heat: float = 2.0
    after: float = 10.0
    again: float = 3.0


class Outcome(NamedTuple):
    """How a run ended.

    how: finished, failed, time-limit, killed (by the watchdog or by whoever ran this), not-started,
    unknown (sight of the container was lost). status: exit status of the container, None when
    unknown. by: "" or who ended it: watchdog, limit, user. lost: the watchdog lost sight, so that
    the run was without a guard. alive: the container may still run.
    """

    how: str
    status: int | None = None
    by: str = ""
    lost: bool = False
    alive: bool = False


class Signals:
    """Turns SIGINT and SIGTERM into a wish to end; SIGHUP is ignored, the run goes on without a
    terminal. A context manager that puts the old handlers back."""

    def __init__(self) -> None:
        self.reason = ""
        self._before: dict[int, object] = {}

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._ask)
        self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _frame: object) -> None:
        self.reason = self.reason or signal.Signals(number).name


def say(text: str) -> None:
    """One line on standard error with the UTC time; a terminal that is gone is no trouble."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr.isatty():
            sys.stderr.write("\r\033[K")
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        print(f"{stamp} {text}", file=sys.stderr, flush=True)


def show(text: str, stream=None) -> None:
    """A line as it is, on standard output or `stream`; a terminal that is gone is no trouble."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=stream, flush=True)


class Child:
    """A helper process that writes into a file of its own."""

    def __init__(self, what: str, words: list[str], output: Path):
        self.what, self.words, self.output = what, words, output
        with output.open("ab") as out:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def code(self) -> int | None:
        """Exit code, None while it runs."""
        return self.process.poll()

    def wait(self, seconds: float) -> int | None:
        """Exit code after at most `seconds`, None when it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout=seconds)
        return None

    def end(self, seconds: float = 30.0) -> int:
        """Ask it to end with SIGTERM, kill it when it does not; its exit code."""
        if self.code() is None:
            self.process.terminate()
            if self.wait(seconds) is None:
                self.process.kill()
        return self.process.wait()

    def last_line(self) -> str:
        """The last line that it wrote, "" when it wrote none."""
        return tail(self.output, 1)


def tail(path: Path, lines: int) -> str:
    """The last lines of a file that are not empty, from its last 8 KiB."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - 8192))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join([line.rstrip() for line in text.splitlines() if line.strip()][-lines:])


class Progress:
    """Follows the growing log and shows the last finished step, on a terminal only."""

    def __init__(self, path: Path):
        self._on = sys.stderr.isatty()
        self._stream: BinaryIO | None = path.open("rb") if self._on else None
        self._parser = LogParser()
        self._began = self._shown = time.monotonic()
        self._step = "no step yet"
        self._reward: float | None = None

    def show(self) -> None:
        """Read what is new and refresh the line once a second."""
        if not self._on or time.monotonic() - self._shown < 1:
            return
        self._shown = time.monotonic()
        for event in self._parser.feed(self._stream.read(8 << 20)):
            if type(event) is Rollout:
                self._reward = event.metrics.get("rollout/raw_reward")
            elif type(event) is Step:
                known = isinstance(self._reward, float)
                reward = f", reward {self._reward:.3f}" if known else ""
                self._step = f"step {event.index}{reward}"
        minutes, seconds = divmod(int(self._shown - self._began), 60)
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"\r\033[K{minutes:3d}:{seconds:02d}  {self._step}")
            sys.stderr.flush()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write("\r\033[K")


class Live:
    """Starts one run and stays with it. `asked` says why to end, "" for not yet."""

    def __init__(self, spec: Spec, engine: Engine, asked: Callable[[], str], timing: Timing):
        self.spec, self.engine, self.asked, self.timing = spec, engine, asked, timing
        self.watchdog: Child | None = None
        self.heat: Child | None = None
        self.container: Container | None = None
        self._client: subprocess.Popen | None = None
        self._heat_starts = 0
        self._unguarded_since = 0.0
        self._lost = False  # nothing guards the run any more
        self._blind = False  # Docker does not say whether the container runs
        self._orphaned = False  # the container outlived the client that wrote its log

    def go(self, image: str) -> Outcome:
        """The whole life of the run. Raises OSError, FileExistsError for a log that is there."""
        spec = self.spec
        if spec.heat_guard and not self._start_heat():
            return Outcome("not-started")
        try:
            with spec.file("log").open("xb") as log:
                self._client = subprocess.Popen(
                    runspec.run_words(spec, image),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            began = time.monotonic()
            if not self._appeared():
                return self._never_there()
            if spec.checks:
                self.watchdog = Child(
                    "watchdog", runspec.watchdog_words(spec), spec.file("watchdog.log")
                )
            return self._stay(began)
        finally:
            if self.heat is not None:
                self.heat.end()

    # -- beginning --------------------------------------------------------------------------------

    def _start_heat(self) -> bool:
        """Start the heat guard; False when it ended at once, as one that finds another guard."""
        stop_file = self.spec.file("heat-guard.stop")
        self.heat = Child(
            "heat guard", runspec.heat_words(self.spec, stop_file), self.spec.file("heat-guard.out")
        )
        self._heat_starts += 1
        if self._heat_starts > 1:
            return True
        code = self.heat.wait(self.timing.heat)
        if code is not None:
            say(f"the heat guard did not start (exit code {code}): {self.heat.last_line()}")
        return code is None

    def _appeared(self) -> bool:
        """Wait until the container runs, or the client ended.

        A wish to end waits too: a client that is ended now can leave a container behind.
        """
        until = time.monotonic() + self.timing.appear
        while True:
            seen = self.engine.by_name(self.spec.container)
            if seen.yes and seen.value is not None and seen.value.alive:
                self.container = seen.value
                return True
            if self._client.poll() is not None:
                return self._client.returncode not in NOT_STARTED
            if time.monotonic() > until:
                return False
            time.sleep(self.timing.poll / 2)

    def _never_there(self) -> Outcome:
        status = self._client.poll()
        words = [
            line for line in tail(self.spec.file("log"), 4).splitlines() if "--help" not in line
        ]
        if status is None:
            self._client.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._client.wait(timeout=self.timing.settle)
            stopped = self.engine.stop(self.spec.container, self.timing.grace)
            alive = stopped.silent
            say(f"{self.spec.container}: was not there in time, and was given up")
            return Outcome("unknown" if alive else "not-started", status, alive=alive)
        say(f"{self.spec.engine} run ended with {status} and started nothing: {' '.join(words)}")
        if "could not select device driver" in " ".join(words):
            say("install the NVIDIA container toolkit and restart Docker; see the verb doctor")
        return Outcome("not-started", status)

    # -- middle -----------------------------------------------------------------------------------

    def _stay(self, began: float) -> Outcome:
        progress = Progress(self.spec.file("log"))
        try:
            while self._runs():
                progress.show()
                if self.asked():
                    say(f"{self.asked()}: stopping {self.spec.container}")
                    return self._stop("killed", "user")
                if self.spec.limit_s and time.monotonic() - began >= self.spec.limit_s:
                    say(f"{self.spec.container}: its {self.spec.limit_s / 60:g} minutes are over")
                    return self._stop("time-limit", "limit")
                self._look_after_guards()
                time.sleep(self.timing.poll)
        finally:
            progress.close()
        return self._ended()

    def _runs(self) -> bool:
        """Does the container run? A client that ended early does not mean that it does not."""
        if self._client.poll() is None:
            return True
        seen = self.engine.by_id(self.container.id) if self.container else None
        if seen is None or (seen.yes and (seen.value is None or not seen.value.alive)):
            return False
        if seen.silent:
            say(f"{seen.why}: {self.spec.container} may still run")
            self._blind = True
            return False
        if not self._orphaned:
            say("the client of Docker ended, and the container runs on without its log")
            self._orphaned = self._lost = True
        time.sleep(self.timing.poll)
        return True

    def _look_after_guards(self) -> None:
        heat = self.heat
        if heat is not None and heat.code() is not None:
            say(f"the heat guard ended (exit code {heat.code()}): {heat.last_line()}")
            self.heat = None
            if self._heat_starts <= RESTARTS:
                say("starting the heat guard again, which resumes what it left paused")
                self._start_heat()
            else:
                say("the run has no heat guard now")
        code = self.watchdog.code() if self.watchdog else None
        if code is None or self._lost:
            return
        now = time.monotonic()
        self._unguarded_since = self._unguarded_since or now
        # A watchdog that stopped the run ends a moment before the run does.
        waited = now - self._unguarded_since > self.timing.grace + self.timing.after
        if waited or code not in (0, 1):
            self._lost = True
            say(
                f"the watchdog ended (exit code {code}), but the run goes on, now without a guard: "
                f"{self.watchdog.last_line()}"
            )

    # -- end --------------------------------------------------------------------------------------

    def _stop(self, how: str, by: str) -> Outcome:
        """End the container; the heat guard first, so that it cannot pause what is being ended."""
        if self.heat is not None:
            self.heat.end()
            self.heat = None
        reference = self.container.id if self.container else self.spec.container
        for attempt in range(STOPS):
            time.sleep(self.timing.again if attempt else 0)
            answer = self.engine.stop(reference, self.timing.grace)
            if not answer.silent:
                break
        if answer.silent:
            say(f"{answer.why}: {self.spec.container} may still run; its watchdog goes on")
            return Outcome(how, self._client.poll(), by, self._lost, alive=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._client.wait(timeout=self.timing.settle)
        self._settle_watchdog()
        return Outcome(how, self._client.poll(), by, self._lost)

    def _ended(self) -> Outcome:
        status = self._client.poll()
        if self._blind:
            return Outcome("unknown", status, "", True, alive=True)
        code = self._settle_watchdog()
        if self._orphaned:
            return Outcome("unknown", None, "", True)
        if code == 1 and not self._lost:
            return Outcome("killed", status, "watchdog")
        return Outcome("finished" if status == 0 else "failed", status, "", self._lost)

    def _settle_watchdog(self) -> int | None:
        """Wait until the watchdog has seen the end, and end it when it has not."""
        if self.watchdog is None:
            return None
        code = self.watchdog.wait(self.timing.settle)
        if code is None:
            say("the watchdog did not see the end of the run and is ended")
            self.watchdog.end()
            return None
        # It can come too late for a short run and find no container; only where Docker's client
        # lost the run too (125) does its 2 mean that nobody saw the end.
        if code not in (0, 1) and self._client.poll() == CLIENT_FAILED:
            self._lost = True
            say(f"the watchdog lost sight (exit code {code}): {self.watchdog.last_line()}")
        return code
