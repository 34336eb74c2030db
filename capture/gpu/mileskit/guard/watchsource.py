"""What the watchdog watches: a container through its engine, or a log file that grows."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from mileskit.host.containers import Container, Engine, LogStream

CHUNK = 1 << 18


class Lost(Exception):
    """The run can no longer be seen; the message is one line."""


class State(NamedTuple):
    """What a look at the run gave.

    ``word``: running, paused, ended, silent (no answer, ``why`` says how); ``new``: it is another
    life of the run than at the look before.
    """

    word: str
    why: str = ""
    new: bool = False


class ContainerRun:
    """A container by its exact name.

    A look costs one call of the client; the output is followed by one client that stays, so
    nothing is read twice.
    """

    stoppable = True

    def __init__(self, engine: Engine, name: str):
        self.engine, self.name = engine, name
        self._life: Container | None = None
        self._stream: LogStream | None = None
        self._read_at = 0.0

    def __enter__(self) -> ContainerRun:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()

    def look(self) -> State:
        """State of the container; follows its output from the first look on."""
        answer = self.engine.by_name(self.name)
        if answer.silent:
            if self._life is None:
                raise Lost(f"{self.name}: {answer.why}: cannot see the run")
            return State("silent", answer.why)
        if not answer.yes:
            raise Lost(f"{self.name}: {answer.why}")
        found = answer.value
        if found is None:
            if self._life is None:
                raise Lost(f"no container is named {self.name}")
            return State("ended")
        new = self._life is not None and not found.same_life(self._life)
        if self._life is None or new:
            again = self._life is not None and self._life.id == found.id
            self._open(found, since=found.started_at if again else "")
        self._life = found
        if found.paused:
            return State("paused", new=new)
        if found.running or found.status == "restarting":
            if self._stream.ended:
                self._open(found, since=f"{self._read_at:.3f}")
            return State("running", new=new)
        return State("ended", new=new)

    def _open(self, found: Container, since: str) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = self.engine.logs(found.id, since=since)
        self._read_at = time.time()

    def read(self, timeout_s: float) -> bytes:
        """What the container printed since, waiting at most ``timeout_s`` for the first byte."""
        if self._stream is None or self._stream.ended:
            return b""
        data = self._stream.read(timeout_s)
        self._read_at = time.time()
        return data

    @property
    def over(self) -> bool:
        """No more output comes from this life (or the engine went away: look)."""
        return self._stream is None or self._stream.ended

    def stop(self) -> tuple[bool, str]:
        """Stops this life of the container: (done, what to say).  Raises Lost without answer."""
        answer = self.engine.stop(self._life.id)
        if answer.silent:
            raise Lost(f"{self.name}: could not stop the run: {answer.why}")
        if answer.absent:
            return False, "the run was gone before it could be stopped"
        return answer.yes, "stopped the run" if answer.yes else f"not stopped: {answer.why}"


class FileRun:
    """A log file that grows; when it is replaced or shortened, a new life begins."""

    stoppable = False
    over = False

    def __init__(self, path: str):
        self.name = path
        self._file = None
        self._inode = (0, 0)
        self._new = False

    def __enter__(self) -> FileRun:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def look(self) -> State:
        """Opens the file when it is new; running as long as it is there."""
        try:
            status = Path(self.name).stat()
            if (
                self._file is None
                or self._inode != (status.st_dev, status.st_ino)
                or (status.st_size < self._file.tell())
            ):
                first = self._file is None
                if not first:
                    self._file.close()
                self._file = Path(self.name).open("rb", buffering=0)  # noqa: SIM115
                self._inode = (status.st_dev, status.st_ino)
                if self._file.read(6).startswith((b"\x1f\x8b", b"\xfd7zXZ\x00")):
                    raise Lost(f"{self.name} is compressed: use --clock log")
                self._file.seek(0)
                return State("running", new=not first)
        except OSError as error:
            if self._file is None:
                raise Lost(f"{self.name}: cannot open: {error.strerror}") from None
            return State("silent", f"cannot read: {error.strerror}")
        return State("running")

    def read(self, timeout_s: float) -> bytes:
        """New bytes, waiting at most ``timeout_s`` for them."""
        end = time.monotonic() + timeout_s
        while True:
            data = os.read(self._file.fileno(), CHUNK)
            left = end - time.monotonic()
            if data or left <= 0:
                return data
            time.sleep(min(0.2, left))

    def stop(self) -> tuple[bool, str]:
        """A file cannot be stopped."""
        return False, "would stop the run (a log file is only watched)"
