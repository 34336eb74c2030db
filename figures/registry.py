"""The figures by id: registering, building, and what a built figure offers.

A topic module decorates a function with `@figure("fig-1-1-h200-steps")`; the function reads
evidence and returns a `Figure`. `build(id)` runs it, records what it read, and refuses what
the evidence does not carry.
"""

from __future__ import annotations

import csv
import importlib
import io
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import figures
from figures import citations, evidence, reported, strength, wording
from figures.evidence import Access, EvidenceError
from figures.values import LOG_DISTANCE, Value

MOST_FOLDERS = 4  # a longer command is no longer read
DIAGRAM = "diagram"  # the tier of a figure that shows how parts work together, and no number
DRAWN_FROM = {
    "code": "Miles code of 2026-08-21, commit 31f1ca961",
    "manual": "GB10 manual, Miles of 2026-10-15",
    "kit": "code and run commands of this repository",
    "core": "code of the OLMo-core trainer of this repository",
    "core-contract": "page on Miles with an OLMo-core trainer",
}


class FigureError(Exception):
    """A figure that is not registered, or that breaks the rules of a figure."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What a topic function returns.

    shape       what a reader who cannot see it must know of its form, for the alt text
    values      the named values; a diagram has none
    rows        the data behind it, one mapping a row; its keys are the CSV columns
    columns     key of a row -> heading, for a figure that is shown as a table
    draw        draws it with a `style.Style`; None for a table
    drawn_from  keys of DRAWN_FROM: makes the figure a diagram (`diagram.figure` gives it)
    scene       of a diagram: its layout by (narrow, width in points, font size)
    """

    shape: str
    values: Sequence[Value]
    rows: Sequence[Mapping[str, Any]]
    columns: Mapping[str, str] | None = None
    draw: Callable[[Any], Any] | None = None
    drawn_from: Sequence[str] = ()
    scene: Callable[[bool, float, float], Any] | None = None


_registered: dict[str, Callable[[], Figure]] = {}


def figure(figure_id: str) -> Callable[[Callable[[], Figure]], Callable[[], Figure]]:
    """Register the function as the maker of this figure; an id may be given only once."""

    def register(make: Callable[[], Figure]) -> Callable[[], Figure]:
        known = _registered.get(figure_id)
        if known is not None and known.__module__ != make.__module__:
            raise FigureError(f"{figure_id} is registered twice")
        _registered[figure_id] = make
        return make

    return register


def load_all() -> list[str]:
    """Import every module of the package and return the ids of all figures, sorted."""
    for module in pkgutil.iter_modules(figures.__path__):
        importlib.import_module(f"figures.{module.name}")
    return sorted(_registered)


def get(figure_id: str) -> Callable[[], Figure]:
    """The function that makes the figure; raises FigureError for an unknown id."""
    if figure_id not in _registered:
        load_all()
    try:
        return _registered[figure_id]
    except KeyError:
        raise FigureError(f"no figure {figure_id!r}") from None


DRAWN: dict[tuple, str] = {}
"""Drawings of this process by figure, width and data: a page and a check need the same one."""


