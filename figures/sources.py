"""Making values from evidence: the quantity ids follow from what was read."""

from __future__ import annotations

from collections.abc import Sequence

from figures import reported
from figures.values import Value


def measured(
    name: str,
    number: float | tuple[float, float],
    unit: str,
    digits: int,
    *,
    what: str,
    runs: Sequence[str],
    kind: str,
    note: str = "",
    noun: str = "",
) -> Value:
    """A value computed from stored runs; `what` says how, for example
    'perf/step_time:median:all'. `noun` says what a number without a unit counts."""
    quantity = f"{'+'.join(sorted(runs))}:{what}"
    return Value(name, number, unit, digits, quantity, tuple(runs), kind, note, noun)


def published(
    name: str,
    lab: str,
    value_id: str,
    *,
    kind: str,
    unit: str | None = None,
    noun: str = "",
) -> Value:
    """A value of a lab's reported.toml at its printed precision.

    unit: replaces the unit of the source, '' for a bare number. noun: what that number counts, by
    default the unit of the source.
    """
    found = reported.reported(lab, value_id)
    note = f"contradiction: {found.contradiction}" if found.contradiction else ""
    return Value(
        name,
        found.number,
        found.unit if unit is None else unit,
        found.digits,
        f"{lab}:{value_id}",
        found.runs,
        kind,
        note,
        noun or (found.unit if unit == "" else ""),
    )
