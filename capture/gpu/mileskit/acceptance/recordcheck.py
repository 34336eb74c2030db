"""What the record of a stranger's run may hold: tables, types, and texts of one plain line.

`store` joins a record with the facts of its log and believes the author who wrote it. The record
of a bundle has no such author, so its form is checked before `store` sees it (pure functions).
"""

from __future__ import annotations

import datetime as dt
import unicodedata
from collections.abc import Iterator

TABLES = {"run": dict, "setup": dict, "ended": dict, "environment": dict, "settings": dict,
          "unusable": list, "masked": list}  # fmt: skip
TEXTS = [str]  # a list of texts
FIELDS = {
    "run": {
        **dict.fromkeys(("lab", "name", "command", "note"), str),
        **dict.fromkeys(("seed", "rollout_seed", "num_rollout"), int),
        **dict.fromkeys(("started", "launched"), dt.datetime),
        "changed": TEXTS,
        "settings": dict,
    },
    "setup": {
        **dict.fromkeys(
            (
                "model",
                "data",
                "reward",
                "miles_commit",
                "engine",
                "image",
                "launcher",
                "gpu",
                "driver",
                "clock_record",
                "attention_engine",
                "attention_trainer",
                "sampling",
            ),
            str,
        ),
        **dict.fromkeys(("container", "shared"), bool),
        **dict.fromkeys(("gpus", "gpu_memory_mib", "gpu_used_mib_at_start"), int),
        **dict.fromkeys(("shared_with", "not_stock"), TEXTS),
        "miles_date": dt.date,
        "versions": dict,
    },
    "ended": {
        **dict.fromkeys(("how", "verdict", "by"), str),
        **dict.fromkeys(("status", "steps"), int),
        **dict.fromkeys(("partial", "unguarded"), bool),
    },
}
"""Type of the known fields; a field that is not here is one value, or a list of values."""
ROWS = {
    "masked": {"what": str, "replacement": str, "by": str, "count": int, "file": str},
    "unusable": {"column": str, "reason": str},
}
NEEDED = {"masked": ("what", "replacement", "by"), "unusable": ("column", "reason")}
ENDS = ("finished", "failed", "time-limit", "killed", "cut", "running", "unknown")
UNSEEN = ("Cc", "Cs", "Zl", "Zp")  # control characters, halves of pairs, line separators
SIDES = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
ONE = (str, int, float, bool, dt.date, dt.datetime, dt.time)


class RecordError(ValueError):
    """A record that is refused; one line of text."""


def check(name: str, document: dict) -> None:
    """The record of the run `name` of a bundle. Raises RecordError."""
    bad = first_bad(document)
    if bad is not None:
        raise RecordError(f"run {name}: its record holds {shown(bad)}, no plain line of text")
    for table, value in document.items():
        if table != "schema" and (table not in TABLES or not isinstance(value, TABLES[table])):
            raise RecordError(f"run {name}: its record has no {table[:60]!a} of this form")
    if not {"run", "setup"} <= document.keys():
        raise RecordError(f"run {name}: its record has no [run] and [setup]")
    for table, known in FIELDS.items():
        for field, value in document.get(table, {}).items():
            if not fits(value, known.get(field)):
                raise RecordError(f"run {name}: {table}.{field[:60]} = {shown(value)} has no "
                                  "value of its kind")  # fmt: skip
    for table, known in ROWS.items():
        for row in document.get(table, []):
            if not isinstance(row, dict) or not all(key in row for key in NEEDED[table]):
                raise RecordError(f"run {name}: a row of [[{table}]] is incomplete")
            for field, value in row.items():
                if field not in known or not fits(value, known[field]):
                    raise RecordError(f"run {name}: {table}.{field[:60]} has no value of its kind")
    if document["run"].get("overrides"):
        raise RecordError(f"run {name}: its record overrides what its log says")
    how = document.get("ended", {}).get("how", ENDS[0])
    if how not in ENDS:
        raise RecordError(f"run {name}: ended.how {shown(how)} is none of {', '.join(ENDS)}")
    clock = document["setup"].get("clock_record", "")
    if clock not in ("", f"../{name}.gpu-samples.jsonl"):
        raise RecordError(f"run {name}: setup.clock_record {shown(clock)} is no file of the bundle")


def fits(value: object, kind: object) -> bool:
    """Is a value of the kind that its field has? kind: a type, TEXTS, or None for any plain one."""
    if kind is TEXTS:
        return isinstance(value, list) and all(type(one) is str for one in value)
    if kind is dict:
        return isinstance(value, dict) and all(type(one) in ONE for one in value.values())
    if kind is None:
        return all(type(one) in ONE for one in (value if isinstance(value, list) else [value]))
    return type(value) is kind


def shown(value: object) -> str:
    """A value for a message: short, and without a character that moves the terminal."""
    return ascii(value)[:80]


def plain(text: str) -> bool:
    """One line that shows as it is: no control character, no half of a pair, no change of side."""
    shown_as_is = text.replace("\t", " ")
    return not any(c in SIDES or unicodedata.category(c) in UNSEEN for c in shown_as_is)


def first_bad(value: object) -> str | None:
    """The first text, keys too, that is not one plain line; None when all are."""
    return next((text for text in texts(value) if not plain(text)), None)


def texts(value: object) -> Iterator[str]:
    """Every text in a value of TOML or JSON, keys too, without recursion."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            left += one


def one_line(text: str) -> str:
    """A text as one plain line, for what this kit writes itself."""
    return " ".join("".join(char if plain(char) else " " for char in text).split())
