"""What the probes of `doctor` mean: pure functions from probes to lines.

A line is ok, warning, failing or unknown (could not look); all but ok say what to do. Thresholds
stand at the top with what set them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from mileskit.heat import gpusample
from mileskit.host import containers
from mileskit.host.doctor_probes import GPU_FIELDS, PORTS, Probe

OK, WARNING, FAILING, UNKNOWN = "ok", "warning", "failing", "unknown"

DRIVER = 580  # the image is built for CUDA 13; NVIDIA's release notes: driver 580 or newer
HOT_C = 84.0  # the heat guard pauses here
COOL_C = 74.0  # and resumes here
BUSY_PCT = 50.0  # a clock says something about load from here
SLOW = 0.5  # of the highest SM clock, under load: stuck in a low-power state, or capped
SMALL_GPU_MIB = 24 * 1024  # no run on a smaller card is known to us
SMALL_HOST_GIB = 16.0  # the trainer's offloaded state: 16 bytes for each of 0.6 billion weights
RAY_SHARE = 0.95  # Ray ends a worker above this share of the host's memory
RAY_NEAR = 0.5  # a run on unified memory starts from here with little left
CPUS = 3  # one-GPU runs ask Ray for three
LAB_GB, LAB_LOW_GB = 5.0, 20.0  # model, data, checkpoints and logs
IMAGE_GB = 60.0  # room to pull and unpack an image of tens of GB
PYTHON = (3, 10)


class Line(NamedTuple):
    """One line of the report. todo is empty for ok."""

    name: str
    state: str
    found: str
    todo: str = ""


Probes = Mapping[str, Probe]


def lines(probes: Probes, image: str) -> list[Line]:
    """The whole report in its order."""
    gpus = gpu_rows(probes["gpu"])
    found = [
        gpu(probes["gpu"], gpus),
        driver(gpus),
        memory(gpus, probes["meminfo"]),
        ray_memory(gpus, probes["meminfo"], probes["threshold"]),
        temperature(gpus),
        clocks(gpus),
        processes(probes["apps"]),
        docker(probes["docker"]),
        toolkit(probes["toolkit"], probes["info"]),
        image_line(probes["image"], probes["docker"], probes["machine"], image),
        running(probes["running"]),
        folder("lab folder", probes["lab"], make=True),
        folder("download cache", probes["cache"], make=True),
        disk("disk of the lab", probes["lab"], LAB_GB, LAB_LOW_GB),
        docker_disk(probes["docker-root"], probes["image"]),
        cpus(probes["cpus"], probes["info"]),
        ports(probes["ports"]),
        python(probes["python"]),
    ]
    if "container" in probes:
        found.append(container(probes["container"]))
    return found


def _blind(name: str, probe: Probe, todo: str = "") -> Line:
    why = {"missing": "program not found", "timeout": "no answer in time"}.get(probe.why, probe.why)
    if "cannot connect to the docker daemon" in why.lower():
        why = "Docker does not answer"
    return Line(name, UNKNOWN, f"could not look: {why[:80] or 'no answer'}", todo)


# -- GPU -------------------------------------------------------------------------------------------


def gpu_rows(probe: Probe) -> list[dict[str, str]]:
    """One dict a GPU, field to cell; empty when nvidia-smi gave no rows."""
    names = [*GPU_FIELDS, "reasons"]
    rows = [line.split(",") for line in (probe.out or "").splitlines() if "," in line]
    return [dict(zip(names, map(str.strip, row), strict=False)) for row in rows if len(row) > 2]


def _number(cell: str | None) -> float | None:
    found = re.fullmatch(r"(-?\d+(?:\.\d+)?)(?: \S+)?", (cell or "").strip())
    return float(found[1]) if found else None


def gpu(probe: Probe, rows: list[dict[str, str]]) -> Line:
    """Is there a GPU that answers?"""
    if probe.why == "missing":
        return Line("GPU", FAILING, "nvidia-smi is not there", "install the NVIDIA driver")
    if probe.why == "timeout":
        return Line("GPU", FAILING, "nvidia-smi does not answer", "restart the host")
    if probe.out is None:
        return Line("GPU", FAILING, probe.why, "mend the driver, then run nvidia-smi by hand")
    if not rows:
        return Line("GPU", FAILING, "nvidia-smi lists no GPU", "look at the driver: dmesg, lspci")
    names = ", ".join(row["name"] for row in rows)
    more = "; a run of this manual uses the first one" if len(rows) > 1 else ""
    return Line("GPU", OK, names + more)


def driver(rows: list[dict[str, str]]) -> Line:
    """Is the driver new enough for an image of CUDA 13?"""
    if not rows:
        return Line("driver", UNKNOWN, "could not look: no GPU answered")
    version = rows[0].get("driver_version", "")
    found = re.match(r"(\d+)\.", version)
    if not found:
        return Line("driver", UNKNOWN, f"could not look: version {version!r}")
    if int(found[1]) < DRIVER:
        todo = f"the image is built for CUDA 13, which wants driver {DRIVER} or newer: update it"
        return Line("driver", WARNING, version, todo)
    return Line("driver", OK, version)


def unified(rows: list[dict[str, str]]) -> bool:
    """Do GPU and host share one memory? nvidia-smi then reports no size (as on a GB10)."""
    return bool(rows) and rows[0].get("memory.total", "").strip("[]") in ("N/A", "Not Supported")


def host_gib(probe: Probe) -> tuple[float, float] | None:
    """Total and available memory of the host in GiB."""
    found = dict(re.findall(r"^(MemTotal|MemAvailable): +(\d+) kB", probe.out or "", re.M))
    if len(found) != 2:
        return None
    return int(found["MemTotal"]) / 2**20, int(found["MemAvailable"]) / 2**20


def memory(rows: list[dict[str, str]], meminfo: Probe) -> Line:
    """How much memory, and is it the GPU's own?"""
    host = host_gib(meminfo)
    if not rows:
        return Line("memory", UNKNOWN, "could not look: no GPU answered")
    if unified(rows):
        if host is None:
            return _blind("memory", meminfo)
        text = f"unified: {host[0]:.0f} GiB for CPU and GPU together, {host[1]:.0f} GiB available"
        return Line("memory", OK, text)
    total, used = (_number(rows[0].get(f"memory.{what}")) for what in ("total", "used"))
    if total is None:
        return Line("memory", UNKNOWN, f"could not look: {rows[0].get('memory.total', '')!r}")
    text = f"separate: {total / 1024:.0f} GiB on the GPU"
    text += "" if used is None else f", {used / 1024:.1f} GiB used"
    if total < SMALL_GPU_MIB:
        todo = "no run on a card this small is known to us: take a smaller model or batch"
        return Line("memory", WARNING, text, todo)
    if used is not None and used > total / 10:
        return Line("memory", WARNING, text, "end what uses the GPU: see the processes line")
    return Line("memory", OK, text)


