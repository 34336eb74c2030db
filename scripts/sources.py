"""Checks sources: `manuals/sources.toml` is whole, and pages and file agree in both directions.

Every address outside the site that a page links to, or writes as text, is the `url` of a source;
every link to a page of sources names one that it lists; every source is linked by a page, or says
why none does. Commands and listings are no links.

`python3 -m scripts.sources` prints the problems.
Exit codes: 0 fine, 1 something is wrong, 2 bad usage, 3 inspected nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from figures.citations import PATH, Source
from figures.evidence import EvidenceError
from scripts import navigation, sourcetables
from scripts.chapters import Chapter, ChapterError, parse
from scripts.report import Report
from scripts.tree import ROOT, Tree

_OUTSIDE = re.compile(r"(?:https?:)?//[^\s<>\"'\u201c\u201d\ufffc|`]+", re.IGNORECASE)
_TAG_TARGET = re.compile(r"\b(?:href|src)\s*=\s*[\"']?((?:https?:)?//[^\s\"'>]+)", re.IGNORECASE)
_LOCAL = re.compile(r"(?:https?:)?//(?:localhost|127\.0\.0\.1|0\.0\.0\.0)\b")


def plain(url: str) -> str:
    """An address without fragment, closing sign and last slash."""
    return url.partition("#")[0].rstrip(".,;:!?)").rstrip("/")


def outside(chapter: Chapter, source: str) -> Iterator[tuple[int, str]]:
    """(line, address) of everything outside the site that the prose of a page leads to."""
    inside = [(fence.line, fence.end) for fence in chapter.fences]
    for block in chapter.blocks:
        for link in block.links:
            if _OUTSIDE.match(link.href):
                yield link.line, link.href
        text = block.without([*block.code, *((link.start, link.end) for link in block.links)])
        for match in _OUTSIDE.finditer(text):
            if re.match(r"https?:", match[0], re.IGNORECASE):
                yield block.line_at(match.start()), match[0]
    for number, text in enumerate(source.splitlines(), start=1):
        if not any(first <= number <= last for first, last in inside):
            for match in _TAG_TARGET.finditer(re.sub(r"`[^`]*`", "", text)):
                yield number, match[1]


def entry_line(text: str, source_id: str) -> int:
    """Line of a source in sources.toml."""
    found = re.search(rf'^id = "{re.escape(source_id)}"$', text, re.MULTILINE)
    return text.count("\n", 0, found.start()) + 1 if found else 0


def check_links(
    tree: Tree, path: str, known: Mapping[str, Source], urls: set[str], report: Report
) -> None:
    """Hold every address of one page against the sources."""
    text = tree.text(path)
    try:
        chapter = parse(path, text)
    except ChapterError as error:
        report.error(error.path, error.line, error.text)
        return
    report.count("pages")
    for line, url in sorted(set(outside(chapter, text))):
        if _LOCAL.match(url):
            continue
        report.count("links that leave the site")
        if plain(url) not in urls:
            report.error(path, line, f"{url} is the url of no source in {PATH}")
    for link in chapter.links:
        page, fragment = navigation.target(path, link.href)
        if page in sourcetables.PAGES.values() and fragment and path != page:
            report.count("citations")
            if fragment not in known:
                report.error(path, link.line, f"link {link.href!r}: no source {fragment!r}")
            elif sourcetables.page_of(known[fragment]) != page:
                listed = sourcetables.page_of(known[fragment])
                report.error(path, link.line, f"link {link.href!r}: {fragment} is on {listed}")


def check(root: Path = ROOT, overlay: Mapping[str, bytes] | None = None) -> Report:
    """Check the repository at `root`; `overlay` (path -> bytes) replaces files in memory."""
    tree = Tree(root, overlay or {})
    report = Report()
    try:
        found = sourcetables.read(tree)
    except EvidenceError as error:
        report.error(PATH, 0, str(error).removeprefix(f"{PATH}: "))
        return report
    known = {source.id: source for source in found}
    urls = {plain(source.url) for source in found if source.url}
    for path in tree.chapters():
        check_links(tree, path, known, urls, report)
    pages = sourcetables.cited_on(tree)
    for source in found:
        report.count("sources")
        report.count("values", len(source.values))
        line = entry_line(tree.text(PATH), source.id)
        if not pages.get(source.id) and not source.uncited:
            report.error(PATH, line, f"no page links to {source.id}, and it has no uncited reason")
        elif pages.get(source.id) and source.uncited:
            report.error(PATH, line, f"{source.id} says why no page cites it, and one does")
    return report


if __name__ == "__main__":
    from scripts.cli import main

    raise SystemExit(main("sources", check, __doc__))
