"""The record of a finding: what was measured, with which versions, and how near a rerun must come.

Standard library only, so that figures read it without torch. A value has one of four rules:

    exact      a rerun gives the same
    close      within `tolerance` of the recorded value, relative
    rounding   not above `tolerance`, absolute: the value itself is rounding and differs by machine
    time       seconds or a share of them: never compared
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
SCHEMA = 1
RULES = ("exact", "close", "rounding", "time")
OUTCOMES = ("reproduced", "differs", "not reproduced", "new")
"""differs: it was seen, with another figure than the notes have; new: the notes do not have it."""


class RecordError(ValueError):
    """A record that is missing, damaged, or holds what a record may not hold."""


@dataclass(frozen=True, slots=True)
class Value:
    """One number, truth, word or row of them.

    unit: "1" for a plain ratio, otherwise nats, tokens, steps, s, bytes or what is counted.
    """

    value: Any
    unit: str
    what: str
    rule: str = "close"
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise RecordError(f"rule {self.rule!r} is none of {', '.join(RULES)}")
        for item in _items(self.value):
            if isinstance(item, bool | str) or item is None:
                if self.rule in ("close", "rounding"):
                    raise RecordError(f"{self.what}: {item!r} can only be exact")
            elif not (isinstance(item, int | float) and math.isfinite(item)):
                raise RecordError(f"{self.what}: {item!r} is no finite number, truth or word")

    def differs(self, found: Value) -> str | None:
        """Why `found` is not this value, by this value's rule; None where it is."""
        if (self.rule, self.unit) != (found.rule, found.unit):
            return f"recorded as {self.rule} in {self.unit}, now {found.rule} in {found.unit}"
        if self.rule == "time":
            return None
        ours, theirs = list(_items(self.value)), list(_items(found.value))
        if len(ours) != len(theirs):
            return f"{len(ours)} values recorded, {len(theirs)} found"
        for one, other in zip(ours, theirs, strict=True):
            if self.rule == "exact":
                same = type(one) is type(other) and one == other
            elif self.rule == "close":
                same = abs(other - one) <= self.tolerance * abs(one)
            else:
                same = abs(other) <= self.tolerance
            if not same:
                limit = "" if self.rule == "exact" else f", {self.rule} {self.tolerance:g}"
                return f"recorded {one!r}, found {other!r}{limit}"
        return None


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. claim: a sentence whose {names} are keys of `values`.

    row: its number in the table of findings of the trainer's notes, or None. noted: what the notes
    have. notes: limits that a page must say, as sentences.
    """

    name: str
    claim: str
    outcome: str
    values: Mapping[str, Value]
    row: int | None = None
    noted: str = ""
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise RecordError(
                f"{self.name}: outcome {self.outcome!r} is none of {', '.join(OUTCOMES)}"
            )
        if not self.values:
            raise RecordError(f"{self.name}: no value")

    def __getitem__(self, name: str) -> Any:
        """The value of this name, without unit and rule."""
        return self.values[name].value

    @property
    def program(self) -> str:
        """The program's path in the repository."""
        return f"capture/core/findings/{self.name}.py"

    @property
    def command(self) -> str:
        """What runs it again."""
        return f"python -m capture.core.findings {self.name}"

    def differences(self, found: Finding) -> list[str]:
        """One line for each value of a rerun that is not as recorded."""
        lines = []
        if self.outcome != found.outcome:
            lines.append(f"{self.name}: outcome: recorded {self.outcome}, found {found.outcome}")
        for name in self.values.keys() ^ found.values.keys():
            where = "recorded" if name in self.values else "found"
            lines.append(f"{self.name}: {name}: only {where}")
        for name in [name for name in self.values if name in found.values]:
            problem = self.values[name].differs(found.values[name])
            if problem is not None:
                lines.append(f"{self.name}: {name}: {problem}")
        return lines


def path_of(name: str, folder: Path = FOLDER) -> Path:
    """The file of a finding's record."""
    return folder / f"{name}.json"


def read(name: str, folder: Path = FOLDER) -> Finding:
    """The stored record of a finding. RecordError names the file where it cannot be used."""
    path = path_of(name, folder)
    try:
        return parse(path.read_bytes(), name)
    except OSError as error:
        raise RecordError(f"{path.name}: {error.strerror}") from None


def parse(data: bytes | str, name: str) -> Finding:
    """A record from its text; `name` is what the file is called."""
    try:
        raw = json.loads(data)
        if raw["schema"] != SCHEMA or raw["name"] != name:
            raise RecordError(f"{name}.json: schema {raw['schema']!r} of {raw['name']!r}")
        values = {
            key: Value(
                given["value"], given["unit"], given["what"], given["rule"],
                given.get("tolerance", 0.0),
            )
            for key, given in raw["values"].items()
        }  # fmt: skip
        return Finding(
            name=name,
            claim=raw["claim"],
            outcome=raw["outcome"],
            values=values,
            row=raw["row"],
            noted=raw["noted"],
            notes=tuple(raw["notes"]),
            settings=raw["settings"],
            environment=raw["environment"],
        )
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise RecordError(f"{name}.json: {type(error).__name__}: {error}") from None


def text(finding: Finding) -> str:
    """The record as JSON, one line a value."""
    head = {
        "schema": SCHEMA,
        "name": finding.name,
        "claim": finding.claim,
        "outcome": finding.outcome,
        "row": finding.row,
        "noted": finding.noted,
        "notes": list(finding.notes),
        "program": finding.program,
        "command": finding.command,
        "environment": dict(finding.environment),
        "settings": dict(finding.settings),
    }
    lines = [f" {json.dumps(key)}: {_compact(value)}," for key, value in head.items()]
    rows = []
    for name, value in finding.values.items():
        own = {"value": value.value, "unit": value.unit, "what": value.what, "rule": value.rule}
        if value.rule in ("close", "rounding"):
            own["tolerance"] = value.tolerance
        rows.append(f"  {json.dumps(name)}: {_compact(own)}")
    return "\n".join(["{", *lines, ' "values": {', ",\n".join(rows), " }", "}", ""])


def write(finding: Finding, folder: Path = FOLDER) -> Path:
    """Store a record; the file appears whole or not at all."""
    path = path_of(finding.name, folder)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text(finding), encoding="utf-8")
    part.rename(path)
    return path


def stored(folder: Path = FOLDER) -> list[str]:
    """Names of all stored records."""
    return sorted(path.stem for path in folder.glob("*.json"))


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _items(item)
    else:
        yield value