def ray_memory(rows: list[dict[str, str]], meminfo: Probe, threshold: Probe) -> Line:
    """How near is the host's memory to where Ray ends a worker?"""
    name = "memory of the host"
    host = host_gib(meminfo)
    if host is None:
        return _blind(name, meminfo)
    total, available = host
    used = total - available
    share = _number(threshold.out) if threshold.out else None
    kill = total * (share if share is not None and 0 < share <= 1 else RAY_SHARE)
    text = f"{used:.0f} of {total:.0f} GiB used; Ray ends a worker above {kill:.0f} GiB"
    if used >= kill:
        return Line(name, FAILING, text, "free memory first: the run would be ended at once")
    if unified(rows):
        text += ", and GPU memory counts"
        if share is not None and share > RAY_SHARE:
            todo = "do not raise RAY_memory_usage_threshold on unified memory: unset it"
            return Line(name, WARNING, text, todo)
        if used > total * RAY_NEAR:
            return Line(name, WARNING, text, "free memory first: engine and trainer come on top")
    elif available < SMALL_HOST_GIB:
        todo = f"free memory: the trainer moves its state here, {SMALL_HOST_GIB:.0f} GiB are wanted"
        return Line(name, WARNING, text, todo)
    return Line(name, OK, text)


def temperature(rows: list[dict[str, str]]) -> Line:
    """How hot is the hottest GPU?"""
    if not rows:
        return Line("temperature", UNKNOWN, "could not look: no GPU answered")
    temps = [t for t in (_number(row.get("temperature.gpu")) for row in rows) if t is not None]
    if not temps:
        return Line("temperature", UNKNOWN, "could not look: nvidia-smi gave no temperature",
                    "the heat guard cannot work here")  # fmt: skip
    text = f"{max(temps):.0f} C"
    if max(temps) >= HOT_C:
        todo = f"let it cool to {COOL_C:.0f} C, look at the fans, and use the heat guard"
        return Line("temperature", WARNING, text, todo)
    return Line("temperature", OK, text)


