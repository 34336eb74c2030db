"""Palette, page setup and small drawing helpers shared by every figure.

Figures are drawn with the light colours; `svg.to_svg` then replaces each of them by a CSS
variable, so that one drawing serves the light and the dark page. Colour is never the only
carrier of meaning: every role also has a hatch and a marker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # Matplotlib is slow to import, and a build whose drawings are kept needs none
    from matplotlib.figure import Figure as Canvas
    from matplotlib.patches import Patch

# role -> (light page, dark page). Every pair reaches 4.5:1 against its page background
# (WCAG 2.2, 1.4.3), so a role may also colour text; grid lines are exempt decoration.
PALETTE = {
    "trainer": ("#1f5fb4", "#7db1f5"),
    "engine": ("#7138b8", "#bd9ff2"),
    "data": ("#1c7a3c", "#74c68a"),
    "lifecycle": ("#9c5a00", "#e3ab4c"),
    "durable": ("#0a7272", "#5cc4c0"),
    "failure": ("#b8264f", "#f2889f"),
    "outside": ("#5d646e", "#a3abb5"),
    "ink": ("#1b1f24", "#e6e8ec"),
    "muted": ("#535a63", "#b2b8c1"),
    "grid": ("#d5d9de", "#3a404b"),
    "paper": ("#ffffff", "#1e2129"),
}
HATCHES = {"trainer": "///", "engine": "", "data": "", "lifecycle": "\\\\\\", "outside": ""}
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))

WIDE_INCHES = 7.2
NARROW_INCHES = 3.6
# Points. On a phone of 390 CSS pixels a figure has 314 of them for its 259 points, on a wide page
# at least 660 for 518, so either font is more than 11 pixels.
WIDE_FONT = 9.0
NARROW_FONT = 9.2


def luminance(colour: str) -> float:
    """Relative luminance of '#rrggbb' (WCAG 2.2 definition), 0 to 1."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.2 definition)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def css() -> str:
    """The palette as CSS variables for both colour schemes, and the rules that pick a variant."""
    light, dark = (
        "".join(f"  --fig-{role}: {pair[which]};\n" for role, pair in PALETTE.items())
        for which in (0, 1)
    )
    return (
        f':root, [data-md-color-scheme="default"] {{\n{light}}}\n'
        f'[data-md-color-scheme="slate"] {{\n{dark}}}\n'
        ".fig-svg { display: block; width: 100%; height: auto; }\n"
        ".fig-svg.fig-narrow { display: none; }\n"
        "@media screen and (max-width: 44.9375em) {\n"
        "  .fig-svg.fig-wide { display: none; }\n"
        "  .fig-svg.fig-narrow { display: block; max-width: 30em; margin: 0 auto; }\n"
        "}\n"
    )


@dataclass(frozen=True, slots=True)
class Style:
    """What a drawing function needs: the variant, the colours, and a place to draw."""

    narrow: bool
    font: float
    width: float
    palette: dict[str, str] = field(default_factory=lambda: {k: v[0] for k, v in PALETTE.items()})

    def colour(self, role: str) -> str:
        """The drawing colour of a palette role."""
        return self.palette[role]

    def canvas(self, height: float) -> Canvas:
        """An empty figure, `height` inches high, of the variant's width."""
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure as Canvas

        made = Canvas(figsize=(self.width, height), layout="constrained")
        FigureCanvasSVG(made)
        made.get_layout_engine().set(w_pad=0.06, h_pad=0.06)
        return made

    def axes(
        self, height: float, *, left: bool = True, grid: str | None = "y"
    ) -> tuple[Canvas, Any]:
        """A figure with one plain axes: no frame but the bottom and left lines."""
        made = self.canvas(height)
        ax = made.add_subplot()
        self.plain(ax, left=left, grid=grid)
        return made, ax

    def plain(self, ax: Any, *, left: bool = True, grid: str | None = "y") -> None:
        """Drop the frame's top and right (and left), and draw a quiet grid along one axis."""
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines["left"].set_visible(left)
        if grid:
            ax.grid(axis=grid)
            ax.set_axisbelow(True)

    def bar(self, role: str, hatch: str | None = None) -> dict[str, Any]:
        """Keyword arguments of a bar of this role: fill, hatch in page colour, thin gap."""
        return {
            "facecolor": self.colour(role),
            "edgecolor": self.colour("paper"),
            "hatch": HATCHES.get(role, "") if hatch is None else hatch,
            "linewidth": 0.8,
        }

    def swatch(self, role: str, label: str, hatch: str | None = None) -> Patch:
        """A legend entry for bars of this role."""
        from matplotlib.patches import Patch

        return Patch(label=label, **self.bar(role, hatch))

    def line(self, role: str, which: int) -> dict[str, Any]:
        """Keyword arguments of the `which`-th line of a family in one role's colour."""
        return {
            "color": self.colour(role),
            "linestyle": DASHES[which % len(DASHES)],
            "marker": MARKERS[which % len(MARKERS)],
            "markersize": 4.2,
            "markerfacecolor": self.colour("paper"),
            "markeredgecolor": self.colour(role),
            "linewidth": 1.4,
        }

    def labelled_bar(self, ax: Any, place: int, length: float, role: str, text: str) -> None:
        """A horizontal bar with its value just past its end; a tiny one stays visible."""
        (bar,) = ax.barh(place, length, height=0.72, **{**self.bar(role), "linewidth": 0})
        ax.annotate(
            text,
            (length, bar.get_y() + bar.get_height() / 2),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            ha="left",
        )


def _settings(figure_id: str, style: Style) -> dict[str, Any]:
    ink, muted = style.colour("ink"), style.colour("muted")
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": figure_id,
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": style.font,
        "axes.titlesize": style.font,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "axes.labelsize": style.font,
        "xtick.labelsize": style.font,
        "ytick.labelsize": style.font,
        "legend.fontsize": style.font,
        "legend.frameon": False,
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.titlecolor": ink,
        "axes.edgecolor": muted,
        "xtick.color": muted,
        "ytick.color": muted,
        "xtick.labelcolor": ink,
        "ytick.labelcolor": ink,
        "grid.color": style.colour("grid"),
        "grid.linewidth": 0.7,
        "axes.linewidth": 0.8,
        "hatch.linewidth": 0.6,
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "path.simplify": False,
    }


@contextlib.contextmanager
def drawing(figure_id: str, narrow: bool) -> Iterator[Style]:
    """The context in which a figure is drawn and saved; gives its `Style`."""
    style = Style(
        narrow=narrow,
        font=NARROW_FONT if narrow else WIDE_FONT,
        width=NARROW_INCHES if narrow else WIDE_INCHES,
    )
    import matplotlib as mpl

    with mpl.rc_context(rc=_settings(figure_id, style)):
        yield style
