"""What a run log says about the GPU: its name and memory at the start, the peak at the end."""

from __future__ import annotations

import functools
import subprocess
import sys

from .config import RunConfig

QUERY = "name,driver_version,memory.total,memory.used"


def uses_gpu(config: RunConfig) -> bool:
    """Whether the trainer or an engine in this process runs on one."""
    return config.model.device == "cuda" or engine_gpus(config) > 0


def engine_gpus(config: RunConfig) -> int:
    """GPUs of an engine in this process; a server's are not known here, so 0."""
    return int(config.engine.kind != "sglang" and config.engine.device == "cuda")


def line(config: RunConfig) -> str | None:
    """`NAME, DRIVER, TOTAL MiB, USED MiB` as nvidia-smi has it; None on a CPU or without it.

    Asked once a process: the first call comes before anything of the run is on the GPU.
    """
    return _asked() if uses_gpu(config) else None


@functools.cache
def _asked() -> str | None:
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.splitlines()), None)


def peak(config: RunConfig) -> str | None:
    """The peaks of PyTorch's allocator in this process; None on a CPU."""
    torch = sys.modules.get("torch")
    if torch is None or not uses_gpu(config) or not torch.cuda.is_available():
        return None
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return f"peak GPU memory: {allocated} bytes allocated, {reserved} bytes reserved"
