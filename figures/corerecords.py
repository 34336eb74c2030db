"""Measurements of the OLMo-core trainer on a GPU that are no run of it: experiments, comparisons.

`Measurement("h200-core/gap").lines("gap.jsonl")` gives the stored JSON lines, and notes the read;
`scripts.core_records` stores and checks them. Its times may be shown, unless it says that the GPU
was shared.
"""

from __future__ import annotations

import functools
import json
import lzma
from pathlib import PurePosixPath
from typing import Any

from figures import evidence
from figures.evidence import STORE, Access, EvidenceError

FILE = "record.toml"


def folder_of(run_id: str) -> PurePosixPath:
    """The folder of the measurement 'LAB/NAME'."""
    lab, _, name = run_id.partition("/")
    return STORE / f"out-{lab}" / name


def is_record(run_id: str) -> bool:
    """Whether 'LAB/NAME' is a stored measurement."""
    try:
        evidence.read(folder_of(run_id) / FILE)
    except EvidenceError:
        return False
    return True


class Measurement:
    """One stored measurement, as `strength` and `registry` see a run."""

    on_gpu = True
    changed: tuple[str, ...] = ()
    seed = None

    def __init__(self, run_id: str) -> None:
        self.id = run_id
        self.lab, _, self.name = run_id.partition("/")
        self.folder = folder_of(run_id)
        path = self.folder / FILE
        self.toml = evidence.parse_toml(str(path), evidence.read(path))

    @property
    def setup(self) -> dict[str, Any]:
        """The setup fingerprint of record.toml."""
        return self.toml.get("setup", {})

    @property
    def shared(self) -> bool:
        """True when other work used the GPU, or when nothing is said about it."""
        return bool(self.setup.get("shared", True))

    @property
    def clock_known(self) -> bool:
        """True when GPU clock samples over it are stored."""
        return bool(self.setup.get("clock_record"))

    @property
    def recompute(self) -> str:
        """The folder whose files are checked again."""
        return str(self.folder)

    def clean_steps(self) -> None:
        """No heat guard was there."""
        return None

    def lines(self, file: str, *, timing: bool = False) -> list[dict[str, Any]]:
        """The objects of a file. timing: times of it are shown, which a shared GPU forbids.

        Raises EvidenceError for a file that is missing or damaged.
        """
        path = self.folder / f"{file}.xz"
        if timing and self.shared:
            raise EvidenceError(f"{path}: the GPU was shared, so no time of it is a result")
        found = _lines(str(path), evidence.read(path))
        evidence.record(Access(self.id, file, timing=timing))
        return [dict(row) for row in found]


@functools.lru_cache(maxsize=32)
def _lines(name: str, data: bytes) -> tuple[dict[str, Any], ...]:
    try:
        text = lzma.decompress(data).decode("utf-8")
        return tuple(json.loads(line) for line in text.splitlines())
    except (lzma.LZMAError, ValueError) as error:
        raise EvidenceError(f"{name}: cannot be read: {error}") from None
