"""Tables and bars of recorded numbers, for the figure modules of the second manual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from figures.registry import Figure
from figures.style import Style
from figures.values import Value

Row = tuple[str, Value]


def table(rows: Sequence[Row], *, what: str = "What", shape: str = "") -> Figure:
    """A table of recorded numbers, one a row."""
    shown = [{"what": label, "value": found.text} for label, found in rows]
    return Figure(
        shape=shape or "A table of recorded numbers, one a row.",
        values=[found for _, found in rows],
        rows=shown,
        columns={"what": what, "value": "Recorded"},
    )


def bars(
    style: Style, labels: Sequence[str], values: Sequence[Value], roles: Sequence[str], *, log: bool
) -> Any:
    """Horizontal bars with their values at the end; a log scale begins below the smallest."""
    drawing, axes = style.axes(height=0.42 * len(labels) + 0.5, left=False, grid=None)
    numbers = [float(found.low) for found in values]
    for place, (found, role) in enumerate(zip(values, roles, strict=True)):
        style.labelled_bar(axes, len(labels) - 1 - place, numbers[place], role, found.text)
    axes.set_yticks(range(len(labels)), list(reversed(labels)))
    axes.tick_params(axis="y", length=0)
    axes.spines["bottom"].set_visible(False)
    if log:
        axes.set_xscale("log")
        axes.set_xlim(min(numbers) / 10, max(numbers) * 300)
    else:
        axes.set_xlim(0, max(numbers) * 1.35)
    axes.set_xticks([])
    axes.set_xticks([], minor=True)
    return drawing
