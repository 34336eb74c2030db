"""The training contract: one JSON line per optimizer step and rank; its writer and its reader.

Files are `training_contract_rankN.jsonl` beneath `miles.save`. Needs pydantic and numpy, not torch.
The schema is `contractschema`'s; what records must fulfil beyond their shape is `verify`'s.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import ValidationError

from .contractschema import SCHEMA, TrainingRecord, digest
from .errors import ContractError

__all__ = [
    "ContractWriter",
    "Line",
    "TrainingRecord",
    "digest",
    "from_document",
    "parse_line",
    "path_for",
    "read",
]

LONGEST_LINE = 64 * 2**20
"""Bytes; diagnostics of a model with many parameters are the longest part of a line."""

FILE_NAME = re.compile(r"training_contract_rank(\d+)\.jsonl(?:\.gz|\.xz)?")


def path_for(save: str | Path, rank: int) -> Path:
    """Where rank's records of a run go."""
    return Path(save) / f"training_contract_rank{rank}.jsonl"


# -- reading -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Line:
    """One line of a file: a record, or what is wrong with it.

    number: from 1. problem: one sentence, or None. notes: keys that this schema does not know.
    sealed: whether the line carries a digest, and it is right.
    """

    number: int
    record: TrainingRecord | None = None
    problem: str | None = None
    check: str = "record"
    notes: list[str] = field(default_factory=list)
    sealed: bool = False


def read(path: str | Path) -> Iterator[Line]:
    """Yield every line of a file, bad ones too, without holding the file. Blank lines are skipped.

    Reads plain, .gz and .xz. Raises OSError when the file cannot be opened or decompressed.
    """
    path = Path(path)
    with _opened(path) as stream:
        number = 0
        while raw := stream.readline(LONGEST_LINE + 1):
            number += 1
            if len(raw) > LONGEST_LINE:
                yield Line(number, problem=f"longer than {LONGEST_LINE} bytes")
                return
            if not raw.strip():
                continue
            yield parse_line(raw, number)


