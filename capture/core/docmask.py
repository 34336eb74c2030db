"""Attention that stays inside documents, for Core's PyTorch backend.

Released Core takes document lengths, but only its flash-attention backends use them; its PyTorch
backend raises. This one gives PyTorch's attention a mask: a token sees itself and earlier tokens of
its own document. One document in a row needs no mask, and is then exactly Core's own attention.

Rotary positions run through the whole row, as in Core; attention only sees their differences, so
documents agree with themselves alone up to rounding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from olmo_core.nn.attention import Attention
from olmo_core.nn.attention.backend import TorchAttentionBackend
from torch import nn

from .errors import RefusedError


def document_mask(bounds: torch.Tensor, length: int) -> torch.Tensor:
    """bool [length, length], True where row position i may see column position j.

    bounds: cumulative document lengths, int [D + 1], from 0 to length, on the mask's device.
    """
    position = torch.arange(length, device=bounds.device)
    document = torch.bucketize(position, bounds[1:].long(), right=True)
    same = document[:, None] == document[None, :]
    return same & (position[:, None] >= position[None, :])


class DocumentAttention(TorchAttentionBackend):
    """Core's PyTorch attention with document lengths. Installed by `install`."""

    _mask_of: tuple[torch.Tensor, torch.Tensor] | None = None

    def warmup_cache(self, max_seq_len: int, device: torch.device) -> None:
        """Nothing: Core would build a mask of max_seq_len squared that is never used here."""

    def forward(self, qkv, cu_doc_lens=None, max_doc_len=None, **others):
        if cu_doc_lens is None or len(cu_doc_lens) <= 2:
            return super().forward(qkv, **others)
        given = sorted(name for name, value in others.items() if value is not None)
        if given:
            raise RefusedError(f"document attention with {', '.join(given)}", "document-attention")
        q, k, v = qkv
        if len(q) != 1:
            raise RefusedError(f"document attention over {len(q)} rows", "document-attention")
        repeat = self.n_heads // self.n_kv_heads
        if repeat > 1:
            k, v = (x.repeat_interleave(repeat, dim=2) for x in (k, v))
        out = F.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v)),
            attn_mask=self._mask(cu_doc_lens, q.shape[1], q.device),
            scale=self.scale,
        )
        return out.transpose(1, 2).contiguous()

    def _mask(self, bounds: torch.Tensor, length: int, device: torch.device) -> torch.Tensor:
        # the layers of one forward, and its recomputation, get the same tensor of bounds
        kept = DocumentAttention._mask_of
        if kept is None or kept[0] is not bounds:
            kept = (bounds, document_mask(bounds.to(device), length))
            DocumentAttention._mask_of = kept
        return kept[1]


def install(model: nn.Module) -> int:
    """Give every attention of a Core model the document mask; returns how many there are.

    Call it before the model is wrapped. Raises RefusedError for an attention it cannot mask.
    """
    found = 0
    for name, module in model.named_modules():
        backend = getattr(module, "backend", None)
        if backend is None or isinstance(module, nn.Sequential):
            continue
        if type(module) is not Attention:
            raise RefusedError(
                f"{name}: no document mask for {type(module).__name__}", "document-attention"
            )
        problem = _problem(module, backend)
        if problem:
            raise RefusedError(f"{name}: no document mask with {problem}", "document-attention")
        backend.__class__ = DocumentAttention
        found += 1
    if not found:
        raise RefusedError("the model has no attention to mask", "document-attention")
    return found


def _problem(attention: nn.Module, backend: nn.Module) -> str | None:
    """Why this attention cannot be masked, or None."""
    if type(backend) not in (TorchAttentionBackend, DocumentAttention):
        return f"the backend {type(backend).__name__}"
    if tuple(backend.window_size) != (-1, -1):
        return f"a sliding window of {backend.window_size}"
    if backend.dropout_p:
        return f"attention dropout {backend.dropout_p}"
    if getattr(attention, "sinks", None) is not None:
        return "attention sinks"
    if getattr(attention, "scalable_softmax", False):
        return "a softmax scaled by length"
    if backend.cp_enabled:
        return "context parallelism"
    return None
