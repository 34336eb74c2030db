"""Published values of a lab whose raw logs we do not hold: `capture/gpu/out-LAB/reported.toml`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from figures.evidence import STORE, Access, EvidenceError, parse_toml, read, record


@dataclass(frozen=True, slots=True)
class Reported:
    """One published value or setting.

    number  as printed, or (low, high) of a range
    digits  decimals as printed
    runs    ids of the runs it belongs to, for example ('gb10/plain',); empty when the source
            names none
    contradiction  id of the contradiction in the source that it takes part in, or ''
    """

    id: str
    lab: str
    number: float | int | tuple[float, float]
    digits: int
    unit: str
    printed: str
    section: str
    runs: tuple[str, ...]
    conditions: str
    contradiction: str


def decimals(printed: str) -> int:
    """Decimals of the last number in a printed text: '0.0141 to 0.0164' has four."""
    found = re.findall(r"\d[\d,]*(?:\.(\d+))?", printed)
    return len(found[-1]) if found else 0


def path(lab: str) -> str:
    """Where the published values of a lab stand."""
    return str(STORE / f"out-{lab}" / "reported.toml")


def table(lab: str) -> dict[str, Any]:
    """The whole reported.toml of a lab."""
    return parse_toml(path(lab), read(path(lab)))


def number_of(entry: Mapping[str, Any]) -> float | int | tuple[float, float]:
    """The printed number of an entry, or (low, high) of a range."""
    return (entry["low"], entry["high"]) if "low" in entry else entry["value"]


def run_entry(run_id: str) -> dict[str, Any]:
    """The [[run]] table of 'LAB/RUN', or {} when the lab describes no such run."""
    lab, _, name = run_id.partition("/")
    entries = [entry for entry in table(lab).get("run", []) if entry.get("id") == name]
    return entries[0] if entries else {}


def reported(lab: str, value_id: str) -> Reported:
    """One value or setting by its id; raises EvidenceError when there is not exactly one."""
    whole = table(lab)
    places = [("value", entry) for entry in whole.get("value", []) if entry["id"] == value_id]
    places += [("setting", entry) for entry in whole.get("setting", []) if entry["id"] == value_id]
    if len(places) != 1:
        raise EvidenceError(f"{path(lab)}: {len(places)} entries with the id {value_id!r}")
    ((kind, entry),) = places
    named = entry.get("run", "")
    names = [named] if isinstance(named, str) else named
    runs = tuple(f"{lab}/{name}" for name in names if name)
    # A value of a run that the source does not name is recorded as LAB/, a setting as LAB.
    for place in runs or ((f"{lab}/",) if kind == "value" else (lab,)):
        record(Access(place, f"reported:{value_id}", tier="reported"))
    return Reported(
        id=value_id,
        lab=lab,
        number=number_of(entry),
        digits=decimals(entry["printed"]),
        unit=entry["unit"],
        printed=entry["printed"],
        section=entry["section"],
        runs=runs,
        conditions=entry.get("conditions", ""),
        contradiction=entry.get("contradiction", ""),
    )
