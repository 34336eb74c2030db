"""A Core router alone, in a forward and backward like that of a block, for the router's tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from olmo_core.nn.moe.v2.checkpointing import (
    checkpoint_recompute_context_fn,
    is_checkpoint_recomputing,
)
from olmo_core.nn.moe.v2.router import MoERouterV2
from olmo_core.ops import attach_auxiliary_loss
from torch.utils.checkpoint import checkpoint

from capture.core import router as kit
from capture.core.packing import AuxiliaryDenominators

COMBINATIONS = list(
    itertools.product(
        ("pack", "sequence"),
        ("token", "response"),
        ("token", "response"),
        ("executed", "router_selected"),
    )
)
WEIGHT, Z_WEIGHT = 0.01, 1e-3  # z large enough to show in the gradient


class Block(torch.nn.Module):
    """A router between an input and an output, with the loss attached as Core's block does.

    The output of a token is the sum over its experts of weight times expert number plus one: it
    depends on which experts ran and on their weights.
    """

    def __init__(self, experts: int, topk: int, width: int | None = None, **changes) -> None:
        super().__init__()
        width = width or experts
        self.routed_experts_router = MoERouterV2(
            d_model=width, num_experts=experts, top_k=topk, **changes
        )
        if width == experts:
            # the input is then the logits
            with torch.no_grad():
                self.routed_experts_router.weight.copy_(torch.eye(experts).reshape(-1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        router = self.routed_experts_router
        weights, ids, _, info = router(x, False)
        out = (weights * (ids + 1)).sum(-1)
        loss = router.compute_aux_loss(*info, accumulate_metrics=not is_checkpoint_recomputing())
        return out if loss is None else attach_auxiliary_loss(out, loss)


@dataclass
class Forward:
    """Logits [T, E] of one forward, the ids that ran or are to run, and its documents."""

    logits: np.ndarray
    ids: np.ndarray | None  # int64 [T, K]
    doc_lens: tuple[int, ...]
    filler: bool = False


@dataclass
class Step:
    """What `run` saw: terms over all forwards, gradients of the logits, outputs, executed ids."""

    terms: kit.RouterTerms
    gradients: list[np.ndarray]
    outputs: list[torch.Tensor]
    executed: list[np.ndarray]
    weight_gradient: torch.Tensor


def run(
    block: torch.nn.Module,
    forwards: Sequence[Forward],
    *,
    recompute: bool = False,
    policy: float = 0.0,
    world_size: int = 1,
    denominators: AuxiliaryDenominators | None = None,
    install: bool = True,
    settings: kit.RouterSettings | None = None,
) -> Step:
    """Forward and backward of each, one after the other, accumulating one optimizer step.

    policy: what the output's mean weighs in the loss; the router losses are attached anyway.
    """
    settings = settings or kit.RouterSettings()
    if install:
        kit.install(block, settings)
    block.train()
    block.zero_grad()
    real = [forward for forward in forwards if not forward.filler]
    denominators = denominators or AuxiliaryDenominators(
        sum(sum(forward.doc_lens) for forward in real),
        sum(len(forward.doc_lens) for forward in real),
        world_size,
    )
    terms, found = None, Step(None, [], [], [], None)
    for forward in forwards:
        x = torch.tensor(forward.logits, dtype=torch.float32)[None].requires_grad_()
        work = kit.RouterWork(
            routes=forward.ids[:, None] if settings.replay else None,
            doc_lens=forward.doc_lens,
            denominators=denominators,
            documents=0 if forward.filler else len(forward.doc_lens),
        )
        with kit.armed(block, work):
            if recompute:
                out = checkpoint(
                    block, x, use_reentrant=False, context_fn=checkpoint_recompute_context_fn
                )
            else:
                out = block(x)
            own = kit.collect(block)
            (policy * out.sum()).backward()
        terms = own if terms is None else terms + own
        found.gradients.append(x.grad[0].numpy().copy())
        found.outputs.append(out.detach())
        found.executed.append(work.layers[0].executed[0].numpy())
    found.terms = terms
    found.weight_gradient = block.routed_experts_router.weight.grad.clone()
    return found


def random_forward(
    rng: np.random.Generator, doc_lens, experts: int, k: int, *, scale: float = 1.5, **changes
) -> Forward:
    """Random logits, and ids that are not the logits' own top: they may be replayed."""
    total = sum(doc_lens)
    logits = rng.normal(0, scale, (total, experts))
    ids = np.stack([rng.permutation(experts)[:k] for _ in range(total)]).astype(np.int64)
    return Forward(logits, ids, tuple(doc_lens), **changes)


def settings_of(
    combination, *, replay=False, weight=WEIGHT, z_weight=Z_WEIGHT
) -> kit.RouterSettings:
    return kit.RouterSettings(*combination, weight, z_weight, replay)


def near(found, wanted, tolerance=2e-6):
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert np.abs(found - wanted).max() <= tolerance * max(np.abs(wanted).max(), 1e-30)
