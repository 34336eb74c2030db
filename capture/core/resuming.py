"""What a checkpoint's manifest says of a run, and how a run goes on from it. No torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from .checkpoint import CheckpointStore
from .clock import PolicyClock
from .config import RunConfig
from .contract import path_for
from .cursor import RolloutCursor
from .errors import CheckpointError, ConfigError
from .export import refuse_occupied
from .manifest import FileEntry, Manifest, Shape, check, lock_digest


def in_use(save: Path, rank: int) -> bool:
    """Whether a folder holds checkpoints or contract records of some run."""
    records = path_for(save, rank)
    return bool(CheckpointStore(save).collections()) or (
        records.exists() and records.stat().st_size > 0
    )


def early(config: RunConfig, rank: int = 0) -> None:
    """What can be refused from the folders alone, before anything heavy is imported or made.

    The driver checks all of it again, and everything else, when it starts.
    """
    save, load = config.miles.save, config.miles.load
    if save is not None and Path(save).exists() and not Path(save).is_dir():
        raise ConfigError(f"miles.save: {save!r}: is a file, not a folder")
    if load is None:
        if save is not None and in_use(Path(save), rank):
            raise ConfigError(occupied(save))
        if config.miles.save_hf is not None:
            refuse_occupied(config.miles.save_hf)
        return
    folder = CheckpointStore(Path(load)).latest()
    if folder is None:
        raise CheckpointError(nothing(load))
    shape = Shape(config.parallel.world_size, config.parallel.ep, lock_digest())
    found = check(folder, shape, hashes=False)
    _same_order(found, folder, config)
    try:
        _same_counts(found, config)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None
    _same_start(Path(load), config)


def occupied(save: str) -> str:
    """Why a fresh run does not write into a folder."""
    return f"miles.save: {save!r}: holds a run; resume it with --resume, or choose another folder"


def nothing(load: str) -> str:
    """Why there is nothing to resume."""
    return (
        f"miles.load: {load!r}: no finished checkpoint; start without --resume, or name the folder"
        " of a run that saved one"
    )


def _same_order(manifest: Manifest, folder: Path, config: RunConfig) -> None:
    own = {
        "rollout.rollout_batch_size": ("batch", config.rollout.rollout_batch_size),
        "seed": ("seed", config.seed),
        "rollout.shuffle": ("shuffle", config.rollout.shuffle),
    }
    for name, (key, value) in own.items():
        if manifest.cursor is not None and manifest.cursor[key] != value:
            raise CheckpointError(
                f"{folder}: {name} was {manifest.cursor[key]} and is {value} in this run; the order"
                " of the prompts would change, so resume with the old value"
            )


def _same_counts(manifest: Manifest, config: RunConfig) -> None:
    """A step count that this run would have too, and a horizon that is not behind it."""
    steps = manifest.collection * config.steps_per_collection
    if steps != manifest.optimizer_step:
        raise CheckpointError(
            f"{manifest.collection} collections made {manifest.optimizer_step} optimizer"
            f" steps; this run would have made {steps}, so resume with the old batch sizes"
        )
    if manifest.collection > config.rollout.num_rollout:
        raise CheckpointError(
            f"{manifest.collection} collections are done; rollout.num_rollout ="
            f" {config.rollout.num_rollout} is behind them"
        )


def _same_start(load: Path, config: RunConfig) -> None:
    """The tiny model that the run began from, which is a KL's reference too, is still asked for."""
    from .tinymodel import FACTS, facts_of

    path = load / "start-model" / FACTS
    if config.model.path is not None or not path.is_file():
        return
    try:
        kept = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return  # `tinymodel` makes it again from the same settings
    for section, values in facts_of(config).items():
        old = kept.get(section) if isinstance(kept, dict) else None
        for key, value in values.items():
            if isinstance(old, dict) and key in old and old[key] != value:
                raise CheckpointError(
                    f"{path}: {section}.{key} was {old[key]!r} and is {value!r} in this run; resume"
                    " with the old value"
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
        _same_counts(manifest, config)
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
