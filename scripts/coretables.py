"""Tables of the second manual that are made from the trainer's own code, none of which loads torch.

The support matrix comes from `capture/core/support.py`, the fields from `capture/core/config.py`,
the record from `capture/core/contractschema.py` and the versions from its runtime lock.
"""

from __future__ import annotations

import json
import re
import types
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from capture.core import configtext, contractschema, support
from capture.core.config import RunConfig
from capture.core.findings import record
from capture.core.supportrows import Row
from scripts.tree import Tree, toml

LOCK = "capture/core/runtime.lock.json"
RECORDED = "capture/core/recorded"
DASH = "\u2013"
OURS = "a rule of this trainer"
RUN = "run"  # the fields that stand outside of every section
_NAME = re.compile(
    r"(?<![`\w.])((?:core|miles|model|batch|rollout|engine|parallel|objective|scoring)\.\w+"
    r"|[a-z]+(?:_[a-z0-9]+)+|[\w./-]+\.py::\w+)(?![`\w])"
)


def spans(text: str) -> str:
    """`text` with the names of fields in back-ticks."""
    return _NAME.sub(r"`\1`", text)


def value_text(value: Any) -> str:
    """A setting as a run file writes it, or 'unset'."""
    return "unset" if value is None else configtext.literal(value)


# -- support matrix --------------------------------------------------------------------------------


def example(row: Row) -> str:
    """Settings that the row's test uses, or the facts of the model that it looks at."""
    parts = [f"`{key} = {value_text(value)}`" for key, value in row.example.items()]
    if row.facts is not None and not parts:
        parts = ["a model folder of that kind"]
    if not parts:
        return "found when weights or a checkpoint are read" if row.by else "the defaults"
    return ", ".join(parts)


def of_state(state: str) -> Callable[[Tree], list[list[str]]]:
    """The maker of the table of one state: what, settings, why, where the contract page says it."""

    def rows(tree: Tree) -> list[list[str]]:
        refused = state == "refused"
        made = [["what", "for example", "why it is refused" if refused else "note", "from"]]
        for row in support.ROWS:
            if row.state == state:
                name = f'<span id="support-{row.id}"></span>{spans(row.what)}'
                made.append([name, example(row), spans(row.reason), row.seed or OURS])
        return made

    return rows


def not_covered(tree: Tree) -> list[list[str]]:
    """What nobody tried here: what, why, where the contract page speaks of it."""
    made = [["what", "why nothing is known", "from"]]
    for row in support.ROWS:
        if row.state == "not-covered":
            name = f'<span id="support-{row.id}"></span>{spans(row.what)}'
            made.append([name, spans(row.reason), row.seed or OURS])
    return made


def counts(tree: Tree) -> list[list[str]]:
    """How many rows of each state the matrix has."""
    found = Counter(row.state for row in support.ROWS)
    meaning = {
        "accepted": "a test runs it",
        "refused": "a run stops before it starts, with one line",
        "not-covered": "nobody tried it here",
    }
    return [
        ["state", "rows", "what the state means"],
        *([state.replace("-", " "), str(found[state]), meaning[state]] for state in meaning),
    ]


# -- fields ----------------------------------------------------------------------------------------


def sections() -> dict[str, type[BaseModel]]:
    """Section name -> its model, in the order of the schema; `run` is the top level."""
    found: dict[str, type[BaseModel]] = {RUN: RunConfig}
    for name, field in RunConfig.model_fields.items():
        if isinstance(field.default, BaseModel):
            found[name] = type(field.default)
    return found


def allowed(field: FieldInfo) -> str:
    """Which values a field takes, in words."""
    kinds, limits, optional = _flat(field.annotation)
    limits += field.metadata
    if any(get_origin(kind) is Literal for kind in kinds):
        words = [f"`{value_text(word)}`" for kind in kinds for word in get_args(kind)]
        return _or(words, optional)
    if kinds == [bool]:
        return _or(["`true`", "`false`"], optional)
    if kinds == [str]:
        return _or(["a text"], optional)
    bound = {key: getattr(limit, key) for limit in limits for key in _BOUNDS if hasattr(limit, key)}
    words = "a whole number" if kinds == [int] else "a number"
    said = [f"{how} {bound[key]:g}" for key, how in _BOUNDS.items() if bound.get(key) is not None]
    return _or([f"{words} {' and '.join(said)}".strip()], optional)


_BOUNDS = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}


def _flat(annotation: Any) -> tuple[list[Any], list[Any], bool]:
    """(types, their limits, may it be unset) of an annotation."""
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [_flat(part) for part in get_args(annotation) if part is not type(None)]
        limits = [limit for _, found, _ in parts for limit in found]
        return [kind for kinds, _, _ in parts for kind in kinds], limits, True
    if hasattr(annotation, "__metadata__"):
        limits = []
        for part in annotation.__metadata__:
            limits += part.metadata if isinstance(part, FieldInfo) else [part]
        return [annotation.__origin__], limits, False
    return [annotation], [], False


def _or(words: list[str], optional: bool) -> str:
    return ", ".join(words) + (", or unset" if optional else "")


