"""The forward of one token a row, with a third of the kernels of transformers' own. torch.

A decode step of a small model is bound by the number of kernels, not by what they compute. For the
two plain families (Llama, Qwen3) this runs the same layers with what PyTorch has fused: one product
for query, key and value, one for gate and up, the residual added inside the product, one kernel a
norm. Numbers differ from transformers' by rounding alone, a little less of it in low precision.

Weights that are multiplied together lie together in memory, and the model's own parameters become
views of that: whoever writes them in place, as a load does, writes these.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from .staticcache import StaticCache, attend

FAMILIES = ("llama", "qwen3")


def problem(model: Any) -> str | None:
    """Why this forward does not do for a transformers model, or None."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    for wrong, what in (
        (config.model_type not in FAMILIES, f"the family {config.model_type}"),
        (config.hidden_act not in ("silu", "swish"), f"the activation {config.hidden_act}"),
        (rope.get("rope_type", "default") != "default", f"rope_type {rope.get('rope_type')}"),
        (getattr(config, "use_sliding_window", False), "a sliding window"),
        (any(name.endswith("proj.bias") for name, _ in model.named_parameters()), "biases"),
        (hasattr(config, "quantization_config"), "quantized weights"),
    ):
        if wrong:
            return what
    return None


def _together(*weights: torch.nn.Parameter) -> torch.Tensor:
    """One tensor of all rows; the parameters become views of it."""
    joined = torch.cat([weight.detach() for weight in weights])
    for weight, part in zip(weights, joined.split([len(w) for w in weights]), strict=True):
        weight.data = part
    return joined


class _Layer:
    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.eps = layer.input_layernorm.variance_epsilon
        self.scale = attention.scaling
        self.before = layer.input_layernorm.weight
        self.after = layer.post_attention_layernorm.weight
        self.qkv = _together(
            attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight
        )
        self.out = attention.o_proj.weight
        self.gate_up = _together(mlp.gate_proj.weight, mlp.up_proj.weight)
        self.down = mlp.down_proj.weight
        self.head_norms = None
        if hasattr(attention, "q_norm"):
            norms = (attention.q_norm.weight, attention.k_norm.weight)
            self.head_norms = _together(*norms).view(2, -1)


class LeanForward:
    """Decode steps of a model for which `problem` is None. Make it before weights are listed."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self.model = model
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.layers = [_Layer(layer) for layer in model.model.layers]
        device = self.layers[0].qkv.device
        self.dim = len(self.layers[0].qkv) // (self.heads + 2 * self.kv_heads)
        # which of the two head norms each query and key head has
        kinds = [0] * self.heads + [1] * self.kv_heads
        self._kinds = torch.tensor(kinds, device=device)
        self._cos = self._sin = torch.empty(0)

    def reserve(self, columns: int) -> None:
        """Rotary tables for so many positions."""
        weight = self.layers[0].qkv
        positions = torch.arange(columns, device=weight.device)[None]
        cos, sin = self.model.model.rotary_emb(weight[:1, None], positions)
        # half of the heads' numbers change places with the other half; the sign goes to the table
        first, second = sin[0].chunk(2, dim=-1)
        self._cos, self._sin = cos[0].contiguous(), torch.cat([-first, second], dim=-1)

    def step(
        self, ids: torch.Tensor, positions: torch.Tensor, bias: torch.Tensor, cache: StaticCache
    ) -> torch.Tensor:
        """Logits [B, V] after ids [B, 1] at positions [B, 1]; bias additive [B, 1, 1, limit]."""
        inner = self.model.model
        rows, turned = len(ids), self.heads + self.kv_heads
        x = F.embedding(ids[:, 0], inner.embed_tokens.weight)
        cos = self._cos.index_select(0, positions[:, 0])[:, None]
        sin = self._sin.index_select(0, positions[:, 0])[:, None]
        for number, layer in enumerate(self.layers):
            h = F.rms_norm(x, x.shape[-1:], layer.before, layer.eps)
            qkv = F.linear(h, layer.qkv).view(rows, turned + self.kv_heads, self.dim)
            qk, value = qkv[:, :turned], qkv[:, turned:, None]
            if layer.head_norms is not None:
                norms = layer.head_norms.index_select(0, self._kinds)
                qk = F.rms_norm(qk, (self.dim,), None, layer.eps) * norms
            qk = torch.addcmul(qk * cos, qk.roll(self.dim // 2, -1), sin)
            query, key = qk[:, : self.heads, None], qk[:, self.heads :, None]
            key, value = cache.update(key, value, number)
            seen, _ = attend(None, query, key, value, bias, layer.scale)
            x = torch.addmm(x, seen.reshape(rows, -1), layer.out.t())
            h = F.rms_norm(x, x.shape[-1:], layer.after, layer.eps)
            gate, up = F.linear(h, layer.gate_up).chunk(2, dim=-1)
            x = torch.addmm(x, F.silu(gate) * up, layer.down.t())
        x = F.rms_norm(x, x.shape[-1:], inner.norm.weight, inner.norm.variance_epsilon)
        return self.model.lm_head(x[:, None])[:, -1]
