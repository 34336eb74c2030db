"""The draft of run.toml that `run` writes before the first step, and its end (pure functions).

What the log says itself (date, command, package versions) is left to the log: `store` joins both,
refuses a contradiction, and parses the flags out of the log's command. Until then `[run] settings`
holds what the launcher was given and `planned_command` the command that it makes of it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path

import miles_grpo

from mileskit.common import tomlio
from mileskit.evidence import runinfo
from mileskit.host import runspec
from mileskit.host.runfacts import Facts
from mileskit.host.runspec import Spec

DEFAULTS = {
    "attention_engine": "default of the engine",
    "attention_trainer": "default of the trainer",
    "sampling": "default of the engine",
}
HEADER = "# Draft of the run's record; the verb `store` completes it (--run-toml THIS_FILE).\n"


def draft(spec: Spec, facts: Facts, launched: str) -> dict:
    """The document. launched: UTC time as `2026-11-29T13:27:19Z`.

    A field that could not be found out is absent, and `store` asks for it.
    """
    words = miles_grpo.default_command(spec.env)
    text = shlex.join(words)
    options, _ = runinfo.settings(text)
    plain = shlex.join(miles_grpo.default_command({"MILES_RUN": spec.name}))
    follows = runinfo.from_settings(options)
    run = {
        "name": spec.name,
        "launched": runinfo.parse_time(launched),
        **follows["run"],
        "num_rollout": options.get("num-rollout", spec.settings["MILES_NUM_ROLLOUT"]),
        "changed": runinfo.changed(text, plain),
        "note": spec.note,
        "settings": dict(spec.env),
        "planned_command": text,
        "docker_command": docker_command(spec, facts.image.reference),
        "watchdog": f"limit {spec.limit}, checks {spec.checks}" if spec.checks else "none",
        "heat_guard": spec.heat_guard,
    }
    if spec.limit_s:
        run["limit_minutes"] = spec.limit_s / 60
    setup = {
        "model": options_text(options, "hf-checkpoint", spec.settings["MILES_MODEL"]),
        "data": spec.settings["MILES_DATA"],
        "reward": reward(options),
        "container": True,
        "image": facts.image.digest or f"{facts.image.id} (local, without a registry digest)",
        "image_architecture": facts.image.architecture,
        "launcher": "miles_grpo.py of the kit"
        if facts.launcher_is_ours
        else "miles_grpo.py, changed",
        "launcher_sha256": facts.launcher_sha256,
        "gpus": 1,
        "clock_record": "",
        **DEFAULTS,
        **follows["setup"],
        "not_stock": not_stock(spec, facts),
    }
    if facts.commit:
        setup["miles_commit"] = facts.commit
        setup["miles_date"] = facts.commit_date
        setup["miles_subject"] = facts.subject
    if facts.sglang:
        setup["engine"] = f"SGLang {facts.sglang} of the image"
    if facts.gpu:
        setup["gpu"] = facts.gpu.name
        setup["driver"] = facts.gpu.driver
        setup["memory_unified"] = facts.gpu.unified
        if facts.gpu.memory_mib is not None:
            setup["gpu_memory_mib"] = facts.gpu.memory_mib
        if facts.gpu.used_mib is not None:
            setup["gpu_used_mib_at_start"] = facts.gpu.used_mib
    if facts.apps is not None:
        setup["shared"] = bool(facts.apps)
        setup["shared_with"] = sorted(set(facts.apps))
    return runinfo.ordered({"run": run, "setup": setup})


def docker_command(spec: Spec, image: str) -> str:
    """The `docker run` line without the folders of this host."""
    masked = spec._replace(
        lab=Path("LAB"), cache=Path("CACHE"), env_files=("ENV_FILE",) * len(spec.env_files)
    )
    return shlex.join(runspec.run_words(masked, image))


def options_text(options: dict, name: str, default: str) -> str:
    """Last part of a path that an option names; `default` when the launcher's own path is there."""
    value = str(options.get(name, default))
    return default if value.endswith("/" + default.rsplit("/", 1)[-1]) else Path(value).name


def reward(options: dict) -> str:
    """The reward in words."""
    if "custom-rm-path" in options:
        return f"own function {options['custom-rm-path']}"
    kind = options.get("rm-type", "none")
    return f"{kind} (of Miles)" if kind != "none" else "none named"


def not_stock(spec: Spec, facts: Facts) -> list[str]:
    """What differs from the manual's image and launcher."""
    lines = []
    if not facts.image.digest:
        lines.append("local image without a registry digest")
    elif not facts.image.digest.startswith("radixark/miles@"):
        lines.append(f"image of {facts.image.digest.partition('@')[0]}")
    if not facts.launcher_is_ours:
        lines.append("launcher changed")
    return lines


def ended(document: dict, table: dict) -> dict:
    """The draft with its [ended] table and in the order of the schema."""
    return runinfo.ordered({**document, "ended": table})


def write(path: Path, document: dict) -> None:
    """Write the draft in one piece. Raises OSError."""
    half = path.with_name(f".{path.name}.{os.getpid()}.half")
    try:
        half.write_text(HEADER + tomlio.dumps(document), encoding="utf-8")
        half.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            half.unlink()
        raise
