"""Checks terms: no page uses a term before the page that introduces it, in the order of the site.

The terms stand in `manuals/glossary.toml`. The page that a term names has it in bold. A page that
comes earlier may use it when its first use is a link to the glossary or to the page that introduces
it. Headings, code, tables that are made from data and the texts of other links are no uses, and
neither are the uses of a term that is an ordinary word too (`common`).
Bold of one to three words inside a sentence introduces a term, so it must be one; bold that begins
a paragraph or a list item is free, and so is bold that ends like a sentence: both are headings.

`python3 -m scripts.terms` prints the problems.
Exit codes: 0 fine, 1 something is wrong, 2 bad usage, 3 inspected nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scripts import navigation
from scripts.chapters import Block, Chapter, ChapterError, Link, parse
from scripts.glossary import PAGE, PATH, GlossaryError, Term, introduction, read
from scripts.report import Report
from scripts.tree import ROOT, Tree

MOST_WORDS = 3  # bold that is longer stresses a sentence and names nothing
_OF_A_SENTENCE = re.compile(r"\w")


def leads_to(term: Term, page: str, link: Link) -> bool:
    """True when a link goes to the entry of the term or to the page that introduces it."""
    path, fragment = navigation.target(page, link.href)
    return path == term.page or (path == PAGE and fragment == term.anchor)


def uses(term: Term, page: str, block: Block) -> Iterator[tuple[int, bool]]:
    """(offset, is it linked as it should) of each use of a term in a block of prose."""
    if block.heading:
        return
    for match in term.pattern.finditer(block.text):
        start, end = match.span()
        if any(first < end and start < last for first, last in block.code):
            continue
        link = next((one for one in block.links if one.start < end and start < one.end), None)
        if link is None:
            yield start, False
        elif leads_to(term, page, link):
            yield start, True


def first_use(term: Term, chapter: Chapter) -> tuple[int, bool] | None:
    """Line of the first use on a page, and if it is linked; None when there is none."""
    for block in chapter.blocks:
        for offset, linked in uses(term, chapter.path, block):
            return block.line_at(offset), linked
    return None


def bold_words(block: Block) -> Iterator[tuple[int, str]]:
    """(offset, text) of the bold of a block that stands inside a sentence and is short."""
    for start, end in block.strong:
        text = block.text[start:end].strip()
        if any(first < end and start < last for first, last in block.code):
            continue
        heading = not _OF_A_SENTENCE.search(block.text[:start]) or text.endswith((".", ":", "?"))
        if not heading and len(text.split()) <= MOST_WORDS:
            yield start, text


def check_introductions(
    terms: Sequence[Term], chapters: Mapping[str, Chapter], report: Report
) -> None:
    """Each term has a page in the navigation, and that page has it in bold."""
    for term in terms:
        report.count("terms")
        chapter = chapters.get(term.page)
        if chapter is None:
            text = f"{term.name!r}: no page {term.page} in {navigation.CONFIG}"
            report.error(PATH, term.line, text)
        elif introduction(chapter, term) is None:
            report.error(PATH, term.line, f"{term.name!r}: {term.page} has it nowhere in bold")


def check_order(terms: Sequence[Term], chapters: Mapping[str, Chapter], report: Report) -> None:
    """No page of the order uses a term of a later page without a link."""
    order = {path: place for place, path in enumerate(chapters)}
    for term in terms:
        if term.common:
            report.count("ordinary words")
            continue
        for path, chapter in chapters.items():
            if path == PAGE or order[path] >= order.get(term.page, 0):
                continue
            report.count("pages before their term")
            use = first_use(term, chapter)
            if use is not None and not use[1]:
                text = (
                    f"{term.name!r} is used before {term.page} introduces it; "
                    f"link its first use here to {navigation.relative(path, PAGE)}#{term.anchor}"
                )
                report.error(path, use[0], text)


def check_bold(terms: Sequence[Term], chapters: Mapping[str, Chapter], report: Report) -> None:
    """Short bold inside a sentence is a term of the glossary."""
    for path, chapter in chapters.items():
        for block in chapter.blocks:
            for offset, text in bold_words(block):
                report.count("bold words")
                if not any(term.is_called(text) for term in terms):
                    report.error(
                        path,
                        block.line_at(offset),
                        f"{text!r} is in bold as a term, and {PATH} has no such term",
                    )


def check_anchors(terms: Sequence[Term], chapters: Mapping[str, Chapter], report: Report) -> None:
    """Every link into the glossary names a term of it."""
    known = {term.anchor for term in terms}
    for path, chapter in chapters.items():
        for link in chapter.links:
            page, fragment = navigation.target(path, link.href)
            if page == PAGE and fragment.startswith("term"):
                report.count("links to terms")
                if fragment not in known:
                    report.error(path, link.line, f"link {link.href!r}: no such term in {PATH}")


def check(root: Path = ROOT, overlay: Mapping[str, bytes] | None = None) -> Report:
    """Check the repository at `root`; `overlay` (path -> bytes) replaces files in memory."""
    tree = Tree(root, overlay or {})
    report = Report()
    try:
        terms = read(tree)
    except (GlossaryError, OSError) as error:
        line, text = getattr(error, "line", 0), getattr(error, "text", str(error))
        report.error(PATH, line, text)
        return report
    chapters: dict[str, Chapter] = {}
    for path in navigation.pages(tree):
        try:
            if tree.exists(path):
                chapters[path] = parse(path, tree.text(path))
        except ChapterError as error:
            report.error(error.path, error.line, error.text)
    report.count("pages", len(chapters))
    check_introductions(terms, chapters, report)
    check_order(terms, chapters, report)
    check_bold(terms, chapters, report)
    check_anchors(terms, chapters, report)
    return report


if __name__ == "__main__":
    from scripts.cli import main

    raise SystemExit(main("terms", check, __doc__))
