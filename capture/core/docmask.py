"""Attention that stays inside documents, for Core's PyTorch backend.

Released Core takes document lengths, but only its flash-attention backends use them; its PyTorch
backend raises. This one has two ways. On a GPU in bfloat16 or float16 it calls PyTorch's own
variable-length attention (`torch.nn.attention.varlen`), which never looks across a document's
bounds; a row of one document goes the same way. Everywhere else it gives PyTorch's attention a
mask: a token sees itself and earlier tokens of its own document. One document in a row then needs
no mask, and is exactly Core's own attention.

Core begins rotary positions anew in every document when it is given their lengths. Packed and alone
a document still differs by rounding: the other products of the forward have another shape.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from olmo_core.nn.attention import Attention
from olmo_core.nn.attention.backend import TorchAttentionBackend
from torch import nn

from .errors import RefusedError

LOW_PRECISION = (torch.bfloat16, torch.float16)
WIDEST_HEAD = 256
"""Largest head of the variable-length kernels, in numbers."""


def document_mask(bounds: torch.Tensor, length: int) -> torch.Tensor:
    """bool [length, length], True where row position i may see column position j.

    bounds: cumulative document lengths, int [D + 1], from 0 to length, on the mask's device.
    """
    position = torch.arange(length, device=bounds.device)
    document = torch.bucketize(position, bounds[1:].long(), right=True)
    same = document[:, None] == document[None, :]
    return same & (position[:, None] >= position[None, :])


def masked(q, k, v, mask: torch.Tensor, scale: float | None = None) -> torch.Tensor:
    """Attention [1, L, H, D] of q [1, L, H, D] and k, v [1, L, Hkv, D] under a mask [L, L]."""
    k, v = (_repeated(x, q.shape[2]) for x in (k, v))
    out = F.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), attn_mask=mask, scale=scale
    )
    return out.transpose(1, 2).contiguous()


def varlen(q, k, v, bounds: torch.Tensor, longest: int, scale: float | None = None) -> torch.Tensor:
    """The same by PyTorch's variable-length attention, for q, k, v of one low-precision dtype.

    bounds: int32 [D + 1] on the device of q; rows of a batch are documents too. longest: tokens of
    the longest document.
    """
    kernel, named = _varlen_kernel()
    rows, length, heads, dim = q.shape
    if "enable_gqa" in named:
        named = {**named, "enable_gqa": k.shape[2] != heads}
    else:
        k, v = (_repeated(x, heads) for x in (k, v))
    if "scale" in named:
        named = {**named, "scale": scale}
    elif scale is not None:
        # the kernel divides by the root of the head size on its own
        q = q * (scale * dim**0.5)
    flat = (x.reshape(rows * length, x.shape[2], dim) for x in (q, k, v))
    out = kernel(*flat, bounds, bounds, longest, longest, **named)
    return out.view(rows, length, heads, dim)


def _varlen_kernel() -> tuple[Callable[..., torch.Tensor], dict[str, Any]]:
    """(PyTorch's variable-length attention, the arguments by which this version is causal).

    PyTorch 2.10 has `is_causal`, later ones have `window_size`, `scale` and `enable_gqa`: an
    optional argument that exists is in the dict.
    """
    from torch.nn.attention.varlen import varlen_attn

    has = inspect.signature(varlen_attn).parameters
    named: dict[str, Any] = {name: None for name in ("scale", "enable_gqa") if name in has}
    if "is_causal" in has:
        return varlen_attn, {**named, "is_causal": True}
    return varlen_attn, {**named, "window_size": (-1, 0)}


def _repeated(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Key or value [.., Hkv, D] as [.., heads, D]."""
    repeat = heads // x.shape[2]
    return x.repeat_interleave(repeat, dim=2) if repeat > 1 else x


def varlen_dtype(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.dtype | None:
    """The dtype in which these go through variable-length attention, or None: the mask's case."""
    if not q.is_cuda or q.shape[-1] > WIDEST_HEAD:
        return None
    if torch.is_autocast_enabled(q.device.type):
        # what autocast makes of the operands of PyTorch's attention
        dtype = torch.get_autocast_dtype(q.device.type)
    else:
        dtype = q.dtype if q.dtype == k.dtype == v.dtype else None
    return dtype if dtype in LOW_PRECISION else None


class DocumentAttention(TorchAttentionBackend):
    """Core's PyTorch attention with document lengths. Installed by `install`."""

    _mask_of: tuple[torch.Tensor, torch.Tensor] | None = None
    _whole: tuple[tuple[int, int, torch.device], torch.Tensor] | None = None

    def warmup_cache(self, max_seq_len: int, device: torch.device) -> None:
        """Nothing: Core would build a mask of max_seq_len squared that is never used here."""

    def forward(self, qkv, cu_doc_lens=None, max_doc_len=None, **others):
        given = sorted(name for name, value in others.items() if value is not None)
        several = cu_doc_lens is not None and len(cu_doc_lens) > 2
        if several and given:
            raise RefusedError(f"document attention with {', '.join(given)}", "document-attention")
        q, k, v = qkv
        if several and len(q) != 1:
            raise RefusedError(f"document attention over {len(q)} rows", "document-attention")
        dtype = None if given else varlen_dtype(q, k, v)
        if dtype is not None:
            bounds, longest = cu_doc_lens, max_doc_len
            if not several:
                bounds, longest = self._rows(*q.shape[:2], q.device), q.shape[1]
            return varlen(*(x.to(dtype) for x in (q, k, v)), bounds, longest, self.scale)
        if not several:
            return super().forward(qkv, **others)
        return masked(q, k, v, self._mask(cu_doc_lens, q.shape[1], q.device), self.scale)

    # the layers of one forward, and its recomputation, get the same tensor of bounds: what is made
    # of it is kept for them

    def _mask(self, bounds: torch.Tensor, length: int, device: torch.device) -> torch.Tensor:
        kept = DocumentAttention._mask_of
        if kept is None or kept[0] is not bounds:
            kept = (bounds, document_mask(bounds.to(device), length))
            DocumentAttention._mask_of = kept
        return kept[1]

    def _rows(self, rows: int, length: int, device: torch.device) -> torch.Tensor:
        """Bounds int32 [rows + 1] of a batch whose rows are one document each."""
        kept = DocumentAttention._whole
        if kept is None or kept[0] != (rows, length, device):
            bounds = torch.arange(rows + 1, dtype=torch.int32, device=device) * length
            kept = ((rows, length, device), bounds)
            DocumentAttention._whole = kept
        return kept[1]


def check(
    device: torch.device | str = "cuda",
    dtype: torch.dtype = torch.bfloat16,
    *,
    lengths: tuple[int, ...] = (1, 17, 130, 64, 300),
    heads: int = 9,
    kv_heads: int = 3,
    dim: int = 64,
    seed: int = 0,
) -> dict[str, float]:
    """Compare the two ways on random numbers, forward and gradients of q, k and v.

    Gives the largest differences from the mask in float64, of each way: {"varlen out": ..., "mask
    out": ..., "varlen dq": ...}. Raises RefusedError when variable-length attention is more than
    four times as far off as the mask in the same dtype.
    """
    made = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    shapes = [(1, total, h, dim) for h in (heads, kv_heads, kv_heads, heads)]
    *inputs, upstream = (torch.randn(s, generator=made).to(device, dtype) for s in shapes)
    bounds = torch.tensor([0, *lengths], device=device).cumsum(0).to(torch.int32)
    mask = document_mask(bounds, total)

    def run(kind: torch.dtype, way: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        leaves = [x.detach().to(kind).requires_grad_() for x in inputs]
        out = way(*leaves)
        return [out.detach(), *torch.autograd.grad(out, leaves, upstream.to(kind))]

    exact = run(torch.float64, lambda q, k, v: masked(q, k, v, mask))
    found = {
        "mask": run(dtype, lambda q, k, v: masked(q, k, v, mask)),
        "varlen": run(dtype, lambda q, k, v: varlen(q, k, v, bounds, max(lengths))),
    }
    gaps = {
        f"{way} {name}": float((value.double() - want).abs().max())
        for way, values in found.items()
        for name, value, want in zip(("out", "dq", "dk", "dv"), values, exact, strict=True)
    }
    for name in ("out", "dq", "dk", "dv"):
        # written so that NaN fails
        if not gaps[f"varlen {name}"] <= 4 * gaps[f"mask {name}"] + 1e-6:
            raise RefusedError(
                f"variable-length attention: {name} is {gaps[f'varlen {name}']:.3g} off, the mask"
                f" {gaps[f'mask {name}']:.3g}",
                "document-attention",
            )
    return gaps


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
