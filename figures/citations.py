"""Sources of the manual and the values that other teams published: `manuals/sources.toml`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from figures import reported
from figures.evidence import Access, EvidenceError, parse_toml, read, record
from figures.values import Value, kind_of, rounded

PATH = "manuals/sources.toml"
PREFIX = "sources:"  # of the places and quantities of cited values
# runs, code, Miles documentation and release notes, Miles tracker, papers and other projects
RANKS = range(1, 6)
MANUALS = ("miles-101", "olmo-core-trainer")
LAB = "gb10"  # the lab whose reported.toml a value may name with `gb10 =`

_OF_EXPERIMENTS = ("paper", "post", "report", "pull request")  # their numbers rest on hardware
_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_TEXT, _LIST = str, list
_SOURCE_KEYS: Mapping[str, tuple[type, bool]] = {
    "id": (str, True),
    "rank": (int, True),
    "kind": (_TEXT, True),
    "title": (_TEXT, True),
    "who": (_TEXT, True),
    "date": (_TEXT, True),
    "read": (_TEXT, True),
    "hardware": (_TEXT, False),
    "model": (_TEXT, False),
    "url": (_TEXT, False),
    "note": (_TEXT, False),
    "uncited": (_TEXT, False),
    "manual": (_TEXT, False),
    "lost": (_LIST, False),
    "value": (_LIST, False),
}
_VALUE_KEYS = frozenset(
    ("id", "what", "unit", "digits", "noun", "number", "low", "high", "gb10", "power", "about")
)


@dataclass(frozen=True, slots=True)
class CitedValue:
    """One published number of a source, as printed.

    number  the number, or (low, high) of a range
    about   the source says "about"
    """

    id: str
    what: str
    number: float | int | tuple[float, float]
    unit: str
    digits: int
    noun: str = ""
    about: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """One source. `hardware`, `model` and `url` are '' where it names none.

    manual: folder of the manual whose page of sources lists it.
    """

    id: str
    rank: int
    kind: str
    title: str
    who: str
    date: str
    read: str
    hardware: str = ""
    model: str = ""
    url: str = ""
    note: str = ""
    uncited: str = ""
    manual: str = MANUALS[0]
    lost: tuple[str, ...] = ()
    values: tuple[CitedValue, ...] = ()

    @property
    def setup(self) -> str:
        """Team, model and hardware as a badge shows them."""
        unknown = "hardware not stated" if self.kind in _OF_EXPERIMENTS else ""
        hardware = self.hardware or unknown
        return ", ".join(part for part in (self.who, self.model, hardware) if part)


def sources() -> tuple[Source, ...]:
    """Every source in the order of the file; EvidenceError names file, source and key."""
    data = read(PATH)
    lab = read(reported.path(LAB)) if re.search(rb"^gb10\s*=", data, re.MULTILINE) else b""
    return _parsed(data, lab)


@lru_cache(maxsize=16)
def _parsed(data: bytes, lab: bytes) -> tuple[Source, ...]:
    return parse(parse_toml(PATH, data), parse_toml(reported.path(LAB), lab))


def parse(whole: Mapping[str, Any], lab: Mapping[str, Any]) -> tuple[Source, ...]:
    """The sources of a parsed sources.toml; `lab` is the parsed reported.toml of the GB10 lab.

    Raises EvidenceError with file, source and key for a missing, unknown, mistyped or empty key,
    an id that is given twice, a rank that is out of order and a value without one number.
    """
    if extra := sorted(set(whole) - {"schema", "source"}):
        raise EvidenceError(f"{PATH}: unknown table {extra[0]!r}")
    if whole.get("schema") != 1:
        raise EvidenceError(f"{PATH}: schema is {whole.get('schema')!r}, not 1")
    entries = whole.get("source", [])
    if not isinstance(entries, list) or not entries:
        raise EvidenceError(f"{PATH}: no [[source]]")
    printed = {entry["id"]: entry for kind in ("value", "setting") for entry in lab.get(kind, ())}
    found = tuple(_source(entry, printed) for entry in entries)
    _refuse_twice("source", (source.id for source in found))
    ranks = [source.rank for source in found]
    for before, after, source in zip(ranks, ranks[1:], found[1:], strict=False):
        if after < before:
            raise EvidenceError(f"{PATH}: {source.id}: rank {after} stands after rank {before}")
    return found


def _refuse_twice(what: str, ids: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in ids:
        if name in seen:
            raise EvidenceError(f"{PATH}: {what} {name} is given twice")
        seen.add(name)


def _source(entry: Mapping[str, Any], printed: Mapping[str, Any]) -> Source:
    name = entry.get("id", "")
    where = f"{PATH}: source {name or '?'}"
    for key, (kind, needed) in _SOURCE_KEYS.items():
        if key not in entry:
            if needed:
                raise EvidenceError(f"{where}: no {key}")
            continue
        if not isinstance(entry[key], kind) or isinstance(entry[key], bool):
            raise EvidenceError(f"{where}: {key} = {entry[key]!r} is no {kind.__name__}")
        if kind is str and not entry[key].strip():
            raise EvidenceError(f"{where}: {key} is empty")
    if extra := sorted(set(entry) - set(_SOURCE_KEYS)):
        raise EvidenceError(f"{where}: unknown key {extra[0]!r}")
    if not _ID.fullmatch(name):
        raise EvidenceError(f"{where}: id = {name!r} is no lower-case name with dashes")
    if entry["rank"] not in RANKS:
        raise EvidenceError(f"{where}: rank = {entry['rank']!r} is none of 1 to {max(RANKS)}")
    if entry.get("manual", MANUALS[0]) not in MANUALS:
        raise EvidenceError(
            f"{where}: manual = {entry['manual']!r} is none of {', '.join(MANUALS)}"
        )
    url = entry.get("url", "")
    if url and not re.fullmatch(r"https://[\w.-]+(?:/[^\s?#]*)?", url):
        raise EvidenceError(f"{where}: url = {url!r} is no https address")
    lost = entry.get("lost", [])
    if not all(isinstance(text, str) and text.strip() for text in lost):
        raise EvidenceError(f"{where}: lost = {lost!r} is no list of texts")
    values = tuple(_value(where, part, printed) for part in entry.get("value", []))
    _refuse_twice("value", (f"{name}.{value.id}" for value in values))
    texts = {
        key: entry[key] for key in _SOURCE_KEYS if key in entry and key not in ("lost", "value")
    }
    return Source(**texts, lost=tuple(lost), values=values)


def _value(where: str, entry: Mapping[str, Any], printed: Mapping[str, Any]) -> CitedValue:
    name = entry.get("id", "?")
    where = f"{where}: value {name}"
    if extra := sorted(set(entry) - _VALUE_KEYS):
        raise EvidenceError(f"{where}: unknown key {extra[0]!r}")
    for key in ("id", "what"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise EvidenceError(f"{where}: no {key}")
    if not _ID.fullmatch(name):
        raise EvidenceError(f"{where}: id = {name!r} is no lower-case name with dashes")
    unit, noun = entry.get("unit"), entry.get("noun", "")
    if "gb10" in entry:
        if {"number", "low", "high"} & set(entry):
            raise EvidenceError(f"{where}: gb10 gives the number already")
        if entry["gb10"] not in printed:
            raise EvidenceError(
                f"{where}: gb10 = {entry['gb10']!r} is no id of {reported.path(LAB)}"
            )
        base = printed[entry["gb10"]]
        number, digits = reported.number_of(base), reported.decimals(base["printed"])
        unit = base["unit"] if unit is None else unit
        if power := entry.get("power", 0):
            number, digits = number * 10**power, 0
        digits = entry.get("digits", digits)
    else:
        number, digits = _number(where, entry), entry.get("digits")
    if not isinstance(digits, int) or isinstance(digits, bool):
        raise EvidenceError(f"{where}: digits = {digits!r} is no whole number")
    for end in number if isinstance(number, tuple) else (number,):
        if float(rounded(end, digits)) != end:
            raise EvidenceError(f"{where}: {end!r} has more than {digits} decimals")
    if not isinstance(unit, str) or not isinstance(noun, str):
        raise EvidenceError(f"{where}: unit = {unit!r}, noun = {noun!r}: both must be texts")
    about = entry.get("about", False)
    return CitedValue(name, entry["what"], number, unit, digits, noun, about is True)


def _number(where: str, entry: Mapping[str, Any]) -> float | int | tuple[float, float]:
    given = sorted({"number", "low", "high"} & set(entry))
    if given not in (["number"], ["high", "low"]):
        raise EvidenceError(f"{where}: needs number, or low and high, or gb10; has {given}")
    for key in given:
        if not isinstance(entry[key], int | float) or isinstance(entry[key], bool):
            raise EvidenceError(f"{where}: {key} = {entry[key]!r} is no number")
    return entry["number"] if "number" in entry else (entry["low"], entry["high"])


def source(source_id: str) -> Source:
    """One source by its id; EvidenceError when there is none."""
    for found in sources():
        if found.id == source_id:
            return found
    raise EvidenceError(f"{PATH}: no source {source_id!r}")


def lookup(ref: str) -> tuple[Source, CitedValue]:
    """Source and value of 'source-id.value-id'; EvidenceError when there is none."""
    source_id, _, value_id = ref.partition(".")
    found = source(source_id)
    for value in found.values:
        if value.id == value_id:
            return found, value
    known = ", ".join(value.id for value in found.values) or "none"
    raise EvidenceError(f"{PATH}: source {source_id} has no value {value_id!r}; there are: {known}")


def place(source_id: str) -> str:
    """The run id under which reads of a source are recorded."""
    return f"{PREFIX}{source_id}"


def cited(name: str, ref: str, *, unit: str | None = None, noun: str = "", kind: str = "") -> Value:
    """A value that another team published, by 'source-id.value-id', at its printed precision.

    unit: replaces the unit of the source, '' for a bare number. noun: what a bare number counts,
    by default that of the source. The badge of its figure names the team, model and hardware.
    """
    found, value = lookup(ref)
    record(Access(place(found.id), f"reported:{value.id}", tier="reported"))
    shown = value.unit if unit is None else unit
    counts = noun or value.noun
    return Value(
        name,
        value.number,
        shown,
        value.digits,
        f"{PREFIX}{found.id}.{value.id}",
        (place(found.id),),
        kind or kind_of(shown) or ("count" if counts else "metric"),
        "about, as the source says" if value.about else "",
        counts,
        tier="reported",
    )
