"""The pages that are made at build time: the figure index and the claim ledger."""

from __future__ import annotations

import posixpath

from scripts import claims, figblocks, figurehtml
from scripts.tables import markdown


def _page(path: str) -> str:
    return path.removeprefix("manuals/")


def _runs(runs: tuple[str, ...]) -> str:
    return ", ".join(f"`{run}`" for run in runs) or "none"


def figure_index(pages: claims.Pages) -> str:
    """One row a figure: figure, claim, tier, strength, runs."""
    rows = [["figure", "claim", "tier", "strength", "runs"]]
    for (path, figure_id), block in sorted(pages.blocks.items(), key=lambda item: item[0][::-1]):
        figure = pages.figures.get(figure_id)
        if figure is None:
            continue
        texts = {name: value.text for name, value in figure.values.items()}
        link = f"[{figblocks.fill(block.title, texts)}]({_page(path)}#{figure_id})"
        claim = figblocks.fill(block.claim, texts)
        rows.append([link, claim, figure.tier, figure.strength_text, _runs(figure.runs)])
    head = "# Figure index\n\nEvery figure of the manual, made when the site is built.\n\n"
    return head + markdown(rows) + "\n"


def claim_ledger(pages: claims.Pages) -> str:
    """One row a number that a page states, and one a diagram, whose claim has no number."""
    rows = [["page", "stated", "value", "computed", "tier", "runs"]]
    for path, chapter in pages.chapters.items():
        for (shown_on, figure_id), block in pages.blocks.items():
            if shown_on == path and figure_id in pages.figures:
                for name in dict.fromkeys(figblocks.holes(block.claim)):
                    rows.append(_row(pages, path, "in the claim", path, figure_id, name))
        for link in chapter.links:
            match = claims.FIGURE_LINK.fullmatch(link.href)
            if match and match["name"] and match["id"] in pages.figures:
                target = path
                if match["page"]:
                    folder = posixpath.dirname(path)
                    target = posixpath.normpath(posixpath.join(folder, match["page"]))
                rows.append(_row(pages, path, link.text, target, match["id"], match["name"]))
    rows = [row for row in rows if row]
    head = (
        "# Claim ledger\n\nEvery number that a page states, and what it rests on. "
        "Made when the site is built.\n\n"
    )
    return head + markdown(rows) + "\n" + _diagrams(pages)


def _diagrams(pages: claims.Pages) -> str:
    """The claims of the diagrams, which state no number: page, claim, tier, what it rests on."""
    rows = [["page", "claim", "tier", "rests on"]]
    for (path, figure_id), block in pages.blocks.items():
        figure = pages.figures.get(figure_id)
        if figure is not None and figure.tier == "diagram":
            title = str(pages.chapters[path].front.get("title", path))
            link = f"[{title}]({_page(path)}#{figure_id})"
            rows.append([link, block.claim, figure.tier, figure.strength_text])
    if len(rows) == 1:
        return ""
    head = "\n## Claims of diagrams\n\nA diagram shows how parts work together, and no number.\n\n"
    return head + markdown(rows) + "\n"


def _row(
    pages: claims.Pages, path: str, stated: str, target: str, figure_id: str, name: str
) -> list[str]:
    figure = pages.figures[figure_id]
    value = figure.values.get(name)
    if value is None:
        return []
    title = str(pages.chapters[path].front.get("title", path))
    anchor = figurehtml.anchor(figure_id, name)
    link = f"[`{anchor}`]({_page(target)}#{anchor})"
    tier = figure.claim_strength([name]).tier
    return [f"[{title}]({_page(path)})", stated, link, value.text, tier, _runs(value.runs)]
