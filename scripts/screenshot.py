"""Takes the picture of the home page that the README shows, from the built site.

`make screenshot` builds the site first. Needs the environment of requirements-site.lock and the
system's Chromium.

exit codes: 0 fine, 2 bad usage or no browser, 3 no site
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from scripts import browser

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "manuals" / "assets" / "screenshot.png"
PAGE = "index.html"
WIDTH, HEIGHT = 1280, 900


def take(running: Any, site: Path, out: Path) -> None:
    """Write the first screen of the home page to `out`."""
    context = running.new_context(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
    tab = context.new_page()
    tab.goto((site / PAGE).resolve().as_uri(), wait_until="load")
    tab.evaluate("document.fonts.ready.then(() => 1)")
    partial = out.with_name(out.name + ".part")
    partial.write_bytes(tab.screenshot())
    partial.replace(out)
    context.close()


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python3 -m scripts.screenshot",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--site", type=Path, default=ROOT / "site", help="the built site")
    parser.add_argument("--out", type=Path, default=PICTURE, help="the picture")
    options = parser.parse_args(argv)
    if not (options.site / PAGE).is_file():
        print(f"{options.site}: no site; run `make site` first", file=sys.stderr)
        return 3
    try:
        with sync_playwright() as playwright:
            running = playwright.chromium.launch(**browser.launch_options())
            take(running, options.site, options.out)
            running.close()
    except browser.NoBrowser as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{options.out.name}: {options.out.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
