"""Messages between parties: columns when wide, pairs of boxes when narrow."""

import pytest

from figures import scene
from figures.diagram import DiagramError
from figures.sequence import Sequence


def sequence(narrow):
    made = Sequence(narrow)
    made.party("a", "outside", "Sender")
    made.party("b", "engine", "Between")
    made.party("c", "trainer", "Receiver")
    made.phase("one", "First part")
    made.message("a", "b", "a message")
    made.message("c", "a", "an answer that passes the one between")
    made.act("c", "thinks about it")
    made.phase("two", "Second part")
    made.message("b", "c", "done")
    return made


def laid_out(narrow):
    return sequence(narrow).scene(259.2 if narrow else 518.4, 9.2 if narrow else 9.0)


@pytest.mark.parametrize("narrow", [False, True], ids=["wide", "narrow"])
def test_a_layout_is_clean_and_in_the_order_of_time(narrow):
    made = laid_out(narrow)
    assert scene.problems(made) == []
    heights = [line.points[0][1] for line in made.lines if not line.quiet]
    assert len(heights) == 3
    assert heights == sorted(heights)


def test_a_message_runs_between_the_lines_of_its_parties():
    made = laid_out(False)
    middle = {name: made.shape(name).place.middle[0] for name in "abc"}
    ends = [(line.points[0][0], line.points[-1][0]) for line in made.lines if not line.quiet]
    assert ends == [(middle[x], middle[y]) for x, y in ("ab", "ca", "bc")]


def test_a_line_of_a_party_is_broken_by_phases_and_acts():
    quiet = {}
    for line in laid_out(False).lines:
        if line.quiet:
            quiet.setdefault(line.ends[0], []).append(line)
    assert {name: len(lines) for name, lines in quiet.items()} == {"a": 3, "b": 3, "c": 4}


def test_a_narrow_message_names_both_parties_beside_it():
    made = laid_out(True)
    first = next(line for line in made.lines if not line.quiet)
    owners = {text.owner: text.text for text in made.texts}
    assert [owners[end] for end in first.ends] == ["Sender", "Between"]


def test_a_message_to_nobody_is_refused():
    with pytest.raises(DiagramError, match="no node 'x'"):
        sequence(False).message("a", "x", "hello")
