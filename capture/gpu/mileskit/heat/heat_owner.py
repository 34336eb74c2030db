"""Who guards, and what is paused: the owner file of the heat guard.

The pause is written down before it is done, so that a guard that was killed at any point leaves
enough for the next one to resume the run. The file is JSON: pid, start time of that process (a
reused pid has another), and under "pause" the container, since when, and the log line of the pause.
A lock beside it (released by the system when its holder dies) settles two starts at the same time.
"""

import contextlib
import fcntl
import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple


class Busy(Exception):
    """Another guard holds the owner file."""


class Pause(NamedTuple):
    """A pause that is about to be made, or made.

    container_id, started_at: which life of which container. name: for people. engine: the client
    program. since: Unix seconds. log: path of the heat-guard log. line: the pause line it gets.
    """

    container_id: str
    started_at: str
    name: str
    engine: str
    since: float
    log: str
    line: str


class Owner:
    """The owner file at `path`, held from `take` to `release`.

    left: the Pause that a dead guard left, None when there is none.
    damaged: where an unreadable owner file was moved to, None when there was none.
    """

    def __init__(self, path: Path):
        self.path = path
        self.left: Pause | None = None
        self.damaged: Path | None = None
        self._lock: int | None = None

    def take(self) -> None:
        """Become the owner. Raises Busy while another guard lives, OSError for file trouble."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(lock_path(self.path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        locked = True
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            locked = False
        except OSError:
            pass  # a file system without locks: the pid below decides alone
        old = self._read()
        if not locked or _lives(old):
            self._unlock()
            pid = old.get("pid", "unknown")
            raise Busy(f"another heat guard runs (pid {pid}, owner file {self.path})")
        self.left = _pause(old)
        self.record(self.left)

    def record(self, pause: Pause | None) -> None:
        """Write down, so that it outlives this process, what is (about to be) paused."""
        content = {
            "schema": 1,
            "pid": os.getpid(),
            "process_start": process_start(os.getpid()),
            "pause": None if pause is None else pause._asdict(),
        }
        part = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        try:
            with part.open("w", encoding="utf-8") as out:
                json.dump(content, out, indent=1)
                out.write("\n")
                out.flush()
                os.fsync(out.fileno())
            part.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()
            raise

    def release(self, keep_record: bool = False) -> None:
        """Stop owning; `keep_record` leaves the pause for the next guard to repair."""
        if not keep_record:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _read(self) -> dict:
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return {}
        try:
            content = json.loads(text)
            if not isinstance(content, dict):
                raise ValueError("not an object")
            _pause(content)
        except (ValueError, TypeError):
            self.damaged = self.path.with_name(self.path.name + ".damaged")
            self.path.replace(self.damaged)
            return {}
        return content


def lock_path(owner_file: Path) -> Path:
    return owner_file.with_name(owner_file.name + ".lock")


def process_start(pid: int) -> str | None:
    """A text that tells this process from a later one with the same pid; None when none lives.

    Linux: boot id and start in clock ticks (proc(5), field 22 of /proc/PID/stat). Elsewhere: the
    start time that `ps` prints. A zombie does not live.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        fields = stat.rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    except (OSError, IndexError):
        return None
    try:
        told = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip() or None


def _lives(content: dict) -> bool:
    pid, start = content.get("pid"), content.get("process_start")
    if not isinstance(pid, int) or pid == os.getpid():
        return False
    return start is not None and process_start(pid) == start


def _pause(content: dict) -> Pause | None:
    fields = content.get("pause")
    return None if fields is None else Pause(**fields)
