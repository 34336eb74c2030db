"""Group advantages of GRPO: each reward against the other responses to the same prompt.

numpy only, float64. Source: Shao et al. 2024, DeepSeekMath, section 4.1 (arXiv:2402.03300).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .errors import ContractError, RefusedError
from .samples import Sample

DEFAULT_GUARD = 1e-6
"""Added to the standard deviation of a group; Miles adds the same."""

SHRINK = 2.0**-512


def group_advantages(
    rewards: Sequence[float],
    group_ids: Sequence[int],
    *,
    normalize: bool = True,
    guard: float = DEFAULT_GUARD,
) -> np.ndarray:
    """Return (reward - group mean) / (group deviation + guard) for every reward, float64 [N].

    The deviation is the sample one (divided by n - 1). normalize=False leaves out the division.
    A group whose rewards are all equal gets exactly 0, whatever rounding does to its mean.
    Sums are exact (math.fsum), so the order of the samples never changes a value.
    Raises ContractError for a reward that is not finite, RefusedError for guard <= 0.
    """
    if not (guard > 0 and math.isfinite(guard)):
        raise RefusedError(f"the guard on the deviation must be above 0, not {guard}", "advantage")
    if len(rewards) != len(group_ids):
        raise ContractError("advantage", f"{len(rewards)} rewards, {len(group_ids)} group ids")
    values = np.asarray(rewards, dtype=np.float64)
    groups: dict[int, list[int]] = {}
    for index, group in enumerate(group_ids):
        if not math.isfinite(values[index]):
            raise ContractError("non-finite-reward", f"group {group}: {values[index]}")
        groups.setdefault(group, []).append(index)
    advantages = np.zeros(len(values))
    for members in groups.values():
        own = values[members]
        if own.min() == own.max():
            continue
        # a power of two, so that nothing is rounded: sums of huge rewards have no float
        shrink = SHRINK if np.abs(own).max() > 1 / SHRINK else 1.0
        own = own * shrink
        centred = own - math.fsum(own) / len(own)
        if normalize:
            # squares of scaled values, so that huge and tiny rewards neither overflow nor vanish
            scale = float(np.abs(centred).max())
            spread = math.sqrt(math.fsum((centred / scale) ** 2) / (len(own) - 1))
            centred = centred / (scale * spread + guard * shrink)
        elif shrink != 1.0:
            with np.errstate(over="ignore"):  # to infinity, which no sample may train with
                centred = centred / shrink
        advantages[members] = centred
    return advantages


def with_advantages(
    samples: Sequence[Sample], *, normalize: bool = True, guard: float = DEFAULT_GUARD
) -> list[Sample]:
    """Return the samples, in order, with `advantage` filled from their rewards and groups."""
    values = group_advantages(
        [sample.reward for sample in samples],
        [sample.group_id for sample in samples],
        normalize=normalize,
        guard=guard,
    )
    return [
        replace(sample, advantage=float(value))
        for sample, value in zip(samples, values, strict=True)
    ]
