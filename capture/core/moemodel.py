"""A Qwen3-MoE of HF as a Core model: configuration, and the names and layouts of its weights.

Core's own converter maps such a configuration but no weights. The layouts differ in four places:
experts are one tensor a layer on both sides, but Core's has the up projection before the gate and
the down projection transposed; a router's matrix is flat in Core; HF folders may hold one tensor an
expert and projection instead; and names differ throughout.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from olmo_core.config import DType
from olmo_core.nn.attention import AttentionBackendName
from olmo_core.nn.layer_norm import LayerNormType
from olmo_core.nn.moe import MoELoadBalancingLossGranularity
from olmo_core.nn.moe.v2.ep_config import ExpertParallelPath
from olmo_core.nn.moe.v2.qwen import build_qwen3_moe_config_from_hf_config

from .config import RunConfig
from .dense import limits
from .errors import CheckpointError, RefusedError

FAMILIES = ("qwen3_moe",)

_WHOLE = {
    "embeddings.weight": "model.embed_tokens.weight",
    "lm_head.norm.weight": "model.norm.weight",
    "lm_head.w_out.weight": "lm_head.weight",
}
_LAYER = {
    "attention.w_q.weight": "self_attn.q_proj.weight",
    "attention.w_k.weight": "self_attn.k_proj.weight",
    "attention.w_v.weight": "self_attn.v_proj.weight",
    "attention.w_out.weight": "self_attn.o_proj.weight",
    "attention.q_norm.weight": "self_attn.q_norm.weight",
    "attention.k_norm.weight": "self_attn.k_norm.weight",
    "attention_norm.weight": "input_layernorm.weight",
    "feed_forward_norm.weight": "post_attention_layernorm.weight",
    "routed_experts_router.weight": "mlp.gate.weight",
    "routed_experts.w_up_gate": "mlp.experts.gate_up_proj",
    "routed_experts.w_down": "mlp.experts.down_proj",
}
_SLICE = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


def check(hf: Any) -> None:
    """Raise RefusedError for a configuration that Core's model would hold wrongly."""
    family = hf.model_type
    if family not in FAMILIES:
        raise RefusedError(
            f'model_type = "{family}": no tested weight mapping of experts; there is one for'
            f" {', '.join(FAMILIES)}",
            "moe-family",
        )
    for wrong, what in (
        *limits(hf),
        (hf.tie_word_embeddings, "a head tied to the embeddings"),
        (bool(hf.mlp_only_layers) or hf.decoder_sparse_step != 1, "layers without experts"),
        (hf.num_experts_per_tok > hf.num_experts, "more chosen experts than there are"),
    ):  # fmt: skip
        if wrong:
            raise RefusedError(f"{family} with {what}", "model-config")


def core_config(config: RunConfig, hf: Any) -> Any:
    """Core's configuration of an HF one, with the run's router losses and recomputation."""
    check(hf)
    facts = hf.to_dict()
    facts["rope_parameters"] = dict(hf.rope_parameters)
    core = build_qwen3_moe_config_from_hf_config(
        facts,
        dtype=DType.float32,
        norm_type=LayerNormType.qwen_rms,
        attention_backend=AttentionBackendName.torch,
        shared_expert_intermediate_size=None,
        router_aux_loss_weight=config.core.router_aux_loss_weight or None,
        router_z_loss_weight=config.core.router_z_loss_weight or None,
        ep_path=ExpertParallelPath.sync_1d,
    )
    router = core.block.routed_experts_router
    router.lb_loss_granularity = MoELoadBalancingLossGranularity.local_batch
    # Core's builder has them add up to 1 whatever the configuration says
    router.normalize_expert_weights = 1.0 if hf.norm_topk_prob else None
    core.recompute_each_block = config.core.recompute
    return core


def names(layers: int) -> dict[str, str]:
    """Core's parameter name to HF's, with fused experts."""
    found = dict(_WHOLE)
    for layer in range(layers):
        for own, other in _LAYER.items():
            found[f"blocks.{layer}.{own}"] = f"model.layers.{layer}.{other}"
    return found


