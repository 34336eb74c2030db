"""Checks every number of the chapters against the figures, in both directions.

`python3 -m scripts.claims` prints the problems and ends with the counts.
Exit codes: 0 fine, 1 something is wrong, 2 bad usage, 3 inspected nothing.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from figures import wording
from scripts import context, exemptions, figblocks, findnumbers, quantities, unlinked
from scripts.chapters import FILL, Block, Chapter, ChapterError, Link, parse
from scripts.figblocks import FigureBlock
from scripts.figuredata import Book, BookError, open_book
from scripts.report import Report
from scripts.tree import ROOT, Tree

FIGURE_LINK = re.compile(r"(?P<page>[^#]*)#(?P<id>fig-[a-z0-9-]+)(?::(?P<name>\w+))?")

_ORDINAL = re.compile(r"\bstep\s\Z", re.IGNORECASE)  # "step 0" names a step and counts nothing
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"\u201d')]*\s+(?=[A-Z\"\u201c`'*(])")


@dataclass
class Pages:
    """Every parsed chapter, its figure blocks by (page, id), and the figures that were built."""

    chapters: dict[str, Chapter]
    blocks: dict[tuple[str, str], FigureBlock]
    figures: dict[str, Any] = field(default_factory=dict)
    used: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def first_block(self, figure_id: str) -> FigureBlock:
        """The first block that shows a figure."""
        return next(block for (_, shown), block in self.blocks.items() if shown == figure_id)

    def pages_of(self, figure_id: str) -> list[str]:
        """The pages that show a figure."""
        return [path for path, shown in self.blocks if shown == figure_id]


def load(tree: Tree, report: Report) -> Pages:
    """Parse every chapter; what cannot be read, and a figure twice on a page, become problems."""
    chapters: dict[str, Chapter] = {}
    blocks: dict[tuple[str, str], FigureBlock] = {}
    for path in tree.chapters():
        try:
            chapter = parse(path, tree.text(path))
        except ChapterError as error:
            report.error(error.path, error.line, error.text)
            continue
        chapters[path] = chapter
        found, errors = figblocks.figure_blocks(chapter)
        for error in errors:
            report.error(error.path, error.line, error.text)
        for block in found:
            other = blocks.setdefault((path, block.id), block)
            if other is not block:
                report.error(path, block.line, f"figure {block.id} is on line {other.line} already")
    return Pages(chapters, blocks)


def build_figures(pages: Pages, book: Book, report: Report) -> None:
    """Build each figure that a page shows; ids are compared with the registry both ways."""
    known = set(book.ids())
    shown = {figure_id for _, figure_id in pages.blocks}
    for figure_id in sorted(shown):
        block = pages.first_block(figure_id)
        if figure_id not in known:
            report.error(block.path, block.line, f"no figure {figure_id!r} in figures/")
            continue
        report.count("figures")
        try:
            pages.figures[figure_id] = book.build(figure_id)
        except BookError as error:
            report.error(block.path, block.line, f"{figure_id} cannot be computed: {error}")
    for figure_id in sorted(known - shown):
        report.error("figures/", 0, f"figure {figure_id} is on no page")


def describe(value: Any, tier: str) -> str:
    """What a figure computed, for an error: text, runs and tier."""
    runs = ", ".join(value.runs) or "no run"
    return f"computed is {value.text!r} from {runs} ({tier})"


def check_claims(pages: Pages, exempt: Mapping[str, exemptions.Exemptions], report: Report) -> None:
    """Holes of titles, claims and captions have values, other digits are exempt, wording holds."""
    for (path, figure_id), block in pages.blocks.items():
        figure = pages.figures.get(figure_id)
        for key, template, line in block.texts():
            for start, end in findnumbers.find_numbers(figblocks.blanked(template)):
                ordinal = _ORDINAL.search(template[:start])
                if not ordinal and not exempt[path].allow(template, start, end):
                    number = template[start:end]
                    text = f"{key} of {figure_id} types {number!r}; use a value or an exemption"
                    report.error(path, line, text)
            if figure is None:
                continue
            for problem in diagram_problems(figure, template):
                report.error(path, line, f"{key} of {figure_id} {problem}")
            names = figblocks.holes(template)
            for name in names:
                if name in figure.values:
                    pages.used[figure_id].add(name)
                    report.count("numbers in claims")
                else:
                    known = ", ".join(sorted(figure.values)) or "no values"
                    text = f"{key} of {figure_id} asks for {{{name}}}; the figure has {known}"
                    report.error(path, line, text)
            if set(names) <= set(figure.values):
                report.count("claims", key == "claim")
                for problem in sentence_problems(figure, key, template):
                    report.error(path, line, f"{key} of {figure_id} {problem}")


def diagram_problems(figure: Any, template: str) -> list[str]:
    """A diagram has no values, so its sentences state no measured-looking number, exempt or not."""
    if figure.tier != "diagram":
        return []
    spans = findnumbers.find_measured(figblocks.blanked(template))
    return [
        f"states {template[start:end]!r}, and a diagram shows no number" for start, end in spans
    ]


def sentence_problems(figure: Any, key: str, template: str) -> list[str]:
    """What the title, claim or caption of a figure says that its values do not."""
    texts = {name: value.text for name, value in figure.values.items()}
    text, spans = figblocks.fill_with_spans(template, texts)
    found = []
    for name, start, end in spans:
        value = figure.values[name]
        unit = quantities.canonical_unit(value.unit) if text[start:end] == value.text else ""
        problem = context.problem(text, start, end, unit, context.nouns_of(value))
        if problem:
            found.append(f"states {{{name}}} and {problem}")
    if key == "claim" or figure.tier == "diagram":
        return found + figure.wording_errors(text, [name for name, _, _ in spans])
    return found + wording.sentence_errors(text, [figure.strength])


def check_links(pages: Pages, report: Report) -> dict[str, list[Link]]:
    """Check every link into a figure. Returns the links that state a value, by page."""
    stating: dict[str, list[Link]] = defaultdict(list)
    for path, chapter in pages.chapters.items():
        for block, link in [(b, found) for b in chapter.blocks for found in b.links]:
            match = FIGURE_LINK.fullmatch(link.href)
            if match is None:
                if "#fig-" in link.href:
                    report.error(path, link.line, f"link {link.href!r} names no figure value")
                continue
            target = path
            if match["page"]:
                folder = posixpath.dirname(path)
                target = posixpath.normpath(posixpath.join(folder, match["page"]))
            if (target, match["id"]) not in pages.blocks:
                shown = ", ".join(pages.pages_of(match["id"])) or "no page"
                text = f"link {link.href!r}: {match['id']} is not on {target} but on {shown}"
                report.error(path, link.line, text)
            elif match["name"]:
                stating[path].append(link)
                _check_number(pages, path, block, link, match, report)
    return stating


def _check_number(
    pages: Pages, path: str, block: Block, link: Link, match: re.Match[str], report: Report
) -> None:
    figure_id, name = match["id"], match["name"]
    figure = pages.figures.get(figure_id)
    if figure is None:
        return  # its block has an error of its own
    value = figure.values.get(name)
    if value is None:
        known = ", ".join(sorted(figure.values)) or "none"
        report.error(path, link.line, f"link {link.href!r}: no value {name!r}; there are {known}")
        return
    pages.used[figure_id].add(name)
    report.count("number links")
    problem = number_problem(link.text, value)
    if problem:
        computed = describe(value, figure.tier)
        text = f"{link.text!r} is written, {computed} at {figure_id}:{name}; {problem}"
        report.error(path, link.line, text)
        return
    stated = quantities.unit_of(link.text)
    problem = context.problem(block.text, link.start, link.end, stated, context.nouns_of(value))
    if problem:
        text = f"{link.text!r} states {figure_id}:{name} = {value.text!r}, but {problem}"
        report.error(path, link.line, text)


def check_prose(pages: Pages, stating: Mapping[str, list[Link]], report: Report) -> None:
    """Hold each sentence that links numbers to the evidence of all of them.

    Title and outcome of a page have no evidence of their own, so they may not be general.
    """
    for path, chapter in pages.chapters.items():
        for key in ("title", "outcome"):
            for problem in wording.sentence_errors(str(chapter.front.get(key, "")), []):
                report.error(path, chapter.front_line(f"{key}:"), f"{key} of the page {problem}")
        linked = {id(link) for link in stating[path]}
        for block in chapter.blocks:
            links = [link for link in block.links if id(link) in linked]
            text = block.without([(link.start, link.end) for link in links])
            for start, end in sentences(text):
                strengths = []
                for link in links:
                    match = FIGURE_LINK.fullmatch(link.href)
                    figure = pages.figures.get(match["id"]) if match else None
                    if start <= link.start < end and figure and match["name"] in figure.values:
                        strengths.append(figure.claim_strength([match["name"]]))
                if not strengths:
                    continue
                report.count("sentences with numbers")
                for problem in wording.sentence_errors(text[start:end], strengths):
                    said = text[start:end].replace(FILL, "").strip()[:60]
                    line = block.line_at(start)
                    report.error(path, line, f"the sentence {said!r}... {problem}")


def sentences(text: str) -> list[tuple[int, int]]:
    """Spans of the sentences of a paragraph."""
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    return list(zip([0, *ends], [*ends, len(text)], strict=True))


def number_problem(text: str, value: Any) -> str | None:
    """Why a link text does not state a value, or None when it does."""
    clean = quantities.squeeze(text)
    if clean == quantities.squeeze(value.text):
        return None
    try:
        written = quantities.parse(clean)
    except quantities.QuantityError as error:
        return str(error)
    try:
        shown = quantities.parse(value.text)
    except quantities.QuantityError:
        return "the value is no number, so its exact text must be written"
    numbers = tuple(map(quantities.exact, value.numbers))
    return quantities.mismatch(written, shown, numbers, context.nouns_of(value))


def check_use(pages: Pages, report: Report) -> None:
    """Every value of a shown figure is stated: in its claim, in a link or in its table."""
    for figure_id, figure in pages.figures.items():
        cells = "\n".join(cell for row in (figure.table or []) for cell in row)
        for name, value in figure.values.items():
            report.count("values")
            if getattr(value, "kind", "") == "count" and not context.nouns_of(value):
                report.error("figures/", 0, f"{figure_id}:{name} counts something without a noun")
            if name in pages.used[figure_id] or _in_cells(value, cells):
                continue
            block = pages.first_block(figure_id)
            text = f"value {figure_id}:{name} = {value.text!r} is stated nowhere"
            report.error(block.path, block.line, text)


def _in_cells(value: Any, cells: str) -> bool:
    bare = getattr(value, "bare", value.text)
    return re.search(rf"(?<![\w.,]){re.escape(bare)}(?![\w]|[.,]\d)", cells) is not None


def check_agreement(pages: Pages, report: Report) -> None:
    """The same quantity has the same number in every figure that states it."""
    first: dict[str, tuple[str, Any]] = {}
    for figure_id in sorted(pages.figures):
        figure = pages.figures[figure_id]
        for value in figure.values.values():
            seen_at, seen = first.setdefault(value.quantity, (figure_id, value))
            if seen is not value:
                report.count("quantities stated twice")
            if (seen.numbers, seen.unit) != (value.numbers, value.unit):
                block = pages.first_block(figure_id)
                text = (
                    f"{figure_id}:{value.name}: {describe(value, figure.tier)}, but "
                    f"{seen_at}:{seen.name} is {seen.text!r}; both are {value.quantity}"
                )
                report.error(block.path, block.line, text)


def check_tree(tree: Tree, book: Book, recipe: Mapping[str, str] | None = None) -> Report:
    """Run every claim check over a tree. `recipe` stands in for the launcher's default flags."""
    report = Report()
    pages = load(tree, report)
    build_figures(pages, book, report)
    check_pages(pages, tree, report, recipe)
    return report


def check_pages(
    pages: Pages, tree: Tree, report: Report, recipe: Mapping[str, str] | None = None
) -> None:
    """Check what pages with their figures say; the problems are sorted."""
    exempt = {path: exemptions.read(chapter, report) for path, chapter in pages.chapters.items()}
    check_claims(pages, exempt, report)
    stating = check_links(pages, report)
    check_prose(pages, stating, report)
    unlinked.check_unlinked(pages.chapters, stating, exempt, report)
    check_use(pages, report)
    check_agreement(pages, report)
    exemptions.verify(tree, list(exempt.values()), report, recipe)
    report.count("pages", len(pages.chapters))
    report.problems.sort()


def check(root: Path = ROOT, overlay: Mapping[str, bytes] | None = None) -> Report:
    """Check the repository at `root`; `overlay` (path -> bytes) replaces files in memory."""
    with open_book(root, overlay or {}) as book:
        return check_tree(Tree(root, overlay or {}), book)


if __name__ == "__main__":
    from scripts.cli import main

    raise SystemExit(main("claims", check, __doc__))
