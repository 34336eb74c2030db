"""Reads a run file: TOML to `RunConfig`, with one-line errors that name file, key and value."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from . import support
from .config import RunConfig
from .errors import ConfigError

_LONGEST = 80  # characters of a value in a message
_REASONS = {"extra_forbidden": "no such key", "model_type": "should be a table"}


def load(path: Path | str, changes: Mapping[str, Any] | None = None) -> RunConfig:
    """The settings of a run file that the support matrix accepts; else RefusedError. See `read`."""
    config = read(path, changes)
    support.evaluate(config)
    return config


def read(path: Path | str, changes: Mapping[str, Any] | None = None) -> RunConfig:
    """The settings of a run file; `changes` are dotted keys that replace its values.

    Raises ConfigError for a file, a key or a value that is wrong.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {one_line(error)}") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {one_line(error)}") from None
    return validate(with_changes(data, changes or {}, str(path)), str(path), text)


def parse(data: Mapping[str, Any], where: str = "run") -> RunConfig:
    """The settings of a mapping that the support matrix accepts; errors as those of `load`."""
    config = validate(data, where)
    support.evaluate(config)
    return config


def validate(data: Mapping[str, Any], where: str = "run", text: str = "") -> RunConfig:
    """The settings of a mapping; `where` and `text` are what the message of an error points at."""
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(message(error, where, text)) from None


def with_changes(
    data: Mapping[str, Any], changes: Mapping[str, Any], where: str = "run"
) -> dict[str, Any]:
    """A copy of `data` in which the dotted keys of `changes` have new values; None removes one."""
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in data.items()}
    for dotted, value in changes.items():
        table, _, key = dotted.rpartition(".")
        target = result.setdefault(table, {}) if table else result
        if not isinstance(target, dict):
            raise ConfigError(f"{where}: {table}: {shown(target)}: is a value, not a table")
        if value is None:
            target.pop(key, None)
        else:
            target[key] = value
    return result


def change(text: str) -> tuple[str, Any]:
    """`section.key=value` of the command line; the value is TOML, or else a string."""
    dotted, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)?", dotted.strip()):
        raise ConfigError(f"--set {one_line(text)}: not of the form section.key=value")
    if not text.isprintable():  # a line break would start another key, which nobody reads
        raise ConfigError(f"--set {shown(text)}: holds a control character")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    return dotted.strip(), parsed


def message(error: ValidationError, where: str, text: str) -> str:
    """The first problem of a validation, and how many more there are."""
    problems = error.errors(include_url=False)
    first = problems[0]
    keys = [str(part) for part in first["loc"] if part in _names(first["loc"])]
    line = line_of(text, keys)
    place = f"{where}:{line}" if line else where
    reason = _REASONS.get(first["type"]) or one_line(first["msg"]).removeprefix("Input ")
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{place}: {'.'.join(keys)}: {shown(first['input'])}: {reason}{more}"


def _names(loc: tuple[Any, ...]) -> set[Any]:
    """The parts of a location that are keys of the file, without Pydantic's names of unions."""
    return set(loc[:2])


def line_of(text: str, keys: list[str]) -> int | None:
    """The line of a key in a TOML text, or None where it is written in a form not looked for."""
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\s*([\w.-]+)\s*\]", line):
            table = header[1].split(".")
            if table == keys:
                return number
        elif (found := re.match(r"\s*([\w.-]+)\s*=", line)) and [
            *table,
            *found[1].split("."),
        ] == keys:
            return number
    return None


def one_line(what: object) -> str:
    """A text on one line."""
    return " ".join(str(what).split())


def shown(value: object) -> str:
    """A value as a message shows it: on one line, cut, and control characters escaped."""
    text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
