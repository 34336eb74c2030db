"""Collections with recorded expert ids, and spies on what a model's routers do."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import torch

from capture.core import router
from capture.core.actor import CoreActor
from capture.core.samples import Collection

LAYERS, EXPERTS, TOPK = 2, 8, 2  # of tiny("qwen3_moe")
REPLAY = {"miles__use_rollout_routing_replay": True, "miles__use_miles_router": True}


def recorded(data: Collection, seed: int = 0) -> Collection:
    """The collection with random ids for every token but the last, different in each layer."""
    rng = np.random.default_rng(seed)
    samples = []
    for sample in data.samples:
        order = rng.random((len(sample.tokens) - 1, LAYERS, EXPERTS)).argsort(-1)
        samples.append(dataclasses.replace(sample, routes=order[..., :TOPK].astype(np.int16)))
    return Collection(samples, data.index)


@contextlib.contextmanager
def watched(actor: CoreActor):
    """Gives a list that gets one (documents, ids [L, layers, K], logits [layers][L, E]) a forward.

    Recomputed forwards are not in it. ids: what the experts were really sent, in the order of the
    pack's tokens; logits: of the routers.
    """
    found: list[tuple] = []
    parts: dict[int, tuple] = {}

    def after(module, inputs, output):
        if router.is_checkpoint_recomputing():
            return
        parts[module.layer] = (output[1][0].clone(), output[3][1][0].detach().clone())
        if len(parts) == LAYERS:
            ids = torch.stack([parts[layer][0] for layer in range(LAYERS)], 1)
            logits = [parts[layer][1].double().numpy() for layer in range(LAYERS)]
            found.append((module.work.doc_lens, module.work.documents, ids.numpy(), logits))
            parts.clear()

    hooks = [part.register_forward_hook(after) for part in router.routers_of(actor.module.model)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
