"""Picks tokens from logits with random numbers that belong to the request alone.

torch for the logits, numpy for the random numbers. One uniform number a token comes from a
counter-based generator (Philox) whose key is made of the request's seed, so neither the other rows
of a batch nor the device change it. What can still differ between two batches is the rounding of
the logits; it changes a token only when a uniform number falls between two roundings.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..errors import ContractError
from . import base


def uniforms(key: Sequence[int], sample: int, count: int) -> np.ndarray:
    """float64 [count] in [0, 1) for one sample of one request; a longer call begins the same."""
    return np.random.Generator(np.random.Philox(key=base.digest(key, sample))).random(count)


def logps(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """float32 [..., V] log-probabilities by the rule of `engines.base`."""
    scaled = logits.float()
    if temperature not in (0.0, 1.0):
        scaled = scaled / temperature
    return torch.log_softmax(scaled, dim=-1)


def pick(
    logp: torch.Tensor, uniform: torch.Tensor, *, temperature: float, top_p: float, top_k: int
) -> torch.Tensor:
    """int64 [B]: one token a row of logp [B, V], by inverse distribution function at uniform [B].

    top_k keeps the k most probable tokens (-1 and 0: all), then top_p the fewest of those whose
    share of the kept probability reaches top_p; the most probable token is always kept. Equal
    probabilities are ordered by token id. ContractError for log-probabilities that are not
    numbers.
    """
    if torch.isnan(logp).any():
        raise ContractError("engine-logits", "the engine's logits are not finite")
    if temperature == 0.0:
        return logp.argmax(dim=-1)
    vocab = logp.shape[-1]
    # float64, so that a sum over a large vocabulary does not lose the rare tokens at its end
    probability = logp.double().exp()
    order = None
    if 0 < top_k < vocab or top_p < 1.0:
        probability, order = probability.sort(dim=-1, descending=True, stable=True)
        if 0 < top_k < vocab:
            probability[:, top_k:] = 0.0
        if top_p < 1.0:
            running = probability.cumsum(dim=-1)
            before = running - probability
            probability = probability.where(before < top_p * running[:, -1:], 0.0)
            # rounding of `running - probability` must not drop the first token
            probability[:, 0] = logp.max(dim=-1).values.double().exp()
    running = probability.cumsum(dim=-1)
    # the first place whose sum exceeds the draw has a probability above 0; the last sum exceeds
    # every draw, since uniform < 1, except where the product rounds up to it
    draw = torch.minimum(
        uniform.double() * running[:, -1], torch.nextafter(running[:, -1], running.new_zeros(()))
    )
    place = (running > draw[:, None]).to(torch.uint8).argmax(dim=-1)
    return place if order is None else order.gather(-1, place[:, None])[:, 0]
