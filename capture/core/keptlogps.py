"""Log-probabilities over kept sets, in torch: the one rule of the engine and of the trainer.

Scores are float32 (float64 for float64 logits), divided by the temperature; the sum over a set and
its logarithm are float64, so that neither the order of the ids nor padding shows in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .errors import RefusedError
from .keptsets import KeptSets

CHUNK = 1 << 22
"""Gathered scores at once, rows times the largest set among them: 32 MiB of float64. A single row
is at most the vocabulary, however large its set."""


def scaled(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Logits as float32, or float64 for float64, over the temperature; 0 counts as 1."""
    scores = logits if logits.dtype == torch.float64 else logits.float()
    return scores if temperature in (0.0, 1.0) else scores / temperature


def padded_logps(scores: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """float64 [n, K] log-probabilities over the first counts[i] columns of row i, -inf beyond.

    scores: [n, K]; counts: int64 [n], at least 1.
    """
    beyond = torch.arange(scores.shape[-1], device=scores.device) >= counts[:, None]
    return torch.log_softmax(scores.double().masked_fill(beyond, -torch.inf), dim=-1)


def kept_logps(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    kept: KeptSets,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probability of tokens [N] over their sets, and the entropy of the sets if asked; [N].

    logits: [N, V]. float32, or float64 for float64 logits. What backward needs is the gathered
    scores, so the logits can be freed. First-order gradients only. A token that its set lacks
    scores NaN: samples were checked, and a check here would wait for the device.
    """
    ids = torch.from_numpy(kept.ids.copy()).to(logits.device)
    offsets = torch.from_numpy(kept.offsets.copy()).to(logits.device)
    chunks = list(_chunks(kept))
    logps, entropies = _KeptLogps.apply(logits, tokens, ids, offsets, chunks, temperature, entropy)
    return logps, entropies if entropy else None


def _chunks(kept: KeptSets) -> Iterator[tuple[int, int, int]]:
    """(first row, end, largest set) of runs of rows whose padded ids are at most CHUNK."""
    start, widest = 0, 1
    for row, size in enumerate(kept.sizes.tolist()):
        wider = max(widest, size)
        if row > start and (row + 1 - start) * wider > CHUNK:
            yield start, row, widest
            start, wider = row, size
        widest = wider
    if len(kept):
        yield start, len(kept), widest


class _KeptLogps(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        tokens: torch.Tensor,
        ids: torch.Tensor,
        offsets: torch.Tensor,
        chunks: list[tuple[int, int, int]],
        temperature: float,
        entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        kind = torch.float64 if logits.dtype == torch.float64 else torch.float32
        logps = torch.empty(len(tokens), dtype=kind, device=logits.device)
        entropies = torch.zeros_like(logps)
        saved = []
        for start, end, widest in chunks:
            own, counts = _padded(ids, offsets, start, end, widest)
            scores = scaled(logits[start:end].gather(-1, own), temperature)
            inside = padded_logps(scores, counts)
            hits = own == tokens[start:end, None]
            place = hits.to(torch.uint8).argmax(dim=-1)[:, None]
            chosen = inside.gather(-1, place)
            logps[start:end] = chosen.where(hits.any(-1, keepdim=True), torch.nan)[:, 0]
            if entropy:
                entropies[start:end] = -(inside.exp() * inside.clamp(min=LOWEST)).sum(-1)
            saved.append(scores)
        ctx.save_for_backward(tokens, ids, offsets, *saved)
        ctx.chunks, ctx.temperature, ctx.entropy = chunks, temperature, entropy
        ctx.shape, ctx.dtype = logits.shape, logits.dtype
        return logps, entropies

    @staticmethod
    def backward(ctx: Any, by_logp: torch.Tensor, by_entropy: torch.Tensor) -> tuple:
        if torch.is_grad_enabled():
            raise RefusedError(
                "scores over kept sets have first-order gradients only", "kept-sets-second-order"
            )
        tokens, ids, offsets, *saved = ctx.saved_tensors
        gradient = torch.zeros(ctx.shape, dtype=ctx.dtype, device=tokens.device)
        for (start, end, widest), scores in zip(ctx.chunks, saved, strict=True):
            own, counts = _padded(ids, offsets, start, end, widest)
            inside = padded_logps(scores, counts)
            share = inside.exp()
            first = by_logp[start:end, None].double()
            real = torch.arange(widest, device=own.device) < counts[:, None]
            chosen = (own == tokens[start:end, None]) & real
            # padding repeats an id of its row; its share is 0, so it adds exactly nothing
            pull = first * (chosen.double() - share)
            if ctx.entropy:
                finite = inside.clamp(min=LOWEST)
                total = -(share * finite).sum(-1, keepdim=True)
                pull = pull - by_entropy[start:end, None].double() * share * (finite + total)
            if ctx.temperature not in (0.0, 1.0):
                pull = pull / ctx.temperature
            gradient[start:end].scatter_add_(-1, own, pull.to(ctx.dtype))
        return gradient, None, None, None, None, None, None


LOWEST = -1e300
"""Stands for minus infinity where it meets a share of 0: their product is 0, not NaN."""


def _padded(
    ids: torch.Tensor, offsets: torch.Tensor, start: int, end: int, widest: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(int64 [n, widest] ids, int64 [n] sizes) of rows start to end; padding repeats the last id"""
    first, after = offsets[start:end], offsets[start + 1 : end + 1]
    columns = torch.arange(widest, device=ids.device)
    flat = torch.minimum(first[:, None] + columns, after[:, None] - 1)
    return ids[flat].long(), after - first
