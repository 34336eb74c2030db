"""Whether Core's optimizer took a step, and what its skip-step form judges a step by.

Core's skip-step optimizers keep the losses and gradient norms of recent steps and skip a step that
lies far above them. Its dense ones save those averages nowhere, so the actor does; the optimizer of
mixture-of-experts models is always of this form and saves its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from olmo_core.optim import SkipStepOptimizer

from .errors import ContractError


def keeps_averages(optim: Any) -> bool:
    """Whether this optimizer looks at recent steps."""
    own = hasattr(optim, "_losses") and hasattr(optim, "_grad_norms")
    return isinstance(optim, SkipStepOptimizer) or own


def averages(optim: Any) -> dict[str, list[torch.Tensor]]:
    """Losses and gradient norms of recent steps, scalars; {} for an optimizer without them."""
    if not keeps_averages(optim):
        return {}
    return {"losses": list(optim._losses), "grad_norms": list(optim._grad_norms)}


def set_averages(optim: Any, kept: Mapping[str, Sequence[torch.Tensor]]) -> None:
    """Put back what `averages` gave."""
    if kept:
        optim._losses = list(kept["losses"])
        optim._grad_norms = list(kept["grad_norms"])


def check_stepped(optim: Any, lr_used: float, step: int) -> None:
    """Raise ContractError unless the optimizer took optimizer step `step`, at this rate."""
    skipped = float(optim.step_skipped) if keeps_averages(optim) else 0.0
    if skipped != 0.0:
        raise ContractError("optimizer-skip", f"Core's optimizer skipped optimizer step {step}")
    for index, group in enumerate(optim.param_groups):
        if not math.isclose(float(group["lr"]), lr_used, rel_tol=1e-9):
            raise ContractError(
                "learning-rate",
                f"optimizer step {step}: group {index} stepped with {float(group['lr'])!r}, not"
                f" {lr_used!r}",
            )
