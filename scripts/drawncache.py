"""Keeps the drawings of one build for the next, as long as nothing that they come from changed.

A drawing is the slow part of a page. The cache is one file below build/, valid for one fingerprint
of the code that draws, the evidence that it reads and the library versions: a changed chapter
leaves it valid, a changed figure or run does not. `make check` draws everything anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
from collections.abc import Iterator, MutableMapping
from importlib import metadata
from pathlib import Path

FILE = Path("build/drawings.json")
FOLDERS = ("figures", "capture", "manuals/data")
FILES = ("manuals/sources.toml",)
LIBRARIES = ("matplotlib", "numpy")
_SKIPPED = {"__pycache__", ".hypothesis"}

Drawings = MutableMapping[tuple, str]


def fingerprint(root: Path) -> str:
    """Hash of everything that a drawing can depend on."""
    digest = hashlib.sha256(platform.python_version().encode())
    for name in LIBRARIES:
        digest.update(f"{name} {metadata.version(name)}\n".encode())
    paths = [root / name for name in FILES]
    for folder in FOLDERS:
        paths += (path for path in (root / folder).rglob("*") if path.is_file())
    for path in sorted(paths):
        relative = path.relative_to(root)
        if path.is_file() and not _SKIPPED.intersection(relative.parts):
            digest.update(f"{relative.as_posix()}\n".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def load(path: Path, wanted: str) -> dict[tuple, str]:
    """The drawings of a cache file that has this fingerprint; none for any other file."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["fingerprint"] != wanted:
            return {}
        return {
            (i, narrow, data, tuple(v)): drawn for (i, narrow, data, v), drawn in stored["drawn"]
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def save(path: Path, wanted: str, drawn: Drawings) -> None:
    """Write the drawings; a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    stored = {"fingerprint": wanted, "drawn": [[list(key), text] for key, text in drawn.items()]}
    partial.write_text(json.dumps(stored), encoding="utf-8")
    partial.replace(path)


@contextlib.contextmanager
def kept(root: Path, drawn: Drawings) -> Iterator[None]:
    """Inside the block `drawn` holds what an earlier build drew; new drawings are kept after it."""
    path, wanted = root / FILE, fingerprint(root)
    before = load(path, wanted)
    drawn.update(before)
    yield
    if set(drawn) != set(before):
        save(path, wanted, drawn)