def shapes(hf: Any) -> dict[str, tuple[int, ...]]:
    """HF's names and shapes, with fused experts."""
    wide, experts, inner = hf.hidden_size, hf.num_experts, hf.moe_intermediate_size
    head = hf.head_dim
    layer = {
        "self_attn.q_proj.weight": (hf.num_attention_heads * head, wide),
        "self_attn.k_proj.weight": (hf.num_key_value_heads * head, wide),
        "self_attn.v_proj.weight": (hf.num_key_value_heads * head, wide),
        "self_attn.o_proj.weight": (wide, hf.num_attention_heads * head),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
        "input_layernorm.weight": (wide,),
        "post_attention_layernorm.weight": (wide,),
        "mlp.gate.weight": (experts, wide),
        "mlp.experts.gate_up_proj": (experts, 2 * inner, wide),
        "mlp.experts.down_proj": (experts, wide, inner),
    }
    found = {
        "model.embed_tokens.weight": (hf.vocab_size, wide),
        "model.norm.weight": (wide,),
        "lm_head.weight": (hf.vocab_size, wide),
    }
    for number in range(hf.num_hidden_layers):
        found |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    return found


def to_core(name: str, value: torch.Tensor) -> torch.Tensor:
    """HF's tensor of this (fused) HF name in Core's layout; along experts both lie the same."""
    if name.endswith("experts.gate_up_proj"):
        gate, up = value.chunk(2, dim=1)
        return torch.cat([up, gate], dim=1)
    if name.endswith("experts.down_proj"):
        return value.transpose(1, 2)
    if name.endswith("mlp.gate.weight"):
        return value.flatten()
    return value


def to_hf(name: str, value: torch.Tensor, hf: Any) -> torch.Tensor:
    """The inverse of `to_core`."""
    if name.endswith("experts.gate_up_proj"):
        up, gate = value.chunk(2, dim=1)
        return torch.cat([gate, up], dim=1)
    if name.endswith("experts.down_proj"):
        return value.transpose(1, 2).contiguous()
    if name.endswith("mlp.gate.weight"):
        return value.view(hf.num_experts, hf.hidden_size)
    return value


def fused(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state with one tensor a layer for all experts, whichever way it was stored.

    Raises CheckpointError where experts or projections of a layer are missing.
    """
    found: dict[str, torch.Tensor] = {}
    parts: dict[str, dict[tuple[int, str], torch.Tensor]] = {}
    for name, value in state.items():
        match = _SLICE.fullmatch(name)
        if match:
            parts.setdefault(match[1], {})[int(match[2]), match[3]] = value
        else:
            found[name] = value
    for stem, slices in parts.items():
        count = max(expert for expert, _ in slices) + 1
        for expert in range(count):
            for kind in ("gate", "up", "down"):
                if (expert, kind) not in slices:
                    raise CheckpointError(f"missing weight {stem}.{expert}.{kind}_proj.weight")
        try:
            both = [torch.cat([slices[e, "gate"], slices[e, "up"]]) for e in range(count)]
            found[f"{stem}.gate_up_proj"] = torch.stack(both)
            found[f"{stem}.down_proj"] = torch.stack([slices[e, "down"] for e in range(count)])
        except RuntimeError as error:
            text = " ".join(str(error).split())[:200]
            raise CheckpointError(f"{stem}: experts of several shapes: {text}") from None
    return found


def checked(hf: Any, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """`fused` weights in float32, exactly those of the configuration; else CheckpointError."""
    given, wanted = fused(state), shapes(hf)
    for problem, lost in (
        ("missing", sorted(wanted.keys() - given.keys())),
        ("unknown", sorted(given.keys() - wanted.keys())),
    ):
        if lost:
            raise CheckpointError(f"{problem} weight {lost[0]}, {len(lost)} in all")
    for name, shape in wanted.items():
        if tuple(given[name].shape) != shape:
            raise CheckpointError(f"{name}: shape {tuple(given[name].shape)}, not {shape}")
    return {name: value.to(torch.float32) for name, value in given.items()}
