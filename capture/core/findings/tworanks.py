"""What needs two trainer ranks, over gloo, in one start of torchrun; findings read the result.

`result()` starts it once a process and gives what rank 0 wrote and the folder that it left.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from .common import ROOT

TIMEOUT = 300  # seconds
LENGTH = 33  # tokens of a row; 32 of them can have a label
KEPT = (32, 16, 8, 4)  # labels that the second rank's rows keep; the first rank's keep all
ROWS = 4  # of each rank


@functools.lru_cache(maxsize=1)
def result() -> tuple[dict[str, Any], Path]:
    """(what rank 0 saw, folder with the native checkpoint of both ranks)."""
    folder = Path(tempfile.mkdtemp(prefix="core-findings-"))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
        "-m", f"{__package__}.tworanks", str(folder),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command,
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return torch.load(folder / "seen.pt", weights_only=False), folder


def rows() -> torch.Tensor:
    """Token rows of both ranks, [2 * ROWS, LENGTH]."""
    generator = torch.Generator().manual_seed(5)
    return torch.randint(1, 96, (2 * ROWS, LENGTH), generator=generator)


def labels(tokens: torch.Tensor, kept: int) -> torch.Tensor:
    """Labels as Core takes them, -100 for none: the second half keeps the last `kept` of a row."""
    wanted = torch.full_like(tokens, -100)
    wanted[:, :-1] = tokens[:, 1:]
    wanted[len(tokens) // 2 :, : LENGTH - 1 - kept] = -100
    return wanted


def cross_entropy(actor: Any, tokens: torch.Tensor, wanted: torch.Tensor) -> dict:
    """Gradients of Core's own training on these rows, its own loss and denominators."""
    from .common import gradients

    actor.module.rank_microbatch_size = 2 * LENGTH
    actor.module.train_batch({"input_ids": tokens, "labels": wanted})
    found = gradients(actor)
    actor.module.zero_grads()
    return found


def expert_gradients(actor_of: Any) -> dict[int, dict[str, Any]]:
    """For one and two expert-parallel ranks: gradients as the backward left them, and the result.

    Rank 0's: under two expert-parallel ranks the first half of every layer's experts.
    """
    from . import common, moe

    found = {}
    for degree in (1, 2):
        actor = actor_of("ddp", source=moe.tiny(), parallel__ep=degree, **moe.MODEL)
        kept: dict[str, torch.Tensor] = {}
        actor.on_gradients = lambda _, named, kept=kept: kept.update(
            {name: weight.grad.detach().clone() for name, weight in named.items()}
        )
        (result,) = actor.train(common.collection(6), 0)
        weights = {name: value.clone() for name, value in actor.export()}
        found[degree] = {"gradients": kept, "norm": result.gradient_norm, "weights": weights}
        actor.close()
    return found


def _main(folder: Path) -> None:
    from olmo_core.distributed import parallel

    from .. import collective
    from ..hook import PackWork, StepContext
    from ..objective import pack_inputs
    from ..packing import Denominators, plan
    from . import common

    torch.set_num_threads(1)
    collective.start(2)
    rank = collective.rank()

    def actor_of(layout: str, source: Any = None, **changes: Any) -> Any:
        parallel._WORLD_MESH = None  # Core builds one mesh a process, and a run has one actor
        return common.actor_of(
            source, parallel__world_size=2, parallel__data_parallel=layout, **changes
        )

    seen: dict[str, Any] = {"core": {}, "hook": {}}
    actor = actor_of("ddp")
    tokens = rows()
    for kept in KEPT:
        mine = slice(rank * ROWS, (rank + 1) * ROWS)
        seen["core"][kept] = cross_entropy(actor, tokens[mine], labels(tokens, kept)[mine])
    for layout in ("ddp", "fsdp"):
        actor = actor_of(layout)
        data = common.lopsided(common.collection(0))
        step = plan(data.samples, world_size=2, optimizer_steps=1, pack_tokens=None).steps[0]
        packs = step.ranks[rank]
        own = Denominators(
            sum(pack.active_tokens for pack in packs), sum(pack.responses for pack in packs), 1
        )
        for name, counts in (("global", step.denominators), ("local", own)):
            work = [PackWork(pack, pack_inputs(pack, data.samples)) for pack in packs]
            actor.module.train_packs(work, StepContext(actor.objective, counts))
            seen["hook"][layout, name] = common.gradients(actor)
            actor.module.zero_grads()
    seen["active"] = collective.gather(sum(pack.active_tokens for pack in packs))
    actor = actor_of("fsdp")
    actor.train(common.collection(0), 0)
    actor.save(folder / "native")
    seen["saved"] = {name: value.clone() for name, value in actor.export()}
    actor.train(common.collection(1), 1)
    seen["next"] = {name: value.clone() for name, value in actor.export()}
    seen["expert"] = expert_gradients(actor_of)
    if rank == 0:
        torch.save(seen, folder / "seen.pt")
    collective.stop()


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
