"""Draws every figure in both widths and checks what was drawn.

Each drawing must carry alt text and hold only the page's colours (the drawing code refuses
others). The values must be the same when computed again; that the bytes are, is a test.

`python3 -m scripts.drawings` prints the problems. Exit codes: 0 fine, 1 something is wrong,
2 bad usage, 3 inspected nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lxml import etree

from scripts.figuredata import Book, BookError, open_book
from scripts.report import Report
from scripts.tree import ROOT


def drawing_problems(figure: Any, narrow: bool) -> list[str]:
    """What is wrong with one drawing of a figure."""
    width = "narrow" if narrow else "wide"
    claim = "Claim."
    drawn = figure.svg(narrow=narrow, claim=claim, title="Title")
    if drawn is None:
        return [f"has no {width} drawing"]
    problems = []
    try:
        tree = etree.fromstring(drawn.encode())
    except etree.XMLSyntaxError as error:
        return [*problems, f"the {width} drawing is no XML: {error}"]
    texts = {element.tag.rsplit("}", 1)[-1]: element.text for element in tree[:2]}
    if not texts.get("title") or claim not in (texts.get("desc") or ""):
        problems.append(f"the {width} drawing has no title or no alt text")
    return problems


def check_book(book: Book) -> Report:
    """Draw every figure of a registry."""
    report = Report()
    for figure_id in book.ids():
        try:
            figure, again = book.build(figure_id), book.build(figure_id)
        except BookError as error:
            report.error("figures/", 0, f"{figure_id} cannot be computed: {error}")
            continue
        report.count("figures")
        report.count("values", len(figure.values))
        if {n: v.numbers for n, v in figure.values.items()} != {
            n: v.numbers for n, v in again.values.items()
        }:
            report.error("figures/", 0, f"{figure_id}: values differ when computed again")
        if not figure.csv().strip():
            report.error("figures/", 0, f"{figure_id}: no data")
        if figure.table is not None:
            report.count("tables")
            continue
        for narrow in (False, True):
            report.count("drawings")
            try:
                problems = drawing_problems(figure, narrow)
            except ValueError as error:
                problems = [str(error)]
            for problem in problems:
                report.error("figures/", 0, f"{figure_id}: {problem}")
    return report


def check(root: Path = ROOT, overlay: Mapping[str, bytes] | None = None) -> Report:
    """Draw every figure of the repository at `root`."""
    with open_book(root, overlay or {}) as book:
        return check_book(book)


if __name__ == "__main__":
    from scripts.cli import main

    raise SystemExit(main("drawings", check, __doc__))
