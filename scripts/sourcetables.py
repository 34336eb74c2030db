"""Tables of the page of sources: one a rank, with an anchor a row, and one of all their values."""

from __future__ import annotations

from collections.abc import Callable

from figures import citations, evidence
from figures.values import Value
from scripts import navigation
from scripts.chapters import ChapterError, parse
from scripts.tree import Tree

PAGE = "manuals/miles-101/reference-sources.md"


def read(tree: Tree) -> tuple[citations.Source, ...]:
    """The sources of a tree. EvidenceError names what is wrong with the file."""
    with evidence.use_root(tree.root), evidence.use_overlay(tree.overlay):
        return citations.sources()


def cited_on(tree: Tree) -> dict[str, list[str]]:
    """Source id -> pages that link to it, in the order of the navigation."""
    order = {path: place for place, path in enumerate(navigation.pages(tree))}
    found: dict[str, list[str]] = {}
    for path in sorted(tree.chapters(), key=lambda path: (order.get(path, len(order)), path)):
        if path == PAGE:
            continue
        try:
            links = parse(path, tree.text(path)).links
        except ChapterError:
            continue  # the other checks name it
        for link in links:
            page, fragment = navigation.target(path, link.href)
            if page == PAGE and path not in found.setdefault(fragment, []):
                found[fragment].append(path)
    return found


def _pages(tree: Tree, paths: list[str]) -> str:
    links = []
    for path in paths:
        name = navigation.label(path, parse(path, tree.text(path)))
        links.append(f"[{name}]({navigation.relative(PAGE, path)})")
    return ", ".join(links)


def _row(tree: Tree, source: citations.Source, pages: list[str]) -> list[str]:
    title = f"[{source.title}]({source.url})" if source.url else source.title
    about = [f"Read {source.read}." if source.read else ""]
    about += [source.note, *(f"Lost: {text}." for text in source.lost)]
    used = _pages(tree, pages) or f"none: {source.uncited}"
    anchor = f'<span id="{source.id}"></span>'
    return [f"{anchor}{title}", source.setup, " ".join(filter(None, about)), used]


def rank_table(rank: int) -> Callable[[Tree], list[list[str]]]:
    """The maker of the table of one rank: source, setup, how it was read, where it is cited."""

    def rows(tree: Tree) -> list[list[str]]:
        pages = cited_on(tree)
        return [
            ["source", "who, and on what", "what this project has of it", "cited on"],
            *(
                _row(tree, source, pages.get(source.id, []))
                for source in read(tree)
                if source.rank == rank
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


TABLES: dict[str, Callable[[Tree], list[list[str]]]] = {
    **{f"sources-rank-{rank}": rank_table(rank) for rank in citations.RANKS},
    "source-values": source_values,
}