def clocks(rows: list[dict[str, str]]) -> Line:
    """Does the SM clock rise under load? An idle GPU cannot tell."""
    if not rows:
        return Line("clocks", UNKNOWN, "could not look: no GPU answered")
    row = rows[0]
    now, top, busy = (
        _number(row.get(field)) for field in ("clocks.sm", "clocks.max.sm", "utilization.gpu")
    )
    reasons = gpusample.throttle_reasons(row.get("reasons", "")) or ()
    slowing = [reason for reason in reasons if reason not in ("idle", "sw-power-cap")]
    if now is None:
        return Line("clocks", UNKNOWN, "could not look: nvidia-smi gave no SM clock")
    text = f"SM {now:.0f} MHz" + (f" of {top:.0f}" if top else "")
    text += f", state {row['pstate']}" if row.get("pstate", "").startswith("P") else ""
    text += "" if busy is None else f", {busy:.0f} % busy"
    if slowing:
        todo = "the GPU slows itself: cooling, power supply, or a cap (nvidia-smi -rgc undoes one)"
        return Line("clocks", WARNING, f"{text}; slowed by {', '.join(slowing)}", todo)
    if busy is None or busy < BUSY_PCT:
        todo = "an idle GPU cannot tell: look again while a run works"
        return Line("clocks", UNKNOWN, f"{text}; not under load", todo)
    if top and now < SLOW * top:
        todo = "stuck low under load: end the load, undo a cap (nvidia-smi -rgc), restart the host"
        return Line("clocks", WARNING, text, todo)
    return Line("clocks", OK, text)


def processes(probe: Probe) -> Line:
    """Does anything else use the GPU?"""
    name = "other work on the GPU"
    if probe.out is None:
        return _blind(name, probe)
    rows = [line.split(",") for line in probe.out.splitlines() if line.count(",") >= 2]
    names = [",".join(row[1:-1]).strip().rsplit("/", 1)[-1] for row in rows]
    if not names:
        return Line(name, OK, "none")
    shown = ", ".join(f"{row[0].strip()} {prog}" for row, prog in zip(rows, names, strict=True))
    return Line(name, WARNING, shown[:200], "end it, or take no time of the run for a result")


# -- Docker ----------------------------------------------------------------------------------------


def docker(probe: Probe) -> Line:
    """Does the container engine answer?"""
    if probe.out is not None and probe.out.strip():
        return Line("Docker", OK, probe.out.strip())
    if probe.why == "missing":
        return Line("Docker", FAILING, "not installed", "install Docker Engine")
    if probe.why == "timeout":
        return Line("Docker", FAILING, "does not answer", "systemctl restart docker")
    if "permission denied" in probe.why.lower():
        todo = "join the group: sudo usermod -aG docker $USER, then log in again"
        return Line("Docker", FAILING, "this user may not use it", todo)
    why = probe.why.partition(": ")[2] or probe.why or "no server"
    return Line("Docker", FAILING, why[:120], "start it: sudo systemctl start docker")


def toolkit(probe: Probe, info: Probe) -> Line:
    """Can Docker give a GPU to a container?"""
    name = "container toolkit"
    tools = (probe.out or "").split()
    try:
        known = json.loads(info.out or "{}")
        runtimes = list((known.get("Runtimes") or {}) if isinstance(known, dict) else {})
    except (ValueError, AttributeError):
        runtimes = []
    if "nvidia" in runtimes:
        return Line(name, OK, "Docker knows the runtime nvidia")
    if tools:
        return Line(name, OK, f"{', '.join(tools)} found")
    if info.out is None:
        return _blind(name, info)
    return Line(name, FAILING, "not found", "install nvidia-container-toolkit and restart Docker")


def image_line(probe: Probe, docker_probe: Probe, machine: Probe, image: str) -> Line:
    """Is the image here, and for this machine?"""
    if probe.out is None:
        if docker_probe.out is not None and re.search("no such image|not found", probe.why, re.I):
            return Line("image", WARNING, f"{image} is not here", f"docker pull {image}")
        return _blind("image", probe)
    found = re.fullmatch(r"(\[.*\]|null) (\S*) (\S+)", probe.out.strip())
    if not found:
        return Line("image", UNKNOWN, f"could not look: {probe.out.strip()[:60]!r}")
    digests = re.findall(r'"([^"]+@sha256:[0-9a-f]+)"', found[1])
    text = f"{containers.plain_image(digests[0]) if digests else found[3]}, {found[2]}"
    ours = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine.out or "", machine.out)
    if ours and found[2] and ours != found[2]:
        todo = f"this host is {ours}: docker rmi {image}, then docker pull {image}"
        return Line("image", FAILING, text, todo)
    if not digests:
        return Line("image", WARNING, text, "it has no registry digest, so nobody else can pull it")
    return Line("image", OK, text)


