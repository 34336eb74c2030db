"""Plain PyTorch in the place of the functions that `standins` lists.

They are put into the modules of Core that call them, for the whole process: the names are looked up
there at every call. Core's dense models use none of them.
"""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any

import torch

from . import standins


class _Rows(torch.autograd.Function):
    """rows[order] for a permutation; the gradient goes the same way back, without atomics."""

    @staticmethod
    def forward(ctx, rows, order, inverse):
        ctx.save_for_backward(inverse)
        return rows[order]

    @staticmethod
    def backward(ctx, gradient):
        (inverse,) = ctx.saved_tensors
        return gradient[inverse], None, None


def permute(inp, routing_map, num_out_tokens, map_type="index"):
    """Rows in the order of their experts, and how they lay: ([T * K, D], int64 [2, T * K]).

    inp: [T, D]. routing_map: expert ids [T, K]. Rows of one expert stay in the order of their
    tokens. The second result is for `unpermute` only.
    """
    tokens, top_k = routing_map.shape
    if map_type != "index" or num_out_tokens != tokens * top_k:
        raise NotImplementedError(f"permute of {map_type} to {num_out_tokens} rows")
    order = torch.argsort(routing_map.reshape(-1).long(), stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    rows = inp if top_k == 1 else inp[:, None].expand(-1, top_k, -1).reshape(tokens * top_k, -1)
    return _Rows.apply(rows, order, inverse), torch.stack([order, inverse])


def unpermute(inp, row_id_map, restore_shape, merging_probs=None, map_type="index"):
    """The inverse of `permute`: [T, D], summed over the K experts of a token with their weights.

    merging_probs: [T, K], or None for K = 1. The sum is in float32, the result in inp's dtype.
    """
    if map_type != "index":
        raise NotImplementedError(f"unpermute of {map_type}")
    order, inverse = row_id_map
    rows = _Rows.apply(inp, inverse, order)
    if merging_probs is None:
        return rows.view(restore_shape)
    top_k = merging_probs.shape[1]
    weighted = rows.view(-1, top_k, rows.shape[-1]).float() * merging_probs[..., None].float()
    return weighted.sum(1).to(inp.dtype).view(restore_shape)


class NoStream(contextlib.AbstractContextManager):
    """A CUDA stream or event where there is none."""

    def wait_stream(self, other: Any) -> None:
        """Nothing to wait for."""

    wait_event = wait_stream

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def record_event(self, event: Any = None) -> NoStream:
        """An event that has happened."""
        return self

    def __exit__(self, *_):
        return None


NO_STREAM = NoStream()


class _NoCuda:
    """`torch.cuda` where only streams are asked for."""

    @staticmethod
    def current_stream(device: Any = None) -> NoStream:
        return NO_STREAM

    @staticmethod
    def stream(stream: Any) -> NoStream:
        return NO_STREAM

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


class _Torch(ModuleType):
    """torch with another `cuda`, for one module of Core."""

    cuda = _NoCuda()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _copy_to_cpu(gpu_buf, event=None, return_event=True):
    return gpu_buf.clone(), NO_STREAM, NO_STREAM if return_event else None


def swiglu(up_gate, num_elements, start=None):
    """up * silu(gate) of [rows, 2 F], as Core's experts compute it in a training forward."""
    if start is not None:
        raise NotImplementedError("swiglu of a part of the rows")
    up, gate = up_gate.chunk(2, dim=-1)
    return up * torch.nn.functional.silu(gate)


def install(device: str, ep: int, dtype: torch.dtype) -> tuple[standins.StandIn, ...]:
    """Replace what `device` and `ep` need, and set the dtype in which Core trains this path.

    Installing again changes nothing but the dtype. Gives what is replaced.
    """
    from olmo_core.nn.ddp.block import OLMoDDPTransformerBlock
    from olmo_core.nn.ddp.model import OLMoDDPModel
    from olmo_core.nn.moe.v2 import ep_sync_1d, no_ep, routed_experts

    OLMoDDPModel._training_dtype = dtype  # released Core always trains this path in bfloat16
    found = standins.needed(device, ep)
    places = {one.where for one in found}
    for module in (no_ep, ep_sync_1d):
        if "no-te" in places:
            module.moe_permute_no_compile = permute
            module.moe_unpermute_no_compile = unpermute
        if "cpu" in places:
            module.torch = _Torch("torch")
            module.async_copy_to_cpu = _copy_to_cpu
    if "cuda" in places:
        routed_experts.swiglu_valid_prefix = swiglu
    if "cpu" in places:
        OLMoDDPTransformerBlock.get_dense_stream = lambda self, for_x1=False: NO_STREAM
        routed_experts.REQUIRES_HOST_SIDE_SPLIT_SIZES = True
    return found