class BuiltFigure:
    """A figure with its computed values, strength, setups and drawings."""

    def __init__(self, figure_id: str, made: Figure, accesses: Sequence[Access]) -> None:
        self.id = figure_id
        self.shape = made.shape
        self.rows = [dict(row) for row in made.rows]
        self.columns = dict(made.columns) if made.columns else None
        self.drawn_from = tuple(made.drawn_from)
        self.is_diagram = bool(made.drawn_from)
        self.values = {} if self.is_diagram else _by_name(figure_id, made.values)
        self.accesses = tuple(accesses)
        self.strength = strength.of(accesses)
        self._strengths: dict[frozenset[str], strength.Strength] = {}
        if self.is_diagram:
            self._check_diagram(made)
            self.strength = replace(self.strength, tier=DIAGRAM)
        self.tier = self.strength.tier
        self.runs = self.strength.runs
        self.scene = made.scene
        self._draw = made.draw
        self._check()

    @property
    def strength_text(self) -> str:
        """The strength badge: distances between log lines are named, and a diagram's sources."""
        if self.is_diagram:
            return f"drawn from {' and '.join(DRAWN_FROM[key] for key in self.drawn_from)}"
        text = self.strength.text
        if any(value.kind == LOG_DISTANCE for value in self.values.values()):
            text += "; times are distances between log lines"
        return text

    @property
    def setup_text(self) -> str:
        """The setup badge: one line, several setups joined."""
        return self.strength.setup_text

    @property
    def setup_texts(self) -> list[str]:
        """One line a setup."""
        return [setup.text for setup in self.strength.setups]

    @property
    def table(self) -> list[list[str]] | None:
        """Heading and rows as text for a figure that is a table, else None."""
        if self._draw is not None or self.columns is None:
            return None
        body = [[_cell(row.get(key)) for key in self.columns] for row in self.rows]
        return [list(self.columns.values()), *body]

    @cached_property
    def recompute(self) -> str:
        """The command that computes the figure's data again; '' for a diagram."""
        if self.is_diagram:
            return ""
        runs = [
            evidence.run(run)
            for run in sorted({a.run for a in self.accesses if a.tier == "measured"})
        ]
        folders = [run.recompute for run in runs]
        if not folders:
            return "make check-claims"
        if not all(run.on_gpu for run in runs):
            return folders[0] if len(folders) == 1 else "make check-core"
        if any("record" in run.toml for run in runs):
            return "make check-claims"  # lines of an experiment have no summary to compute
        if len(folders) > MOST_FOLDERS:
            return "make check"
        return f"python3 capture/gpu/kit.py summarize --check {' '.join(folders)}"

    def svg(self, narrow: bool = False, claim: str = "", title: str = "") -> str | None:
        """The drawing as inline SVG, or None for a table. `narrow` is the variant for phones."""
        if self._draw is None:
            return None
        from figures import style, svg  # Matplotlib is slow to import and claims need none

        key = (self.id, narrow, self.csv(), tuple(value.text for value in self.values.values()))
        if key not in DRAWN:
            with style.drawing(self.id, narrow) as page:
                DRAWN[key] = svg.body(self._draw(page), self.id, narrow)
        return svg.frame(DRAWN[key], self.id, narrow, title or self.id, self.alt(claim))

    def alt(self, claim: str) -> str:
        """Alt text: the claim and the form of the figure."""
        return f"{claim.rstrip()} {self.shape}".strip()

    def csv(self) -> str:
        """The data as CSV text with a heading line."""
        out = io.StringIO()
        writer = csv.DictWriter(out, list(self.rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return out.getvalue()

    def claim_strength(self, names: Sequence[str]) -> strength.Strength:
        """The strength of only those runs that the named values come from."""
        runs = frozenset(run for name in names for run in self.values[name].runs)
        if runs and runs not in self._strengths:
            self._strengths[runs] = strength.of(self.accesses, only=runs)
        return self._strengths[runs] if runs else self.strength

    def wording_errors(self, text: str, names: Sequence[str] = ()) -> list[str]:
        """What a sentence with these values says beyond its evidence."""
        if self.is_diagram:
            return wording.diagram_errors(text)
        parts = [self.claim_strength([name]) for name in names]
        return wording.claim_errors(text, self.claim_strength(names), parts)

    def _check(self) -> None:
        if not self.rows:
            raise FigureError(f"{self.id}: has no rows")
        if (self._draw is None) == (self.columns is None):
            raise FigureError(f"{self.id}: needs a drawing or table columns, not both or neither")
        keys = list(self.rows[0])
        for row in self.rows:
            if list(row) != keys:
                raise FigureError(f"{self.id}: rows with different columns: {list(row)}")
        if self.columns and not set(self.columns) <= set(keys):
            raise FigureError(f"{self.id}: table columns that no row has")
        for value in self.values.values():
            if value.tier == "reported":
                self._check_reported(value)
            else:
                self._check_measured(value)
        named = {run for value in self.values.values() for run in value.runs}
        read = {access.run for access in self.accesses if access.tier == "measured"}
        if extra := sorted(read - named):
            raise FigureError(f"{self.id}: reads {', '.join(extra)}, which no value names")

    def _check_diagram(self, made: Figure) -> None:
        """A diagram shows no number, so it has no values and reads no evidence."""
        if unknown := sorted(set(made.drawn_from) - set(DRAWN_FROM)):
            raise FigureError(f"{self.id}: drawn from {unknown[0]!r}, which is no known source")
        if made.values:
            raise FigureError(f"{self.id}: a diagram with values; a chart or table shows those")
        if self.accesses:
            raise FigureError(f"{self.id}: a diagram that reads {self.accesses[0].run}")
        if made.draw is None or made.scene is None:
            raise FigureError(f"{self.id}: a diagram without a drawing")

    def _check_measured(self, value: Value) -> None:
        """Every run of a value was read; a time is none of a shared GPU."""
        measured = [access for access in self.accesses if access.tier == "measured"]
        if not value.runs:
            raise FigureError(f"{self.id}:{value.name}: a measured value that names no run")
        if not set(value.runs) <= {access.run for access in measured}:
            raise FigureError(f"{self.id}:{value.name}: names runs that were not read")
        if value.kind == LOG_DISTANCE:
            lines = {access.run for access in measured if access.log}
            if not set(value.runs) <= lines:
                raise EvidenceError(f"{self.id}:{value.name}: no log lines of its runs were read")
        if value.kind == "time":
            for run in value.runs:
                if evidence.run(run).shared:
                    raise EvidenceError(
                        f"{self.id}:{value.name}: a time of {run}, which shared its GPU"
                    )

    def _check_reported(self, value: Value) -> None:
        """A published value was read, and is the number that its source printed."""
        lab, value_id, number = _printed(value.quantity)
        reads = {
            (access.run.partition("/")[0], access.what)
            for access in self.accesses
            if access.tier == "reported"
        }
        if (lab, f"reported:{value_id}") not in reads:
            raise FigureError(f"{self.id}:{value.name}: {value.quantity} was not read")
        if value.number != number:
            raise FigureError(f"{self.id}:{value.name}: is not the number of {value.quantity}")


def _printed(quantity: str) -> tuple[str, str, Any]:
    """Where a published value was read, its id there, and the number that its source printed."""
    if quantity.startswith(citations.PREFIX):
        source, value = citations.lookup(quantity.removeprefix(citations.PREFIX))
        return citations.place(source.id), value.id, value.number
    lab, _, value_id = quantity.partition(":")
    return lab, value_id, reported.reported(lab, value_id).number


def _by_name(figure_id: str, values: Sequence[Value]) -> dict[str, Value]:
    if not values:
        raise FigureError(f"{figure_id}: has no values")
    named = {value.name: value for value in values}
    if len(named) != len(values):
        raise FigureError(f"{figure_id}: two values with one name")
    return named


def _cell(item: Any) -> str:
    if item is None:
        return ""
    if isinstance(item, bool):
        return "yes" if item else "no"
    return f"{item:,}" if isinstance(item, int) else str(item)


def build(figure_id: str) -> BuiltFigure:
    """Build one figure from the evidence; raises FigureError or EvidenceError."""
    make = get(figure_id)
    with evidence.recording() as accesses:
        made = make()
    return BuiltFigure(figure_id, made, accesses)


def quantity_conflicts() -> list[str]:
    """Quantities that two figures give different numbers or units, as messages."""
    first: dict[str, tuple[str, Value]] = {}
    conflicts = []
    for figure_id in load_all():
        for value in build(figure_id).values.values():
            where, known = first.setdefault(value.quantity, (figure_id, value))
            if (known.number, known.unit) != (value.number, value.unit):
                conflicts.append(
                    f"{value.quantity}: {known.text} in {where}, {value.text} in {figure_id}"
                )
    return conflicts
