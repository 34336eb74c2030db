"""Starts a worker program on two gloo ranks and reads what each of them saw."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent


def start(worker: str, folder: Path, *, timeout: float) -> list[dict]:
    """Run `worker` (a file of this folder) with `folder`; what ranks 0 and 1 left there.

    timeout: seconds; a deadlock between ranks would end here.
    """
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
        str(HERE / worker), str(folder),
    ]  # fmt: skip
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)]),
    }
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(2)]
