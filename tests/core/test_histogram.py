"""Fixed bins: counts add, bounds hold the true quantile, null means above 1.0 and nothing else."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.core import histogram
from capture.core.errors import ContractError
from capture.core.histogram import BINS, BOUNDS, LENGTHS, QUANTILES, THIRDS, ErrorHistogram

ERRORS = st.floats(0, 50, allow_subnormal=False) | st.sampled_from(BOUNDS) | st.just(0.0)
MANY = st.lists(ERRORS, min_size=1, max_size=80)


def counts_of(values):
    return np.bincount(histogram.bin_of(np.array(values)), minlength=BINS).tolist()


def filled(errors, mask=None):
    made = ErrorHistogram()
    errors = np.array(errors)
    made.add(errors, np.zeros(len(errors)), np.ones(len(errors), bool) if mask is None else mask)
    return made


def slow_quantile(values, fraction):
    """Smallest value with at least the fraction of values at or below it, by definition."""
    for value in sorted(values):
        if sum(v <= value for v in values) * fraction[1] >= fraction[0] * len(values):
            return value
    raise AssertionError


def test_bounds_rise_from_zero_to_one_in_equal_decades():
    assert BOUNDS[0] == 0.0
    assert BOUNDS[-1] == 1.0
    assert list(BOUNDS) == sorted(set(BOUNDS))
    assert BOUNDS[1:4] == (1e-6, 2e-6, 5e-6)
    assert len(BOUNDS) == 20


@given(ERRORS)
def test_a_value_lies_above_the_bound_below_and_at_most_at_its_own(value):
    index = int(histogram.bin_of([value])[0])
    if index == len(BOUNDS):
        assert value > 1.0
    else:
        assert value <= BOUNDS[index]
        assert index == 0 or value > BOUNDS[index - 1]


@given(MANY)
def test_the_bound_is_at_least_the_true_quantile_and_within_its_bin(values):
    for fraction in QUANTILES.values():
        true = slow_quantile(values, fraction)
        bound = histogram.quantile_upper(counts_of(values), fraction)
        if bound is None:
            assert true > 1.0
        else:
            index = BOUNDS.index(bound)
            assert true <= bound
            assert index == 0 or true > BOUNDS[index - 1]


@given(MANY)
def test_null_is_exactly_a_quantile_above_one(values):
    for fraction in QUANTILES.values():
        bound = histogram.quantile_upper(counts_of(values), fraction)
        assert (bound is None) == (slow_quantile(values, fraction) > 1.0)


@pytest.mark.parametrize(
    ("count", "name", "rank"),
    [
        (20, "p95", 19),
        (21, "p95", 20),
        (100, "p99", 99),
        (1, "p99", 1),
        (2, "p50", 1),
        (3, "p50", 2),
    ],
)
def test_ranks_are_exact_where_float_products_round_up(count, name, rank):
    assert histogram.quantile_rank(count, QUANTILES[name]) == rank


def test_one_value_of_exactly_one_is_no_overflow():
    upper = filled([1.0]).summary()["all"]["upper"]
    assert upper == {"p50": 1.0, "p95": 1.0, "p99": 1.0}
    assert filled([math.nextafter(1.0, 2.0)]).summary()["all"]["upper"]["p50"] is None


def test_an_overflow_quantile_is_null_while_the_maximum_stays_exact():
    segment = filled([0.003] * 9 + [7.25]).summary()["all"]
    assert segment["upper"] == {"p50": 0.005, "p95": None, "p99": None}
    assert segment["max"] == 7.25
    assert segment["counts"][-1] == 1


def test_no_observation_is_absent_and_not_null():
    segment = ErrorHistogram().summary()["all"]
    assert segment == {"tokens": 0, "counts": [0] * BINS}
    with pytest.raises(ContractError, match="no observation"):
        histogram.quantile_upper([0] * BINS, (1, 2))


RESPONSES = st.lists(
    st.lists(st.tuples(ERRORS, st.booleans()), min_size=1, max_size=40), max_size=12
)


def build(responses):
    made = ErrorHistogram()
    for response in responses:
        errors, mask = map(np.array, zip(*response, strict=True))
        made.add(errors, np.zeros(len(errors)), mask)
    return made


def same(one, other):
    return (
        np.array_equal(one.counts, other.counts)
        and np.array_equal(one.responses, other.responses)
        and np.array_equal(one.maxima, other.maxima)
        and np.allclose(one.sums, other.sums, rtol=1e-12, atol=0)
    )


@given(RESPONSES, st.integers(0, 12))
def test_merging_parts_equals_counting_all_at_once(responses, cut):
    merged = build(responses[:cut]).merge(build(responses[cut:]))
    assert same(merged, build(responses))
    assert same(build(responses[cut:]).merge(build(responses[:cut])), merged)


@given(RESPONSES, st.integers(0, 12))
def test_an_all_reduce_of_two_ranks_equals_a_merge(responses, cut):
    ranks = [build(responses[:cut]), build(responses[cut:])]
    inputs = []

    def record(vector):
        inputs.append(vector.copy())
        return vector

    ranks[1].reduced(record, record)
    summed, largest = inputs
    reduced = ranks[0].reduced(lambda v: v + summed, lambda v: np.maximum(v, largest))
    assert same(reduced, ranks[0].merge(ranks[1]))


@given(RESPONSES)
def test_thirds_and_length_buckets_both_partition_the_tokens(responses):
    made = build(responses)
    thirds = made.counts[1 : 1 + len(THIRDS)]
    lengths = made.counts[1 + len(THIRDS) :]
    assert (thirds.sum(0) == made.counts[0]).all()
    assert (lengths.sum(0) == made.counts[0]).all()
    assert made.responses.sum() == len(responses)
    assert made.total == sum(active for response in responses for _, active in response)


def test_thirds_follow_the_position_in_the_response_and_ignore_the_mask():
    assert histogram.thirds_of(1).tolist() == [0]
    assert histogram.thirds_of(2).tolist() == [0, 1]
    assert histogram.thirds_of(7).tolist() == [0, 0, 0, 1, 1, 2, 2]
    mask = np.array([False, False, True])
    made = filled([9.0, 9.0, 0.5], mask)
    assert [part["tokens"] for part in made.summary()["thirds"].values()] == [0, 0, 1]


@pytest.mark.parametrize(
    ("length", "bucket"),
    [(1, "1-8"), (8, "1-8"), (9, "9-32"), (512, "129-512"), (8192, "2049-8192"), (8193, "8193+")],
)
def test_lengths_count_all_response_tokens(length, bucket):
    assert LENGTHS[histogram.length_bucket(length)] == bucket
    mask = np.zeros(length, bool)
    mask[0] = True
    summary = filled(np.full(length, 0.1), mask).summary()["lengths"]
    assert [name for name, part in summary.items() if part["responses"]] == [bucket]


@given(MANY)
def test_the_mean_lies_within_what_the_counts_allow(values):
    low, high = histogram.mean_bounds(counts_of(values))
    assert low - 1e-9 <= np.mean(values) <= high + 1e-9


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_active_value_that_is_not_finite_is_refused_with_its_position(bad):
    with pytest.raises(ContractError, match=r"position 1: anchor -0\.5"):
        ErrorHistogram().add([-0.5, -0.5], [-0.5, bad], [True, True])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_inactive_value_may_be_anything(bad):
    made = ErrorHistogram()
    made.add([-0.5, bad], [-0.5, bad], [True, False])
    assert made.total == 1


def test_unequal_shapes_are_refused():
    with pytest.raises(ContractError, match="shapes"):
        ErrorHistogram().add([0.1, 0.2], [0.1], [True, True])
    with pytest.raises(ContractError, match="shapes"):
        ErrorHistogram().add([], [], [])


def test_a_bit_exact_engine_gives_bounds_of_exactly_zero():
    segment = filled([0.0] * 5).summary()["all"]
    assert segment["upper"] == {"p50": 0.0, "p95": 0.0, "p99": 0.0}
    assert segment["max"] == segment["mean"] == 0.0


def test_samples_are_counted_against_their_own_anchors():
    from capture.core.samples import Sample

    samples = [
        Sample(
            sample_id=i,
            group_id=0,
            tokens=[1, 2, 3, 4],
            prompt_len=2,
            loss_mask=[True, i == 0],
            behaviour_logp=[-1.0, -2.0],
            behaviour_version=[0, 0],
            reward=0.0,
        )
        for i in range(2)
    ]
    made = histogram.of_samples([np.array([-1.0, -2.25]), np.array([-1.5, -9.0])], samples)
    assert made.total == 3
    assert made.summary()["all"]["max"] == 0.5
