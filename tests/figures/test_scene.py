"""The fault finder of diagrams: a clean layout has none, and each broken one has its own."""

import dataclasses

import pytest

from figures import scene
from figures.diagram import DiagramError
from figures.scene import Line, Rect, Scene, Shape, Text
from figures.sketch import Sketch


def sketch(narrow=False, **arrow):
    made = Sketch(narrow, [1, 1, 1], gap=(40, 40))
    made.box("a", "trainer", "One", "does a thing", at=(0, 0))
    made.box("b", "engine", "Two", at=(1, 0))
    made.box("c", "data", "Three", at=(2, 0))
    made.box("d", "durable", "Four", at=(0, 1))
    made.group("g", "Both", ["b", "c"])
    made.arrow("a", "b", "go", **arrow)
    made.arrow("a", "d", "save")
    return made


def laid_out(**arrow):
    return sketch(**arrow).scene(518.4, 9.0)


def only(found, *parts):
    assert found, parts
    assert any(all(part in problem for part in parts) for problem in found), found


def moved(made, name, **place):
    at = next(n for n, shape in enumerate(made.shapes) if shape.id == name)
    shape = made.shapes[at]
    made.shapes[at] = dataclasses.replace(shape, place=dataclasses.replace(shape.place, **place))
    return scene.problems(made)


def test_a_clean_layout_has_no_problem():
    assert scene.problems(laid_out()) == []
    assert scene.problems(sketch(narrow=True).scene(518.4, 9.2)) == []


def test_a_box_that_is_too_small_for_its_text_is_found():
    only(moved(laid_out(), "a", h=12.0), "leaves its box a")
    only(moved(laid_out(), "a", w=30.0), "leaves its box a")


def test_a_word_that_is_too_long_for_its_column_is_found():
    made = Sketch(True, [1, 1, 1, 1])
    made.box("a", "trainer", "Incomprehensibilities", at=(0, 0))
    only(scene.problems(made.scene(259.2, 9.2)), "leaves its box a")


def test_boxes_that_overlap_are_found():
    made = laid_out()
    only(moved(made, "b", x=made.shape("c").place.x - 20), "b and c overlap")


def test_a_box_that_sticks_out_of_its_group_is_found():
    made = laid_out()
    only(moved(made, "c", y=made.shape("c").place.y + 12), "g and c overlap")


def test_a_box_off_the_page_is_found():
    only(moved(laid_out(), "a", x=-5.0), "a leaves the page")


def test_an_arrow_through_a_box_is_found():
    made = sketch()
    made.arrow("a", "c", route="r-l", at=(0.8, 0.8))
    only(scene.problems(made.scene(518.4, 9.0)), "arrow a>c-2 goes through b")


def test_an_arrow_through_a_label_is_found():
    made = laid_out()
    text = next(text for text in made.texts if text.text == "go")
    y = text.place.middle[1]
    made.lines.append(Line("x", ((text.place.x - 9, y), (text.place.right + 9, y)), ("a", "b")))
    only(scene.problems(made), "arrow x goes through 'go'")


def test_arrows_on_each_other_are_found_unless_they_share_an_end():
    made = Scene(100, 100, 9)
    made.lines = [
        Line("x", ((10, 10), (60, 10)), ("a", "b")),
        Line("y", ((40, 10), (90, 10)), ("c", "d")),
    ]
    only(scene.problems(made), "arrows x and y lie on each other")
    made.lines[1] = dataclasses.replace(made.lines[1], ends=("a", "d"))
    assert scene.problems(made) == []


def test_two_labels_in_one_place_are_found():
    made = laid_out()
    text = next(text for text in made.texts if text.text == "go")
    made.texts.append(dataclasses.replace(text, text="other", owner="y"))
    only(scene.problems(made), "'go' and 'other' overlap")


def test_a_label_on_a_box_is_found():
    made = laid_out()
    place = made.shape("b").place
    made.texts.append(Text("x", Rect(place.x + 5, place.y + 5, 8, 8), "y"))
    only(scene.problems(made), "'x' lies on b")


def test_text_off_the_page_is_found():
    made = laid_out()
    made.texts.append(Text("x", Rect(-3, 5, 8, 8), "y"))
    only(scene.problems(made), "'x' leaves the page")


def test_wrapped_lines_fit_and_keep_every_word():
    text = "the engine writes answers until the last one ends"
    for room in (40.0, 70.0, 120.0):
        lines = scene.wrap(text, room, 9.0)
        assert " ".join(lines) == text
        assert all(scene.width(line, 9.0) <= room for line in lines)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda made: made.box("a", "trainer", "X", at=(1, 1)), "two nodes are called 'a'"),
        (lambda made: made.box("x", "trainor", "X", at=(1, 1)), "no role 'trainor'"),
        (lambda made: made.arrow("a", "x"), "no node 'x'"),
    ],
)
def test_a_name_that_is_wrong_is_refused(call, said):
    with pytest.raises(DiagramError, match=said):
        call(sketch())


def test_the_rows_hold_every_node_group_and_arrow():
    rows = sketch().rows()
    assert [(row["kind"], row["id"]) for row in rows[:5]] == [
        *(("node", name) for name in "abcd"),
        ("group", "g"),
    ]
    assert [(row["from"], row["to"], row["text"]) for row in rows[5:]] == [
        ("a", "b", "go"),
        ("a", "d", "save"),
    ]
    assert [row["inside"] for row in rows[:4]] == ["", "Both", "Both", ""]


def test_an_outline_is_a_shape():
    assert scene.inner(Shape("x", "trainer", Rect(0, 0, 10, 10))) == Rect(0, 0, 10, 10)
    assert scene.inner(Shape("x", "durable", Rect(0, 0, 20, 20))).h < 20
