"""HTML pieces of a report: everything that comes from a log passes through ``text`` here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

# Characters that a log may hold and a page must not: controls, and those that turn the direction
# of writing, with which a line could show something else than it says.
_DROP = dict.fromkeys(
    [
        *range(0x00, 0x09),
        0x0B,
        0x0C,
        *range(0x0E, 0x20),
        *range(0x7F, 0xA0),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
        *(0x200E, 0x200F, 0xFEFF, 0xFFFE, 0xFFFF),
    ],
    "\N{REPLACEMENT CHARACTER}",
)
_DROP.update(dict.fromkeys(range(0xD800, 0xE000), "\N{REPLACEMENT CHARACTER}"))


def text(value: object) -> str:
    """Any value as HTML text that shows it and does nothing else."""
    return escape(str(value).translate(_DROP))


def note(words: str) -> str:
    return f'<p class="note">{text(words)}</p>'


def notes(words: Iterable[str]) -> str:
    return "".join(note(w) for w in words if w)


def figure(caption: str, body: str, under: Sequence[str]) -> str:
    """One panel: its caption, the drawing, notes under it."""
    head = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    return f"<figure>{head}{body}{notes(under)}</figure>"


def block(title: str, about: str, panels: Sequence[str], keys: str = "") -> str:
    """Panels of one quantity under a heading."""
    said = f'<p class="about">{text(about)}</p>' if about else ""
    grid = f'<div class="panels">{"".join(panels)}</div>' if panels else ""
    return f'<section class="block"><h3>{text(title)}</h3>{said}{keys}{grid}</section>'


def facts(rows: Iterable[tuple[str, object]]) -> str:
    """Name and value pairs; a row whose value is None or "" is left out."""
    body = "".join(
        f"<dt>{text(name)}</dt><dd>{text(value)}</dd>"
        for name, value in rows
        if value is not None and value != ""
    )
    return f"<dl>{body}</dl>" if body else ""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table that scrolls inside itself when it is wider than the page."""
    top = "".join(f"<th>{text(h)}</th>" for h in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{text('' if c is None else c)}</td>" for c in row) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><tr>{top}</tr>{body}</table></div>'


def items(rows: Iterable[object]) -> str:
    """A list of texts."""
    return "<ul>" + "".join(f"<li>{text(row)}</li>" for row in rows) + "</ul>"


def card(title: str, body: str) -> str:
    return f'<div class="card"><h3>{text(title)}</h3>{body}</div>'


def cards(parts: Sequence[str]) -> str:
    return f'<div class="cards">{"".join(parts)}</div>'


def section(title: str, body: str, anchor: str) -> str:
    return f'<section id="{anchor}"><h2>{text(title)}</h2>{body}</section>' if body else ""


STYLE = """
:root { color-scheme: light dark; --trainer:#1f5fb4; --engine:#7138b8; --data:#1c7a3c;
 --lifecycle:#9c5a00; --durable:#0a7272; --failure:#b8264f; --outside:#5d646e; --ink:#1b1f24;
 --muted:#535a63; --grid:#d5d9de; --paper:#ffffff; --card:#f5f6f8; --pause:#f3e3c4; }
@media (prefers-color-scheme: dark) { :root { --trainer:#7db1f5; --engine:#bd9ff2;
 --data:#74c68a; --lifecycle:#e3ab4c; --durable:#5cc4c0; --failure:#f2889f; --outside:#a3abb5;
 --ink:#e6e8ec; --muted:#b2b8c1; --grid:#3a404b; --paper:#1e2129; --card:#272b35;
 --pause:#4a3c1f; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0 auto; padding: 0 16px 48px; max-width: 1180px; background: var(--paper);
 color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif;
 overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 24px 0 4px; }
h2 { font-size: 1.2rem; margin: 36px 0 12px; padding-top: 8px; border-top: 1px solid var(--grid); }
h3 { font-size: 1rem; margin: 0 0 4px; }
p { margin: 0 0 8px; }
.about, .note, figcaption, .quiet { color: var(--muted); font-size: .875rem; }
.note { margin: 4px 0 0; }
.cards, .panels { display: grid; gap: 16px;
 grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr)); }
.panels { grid-template-columns: repeat(auto-fill, minmax(min(100%, 300px), 1fr)); }
.one #time .panels { grid-template-columns: minmax(0, 560px); }
.one #time figure > svg { max-width: 560px; }
.one .block .panels { grid-template-columns: minmax(0, 1fr); }
.blocks { display: grid; gap: 28px 20px;
 grid-template-columns: repeat(auto-fill, minmax(min(100%, 320px), 1fr)); }
.many .blocks { grid-template-columns: minmax(0, 1fr); }
.block { min-width: 0; }
section > * + .card, section > * + .cards, .words > * + .card { margin-top: 16px; }
.card { background: var(--card); border-radius: 8px; padding: 12px 14px; min-width: 0; }
figure { margin: 0; min-width: 0; }
figcaption { font-weight: 600; }
.sub { margin: 14px 0 2px; font-weight: 600; font-size: .9375rem; }
figure > svg { display: block; width: 100%; max-width: 470px; height: auto; }
svg text { font: 11px system-ui, -apple-system, "Segoe UI", sans-serif; fill: var(--ink); }
svg .quiet { fill: var(--muted); font-size: 11px; }
svg .bad { fill: var(--failure); font-size: 15px; }
svg .strong { font-weight: 700; }
.grid { stroke: var(--grid); fill: none; } .axis { stroke: var(--muted); fill: none; }
.mark { stroke: var(--ink); fill: none; stroke-dasharray: 2 2; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.hatch { stroke: var(--paper); stroke-width: 1; fill: none; }
dl { display: grid; gap: 2px 12px; margin: 0; font-size: .9rem;
 grid-template-columns: minmax(88px, min(32%, 170px)) minmax(0, 1fr); }
dt { color: var(--muted); } dd { margin: 0; font-variant-numeric: tabular-nums; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 2px 0 4px; font-size: .8125rem;
 color: var(--muted); }
.legend svg { vertical-align: -1px; }
.word { font-weight: 700; font-size: 1.1rem; }
.word.good { color: var(--data); } .word.wrong { color: var(--failure); }
.word.open { color: var(--lifecycle); }
.badges { display: flex; flex-wrap: wrap; gap: 6px; margin: 8px 0 0; padding: 0; list-style: none;
 font-size: .8125rem; }
.badges li { border: 1px solid var(--grid); border-radius: 10px; padding: 1px 8px;
 background: var(--paper); }
pre { margin: 4px 0 0; padding: 8px 10px; background: var(--card); border-radius: 6px;
 white-space: pre-wrap; font: .8125rem/1.45 ui-monospace, Consolas, monospace; }
.card pre { background: var(--paper); }
ul { margin: 4px 0; padding-left: 20px; } li { margin: 2px 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .8125rem; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 8px 3px 0; text-align: right; border-bottom: 1px solid var(--grid);
 overflow-wrap: normal; vertical-align: top; }
th { color: var(--muted); font-weight: 600; } th:first-child, td:first-child { text-align: left; }
td + td { white-space: nowrap; }
.words td, .words th { text-align: left; overflow-wrap: break-word; white-space: normal; }
details { margin-top: 8px; } summary { cursor: pointer; color: var(--trainer); }
.f-pause { fill: var(--pause); }
"""
ROLES = ("trainer", "engine", "data", "lifecycle", "durable", "failure", "outside")


def style() -> str:
    """The page's style sheet with the classes that the charts use."""
    roles = "".join(
        f".f-{r} {{ fill: var(--{r}); }} .s-{r} {{ stroke: var(--{r}); }}\n" for r in ROLES
    )
    return STYLE + roles


GENERATOR = '<meta name="generator" content="miles kit report, schema 1">'


def page(title: str, body: str, many: bool) -> str:
    """A whole document: one file, no script, nothing fetched."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f"{GENERATOR}\n"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{style()}</style></head>\n"
        f'<body class="{"many" if many else "one"}">{body.translate(_DROP)}</body></html>\n'
    )
