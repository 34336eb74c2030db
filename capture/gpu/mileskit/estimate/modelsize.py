"""Parameters and KV bytes of a dense decoder model, counted from its Hugging Face config.json.

Counts the layout of Llama and Qwen: token embedding, attention with grouped keys and values, a
gated MLP, two norms a layer, a final norm and an output layer that may be the embedding again.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

DENSE = ("llama", "qwen2", "qwen3", "mistral")
_OTHER = {
    "num_experts": "mixture of experts",
    "num_local_experts": "mixture of experts",
    "n_routed_experts": "mixture of experts",
    "kv_lora_rank": "compressed keys and values (MLA)",
}
_MOST = 10**7  # no field of a config is larger; catches swapped or damaged files
ASSUMED_VOCAB = 151_936
"""Vocabulary taken when only a parameter count is known: that of Qwen3-0.6B to Qwen3-4B."""
ASSUMED_LAYERS = 32


class ModelError(ValueError):
    """A config that cannot be counted; the text names file, key and value."""


class Model(NamedTuple):
    """params: parameters that are trained; doubled: further ones when the engine keeps a tied
    embedding twice; layers x hidden: what gradient checkpointing keeps of a token; kv_values:
    keys and values of one token (None when unknown); notes: assumptions."""

    name: str
    params: int
    doubled: int
    vocab: int
    layers_hidden: int
    kv_values: int | None
    notes: tuple[str, ...] = ()


# Public configurations of the stored runs' models: HuggingFaceTB/SmolLM2-135M-Instruct and
# Qwen/Qwen3-0.6B, config.json.
KNOWN = {
    "SmolLM2-135M-Instruct": {
        "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    },
    "Qwen3-0.6B": {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
        "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
    },
}  # fmt: skip


def load(path: str) -> Model:
    """The model of a config.json (or of a folder with one). Raises ModelError."""
    place = Path(path)
    place = place / "config.json" if place.is_dir() else place
    try:
        found = json.loads(place.read_bytes())
    except OSError as error:
        raise ModelError(f"{place}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{place}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ModelError(f"{place}: not a model's config: no JSON object")
    return count(found, str(place))


def count(config: dict, name: str) -> Model:
    """The model of a config; raises ModelError for one that is no dense Llama or Qwen."""
    if isinstance(config.get("text_config"), dict):
        config = config["text_config"]
    for key, what in _OTHER.items():
        if config.get(key):
            raise ModelError(f"{name}: {key} = {config[key]!r}: {what} is not counted here")
    kind = config.get("model_type")
    notes = []
    if kind not in DENSE:
        notes.append(f"model_type {kind!r} is counted as a dense Llama")

    def whole(key, default=None):
        value = config.get(key, default)
        if value is None and default is not None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _MOST:
            raise ModelError(f"{name}: {key} must be a positive whole number, not {value!r}")
        return value

    sizes = ("vocab_size", "hidden_size", "num_hidden_layers")
    vocab, hidden, layers = (whole(key) for key in sizes)
    inner, heads = whole("intermediate_size"), whole("num_attention_heads")
    kv_heads = whole("num_key_value_heads", heads)
    if not config.get("head_dim") and hidden % heads:
        raise ModelError(f"{name}: hidden_size {hidden} is no multiple of {heads} heads")
    head = whole("head_dim", max(1, hidden // heads))
    queries, keys = heads * head, kv_heads * head
    attention = hidden * queries + 2 * hidden * keys + queries * hidden
    if config.get("attention_bias", kind == "qwen2"):
        attention += queries + 2 * keys + (hidden if kind != "qwen2" else 0)
    if kind == "qwen3":
        attention += 2 * head  # norms of queries and keys
    mlp = 3 * hidden * inner + ((2 * inner + hidden) if config.get("mlp_bias") else 0)
    embedding = vocab * hidden
    tied = bool(config.get("tie_word_embeddings", False))
    params = embedding * (1 if tied else 2) + layers * (attention + mlp + 2 * hidden) + hidden
    doubled = embedding if tied else 0
    return Model(name, params, doubled, vocab, layers * hidden, 2 * layers * keys, tuple(notes))


def of_count(params: float) -> Model:
    """A model of which only the number of parameters is known. Raises ModelError."""
    if not (math.isfinite(params) and 1e6 <= params < 1e13):
        raise ModelError(f"--params must be a number of parameters like 0.6e9, not {params:g}")
    layers_hidden = round(ASSUMED_LAYERS * math.sqrt(params / (12 * ASSUMED_LAYERS)))
    notes = (
        "no config.json: KV bytes of a token unknown",
        f"no config.json: activations for a vocabulary of {ASSUMED_VOCAB:,} and"
        f" {ASSUMED_LAYERS} layers",
    )
    name = f"{params:g} parameters"
    return Model(name, round(params), 0, ASSUMED_VOCAB, layers_hidden, None, notes)
