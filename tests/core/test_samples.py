"""Samples keep their shapes, masks and versions; group advantages."""

import math
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capture.core.advantages import group_advantages, with_advantages
from capture.core.errors import ContractError, RefusedError
from capture.core.samples import Collection, Sample, check_active_inputs


def sample(**changes) -> Sample:
    fields = {
        "sample_id": 7,
        "group_id": 1,
        "tokens": np.array([5, 6, 7, 8, 9]),
        "prompt_len": 2,
        "loss_mask": np.array([True, False, True]),
        "behaviour_logp": np.array([-0.5, np.nan, -1.5]),
        "behaviour_version": np.array([4, 4, 3]),
        "reward": 1.0,
    }
    return Sample(**(fields | changes))


def test_a_sample_knows_its_response():
    one = sample()
    assert one.response_len == 3
    assert one.response.tolist() == [7, 8, 9]
    assert one.active_tokens == 2
    assert one.oldest_version == 3


def test_a_sample_cannot_change():
    tokens = np.array([5, 6, 7, 8, 9])
    one = sample(tokens=tokens)
    tokens[0] = 99
    assert one.tokens[0] == 5
    with pytest.raises(ValueError, match="read-only"):
        one.tokens[0] = 1
    with pytest.raises(FrozenInstanceError):
        one.reward = 2.0


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"prompt_len": 0}, "prompt_len 0 of 5"),
        ({"prompt_len": 5}, "prompt_len 5 of 5"),
        ({"tokens": np.array([[1, 2, 3, 4, 5]])}, "one dimension"),
        ({"tokens": np.array([1.5, 2, 3, 4, 5])}, "integers"),
        ({"tokens": np.array([1, 2, 3, 4, -5])}, "negative"),
        ({"loss_mask": np.array([True, True])}, "loss_mask has 2 entries for a response of 3"),
        ({"loss_mask": np.array([0.5, 1, 1])}, "0 and 1"),
        ({"loss_mask": np.zeros(3, bool)}, "no response token"),
        ({"behaviour_logp": np.zeros(5)}, "behaviour_logp has 5"),
        ({"behaviour_version": np.zeros(3)}, "integers"),
        ({"behaviour_version": np.array([0, -1, 0])}, "negative"),
        ({"finish": "done"}, "finish 'done'"),
        ({"routes": np.zeros((5, 2, 1), int)}, "routes"),
        ({"routes": np.zeros((4, 2, 1))}, "routes must hold integers, not float64"),
        ({"prompt_len": 2.0}, "prompt_len must be an integer, not 2.0"),
        ({"prompt_len": True}, "prompt_len must be an integer, not True"),
        ({"prompt_len": "2"}, "prompt_len must be an integer, not '2'"),
        ({"tokens": [[1], [2, 3]]}, "tokens is no list of numbers"),
        ({"behaviour_logp": ["a", "b", "c"]}, "behaviour_logp must hold numbers"),
        ({"behaviour_logp": np.full(3, 1j)}, "behaviour_logp must hold numbers, not complex128"),
        ({"behaviour_logp": None}, "behaviour_logp must hold numbers"),
        ({"reward": "1"}, "reward must be a number, not '1'"),
        ({"reward": None}, "reward must be a number, not None"),
        ({"advantage": None}, "advantage must be a number, not None"),
    ],
)
def test_wrong_samples_are_refused_by_name(changes, match):
    with pytest.raises(ContractError, match=match) as caught:
        sample(**changes)
    assert "7" in caught.value.detail


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"reward": math.nan}, "non-finite-reward"),
        ({"reward": math.inf}, "non-finite-reward"),
        ({"advantage": -math.inf}, "non-finite-advantage"),
        ({"behaviour_logp": np.array([-1, -1, math.nan])}, "non-finite-logp"),
        ({"behaviour_logp": np.array([-math.inf, -1, -1])}, "non-finite-logp"),
    ],
)
def test_active_values_must_be_finite(changes, check):
    with pytest.raises(ContractError) as caught:
        check_active_inputs([sample(**changes)])
    assert caught.value.check == check


def test_inactive_values_may_be_anything():
    check_active_inputs([sample(behaviour_logp=np.array([-1, math.nan, -1]))])


