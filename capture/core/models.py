"""Picks what trains a run's model: the dense train module, or that of mixtures of experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .config import RunConfig
from .errors import RefusedError
from .grid import Grid
from .modelfacts import from_dict, is_moe


def backend_of(config: RunConfig, hf: Any) -> str:
    """ "dense" or "moe"; model.backend = "auto" reads the HF configuration.

    Raises RefusedError for the dense backend and a configuration with experts.
    """
    facts = from_dict(hf.to_dict())
    if is_moe(config, facts):
        return "moe"
    if facts.experts > 0:
        raise RefusedError(
            f"{facts.family} with {facts.experts} experts needs the MoE backend", "backend-experts"
        )
    return "dense"


def backend(config: RunConfig, hf: Any) -> Any:
    """The module with build, load_hf and export_hf for this model."""
    if backend_of(config, hf) == "moe":
        from . import moe

        return moe
    from . import dense

    return dense


def train_module(config: RunConfig, hf: Any, state: Any) -> tuple[Any, Any]:
    """(backend, its train module with these HF weights): what trains, and what the exact engine
    generates with. (HF configuration, weights) are those of `read`.
    """
    from . import fp32head

    own = backend(config, hf)
    module = own.build(config, hf)
    if config.fp32_lm_head:
        fp32head.install(module.model)
    own.load_hf(module, hf, state)
    module.grid = Grid.of(config)
    return own, module


def read(folder: Path | str) -> tuple[Any, Any]:
    """(HF configuration, weights) of a local HF folder; see `dense.read_hf`."""
    from . import dense

    return dense.read_hf(folder)
