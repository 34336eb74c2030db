"""One HTML page of a whole manual, for print: title, contents, then every page in order.

It is made from the built site, so what is printed is what the site shows. Addresses between the
pages of the manual become anchors inside the document, and addresses of other pages lose their
link. Drawings keep the wide variant, and scripts and navigation go.
"""

from __future__ import annotations

import copy
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml
from lxml import html

CONTENTS = "<!-- contents -->"
STYLES = ("assets/fonts.css", "assets/figures.css", "assets/print.css")
_DROPPED = (
    ".//a[@class='headerlink']",
    ".//svg[contains(@class, 'fig-narrow')]",
    ".//nav",
    ".//button",
    ".//script",
    ".//a[contains(@class, 'md-content__button')]",
    ".//p[a[contains(@class, 'lab-download')]]",
)
_REFERRING = ("xlink:href", "href", "clip-path", "style", "fill", "filter", "mask")


@dataclass(frozen=True)
class Entry:
    """A line of the contents: anchor, title, and depth 0 for a part, 1 for a page.

    `group` is the title of a part without a page of its own that begins here.
    The headings of a page stand in the outline of the PDF, which every viewer shows.
    """

    anchor: str
    title: str
    depth: int
    group: str = ""


def manual_pages(config: str, folder: str) -> list[str]:
    """Pages of the site that belong to a manual, in the order of the navigation."""
    nav = yaml.safe_load(config)["nav"]
    found: list[str] = []

    def walk(entries: list[Any]) -> None:
        for entry in entries:
            target = next(iter(entry.values())) if isinstance(entry, dict) else entry
            if isinstance(target, list):
                walk(target)
            elif target.startswith(f"{folder}/"):
                found.append(target.removesuffix(".md") + ".html")

    walk(nav)
    return found


def groups(config: str, folder: str) -> dict[str, str]:
    """First page -> title, of the parts of a manual that have no page of their own."""
    found: dict[str, str] = {}

    def walk(entries: list[Any]) -> None:
        for entry in entries:
            title, inner = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
            if not isinstance(inner, list):
                continue
            first = inner[0]
            page = next(iter(first.values())) if isinstance(first, dict) else first
            if isinstance(page, str) and page.startswith(f"{folder}/"):
                name = page.removesuffix(".md") + ".html"
                if _depth(name):
                    found[name] = title
            walk(inner)

    walk(yaml.safe_load(config)["nav"])
    return found


def slug(page: str) -> str:
    """The prefix of a page's anchors."""
    return re.sub(r"\W+", "-", page.removesuffix(".html"))


def _links(article: html.HtmlElement, page: str, pages: list[str]) -> None:
    for link in article.iter("a"):
        href = link.get("href")
        if href is None:
            continue
        parts = urlsplit(href)
        if parts.scheme or parts.netloc:
            continue
        path = unquote(parts.path)
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        if target in pages:
            fragment = unquote(parts.fragment)
            link.set("href", f"#{slug(target)}" + (f"--{fragment}" if fragment else ""))
        else:
            del link.attrib["href"]


def article(site: Path, page: str, pages: list[str]) -> html.HtmlElement:
    """The text of one page, ready to stand among others."""
    tree = html.fromstring((site / page).read_bytes())
    found = copy.deepcopy(tree.xpath("//article")[0])
    for pattern in _DROPPED:
        for element in found.xpath(pattern):
            element.drop_tree()
    prefix = slug(page)
    _links(found, page, pages)
    for element in found.iter():
        if not isinstance(element.tag, str):
            continue
        if element.get("id"):
            element.set("id", f"{prefix}--{element.get('id')}")
        for name in _REFERRING:
            value = element.get(name)
            if value and "#" in value and element.tag != "a":
                element.set(name, re.sub(r"#(?=fig-)", f"#{prefix}--", value))
        if element.get("aria-labelledby"):
            ids = element.get("aria-labelledby").split()
            element.set("aria-labelledby", " ".join(f"{prefix}--{one}" for one in ids))
    found.set("id", prefix)
    found.set("class", "page" if _depth(page) else "page part")
    return found


def entries(articles: Mapping[str, html.HtmlElement], parts: Mapping[str, str]) -> list[Entry]:
    """The contents: every part and every page; `parts` as `groups` gives them."""
    return [
        Entry(
            slug(page),
            one.xpath(".//h1")[0].text_content().strip(),
            _depth(page),
            parts.get(page, ""),
        )
        for page, one in articles.items()
    ]


def _depth(page: str) -> int:
    return 0 if page.endswith("/index.html") else 1


def contents(listed: list[Entry], numbers: Mapping[str, int]) -> str:
    """The list of contents; a page number that is not known yet is left blank."""
    rows = "".join(
        (f'<li class="depth-0 group">{escape(entry.group)}</li>' if entry.group else "")
        + f'<li class="depth-{entry.depth}"><a href="#{escape(entry.anchor)}">'
        f'<span class="entry">{escape(entry.title)}</span><span class="leader"></span>'
        f'<span class="number">{numbers.get(entry.anchor, "")}</span></a></li>'
        for entry in listed
    )
    return f'<nav class="contents"><h1>Contents</h1><ol>{rows}</ol></nav>'


def book(site: Path, title: str, folder: str, config: str) -> tuple[str, list[Entry]]:
    """The page as HTML with a mark where the contents go, and the contents."""
    pages = [page for page in manual_pages(config, folder) if (site / page).is_file()]
    articles = {page: article(site, page, pages) for page in pages}
    styles = "".join(f'<link rel="stylesheet" href="{name}">' for name in STYLES)
    first = html.fromstring((site / pages[0]).read_bytes())
    date = "".join(first.xpath("(//time/@datetime)[1]"))
    body = "\n".join(html.tostring(one, encoding="unicode") for one in articles.values())
    head = (
        f'<section class="title"><h1>{escape(title)}</h1>'
        f"<p>Every measured number in this book is computed from a stored run.</p>"
        f"<p>Verified {escape(date)}</p></section>"
    )
    text = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title>{styles}</head>"
        f'\n<body class="md-typeset" data-md-color-scheme="default">\n'
        f"{head}\n{CONTENTS}\n{body}\n</body></html>\n"
    )
    return text, entries(articles, groups(config, folder))
