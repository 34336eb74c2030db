"""The ``{'key': number, ...}`` part of a metrics line."""

from __future__ import annotations

import json
import re

_WRAPPED = re.compile(r"\b(?:np|numpy|torch)\.\w+\((-?[\w.+-]+)(?:, *[\w=.' ]+)*\)")
_TENSOR = re.compile(r"\btensor\((-?[\w.+-]+)(?:, *[\w=.': ]+)*\)")
_NONFINITE = re.compile(r"(?<=[:\[,] )(-?)(nan|inf)\b")
_PAIR = re.compile(
    r"""(['"])((?:(?!\1).){1,200})\1: ?"""
    r"(?:(?:np|numpy)\.\w+\(|tensor\()?"
    r"(-?(?:nan|inf|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?))(?=[\s,})])"
)
_PLAIN = {int, float}
_WORD = {"nan": "NaN", "inf": "Infinity"}


def _numbers(found: dict) -> dict:
    """Only the int and float values (booleans as 0 and 1)."""
    if set(map(type, found.values())) <= _PLAIN:
        return found
    out = {}
    for key, value in found.items():
        kind = type(value)
        if kind is float or kind is int:
            out[key] = value
        elif kind is bool:
            out[key] = int(value)
    return out


def parse_dict(raw: bytes) -> dict | None:
    """Numbers of a printed Python dict of text keys, or None when it is not a whole dict.

    NaN and infinities, numpy scalars and zero-dimensional tensors are read; other objects are
    left out.  Duplicate keys: the last one.
    """
    raw = raw.strip()
    if not (raw.startswith(b"{") and raw.endswith(b"}")):
        return None
    text = raw.decode("utf-8", "replace")
    if '"' not in text and "\\" not in text:
        as_json = text.replace("'", '"')
        try:
            return _numbers(json.loads(as_json))
        except (ValueError, RecursionError):
            pass
        as_json = _TENSOR.sub(r"\1", _WRAPPED.sub(r"\1", as_json))
        as_json = _NONFINITE.sub(lambda m: m.group(1) + _WORD[m.group(2)], as_json)
        as_json = as_json.replace(": True", ": true").replace(": False", ": false")
        as_json = as_json.replace(": None", ": null")
        try:
            return _numbers(json.loads(as_json))
        except (ValueError, RecursionError):
            pass
    out: dict = {}
    for m in _PAIR.finditer(text):
        number = m.group(3)
        try:
            out[m.group(2)] = int(number)
        except ValueError:
            out[m.group(2)] = float(number)
    return out