def test_no_samples_are_an_empty_batch():
    for call in (lambda: check_active_inputs([]), lambda: Collection((), 3)):
        with pytest.raises(ContractError) as caught:
            call()
        assert caught.value.check == "empty-batch"


def test_a_collection_counts_its_tokens_and_refuses_a_sample_twice():
    pair = Collection((sample(), sample(sample_id=8)), 0, {"epoch": 0})
    assert (len(pair), pair.model_tokens, pair.active_tokens, pair.oldest_version) == (2, 10, 4, 3)
    with pytest.raises(ContractError, match="sample 7 is twice"):
        Collection((sample(), sample()), 0)


def test_advantages_are_the_formula():
    rewards, groups = [1.0, 0.0, 0.0, 5.0, 2.0], [0, 0, 0, 1, 1]
    found = group_advantages(rewards, groups, guard=1e-6)
    for group in (0, 1):
        own = [r for r, g in zip(rewards, groups, strict=True) if g == group]
        mean = sum(own) / len(own)
        deviation = math.sqrt(sum((r - mean) ** 2 for r in own) / (len(own) - 1))
        expected = [(r - mean) / (deviation + 1e-6) for r in own]
        assert found[[g == group for g in groups]] == pytest.approx(expected, rel=1e-14)
    centred = group_advantages(rewards, groups, normalize=False)
    assert centred.tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3, 1.5, -1.5])


@pytest.mark.parametrize("reward", [0.0, 0.1, 0.3, -0.7, 1e-300, 1e300])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
def test_equal_rewards_give_exactly_zero(reward, count):
    for normalize in (True, False):
        assert not group_advantages([reward] * count, [0] * count, normalize=normalize).any()


def test_the_guard_keeps_rounding_from_becoming_an_advantage():
    """0.1 + 0.2 is not 0.3 in binary; without the guard the pair would get plus and minus 0.7."""
    assert np.abs(group_advantages([0.1 + 0.2, 0.3], [0, 0])).max() < 1e-9


@given(
    rewards=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20),
    groups=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_advantages_are_finite_centred_and_blind_to_order(rewards, groups, seed):
    ids = [i % groups for i in range(len(rewards))]
    found = group_advantages(rewards, ids)
    assert np.isfinite(found).all()
    for group in set(ids):
        own = found[[g == group for g in ids]]
        assert abs(own.sum()) <= 1e-6
        assert np.abs(own).max() <= len(own)
    order = np.random.default_rng(seed).permutation(len(rewards))
    shuffled = group_advantages([rewards[i] for i in order], [ids[i] for i in order])
    np.testing.assert_array_equal(shuffled, found[order])


def test_bad_rewards_and_guards_are_refused():
    with pytest.raises(ContractError, match="non-finite-reward"):
        group_advantages([1.0, math.nan], [0, 0])
    with pytest.raises(ContractError):
        group_advantages([1.0], [0, 0])
    for guard in (0.0, -1e-6, math.nan, math.inf):
        with pytest.raises(RefusedError, match="guard"):
            group_advantages([1.0, 0.0], [0, 0], guard=guard)


def test_advantages_stay_with_their_samples():
    first, second = sample(reward=1.0), sample(sample_id=8, reward=0.0)
    filled = with_advantages([first, second])
    assert filled[0].advantage == -filled[1].advantage > 0
    assert [one.sample_id for one in filled] == [7, 8]
    assert first.advantage == 0.0
    assert replace(filled[0], advantage=0.0).tokens.tolist() == first.tokens.tolist()


@pytest.mark.parametrize("scale", [1.0, 1e150, 1e308])
def test_the_largest_rewards_have_the_advantages_of_small_ones(scale):
    wanted = group_advantages([1.7, 1.7, -1.7, 0.0], [0] * 4, guard=1e-300)
    found = group_advantages([1.7 * scale, 1.7 * scale, -1.7 * scale, 0.0], [0] * 4, guard=1e-300)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_a_difference_without_a_float_is_not_silent():
    found = group_advantages([1.7e308, -1.7e308, -1.7e308], [0] * 3, normalize=False)
    assert found[0] == math.inf
    with pytest.raises(ContractError, match="non-finite-advantage"):
        check_active_inputs([sample(advantage=float(found[0]))])
