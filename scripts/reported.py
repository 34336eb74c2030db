"""Published values of one lab: the tables of a reported.toml and the intervals of its numbers."""

from __future__ import annotations

import datetime
import re
import tomllib
from fractions import Fraction
from pathlib import Path
from typing import Any

from scripts.intervals import Interval, evaluate, printed_intervals

# Units of things that are counted: a whole number of them is exact.
COUNT_UNITS = frozenset(
    {"answers", "bytes", "checks", "commits", "decimals", "errors", "flags", "GPUs", "groups"}
    | {"layers", "lines", "nodes", "offsets", "parameters", "pauses", "prompts", "questions"}
    | {"requests", "runs", "seeds", "steps", "tokens", "workers"}
)
OTHER_UNITS = frozenset(
    {"", "s", "min", "h", "days", "GB", "MB", "MiB", "percent", "share", "times", "C", "step"}
    | {"Ki tokens", "clock"}
)
UNITS = COUNT_UNITS | OTHER_UNITS
BY = frozenset(["lab", "miles-team", "miles-docs", "tracker", "paper", "calculation"])
ID = re.compile(r"[a-z][a-z0-9]*(?:[-.][a-z0-9]+)*")
TEXT, NUMBER, LIST = str, (int, float), list

# key -> (type, whether it must be there)
PLACE = {"section": (TEXT, True), "line": (int, True)}
SIDES = {"contradiction": (TEXT, False), "other_side": (LIST, False), "other_words": (TEXT, False)}
NUMBERS = {"value": (NUMBER, False), "low": (NUMBER, False), "high": (NUMBER, False)}
SCHEMA: dict[str, dict[str, tuple[Any, bool]]] = {
    "value": {
        **{"id": (TEXT, True), **PLACE, "also": (LIST, False), "run": ((str, list), True)},
        **{"quantity": (TEXT, True), "stat": (TEXT, True), **NUMBERS, "unit": (TEXT, True)},
        **{"printed": (TEXT, True), "date": (TEXT, False), "qualifier": (TEXT, False)},
        **{"exact": (bool, False), "by": (TEXT, False), "conditions": (TEXT, True)},
        **{"output": (TEXT, False), **SIDES},
        "ambiguity": (TEXT, False),
    },
    "setting": {
        **{"id": (TEXT, True), **PLACE, "name": (TEXT, True), **NUMBERS, "unit": (TEXT, True)},
        **{"value": ((int, float, str), False), "printed": (TEXT, True), "by": (TEXT, False)},
        **{"exact": (bool, False), "note": (TEXT, False), "qualifier": (TEXT, False)},
        **{"output": (TEXT, False), **SIDES},
    },
    "run": {
        **{"id": (TEXT, True), "name": (TEXT, True), **PLACE, "differs": (TEXT, True)},
        **{"steps": (int, False), "seed": (TEXT, False), "first_time": (TEXT, False)},
        **{"ended": (TEXT, True), "note": (TEXT, False)},
    },
    "arithmetic": {
        **{"id": (TEXT, True), "formula": (TEXT, True), "relation": (TEXT, True)},
        **{"result": (TEXT, True), "what": (TEXT, True), "outside": (TEXT, False)},
        **{"ambiguity": (TEXT, False), "contradiction": (TEXT, False)},
    },
    "lost": {**PLACE, "what": (TEXT, True)},
}


class Reported:
    """One parsed reported.toml: its entries by id, its text for line numbers, its errors."""

    def __init__(self, path: Path, label: str, known: tuple[set[str], set[str]]) -> None:
        self.label = label
        self.text = path.read_text(encoding="utf-8")
        self.data = tomllib.loads(self.text)
        self.contradictions, self.ambiguities = known
        self.numbers = {
            entry["id"]: entry
            for kind in ("value", "setting")
            for entry in self.table(kind)
            if isinstance(entry.get("id"), str)
        }
        self.errors: list[str] = []

    def table(self, kind: str) -> list[dict[str, Any]]:
        """Entries of one kind; an absent kind is empty."""
        entries = self.data.get(kind, [])
        return [entry for entry in entries if isinstance(entry, dict)]

    def error(self, kind: str, name: object, message: str) -> None:
        """Record an error with the line of the entry's id."""
        match = re.search(rf"^id = \"{re.escape(str(name))}\"$", self.text, re.MULTILINE)
        line = self.text.count("\n", 0, match.start()) + 1 if match else 1
        self.errors.append(f"{self.label}:{line}: {kind} {name}: {message}")

    def interval(self, name: str) -> Interval:
        """Interval of an id, of ``id.low`` or of ``id.high``; a whole range only as a result."""
        base, _, end = name.rpartition(".")
        if base in self.numbers and end in ("low", "high"):
            low, high = self.ends(base)
            return low if end == "low" else high
        if name not in self.numbers:
            raise ValueError(f"unknown id {name!r}")
        ends = self.ends(name)
        if len(ends) == 2:
            raise ValueError(f"{name!r} is a range: write {name}.low or {name}.high")
        return ends[0]

    def whole(self, name: str) -> Interval:
        """Interval of a result: a range from the low end of its low to the high end of its high."""
        if name in self.numbers:
            ends = self.ends(name)
            return Interval(ends[0].low, ends[-1].high)
        return evaluate(name, self.interval)

    def ends(self, name: str) -> tuple[Interval, ...]:
        """Intervals of the printed number, or of both ends of the printed range."""
        entry = self.numbers[name]
        if isinstance(entry.get("value"), str):
            raise ValueError(f"{name!r} is a text, not a number")
        if entry["unit"] == "clock":
            # A log time is exact to its last digit; half a unit covers its rounding.
            half = Fraction(1, 2000) if "." in entry["printed"] else Fraction(1, 2)
            seconds = clock(entry["printed"], entry.get("date"))
            return (Interval(seconds - half, seconds + half),)
        about = "about" in entry.get("qualifier", "") or "near" in entry.get("qualifier", "")
        return printed_intervals(entry["printed"], is_exact(entry), not about)


def is_exact(entry: dict[str, Any]) -> bool:
    """Whether a printed number stands for itself: settings, and counts that are not "about"."""
    if "exact" in entry:
        return bool(entry["exact"])
    if "name" in entry:
        return True
    numbers = [entry[key] for key in ("value", "low", "high") if key in entry]
    whole = all(isinstance(number, int) for number in numbers)
    return entry["unit"] in COUNT_UNITS and whole and "about" not in entry.get("qualifier", "")


def clock(printed: str, date: str | None = None) -> Fraction:
    """Seconds since 1970-01-01 of a printed log time, read as if its zone were UTC."""
    text = printed.replace("T", " ").rstrip("Z")
    match = re.fullmatch(r"(\d\d:\d\d) on (\d{4}-\d\d-\d\d)", text)
    if match:
        text = f"{match[2]} {match[1]}"
    if date:
        text = f"{date} {text}"
    moment = datetime.datetime.fromisoformat(text)
    delta = moment - datetime.datetime(1970, 1, 1)
    return Fraction(delta // datetime.timedelta(microseconds=1), 1_000_000)


def stored(entry: dict[str, Any]) -> tuple[Fraction, ...]:
    """The stored number or both ends, exactly as their shortest decimal text."""
    keys = ("low", "high") if "low" in entry else ("value",)
    return tuple(Fraction(str(entry[key])) for key in keys)
