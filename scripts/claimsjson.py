"""`claims.json` of the site: every number that a page states, for programs.

One object a statement and one a figure; `claimkeys` says what their keys hold.
"""

from __future__ import annotations

import json
from typing import Any

from scripts import claims, figblocks, figurehtml, navigation
from scripts.claimkeys import SCHEMA
from scripts.quantities import canonical_unit


def address(path: str) -> str:
    """Address of a chapter's page in the site."""
    return path.removeprefix("manuals/").removesuffix(".md") + ".html"


def statements(pages: claims.Pages) -> list[tuple[str, str, str, str, str]]:
    """(page, kind, text, page of the figure, 'FIGURE:VALUE') of everything that is stated."""
    found = []
    for (path, figure_id), block in pages.blocks.items():
        figure = pages.figures.get(figure_id)
        if figure is None:
            continue
        said = dict.fromkeys(figblocks.holes(block.claim))
        texts = {name: value.text for name, value in figure.values.items()}
        claim = figblocks.fill(block.claim, texts)
        for name in figure.values:
            kind, text = ("claim", claim) if name in said else ("figure", texts[name])
            found.append((path, kind, text, path, f"{figure_id}:{name}"))
    for path, chapter in pages.chapters.items():
        for link in chapter.links:
            match = claims.FIGURE_LINK.fullmatch(link.href)
            if match and match["name"] and match["id"] in pages.figures:
                target, _ = navigation.target(path, link.href)
                found.append((path, "link", link.text, target, f"{match['id']}:{match['name']}"))
    return sorted(found)


def entry(pages: claims.Pages, stated: tuple[str, str, str, str, str]) -> dict[str, Any]:
    """One statement as a JSON object."""
    path, kind, text, target, anchor = stated
    figure_id, _, name = anchor.partition(":")
    figure = pages.figures[figure_id]
    value = figure.values[name]
    strength = figure.claim_strength([name])
    numbers = [_plain(number) for number in value.numbers]
    return {
        "page": address(path),
        "kind": kind,
        "stated": text,
        "figure": figure_id,
        "value": name,
        "anchor": f"{address(target)}#{figurehtml.anchor(figure_id, name)}",
        "data": f"data/{figure_id}.csv",
        "text": value.text,
        "numbers": numbers,
        "unit": canonical_unit(value.unit) if value.unit else "",
        "quantity": value.quantity,
        "tier": strength.tier,
        "strength": strength.text,
        "setups": [setup.text for setup in strength.setups],
        "runs": list(value.runs),
        "recompute": figure.recompute,
    }


def _plain(number: Any) -> int | float | str:
    return number if isinstance(number, int | float | str) else float(number)


def document(pages: claims.Pages) -> str:
    """The whole file."""
    entries = [entry(pages, stated) for stated in statements(pages)]
    figures = {
        figure_id: {
            "pages": [address(page) for page in shown],
            "tier": figure.tier,
            "strength": figure.strength_text,
            "runs": list(figure.runs),
            "data": f"data/{figure_id}.csv",
        }
        for figure_id, figure in sorted(pages.figures.items())
        if (shown := pages.pages_of(figure_id))
    }
    made = {"schema": SCHEMA, "figures": figures, "claims": entries}
    return json.dumps(made, ensure_ascii=False, indent=1) + "\n"
