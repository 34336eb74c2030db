"""The training contract: one JSON line per optimizer step and rank; its writer and its reader.

Files are `training_contract_rankN.jsonl` beneath `miles.save`. Needs pydantic and numpy, not torch.
The schema is `contractschema`'s; what records must fulfil beyond their shape is `verify`'s.
"""

from __future__ import annotations

import errno
import gzip
import json
import lzma
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedReader
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
    """One line of a file: a record, or what is wrong with it, or both where only the digest is.

    number: from 1. problem: one sentence, or None. notes: keys that this schema does not know.
    sealed: whether the line carries a digest, and it is right. A record with a problem shows
    which fields were changed; nothing else may be done with it.
    """

    number: int
    record: TrainingRecord | None = None
    problem: str | None = None
    check: str = "record"
    notes: list[str] = field(default_factory=list)
    sealed: bool = False


def read(path: str | Path) -> Iterator[Line]:
    """Yield every line of a file, bad ones too, without holding the file. Blank lines are skipped.

    Reads plain text, gzip and xz, whatever the name says. Raises OSError, with the file's name,
    when it cannot be opened or decompressed.
    """
    number = 0
    try:
        with Path(path).open("rb") as file, _decompressed(file) as stream:
            while raw := stream.readline(LONGEST_LINE + 1):
                number += 1
                if len(raw) > LONGEST_LINE:
                    yield Line(number, problem=f"longer than {LONGEST_LINE} bytes")
                    return
                if raw.strip():
                    yield parse_line(raw, number)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        if getattr(error, "filename", None):
            raise
        raise OSError(errno.EIO, f"{error} (after line {number})", str(path)) from None


def _decompressed(file: BufferedReader) -> BinaryIO:
    head = file.peek(6)
    if head.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    if head.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMAFile(file)
    return file


def parse_line(raw: bytes, number: int = 1) -> Line:
    """Parse one line of bytes, its newline included; a line without one was cut while written."""
    if not raw.endswith(b"\n"):
        return Line(number, problem=_cut(raw), check="truncated")
    if raw.startswith(b"\xef\xbb\xbf"):
        return Line(
            number,
            problem="begins with a byte order mark: save the file as UTF-8 without one",
            check="json",
        )
    try:
        document = json.loads(
            raw.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_once
        )
    except UnicodeDecodeError as error:
        return Line(number, problem=f"byte {error.start} is not UTF-8", check="json")
    except (ValueError, RecursionError) as error:
        text = str(error) or type(error).__name__
        if "integer string conversion" in text:
            text = "a number of thousands of digits"
        return Line(number, problem=f"not JSON: {text}", check="json")
    if not isinstance(document, dict):
        return Line(
            number,
            problem=f"holds a {type(document).__name__}, no object; one record stands on a line",
            check="json",
        )
    try:
        return from_document(document, number)
    except RecursionError:
        return Line(number, problem="nested too deeply", check="json")


def from_document(document: dict, number: int = 1) -> Line:
    """Check a parsed object against the schema and its digest. Unknown keys become notes."""
    seal = document.get("digest")
    if document.get("schema") != SCHEMA or isinstance(document.get("schema"), bool):
        return Line(number, problem=_other_schema(document), check="schema")
    broken = None
    if seal is not None and seal != digest(document):
        broken = f"{_shown(seal)} is not that of the record, {digest(document)!r}"
    bare = {key: value for key, value in document.items() if key != "digest"}
    notes: list[str] = []
    try:
        record = _validated(bare, notes)
    except ValidationError as error:
        problem = _one_error(error) + ("; the digest does not fit either" if broken else "")
        return Line(number, problem=problem, check="schema", notes=notes)
    if broken:
        return Line(number, record, problem=broken, check="digest", notes=notes)
    return Line(number, record, notes=notes, sealed=seal is not None)


def _cut(raw: bytes) -> str:
    if not raw.strip(b"\0"):
        return f"{len(raw)} zero bytes: the disk lost what was written here"
    if b"\r" in raw:
        return "lines end in a carriage return alone: a newline must end them"
    return f"ends after {len(raw)} bytes without a newline: cut while it was written"


def _other_schema(document: dict) -> str:
    wanted = [
        info.alias or name
        for name, info in TrainingRecord.model_fields.items()
        if info.is_required()
    ]
    shown = _shown(document["schema"]) if "schema" in document else "missing"
    has = [name for name in wanted if name in document]
    which = "all" if len(has) == len(wanted) else ", ".join(has) or "none"
    return (
        f"schema: {shown}, this program reads {SCHEMA}; of the {len(wanted)} fields that it needs"
        f" the line has {which}"
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


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
    text = f"{_place(row['loc']) or 'a key'}: {row['msg']}"
    if row["type"] != "missing":
        text += f", not {_shown(row['input'])}"
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
                if line.problem is not None:
                    raise ContractError(
                        "contract-file",
                        f"{self.path}:{number}: {line.check}: {line.problem};"
                        " a run cannot go on from it",
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
