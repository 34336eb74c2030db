"""Picks what trains a run's model: the dense train module, or in part 2 the MoE one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .config import RunConfig
from .errors import RefusedError
from .modelfacts import from_dict
from .supportrows import is_moe


def backend_of(config: RunConfig, hf: Any) -> str:
    """ "dense" for a model that the dense train module holds.

    Raises RefusedError for a mixture of experts, asked for or found in the HF configuration.
    """
    facts = from_dict(hf.to_dict())
    if is_moe(config, facts) or facts.experts > 0:
        raise RefusedError(
            f"a mixture-of-experts model ({facts.family}, {facts.experts} experts) needs the MoE"
            " backend, which is part 2",
            "moe-backend",
        )
    return "dense"


def layout_of(config: RunConfig) -> str:
    """ "single", "ddp" or "fsdp": how the weights of a dense run lie on its ranks."""
    return "single" if config.parallel.world_size == 1 else config.parallel.data_parallel


def backend(config: RunConfig, hf: Any) -> Any:
    """The module with build, load_hf and export_hf for this model."""
    backend_of(config, hf)
    from . import dense

    return dense


def read(folder: Path | str) -> tuple[Any, Any]:
    """(HF configuration, weights) of a local HF folder; see `dense.read_hf`."""
    from . import dense

    return dense.read_hf(folder)
