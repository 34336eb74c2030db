"""The schema-2 manifest of a checkpoint: written last, checked before anything native is loaded.

OLMo-core itself loads a checkpoint of two ranks into one without a word, so the shape of the run,
the committed rollout cursor, the runtime lock and the size and hash of every file stand here.
Loads neither torch, numpy nor Core: `verify-checkpoint` runs anywhere.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from .cursor import check_cursor
from .errors import CheckpointError

SCHEMA = 2
WEIGHTS = "model_and_optim"  # Core's folder of weights and optimizer state
NAME = "manifest.json"
KEPT = "manifest.schema1.json"  # what a migration replaced
_OWN = (NAME, KEPT)
_CHUNK = 1 << 20
_LARGEST_LR = 1e6  # far above any; keeps infinity and numbers too large for a float out


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a checkpoint: its path in the folder, its size in bytes, its sha256."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint says about itself. `cursor` is None only when read from schema 1."""

    world_size: int
    ep_degree: int
    optimizer_step: int
    policy_version: int
    collection: int  # collections trained on
    lr: float | None  # of the next optimizer step
    consumed: int | None  # the oldest behaviour version trained on last
    cursor: Mapping[str, Any] | None
    lock_sha256: str | None
    files: tuple[FileEntry, ...] = field(default=())
    schema: int = SCHEMA

    def as_json(self) -> dict[str, Any]:
        """The object that the file holds, without its own digest."""
        return {**asdict(self), "files": [asdict(entry) for entry in self.files]}


@dataclass(frozen=True, slots=True)
class Shape:
    """What the run that wants to load has. lock_sha256 None leaves the lock unchecked."""

    world_size: int
    ep_degree: int
    lock_sha256: str | None = None


def lock_digest() -> str:
    """The hash of this program's runtime lock."""
    from .runtime import lock_hash

    return lock_hash()


def file_entries(folder: Path) -> tuple[FileEntry, ...]:
    """Size and hash of every file below a folder but the manifest, sorted by path."""
    entries = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in _OWN:
            entries.append(FileEntry(name, path.stat().st_size, _sha256(path)))
    return tuple(entries)


def write(folder: Path, manifest: Manifest) -> Path:
    """Write the manifest into its folder: temporary file, flush to the disk, rename."""
    text = json.dumps({**manifest.as_json(), "digest": _digest(manifest.as_json())}, indent=1)
    target = folder / NAME
    write_atomic(target, text + "\n")
    return target


