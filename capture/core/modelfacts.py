"""What a run file's model is, from its HF `config.json` alone: read before anything heavy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import RunConfig
from .errors import ConfigError

#: how HF configurations of mixture-of-experts models call the number of experts
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
#: families of models with experts that have a tested weight mapping
MOE_FAMILIES = ("qwen3_moe",)
_DROPOUTS = ("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`family` is HF's model_type, `experts` is 0 for a dense model, `dropout` the largest one."""

    family: str
    experts: int = 0
    dropout: float = 0.0
    attention_bias: bool = False


def of(config: RunConfig) -> ModelFacts:
    """The facts of a run's model. ConfigError where its folder or its config.json is unusable."""
    if config.model.path is None:
        own = config.model
        return ModelFacts(own.family, own.n_experts if own.family in MOE_FAMILIES else 0)
    path = Path(config.model.path) / "config.json"
    try:
        found = json.loads(path.read_bytes())
    except OSError:
        raise ConfigError(f"model.path: {config.model.path!r}: no readable config.json") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{str(path)!r}: not JSON: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict) or not isinstance(found.get("model_type"), str):
        raise ConfigError(f"{path}: model_type: no HF model configuration")
    try:
        return from_dict(found)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{path}: a number of experts or a dropout is none: {error}") from None


def is_moe(config: RunConfig, facts: ModelFacts) -> bool:
    """Whether a run needs the MoE backend."""
    return config.model.backend == "moe" or (config.model.backend == "auto" and facts.experts > 0)


def from_dict(found: dict[str, Any]) -> ModelFacts:
    """The facts in an HF configuration; text models nested in others are looked at too."""
    text = found.get("text_config")
    inner = {**found, **text} if isinstance(text, dict) else found
    return ModelFacts(
        family=str(inner["model_type"]),
        experts=max((int(inner.get(key) or 0) for key in _EXPERTS), default=0),
        dropout=max((float(inner.get(key) or 0.0) for key in _DROPOUTS), default=0.0),
        attention_bias=bool(inner.get("attention_bias") or inner.get("qkv_bias")),
    )