def fields_of(section: str) -> Callable[[Tree], list[list[str]]]:
    """The maker of the table of one section: field, default, allowed values, meaning."""

    def rows(tree: Tree) -> list[list[str]]:
        made = [["field", "default", "allowed", "meaning"]]
        for name, field in sections()[section].model_fields.items():
            if isinstance(field.default, BaseModel):
                continue
            default = field.default
            made.append(
                [
                    f'<span id="field-{section}-{name}"></span>`{name}`',
                    f"`{value_text(default)}`" if default is not None else "unset",
                    allowed(field),
                    spans(field.description or ""),
                ]
            )
        return made

    return rows


# -- contract record -------------------------------------------------------------------------------


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """(dotted key, field) of a record: parts are opened, repeated shapes are not."""
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        part = _part(field)
        if part is None or part in _SHAPES:
            yield key, field
        else:
            yield from leaves(part, f"{key}.")


_SHAPES = (
    contractschema.AuxiliaryTerm,
    contractschema.ProbabilityError,
    contractschema.Diagnostics,
    contractschema.Segment,
    contractschema.UpdateSample,
    contractschema.Upper,
)


def _part(field: FieldInfo) -> type[BaseModel] | None:
    found = [kind for kind in _flat(field.annotation)[0] for kind in (kind, *get_args(kind))]
    models = [kind for kind in found if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return models[0] if models else None


_ELSEWHERE = {
    contractschema.ProbabilityError: "probability errors of the step, all ranks: its own table",
    contractschema.Diagnostics: "local probes, absent when not due: their own table",
    contractschema.Upper: "upper bounds of quantiles, by name `p50`, `p95`, `p99`",
    contractschema.Segment: "one segment of tokens",
}


def record_of(model: type[BaseModel]) -> Callable[[Tree], list[list[str]]]:
    """The maker of the table of a part of the record: key, value, meaning."""

    def rows(tree: Tree) -> list[list[str]]:
        made = [["key", "value", "meaning"]]
        for key, field in leaves(model):
            text = field.description or _ELSEWHERE.get(_part(field), "")
            made.append([f"`{key}`", _json_kind(field), spans(text)])
        return made

    return rows


def _json_kind(field: FieldInfo) -> str:
    part = _part(field)
    kinds, _, optional = _flat(field.annotation)
    origin = get_origin(kinds[0])
    if part is not None:
        return "list of objects" if origin is list else "object"
    if origin in (list, dict):
        return "list" if origin is list else "object"
    if origin is Literal:
        return ", ".join(f"`{json.dumps(word)}`" for word in get_args(kinds[0]))
    word = {int: "whole number", float: "number", str: "text", bool: "true or false"}[kinds[0]]
    return f"{word} or null" if optional else word


# -- runtime lock ----------------------------------------------------------------------------------


def locked_packages(tree: Tree) -> list[list[str]]:
    """Packages that a run compares with the lock: name and version."""
    lock = json.loads(tree.text(LOCK))
    rows = [["package", "version"]]
    rows += [[f"`{name}`", f"`{entry['version']}`"] for name, entry in lock["packages"].items()]
    return rows


# -- lab notes -------------------------------------------------------------------------------------


def recorded_runs(tree: Tree) -> list[list[str]]:
    """The recorded runs on a processor: folder, what it is, software, date, commit."""
    rows = [["folder", "what was run", "software", "date", "commit"]]
    for path in sorted(tree.root.glob(f"{RECORDED}/*/recorded.toml")):
        made = toml(tree.text(path.relative_to(tree.root).as_posix()))
        name = f"`{path.parent.name}`"
        rows.append([name, made["what"], made["software"], made["date"], f"`{made['commit'][:9]}`"])
    return rows


def findings(tree: Tree) -> list[list[str]]:
    """The findings: name, the note behind it and what came of it, stand-ins, and limits."""
    rows = [["finding", "what the notes had", "outcome", "functions with a stand-in", "limits"]]
    for name in record.stored(tree.root / "capture/core/findings"):
        found = record.read(name, tree.root / "capture/core/findings")
        count = str(found.environment.get("stand_ins") or "none")
        noted = found.noted or DASH
        rows.append([f"`{name}`", noted, found.outcome, count, " ".join(found.notes) or DASH])
    return rows


TABLES: dict[str, Callable[[Tree], list[list[str]]]] = {
    "core-support-counts": counts,
    "core-support-accepted": of_state("accepted"),
    "core-support-refused": of_state("refused"),
    "core-support-not-covered": not_covered,
    **{f"core-fields-{name}": fields_of(name) for name in sections()},
    "core-record": record_of(contractschema.TrainingRecord),
    "core-record-auxiliary": record_of(contractschema.AuxiliaryTerm),
    "core-record-segment": record_of(contractschema.LengthSegment),
    "core-record-diagnostics": record_of(contractschema.Diagnostics),
    "core-record-update": record_of(contractschema.UpdateSample),
    "core-packages": locked_packages,
    "core-recorded-runs": recorded_runs,
    "core-findings": findings,
}
