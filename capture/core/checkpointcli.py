"""`python -m capture.core verify-checkpoint DIR`: is this checkpoint whole, and of which run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from . import manifest as manifests
from .checkpoint import FOLDER, CheckpointStore
from .errors import CheckpointError
from .manifest import Manifest, Shape

EXITS = "Exit codes: 0 all are whole, 1 one is not, 2 bad usage, 3 there is none to look at."


def main(argv: Sequence[str]) -> int:
    """Check one checkpoint, or all of a run folder, or migrate one of schema 1."""
    parser = argparse.ArgumentParser(
        prog="python -m capture.core verify-checkpoint",
        description="Check manifests, sizes and hashes of checkpoints; load nothing.",
        epilog=EXITS,
    )
    parser.add_argument("folder", type=Path, help="a checkpoint, or the miles.save of a run")
    parser.add_argument("--world-size", type=int, help="ranks that would resume")
    parser.add_argument("--ep-degree", type=int, help="expert-parallel degree of those ranks")
    parser.add_argument("--any-lock", action="store_true", help="do not compare the runtime lock")
    parser.add_argument("--json", action="store_true", help="the manifests as JSON, one a line")
    parser.add_argument(
        "--migrate", action="store_true", help="write a schema-2 manifest over a schema-1 one"
    )
    parser.add_argument("--cursor", type=Path, help="JSON of the committed cursor, for --migrate")
    given = parser.parse_args(argv)
    if not given.folder.is_dir():
        print(f"{given.folder}: no such folder", file=sys.stderr)
        return 2
    if given.migrate:
        return _migrate(given)
    folders = checkpoints(given.folder)
    if not folders:
        print(f"{given.folder}: no checkpoint, nothing was checked", file=sys.stderr)
        return 3
    return max(_one(folder, given) for folder in folders)


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints that a folder is or holds, oldest first."""
    if (folder / manifests.NAME).exists() or (folder / "model_and_optim").exists():
        return [folder]
    root = folder.parent if folder.name == FOLDER else folder
    store = CheckpointStore(root)
    return [store.path(count) for count in store.collections()]


def _one(folder: Path, given: argparse.Namespace) -> int:
    try:
        own = manifests.read(folder)
        shape = Shape(
            world_size=own.world_size if given.world_size is None else given.world_size,
            ep_degree=own.ep_degree if given.ep_degree is None else given.ep_degree,
            lock_sha256=None if given.any_lock else manifests.lock_digest(),
        )
        found = manifests.check(folder, shape)
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(found.as_json()) if given.json else f"{folder}: {described(found)}")
    return 0


def described(found: Manifest) -> str:
    """A manifest in one line."""
    waiting = len(found.cursor["pending"]) if found.cursor else 0
    size = sum(entry.bytes for entry in found.files)
    return (
        f"whole: schema {found.schema}, {found.world_size} rank(s), EP {found.ep_degree},"
        f" collection {found.collection}, optimizer step {found.optimizer_step},"
        f" {waiting} pending collection(s), {len(found.files)} files, {size} bytes"
    )


def _migrate(given: argparse.Namespace) -> int:
    if given.cursor is None or given.ep_degree is None:
        print("--migrate needs --ep-degree and --cursor: schema 1 has neither", file=sys.stderr)
        return 2
    try:
        cursor = json.loads(given.cursor.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        print(f"{given.cursor}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    try:
        found = manifests.migrate(
            given.folder,
            ep_degree=given.ep_degree,
            cursor=cursor,
            lock=manifests.lock_digest(),
        )
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{given.folder}: migrated; {described(found)}")
    return 0
