"""What a checkpoint's manifest says of a run, and how a run goes on from it. No torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .checkpoint import CheckpointStore
from .clock import PolicyClock
from .config import RunConfig
from .contract import path_for
from .cursor import RolloutCursor
from .errors import CheckpointError
from .manifest import FileEntry, Manifest, lock_digest


def in_use(save: Path, rank: int) -> bool:
    """Whether a folder holds checkpoints or contract records of some run."""
    records = path_for(save, rank)
    return bool(CheckpointStore(save).collections()) or (
        records.exists() and records.stat().st_size > 0
    )


def take_place(
    manifest: Manifest, folder: Path, config: RunConfig, cursor: RolloutCursor, clock: PolicyClock
) -> None:
    """Put cursor and clock where the checkpoint in `folder` stands.

    Raises CheckpointError when this run would draw other prompts or count other steps.
    """
    try:
        if manifest.cursor is None:  # schema 1: collections, and nothing was pending
            cursor.start_at(manifest.collection)
        else:
            cursor.restore(manifest.cursor)
        steps = manifest.collection * config.steps_per_collection
        if steps != manifest.optimizer_step:
            raise CheckpointError(
                f"{manifest.collection} collections made {manifest.optimizer_step} optimizer"
                f" steps; this run would have made {steps}"
            )
        clock.restore(
            {
                "optimizer_step": manifest.optimizer_step,
                "consumed": manifest.consumed,
                "lr": manifest.lr,
            }
        )
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None


def describer(
    config: RunConfig, clock: PolicyClock, cursor: RolloutCursor, lr: float
) -> Callable[[tuple[FileEntry, ...]], Manifest]:
    """A function that makes the manifest of this moment, given the files. lr: of the next step."""
    place, step, consumed = cursor.state(), clock.optimizer_step, clock.consumed

    def describe(files: tuple[FileEntry, ...]) -> Manifest:
        return Manifest(
            world_size=config.parallel.world_size,
            ep_degree=config.parallel.ep,
            optimizer_step=step,
            policy_version=step,
            collection=place["collection"],
            lr=lr,
            consumed=consumed,
            cursor=place,
            lock_sha256=lock_digest(),
            files=files,
        )

    return describe
