"""Fixtures: a small repository and its figure registry."""

from __future__ import annotations

from pathlib import Path

import pytest
from minirepo import OTHER, PAGE, FakeBook, FakeFigure, value

from scripts.tree import Tree


@pytest.fixture
def figure():
    """The figure that PAGE shows."""
    values = (
        value("steps", 12, "", 0, kind="count", noun="steps"),
        value("first", 233.4, "s", 0, kind="time"),
        value("share", (40.2, 44.6), "percent", 0, kind="share"),
    )
    return FakeFigure("fig-a-steps", {v.name: v for v in values})


@pytest.fixture
def diagram(book):
    """The figure that DIAGRAM shows, in the registry."""
    text = "drawn from the code"
    made = FakeFigure("fig-d", {}, tier="diagram", runs=(), strength_text=text, recompute="")
    book.figures[made.id] = made
    return made


@pytest.fixture
def book(figure):
    """A registry with that figure."""
    return FakeBook({figure.id: figure})


@pytest.fixture
def repo(tmp_path):
    """Writes chapters into a fresh folder: repo(page, other) -> Tree."""

    def make(page: str = PAGE, other: str | None = OTHER, **files: str) -> Tree:
        folder = tmp_path / "manuals"
        folder.mkdir(exist_ok=True)
        (folder / "one.md").write_text(page, encoding="utf-8")
        if other is not None:
            (folder / "two.md").write_text(other, encoding="utf-8")
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return Tree(Path(tmp_path))

    return make
