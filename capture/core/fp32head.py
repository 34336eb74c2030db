"""The FP32-output vocabulary head: low-precision operands, logits that are not rounded to them.

torch. A bfloat16 or float16 projection multiplies exactly and adds in float32; an ordinary head
then rounds each logit to the operand dtype, up to 0.06 at a logit of 20 in bfloat16. This one keeps
the float32 sum. On CUDA that is one GEMM with another output type; on a CPU the operands are
widened first, which gives the same products and the same float32 additions in another order.

The backward is ordinary: the logit gradient is rounded to the operand dtype, then two low-precision
GEMMs. So this is not float32 training. Parameters keep their name, dtype and storage, and autocast
goes on choosing the operand dtype of float32 weights. Float32 operands pass through as before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from .errors import RefusedError

LOW = (torch.bfloat16, torch.float16)


class Fp32OutputLinear(nn.Linear):
    """`nn.Linear` without a bias whose low-precision output is float32.

    Made by changing the class of a layer that exists: `install`, `install_serving`.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """float32 [..., V] for bfloat16 or float16 operands [..., D]; else as `nn.Linear`.

        RefusedError for a weight that tensor parallelism has sharded.
        """
        weight, device = self.weight, input.device.type
        if isinstance(weight, DTensor):
            raise RefusedError(
                "the FP32-output head holds a sharded weight: no tensor parallelism", "fp32-head-tp"
            )
        if torch.is_autocast_enabled(device):
            # what autocast does for an ordinary linear; float64 is no operand of it
            kind = torch.get_autocast_dtype(device)
            if input.dtype != torch.float64 and weight.dtype != torch.float64:
                input, weight = input.to(kind), weight.to(kind)
        if input.dtype not in LOW or weight.dtype != input.dtype:
            return nn.functional.linear(input, weight)
        return _Fp32Output.apply(input, weight)


class _Fp32Output(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operand: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(operand, weight)
        rows = operand.reshape(-1, operand.shape[-1])
        # autocast would narrow the widened operands again
        with torch.autocast(rows.device.type, enabled=False):
            if rows.device.type == "cuda":
                logits = torch.mm(rows, weight.t(), out_dtype=torch.float32)
            else:
                logits = torch.mm(rows.float(), weight.float().t())
        # no view, as of an ordinary linear: FSDP hooks on what a module returns
        return torch.ops.aten._unsafe_view(logits, [*operand.shape[:-1], len(weight)])

    @staticmethod
    def backward(ctx: Any, by_logits: torch.Tensor) -> tuple:
        if torch.is_grad_enabled():
            raise RefusedError(
                "the FP32-output head has first-order gradients only", "fp32-head-second-order"
            )
        operand, weight = ctx.saved_tensors
        rows = operand.reshape(-1, operand.shape[-1])
        by_logits = by_logits.reshape(-1, len(weight)).to(rows.dtype)
        with torch.autocast(rows.device.type, enabled=False):
            by_operand = by_weight = None
            if ctx.needs_input_grad[0]:
                by_operand = by_logits.mm(weight).reshape(operand.shape)
            if ctx.needs_input_grad[1]:
                by_weight = by_logits.t().mm(rows)
        return by_operand, by_weight


def install(model: nn.Module) -> None:
    """Give a Core model the FP32-output head, in place. Twice is fine.

    Works before and after weights are loaded, and for dense and MoE models. RefusedError for
    another head than Core's default, another loss than its default, tensor parallelism or a bias.
    """
    from olmo_core.nn.lm_head import LMHead, LMLossImplementation

    head = getattr(model, "lm_head", None)
    # FSDP puts a class of its own, made of the head's, in front
    kinds = [kind for kind in type(head).__mro__ if not kind.__name__.startswith("FSDP")]
    if kinds[0] is not LMHead:
        raise RefusedError(
            f"the FP32-output head replaces Core's LMHead, not {type(head).__name__}",
            "fp32-head-kind",
        )
    if head.loss_implementation != LMLossImplementation.default:
        raise RefusedError(
            f"the FP32-output head with the {head.loss_implementation} loss, which never makes"
            " logits",
            "fp32-head-loss",
        )
    if head.tp_enabled:
        raise RefusedError("the FP32-output head with tensor parallelism", "fp32-head-tp")
    _swap(head.w_out)


def install_serving(model: nn.Module) -> None:
    """Give a transformers model the FP32-output head, in place. Twice is fine.

    RefusedError for a model without an output layer, or with one that is no plain linear layer.
    """
    head = model.get_output_embeddings()
    if head is None:
        raise RefusedError(f"{type(model).__name__} has no vocabulary head", "fp32-head-kind")
    _swap(head)


def installed(model: nn.Module) -> bool:
    """Whether any layer of the model is an FP32-output head."""
    return any(isinstance(part, Fp32OutputLinear) for part in model.modules())


def remove(model: nn.Module) -> None:
    """Make every FP32-output head of the model an ordinary linear layer again."""
    for part in model.modules():
        if type(part) is Fp32OutputLinear:
            part.__class__ = nn.Linear


def _swap(layer: nn.Module) -> None:
    if type(layer) is Fp32OutputLinear:
        return
    if type(layer) is not nn.Linear:
        raise RefusedError(
            f"the FP32-output head replaces a plain linear layer, not {type(layer).__name__}",
            "fp32-head-kind",
        )
    if layer.bias is not None:
        raise RefusedError("the FP32-output head with a bias", "fp32-head-bias")
    layer.__class__ = Fp32OutputLinear
