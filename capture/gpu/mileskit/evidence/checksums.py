"""The list of checksums of the stored evidence: one line `SHA256  PATH` a file, sorted by path.

Paths are relative to the folder of the list, so `sha256sum -c EVIDENCE.sha256` reads it there.
Listed is every file below the labs (`out-LAB/`) as it is stored, logs in their compressed form;
only `summary.json`, which is computed from them, is not. The list shows that a file changed after
it was listed, not that it was right then, and whoever changes a file can change the list.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

NAME = "EVIDENCE.sha256"
LABS = "out-"
DERIVED = frozenset({"summary.json"})

_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")


class ChecksumError(ValueError):
    """A list that cannot be read; the text names line and value."""


def is_evidence(path: str) -> bool:
    """True for the path of a file that must be listed, relative to the folder of the list."""
    parts = path.split("/")
    hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
    return len(parts) > 1 and parts[0].startswith(LABS) and not hidden and parts[-1] not in DERIVED


def parse(text: str) -> dict[str, str]:
    """Path -> checksum. Raises ChecksumError for a line of another form or a path given twice."""
    listed: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        found = _LINE.fullmatch(line)
        if not found:
            raise ChecksumError(
                f"{NAME}:{number}: not SHA256, two spaces and a path: {line[:80]!r}"
            )
        if found[2] in listed:
            raise ChecksumError(f"{NAME}:{number}: {found[2]} is listed twice")
        listed[found[2]] = found[1]
    return listed


def render(listed: dict[str, str]) -> str:
    """The list as text."""
    return "".join(f"{listed[path]}  {path}\n" for path in sorted(listed))


def checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read(root: Path) -> dict[str, str]:
    """The list of a folder, empty when it has none. Raises ChecksumError and OSError."""
    place = root / NAME
    return parse(place.read_text(encoding="utf-8")) if place.exists() else {}


def add(root: Path, paths: Iterable[Path]) -> None:
    """Put files below `root`, or change their lines, in the list of that folder.

    Folders stand for the evidence in them. Raises ChecksumError and OSError.
    """
    listed = read(root)
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            name = file.relative_to(root).as_posix()
            if file.is_file() and is_evidence(name):
                listed[name] = checksum(file.read_bytes())
    write(root / NAME, listed)


def write(place: Path, listed: dict[str, str]) -> None:
    """Write the list in one piece."""
    half = place.with_name(f".{NAME}.{os.getpid()}.half")
    try:
        half.write_text(render(listed), encoding="utf-8")
        half.replace(place)
    finally:
        half.unlink(missing_ok=True)
