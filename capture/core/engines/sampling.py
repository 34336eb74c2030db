"""Picks tokens from logits with random numbers that belong to the request alone.

torch for the logits, numpy for the random numbers. One uniform number a token comes from a
counter-based generator (Philox) whose key is made of the request's seed, so neither the other rows
of a batch nor the device change it. What can still differ between two batches is the rounding of
the logits; it changes a token only when a uniform number falls between two roundings.

The cuts, in this order, on probabilities at the temperature:

1. top_k keeps the k most probable tokens; equal probabilities are ordered by token id.
2. top_p keeps the fewest of those, most probable first, whose share of *their* probability reaches
   top_p. The token that crosses it is kept, and the most probable token always is.

That is vLLM's order and rule (`apply_top_k_top_p`). SGLang's torch sampler takes the sum over the
whole vocabulary in step 2, without top_k the same. The order of equal tokens is ours: neither
promises one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..errors import ContractError
from ..keptlogps import padded_logps, scaled
from . import base


class Picked(NamedTuple):
    """One token a row. Kept sets are there when they were asked for, else None."""

    tokens: torch.Tensor  # int64 [B]
    logps: torch.Tensor  # float32 [B], over the kept set when that was asked for
    kept_ids: torch.Tensor | None = None  # int64 [B, K], most probable first if any are cut
    kept_counts: torch.Tensor | None = None  # int64 [B], how many columns of a row are its set


def uniforms(key: Sequence[int], sample: int, count: int) -> np.ndarray:
    """float64 [count] in [0, 1) for one sample of one request; a longer call begins the same."""
    return np.random.Generator(np.random.Philox(key=base.digest(key, sample))).random(count)


def logps(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """float32 [..., V] log-probabilities over the whole vocabulary, by the rule of `base`."""
    return torch.log_softmax(scaled(logits.float(), temperature), dim=-1)


def pick(
    logits: torch.Tensor,
    uniform: torch.Tensor,
    *,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = -1,
    kept_sets: bool = False,
) -> Picked:
    """One token a row of logits [B, V], by inverse distribution function at uniform [B].

    top_k -1 and 0 keep all; temperature 0 takes the most probable token. K is top_k where that
    cuts, else V. Never waits for the device and has no shape that depends on values, so a CUDA
    graph can hold it; `check` what comes out.
    """
    scores = scaled(logits.float(), temperature)
    logp = torch.log_softmax(scores, dim=-1)
    if temperature == 0.0:
        tokens = logp.argmax(dim=-1)
        return Picked(tokens, logp.gather(-1, tokens[:, None])[:, 0])
    vocab = logp.shape[-1]
    kept = top_k if 0 < top_k < vocab else vocab
    order = counts = None
    if kept < vocab or top_p < 1.0:
        order = _most_probable(logp, kept)
    # float64, so that a sum over a large vocabulary does not lose the rare tokens at its end
    probability = (logp if order is None else logp.gather(-1, order)).double().exp()
    running = probability.cumsum(dim=-1)
    if order is not None:
        # shifted, not subtracted: what was summed before never falls, so a set has no hole
        before = torch.nn.functional.pad(running[:, :-1], (1, 0))
        inside = probability > 0
        if top_p < 1.0:
            inside &= before < top_p * running[:, -1:]
        counts = inside.sum(dim=-1).clamp(min=1)
        running = running.minimum(running.gather(-1, counts[:, None] - 1))
    # the first place whose sum exceeds the draw has a probability above 0; the last sum exceeds
    # every draw, since a uniform is at most 1 - 2**-53 and that times a double rounds below it
    draw = uniform.double() * running[:, -1]
    place = (running > draw[:, None]).to(torch.uint8).argmax(dim=-1)[:, None]
    tokens = place if order is None else order.gather(-1, place)
    whole = logp.gather(-1, tokens)[:, 0]
    if not kept_sets:
        return Picked(tokens[:, 0], whole)
    if order is None:  # top_k of the vocabulary or more: all ids
        order = torch.arange(vocab, device=logp.device).expand_as(logp)
        counts = torch.full_like(tokens[:, 0], vocab)
    over = padded_logps(scores.gather(-1, order), counts).gather(-1, place)[:, 0].float()
    # a NaN outside the set must show too
    return Picked(tokens[:, 0], over.where(~whole.isnan(), whole), order, counts)


def check(picked: Picked) -> None:
    """Raise ContractError where logits were not numbers; waits for the device."""
    if torch.isnan(picked.logps).any():
        raise ContractError("engine-logits", "the engine's logits are not finite")


def kept_rows(picked: Picked) -> list[np.ndarray]:
    """The kept set of each row, int32 [size], on the host; waits for the device."""
    counts = picked.kept_counts.cpu().numpy()
    ids = picked.kept_ids[:, : int(counts.max())].to(torch.int32).cpu().numpy()
    return [row[:count].copy() for row, count in zip(ids, counts, strict=True)]


def _most_probable(logp: torch.Tensor, count: int) -> torch.Tensor:
    """int64 [B, count]: ids by falling log-probability, equal ones by id; the same everywhere."""
    vocab = logp.shape[-1]
    if count == vocab:
        return logp.sort(dim=-1, descending=True, stable=True).indices
    # topk promises no order of equal values: make them unequal, by the bits of the float above
    # the id. Adding 0 makes -0.0 the same as 0.0.
    bits = (logp + 0.0).view(torch.int32).long()
    rising = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    places = torch.arange(vocab - 1, -1, -1, device=logp.device)
    return (rising * vocab + places).topk(count, dim=-1, sorted=True).indices
