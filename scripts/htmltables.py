"""Tables of the built pages: each scrolls on its own, and on a phone becomes a list of rows.

The theme wraps tables in JavaScript after the first paint, which moves the page. Here they are
wrapped before. Every cell also carries the heading of its column, which a phone shows beside it.
"""

from __future__ import annotations

import re

_PLAIN = re.compile(r"<table>(.*?)</table>", re.DOTALL)
_MADE = re.compile(r'(<table class="fig-data"[^>]*>)(.*?)(</table>)', re.DOTALL)
_HEADING = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_ROW = re.compile(r"<tr>(.*?)</tr>", re.DOTALL)
_CELL = re.compile(r"<td(?=[\s>])")
_TAG = re.compile(r"<[^>]+>")
STACKED_FROM = 3  # columns; a table of two fits a phone as it is


def labelled(inner: str) -> tuple[str, int]:
    """The inside of a table with each cell's heading as `data-label`, and the number of columns."""
    head, found, body = inner.partition("</thead>")
    names = [_TAG.sub("", text).strip().replace('"', "&quot;") for text in _HEADING.findall(head)]
    if not found or not names:
        return inner, 0

    def row(match: re.Match[str]) -> str:
        labels = iter(names)
        return _CELL.sub(lambda _: f'<td data-label="{next(labels, "")}"', match[0])

    return head + found + _ROW.sub(row, body), len(names)


def _css(columns: int) -> str:
    return " stacked" if columns >= STACKED_FROM else ""


def wrapped(page: str) -> str:
    """A page whose tables stand in frames of their own, and whose cells know their column."""

    def plain(match: re.Match[str]) -> str:
        inner, columns = labelled(match[1])
        return (
            '<div class="table-frame" tabindex="0">'
            f'<table class="data{_css(columns)}">{inner}</table></div>'
        )

    def made(match: re.Match[str]) -> str:
        inner, columns = labelled(match[2])
        opening = match[1].replace('"fig-data"', f'"fig-data data{_css(columns)}"')
        return opening + inner + match[3]

    return _MADE.sub(made, _PLAIN.sub(plain, page))
