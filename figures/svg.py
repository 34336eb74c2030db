"""From a Matplotlib figure to inline SVG that follows the page's colours."""

from __future__ import annotations

import io
import re
from xml.sax.saxutils import escape

from figures.style import PALETTE

_COLOUR = re.compile(r"(?<=[:\"])(\s*)(#[0-9a-fA-F]{3,8})\b")
_ID = re.compile(r'\bid="([^"]+)"')
_REFERENCE = re.compile(r'(url\(#|xlink:href="#)([^)"]+)')
_FAMILY = re.compile(r"font-family: [^;\"]+; ")
_VARIABLE = {pair[0]: f"var(--fig-{role})" for role, pair in PALETTE.items()}


class SvgError(ValueError):
    """A drawing that would not follow the page: a colour outside the palette, unstyled text."""


def to_svg(drawn, figure_id: str, narrow: bool, title: str = "", description: str = "") -> str:
    """The figure as one inline `<svg>` element: `body` in its `frame`."""
    return frame(body(drawn, figure_id, narrow), figure_id, narrow, title, description)


def body(drawn, figure_id: str, narrow: bool) -> str:
    """The drawing without its title and description.

    Colours become `var(--fig-...)`, ids carry the figure's id, text stays text in the page's
    font, and the same figure always gives the same bytes. Must run inside `style.drawing`.
    Raises SvgError for a colour that is not in the palette.
    """
    out = io.StringIO()
    drawn.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :].rstrip()
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # The style element of Matplotlib would apply to the whole page; the root carries it instead.
    text = re.sub(r"\s*<defs>\s*<style[^>]*>[^<]*</style>\s*</defs>", "", text)
    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
    text = _themed(text)
    text = _FAMILY.sub("", text)
    prefix = _prefix(figure_id, narrow)
    text = _ID.sub(rf'id="{prefix}-\1"', text)
    return _REFERENCE.sub(rf"\1{prefix}-\2", text)


def _prefix(figure_id: str, narrow: bool) -> str:
    return f"{figure_id}-n" if narrow else f"{figure_id}-w"


def _themed(text: str) -> str:
    """`text` with every palette colour as a CSS variable."""
    for tag in re.findall(r"<text[^>]*>", text):
        if "fill:" not in tag:
            raise SvgError(f"text without a palette colour: {tag}")

    def variable(match: re.Match[str]) -> str:
        blanks, colour = match.groups()
        if colour.lower() not in _VARIABLE:
            raise SvgError(f"colour {colour} is not in the palette")
        return blanks + _VARIABLE[colour.lower()]

    return _COLOUR.sub(variable, text)


def frame(text: str, figure_id: str, narrow: bool, title: str, description: str) -> str:
    """A `body` with the root element of the page, its title and its description."""
    prefix = _prefix(figure_id, narrow)
    view = re.search(r'viewBox="([^"]+)"', text)
    if view is None:
        raise SvgError("the drawing has no viewBox")
    variant = "fig-narrow" if narrow else "fig-wide"
    head = (
        f'<svg class="fig-svg {variant}" viewBox="{view.group(1)}" role="img"'
        f' aria-labelledby="{prefix}-title {prefix}-desc"'
        ' xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        ' style="stroke-linejoin: round; stroke-linecap: butt;'
        ' font-family: var(--md-text-font-family, sans-serif)" data-search-exclude="">\n'
        f'<title id="{prefix}-title">{escape(title)}</title>\n'
        f'<desc id="{prefix}-desc">{escape(description)}</desc>\n'
    )
    return head + text[text.index(">", text.index("<svg")) + 1 :].lstrip()
