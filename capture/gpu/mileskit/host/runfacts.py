"""What a run will use, asked before it starts: image, Miles, SGLang, GPU, launcher.

The parsing is pure; `Asker` does the asking, and remembers what it knows about an image.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import platform
import re
from pathlib import Path
from typing import NamedTuple

from mileskit.common import command, kitfiles
from mileskit.host import containers, runspec
from mileskit.host.runspec import Spec

ASK_S = 20.0
IMAGE_S = 180.0
"""Seconds for a command inside the image: its first start unpacks it, and sglang imports slowly."""

LAUNCHER = "miles_grpo.py"


class FactsError(Exception):
    """The run cannot start; one line of text."""


class Image(NamedTuple):
    """reference: what `docker run` gets. digest: registry digest, "" for a local image."""

    reference: str
    digest: str
    architecture: str
    id: str


class Gpu(NamedTuple):
    """The first GPU. memory_mib: its own memory, or the host's where the two share one."""

    name: str
    driver: str
    memory_mib: int | None
    unified: bool
    used_mib: int | None


class Facts(NamedTuple):
    """None, "" or an empty tuple where it could not be asked; `troubles` has a line for each."""

    image: Image
    commit: str = ""
    commit_date: dt.date | None = None
    subject: str = ""
    sglang: str = ""
    gpu: Gpu | None = None
    apps: tuple[str, ...] | None = None
    launcher_sha256: str = ""
    launcher_is_ours: bool = True
    troubles: tuple[str, ...] = ()


def parse_image(text: str, name: str) -> Image:
    """The output of `runspec.image_words`. Raises FactsError when it is something else.

    The digest is that of the repository that `name` names, else the first one.
    """
    found = re.fullmatch(r"(\[.*\]|null) (\S*) (\S+)", text.strip())
    try:
        digests = json.loads(found[1]) or [] if found else None
        if digests is None or not all(isinstance(one, str) for one in digests):
            raise ValueError
    except ValueError:
        raise FactsError(f"image inspect printed {text.strip()[:80]!r}") from None
    plain = containers.plain_image(name).partition("@")[0].rpartition(":")[0]
    own = [one for one in digests if containers.plain_image(one).partition("@")[0] == plain]
    digest = next(iter(own or digests), "")
    return Image(digest or found[3], digest, found[2], found[3])


def parse_commit(text: str) -> tuple[str, dt.date | None, str]:
    """`HASH YYYY-MM-DD SUBJECT` of git; ("", None, "") for anything else."""
    lines = text.strip().splitlines() or [""]
    found = re.fullmatch(r"([0-9a-f]{7,40}) (\d{4}-\d\d-\d\d)(?: (.*))?", lines[-1].strip())
    try:
        return (
            (found[1], dt.date.fromisoformat(found[2]), found[3] or "") if found else ("", None, "")
        )
    except ValueError:
        return "", None, ""


def parse_version(text: str) -> str:
    """The last line when it is a version, else ""."""
    lines = text.strip().splitlines() or [""]
    return lines[-1] if re.fullmatch(r"\d+(\.\d+)+\S*", lines[-1]) else ""


def parse_gpu(text: str, memory_of_host_mib: int | None) -> Gpu | None:
    """The first line of `runspec.gpu_words`; a memory of [N/A] means that host and GPU share it."""
    cells = [cell.strip() for cell in (text.strip().splitlines() or [""])[0].split(",")]
    if len(cells) < 4 or not cells[0]:
        return None
    name, driver, total, used = [", ".join(cells[:-3]), *cells[-3:]]
    unified = total.strip("[]") in ("N/A", "Not Supported")
    return Gpu(name, driver, memory_of_host_mib if unified else _mib(total), unified, _mib(used))


def parse_apps(text: str) -> tuple[str, ...]:
    """Names of the programs on the GPU, without folders."""
    rows = [line.split(",") for line in text.splitlines() if line.count(",") >= 2]
    return tuple(Path(",".join(row[1:-1]).strip()).name for row in rows if row[0].strip().isdigit())


def _mib(text: str) -> int | None:
    found = re.fullmatch(r"(\d+)(?: MiB)?", text)
    return int(found[1]) if found else None


