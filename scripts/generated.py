"""The pages that are made at build time: figure index, claim ledger, and what claims.json holds."""

from __future__ import annotations

from collections.abc import Iterator

from scripts import claimkeys, claims, figblocks, figurehtml, navigation
from scripts.chapters import Chapter
from scripts.tables import markdown

MOST_RUNS = 3
# the tables of these pages need the width; the index has no headings to list
WIDE = "---\nhide: [navigation]\n---\n\n"
WIDEST = "---\nhide: [navigation, toc]\n---\n\n"


def _page(path: str) -> str:
    return path.removeprefix("manuals/")


def _runs(runs: tuple[str, ...]) -> str:
    """The first runs by name, and how many more; claims.json has them all."""
    named = ", ".join(f"`{run}`" for run in runs[:MOST_RUNS]) or "none"
    more = len(runs) - MOST_RUNS
    return f"{named} and {more} more" if more > 0 else named


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
    head = f"{WIDEST}# Figure index\n\nEvery figure of both manuals, made when the site is built.\n"
    return f'{head}\n<div class="ledger figure-index" markdown>\n\n{markdown(rows)}\n\n</div>\n'


def claim_ledger(pages: claims.Pages) -> str:
    """One table a page, one row a number that it states; then the claims of diagrams."""
    out = [f"{WIDE}# Claim ledger\n\nEvery number that a page states, and what it rests on. "]
    out[0] += "Made when the site is built. A program reads the same as "
    out[0] += '[claims.json](claims-json.md).\n\n<div class="ledger" markdown>\n'
    anchored: set[str] = set()
    for path, chapter in pages.chapters.items():
        rows = [["stated", "value", "computed", "tier", "runs"]]
        for stated, target, figure_id, name in _statements(pages, path, chapter):
            row = _row(pages, stated, target, figure_id, name)
            if row and figure_id not in anchored:
                anchored.add(figure_id)
                row[0] = f'<span id="{figurehtml.ledger_id(figure_id)}"></span>{row[0]}'
            rows += [row] if row else []
        if len(rows) > 1:
            title = str(chapter.front.get("title", path))
            out.append(f"\n## {title}\n\n[Read the page]({_page(path)})\n\n{markdown(rows)}\n")
    out.append("\n</div>\n")
    return "".join(out) + _diagrams(pages)


def claims_json() -> str:
    """What `claims.json` holds, key by key."""
    keys = [["key", "what it holds"]]
    keys += [[f"`{key}`", text] for key, text in claimkeys.CLAIM_KEYS.items()]
    figure = [["key", "what it holds"]]
    figure += [[f"`{key}`", text] for key, text in claimkeys.FIGURE_KEYS.items()]
    return (
        "# Claims as JSON\n\n"
        "Every number that a page states, for programs: [claims.json](claims.json){ download }.\n"
        "It is made when the site is built. Addresses are relative to the file, and anchors stay.\n"
        f"`schema` is {claimkeys.SCHEMA}. It changes when a key changes its meaning or goes.\n\n"
        f"## A claim\n\n`claims` is a list of objects.\n\n{markdown(keys)}\n\n"
        "## A figure\n\n`figures` is an object, from the id of each figure to an object.\n\n"
        f"{markdown(figure)}\n\n"
        "## An example\n\n"
        "The reported numbers of one page:\n\n"
        "```python\nimport json\nfrom pathlib import Path\n\n"
        'made = json.loads(Path("site/claims.json").read_text(encoding="utf-8"))\n'
        'for claim in made["claims"]:\n'
        '    if claim["page"] == "miles-101/1-1-first-step.html" and claim["tier"] == "reported":\n'
        '        print(claim["stated"], claim["anchor"])\n```\n'
    )


def _statements(
    pages: claims.Pages, path: str, chapter: Chapter
) -> Iterator[tuple[str, str, str, str]]:
    """(stated, page of the figure, figure id, value name) of the numbers of a page.

    The values of a figure whose claim states none of them are listed with the figure.
    """
    for (page, figure_id), block in pages.blocks.items():
        if page == path and figure_id in pages.figures:
            said = dict.fromkeys(figblocks.holes(block.claim))
            for name in said or pages.figures[figure_id].values:
                yield "in the claim" if said else "in the figure", path, figure_id, name
    for link in chapter.links:
        match = claims.FIGURE_LINK.fullmatch(link.href)
        if match and match["name"] and match["id"] in pages.figures:
            yield link.text, navigation.target(path, link.href)[0], match["id"], match["name"]


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


def _row(pages: claims.Pages, stated: str, target: str, figure_id: str, name: str) -> list[str]:
    figure = pages.figures[figure_id]
    value = figure.values.get(name)
    if value is None:
        return []
    anchor = figurehtml.anchor(figure_id, name)
    link = f"[`{anchor}`]({_page(target)}#{anchor})"
    tier = figure.claim_strength([name]).tier
    return [stated, link, value.text, tier, _runs(value.runs)]
