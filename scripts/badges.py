"""The badges of the README: small drawings of facts that are read from the repository.

`python3 -m scripts.badges` writes them below manuals/assets/badges; a test compares what is stored
with what is true now, so a badge cannot go stale. They are files of this repository: reading the
README asks no other host.

exit codes: 0 fine, 2 bad usage
"""

from __future__ import annotations

import argparse
import tomllib
from html import escape
from pathlib import Path

from scripts.tree import ROOT

FOLDER = Path("manuals/assets/badges")
KEY, VALUE = "#535a63", "#1c7a3c"
CHARACTER = 6.6  # width of a character at 11 pixels, generous, since the reader's font is unknown
HEIGHT = 20


def facts(root: Path) -> dict[str, tuple[str, str]]:
    """File name -> (what, value)."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {
        "licence": ("licence", project["license"]),
        "python": ("Python", project["requires-python"].removeprefix(">=") + " or newer"),
    }


def svg(what: str, value: str) -> str:
    """One badge: what on grey, its value on green, both with their text as title."""
    left, right = (round(len(text) * CHARACTER + 12) for text in (what, value))
    text = 'font-family="Verdana, DejaVu Sans, sans-serif" font-size="11" fill="#ffffff"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{HEIGHT}" '
        f'role="img" aria-label="{escape(what)}: {escape(value)}">'
        f"<title>{escape(what)}: {escape(value)}</title>"
        f'<rect width="{left}" height="{HEIGHT}" fill="{KEY}"/>'
        f'<rect x="{left}" width="{right}" height="{HEIGHT}" fill="{VALUE}"/>'
        f'<g {text} text-anchor="middle"><text x="{left / 2}" y="14">{escape(what)}</text>'
        f'<text x="{left + right / 2}" y="14">{escape(value)}</text></g></svg>\n'
    )


def badges(root: Path = ROOT) -> dict[Path, str]:
    """Path of every badge and what it should hold."""
    return {FOLDER / f"{name}.svg": svg(*fact) for name, fact in facts(root).items()}


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python3 -m scripts.badges",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(argv)
    for path, text in badges().items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
