"""The fonts of the site as one style sheet.

The files stand inside it as data addresses: a font that comes with the styles is there before the
first paint, so no text moves when it arrives, and nothing is asked of another host.
"""

from __future__ import annotations

import base64

from scripts.tree import Tree

FOLDER = "manuals/assets/fonts"
#: family -> (file, weights). What a file lacks is drawn by the fonts that follow it in site.css.
FACES = {
    "Manual Sans": ("ibm-plex-sans-latin-wght-normal.woff2", "100 700"),
    "Manual Mono": ("ibm-plex-mono-latin-400-normal.woff2", "400"),
}


def css(tree: Tree) -> str:
    """The `@font-face` rules of FACES; '' for a tree without fonts."""
    rules = []
    for family, (name, weights) in FACES.items():
        path = f"{FOLDER}/{name}"
        if not tree.exists(path):
            continue
        data = base64.b64encode(tree.read(path)).decode()
        rules.append(
            f'@font-face {{\n  font-family: "{family}";\n  font-style: normal;\n'
            f"  font-weight: {weights};\n  font-display: block;\n"
            f'  src: url("data:font/woff2;base64,{data}") format("woff2");\n}}\n'
        )
    return "".join(rules)
