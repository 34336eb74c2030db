"""A figure that is a table of published values: labels first, the value last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from figures.registry import Figure
from figures.values import Value

SHAPE = "A table of published values, one row each."


def published_table(
    values: Sequence[Value],
    labels: Sequence[Sequence[Any]],
    columns: Mapping[str, str],
    shape: str = SHAPE,
) -> Figure:
    """One row a value.

    labels: one entry a value; its first texts fill the columns before the last, what follows them
    in the entry is not shown. columns: key -> heading; the last column shows the value.
    Raises ValueError for another number of values than of labels.
    """
    keys = list(columns)
    rows = [
        dict(zip(keys, [*label[: len(keys) - 1], value.text], strict=True))
        for label, value in zip(labels, values, strict=True)
    ]
    return Figure(shape=shape, values=values, rows=rows, columns=columns)
