"""One figure of a page as an HTML block: claim, drawing or table, caption, badges, sources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from scripts import figblocks
from scripts.figblocks import FigureBlock

LEDGER = "claim-ledger.html"
_CODE = re.compile(r"`([^`]+)`")
_FLAG = re.compile(r"(?<![\w-])--[a-z]\w*")


def anchor(figure_id: str, name: str) -> str:
    """The id under which a value of a figure is linked."""
    return f"{figure_id}:{name}"


def ledger_id(figure_id: str) -> str:
    """The id under which the claim ledger lists the values of a figure."""
    return f"of-{figure_id}"


def origin(figure: Any, name: str) -> dict[str, str]:
    """Where a value comes from, as the attributes that the style sheet shows beside it.

    data-what '233 s, reported', data-runs 'gb10/plain', data-setup the setup; what is empty is
    left out.
    """
    value = figure.values[name]
    strength = figure.claim_strength([name])
    runs = list(value.runs)
    named = ", ".join(runs[:3]) + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")
    note = f"; {value.note}" if getattr(value, "note", "") else ""
    found = {
        "data-what": f"{value.text}, {strength.tier}{note}",
        "data-runs": f"{'run' if len(runs) == 1 else 'runs'} {named}" if named else "",
        "data-setup": strength.setup_text,
    }
    return {key: text.replace('"', "'") for key, text in found.items() if text}


def description(shown: Mapping[str, str]) -> str:
    """The attributes of `origin` as one text for a screen reader."""
    return "; ".join(shown.values())


def tier_class(figure: Any, name: str) -> str:
    """CSS class of a value: num-measured or num-reported."""
    tier = figure.claim_strength([name]).tier
    return "num-reported" if tier == "reported" else "num-measured"


def sentence(template: str, figure: Any, anchors: set[str]) -> str:
    """A filled sentence as HTML; each value is marked, and anchored where it first occurs.

    `anchors` collects the names that got an anchor.
    """
    texts = {name: value.text for name, value in figure.values.items()}
    out = []
    for name, text in figblocks.pieces(template, texts):
        if not name:
            out.append(escape(text, quote=False))
            continue
        mark = "" if name in anchors else f' id="{anchor(figure.id, name)}"'
        anchors.add(name)
        shown = "".join(f' {k}="{escape(v)}"' for k, v in origin(figure, name).items())
        css = tier_class(figure, name)
        out.append(f'<span class="num {css}"{mark}{shown}>{escape(text)}</span>')
    return "".join(out)


def cell(text: str) -> str:
    """The text of a cell as HTML; what stands in back-ticks is code, as in a Markdown table.

    Outside code no line ends between the hyphens of a flag and its first word.
    """
    pieces = _CODE.split(escape(text))
    pieces[::2] = [_FLAG.sub(r'<span class="nobr">\g<0></span>', piece) for piece in pieces[::2]]
    pieces[1::2] = [f"<code>{piece}</code>" for piece in pieces[1::2]]
    return "".join(pieces)


def table(rows: list[list[str]]) -> str:
    """Heading row and body rows as an HTML table that scrolls on its own."""
    head = "".join(f'<th scope="col">{cell(text)}</th>' for text in rows[0])
    body = "\n".join(
        "<tr>" + "".join(f"<td>{cell(text)}</td>" for text in row) + "</tr>" for row in rows[1:]
    )
    return (
        '<div class="fig-table" tabindex="0"><table class="fig-data" data-search-exclude>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def plain_table(table_id: str, rows: list[list[str]], tier: str, title: str = "") -> str:
    """A table that is no figure, under a badge of its own tier, such as 'synthetic'."""
    lines = [
        f'<figure class="made fig" id="{table_id}">',
        f'<p class="fig-title">{escape(title, quote=False)}</p>' if title else "",
        f'<div class="fig-body">\n{table(rows)}\n</div>',
        '<figcaption>\n<ul class="fig-badges"><li class="badge badge-plain">'
        f'<span class="badge-key">tier</span> {escape(tier)}</li></ul>\n</figcaption>',
        "</figure>",
    ]
    return "\n".join(line for line in lines if line)


def badges(figure: Any) -> str:
    """Tier, strength and setup badges; of a diagram what it was drawn from."""
    if figure.tier == "diagram":
        return (
            '<li class="badge badge-plain"><span class="badge-key">diagram</span> '
            f"{escape(figure.strength_text)}</li>"
        )
    css = "badge-reported" if figure.tier == "reported" else "badge-measured"
    items = [("tier", css, figure.tier), ("strength", "badge-strength", figure.strength_text)]
    items += [("setup", "badge-setup", text) for text in figure.setup_texts]
    differs = getattr(figure.strength, "differs", ())
    if differs:
        items.append(("differs", "badge-setup", ", ".join(differs)))
    return "".join(
        f'<li class="badge {css}"><span class="badge-key">{key}</span> {escape(text)}</li>'
        for key, css, text in items
        if text
    )


def block(shown: FigureBlock, figure: Any, data_href: str, source: str = "") -> str:
    """The whole figure. `data_href` is the CSV file as seen from the page; `source` is HTML."""
    ledger = data_href.partition("data/")[0] + LEDGER
    texts = {name: value.text for name, value in figure.values.items()}
    claim_text = figblocks.fill(shown.claim, texts)
    title_text = figblocks.fill(shown.title, texts)
    anchored: set[str] = set()
    claim = sentence(shown.claim, figure, anchored)
    caption = sentence(shown.caption, figure, anchored)
    rest = [name for name in figure.values if name not in anchored]
    anchors = "".join(f'<span id="{anchor(figure.id, name)}"></span>' for name in rest)
    if figure.table is None:
        body = figure.svg(narrow=False, claim=claim_text, title=title_text)
        body += "\n" + figure.svg(narrow=True, claim=claim_text, title=title_text)
    else:
        body = table([list(row) for row in figure.table])
    lines = [
        f'<figure class="fig" id="{figure.id}">',
        f'<p class="fig-title">{escape(title_text, quote=False)}</p>',
        f'<p class="fig-claim">{claim}</p>',
        f'<div class="fig-body">{anchors}\n{body}\n</div>',
        "<figcaption>",
        f'<p class="fig-caption">{caption}</p>' if caption else "",
        f'<ul class="fig-badges">{badges(figure)}</ul>',
        f'<p class="fig-source"><a href="{escape(data_href)}" download>Data (CSV)</a>'
        + (f' <a href="{ledger}#{ledger_id(figure.id)}">Evidence</a>' if figure.values else "")
        + f' <a href="#{figure.id}">Link to this figure</a></p>',
        f'<p class="fig-recompute">Recompute <code>{escape(figure.recompute)}</code></p>'
        if figure.recompute
        else "",
        f'<p class="fig-from">Source {source}</p>' if source else "",
        "</figcaption>",
        "</figure>",
    ]
    return re.sub(r"\n\s*\n+", "\n", "\n".join(lines))
