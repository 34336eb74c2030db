"""The ```sections``` fence of a part page: one card for each page that follows it in its group.

A card says what the reader can do afterwards, gives the result sentence of the page with its
numbers as links, and its reading time. Everything comes from the pages themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Any

import yaml

from scripts import claims, holds, navigation, pageframe
from scripts.chapters import Chapter, ChapterError
from scripts.tree import Tree

_RESULT = re.compile(
    r"^\*\*The result in one sentence\.\*\*\s*(.+?)\n\s*\n", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"(?<=\]\()[^)\s]+(?=\))")


def _groups(entries: list[Any]) -> Iterator[list[str]]:
    """The pages of every group of the navigation that stand in it directly."""
    direct = []
    for entry in entries:
        target = next(iter(entry.values())) if isinstance(entry, dict) else entry
        if isinstance(target, list):
            yield from _groups(target)
        else:
            direct.append(f"manuals/{target}")
    yield direct


def followers(tree: Tree, path: str) -> list[str]:
    """The pages that follow `path` in its group of the navigation."""
    nav = yaml.safe_load(tree.text(navigation.CONFIG)).get("nav", [])
    group = next((group for group in _groups(nav) if path in group), [])
    return group[group.index(path) + 1 :] if path in group else []


def result(tree: Tree, page: str, shown_on: str) -> str:
    """The result sentence of a page as Markdown whose links work on another page; '' for none."""
    found = _RESULT.search(tree.text(page))
    if not found:
        return ""

    def link(match: re.Match[str]) -> str:
        path, fragment = navigation.target(page, match[0])
        return navigation.relative(shown_on, path) + (f"#{fragment}" if fragment else "")

    return _LINK.sub(link, found[1].strip())


def cards(tree: Tree, chapter: Chapter, pages: claims.Pages) -> str:
    """The cards as Markdown and HTML. ChapterError when the page leads no group."""
    listed = [path for path in followers(tree, chapter.path) if path in pages.chapters]
    if not listed:
        line = chapter.of("sections")[0].line
        raise ChapterError(chapter.path, line, "no page follows this one in its group of the nav")
    made = [card(tree, chapter.path, path, pages) for path in listed]
    return "\n".join(['<div class="cards" markdown>', *made, "</div>"])


def card(tree: Tree, shown_on: str, path: str, pages: claims.Pages) -> str:
    """One card."""
    target = pages.chapters[path]
    title = str(target.front.get("title", path))
    held = holds.of(pages, path)
    badges = [pageframe.badge("reading", f"{held.minutes} min", "quiet")]
    badges += [
        pageframe.badge(tier, pageframe.counted(number, "figure"), tier)
        for tier, number in held.tiers.items()
        if tier != "diagram"
    ]
    lines = [
        '<section class="card" markdown>',
        f"## [{title}]({navigation.relative(shown_on, path)})",
        "",
        f'<p class="card-outcome">{escape(str(target.front.get("outcome", "")), quote=False)}</p>',
        "",
        result(tree, path, shown_on),
        "",
        f'<ul class="badges">{"".join(badges)}</ul>',
        "</section>",
    ]
    return "\n".join(lines)
