"""Tables of the pages of sources: one a rank, with an anchor a row, and one of all their values.

Each manual has such a page. A source stands on that of the manual which brought it in, and a page
of any manual may cite it there.
"""

from __future__ import annotations

from collections.abc import Callable

from figures import citations, evidence
from figures.values import Value
from scripts import navigation
from scripts.chapters import ChapterError, parse
from scripts.tree import Tree

PAGES = {manual: f"manuals/{manual}/reference-sources.md" for manual in citations.MANUALS}


def page_of(source: citations.Source) -> str:
    """The page that has the row of a source."""
    return PAGES[source.manual]


def read(tree: Tree) -> tuple[citations.Source, ...]:
    """The sources of a tree. EvidenceError names what is wrong with the file."""
    with evidence.use_root(tree.root), evidence.use_overlay(tree.overlay):
        return citations.sources()


def cited_on(tree: Tree) -> dict[str, list[str]]:
    """Source id -> pages that link to it, in the order of the navigation."""
    order = {path: place for place, path in enumerate(navigation.pages(tree))}
    found: dict[str, list[str]] = {}
    for path in sorted(tree.chapters(), key=lambda path: (order.get(path, len(order)), path)):
        if path in PAGES.values():
            continue
        try:
            links = parse(path, tree.text(path)).links
        except ChapterError:
            continue  # the other checks name it
        for link in links:
            page, fragment = navigation.target(path, link.href)
            if page in PAGES.values() and path not in found.setdefault(fragment, []):
                found[fragment].append(path)
    return found


def _pages(tree: Tree, paths: list[str], here: str) -> str:
    links = []
    for path in paths:
        name = navigation.label(path, parse(path, tree.text(path)))
        links.append(f"[{name}]({navigation.relative(here, path)})")
    return ", ".join(links)


def _row(tree: Tree, source: citations.Source, pages: list[str]) -> list[str]:
    title = f"[{source.title}]({source.url})" if source.url else source.title
    about = [f"Read {source.read}." if source.read else ""]
    about += [source.note, *(f"Lost: {text}." for text in source.lost)]
    used = _pages(tree, pages, page_of(source)) or f"none: {source.uncited}"
    anchor = f'<span id="{source.id}"></span>'
    return [f"{anchor}{title}", source.setup, " ".join(filter(None, about)), used]


def rank_table(manual: str, rank: int) -> Callable[[Tree], list[list[str]]]:
    """The maker of the table of one rank: source, setup, how it was read, where it is cited."""

    def rows(tree: Tree) -> list[list[str]]:
        pages = cited_on(tree)
        return [
            ["source", "who, and on what", "what this project has of it", "cited on"],
            *(
                _row(tree, source, pages.get(source.id, []))
                for source in read(tree)
                if source.rank == rank and source.manual == manual
            ),
        ]

    return rows


def source_values(tree: Tree) -> list[list[str]]:
    """Every value that a source gives: id, what it is, the number, who published it."""
    rows = [["value", "what it is", "published", "by"]]
    for source in read(tree):
        for value in source.values:
            shown = Value(value.id, value.number, value.unit, value.digits, "").text
            text = f"about {shown}" if value.about else shown
            rows.append([f"{source.id}.{value.id}", value.what, text, source.setup])
    return rows


def shared(tree: Tree) -> list[list[str]]:
    """Sources of the first manual that pages of the second cite: a link to the row, and pages."""
    here, cited = PAGES[citations.MANUALS[1]], cited_on(tree)
    folder = here.rpartition("/")[0]
    rows = [["source", "cited on"]]
    for source in read(tree):
        pages = [page for page in cited.get(source.id, []) if page.startswith(f"{folder}/")]
        if pages and page_of(source) != here:
            href = f"{navigation.relative(here, page_of(source))}#{source.id}"
            rows.append([f"[{source.title}]({href})", _pages(tree, pages, here)])
    return rows


TABLES: dict[str, Callable[[Tree], list[list[str]]]] = {
    **{
        f"{prefix}sources-rank-{rank}": rank_table(manual, rank)
        for manual, prefix in zip(citations.MANUALS, ("", "core-"), strict=True)
        for rank in citations.RANKS
    },
    "core-sources-shared": shared,
    "source-values": source_values,
}
