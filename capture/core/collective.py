"""Agreement of all trainer ranks: one rank's problem stops every rank, with the same error.

torch.distributed. Without a process group every function is that of a single rank. All functions
here are collectives: each rank must call them, in the same order. A rank that raised on its own
would leave the others waiting in the next collective for ever, so a check goes through `agree` or
`guard` instead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .errors import ConfigError, ContractError, CoreRunError

#: longest wait for another rank: rank 0 may generate, or a disk may be slow, for as long
PATIENCE = timedelta(minutes=30)

_alone = False  # whether the group is one of `start_alone`


def world_size() -> int:
    """Ranks of the run."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process's number, from 0."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def start(expected: int, device: str = "cpu") -> bool:
    """Join the process group that torchrun announces; True when this call created it.

    Raises ConfigError when the ranks are not the `expected` ones of parallel.world_size.
    """
    announced = int(os.environ.get("WORLD_SIZE", "1"))
    if dist.is_initialized():
        announced = dist.get_world_size()
    if announced != expected:
        raise ConfigError(
            f"parallel.world_size: {expected}: {announced} trainer processes were started"
        )
    if dist.is_initialized() or expected == 1:
        return False
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    # gloo beside nccl: verdicts are CPU tensors
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    with _others_are_there():
        dist.init_process_group(backend, timeout=PATIENCE)
    return True


def start_alone(device: str = "cpu") -> bool:
    """A process group of this process only, for Core modules that need one; True when created.

    Nothing when there is a group already. It needs no address and no port. `stop_alone` ends it.
    """
    global _alone
    if dist.is_initialized():
        return False
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    _alone = True
    return True


def stop_alone() -> None:
    """Leave the group that `start_alone` made, and no other one."""
    if _alone:
        stop()


def stop() -> None:
    """Leave the process group, if there is one."""
    global _alone
    _alone = False
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def gather(value: Any) -> list[Any]:
    """Every rank's value, in rank order. Values are pickled: small and trusted ones only."""
    if world_size() == 1:
        return [value]
    found: list[Any] = [None] * world_size()
    with _others_are_there():
        dist.all_gather_object(found, value)
    return found


def total(values: torch.Tensor) -> torch.Tensor:
    """The sum over ranks, a new CPU tensor of the same shape and dtype."""
    return _reduced(values, dist.ReduceOp.SUM)


def largest(values: torch.Tensor) -> torch.Tensor:
    """The maximum over ranks, entry by entry, a new CPU tensor. NaN on any rank gives NaN."""
    nans = _reduced(values.isnan().to(torch.float64), dist.ReduceOp.MAX).bool()
    result = _reduced(values.nan_to_num(nan=-torch.inf), dist.ReduceOp.MAX)
    return result.masked_fill(nans, torch.nan)


def _reduced(values: torch.Tensor, how: Any) -> torch.Tensor:
    result = values.detach().to("cpu", copy=True)
    if world_size() > 1:
        with _others_are_there():
            dist.all_reduce(result, op=how)
    return result


@contextlib.contextmanager
def _others_are_there() -> Iterator[None]:
    """A rank that died, or kept the others waiting for PATIENCE, ends them in one line."""
    try:
        yield
    except RuntimeError as error:  # torch.distributed's errors are of it, gloo's are plain ones
        text = " ".join(str(error).split())[:200]
        raise ContractError(
            "lost-rank",
            f"another rank died or did not answer for {PATIENCE.total_seconds():.0f} s: {text}",
        ) from error


def agree(problem: CoreRunError | None) -> None:
    """Raise on every rank when any rank has a problem: that of the lowest such rank.

    The error keeps its check; its text gets the ranks that have a problem of their own.
    """
    flag = torch.tensor([0.0 if problem is None else 1.0])
    if world_size() == 1:
        if problem is not None:
            raise problem
        return
    if not float(_reduced(flag, dist.ReduceOp.MAX)):
        return
    mine = None
    if problem is not None:
        mine = (
            getattr(problem, "check", type(problem).__name__),
            getattr(problem, "detail", str(problem)),
        )
    found = gather(mine)
    where = [index for index, item in enumerate(found) if item is not None]
    check, detail = found[where[0]]
    raise ContractError(check, f"rank {', '.join(map(str, where))}: {detail}") from problem


@contextlib.contextmanager
def guard(check: str) -> Iterator[None]:
    """Run a rank's own work, without collectives in it, and let all ranks agree that it worked.

    Any exception of the work becomes a ContractError on every rank.
    """
    problem: CoreRunError | None = None
    try:
        yield
    except CoreRunError as error:
        problem = error
    except Exception as error:  # a rank must not leave the others waiting, whatever went wrong
        problem = ContractError(check, f"{type(error).__name__}: {error}")
        problem.__cause__ = error
    agree(problem)


def same(check: str, what: str, value: Any) -> None:
    """Raise ContractError on every rank unless all ranks have an equal value."""
    found = gather(value)
    if any(other != found[0] for other in found):
        shown = ", ".join(f"rank {index}: {item}" for index, item in enumerate(found))
        raise ContractError(check, f"the ranks do not agree on {what}: {shown}")
