"""Look at this host for the verb `doctor`: programs and files, each with a limit on its time.

Every probe gives a Probe with the raw text, which `doctor_checks` judges; nothing is changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from mileskit.common import command
from mileskit.host import runspec

PROBE_S = 10.0
CONTAINER_S = 120.0
GPU_FIELDS = (
    *("index", "name", "driver_version", "memory.total", "memory.used", "temperature.gpu"),
    *("pstate", "clocks.sm", "clocks.max.sm", "utilization.gpu", "power.draw"),
)
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
THRESHOLD = "RAY_memory_usage_threshold"  # Ray spells it so
TOOLKIT = ("nvidia-container-runtime-hook", "nvidia-container-cli", "nvidia-ctk")
PORTS = {6379: "Ray", 8265: "the dashboard and job server of Ray"}


class Probe(NamedTuple):
    """What one look gave. out: text, None when there was no answer; why: then the reason
    ("missing" for a program that is not there, "timeout", or words)."""

    out: str | None
    why: str = ""


class Place(NamedTuple):
    """Where to look."""

    lab: Path
    cache: Path
    image: str = runspec.IMAGE
    engine: str = "docker"
    probe_s: float = PROBE_S
    in_container: bool = False


def look(place: Place) -> dict[str, Probe]:
    """Every probe by its name; those that wait for a program run side by side."""
    probes = _programs(place)
    with ThreadPoolExecutor(len(probes)) as pool:
        running = {name: pool.submit(probe) for name, probe in probes.items()}
        found = {name: future.result() for name, future in running.items()}
    found["meminfo"] = _file("/proc/meminfo")
    found["cpus"] = _cpus()
    found["toolkit"] = Probe("\n".join(name for name in TOOLKIT if shutil.which(name)))
    found["python"] = Probe(platform.python_version() + f" {sys.executable}")
    found["machine"] = Probe(platform.machine())
    found["ports"] = Probe("\n".join(f"{port} {_port(port)}" for port in PORTS))
    found["threshold"] = Probe(os.environ.get(THRESHOLD, ""))
    for name, folder in (("lab", place.lab), ("cache", place.cache)):
        found[name] = folder_facts(folder)
    root = _docker_root(found["info"])
    found["docker-root"] = folder_facts(Path(root)) if root else Probe(None, "Docker did not say")
    return found


def _programs(place: Place) -> dict[str, Callable[[], Probe]]:
    def ask(*words: str) -> Callable[[], Probe]:
        return lambda: program(list(words), place.probe_s)

    engine = place.engine
    form = "{{json .RepoDigests}} {{.Architecture}} {{.Id}}"
    probes = {
        "gpu": lambda: _gpu(place.probe_s),
        "apps": ask(*runspec.apps_words()),
        "docker": ask(engine, "version", "--format", "{{.Server.Version}}"),
        "info": ask(engine, "info", "--format", "{{json .}}"),
        "image": ask(engine, "image", "inspect", "--format", form, place.image),
        "running": ask(engine, "ps", "--format", "{{.Names}} {{.Image}} {{.Status}}"),
    }
    if place.in_container:
        words = [engine, "run", "--rm", "--gpus", "all", place.image]
        probes["container"] = lambda: program([*words, *runspec.gpu_words()], CONTAINER_S)
    return probes


def program(words: list[str], timeout_s: float) -> Probe:
    """What a program printed; why holds its status and words when it failed."""
    ran = command.run_program(words, timeout_s)
    if ran.trouble:
        return Probe(None, ran.trouble)
    if ran.status:
        said = " ".join(f"{ran.err} {ran.out}".split())[:400]
        return Probe(None, f"status {ran.status}: {said}")
    return Probe(ran.out)


def _gpu(timeout_s: float) -> Probe:
    """Rows of GPU_FIELDS and the throttle reasons, by the field's new name, else its old one."""
    seen = Probe(None, "missing")
    for reasons in REASONS:
        fields = ",".join((*GPU_FIELDS, reasons))
        seen = program(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"], timeout_s
        )
        if "not a valid field" not in seen.why:
            break
    return seen


def folder_facts(path: Path) -> Probe:
    """A folder as JSON: exists, owner, whether this user may write, free bytes of its disk.

    For a folder that is not there, owner and right are those of the nearest one above it.
    """
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        seen = there.stat()
        free = shutil.disk_usage(there).free
    except OSError as error:
        return Probe(None, f"{there}: {error.strerror}")
    facts = {
        "path": str(path),
        "exists": path.exists(),
        "folder": there.is_dir(),
        "uid": seen.st_uid,
        "own_uid": os.geteuid(),
        "writable": os.access(there, os.W_OK | os.X_OK),
        "free": free,
    }
    return Probe(json.dumps(facts))


def _file(path: str) -> Probe:
    try:
        return Probe(Path(path).read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        return Probe(None, error.strerror or str(error))


def _cpus() -> Probe:
    try:
        return Probe(str(len(os.sched_getaffinity(0))))
    except (AttributeError, OSError):
        count = os.cpu_count()
        return Probe(str(count)) if count else Probe(None, "the system did not say")


def _port(port: int) -> str:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return "used"
    return "free"


def _docker_root(info: Probe) -> str:
    with contextlib.suppress(ValueError, TypeError):
        found = json.loads(info.out or "null")
        return str(found.get("DockerRootDir", "")) if isinstance(found, dict) else ""
    return ""
