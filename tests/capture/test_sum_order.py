"""The program of section 8.3: the order of a float32 sum changes its last bits."""

import math
import random

import pytest
import sum_order


@pytest.mark.parametrize("order", sum_order.ORDERS.values(), ids=sum_order.ORDERS)
def test_an_order_adds_every_number_once(order):
    terms = [float(2**place) for place in range(20)]
    assert order(terms) == math.fsum(terms)


@pytest.mark.parametrize("order", sum_order.ORDERS.values(), ids=sum_order.ORDERS)
def test_a_sum_is_a_float32_near_the_exact_one(order):
    terms = sum_order.products(random.Random(3))
    assert order(terms) == sum_order.single(order(terms))
    assert order(terms) == pytest.approx(math.fsum(terms), abs=1e-4)


def test_the_order_changes_most_sums_and_the_first_order_none():
    sums = []
    source = random.Random(5)
    for _ in range(20):
        terms = sum_order.products(source)
        sums.append({name: order(terms) for name, order in sum_order.ORDERS.items()})
    counts = list(sum_order.different(sums).values())
    assert counts[0] == 0
    assert min(counts[1:]) > 10


def test_sums_that_float32_holds_exactly_do_not_change():
    terms = [0.25, 0.5, -1.0, 3.0] * 50
    assert {order(terms) for order in sum_order.ORDERS.values()} == {137.5}


def test_no_sum_is_bad_usage(capsys):
    with pytest.raises(SystemExit) as stop:
        sum_order.main(["--sums", "0"])
    assert stop.value.code == 2
    assert "at least 1" in capsys.readouterr().err
