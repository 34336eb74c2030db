"""Contrast of the colours that the browser computes, figures included: axe does not judge those."""

import re

import pytest

ROLES = ("trainer", "engine", "data", "lifecycle", "durable", "failure", "outside", "ink", "muted")
GROUNDS = ("--fig-paper", "--m-page", "--m-panel")
TEXT = 4.5  # WCAG 2.2, 1.4.3


def luminance(rgb):
    """Relative luminance of three numbers from 0 to 255 (WCAG 2.2)."""
    parts = [part / 255 for part in rgb]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def colours(chromium, site, scheme):
    """Every colour variable as the browser computes it in one scheme."""
    context = chromium.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto((site / "index.html").resolve().as_uri())
    names = [f"--fig-{role}" for role in ROLES] + [*GROUNDS, "--m-link"]
    found = page.evaluate(
        """names => {
          const probe = document.body.appendChild(document.createElement("i"));
          return names.map((name) => {
            probe.style.color = `var(${name})`;
            return getComputedStyle(probe).color;
          });
        }""",
        names,
    )
    context.close()
    return {
        name: tuple(int(float(n)) for n in re.findall(r"[\d.]+", text)[:3])
        for name, text in zip(names, found, strict=True)
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_of_the_palette_reads_as_text_on_every_ground(chromium, site, scheme):
    found = colours(chromium, site, scheme)
    weak = [
        f"{name} on {ground}: {contrast(found[name], found[ground]):.2f}"
        for name in found
        if name not in GROUNDS
        for ground in GROUNDS
        if contrast(found[name], found[ground]) < TEXT
    ]
    assert weak == []


def test_light_and_dark_differ_in_every_colour(chromium, site):
    light, dark = colours(chromium, site, "light"), colours(chromium, site, "dark")
    assert [name for name in light if light[name] == dark[name]] == []
