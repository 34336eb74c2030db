"""Reading the repository: files with an in-memory overlay, and the list of tracked files."""

from __future__ import annotations

import gzip
import lzma
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
_SKIPPED = {
    ".git",
    ".venv",
    ".venv-labs",
    ".ipynb_checkpoints",
    "build",
    "site",
    "dist",
    "__pycache__",
    ".pytest_cache",
    ".ruff_cache",
    ".hypothesis",
}


@dataclass(frozen=True)
class Tree:
    """The files under `root`; `overlay` (path relative to root -> bytes) hides what is on disk."""

    root: Path
    overlay: Mapping[str, bytes] = field(default_factory=dict)

    def exists(self, path: str) -> bool:
        """True when the file or folder is there."""
        return path in self.overlay or (self.root / path).exists()

    def read(self, path: str) -> bytes:
        """The bytes of a file. OSError when there is none."""
        if path in self.overlay:
            return self.overlay[path]
        return (self.root / path).read_bytes()

    def text(self, path: str) -> str:
        """The file as UTF-8 text; `.xz` and `.gz` are unpacked; bad bytes become U+FFFD."""
        data = self.read(path)
        if path.endswith(".xz"):
            data = lzma.decompress(data)
        elif path.endswith(".gz"):
            data = gzip.decompress(data)
        return data.decode("utf-8", errors="replace")

    def chapters(self) -> list[str]:
        """Relative paths of every Markdown file under manuals/, sorted."""
        found = {
            path.relative_to(self.root).as_posix()
            for path in (self.root / "manuals").rglob("*.md")
            if path.is_file()
        }
        found |= {p for p in self.overlay if p.startswith("manuals/") and p.endswith(".md")}
        return sorted(found)


@lru_cache(maxsize=64)
def toml(text: str) -> dict[str, Any]:
    """A TOML document, parsed once; nobody changes what it gives. tomllib.TOMLDecodeError."""
    return tomllib.loads(text)


@lru_cache(maxsize=64)
def yaml_document(data: bytes | str) -> Any:
    """A YAML document, parsed once; nobody changes what it gives. yaml.YAMLError."""
    return yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def tracked_files(root: Path) -> list[str]:
    """Files that git tracks or would track, relative and sorted; without git, every file.

    Build outputs and environments are never listed.
    """
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            check=True,
        ).stdout
        names = {name.decode() for name in listed.split(b"\0") if name}
    except (OSError, subprocess.CalledProcessError):
        names = {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()}
    return sorted(
        n for n in names if not _SKIPPED.intersection(n.split("/")) and (root / n).is_file()
    )
