"""Writes and compares summaries: stable bytes, one column a line, differences with their place."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable
from typing import BinaryIO

SCHEMA = 1
_NUMBERS = {int, float}
_SCALAR = (str, int, float, bool, type(None))


def encode(value, depth: int = 0) -> str:
    """JSON text of a value: flat lists and small flat objects on one line, one space a level.

    Numbers are written as repr; NaN and infinities as the strings "nan", "inf", "-inf".
    """
    if isinstance(value, (list, tuple)):
        kinds = set(map(type, value))
        if kinds <= _NUMBERS:
            text = ", ".join(map(repr, value))
            if "n" not in text:  # neither nan nor inf
                return f"[{text}]"
        if all(isinstance(v, (*_SCALAR, list, tuple)) for v in value):
            return "[" + ", ".join([encode(v) for v in value]) + "]"
        pad = "\n" + " " * (depth + 1)
        return "[" + ",".join([pad + encode(v, depth + 1) for v in value]) + pad[:-1] + "]"
    if isinstance(value, dict):
        pairs = [(json.dumps(str(k)), v) for k, v in value.items()]
        if len(pairs) <= 8 and all(isinstance(v, _SCALAR) for _, v in pairs):
            return "{" + ", ".join([f"{k}: {encode(v)}" for k, v in pairs]) + "}"
        pad = "\n" + " " * (depth + 1)
        body = ",".join([f"{pad}{k}: {encode(v, depth + 1)}" for k, v in pairs])
        return "{" + body + pad[:-1] + "}"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f'"{value!r}"'
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return repr(value) if isinstance(value, int) else json.dumps(value)


def write(out: BinaryIO, runs: Iterable[dict], source) -> None:
    """Writes a summary run by run; ``source()`` is called after the last run."""
    out.write(f'{{"schema": {SCHEMA},\n"runs": ['.encode())
    separator = b"\n"
    for run in runs:
        out.write(separator + encode(run).encode())
        separator = b",\n"
    out.write(b'\n],\n"source": ' + encode(source()).encode() + b"}\n")


def to_bytes(summary: dict) -> bytes:
    """The summary file's bytes; the same summary gives the same bytes."""
    out = io.BytesIO()
    write(out, summary["runs"], lambda: summary["source"])
    return out.getvalue()


def diff_summaries(stored: dict | bytes, computed: dict | bytes, limit: int = 20) -> list[str]:
    """Differences, each with its exact place, in the order of the file; at most ``limit``.

    Takes parsed summaries or file bytes.  ``["run 1, step 3, column train/loss: stored 0.1,
    computed 0.2"]``; an empty list means equal.
    """
    out: list[str] = []
    left = json.loads(to_bytes(stored)) if isinstance(stored, dict) else json.loads(stored)
    right = json.loads(to_bytes(computed)) if isinstance(computed, dict) else json.loads(computed)
    _diff(left, right, (), left, out, limit)
    return out


_MISSING = object()
_ROW_NAME = {"rollouts": "rollout", "steps": "step", "critic_steps": "critic step", "evals": "eval"}


def _diff(a, b, path, root, out, limit):
    if len(out) >= limit:
        return
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(k for k in b if k not in a)]:
            _diff(a.get(key, _MISSING), b.get(key, _MISSING), (*path, key), root, out, limit)
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            out.append(f"{_place(path, root)}: stored {len(a)} entries, computed {len(b)}")
            return
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            _diff(x, y, (*path, i), root, out, limit)
    elif type(a) is not type(b) or a != b:
        out.append(f"{_place(path, root)}: stored {_show(a)}, computed {_show(b)}")


def _show(value) -> str:
    if value is _MISSING:
        return "nothing"
    text = json.dumps(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _place(path: tuple, root: dict) -> str:
    """Words for a path: the run counted from 1, the row by its number, the column by name."""
    if not path or path[0] != "runs" or len(path) < 2:
        return ".".join(str(p) for p in path) or "summary"
    words = [f"run {path[1] + 1}"]
    rest = path[2:]
    if len(rest) == 4 and rest[0] in _ROW_NAME and rest[1] == "columns":
        number = root["runs"][path[1]][rest[0]]["index"][rest[3]]
        words += [f"{_ROW_NAME[rest[0]]} {number}", f"column {rest[2]}"]
    elif len(rest) == 3 and rest[0] in _ROW_NAME:
        words += [f"{_ROW_NAME[rest[0]]} row {rest[2]}", f"column {rest[1]}"]
    elif len(rest) == 3 and rest[0] == "timing":
        number = root["runs"][path[1]]["rollouts"]["index"][rest[2]]
        words += [f"rollout {number}", f"column timing/{rest[1]}"]
    elif len(rest) == 3 and rest[0] == "medians":
        words += [f"median {rest[2]}", f"column {rest[1]}"]
    else:
        words.append(".".join(str(p) for p in rest))
    return ", ".join(words)
