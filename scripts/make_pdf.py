"""Prints each manual of the built site as one PDF, with contents, page numbers and an outline.

`make pdf` builds the site first. Chromium prints twice: the first time to learn on which page each
heading stands, the second time with these numbers in the contents. Needs the environment of
requirements-site.lock and the system's Chromium.

exit codes: 0 fine, 1 a manual cannot be printed, 2 bad usage or no browser, 3 no site
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

from playwright.sync_api import sync_playwright
from pypdf import PdfReader

from scripts import browser, printbook

ROOT = Path(__file__).resolve().parent.parent
#: folder of a manual -> title of its book
BOOKS = {"miles-101": "Miles 101", "olmo-core-trainer": "GRPO with an OLMo-core trainer"}
TURNS = 3  # the numbers may move a heading to another page; they settle at once or never


class PrintError(RuntimeError):
    """A book whose page numbers do not settle, or that has no page."""


def places(pdf: Path | IO[bytes]) -> dict[str, int]:
    """Page number of every anchor that the contents lead to, from 1."""
    reader = PdfReader(pdf)
    pages = {page.indirect_reference.idnum: n for n, page in enumerate(reader.pages, start=1)}
    return {
        unquote(name).removeprefix("/"): pages[target.page.idnum]
        for name, target in reader.named_destinations.items()
        if hasattr(target.page, "idnum")
    }


def print_book(running: Any, site: Path, folder: str, out: Path, config: str) -> int:
    """Print one manual into `out`; returns its number of pages."""
    text, listed = printbook.book(site, BOOKS[folder], folder, config)
    if not listed:
        raise PrintError(f"no page of {folder} is in {site}")
    page_file = site / f".print-{folder}.html"
    partial = out.with_name(out.name + ".part")
    numbers: Mapping[str, int] = {}
    try:
        for _ in range(TURNS):
            list_ = printbook.contents(listed, numbers)
            page_file.write_text(text.replace(printbook.CONTENTS, list_), encoding="utf-8")
            tab = running.new_page()
            tab.goto(page_file.resolve().as_uri(), wait_until="load")
            tab.evaluate("document.fonts.ready.then(() => 1)")
            tab.pdf(path=str(partial), prefer_css_page_size=True, outline=True, tagged=True)
            tab.close()
            found = places(partial)
            if all(found.get(entry.anchor) == numbers.get(entry.anchor) for entry in listed):
                partial.replace(out)
                return len(PdfReader(out).pages)
            numbers = found
        raise PrintError(f"the page numbers of {folder} do not settle")
    finally:
        page_file.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python3 -m scripts.make_pdf",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--site", type=Path, default=ROOT / "site", help="the built site")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the PDFs")
    options = parser.parse_args(argv)
    if not (options.site / "index.html").is_file():
        print(f"{options.site}: no site; run `make site` first", file=sys.stderr)
        return 3
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        with sync_playwright() as playwright:
            running = playwright.chromium.launch(**browser.launch_options())
            for folder in BOOKS:
                out = options.out / f"{folder}.pdf"
                count = print_book(running, options.site, folder, out, config)
                size = out.stat().st_size / 1e6
                print(f"{out.name}: {count} pages, {size:.1f} MB")
            running.close()
    except browser.NoBrowser as error:
        print(error, file=sys.stderr)
        return 2
    except PrintError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
