"""The pages in the order of the navigation, and addresses between them."""

from __future__ import annotations

import posixpath
import re

from scripts.chapters import Chapter
from scripts.tree import Tree

CONFIG = "mkdocs.yml"
_ENTRY = re.compile(r"^\s+- (?:.*?:\s+)?['\"]?([\w./-]+\.md)['\"]?\s*$", re.MULTILINE)
_SECTION = re.compile(r"(\d)-(\d)-")
_CHAPTER = re.compile(r"manuals/olmo-core-trainer/(\d+)-")  # its chapters have one number


def pages(tree: Tree) -> list[str]:
    """Paths of the chapters that mkdocs.yml names, below the root and in its order."""
    text = tree.text(CONFIG)
    start = text.find("\nnav:")
    return [f"manuals/{name}" for name in _ENTRY.findall(text[start:])] if start >= 0 else []


def target(page: str, href: str) -> tuple[str, str]:
    """(path, fragment) of an internal address on a page: ('manuals/miles-101/x.md', 'step')."""
    path, _, fragment = href.partition("#")
    if not path:
        return page, fragment
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path)), fragment


def relative(page: str, other: str) -> str:
    """The address of another page as a link on `page` writes it."""
    return posixpath.relpath(other, posixpath.dirname(page))


def label(path: str, chapter: Chapter | None = None) -> str:
    """How a table names a page: '1.2' or, of the second manual, 'Core 5'; else its title."""
    match = _SECTION.match(posixpath.basename(path))
    if match:
        return f"{match[1]}.{match[2]}"
    chapter_number = _CHAPTER.match(path)
    if chapter_number:
        return f"Core {chapter_number[1]}"
    return str(chapter.front.get("title", path)) if chapter else path
