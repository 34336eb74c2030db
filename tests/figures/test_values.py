"""How values are rounded, shown and compared."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from figures.values import Value, ValueProblem, number_text, rounded


def value(number, unit="", digits=0, **more):
    return Value("x", number, unit, digits, "lab/run:x", **more)


@pytest.mark.parametrize(
    ("number", "unit", "digits", "text"),
    [
        (233, "s", 0, "233 s"),
        (232.6, "s", 0, "233 s"),
        (345645, "tokens", 0, "345,645 tokens"),
        (1929501.4, "tokens", 0, "1,929,501 tokens"),
        (1234.5, "GB", 2, "1,234.50 GB"),
        ((0.0141, 0.0164), "", 4, "0.0141 to 0.0164"),
        ((40, 45), "percent", 0, "40 to 45 percent"),
        (12.4, "%", 0, "12%"),
        (1, "steps", 0, "1 step"),
        (1, "s", 0, "1 s"),
        (-0.001, "", 2, "0.00"),
        (0, "percent", 1, "0 percent"),
        ((0.0, 1.5625), "percent", 1, "0 to 1.6 percent"),
        (0.0625, "", 3, "0.063"),
        (1834, "", -2, "1,800"),
        (13 * 10**9, "parameters", 0, "13 billion parameters"),
        ((3 * 10**10, 10**12), "parameters", 0, "30 billion to 1 trillion parameters"),
        (1_500_000_001, "parameters", 0, "1,500,000,001 parameters"),
        (13 * 10**9, "", 0, "13,000,000,000"),
        (4, "K tokens", 0, "4K tokens"),
    ],
)
def test_a_value_shows_number_unit_and_precision(number, unit, digits, text):
    assert value(number, unit, digits).text == text


def test_rounding_is_half_up_on_the_decimal_form():
    assert rounded(2.675, 2) == Decimal("2.68")
    assert rounded(0.5, 0) == 1


@given(st.floats(-1e9, 1e9), st.integers(0, 6))
def test_what_is_shown_is_within_half_a_digit(number, digits):
    shown = Decimal(number_text(number, digits).replace(",", ""))
    assert abs(shown - Decimal(repr(number))) <= Decimal("0.5").scaleb(-digits)


@given(st.integers(-(10**9), 10**9), st.integers(0, 6))
def test_a_value_agrees_with_what_it_shows_and_not_with_a_neighbour(units, digits):
    exact = float(Decimal(units).scaleb(-digits))
    item = value(exact, digits=digits)
    assert item.agrees_with(item.shown)
    assert not item.agrees_with((item.shown[0] + Decimal(1).scaleb(-digits),))


def test_a_range_does_not_agree_with_one_number():
    assert not value((1.0, 1.0)).agrees_with((1,))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), (0.0, float("nan"))])
def test_a_value_that_is_not_finite_cannot_be_made(number):
    with pytest.raises(ValueProblem, match="not a number"):
        value(number)


def test_a_reversed_range_cannot_be_made():
    with pytest.raises(ValueProblem, match="backwards"):
        value((2, 1))


def test_an_unknown_kind_cannot_be_made():
    with pytest.raises(ValueProblem, match="kind"):
        value(1, kind="speed")


@pytest.mark.parametrize(
    ("unit", "kind"),
    [
        ("s", "time"), ("min", "time"), ("h", "time"), ("ms", "time"), ("days", "time"),
        ("tokens/s", "time"), ("tokens per second", "time"), ("s/step", "time"),
        ("GB", "memory"), ("MiB", "memory"), ("percent", "share"), ("%", "share"),
        ("", "metric"), ("steps", "metric"), ("tokens", "metric"), ("times", "metric"),
    ],
)  # fmt: skip
def test_the_kind_follows_from_the_unit(unit, kind):
    assert value(1, unit).kind == kind
    if kind != "metric":
        with pytest.raises(ValueProblem, match=f"makes it a {kind}, not a metric"):
            value(1, unit, kind="metric")


@pytest.mark.parametrize("unit", ["", "tokens/s", "GB", "steps"])
def test_a_log_distance_is_in_a_unit_of_time(unit):
    with pytest.raises(ValueProblem, match="a log distance in"):
        value(1, unit, kind="log-distance")
    assert value(1, "s", kind="log-distance").kind == "log-distance"
