"""What a run writes about itself: contract records of every rank, and rank 0's run log."""

from __future__ import annotations

import json
import os
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from . import gpufacts, runmetrics, standins
from .config import RunConfig
from .contract import ContractWriter, TrainingRecord, path_for
from .publish import Publication
from .rollouts import Evaluation
from .runlog import RunLog, next_path
from .samples import Collection

_PACKAGES = ("ai2-olmo-core", "torch", "transformers")
# not after a colon or a letter: the slashes of an address and of a relative path are no folder
_FOLDERS = re.compile(r"(?<![\w.:/~-])~?/(?:[^/\s\"'=,]+/)+")


class Journal:
    """One process's records. completed_step: optimizer steps of the loaded checkpoint, or None.

    Without `miles.save` nothing is kept, and the log goes to standard output alone.
    """

    def __init__(self, config: RunConfig, rank: int, completed_step: int | None) -> None:
        self.config, save = config, config.miles.save
        self._writer = None
        if save is not None:
            self._writer = ContractWriter(
                path_for(save, rank),
                rank=rank,
                world_size=config.parallel.world_size,
                completed_step=completed_step,
            )
        self.log: RunLog | None = None
        if rank == 0:
            self.log = RunLog(
                Path(os.devnull) if save is None else next_path(save),
                name=config.name,
                command=command(config.seed),
                notes=notes(config),
                gpu=gpufacts.line(config),
                echo=sys.stdout if save is None else None,
            )

    def close(self, status: int) -> None:
        """The last lines; the exit status goes into the log."""
        if self._writer is not None:
            self._writer.close()
        if self.log is not None:
            peak = gpufacts.peak(self.config)
            if peak is not None:
                self.log.note(peak)
            self.log.end(status)

    def resumed(self, folder: Path) -> None:
        """Name what a restore loaded."""
        if self.log is not None:
            for what in ("model", "optimizer", "LR scheduler", "RNG state", "data"):
                self.log.loaded(what, folder)

    def collected(self, collection: Collection, seconds: float) -> None:
        """A collection that the trainer is about to take; seconds of its generation."""
        if self.log is not None:
            gpus = gpufacts.engine_gpus(self.config)
            values = runmetrics.generation(collection.samples, seconds=seconds, gpus=gpus)
            self.log.rollout_perf(collection.index, values)
            self.log.rollout(collection.index, runmetrics.collection(collection.samples))

    def write(self, record: TrainingRecord) -> None:
        """Put this rank's record into its file."""
        if self._writer is not None:
            self._writer.write(record)

    def step(self, result: Any, everyones: list[TrainingRecord]) -> None:
        """A completed optimizer step, with the records of all ranks."""
        if self.log is None:
            return
        own = self.config.objective
        values = runmetrics.update(
            everyones[0],
            result.terms.as_dict(),
            grad_norm=result.gradient_norm,
            kl=own.kl_coef > 0,
            entropy=own.entropy_coef > 0,
            tis=own.tis,
        )
        self.log.step(result.step - 1, values)
        if (text := runmetrics.router_note(everyones[0])) is not None:
            self.log.note(text)
        for record in everyones:
            self.log.contract(record)

    def times(self, collection: Collection, seconds: dict[str, float]) -> None:
        """The phases of a collection, in seconds, named as `runmetrics.times` names them."""
        if self.log is not None:
            values = runmetrics.times(seconds, model_tokens=collection.model_tokens)
            self.log.perf(collection.index, values)

    def published(self, record: Publication) -> None:
        """A transfer, the repeated ones too."""
        if self.log is not None:
            self.log.note(
                f"published version {record.version}: {record.tensors} tensors,"
                f" {record.bytes} bytes, {record.buckets} buckets, largest"
                f" {record.largest_bucket} bytes, {record.seconds:.6f} s,"
                f" repeated_version={str(record.repeated_version).lower()}"
            )

    def checked(self, what: str) -> None:
        """A weight audit that found no difference."""
        if self.log is not None:
            self.log.note(f"weight audit passed: {what}")

    def evaluated(self, found: Evaluation) -> None:
        """An evaluation. It carries the rollout after which it ran; the first one carries 0."""
        if self.log is not None:
            values = runmetrics.evaluation(
                self.config.task.name, found.rewards, found.finishes, found.seconds
            )
            self.log.eval(max(found.collection - 1, 0), values)

    def saved(self, folder: Path) -> None:
        """A checkpoint or an export that is complete."""
        if self.log is not None:
            self.log.saved(folder)


def without_folders(text: str) -> str:
    """Text with the last part of each absolute path in place of the path; addresses stay."""
    return _FOLDERS.sub("", text)


def command(seed: int) -> list[str]:
    """What started this process, without the folders of this machine, and with the seed in force.

    Readers of Miles logs take the seed from `--seed` in the command and from nowhere else.
    """
    first = Path(sys.argv[0])
    start = ["python", "-m", "capture.core"] if first.name == "__main__.py" else [first.name]
    words = [*start, *(without_folders(word) for word in sys.argv[1:])]
    said = any(word == "--seed" or word.startswith("--seed=") for word in words)
    return words if said else [*words, "--seed", str(seed)]


def notes(config: RunConfig) -> tuple[str, ...]:
    """Header lines: seed, versions, every setting in force, what of Core is replaced."""
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} not installed")
    how = standins.label_of(config)
    settings = without_folders(json.dumps(config.model_dump(mode="json"), separators=(",", ":")))
    lines = [f"seed {config.seed}", f"packages: {', '.join(found)}", f"settings: {settings}"]
    return tuple([*lines, how] if how else lines)
