"""The last step of the site: what MkDocs and the theme leave for us to do.

Drawings come back to their pages, tables get their frame, pages the date of the build, search its
index as a script. The page for missing addresses and the site map go: both need a server at the
root of a known host.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from scripts import htmltables, pageframe, setaside

SERVER_ONLY = ("404.html", "sitemap.xml", "sitemap.xml.gz")


def day() -> str:
    """The day of the build in UTC; SOURCE_DATE_EPOCH sets it for builds that must repeat."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    return time.strftime("%Y-%m-%d", time.gmtime(int(epoch) if epoch else None))


def page(text: str, date: str, parts: Mapping[str, str]) -> str:
    """One built page with its parts back in place, its tables framed, its listings in reach of Tab
    and its date written.
    """
    text = setaside.put_back(text, parts)
    text = text.replace("<pre><span></span><code>", '<pre tabindex="0"><span></span><code>')
    stamped = f'<time datetime="{date}">{date}</time>'
    return htmltables.wrapped(text).replace(pageframe.VERIFIED, stamped)


def finish(site: Path, parts: Mapping[str, str]) -> None:
    """Finish every page below `site`."""
    for name in SERVER_ONLY:
        (site / name).unlink(missing_ok=True)
    date = day()
    for path in site.rglob("*.html"):
        path.write_text(page(path.read_text(encoding="utf-8"), date, parts), encoding="utf-8")
    # From file:// a page may load a script and no JSON: the theme then asks for this file.
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    (site / "search" / "search_index.js").write_text(f"var __index = {index}\n", encoding="utf-8")
