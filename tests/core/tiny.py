"""A tiny model of each family and collections for it: random, seeded, no download."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from capture.core.samples import Collection, Sample

VOCABULARY = 96

# threads cost more than they save on tensors this small
torch.set_num_threads(1)


def tiny(family: str = "llama", seed: int = 0, **changes: Any) -> tuple[Any, dict]:
    """(HF configuration, state dict), 2 layers, width 64."""
    import transformers

    name = {
        "llama": "Llama",
        "qwen3": "Qwen3",
        "olmo2": "Olmo2",
        "mixtral": "Mixtral",
        "qwen3_moe": "Qwen3Moe",
    }[family]
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
    }
    if family == "qwen3_moe":
        settings |= {
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        }
    settings |= changes
    if family in ("olmo2", "mixtral"):
        settings.pop("head_dim")
    config = getattr(transformers, f"{name}Config")(**settings)
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForCausalLM")(config).float()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.15)
            else:
                weight.uniform_(0.5, 1.5)  # norms that are not all 1, so that a swap shows
    return config, {name: value.clone() for name, value in model.state_dict().items()}


def hf_model(config: Any, state: dict) -> torch.nn.Module:
    """The transformers model with these weights."""
    import transformers

    kind = getattr(
        transformers,
        config.architectures[0]
        if config.architectures
        else f"{type(config).__name__.removesuffix('Config')}ForCausalLM",
    )
    model = kind(config).float().eval()
    model.load_state_dict(state)
    return model


def collection(
    seed: int = 0, count: int = 8, index: int = 0, *, unequal: bool = True, version: int = 0
) -> Collection:
    """Samples with unequal prompts, responses and masks; the first half is much longer."""
    rng = np.random.default_rng(seed)
    samples = []
    for number in range(count):
        prompt, response = int(rng.integers(2, 6)), int(rng.integers(2, 6))
        if unequal and number % 2:
            response += 9
        mask = rng.random(response) > 0.3
        mask[rng.integers(response)] = True
        samples.append(
            Sample(
                sample_id=1000 * index + number,
                group_id=number // 2,
                tokens=rng.integers(1, VOCABULARY, prompt + response),
                prompt_len=prompt,
                loss_mask=mask,
                behaviour_logp=rng.normal(-4.5, 0.1, response),
                behaviour_version=np.full(response, version),
                reward=float(rng.integers(2)),
                advantage=float(rng.normal()),
            )
        )
    return Collection(samples, index)


def lopsided(data: Collection) -> Collection:
    """See `findings.common.lopsided`."""
    from capture.core.findings import common

    return common.lopsided(data)


def settings(**changes: Any) -> Any:
    """Those of `findings.common.settings` with 10 collections; section__key=value changes them."""
    from capture.core.findings import common

    return common.settings(**{"rollout__num_rollout": 10, **changes})
