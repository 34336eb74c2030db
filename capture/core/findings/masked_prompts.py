"""What masked prompts do to Core's router losses.

Core divides its router losses by the count of labels, as it does the language-model loss. The same
rows go through Core's own training with all labels, then with half, a quarter and an eighth of
them; the routers and what they see stay the same. Then through this trainer, whose router losses
have model tokens as their denominator.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from olmo_core.nn.moe.v2.router import MoERouterV2

from .. import router as routers
from ..samples import Collection
from . import common, moe
from .record import Finding, Value

ROWS, LENGTH = 4, 33
KEPT = (32, 16, 8, 4)  # labels of a row


def core_losses(actor, kept: int) -> list[float]:
    """The balancing loss of each layer as Core's train module reports it."""
    module = actor.module
    tokens = torch.randint(1, 96, (ROWS, LENGTH), generator=torch.Generator().manual_seed(9))
    labels = torch.full_like(tokens, -100)
    labels[:, LENGTH - 1 - kept : -1] = tokens[:, LENGTH - kept :]
    module.rank_microbatch_size = ROWS * LENGTH
    module.train_batch({"input_ids": tokens, "labels": labels})
    module.zero_grads()
    return reported(actor)


def reported(actor) -> list[float]:
    """Core's metric of the last step, for each layer, before the coefficient."""
    metrics = actor._recorder.metrics
    names = [f"train/block {layer:02d}/load balancing loss unscaled" for layer in range(moe.LAYERS)]
    return [float(metrics[name]) for name in names]


def released(actor) -> None:
    """Give a model's routers their released class back."""
    for router in routers.routers_of(actor.module.model):
        router.__class__ = MoERouterV2


def own_losses(kept: int | None) -> list[float]:
    """The same of a step of this trainer; kept: active tokens of a response, None for all."""
    actor = common.actor_of(moe.tiny(), **moe.MODEL)
    samples = []
    for sample in common.collection(2).samples:
        mask = np.ones(sample.response_len, bool)
        mask[kept:] = kept is None
        samples.append(dataclasses.replace(sample, loss_mask=mask))
    actor.train(Collection(tuple(samples), 0), 0)
    return reported(actor)


def measure() -> Finding:
    """Run it; see the module."""
    actor = common.actor_of(moe.tiny(), **moe.MODEL)
    released(actor)
    found = [core_losses(actor, kept) for kept in KEPT]
    factors = [sum(losses) / sum(found[0]) for losses in found]
    whole, few = sum(own_losses(None)), sum(own_losses(1))
    exact = [KEPT[0] / kept for kept in KEPT]
    same = all(abs(a - b) < 1e-4 * b for a, b in zip(factors, exact, strict=True))
    return Finding(
        name="",
        row=2,
        outcome="reproduced" if same else "differs",
        noted="x2.00 and x4.00 when 1/2 or 3/4 of the labels are masked",
        claim="With {kept} of the labels kept Core's balancing loss is {factors} times as large,"
        " though the routers saw the same tokens. In this trainer a mask that leaves one token of"
        " each response moves it from {own_all} to {own_few}.",
        values={
            "kept": Value([kept / KEPT[0] for kept in KEPT], "1", "share of labels kept", "exact"),
            "losses": Value(found, "1", "Core's balancing loss of each layer, for each share"),
            "factors": Value(factors, "1", "their sum over that with all labels", "close", 1e-4),
            "own_all": Value(whole, "1", "this trainer's, all layers, whole responses active"),
            "own_few": Value(few, "1", "the same with one active token of a response"),
            "own_same": Value(
                abs(whole - few) <= 1e-6 * abs(whole), "1", "both are equal", "exact"
            ),
        },
        settings={"rows": ROWS, "tokens of a row": LENGTH, "layers": moe.LAYERS,
                  "experts": moe.EXPERTS, "topk": moe.TOPK},
        environment=moe.stand_ins(),
    )  # fmt: skip