def _opened(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    return path.open("rb")


def parse_line(raw: bytes, number: int = 1) -> Line:
    """Parse one line of bytes, its newline included; a line without one was cut while written."""
    if not raw.endswith(b"\n"):
        return Line(
            number,
            problem=f"ends after {len(raw)} bytes without a newline: cut while it was written",
            check="truncated",
        )
    try:
        document = json.loads(
            raw.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_once
        )
    except UnicodeDecodeError as error:
        return Line(number, problem=f"byte {error.start} is not UTF-8", check="json")
    except (ValueError, RecursionError) as error:
        text = str(error) or type(error).__name__
        return Line(number, problem=f"not JSON: {text}", check="json")
    if not isinstance(document, dict):
        return Line(number, problem=f"holds a {type(document).__name__}, no object", check="json")
    try:
        return from_document(document, number)
    except RecursionError:
        return Line(number, problem="nested too deeply", check="json")


def from_document(document: dict, number: int = 1) -> Line:
    """Check a parsed object against the schema and its digest. Unknown keys become notes."""
    seal = document.get("digest")
    if document.get("schema") != SCHEMA or isinstance(document.get("schema"), bool):
        shown = repr(document["schema"]) if "schema" in document else "missing"
        return Line(number, problem=f"schema: {shown}, this program reads {SCHEMA}", check="schema")
    if seal is not None and seal != digest(document):
        return Line(
            number,
            problem=f"digest: {seal!r} is not that of the record, {digest(document)!r}",
            check="digest",
        )
    bare = {key: value for key, value in document.items() if key != "digest"}
    notes: list[str] = []
    try:
        record = _validated(bare, notes)
    except ValidationError as error:
        return Line(number, problem=_one_error(error), check="schema", notes=notes)
    return Line(number, record, notes=notes, sealed=seal is not None)


def _validated(document: dict, notes: list[str]) -> TrainingRecord:
    try:
        return TrainingRecord.model_validate(document)
    except ValidationError as error:
        extra = [row["loc"] for row in error.errors() if row["type"] == "extra_forbidden"]
        if not extra:
            raise
    copy = json.loads(json.dumps(document))
    for place in extra:
        parent = copy
        for key in place[:-1]:
            parent = parent[key]
        parent.pop(place[-1], None)
        notes.append(_place(place))
    return TrainingRecord.model_validate(copy)


def _one_error(error: ValidationError) -> str:
    rows = [row for row in error.errors() if row["type"] != "extra_forbidden"]
    row = rows[0]
    text = f"{_place(row['loc'])}: {row['msg']}"
    if row["type"] != "missing":
        shown = repr(row["input"])
        text += f", not {shown if len(shown) <= 80 else shown[:77] + '...'}"
    return text + (f" (and {len(rows) - 1} more)" if len(rows) > 1 else "")


def _place(location: tuple) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _once(pairs: list[tuple[str, Any]]) -> dict:
    document = dict(pairs)
    if len(document) != len(pairs):
        twice = next(key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1)
        raise ValueError(f"key {twice!r} stands twice")
    return document


# -- writing -------------------------------------------------------------------------------------


class ContractWriter:
    """Appends the records of one rank, a whole line at a time, and never goes backwards.

    completed_step: optimizer steps that the loaded checkpoint has completed; None for a fresh run.
    A fresh run refuses a file that holds records. A resumed run moves records after that step,
    which the run will write again, and a cut last line to `<name>.superseded`; nothing is dropped.
    fsync: force every line to the disk before `write` returns.
    Raises ContractError for all of that, and OSError when the disk does not take a line.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        rank: int,
        world_size: int,
        completed_step: int | None = None,
        fsync: bool = False,
    ) -> None:
        self.path = Path(path)
        self.rank = rank
        self.world_size = world_size
        self.last_step = completed_step or 0
        self._fsync = fsync
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and self.path.stat().st_size:
            self._continue(completed_step)
        self._descriptor: int | None = os.open(
            self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644
        )

    def _continue(self, completed_step: int | None) -> None:
        if completed_step is None:
            raise ContractError(
                "contract-file",
                f"{self.path} holds records of an earlier run; resume that run, or choose another"
                " miles.save",
            )
        kept, moved, last = [], [], 0
        with self.path.open("rb") as stream:
            for number, raw in enumerate(stream, 1):
                if not raw.endswith(b"\n"):
                    moved.append(raw)
                    continue
                line = parse_line(raw, number)
                if line.record is None:
                    raise ContractError(
                        "contract-file", f"{self.path}:{number}: {line.problem}; it cannot go on"
                    )
                if line.record.step > completed_step:
                    moved.append(raw)
                else:
                    kept.append(raw)
                    last = line.record.step
        if last < completed_step:
            raise ContractError(
                "contract-file",
                f"{self.path} ends at step {last}, the checkpoint is at step {completed_step}:"
                " records are missing",
            )
        if moved:
            with self.path.with_name(self.path.name + ".superseded").open("ab") as aside:
                aside.writelines(raw if raw.endswith(b"\n") else raw + b"\n" for raw in moved)
                aside.flush()
                os.fsync(aside.fileno())
            temporary = self.path.with_name(self.path.name + ".tmp")
            with temporary.open("wb") as stream:
                stream.writelines(kept)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(self.path)

    def write(self, record: TrainingRecord) -> str:
        """Append one record and return its line, without the newline."""
        if self._descriptor is None:
            raise ContractError("contract-file", f"{self.path} is closed")
        if (record.rank, record.world_size) != (self.rank, self.world_size):
            raise ContractError(
                "contract-file",
                f"a record of rank {record.rank} of {record.world_size} in the file of rank"
                f" {self.rank} of {self.world_size}",
            )
        if record.step != self.last_step + 1:
            raise ContractError(
                "contract-step", f"step {record.step} after step {self.last_step} in {self.path}"
            )
        text = record.line()
        data = text.encode() + b"\n"
        # one write of one line with O_APPEND: a reader sees all of it or none
        written = os.write(self._descriptor, data)
        if written != len(data):
            raise OSError(f"{self.path}: {written} of {len(data)} bytes written")
        if self._fsync:
            os.fsync(self._descriptor)
        self.last_step = record.step
        return text

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> ContractWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def main(argv: list[str] | None = None) -> int:
    """`python -m capture.core contract FILE...`."""
    from .verify import main as verify_main

    return verify_main(argv)
