"""The palette and the SVG it becomes."""

import re

import pytest

from figures import style, svg
from figures.style import PALETTE

MARKS = [role for role in PALETTE if role not in ("grid", "paper")]


@pytest.mark.parametrize("role", MARKS)
@pytest.mark.parametrize("page", [0, 1], ids=["light", "dark"])
def test_every_mark_reads_as_text_on_its_page(role, page):
    assert style.contrast(PALETTE[role][page], PALETTE["paper"][page]) >= 4.5


def test_contrast_is_that_of_the_standard():
    assert style.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert style.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_the_colours_of_the_palette_are_all_different():
    for page in (0, 1):
        assert len({pair[page] for pair in PALETTE.values()}) == len(PALETTE)


def test_the_stylesheet_gives_every_role_in_both_schemes():
    light, dark = style.css().split('[data-md-color-scheme="slate"]')
    for role, (on_light, on_dark) in PALETTE.items():
        assert f"--fig-{role}: {on_light};" in light
        assert f"--fig-{role}: {on_dark};" in dark


def test_lines_of_one_family_differ_without_colour():
    with style.drawing("fig-x", narrow=False) as page:
        looks = [page.line("data", which) for which in range(4)]
    assert len({look["marker"] for look in looks}) == 4
    assert len({str(look["linestyle"]) for look in looks}) == 4


def draw(colour=None, **more):
    with style.drawing("fig-x", narrow=False) as page:
        made, ax = page.axes(2)
        ax.bar([0, 1], [1, 2], **page.bar("trainer"))
        ax.text(0, 1, "here", color=colour or page.colour("ink"))
        return svg.to_svg(made, "fig-x", narrow=False, **more)


def test_a_colour_outside_the_palette_is_refused():
    with pytest.raises(svg.SvgError, match="#ff0000"):
        draw(colour="#ff0000")


def test_black_text_is_refused_since_it_would_vanish_on_a_dark_page():
    with pytest.raises(svg.SvgError, match="text without a palette colour"):
        draw(colour="#000000")


def test_title_and_description_are_escaped_and_referred_to():
    text = draw(title="a < b", description='c & "d"')
    assert '<title id="fig-x-w-title">a &lt; b</title>' in text
    assert "c &amp; " in text
    assert 'aria-labelledby="fig-x-w-title fig-x-w-desc"' in text
    assert 'role="img"' in text


def test_nothing_in_the_svg_reaches_beyond_it():
    text = draw()
    assert "<style" not in text
    assert "<metadata" not in text
    assert not re.search(r"https?://(?!www\.w3\.org/)", text)
    assert all(name.startswith("fig-x-w-") for name in re.findall(r'\bid="([^"]+)"', text))
