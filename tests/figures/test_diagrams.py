"""Rules that each registered diagram keeps, in both widths."""

import csv
import functools
import io

import pytest

from figures import registry, scene, style
from figures.diagram import ROLES
from figures.registry import DRAWN_FROM
from scripts import findnumbers

build = functools.cache(registry.build)
IDS = [
    figure_id
    for figure_id in registry.load_all()
    if registry.get(figure_id).__module__.startswith("figures.diagrams_")
]
SIZES = {False: (72 * style.WIDE_INCHES, style.WIDE_FONT)}
SIZES[True] = (72 * style.NARROW_INCHES, style.NARROW_FONT)
SETTINGS = {
    "fig-3-2-filter-loop": {"48 prompts", "32 groups"}
}  # flags of the recipe in section 3.2
MOST_BOXES = 12

both = pytest.mark.parametrize("narrow", [False, True], ids=["wide", "narrow"])
each = pytest.mark.parametrize("figure_id", IDS)


@functools.cache
def laid_out(figure_id, narrow):
    return build(figure_id).scene(narrow, *SIZES[narrow])


def test_every_diagram_is_looked_at_here():
    found = [figure_id for figure_id in registry.load_all() if build(figure_id).is_diagram]
    assert found == IDS


@both
@each
def test_nothing_is_clipped_or_overlaps(figure_id, narrow):
    assert scene.problems(laid_out(figure_id, narrow)) == []


@both
@each
def test_every_part_and_label_is_shown(figure_id, narrow):
    shown = {}
    for text in laid_out(figure_id, narrow).texts:
        shown[text.owner] = shown.get(text.owner, "") + text.text.replace(" ", "")
    for row in build(figure_id).rows:
        wanted = "".join((row["text"] + row["note"]).split())
        assert any(wanted in text for text in shown.values()), wanted


@both
@each
def test_a_drawing_is_no_taller_than_a_screen(figure_id, narrow):
    """A screen is 844 CSS pixels high on a phone of 390, and 900 beside a wide page."""
    made = laid_out(figure_id, narrow)
    assert made.height / made.width <= (900 / 314 if narrow else 700 / 660)


@each
def test_the_legend_names_every_role(figure_id):
    made = laid_out(figure_id, False)
    named = {shape.role for shape in made.shapes if shape.kind == "key"}
    drawn = {shape.role for shape in made.shapes if shape.kind == "box"}
    assert named == drawn <= set(ROLES)


@each
def test_a_diagram_is_clear_at_a_glance(figure_id):
    shapes = laid_out(figure_id, False).shapes
    assert len([shape for shape in shapes if shape.kind == "box"]) <= MOST_BOXES


@each
def test_a_diagram_says_what_it_was_drawn_from_and_has_no_value(figure_id):
    figure = build(figure_id)
    assert figure.tier == "diagram"
    assert figure.strength_text.startswith("drawn from ")
    assert any(text in figure.strength_text for text in DRAWN_FROM.values())
    assert (figure.values, figure.runs, figure.recompute) == ({}, (), "")


@each
def test_its_data_are_its_parts_and_arrows(figure_id):
    figure = build(figure_id)
    rows = list(csv.DictReader(io.StringIO(figure.csv())))
    names = {row["id"] for row in rows if row["kind"] != "arrow"}
    arrows = [row for row in rows if row["kind"] == "arrow"]
    assert names
    assert all({row["from"], row["to"]} <= names for row in arrows)
    alt = figure.alt("The claim.")
    assert all(row["text"].replace("\n", " ") in alt for row in rows)


@each
def test_no_label_states_a_measured_number(figure_id):
    for row in build(figure_id).rows:
        for text in (row["text"], row["note"]):
            found = {text[start:end] for start, end in findnumbers.find_measured(text)}
            assert found <= SETTINGS.get(figure_id, set()), text
