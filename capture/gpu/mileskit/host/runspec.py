"""What one guarded run is made of, and the commands that it needs (pure functions).

The `docker run` line is that of section 1.1 of the manual: name, GPUs, memory limits, two mounts,
settings as -e, the image by digest, the launcher of the lab folder.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import miles_grpo

from mileskit.common import kitfiles
from mileskit.host import containers

IMAGE = "radixark/miles:latest"
LAB = "~/miles-lab"
CACHE = "~/.cache/huggingface"
CACHE_IN_CONTAINER = "/root/.cache/huggingface"
MILES_IN_IMAGE = "/root/miles"
# Python of the image that has SGLang: since October 2026 its own, before that the system's.
ENGINE_PYTHONS = ("/opt/sglang/bin/python3", "python3")
LIMIT, CHECKS = 100, 10
MAX_MINUTES = 60 * 24 * 60

_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_NAME = re.compile(r"(?i)key|token|secret|passw|credential")


class SpecError(ValueError):
    """A setting that cannot be used; one line of text that holds no secret."""


class Spec(NamedTuple):
    """One run. `env`: what the container gets with -e, in this order; never a secret.

    lab, cache: folders of the host. gpus: value of --gpus, "none" leaves the option out.
    limit, checks: rule of the watchdog, checks 0 for no watchdog. limit_s: wall-clock seconds
    from the start of the container, 0 for no limit. env_files: files for Docker's --env-file.
    """

    name: str
    env: dict[str, str]
    lab: Path
    cache: Path
    image: str = IMAGE
    engine: str = "docker"
    gpus: str = "all"
    env_files: tuple[str, ...] = ()
    limit: int = LIMIT
    checks: int = CHECKS
    limit_s: float = 0.0
    heat_guard: bool = False
    note: str = ""
    on_stop: str = ""

    @property
    def container(self) -> str:
        """Exact name of the container."""
        return f"miles-{self.name}"

    @property
    def settings(self) -> miles_grpo.Settings:
        """The launcher's settings as it will parse them."""
        return miles_grpo.read_settings(self.env)

    def file(self, kind: str) -> Path:
        """A file of the run: LAB/runs/NAME.KIND."""
        return self.lab / "runs" / f"{self.name}.{kind}"


def container_env(
    name: str,
    given: Iterable[tuple[str, str]],
    inherited: Mapping[str, str],
    num_rollout: str | None = None,
    extra_args: str | None = None,
) -> dict[str, str]:
    """The -e settings: MILES_* of the caller's environment, then `given`, then the options.

    Raises SpecError for a name that is no variable, a value that seems to be a secret, a
    MILES_RUN that is not the run's name, and settings that the launcher would refuse.
    """
    found = {n: inherited[n] for n in sorted(inherited) if n.startswith("MILES_")}
    found.pop("MILES_RUN", None)
    for variable, value in given:
        if not _VARIABLE.fullmatch(variable):
            raise SpecError(f"--env {variable!r}: not a variable name")
        kind = miles_grpo.secret_in(value) or (
            "a secret, by its name" if value and _SECRET_NAME.search(variable) else ""
        )
        if kind:
            raise SpecError(
                f"--env {variable}: holds {kind}, and the command is printed and stored; put it"
                " into a file and give that with --env-file"
            )
        if "\n" in value or "\0" in value:
            raise SpecError(f"--env {variable}: a value of one line is needed")
        if variable == "MILES_RUN" and value != name:
            raise SpecError(f"--env MILES_RUN={value}: the run is named {name}")
        found[variable] = value
    for variable, value in (("MILES_NUM_ROLLOUT", num_rollout), ("MILES_EXTRA_ARGS", extra_args)):
        if value is not None:
            found[variable] = value
    found.setdefault("MILES_NUM_ROLLOUT", "12")
    first = {"MILES_NUM_ROLLOUT": found.pop("MILES_NUM_ROLLOUT"), "MILES_RUN": name}
    env = {**first, **found}
    try:
        miles_grpo.read_settings(env)
    except miles_grpo.LauncherError as error:
        raise SpecError(str(error)) from None
    return env


