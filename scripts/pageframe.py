"""What stands above and below the text of a page: outcome and badges, and what the page holds for.

Both are computed. The date is not known here: `sitefinish` writes it into VERIFIED when the built
site has passed the claim check.
"""

from __future__ import annotations

from html import escape

from scripts import navigation
from scripts.chapters import Chapter
from scripts.holds import Holds

VERIFIED = "<time data-verified></time>"
LAB_NOTES = "manuals/miles-101/reference-lab-notes.md"
LEDGER = "manuals/claim-ledger.md"
MOST_SETUPS = 2
NO_FRAME = ("manuals/index.md",)


def counted(number: int, noun: str) -> str:
    """'1 figure', '3 figures'."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def badge(key: str, text: str, css: str = "plain") -> str:
    """One badge: what it is about, and what it says."""
    return f'<li class="badge badge-{css}"><span class="badge-key">{key}</span> {escape(text)}</li>'


def badges(holds: Holds) -> list[str]:
    """Reading time, one badge a tier, and the setups or how many there are."""
    found = [badge("reading", f"{holds.minutes} min", "quiet")]
    for tier, number in holds.tiers.items():
        css = tier if tier != "diagram" else "plain"
        name = "drawn" if tier == "diagram" else tier
        found.append(badge(name, counted(number, "figure"), css))
    if len(holds.setups) > MOST_SETUPS:
        found.append(badge("setup", f"{len(holds.setups)} setups, named at each figure", "setup"))
    else:
        found += [badge("setup", text, "setup") for text in holds.setups]
    return found


def head(chapter: Chapter, holds: Holds) -> str:
    """The block under the title: the outcome line and the badges of the page."""
    outcome = str(chapter.front.get("outcome", "")).strip()
    if not outcome or chapter.path in NO_FRAME:
        return ""
    items = "" if chapter.of("sections") else "".join(badges(holds))
    listed = f'<ul class="badges">{items}</ul>\n' if items else ""
    line = f'<p class="outcome">{escape(outcome, quote=False)}</p>'
    return f'<div class="page-head" data-search-exclude>\n{line}\n{listed}</div>'


def with_head(text: str, block: str) -> str:
    """A page with the block after its title."""
    lines = text.split("\n")
    at = next((n for n, line in enumerate(lines) if line.startswith("# ")), None)
    if not block or at is None:
        return text
    return "\n".join([*lines[: at + 1], "", block, *lines[at + 1 :]])


def foot(path: str, holds: Holds) -> str:
    """The block at the end: versions of Miles, labs, sources, and when it was verified."""
    if path in NO_FRAME:
        return ""
    rows = [("Holds for", "; ".join(map(escape, holds.versions)) or "any version of Miles")]
    notes = navigation.relative(path, LAB_NOTES).replace(".md", ".html")
    if holds.labs:
        labs = ", ".join(f"{escape(lab)} ({escape(tier)})" for lab, tier in holds.labs.items())
        rows.append(("Labs", f'{labs}, see <a href="{notes}">lab notes</a>'))
    if holds.sources:
        rows.append(("Cited", counted(len(holds.sources), "published source")))
    if holds.values:
        ledger = navigation.relative(path, LEDGER).replace(".md", ".html")
        stated = f'<a href="{ledger}">{counted(holds.values, "number")}</a>'
        rows.append(("Last verified", f"{VERIFIED}: {stated} compared with the evidence"))
    else:
        rows.append(("Last verified", f"{VERIFIED}: states no measured number"))
    body = "".join(f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in rows)
    return (
        '\n\n<aside class="page-foot" data-search-exclude aria-label="Evidence of this page">'
        f"<dl>{body}</dl></aside>\n"
    )
