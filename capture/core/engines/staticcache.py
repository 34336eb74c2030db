"""A key-value cache of fixed size, and attention over it. torch.

The cache has one column a position, the same for all rows: prompts are padded on the left, so the
newest token of every row goes to the same column. Nothing moves and nothing grows, which is what a
CUDA graph needs. transformers only calls `update`; the mask is made here, so that no model code has
to know how much of the cache is filled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

_ANY = nullcontext()

NAME = "miles101_static"
"""The name of `attend` among transformers' attention functions."""


class StaticCache:
    """Keys and values of every layer, [rows, kv heads, columns, head size] each.

    The buffers are made when the first prompt is written. `step` says what the following forwards
    of the model see.
    """

    def __init__(self, rows: int, columns: int, device: torch.device) -> None:
        self.rows, self.columns = rows, columns
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.column = torch.zeros(1, dtype=torch.int64, device=device)
        self._source: torch.Tensor | None = None
        self._rows = self._limit = 0

    def prompt(self, source: torch.Tensor) -> None:
        """The next forward is of prompts: row i of the cache is row source[i] of the batch."""
        self._source = source

    def step(self, rows: int, limit: int) -> None:
        """The next forwards are of one token for the first rows, over the first `limit` columns."""
        self._source, self._rows, self._limit = None, rows, limit

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's keys and values; give those that attention sees."""
        if self._source is not None:
            if layer_idx == len(self.keys):
                for kind, given in ((self.keys, key), (self.values, value)):
                    # zeros: a column that is masked out is still multiplied, by 0
                    kind.append(
                        given.new_zeros(self.rows, given.shape[1], self.columns, given.shape[3])
                    )
            count, width = len(self._source), key.shape[2]
            self.keys[layer_idx][:count, :, :width] = key[self._source]
            self.values[layer_idx][:count, :, :width] = value[self._source]
            return key, value
        found = []
        for kept, new in ((self.keys[layer_idx], key), (self.values[layer_idx], value)):
            kept = kept[: self._rows]
            kept.index_copy_(2, self.column, new)
            found.append(kept[:, :, : self._limit])
        return found[0], found[1]

    def keep(self, places: torch.Tensor, filled: int) -> None:
        """Move the rows at `places` to the front; `filled` columns are worth moving."""
        for kept in (*self.keys, *self.values):
            kept[: len(places), :, :filled] = kept[:, :, :filled].index_select(0, places)


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention for transformers: [B, H, Q, D] over [B, Hkv, K, D], mask additive [B, 1, Q, K].

    A single query token is attended as a group of its heads to each key-value head, so that the
    cache is read once and not copied once a head.
    """
    rows, heads, length, size = query.shape
    kv_heads = key.shape[1]
    if length == 1:
        query = query.reshape(rows, kv_heads, heads // kv_heads, size)
    elif heads > kv_heads:
        key, value = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (key, value))
    # of PyTorch's kernels these two take a mask and set up nothing that a graph could not hold
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]) if key.is_cuda else _ANY:
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, scale=scaling
        )
    return out.reshape(rows, heads, length, size).transpose(1, 2), None


@contextmanager
def attention(model: Any) -> Iterator[None]:
    """A transformers model with `attend` as its attention while it is open."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before


def prompt_mask(real: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask [U, 1, P, P] of left-padded prompts; real: bool [U, P], False for padding.

    Padding sees itself alone, so that no row of the softmax is empty.
    """
    length = real.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=real.device).tril()
    itself = torch.eye(length, dtype=torch.bool, device=real.device)
    seen = (causal & real[:, None, :]) | itself
    zeros = torch.zeros((), dtype=dtype, device=real.device)
    return torch.where(seen, zeros, -torch.inf)[:, None]
