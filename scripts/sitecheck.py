"""Checks the built site: every internal link, anchor, image and style address resolves.

Nothing may be fetched from elsewhere when a page is read: a script, style, image or font with a
host is an error. Links that a reader follows may lead outside; they are counted, not fetched.

`python3 -m scripts.sitecheck SITE` prints the problems. Exit codes: 0 fine, 1 something is wrong,
2 bad usage, 3 no page found.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lxml import html

from scripts.report import Report

_CSS_URL = re.compile(r"url\(\s*['\"]?([^'\")]+)['\"]?\s*\)")
_CSS_IMPORT = re.compile(r"@import\s+['\"]([^'\"]+)")
_LOADED = {"script": "src", "img": "src", "source": "src", "iframe": "src", "video": "src"}
_LOADING_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "manifest"}


def _ids(tree: html.HtmlElement) -> set[str]:
    return set(tree.xpath("//@id")) | set(tree.xpath("//a/@name"))


def references(tree: html.HtmlElement) -> list[tuple[str, bool, int]]:
    """(address, loaded by the browser on its own, line) of every reference of a page."""
    found = []
    for element in tree.iter():
        if not isinstance(element.tag, str):
            continue
        line = element.sourceline or 0
        name = _LOADED.get(element.tag)
        if name and element.get(name):
            found.append((element.get(name), True, line))
        if element.get("href") is not None and element.tag in ("a", "area", "link"):
            rel = set((element.get("rel") or "").split())
            loaded = element.tag == "link" and bool(rel & _LOADING_LINKS)
            found.append((element.get("href"), loaded, line))
        for text in (element.get("style"), element.text if element.tag == "style" else None):
            found += [(address, True, line) for address in _CSS_URL.findall(text or "")]
    return found


def resolve(page: str, address: str) -> tuple[str, str] | None:
    """(file below the site, fragment) of an internal address, or None for an outside one."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return None
    path = unquote(parts.path)
    if not path:
        return page, unquote(parts.fragment)
    if path.startswith("/"):
        target = posixpath.normpath(path.lstrip("/") or ".")
    else:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
    if path.endswith("/") or target == ".":
        target = posixpath.normpath(posixpath.join(target, "index.html"))
    return target, unquote(parts.fragment)


def check(site: Path) -> Report:
    """Check every page and style sheet below `site`."""
    report = Report()
    trees = {
        path.relative_to(site).as_posix(): html.fromstring(path.read_bytes())
        for path in sorted(site.rglob("*.html"))
    }
    ids = {page: _ids(tree) for page, tree in trees.items()}
    for page, tree in trees.items():
        report.count("built pages")
        for address, loaded, line in references(tree):
            _check_address(site, page, line, address, loaded, ids, report)
        for value in sorted(_doubled(tree)):
            report.error(page, 0, f"id {value!r} is there twice")
    for path in sorted(site.rglob("*.css")):
        name = path.relative_to(site).as_posix()
        text = path.read_text(encoding="utf-8", errors="replace")
        for address in _CSS_URL.findall(text) + _CSS_IMPORT.findall(text):
            if not address.startswith("#"):
                _check_address(site, name, 0, address, True, ids, report)
    return report


def _doubled(tree: html.HtmlElement) -> set[str]:
    seen: set[str] = set()
    return {value for value in tree.xpath("//@id") if value in seen or seen.add(value)}


def _check_address(
    site: Path,
    page: str,
    line: int,
    address: str,
    loaded: bool,
    ids: dict[str, set[str]],
    report: Report,
) -> None:
    if address.startswith(("data:", "mailto:", "javascript:")):
        return
    target = resolve(page, address)
    if target is None:
        if loaded:
            report.error(page, line, f"loads something from elsewhere: {address}")
        else:
            report.count("links to elsewhere (not fetched)")
        return
    report.count("internal links")
    name, fragment = target
    if name.startswith("..") or not (site / name).is_file():
        report.error(page, line, f"no such file in the site: {address}")
    elif fragment and name in ids and fragment not in ids[name] and fragment != "__top":
        report.error(page, line, f"no anchor {fragment!r} in {name}: {address}")


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python3 -m scripts.sitecheck",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("site", type=Path)
    report = check(parser.parse_args(argv).site)
    for problem in report.problems:
        print(problem, file=sys.stderr)
    print(", ".join(f"{number} {what}" for what, number in report.counts.items()))
    return 1 if report.problems else 0 if report.counts else 3


if __name__ == "__main__":
    raise SystemExit(main())
