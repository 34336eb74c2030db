"""The group filter that section 8.5 lets a reader copy."""

from types import SimpleNamespace

import my_filter
import pytest

ARGS = SimpleNamespace(reward_key=None)


def group(*rewards):
    return [SimpleNamespace(reward=reward) for reward in rewards]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(my_filter, "_dropped", 0)


def test_a_group_with_a_difference_is_kept():
    assert my_filter.keep(ARGS, group(0, 0, 1)) is True


@pytest.mark.parametrize("reward", [0, 1, 0.3, True, 1.0])
def test_a_group_with_one_reward_is_dropped(reward):
    assert my_filter.keep(ARGS, group(*[reward] * 16)) is False


def test_extra_arguments_of_a_later_miles_are_taken():
    assert my_filter.keep(ARGS, group(0, 1), rollout_id=3) is True


def test_the_limit_ends_a_rollout_that_would_never_end():
    kept = [my_filter.keep(ARGS, group(1, 1)) for _ in range(3 * (my_filter.MOST_IN_A_ROW + 1))]
    assert sum(kept) == 3
    assert kept.index(True) == my_filter.MOST_IN_A_ROW


def test_a_kept_group_starts_the_count_anew():
    for _ in range(my_filter.MOST_IN_A_ROW):
        my_filter.keep(ARGS, group(1, 1))
    assert my_filter.keep(ARGS, group(0, 1)) is True
    assert my_filter.keep(ARGS, group(1, 1)) is False


def test_a_dict_without_its_key_is_an_error():
    with pytest.raises(KeyError):
        my_filter.keep(ARGS, group({"score": 1}))


def test_a_changed_filter_shows_as_different(monkeypatch, capsys):
    assert my_filter.main([]) == 0
    monkeypatch.setattr(my_filter, "SMALLEST_SPREAD", 5)
    assert my_filter.main([]) == 1
    assert "mixed             drop: DIFFERS" in capsys.readouterr().out