def host_memory_mib() -> int | None:
    """Memory of this host by /proc/meminfo."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None
    found = re.search(r"^MemTotal: +(\d+) kB", text, re.M)
    return int(found[1]) // 1024 if found else None


def machine() -> str:
    """This host's processor type in Docker's words."""
    name = platform.machine().lower()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(name, name)


def place_launcher(lab: Path) -> tuple[str, bool]:
    """The launcher of the lab folder, put there when it is missing: (sha256, is it the kit's).

    Raises FactsError, also for a file that is no launcher.
    """
    ours = kitfiles.read_bytes(LAUNCHER)
    path = lab / LAUNCHER
    try:
        if not path.exists():
            half = path.with_name(f".{LAUNCHER}.{os.getpid()}.half")
            half.write_bytes(ours)
            half.replace(path)
        there = path.read_bytes()
    except OSError as error:
        raise FactsError(f"{path}: {error.strerror}") from None
    if not there.strip():
        raise FactsError(f"{path}: is empty; remove it, and the kit puts its own there")
    return hashlib.sha256(there).hexdigest(), there == ours


class Asker:
    """Asks Docker, the image and nvidia-smi; an image that was asked once is not asked again."""

    def __init__(self, ask_s: float = ASK_S, image_s: float = IMAGE_S):
        self._ask_s, self._image_s = ask_s, image_s
        self._known: dict[str, tuple[str, dt.date | None, str, str, tuple[str, ...]]] = {}

    def image(self, spec: Spec) -> Image:
        """The image that is on this host. Raises FactsError when it is not there."""
        said = containers.judge(
            spec.engine, command.run_program(runspec.image_words(spec), self._ask_s), self._ask_s
        )
        if said.absent or (said.no and "not found" in said.why.lower()):
            raise FactsError(f"no image {spec.image} here; run: {spec.engine} pull {spec.image}")
        if not said.yes:
            raise FactsError(f"{said.why} (asked for the image {spec.image})")
        return parse_image(said.value, spec.image)

    def facts(self, spec: Spec, image: Image) -> Facts:
        """Everything else; what does not answer is named in `troubles` and left open."""
        sha256, is_ours = place_launcher(spec.lab)
        if image.id not in self._known:
            self._known[image.id] = self._inside(spec, image)
        commit, date, subject, sglang, troubles = self._known[image.id]
        gpu, apps, more = self._gpu()
        return Facts(
            image, commit, date, subject, sglang, gpu, apps, sha256, is_ours, (*troubles, *more)
        )

    def _inside(self, spec: Spec, image: Image):
        troubles = []
        commit, date, subject = parse_commit(
            self._probe(spec, lambda name: runspec.commit_words(spec, image.reference, name))
        )
        if not commit:
            troubles.append("the image did not say its Miles commit")
        sglang = ""
        for python in runspec.ENGINE_PYTHONS:
            sglang = parse_version(
                self._probe(
                    spec,
                    lambda name, python=python: runspec.sglang_words(
                        spec, image.reference, python, name
                    ),
                )
            )
            if sglang:
                break
        else:
            troubles.append("the image did not say its SGLang version")
        return commit, date, subject, sglang, tuple(troubles)

    def _probe(self, spec: Spec, words) -> str:
        """Output of a short container, "" when it fails; a stuck one is removed."""
        name = f"miles-probe-{os.getpid()}"
        ran = command.run_program(words(name), self._image_s)
        if ran.trouble == "timeout":
            command.run_program([spec.engine, "rm", "-f", name], self._ask_s)
        return ran.out if ran.status == 0 else ""

    def _gpu(self):
        troubles = []
        ran = command.run_program(runspec.gpu_words(), self._ask_s)
        gpu = parse_gpu(ran.out, host_memory_mib()) if ran.status == 0 else None
        if gpu is None:
            troubles.append(f"nvidia-smi did not say which GPU this is ({why_not(ran)})")
        ran = command.run_program(runspec.apps_words(), self._ask_s)
        apps = parse_apps(ran.out) if ran.status == 0 else None
        if apps is None:
            troubles.append("nvidia-smi did not say what else uses the GPU")
        return gpu, apps, troubles


def why_not(ran: command.Ran) -> str:
    """Why a program gave no usable answer, in a few words."""
    if ran.trouble:
        return {"missing": "not found", "timeout": "no answer in time"}.get(
            ran.trouble, ran.trouble
        )
    words = " ".join(f"{ran.err} {ran.out}".split())[:120]
    return f"status {ran.status}: {words}" if ran.status else f"printed {words!r}"
