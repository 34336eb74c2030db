"""The pieces of a run: task, HF folder, trainer and engine, as the settings name them."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import RunConfig


@dataclass(slots=True)
class Parts:
    """What a run is made of. hf_folder holds the policy's HF config, tokenizer, first weights.

    engine: rank 0's; None on other ranks.
    """

    task: Any
    hf_folder: Path
    actor: Any
    engine: Any | None


def build(config: RunConfig, stack: contextlib.ExitStack) -> Parts:
    """The task, the HF folder, the actor and the engine that the settings name."""
    from . import collective, engines, tasks, tinymodel
    from .actor import CoreActor

    task = tasks.load(config)
    actor = CoreActor(config)
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
    return Parts(task, collective.gather(folder)[0], actor, engine)
