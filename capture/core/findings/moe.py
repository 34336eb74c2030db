"""What the findings about mixtures of experts share: a random Qwen3-MoE and one router of Core."""

from __future__ import annotations

from typing import Any

import torch

from . import common

WIDTH, EXPERTS, TOPK, LAYERS = 32, 8, 2, 3
MODEL = {"model__family": "qwen3_moe"}
REPLAY = {**MODEL, "miles__use_rollout_routing_replay": True, "miles__use_miles_router": True}


def tiny(seed: int = 0, **changes: Any) -> tuple[Any, dict]:
    """(HF configuration, state dict) of a random Qwen3-MoE, float32."""
    import transformers

    config = transformers.Qwen3MoeConfig(
        **{
            "vocab_size": common.VOCABULARY,
            "hidden_size": WIDTH,
            "intermediate_size": 64,
            "moe_intermediate_size": 32,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "num_experts": EXPERTS,
            "num_experts_per_tok": TOPK,
            "norm_topk_prob": True,
            "max_position_embeddings": 256,
            "tie_word_embeddings": False,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **changes,
        }
    )
    model = transformers.Qwen3MoeForCausalLM(config).float()
    common.scatter(model.named_parameters(), seed)
    return config, {name: value.detach().clone() for name, value in model.state_dict().items()}


def stand_ins(ep: int = 1) -> dict[str, Any]:
    """For a record's environment: how many of Core's functions were replaced, in words too."""
    from .. import standins

    return {"stand_ins": len(standins.needed("cpu", ep)), "label": standins.label("cpu", ep)}


def one_router(seed: int = 3) -> Any:
    """A router of Core's second MoE stack as Qwen3-MoE configures it, in training mode."""
    from olmo_core.nn.moe.router import MoERouterGatingFunction
    from olmo_core.nn.moe.v2.router import MoERouterConfigV2

    router = MoERouterConfigV2(
        d_model=WIDTH,
        num_experts=EXPERTS,
        top_k=TOPK,
        gating_function=MoERouterGatingFunction.softmax,
        normalize_expert_weights=1.0,
        lb_loss_weight=0.01,
        z_loss_weight=1e-5,
    ).build()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        router.weight.normal_(0, 0.3, generator=generator)
    return router.train()
