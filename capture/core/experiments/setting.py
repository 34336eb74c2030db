"""What the experiments share: environment, device, prompts and samples. Needs torch."""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import ConfigError, CoreRunError
from ..samples import Sample


def environment(device: str) -> dict[str, Any]:
    """Versions and the device's name. ConfigError for a GPU that is not there."""
    check_device(device)
    found = {
        "core": metadata.version("ai2-olmo-core"),
        "torch": torch.__version__,
        "transformers": metadata.version("transformers"),
        "python": platform.python_version(),
        "device": "cpu",
        "threads": torch.get_num_threads(),
    }
    if device == "cuda":
        index = torch.cuda.current_device()
        found["device"] = torch.cuda.get_device_name(index)
        found["cuda"] = torch.version.cuda
        found["memory_bytes"] = torch.cuda.get_device_properties(index).total_memory
    return found


def check_device(device: str) -> None:
    """Raise ConfigError for a GPU that is not there."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: PyTorch finds no such device")


def parser(name: str, text: str) -> argparse.ArgumentParser:
    """The arguments that every experiment has."""
    own = argparse.ArgumentParser(
        prog=f"python -m capture.core.experiments.{name}",
        description=text,
        epilog="Exit codes: 0 measured, 1 a part failed, 2 bad usage or another file's settings.",
    )
    own.add_argument("--out", type=Path, required=True, help="JSON lines; gone on with if there")
    own.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    own.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    own.add_argument("--seeds", type=numbers(0), default=[0, 1, 2], help="such as 0,1,2")
    own.add_argument("--quiet", action="store_true", help="no progress")
    return own


def numbers(least: int) -> Callable[[str], list[int]]:
    """An argument type: whole numbers from `least`, separated by commas."""

    def parse(text: str) -> list[int]:
        try:
            found = [int(part) for part in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: not numbers with commas") from None
        if min(found) < least or len(set(found)) != len(found):
            raise argparse.ArgumentTypeError(f"{text!r}: numbers from {least}, each once")
        return found

    return parse


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """What a file was measured with: every argument but where it goes and whether it talks."""
    found = {name: value for name, value in vars(args).items() if name not in ("out", "quiet")}
    return {
        name: str(value.name) if isinstance(value, Path) else value for name, value in found.items()
    }


def run(name: str, body: Callable[[], None]) -> int:
    """Run an experiment's body; its exit code, with one line for what went wrong."""
    try:
        body()
    except CoreRunError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def timed(device: str, action: Callable[[], Any]) -> tuple[Any, float]:
    """(result, seconds) of a call, the device's work included."""
    wait(device)
    started = time.perf_counter()
    result = action()
    wait(device)
    return result, time.perf_counter() - started


def clocked(device: str, action: Callable[[], Any]) -> float:
    """Seconds of a call: by CUDA events on a GPU, which wait for its work, else by the clock."""
    if device != "cuda":
        started = time.perf_counter()
        action()
        return time.perf_counter() - started
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    action()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000


def wait(device: str) -> None:
    """Until the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def free(device: str) -> None:
    """Give unused memory of the device back."""
    import gc

    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def samples_of(
    prompts: Sequence[Sequence[int]],
    made: Sequence[Any],
    *,
    version: int,
    rewards: Sequence[float] | None = None,
    advantages: Sequence[float] | None = None,
) -> list[Sample]:
    """Samples of generations, as many a prompt as divide; one group a prompt.

    version: the policy version that their tokens are trained under.
    """
    n = len(made) // len(prompts)
    found = []
    for number, one in enumerate(made):
        prompt = prompts[number // n]
        found.append(
            Sample(
                sample_id=number,
                group_id=number // n,
                tokens=np.concatenate([np.asarray(prompt, np.int64), one.tokens]),
                prompt_len=len(prompt),
                loss_mask=np.ones(len(one.tokens), bool),
                behaviour_logp=one.logps,
                behaviour_version=np.full(len(one.tokens), version),
                reward=0.0 if rewards is None else float(rewards[number]),
                advantage=0.0 if advantages is None else float(advantages[number]),
                routes=one.expert_ids,
                finish=one.finish,
                kept=one.kept,
            )
        )
    return found
