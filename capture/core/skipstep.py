"""Whether Core's optimizer took a step, and what its skip-step form judges a step by.

Core's skip-step optimizers keep the losses and gradient norms of recent steps and skip a step that
lies far above them. Core saves those averages nowhere, so the actor does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from olmo_core.optim import SkipStepOptimizer

from .errors import ContractError


def averages(optim: Any) -> dict[str, list[torch.Tensor]]:
    """Losses and gradient norms of recent steps, scalars; {} for an optimizer without them."""
    if not isinstance(optim, SkipStepOptimizer):
        return {}
    return {"losses": list(optim._losses), "grad_norms": list(optim._grad_norms)}


def set_averages(optim: Any, kept: Mapping[str, Sequence[torch.Tensor]]) -> None:
    """Put back what `averages` gave."""
    if kept:
        optim._losses = list(kept["losses"])
        optim._grad_norms = list(kept["grad_norms"])


def check_stepped(optim: Any, lr_used: float, step: int) -> None:
    """Raise ContractError unless the optimizer took optimizer step `step`, at this rate."""
    skipped = float(optim.step_skipped) if isinstance(optim, SkipStepOptimizer) else 0.0
    if skipped != 0.0:
        raise ContractError("optimizer-skip", f"Core's optimizer skipped optimizer step {step}")
    for index, group in enumerate(optim.param_groups):
        if not math.isclose(float(group["lr"]), lr_used, rel_tol=1e-9):
            raise ContractError(
                "learning-rate",
                f"optimizer step {step}: group {index} stepped with {float(group['lr'])!r}, not"
                f" {lr_used!r}",
            )
