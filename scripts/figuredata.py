"""What the checks and the renderer need from the figure registry.

`Book` is the seam: `RegistryBook` reads `figures.registry`, tests give their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


class BookError(ValueError):
    """A figure that cannot be computed: its evidence is missing or refuses."""


class ShownValue(Protocol):
    """One value: `text` as displayed, exact `numbers` (one, or two ends), stable `quantity`."""

    name: str
    quantity: str
    runs: tuple[str, ...]

    @property
    def text(self) -> str: ...

    @property
    def numbers(self) -> tuple[Any, ...]: ...


class ShownFigure(Protocol):
    """One built figure; `figures.registry.BuiltFigure` is the real one."""

    id: str
    tier: str
    runs: tuple[str, ...]
    values: Mapping[str, Any]

    @property
    def table(self) -> Sequence[Sequence[str]] | None: ...

    def wording_errors(self, text: str, names: Sequence[str] = ()) -> list[str]: ...


class Book(Protocol):
    """The figure registry."""

    def ids(self) -> list[str]:
        """Every registered figure id."""
        ...

    def build(self, figure_id: str) -> Any:
        """Compute one figure; BookError when that is not possible."""
        ...


class RegistryBook:
    """The figures of this repository, with evidence read below a root and through an overlay."""

    def ids(self) -> list[str]:
        """Every registered figure id."""
        from figures import registry

        return registry.load_all()

    def build(self, figure_id: str) -> Any:
        """Compute one figure; BookError names what the evidence refused."""
        from figures import registry

        try:
            return registry.build(figure_id)
        except (registry.FigureError, registry.EvidenceError, ValueError, LookupError) as error:
            text = f"{error!r}" if isinstance(error, LookupError) else str(error)
            raise BookError(text) from error


@contextlib.contextmanager
def open_book(root: Path, overlay: Mapping[str, bytes]) -> Iterator[RegistryBook]:
    """The registry, reading evidence below `root` with `overlay` in front of the files."""
    from figures import evidence

    with evidence.use_root(root), evidence.use_overlay(overlay):
        yield RegistryBook()
