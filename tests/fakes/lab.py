"""A folder with stand-ins for docker and nvidia-smi, and the heat guard run against them."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
GUARD = ROOT / "capture" / "gpu" / "heat_guard.py"


def row(temp: object, gpu: int = 0, sm: object = 1980, power: object = 600.5) -> str:
    """One line of nvidia-smi as the guard asks for it."""
    return f"{gpu}, {temp}, {sm}, {power}, 70211, 100, 0x0000000000000004"


class FakeLab:
    """Files that the stand-ins read and write, under `folder`."""

    def __init__(self, folder: Path, programs: tuple[str, ...] = ("docker", "nvidia-smi")):
        self.folder = folder
        self.bin = folder / "bin"
        self._guards: list[subprocess.Popen] = []
        for name in ("bin", "containers", "faults"):
            (folder / name).mkdir()
        for program in programs:
            shutil.copy(HERE / program, self.bin / program)
        self.log = folder / "heat-guard.log"
        self.samples = folder / "samples.jsonl"
        self.owner = folder / "owner.json"
        self.stop_file = folder / "queue.done"
        self.env = {**os.environ, "FAKE_LAB": str(folder)}
        self.env["PATH"] = f"{self.bin}:/usr/bin:/bin"

    def container(
        self, name: str, container_id: str = "", image="radixark/miles:latest", started="t0"
    ):
        """Add a running container, or start the one of this name again."""
        folder = self.folder / "containers" / (container_id or f"id-of-{name}")
        folder.mkdir(exist_ok=True)
        fields = {"name": name, "image": image, "status": "running", "started": started}
        for field, value in fields.items():
            (folder / field).write_text(value + "\n")
        return folder

    def status(self, name: str) -> str:
        return (self.folder / "containers" / f"id-of-{name}" / "status").read_text().strip()

    def gpu(self, *lines: str) -> None:
        (self.folder / "gpu").write_text("".join(line + "\n" for line in lines))

    def fault(self, call: str, what: str) -> None:
        """`call` is "pause.1" (the first pause) or "pause" (every one)."""
        (self.folder / "faults" / call).write_text(what)

    def heal(self) -> None:
        for path in (self.folder / "faults").iterdir():
            path.unlink()

    def calls(self, verb: str = "") -> list[str]:
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(verb)]

    def options(self, **changed: object) -> list[str]:
        """Options of a guard whose whole cycle takes a fraction of a second."""
        options = {
            "name": "miles-plain",
            "interval-s": 0.02,
            "min-pause-s": 0.06,
            "max-pause-s": 0.3,
            "answer-s": 2,
            "log": self.log,
            "samples": self.samples,
            "owner-file": self.owner,
            "stop-file": self.stop_file,
        }
        options.update({key.replace("_", "-"): value for key, value in changed.items()})
        return [f"--{key}={value}" for key, value in options.items() if value is not None]

    def start(self, *more: str, **changed: object) -> subprocess.Popen:
        guard = subprocess.Popen(
            [sys.executable, str(GUARD), *self.options(**changed), *more],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._guards.append(guard)
        return guard

    def close(self) -> None:
        """End the guards that a failed test left."""
        for guard in self._guards:
            if guard.poll() is None:
                guard.kill()
                guard.communicate()

    def run(self, *more: str, **changed: object) -> subprocess.CompletedProcess:
        guard = self.start(*more, **changed)
        return finish(guard)

    def actions(self) -> list[dict]:
        """The actions of the log as dicts with time, kind and the named fields."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        found = []
        for line in lines:
            if not line.startswith("#"):
                when, kind, *pairs = line.split(" ")
                found.append({"time": when, "kind": kind, **dict(p.split("=", 1) for p in pairs)})
        return found

    def kinds(self) -> list[tuple[str, str]]:
        return [(action["kind"], action["reason"]) for action in self.actions()]

    def comments(self) -> str:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return "\n".join(line for line in lines if line.startswith("#"))

    def stored(self) -> list[dict]:
        return [json.loads(line) for line in self.samples.read_text().splitlines()]


def until(condition, what: str, seconds: float = 30.0):
    """Wait for a condition and return its value; fail by name when it never holds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"never happened: {what}")


def finish(guard: subprocess.Popen, seconds: float = 40.0) -> subprocess.CompletedProcess:
    """Wait for a guard's end and collect what it printed."""
    try:
        out, err = guard.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.communicate()
        raise
    return subprocess.CompletedProcess(guard.args, guard.returncode, out, err)
