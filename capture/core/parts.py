"""The pieces of a run: task, HF folder, trainer and engine, as the settings name them."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import RunConfig


@dataclass(slots=True)
class Parts:
    """What a run is made of. hf_folder holds the policy's HF config, tokenizer, first weights.

    engine: rank 0's; None on other ranks. take_diagnostics(step): the local probes of an optimizer
    step in the record's plain form, or None where none were due.
    """

    task: Any
    hf_folder: Path
    actor: Any
    engine: Any | None
    take_diagnostics: Callable[[int], dict[str, Any] | None] = lambda step: None


def build(config: RunConfig, stack: contextlib.ExitStack) -> Parts:
    """The task, the HF folder, the actor and the engine that the settings name."""
    from . import collective, engines, tasks, tinymodel
    from .actor import CoreActor
    from .diagnostics import StepProbes

    if config.model.threads:
        import torch

        torch.set_num_threads(config.model.threads)
    task = tasks.load(config)
    probes = StepProbes(config.core.diagnostic_interval)
    actor = CoreActor(config, on_gradients=probes.on_gradients, after_step=probes.after_step)
    stack.callback(actor.close)
    scratch = config.miles.save
    if scratch is None:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="core-run-"))
    folder, engine = None, None
    with collective.guard("model"):
        if collective.rank() == 0:
            folder = tinymodel.prepare(config, task, Path(scratch) / "start-model")
            engine = engines.build(config, folder, eos_id=task.eos_id, pad_id=task.pad_id)
            stack.callback(engine.close)
    return Parts(task, collective.gather(folder)[0], actor, engine, probes.take)
