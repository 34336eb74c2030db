"""Engines: what generates responses, behind one interface (`base.Engine`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .base import Difference, Engine, Generation, LoadReport

if TYPE_CHECKING:
    from ..config import RunConfig

__all__ = ["Difference", "Engine", "Generation", "LoadReport", "build"]


def build(config: RunConfig, hf_dir: Path | str, *, eos_id: int, pad_id: int) -> Engine:
    """The engine of a run, with the weights of an HF folder as version 0.

    eos_id, pad_id: the task's; ids that the folder's own configuration names end a response too.
    """
    if config.engine.kind == "sglang":
        from .sglang_engine import SGLangEngine, tensor_names

        return SGLangEngine(
            str(config.engine.url),
            eos_ids=[eos_id],
            timeout=config.engine.timeout,
            refresh=config.engine.refresh,
            batch_size=config.engine.batch_size,
            dtype=config.engine.dtype,
            exchange=config.engine.exchange,
            expected=tensor_names(hf_dir),
            fp32_lm_head=config.fp32_lm_head,
        )
    if config.engine.kind == "core":
        from .core_engine import CoreEngine

        return CoreEngine.from_folder(config, hf_dir, eos_ids=[eos_id])
    from .transformers_engine import TransformersEngine

    return TransformersEngine.from_folder(
        hf_dir,
        dtype=config.engine.dtype,
        device=config.engine.device,
        fp32_lm_head=config.fp32_lm_head,
        decode=config.engine.decode,
        expert_ids=config.replays_routes,
        eos_ids=[eos_id],
        pad_id=pad_id,
        refresh=config.engine.refresh,
        batch_size=config.engine.batch_size,
    )
