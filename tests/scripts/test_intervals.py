"""Intervals of printed numbers and the formula language."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.intervals import (
    RELATIONS,
    Interval,
    evaluate,
    half_unit,
    names,
    parse_printed,
    point,
    printed_intervals,
)

numbers = st.fractions(min_value=-1000, max_value=1000, max_denominator=1000)


@st.composite
def intervals_with_a_member(draw):
    low, high = sorted((draw(numbers), draw(numbers)))
    share = draw(st.fractions(min_value=0, max_value=1, max_denominator=100))
    return Interval(low, high), low + (high - low) * share


@given(intervals_with_a_member(), intervals_with_a_member())
def test_the_result_interval_holds_every_result_of_its_members(left, right):
    (a, x), (b, y) = left, right
    assert (a + b).contains(x + y)
    assert (a - b).contains(x - y)
    assert (a * b).contains(x * y)
    if not b.contains(Fraction(0)):
        assert (a / b).contains(x / y)


@given(st.decimals(min_value=0, max_value=10**6, places=4), st.integers(0, 4))
def test_a_printed_number_stands_for_every_number_that_rounds_to_it(number, places):
    printed = f"{number:.{places}f}"
    (interval,) = printed_intervals(printed)
    assert interval.contains(Fraction(number))
    assert interval.high - interval.low == Fraction(1, 10**places)


@given(st.integers(0, 10**9))
def test_a_printed_count_stands_for_itself(number):
    assert printed_intervals(f"{number:,}", exact=True) == (point(number),)


def test_printed_numbers_words_and_ranges_are_read():
    assert parse_printed("200,533") == (200533,)
    assert parse_printed("+0.097") == (Fraction(97, 1000),)
    assert parse_printed("1e-9") == (Fraction(1, 10**9),)
    assert parse_printed("Twice") == (2,)
    assert parse_printed("half") == (Fraction(1, 2),)
    assert parse_printed("0.53 to 0.74") == (Fraction(53, 100), Fraction(74, 100))
    assert parse_printed("0.0151 and 0.0153") == (Fraction(151, 10000), Fraction(153, 10000))


@pytest.mark.parametrize("printed", ["", "many", "1,23", "1 to 2 to 3", "12 s", "0x10"])
def test_what_is_not_a_number_is_refused(printed):
    with pytest.raises(ValueError, match="not a number"):
        parse_printed(printed)


def test_trailing_zeros_of_an_about_number_do_not_count():
    assert half_unit("1,200") == Fraction(1, 2)
    assert half_unit("1,200", trailing_zeros_count=False) == 50
    assert half_unit("2.0", trailing_zeros_count=False) == Fraction(1, 20)
    assert half_unit("0", trailing_zeros_count=False) == Fraction(1, 2)


def lookup(name):
    return {"a-b": point(6), "c.low": point(2)}[name]


def test_formulas_keep_the_order_of_operations_and_kebab_case_names():
    assert evaluate("a-b - c.low * 2", lookup) == point(2)
    assert evaluate("( a-b - c.low ) * 2 / - 4", lookup) == point(-2)
    assert names("a-b - log ( c.low )") == ["a-b", "c.low"]


@pytest.mark.parametrize("formula", ["", "1 +", "( 1", "1 2", "* 2", "1 ; 2", "log 2", "A"])
def test_a_broken_formula_is_refused(formula):
    with pytest.raises(ValueError, match=r"."):
        evaluate(formula, lookup)


def test_division_by_an_interval_around_zero_is_refused():
    with pytest.raises(ValueError, match="holds 0"):
        evaluate("1 / ( 2 - 2 )", lookup)


def test_relations_ask_whether_some_numbers_can_agree():
    low, high = Interval(Fraction(1), Fraction(2)), Interval(Fraction(2), Fraction(3))
    apart = Interval(Fraction(4), Fraction(5))
    assert RELATIONS["="](low, high)
    assert not RELATIONS["="](low, apart)
    assert RELATIONS["<"](low, high)
    assert not RELATIONS["<"](apart, high)
    assert not RELATIONS["<"](point(2), point(2))
    assert RELATIONS["<="](point(2), point(2))
    assert RELATIONS[">="](apart, low)
    assert not RELATIONS[">="](low, apart)
