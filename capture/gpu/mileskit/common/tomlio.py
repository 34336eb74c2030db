"""Read and write TOML 1.0 with the standard library of Python 3.10.

`load` and `loads` use `tomllib` where Python has it (3.11 and later) and `tomlread.parse`
elsewhere; both give the same values. `dumps` writes the documents of this kit
(`run.toml`, `lab.toml`): the same dict always gives the same bytes.

Rules from outside: the TOML 1.0.0 specification, https://toml.io/en/v1.0.0.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import re
from pathlib import Path

from mileskit.common import tomlread

try:
    import tomllib
except ImportError:  # Python 3.10
    tomllib = None

LINE = 100  # arrays longer than this are written one item a line

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
    '"': '\\"',
    "\\": "\\\\",
}


class TomlError(ValueError):
    """A document that is not TOML; the text names the line where it is known."""


def loads(text: str) -> dict:
    """The document as a dict. Raises TomlError."""
    try:
        return tomllib.loads(text) if tomllib else tomlread.parse(text)
    except RecursionError:
        raise TomlError("nested too deeply") from None
    except ValueError as error:
        raise TomlError(str(error)) from None


def load(path: str | os.PathLike) -> dict:
    """The file as a dict. Raises OSError, or TomlError whose text starts with the path."""
    data = Path(path).read_bytes()
    try:
        return loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise TomlError(f"{path}: not UTF-8 at byte {error.start}") from None
    except TomlError as error:
        raise TomlError(f"{path}: {error}") from None


def dumps(document: dict) -> str:
    """The document as TOML text, in the order of the dict.

    Top-level values come first, then one table for each dict and one array of tables for
    each non-empty list of dicts; a dict inside those is written as an inline table.
    Raises ValueError for a value that TOML cannot hold (None, a lone surrogate, a tuple).
    """
    blocks = []
    plain = [_pair(k, v) for k, v in document.items() if not isinstance(v, dict) and not _tables(v)]
    if plain:
        blocks.append(plain)
    for key, value in document.items():
        if isinstance(value, dict):
            blocks.append([f"[{_key(key)}]", *(_pair(k, v) for k, v in value.items())])
        elif _tables(value):
            blocks.extend(
                [f"[[{_key(key)}]]", *(_pair(k, v) for k, v in item.items())] for item in value
            )
    return "\n\n".join("\n".join(block) for block in blocks) + ("\n" if blocks else "")


def _tables(value) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def _key(key) -> str:
    if not isinstance(key, str):
        raise ValueError(f"a TOML key is text, not {key!r}")
    return key if _BARE.fullmatch(key) else _text(key)


def _pair(key, value) -> str:
    line = f"{_key(key)} = {_value(value)}"
    if isinstance(value, list) and len(line) > LINE:
        return f"{_key(key)} = [\n" + "".join(f"    {_value(v)},\n" for v in value) + "]"
    return line


def _text(value: str) -> str:
    out = []
    for char in value:
        code = ord(char)
        if 0xD800 <= code <= 0xDFFF:
            raise ValueError(f"TOML text cannot hold the lone surrogate U+{code:04X}")
        if char in _ESCAPES:
            out.append(_ESCAPES[char])
        else:
            out.append(f"\\u{code:04X}" if code < 0x20 or code == 0x7F else char)
    return '"' + "".join(out) + '"'


def _float(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value)


def _clock(value: dt.datetime | dt.time) -> str:
    """ISO text; UTC is written `Z`. TOML has offsets of whole minutes only."""
    text = value.isoformat()
    if value.tzinfo is None:
        return text
    offset = value.utcoffset()
    if isinstance(value, dt.time) or offset is None or offset.total_seconds() % 60:
        raise ValueError(f"TOML cannot hold the time {text}")
    return text[: -len("+00:00")] + "Z" if not offset else text


def _value(value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (dt.datetime, dt.time)):
        return _clock(value)
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, list):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, dict):
        inside = ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items())
        return "{ " + inside + " }" if inside else "{}"
    raise ValueError(f"TOML cannot hold {value!r}")
