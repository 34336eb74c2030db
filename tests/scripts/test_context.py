"""What may stand around a linked number, and what would turn it into another number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts import context, quantities

STEPS = ("step",)


def around(sentence, nouns=STEPS):
    """The problem of the part between [ and ] of a sentence."""
    start = sentence.index("[")
    text = sentence.replace("[", "", 1).replace("]", "", 1)
    end = sentence.index("]") - 1
    return context.problem(text, start, end, quantities.unit_of(text[start:end]), nouns)


@pytest.mark.parametrize(
    "sentence",
    [
        "It made [20] steps.",
        "It made [20] whole steps.",
        "It made [20]: all of them.",
        "([20])",
        "It made [20], and errors came.",
        "In its [20]-step log",
        "It made [20] in two runs.",
        "It made [20 steps] with errors.",
        "It took [23.1 s] on the first step.",
        "It took [23.1 s]. Then 2 hours passed.",
        "The ratio was [2.2 times] the median.",
        "It needs [115.86 GB] of memory.",
        "In step 0, [20] of them",
    ],
)
def test_a_number_in_its_own_words_passes(sentence):
    assert around(sentence) is None


@pytest.mark.parametrize(
    "sentence",
    [
        "[20] errors",
        "[20] CUDA errors",
        "[20]%",
        "[20] percent",
        "[20]0",
        "[20],000 steps",
        "[20] thousand steps",
        "[20].5 GB",
        "[20]/s",
        "[20]-error",
        "[20]-second",
        "[20] k",
        "[20] s",
        "[20] hours",
        "[20] per answer",
        "[20] steps"[:-6] + "an hour",
        "[20] and a half",
        "[20] 000",
        "9[23.1 s]",
        "9.[23.1 s]",
        "9,[23.1 s]",
        "-[23.1 s]",
        "minus [23.1 s]",
        "twice [23.1 s]",
        "half of [23.1 s]",
        "9 [23.1 s]",
        "sixty [23.1 s]",
        "[23.1 s] hours",
        "[23.1 s] million",
        "[23.1 s]2",
        "[23.1 s] per token",
    ],
)
def test_a_number_that_its_neighbours_change_is_refused(sentence):
    assert around(sentence) is not None


def test_the_noun_of_a_value_may_have_several_names():
    value = type("V", (), {"noun": "failed requests|requests", "unit": ""})()
    nouns = context.nouns_of(value)
    assert around("[44] failed requests", nouns) is None
    assert around("[44] requests failed", nouns) is None
    assert around("[44] answers", nouns) is not None
    rate = type("V", (), {"noun": "an hour", "unit": ""})()
    assert around("[3.1] an hour", context.nouns_of(rate)) is None
    assert around("[3.1] an hour", ()) is not None


UNITS = sorted({spelling for spellings in quantities.MEASURES.values() for spelling in spellings})


@given(st.sampled_from(UNITS), st.sampled_from(["[20]", "[23.1 s]"]))
def test_no_unit_of_measure_follows_a_linked_number(unit, number):
    assert around(f"It was {number} {unit} long.") is not None


@given(st.sampled_from(sorted(set(quantities.COUNTED) - {"step"})))
def test_no_other_counted_noun_follows_a_bare_count(noun):
    assert around(f"It had [20] {quantities.COUNTED[noun]}.") is not None
    assert around("It had [20] steps.") is None


@given(st.characters(categories=("L", "N", "Sc", "Sm", "Pd", "Pc")))
def test_nothing_touches_a_linked_number(char):
    assert around(f"It took {char}[23.1 s].") is not None if char not in "<>|" else True
    assert around(f"It took [23.1 s]{char}.") is not None if char not in "<|\u2013\u2014" else True
