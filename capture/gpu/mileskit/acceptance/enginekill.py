"""The provoked death of an engine: when it is time, and the program that does it.

Miles names the engine's working process `sglang::scheduler...` (seen in the stored run
`kill_noft`). The program runs inside the container, sends SIGKILL to the processes of that name,
and writes a comment line into the run's own log, as the capture of `kill_noft` did.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from mileskit.common import command
from mileskit.log.events import Progress, Rollout
from mileskit.log.logparse import LogParser

PROCESS = "sglang::scheduler"
BAR = "Rollout generation"
EXEC_S = 30.0
CHUNK = 8 << 20
RECORD = "engine-kill.json"

# Runs in the container's own Python; prints one JSON object and fails when it found no process.
SCRIPT = """\
import json, os, signal, time
found = []
for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            title = file.read(200).replace(bytes(1), b" ").decode("utf-8", "replace").strip()
    except OSError:
        continue
    if title.startswith("PROCESS"):
        found.append((pid, title))
at = time.time()
for pid, _ in found:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1e6):06d}Z"
pids = [pid for pid, _ in found]
if pids:
    try:
        with open("/proc/1/fd/1", "w") as log:
            words = " ".join(map(str, pids))
            log.write(f"\\n# {stamp} killer: SIGKILL sent to PROCESS pid {words}\\n")
    except OSError:
        pass
print(json.dumps({"at": at, "pids": pids}))
raise SystemExit(not pids)
""".replace("PROCESS", PROCESS)


class Kill(NamedTuple):
    """One provoked death. at: Unix seconds of the signal; rollout: the one that had begun."""

    at: float
    rollout: int
    pids: tuple[int, ...]


def words(engine: str, container: str) -> list[str]:
    """The command that ends the engine's process inside a container."""
    return [engine, "exec", container, "python", "-c", SCRIPT]


def shown(engine: str, container: str) -> str:
    """The same command for people, with the program's name in place of its text."""
    return f"{shlex.join([engine, 'exec', container, 'python', '-c'])} '…SIGKILL to {PROCESS}…'"


class Watcher:
    """Reads the growing log and says whether a rollout has begun.

    A rollout has begun when as many rollouts are over as its number says and the bar of its
    generation shows, not yet at its end. Numbers begin at 0.
    """

    def __init__(self, path: Path, rollout: int):
        self.path, self.rollout = path, rollout
        self._stream: BinaryIO | None = None
        self._parser = LogParser()
        self._over = 0

    def begun(self) -> bool:
        """Read what is new; True once, in the read in which the rollout shows that it began."""
        if self._stream is None:
            try:
                self._stream = self.path.open("rb")
            except OSError:
                return False
        for event in self._parser.feed(self._stream.read(CHUNK)):
            if type(event) is Rollout:
                self._over = max(self._over, event.index + 1)
            elif type(event) is Progress and event.label == BAR:
                begun = event.done < event.total and self._over >= self.rollout
                if begun:
                    return True
        return False

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()


class Killer:
    """`asked` of a run: ends the engine once a rollout began, and says why to end, if to end.

    record: file that gets the kill. stop: the reason of the caller to end, "" for none.
    """

    def __init__(
        self, log: Path, record: Path, kill: list[str], rollout: int, stop: Callable[[], str]
    ):
        self.record, self._kill, self._stop = record, kill, stop
        self._watcher: Watcher | None = Watcher(log, rollout)
        self._rollout = rollout
        self._fresh = True
        self._due = False
        self.trouble = ""

    def __call__(self) -> str:
        if self._fresh:  # the record of an earlier try says nothing about this run
            self.record.unlink(missing_ok=True)
            self._fresh = False
        if self._stop():
            return self._stop()
        if self._watcher is not None and self._watcher.begun():
            self.close()
            self._due = True
        if self._due:
            self._due = not self._act()
        return self.trouble

    def close(self) -> None:
        """Stop reading the log."""
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def _act(self) -> bool:
        """Try once; False while the heat guard has the container paused, which lets nothing in."""
        ran = command.run_program(self._kill, EXEC_S)
        done = parse(ran.out, self._rollout)
        if done is None and "paused" in ran.err:
            return False
        if done is None:
            why = ran.trouble or " ".join(f"{ran.err} {ran.out}".split())[:160] or "no answer"
            self.trouble = f"the engine could not be ended in its container ({why})"
            return True
        try:
            write(self.record, done)
        except OSError as error:
            self.trouble = f"{error.filename}: {error.strerror}"
        return True


def parse(text: str, rollout: int) -> Kill | None:
    """What the program printed; None when it found no process or printed something else."""
    with contextlib.suppress(ValueError, KeyError, TypeError, IndexError):
        said = json.loads(text.strip().splitlines()[-1])
        pids = tuple(int(pid) for pid in said["pids"])
        return Kill(float(said["at"]), rollout, pids) if pids else None
    return None


def write(path: Path, kill: Kill) -> None:
    """Write the kill in one piece. Raises OSError."""
    half = path.with_name(f".{path.name}.{os.getpid()}.half")
    try:
        half.write_text(json.dumps(kill._asdict()) + "\n", encoding="utf-8")
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def read(path: Path) -> Kill | None:
    """The kill of a file, None when it has none that can be read."""
    with contextlib.suppress(OSError, ValueError):
        return parse_record(path.read_text(encoding="utf-8"))
    return None


def parse_record(text: str) -> Kill | None:
    """The kill of a record's text, None when it holds anything else, or anything more."""
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError, OverflowError):
        said = json.loads(text)
        kill = Kill(float(said["at"]), int(said["rollout"]), tuple(map(int, said["pids"])))
        if said.keys() == set(Kill._fields) and math.isfinite(kill.at):
            return kill
    return None