def write_atomic(target: Path, text: str) -> None:
    """Put `text` into a file so that a reader sees the old or the new content, never a part."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's own entries to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(folder: Path) -> Manifest:
    """The manifest of a checkpoint folder, checked for its own form only.

    Raises CheckpointError that names the file, the key and the value.
    """
    path = folder / NAME
    data = _load(path)
    try:
        schema = data.get("schema")
        if type(schema) is not int or schema not in (1, SCHEMA):
            raise CheckpointError(f"schema: {schema!r}: this version reads schemas 1 and {SCHEMA}")
        return _schema_1(data) if schema == 1 else _schema_2(data)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {_printable(error)}") from None


def _load(path: Path) -> dict[str, Any]:
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise CheckpointError(f"{path}: not a plain file")
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise CheckpointError(
            f"{path}: no manifest, so the checkpoint was never finished"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {_one_line(error)}") from None
    try:
        data = json.loads(text, object_pairs_hook=_no_twice)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: torn or damaged: {_printable(_one_line(error))[:200]}; resume an older"
            " checkpoint"
        ) from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: holds {type(data).__name__}, not an object")
    return data


def check(folder: Path, shape: Shape, *, hashes: bool = True) -> Manifest:
    """Everything that must hold before a native load; gives the manifest.

    Raises CheckpointError for another world size, EP degree or lock, a missing, changed or unlisted
    file. hashes=False compares sizes only, for ranks that need not read all files again.
    """
    manifest = read(folder)
    path = folder / NAME
    for name, has, wants in (
        ("world_size", manifest.world_size, shape.world_size),
        ("ep_degree", manifest.ep_degree, shape.ep_degree),
    ):
        if has != wants:
            raise CheckpointError(
                f"{path}: {name}: {has}: this run has {wants}; topology changes on restore are not"
                " supported, so resume with the old value or start from the HF export"
            )
    if (
        shape.lock_sha256 is not None
        and manifest.lock_sha256 is not None
        and manifest.lock_sha256 != shape.lock_sha256
    ):
        raise CheckpointError(
            f"{path}: lock_sha256: {manifest.lock_sha256[:12]}: the runtime lock here is"
            f" {shape.lock_sha256[:12]}; resume with the lock that wrote it"
        )
    try:
        _check_files(folder, manifest, hashes)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read: {_one_line(error)}") from None
    return manifest


def _check_files(folder: Path, manifest: Manifest, hashes: bool) -> None:
    listed = {entry.path for entry in manifest.files}
    present = sorted(folder.rglob("*"))
    for path in present:
        if path.is_symlink():
            raise CheckpointError(f"{path}: a link; a checkpoint holds all of its files itself")
    for entry in manifest.files:
        path = folder / entry.path
        if not path.is_file():
            raise CheckpointError(f"{path}: missing, though the manifest lists it")
        if (size := path.stat().st_size) != entry.bytes:
            raise CheckpointError(f"{path}: {size} bytes, the manifest says {entry.bytes}")
        if hashes and (found := _sha256(path)) != entry.sha256:
            raise CheckpointError(
                f"{path}: sha256 {found[:12]}, the manifest says {entry.sha256[:12]}"
            )
    if manifest.schema == 1:  # lists no files
        for rank in range(manifest.world_size):
            if not (folder / rank_file(rank)).is_file():
                raise CheckpointError(f"{folder / rank_file(rank)}: missing")
        if odd := [path for path in (folder / "train").glob("rank*") if path.name != "rank0.pt"]:
            raise CheckpointError(f"{odd[0]}: the manifest says that there was one rank")
        return
    for path in present:
        name = path.relative_to(folder).as_posix()
        if not path.is_dir() and name not in listed and name not in _OWN:
            raise CheckpointError(
                f"{path}: not in the manifest, and Core might read it; remove it if it is yours"
            )


def migrate(folder: Path, *, ep_degree: int, cursor: Mapping[str, Any], lock: str) -> Manifest:
    """Turn a schema-1 checkpoint into schema 2 with what schema 1 never recorded.

    ep_degree and cursor are the caller's word; sizes and hashes are those of the files as they are
    now. The old manifest stays as `manifest.schema1.json`. CheckpointError for anything else.
    """
    path = folder / NAME
    data = _load(path)
    if data.get("schema") != 1:
        raise CheckpointError(f"{path}: schema: {data.get('schema')!r}: only schema 1 is migrated")
    try:
        world = _whole(data, "world_size", 1)
        step, collection = _whole(data, "optimizer_step", 0), _whole(data, "collection", 0)
        check_cursor(cursor)
        manifest = Manifest(
            world_size=world,
            ep_degree=ep_degree,
            optimizer_step=step,
            policy_version=step,
            collection=collection,
            lr=None,
            consumed=None,
            cursor=dict(cursor),
            lock_sha256=lock,
            files=file_entries(folder),
        )
        _schema_2({**manifest.as_json(), "digest": _digest(manifest.as_json())})
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    write_atomic(folder / KEPT, path.read_text(encoding="utf-8"))
    write(folder, manifest)
    return manifest


def main(argv: Sequence[str]) -> int:
    """`python -m capture.core verify-checkpoint DIR`."""
    from .checkpointcli import main as cli

    return cli(argv)


def rank_file(rank: int) -> str:
    """Where Core keeps the train state of a rank, below the checkpoint."""
    return f"train/rank{rank}.pt"


def _schema_1(data: Mapping[str, Any]) -> Manifest:
    world = _whole(data, "world_size", 1)
    if world > 1:
        raise CheckpointError(
            f"schema: 1: made by {world} ranks, and schema 1 records neither the EP degree nor the"
            " committed cursor; migrate it explicitly: say both with"
            " `python -m capture.core verify-checkpoint DIR --migrate --ep-degree N --cursor FILE`,"
            " or start again from its HF export"
        )
    step = _whole(data, "optimizer_step", 0)
    return Manifest(
        world_size=1,
        ep_degree=1,  # nothing else is possible on one rank
        optimizer_step=step,
        policy_version=step,
        collection=_whole(data, "collection", 0),
        lr=None,
        consumed=None,
        cursor=None,
        lock_sha256=None,
        schema=1,
    )


def _schema_2(data: dict[str, Any]) -> Manifest:
    digest = data.pop("digest", None)
    names = set(Manifest.__dataclass_fields__)
    if odd := sorted(names ^ set(data)):
        what = "missing" if odd[0] in names else "no such key"
        raise CheckpointError(f"{odd[0][:60]}: {what}")
    world = _whole(data, "world_size", 1)
    ep_degree = _whole(data, "ep_degree", 1)
    if world % ep_degree:
        raise CheckpointError(f"ep_degree: {ep_degree}: does not divide the {world} ranks")
    step = _whole(data, "optimizer_step", 0)
    if (version := _whole(data, "policy_version", 0)) != step:
        raise CheckpointError(
            f"policy_version: {version}: not the weights of {step} optimizer steps"
        )
    lr, consumed = data["lr"], data["consumed"]
    if lr is not None and not (type(lr) in (int, float) and 0 <= lr <= _LARGEST_LR):
        raise CheckpointError(f"lr: {str(lr)[:60]}: not a learning rate")
    if consumed is not None and _whole(data, "consumed", 0) > step:
        raise CheckpointError(f"consumed: {consumed}: newer than the {step} optimizer steps")
    check_cursor(data["cursor"])
    if (collection := _whole(data, "collection", 0)) != data["cursor"]["collection"]:
        raise CheckpointError(
            f"collection: {collection}: the cursor stands at {data['cursor']['collection']}"
        )
    _hex(data["lock_sha256"], "lock_sha256")
    files = _files(data["files"], world)
    if digest != (own := _digest(data)):
        raise CheckpointError(
            f"digest: {str(digest)[:12]}: the other keys make {own[:12]}, so it was changed after"
            " it was written; resume an older checkpoint"
        )
    return Manifest(**{**data, "files": files})


def _files(items: Any, world: int) -> tuple[FileEntry, ...]:
    if not isinstance(items, list):
        raise CheckpointError(f"files: {str(items)[:60]}: not a list")
    entries = []
    for place, item in enumerate(items):
        where = f"files[{place}]"
        if not isinstance(item, dict) or set(item) != {"path", "bytes", "sha256"}:
            raise CheckpointError(f"{where}: {str(item)[:60]}: not path, bytes and sha256")
        path = item["path"]
        pure = PurePosixPath(path) if isinstance(path, str) and path.isprintable() else None
        if pure is None or pure.is_absolute() or ".." in pure.parts or str(pure) != path:
            raise CheckpointError(f"{where}.path: {path!r}: not a path in the checkpoint")
        if path in (".", *_OWN):
            raise CheckpointError(f"{where}.path: {path!r}: not a file of Core")
        _whole(item, "bytes", 0, f"{where}.")
        _hex(item["sha256"], f"{where}.sha256")
        entries.append(FileEntry(**item))
    paths = [entry.path for entry in entries]
    if len(set(paths)) != len(paths):
        raise CheckpointError(f"files: {next(p for p in paths if paths.count(p) > 1)}: twice")
    for rank in range(min(world, len(paths) + 1)):  # world may be any number
        if rank_file(rank) not in paths:
            raise CheckpointError(f"files: {rank_file(rank)}: missing for rank {rank} of {world}")
    if odd := [p for p in paths if p.startswith("train/rank") and p not in _ranks(world)]:
        raise CheckpointError(f"files: {odd[0]}: there are {world} ranks")
    if not any(path.startswith(f"{WEIGHTS}/") for path in paths):
        raise CheckpointError(f"files: {WEIGHTS}: missing, so there are no weights to load")
    return tuple(entries)


def _ranks(world: int) -> set[str]:
    return {rank_file(rank) for rank in range(world)}


def _whole(data: Mapping[str, Any], key: str, least: int, prefix: str = "") -> int:
    value = data.get(key)
    if type(value) is not int or value < least:
        raise CheckpointError(f"{prefix}{key}: {repr(value)[:60]}: not a whole number from {least}")
    return value


def _hex(value: Any, key: str) -> None:
    if not (isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")):
        raise CheckpointError(f"{key}: {str(value)[:70]!r}: not a sha256")


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError(f"a key stands twice in {sorted(key for key, _ in pairs)}")
    return result


def _digest(data: Mapping[str, Any]) -> str:
    plain = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _one_line(what: object) -> str:
    return " ".join(str(what).split())


def _printable(what: object) -> str:
    """A text with control characters escaped: a manifest may hold anything."""
    text = str(what)
    return text if text.isprintable() else repr(text)[1:-1]
