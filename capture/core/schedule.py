"""The learning rate: Core's scheduler computes it, and an own formula checks it before a step.

The k-th optimizer step of a run (k from 1, as Core's trainer counts) uses `rate(k)`. With peak p,
warm-up w, horizon n and final fraction f:

    k < w       p k / w
    constant    p
    linear      p - (p - f p) (k - w) / (n - w)        from w to n, then f p
    cosine      f p + (p - f p) (1 + cos(pi (k - w) / (n - w))) / 2
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .config import OptimizerConfig, ScheduleConfig
from .errors import ContractError, RefusedError


@dataclass(frozen=True, slots=True)
class Rate:
    """The independent formula. `horizon`: optimizer steps of the whole run."""

    peak: float
    kind: str
    warmup: int
    final_fraction: float
    horizon: int

    def __call__(self, step: int) -> float:
        """The rate of the step-th optimizer step, from 1."""
        if step < self.warmup:
            return self.peak * step / self.warmup
        if self.kind == "constant":
            return self.peak
        low = self.peak * self.final_fraction
        if step >= self.horizon:
            return low
        part = (step - self.warmup) / (self.horizon - self.warmup)
        if self.kind == "linear":
            return self.peak - (self.peak - low) * part
        return low + (self.peak - low) * (1 + math.cos(math.pi * part)) / 2


def rate_of(optimizer: OptimizerConfig, schedule: ScheduleConfig, horizon: int) -> Rate:
    """The formula of a run's settings. RefusedError when warm-up reaches past the horizon."""
    if horizon < 1:
        raise RefusedError(f"a run of {horizon} optimizer steps", "horizon")
    if schedule.kind != "constant" and schedule.warmup_steps >= horizon:
        raise RefusedError(
            f"schedule.warmup_steps = {schedule.warmup_steps}: the run has {horizon} optimizer"
            " steps, so the rate would never fall",
            "schedule-warmup",
        )
    return Rate(
        peak=optimizer.lr,
        kind=schedule.kind,
        warmup=schedule.warmup_steps,
        final_fraction=schedule.final_fraction,
        horizon=horizon,
    )


def core_scheduler(schedule: ScheduleConfig) -> Any:
    """Core's scheduler with these settings."""
    from olmo_core.optim.scheduler import (
        ConstantScheduler,
        ConstantWithWarmup,
        CosWithWarmup,
        LinearWithWarmup,
    )

    warmup = schedule.warmup_steps
    if schedule.kind == "constant":
        return ConstantWithWarmup(warmup=warmup) if warmup else ConstantScheduler()
    kind = LinearWithWarmup if schedule.kind == "linear" else CosWithWarmup
    return kind(warmup=warmup, alpha_f=schedule.final_fraction)


def check_rate(scheduler: Any, groups: list[dict[str, Any]], rate: Rate, step: int) -> float:
    """The rate that Core is about to set for optimizer step `step`, without setting it.

    Raises ContractError when a parameter group's rate would not be that of the run's settings at
    this step: another peak came back with a checkpoint, or the step count moved on its own.
    """
    wanted = rate(step)
    for number, group in enumerate(groups):
        peak = group.get(scheduler.initial_lr_field)
        if peak is None:
            peak = group[scheduler.lr_field]
        found = float(scheduler.get_lr(float(peak), step, rate.horizon))
        if not math.isclose(found, wanted, rel_tol=1e-9, abs_tol=0.0):
            raise ContractError(
                "learning-rate",
                f"optimizer step {step}: Core would use {found!r} in group {number}, the run's"
                f" schedule says {wanted!r}",
            )
    return wanted