def check_name(name: str) -> str:
    """The name of a run, fit for a container and for file names. Raises SpecError."""
    if not _RUN_NAME.fullmatch(name) or not containers.NAME_PATTERN.fullmatch(f"miles-{name}"):
        raise SpecError(f"{name!r}: a run's name has letters, digits, '.', '_' and '-' only")
    return name


def folder(text: str, what: str) -> Path:
    """An absolute folder that `docker -v` can mount. Raises SpecError."""
    path = Path(text).expanduser()
    path = path if path.is_absolute() else Path.cwd() / path
    if ":" in str(path) or "\n" in str(path):
        raise SpecError(f"{what} {str(path)!r}: Docker cannot mount a path with a colon")
    return path


def env_file_names(path: str) -> list[str]:
    """Names that an env file sets. Raises SpecError; never repeats a value."""
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise SpecError(f"--env-file {path}: {why}") from None
    found = []
    for number, line in enumerate(lines, 1):
        name = line.partition("=")[0].strip()
        if not name or name.startswith("#"):
            continue
        if not _VARIABLE.fullmatch(name):
            raise SpecError(f"--env-file {path}: line {number} does not begin with NAME=")
        if name.startswith("MILES_"):
            raise SpecError(
                f"--env-file {path}: line {number} sets {name}; give settings with --env, so that"
                " they are recorded"
            )
        found.append(name)
    return found


def whole(text: object, what: str, low: int, high: int) -> int:
    """A whole number from low to high. Raises SpecError."""
    if isinstance(text, bool) or not re.fullmatch(r"[0-9]{1,9}", str(text)):
        raise SpecError(f"{what} {text!r}: a whole number is needed")
    if not low <= int(str(text)) <= high:
        raise SpecError(f"{what} {text}: from {low} to {high}")
    return int(str(text))


def minutes(text: object, what: str) -> float:
    """Seconds of a number of minutes, which may have a fraction. Raises SpecError."""
    try:
        value = float(str(text)) if not isinstance(text, bool) else -1.0
    except ValueError:
        value = -1.0
    if not 0 < value <= MAX_MINUTES:
        raise SpecError(f"{what} {text!r}: a number of minutes above 0 is needed")
    return value * 60.0


# -- commands ------------------------------------------------------------------------------------


def run_words(spec: Spec, image: str) -> list[str]:
    """The `docker run` line for an image reference, as words."""
    inside = spec.settings["MILES_LAB"]
    words = [spec.engine, "run", "--rm", "--name", spec.container]
    words += [] if spec.gpus == "none" else ["--gpus", spec.gpus]
    words += ["--ipc=host", "--shm-size", "32g", "--ulimit", "memlock=-1"]
    words += ["-v", f"{spec.lab}:{inside}", "-v", f"{spec.cache}:{CACHE_IN_CONTAINER}"]
    for name, value in spec.env.items():
        words += ["-e", f"{name}={value}"]
    for path in spec.env_files:
        words += ["--env-file", str(Path(path).expanduser())]
    return [*words, image, "python", f"{inside}/miles_grpo.py"]


def image_words(spec: Spec) -> list[str]:
    """Ask for digests, architecture and id of the image."""
    form = "{{json .RepoDigests}} {{.Architecture}} {{.Id}}"
    return [spec.engine, "image", "inspect", "--format", form, spec.image]


def commit_words(spec: Spec, image: str, probe: str = "") -> list[str]:
    """Ask the image for its Miles commit; `probe`: name of the short-lived container."""
    named = ["--name", probe] if probe else []
    ask = ["-C", MILES_IN_IMAGE, "log", "-1", "--format=%h %cs %s"]
    return [spec.engine, "run", "--rm", *named, "--entrypoint", "git", image, *ask]


def sglang_words(spec: Spec, image: str, python: str, probe: str = "") -> list[str]:
    """Ask the image for its SGLang version."""
    named = ["--name", probe] if probe else []
    ask = ["-c", "import sglang;print(sglang.__version__)"]
    return [spec.engine, "run", "--rm", *named, "--entrypoint", python, image, *ask]


