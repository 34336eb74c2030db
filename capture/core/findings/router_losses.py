"""The balancing and z losses of Core, Megatron and transformers on the same router logits.

Megatron's functions come from the wheel `miles-rl`, in a process of its own, since it brings
packages named megatron and sglang.
"""

from __future__ import annotations

import torch

from .common import beside_miles
from .record import Finding, Value

TOKENS, EXPERTS, TOPK, LAYERS = 64, 8, 2, 2
MEGATRON = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from megatron.core.transformer.moe.moe_utils import switch_load_balancing_loss_func, z_loss_func
given = torch.load(sys.argv[2])
found = []
for logits, ids in given["layers"]:
    scores = logits.softmax(-1)
    counts = torch.bincount(ids.flatten(), minlength=scores.shape[-1])
    balance = switch_load_balancing_loss_func(
        scores, counts, len(scores), ids.shape[-1], scores.shape[-1], 1.0
    )
    found.append((float(balance), float(z_loss_func(logits, 1.0))))
torch.save(found, sys.argv[3])
"""


def measure() -> Finding:
    """Run it; see the module."""
    from olmo_core.nn.moe.loss import (
        MoELoadBalancingLossGranularity,
        load_balancing_loss,
        router_z_loss,
    )
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    generator = torch.Generator().manual_seed(8)
    layers = []
    for _ in range(LAYERS):
        logits = torch.randn(TOKENS, EXPERTS, generator=generator) * 1.5
        layers.append((logits, logits.topk(TOPK, dim=-1).indices))
    core, core_z = [], []
    for logits, ids in layers:
        counts = torch.bincount(ids.flatten(), minlength=EXPERTS)
        core.append(
            float(
                load_balancing_loss(
                    num_experts=EXPERTS,
                    top_k=TOPK,
                    expert_scores=logits.softmax(-1)[None],
                    batch_size_per_expert=counts,
                    batched_batch_size_per_expert=counts[None],
                    granularity=MoELoadBalancingLossGranularity.local_batch,
                )
            )
        )
        core_z.append(float(router_z_loss(expert_logits=logits[None])))
    hf_layers = [float(load_balancing_loss_func((one,), EXPERTS, TOPK)) for one, _ in layers]
    hf_pooled = float(load_balancing_loss_func(tuple(x for x, _ in layers), EXPERTS, TOPK))
    megatron = beside_miles(["-c", MEGATRON], {"layers": layers})
    gaps = [abs(a - b[0]) for a, b in zip(core, megatron, strict=True)]
    z_gaps = [abs(a - b[1]) for a, b in zip(core_z, megatron, strict=True)]
    factors = [hf / own for hf, own in zip(hf_layers, core, strict=True)]
    return Finding(
        name="",
        row=5,
        outcome="reproduced" if all(abs(f - TOPK) < 1e-4 for f in factors) else "differs",
        noted="HF against Core: factor K (2.0119 and 1.0059), pooled and not per layer;"
        " Megatron == Core",
        claim="On the same router the balancing loss of transformers is {factor} times Core's,"
        " layer by layer, with top-{topk}; Megatron's differs from Core's by {megatron_gap}."
        " transformers pools the layers ({hf_pooled}), Core adds them ({core_sum}).",
        values={
            "topk": Value(TOPK, "experts", "experts of a token", "exact"),
            "core": Value(core, "1", "balancing loss of each layer, Core"),
            "core_sum": Value(sum(core), "1", "what Core adds to the objective, before its weight"),
            "hf": Value(hf_layers, "1", "balancing loss of each layer alone, transformers"),
            "hf_pooled": Value(hf_pooled, "1", "of both layers in one histogram, transformers"),
            "factor": Value(factors, "1", "transformers over Core, for each layer", "close", 1e-5),
            "megatron": Value([b[0] for b in megatron], "1", "balancing loss, Megatron"),
            "megatron_gap": Value(
                max(gaps), "1", "largest difference of Megatron from Core", "rounding", 1e-5
            ),
            "z": Value(core_z, "1", "z loss of each layer, Core"),
            "z_gap": Value(
                max(z_gaps), "1", "largest z-loss difference of Megatron from Core",
                "rounding", 1e-4,
            ),
        },
        settings={"tokens": TOKENS, "experts": EXPERTS, "topk": TOPK, "layers": LAYERS},
    )  # fmt: skip