def running(probe: Probe) -> Line:
    """Do runs of Miles go on already?"""
    if probe.out is None:
        return _blind("running containers", probe)
    ours = [line for line in probe.out.splitlines() if "miles" in line.lower()]
    if not ours:
        return Line("running containers", OK, "none of Miles")
    shown = "; ".join(ours)[:200]
    return Line("running containers", WARNING, shown, "one GPU holds one run: wait, or docker stop")


def container(probe: Probe) -> Line:
    """Does a container see the GPU? (the first check of section 1.1)"""
    if probe.out is not None:
        return Line("GPU in a container", OK, " ".join(probe.out.split()))
    if "device driver" in probe.why or "nvidia" in probe.why.lower():
        todo = "install nvidia-container-toolkit and restart Docker"
        return Line("GPU in a container", FAILING, probe.why[:160], todo)
    return _blind("GPU in a container", probe)


# -- host ------------------------------------------------------------------------------------------


def _facts(probe: Probe) -> dict | None:
    try:
        found = json.loads(probe.out or "null")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def folder(name: str, probe: Probe, make: bool) -> Line:
    """May this user write there? Docker makes a missing mount as root."""
    facts = _facts(probe)
    if facts is None:
        return _blind(name, probe)
    path = facts["path"]
    if not facts["folder"]:
        return Line(name, FAILING, f"{path} is no folder", "move it away")
    if facts["writable"]:
        if facts["exists"] or not make:
            return Line(name, OK, path)
        return Line(name, WARNING, f"{path} is not there", f"mkdir -p {path}")
    if facts["uid"] == 0 and facts["own_uid"] != 0 and facts["exists"]:
        todo = f"Docker made it as root: sudo chown -R $(id -u):$(id -g) {path}"
        return Line(name, FAILING, f"{path} belongs to root", todo)
    return Line(name, FAILING, f"{path} cannot be written", f"chown it, or choose another {name}")


def disk(name: str, probe: Probe, least_gb: float, low_gb: float) -> Line:
    """Is there room on the disk of a folder?"""
    facts = _facts(probe)
    if facts is None:
        return _blind(name, probe)
    free = facts["free"] / 1e9
    text = f"{free:.0f} GB free"
    if free < least_gb:
        return Line(name, FAILING, text, f"free at least {least_gb:.0f} GB")
    if free < low_gb:
        return Line(name, WARNING, text, f"{low_gb:.0f} GB are better")
    return Line(name, OK, text)


def docker_disk(probe: Probe, image: Probe) -> Line:
    """Is there room where Docker keeps images?"""
    low = LAB_GB if image.out is not None else IMAGE_GB
    return disk("disk of Docker", probe, min(LAB_GB, low), low)


def cpus(probe: Probe, info: Probe) -> Line:
    """Are there as many CPUs as Ray is asked for?"""
    if probe.out is None:
        return _blind("CPUs", probe)
    count = int(probe.out)
    facts = _facts(info) or {}
    if isinstance(facts.get("NCPU"), int) and facts["NCPU"] > 0:
        count = min(count, facts["NCPU"])
    if count < CPUS:
        todo = f"a run asks Ray for {CPUS}; the launcher tells Ray that there are {CPUS}"
        return Line("CPUs", WARNING, str(count), todo)
    return Line("CPUs", OK, str(count))


def ports(probe: Probe) -> Line:
    """Are Ray's ports free? A container has ports of its own, so a used one only warns."""
    used = [int(line.split()[0]) for line in (probe.out or "").splitlines() if "used" in line]
    if probe.out is None:
        return _blind("ports", probe)
    if not used:
        return Line("ports", OK, f"{', '.join(map(str, PORTS))} free")
    text = ", ".join(f"{port} ({PORTS.get(port, '?')})" for port in used) + " in use"
    return Line("ports", WARNING, text, "matters only without a container or with --network host")


def python(probe: Probe) -> Line:
    """Is this Python one that the kit runs on?"""
    version = (probe.out or "").split()
    numbers = tuple(int(part) for part in re.findall(r"\d+", version[0])[:2]) if version else ()
    if not numbers:
        return _blind("Python", probe)
    if numbers < PYTHON:
        return Line("Python", FAILING, version[0], "the kit needs 3.10 or newer")
    return Line("Python", OK, version[0])
