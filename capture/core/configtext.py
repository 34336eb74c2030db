"""Settings as text: a run file with every field, the manual's table, and the plan of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .config import RunConfig


def toml(config: RunConfig) -> str:
    """A run file that holds every field; unset ones are commented out."""
    lines: list[str] = []
    tables: list[str] = []
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            tables += ["", f"[{name}]"]
            for key, inner in type(value).model_fields.items():
                tables.append(_line(key, getattr(value, key), inner))
        else:
            lines.append(_line(name, value, field))
    return "\n".join(lines + tables) + "\n"


def _line(key: str, value: Any, field: FieldInfo) -> str:
    if value is None:
        return f"# {key} =  # {field.description}"
    return f"{key} = {literal(value)}  # {field.description}"


def literal(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, float):
        text = repr(value)
        return text if any(mark in text for mark in ".en") else text + ".0"
    return json.dumps(value, ensure_ascii=False)  # the same as TOML for str, bool and int


def rows() -> Iterator[tuple[str, str, str, str]]:
    """(dotted key, default, choices, description) of every field, in the order of the schema."""
    yield from _rows(RunConfig, "")


def _rows(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from _rows(type(field.default), f"{prefix}{name}.")
        else:
            default = "unset" if field.default is None else literal(field.default)
            yield prefix + name, default, ", ".join(choices(field)), field.description or ""


def choices(field: FieldInfo) -> list[str]:
    """The words that a field takes, where it takes one of a list."""
    if get_origin(field.annotation) is Literal:
        return [literal(choice) for choice in get_args(field.annotation)]
    return []


def markdown() -> str:
    """Every field as the manual's table."""
    lines = ["| field | default | one of | meaning |", "| --- | --- | --- | --- |"]
    for key, default, words, text in rows():
        one_of = ", ".join(f"`{word}`" for word in words.split(", ") if word)
        lines.append(f"| `{key}` | `{default}` | {one_of} | {text} |")
    return "\n".join(lines) + "\n"


def plan(config: RunConfig) -> str:
    """What a run will do, in counts."""
    rollout, world = config.rollout, config.parallel.world_size
    packs = f"packs of {config.batch.pack_tokens} tokens" if config.pack_tokens else "no packing"
    anchor = "the training forward" if config.anchor_may_skip else "a scoring pass"
    return (
        f"{config.name}: {rollout.num_rollout} collections of {rollout.rollout_batch_size} x "
        f"{rollout.n_samples_per_prompt} samples, {config.steps_per_collection} optimizer steps "
        f"each, {config.total_steps} in all, on {world} ranks; {packs}; anchor: {anchor}"
    )