def watchdog_words(spec: Spec) -> list[str]:
    """The watchdog of the run's container."""
    engine = [] if spec.engine == "docker" else ["--engine", spec.engine]
    rule = [spec.container, str(spec.limit), str(spec.checks)]
    on_stop = ["--on-stop", spec.on_stop] if spec.on_stop else []
    # said here, because the guard may start behind the line of the log that names the flags
    tolerant = "--use-fault-tolerance" in miles_grpo.command(spec.settings)
    fault = ["--fault-tolerance"] if tolerant else []
    return kitfiles.command("watchdog", *rule, *engine, *fault, *on_stop)


def heat_words(spec: Spec, stop_file: Path) -> list[str]:
    """The heat guard of the run's container, with files of its own."""
    options = ["--name", spec.container, "--lab", str(spec.lab)]
    options += ["--log", str(spec.file("heat-guard.log"))]
    options += ["--samples", str(spec.file("gpu-samples.jsonl"))]
    options += ["--stop-file", str(stop_file)]
    options += [] if spec.engine == "docker" else ["--engine", spec.engine]
    return kitfiles.command("heat-guard", *options)


def shell(words: list[str], width: int = 96) -> str:
    """Words as a shell line, broken with backslashes between options where it is long.

    This Python is shown by its name alone.
    """
    pairs: list[str] = []
    open_option = False
    for word in words:
        text = shlex.quote(Path(word).name if word == sys.executable else word)
        if open_option and not word.startswith("-"):
            pairs[-1] += f" {text}"
        else:
            pairs.append(text)
        open_option = word in ("-e", "-v", "-c", "-C") or (
            word.startswith("--") and "=" not in word and word != "--rm"
        )
    lines = [""]
    for pair in pairs:
        if lines[-1] and len(lines[-1]) + len(pair) + 1 > width:
            lines.append("")
        lines[-1] += f" {pair}" if lines[-1] else pair
    return " \\\n  ".join(lines)


def dry_run(spec: Spec, stop_file: Path) -> list[str]:
    """Every command of the run, in order, as lines for a shell; needs no Docker."""
    digest = "{{index .RepoDigests 0}}"
    asked = shlex.join([spec.engine, "image", "inspect", "--format", digest, spec.image])
    launcher = spec.lab / "miles_grpo.py"
    lines = [
        "# folders and launcher",
        f"mkdir -p {shlex.quote(str(spec.lab / 'runs'))} {shlex.quote(str(spec.cache))}",
        f"# the kit puts its launcher to {launcher} when there is none",
        "# what runs: image by digest, Miles commit, SGLang version, GPU",
        f"IMAGE=$({asked})",
        quoted_image(commit_words(spec, "$IMAGE")),
        quoted_image(sglang_words(spec, "$IMAGE", ENGINE_PYTHONS[0])),
        shlex.join(gpu_words()),
        f"# draft of the run's record: {spec.file('run.toml')}",
    ]
    if spec.heat_guard:
        out = shlex.quote(str(spec.file("heat-guard.out")))
        lines += ["# heat guard", f"{shell(heat_words(spec, stop_file))} >{out} 2>&1 &"]
    out = shlex.quote(str(spec.file("log")))
    lines += ["# the run", f"{quoted_image(run_words(spec, '$IMAGE'))} > {out} 2>&1 &"]
    if spec.checks:
        out = shlex.quote(str(spec.file("watchdog.log")))
        lines += ["# watchdog, once the container runs"]
        lines += [f"{shell(watchdog_words(spec))} > {out} 2>&1"]
    if spec.limit_s:
        lines += [f"# after {spec.limit_s / 60:g} minutes"]
        lines += [shlex.join([spec.engine, "stop", spec.container])]
    return lines


def quoted_image(words: list[str]) -> str:
    """The shell line of words that hold the variable $IMAGE."""
    return shell(words).replace("'$IMAGE'", '"$IMAGE"')


def gpu_words() -> list[str]:
    """Ask for the GPU's name, driver and memory."""
    asked = "name,driver_version,memory.total,memory.used"
    return ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]


def apps_words() -> list[str]:
    """Ask which processes use the GPU."""
    asked = "pid,process_name,used_memory"
    return ["nvidia-smi", f"--query-compute-apps={asked}", "--format=csv,noheader"]
