"""Numbers with units: what is read, what counts as equal, what is found in prose."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts import quantities
from scripts.quantities import QuantityError, mismatch, parse

DIGITS = st.integers(min_value=0, max_value=6)
NUMBERS = st.integers(min_value=-(10**12), max_value=10**12)
UNITS = st.sampled_from(["s", "GB", "%", "tokens", "times", "", "MiB", "min"])


def shown(scaled: int, digits: int) -> str:
    """`scaled` hundredths (or so) as a text with thousands separators."""
    return f"{Decimal(scaled).scaleb(-digits):,.{digits}f}"


def problem(written, display, *numbers):
    return mismatch(parse(written), parse(display), tuple(map(quantities.exact, numbers)))


@pytest.mark.parametrize(
    ("text", "low", "high", "unit"),
    [
        ("233 s", "233", None, "s"),
        ("233 seconds", "233", None, "s"),
        ("0.0141 to 0.0164", "0.0141", "0.0164", ""),
        ("40 to 45 percent", "40", "45", "%"),
        ("40% to 45%", "40", "45", "%"),
        ("200,533", "200533", None, ""),
        ("1.5 times", "1.5", None, "x"),
        ("0.53\u20130.74", "0.53", "0.74", ""),
        ("-2.465", "-2.465", None, ""),
        ("\u22122.465", "-2.465", None, ""),
        ("1e-9", "1E-9", None, ""),
        ("twelve steps", "12", None, "step"),
        ("twenty-one", "21", None, ""),
        ("12-step", "12", None, "step"),
        ("345,645\u00a0tokens", "345645", None, "token"),
        ("8 of them", "8", None, ""),
        ("20.70 GB", "20.70", None, "GB"),
        ("about 23 s", "23", None, "s"),
        ("1.9 million tokens", "1.9E+6", None, "token"),
        ("two thousand", "2E+3", None, ""),
        ("1 to 2 million tokens", "1E+6", "2E+6", "token"),
    ],
)
def test_every_written_form_is_read(text, low, high, unit):
    found = parse(text)
    assert found.low == Decimal(low)
    assert found.high == (None if high is None else Decimal(high))
    assert found.unit == unit


@pytest.mark.parametrize(
    "text", ["", "s", "over 12 s", "the first step", "12 s, 13 s", "3 of 32", "40% to 45 s"]
)
def test_a_text_that_is_not_one_number_is_refused(text):
    with pytest.raises(QuantityError):
        parse(text)


@given(NUMBERS, DIGITS, UNITS)
def test_what_a_figure_displays_is_read_back(scaled, digits, unit):
    found = parse(f"{shown(scaled, digits)} {unit}".strip())
    assert found.low == Decimal(scaled).scaleb(-digits)
    assert found.exponents == (-digits,)
    assert found.unit == quantities.canonical_unit(unit)


@given(NUMBERS, DIGITS, UNITS, st.sampled_from([-1, 1]))
def test_one_more_or_less_in_the_last_digit_never_passes(scaled, digits, unit, change):
    display = f"{shown(scaled, digits)} {unit}".strip()
    written = f"{shown(scaled + change, digits)} {unit}".strip()
    number = Decimal(scaled).scaleb(-digits)
    assert mismatch(parse(display), parse(display), (number,)) is None
    assert mismatch(parse(written), parse(display), (number,)) == "another number"


@given(NUMBERS, st.integers(min_value=1, max_value=6), st.data())
def test_fewer_decimals_pass_only_as_a_correct_rounding(scaled, digits, data):
    number = Decimal(scaled).scaleb(-digits)
    fewer = data.draw(st.integers(min_value=0, max_value=digits - 1))
    rounded = round(number, fewer) if fewer else Decimal(round(number))
    display = parse(shown(scaled, digits))
    step = Decimal(1).scaleb(-fewer)
    assert mismatch(parse(f"{rounded:,.{fewer}f}"), display, (number,)) is None
    wrong = rounded + 2 * step
    assert mismatch(parse(f"{wrong:,.{fewer}f}"), display, (number,)) == "not a correct rounding"


def test_a_coarse_text_rounds_the_number_and_not_its_display():
    assert problem("2.4", "2.45", 2.449) is None
    assert problem("2.5", "2.45", 2.449) == "not a correct rounding"


def test_both_ties_count_for_a_coarse_text():
    assert problem("2", "2.5", 2.5) is None
    assert problem("3", "2.5", 2.5) is None
    assert problem("4", "2.5", 2.5) == "not a correct rounding"


def test_more_digits_than_the_figure_shows_are_refused():
    assert problem("233.4 s", "233 s", 233.4) == "more digits than the figure shows"


def test_a_measure_needs_its_unit_and_a_count_does_not():
    assert "unit" in problem("233", "233 s", 233)
    assert "unit" in problem("233 min", "233 s", 233)
    assert problem("12", "12 steps", 12) is None
    assert "unit" in problem("12 steps", "12", 12)
    assert mismatch(parse("12 steps"), parse("12"), (Decimal(12),), ("step",)) is None
    assert "unit" in problem("12 s", "12", 12)
    assert "unit" in problem("12 groups", "12 steps", 12)


def test_a_range_and_a_single_number_are_different_things():
    assert problem("0.53", "0.53 to 0.74", 0.53, 0.74) == "one number for a range"
    assert problem("0.53 to 0.74", "0.53", 0.53) == "a range"
    assert problem("0.53 to 0.75", "0.53 to 0.74", 0.53, 0.74) == "another number"


def test_a_scaled_number_is_held_to_its_rounding():
    assert problem("1.9 million tokens", "1,929,501 tokens", 1929501) is None
    assert problem("1.8 million tokens", "1,929,501 tokens", 1929501) == "not a correct rounding"
    assert problem("1.9 thousand tokens", "1,929,501 tokens", 1929501) == "not a correct rounding"
    assert problem("about 23 s", "23.1 s", 23.08) is None
    assert problem("about 24 s", "23.1 s", 23.08) == "not a correct rounding"


@pytest.mark.parametrize("text", ["2e1 s", "0.2e2 s", "2E1 s"])
def test_an_exponent_is_refused_where_the_figure_shows_none(text):
    assert "exponent" in problem(text, "23.1 s", 23.08)
    assert problem("4e-9", "3.7e-09", 3.7e-09) is None


@pytest.mark.parametrize("noun", ["errors", "retries", "GPUs", "million", "thousand steps", "k"])
def test_a_count_takes_no_noun_but_its_own(noun):
    written = parse(f"20 {noun}")
    assert mismatch(written, parse("20"), (Decimal(20),), ("step",)) is not None
    assert mismatch(parse("20 clean steps"), parse("20"), (Decimal(20),), ("step",)) is not None
