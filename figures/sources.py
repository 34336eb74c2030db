"""Making values from evidence: the quantity ids follow from what was read."""

from __future__ import annotations

from collections.abc import Sequence

from figures import reported
from figures.citations import cited
from figures.evidence import EvidenceError, active_reads
from figures.values import LOG_DISTANCE, Value, kind_of

__all__ = ["cited", "log_distance", "measured", "published"]


def measured(
    name: str,
    number: float | tuple[float, float],
    unit: str,
    digits: int,
    *,
    what: str,
    runs: Sequence[str],
    kind: str = "",
    note: str = "",
    noun: str = "",
    exponent: bool = False,
) -> Value:
    """A value computed from stored runs; `what` says how, for example
    'perf/step_time:median:all'. `noun` says what a number without a unit counts.

    kind: follows from the unit where that implies one; 'count' or 'metric' for the rest.
    Raises EvidenceError when no run is named, or one that nothing was read of yet: a number that
    no read stands behind is not measured.
    """
    _refuse_unread(name, runs)
    quantity = f"{'+'.join(sorted(runs))}:{what}"
    return Value(
        name,
        number,
        unit,
        digits,
        quantity,
        tuple(runs),
        kind_of(unit) or kind,
        note,
        noun,
        exponent=exponent,
    )


def log_distance(
    name: str,
    number: float | tuple[float, float],
    unit: str,
    digits: int,
    *,
    what: str,
    runs: Sequence[str],
    note: str = "",
) -> Value:
    """Seconds, minutes or hours from one line of a log to another.

    The one exception to the rule that a run with a shared GPU gives no time: how long a log is, or
    how long after one event another is logged, is a fact of that log and no speed of any work. The
    badge of its figure says so. Needs reads of log lines (`Run.log_fact`, or an Access with
    `log=True`); columns and medians of times stay refused. Raises EvidenceError.
    """
    _refuse_unread(name, runs, log=True)
    quantity = f"{'+'.join(sorted(runs))}:{what}"
    return Value(name, number, unit, digits, quantity, tuple(runs), LOG_DISTANCE, note)


def _refuse_unread(name: str, runs: Sequence[str], log: bool = False) -> None:
    if not runs:
        raise EvidenceError(f"{name}: a measured value that names no run")
    done = active_reads()
    if done is None:
        return  # outside of a figure; BuiltFigure refuses it when it gets there
    read = {access.run for access in done if access.tier == "measured" and access.log >= log}
    if unread := sorted(set(runs) - read):
        lines = "no log line" if log else "nothing"
        raise EvidenceError(f"{name}: {lines} of {', '.join(unread)} was read before it")


def published(
    name: str,
    lab: str,
    value_id: str,
    *,
    kind: str = "",
    unit: str | None = None,
    noun: str = "",
) -> Value:
    """A value of a lab's reported.toml at its printed precision.

    unit: replaces the unit of the source, '' for a bare number. noun: what that number counts, by
    default the unit of the source.
    """
    found = reported.reported(lab, value_id)
    note = f"contradiction: {found.contradiction}" if found.contradiction else ""
    shown = found.unit if unit is None else unit
    return Value(
        name,
        found.number,
        shown,
        found.digits,
        f"{lab}:{value_id}",
        found.runs,
        kind_of(shown) or kind,
        note,
        noun or (found.unit if unit == "" else ""),
        tier="reported",
    )
