"""The scoring pass is skipped only where the training forward is its equal, and was compared."""

import math

import numpy as np
import pytest

from capture.core.errors import ContractError, RefusedError
from capture.core.scoring import (
    Comparison,
    ScoringConfig,
    ScoringSchedule,
    compare,
    merge,
    reasons_to_score,
)

FINE = Comparison(tokens=10, mean_abs=1e-7, max_abs=1e-6)
SKIPPABLE = {"optimizer_steps": 1, "reference_kl": False, "dropout": 0.0}


def schedule(config: ScoringConfig | None = None, **changes) -> ScoringSchedule:
    return ScoringSchedule(config or ScoringConfig(), **(SKIPPABLE | changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"optimizer_steps": 2}, "2 optimizer steps per collection"),
        ({"reference_kl": True}, "a reference KL"),
        ({"dropout": 0.1}, "dropout 0.1"),
    ],
)
def test_each_condition_alone_needs_the_pass(changes, reason):
    assert reasons_to_score(**(SKIPPABLE | changes)) == (reason,)
    one = schedule(**changes)
    for _ in range(5):
        decision = one.decide()
        assert decision.run_pass
        assert not decision.compare
        assert reason in decision.reason
        one.advance()


def test_without_a_reason_nothing_needs_the_pass():
    assert reasons_to_score(**SKIPPABLE) == ()


def test_first_update_and_every_nth_compare_and_the_rest_skip():
    one = schedule(ScoringConfig(compare_interval=3))
    seen = []
    for _ in range(8):
        decision = one.decide()
        assert decision.run_pass == decision.compare
        if decision.compare:
            one.accept(FINE)
        one.advance()
        seen.append(decision.compare)
    assert seen == [True, False, False, True, False, False, True, False]
    assert one.updates == 8


def test_asking_twice_is_the_same_answer():
    one = schedule()
    assert one.decide() == one.decide()


def test_forcing_runs_every_pass():
    one = schedule(ScoringConfig(force=True))
    for _ in range(4):
        assert one.decide().run_pass
        one.advance()


def test_a_new_process_compares_again():
    first = schedule()
    first.decide()
    first.accept(FINE)
    first.advance()
    assert not first.decide().compare
    assert schedule().decide().compare


@pytest.mark.parametrize(
    "bad",
    [
        Comparison(10, 2e-4, 2e-3),
        Comparison(10, math.nan, math.nan),
        Comparison(10, math.inf, math.inf),
        Comparison(0, 0.0, 0.0),
    ],
)
def test_a_mismatch_fails_the_skip(bad):
    one = schedule(ScoringConfig(tolerance=1e-4))
    one.decide()
    with pytest.raises(ContractError, match="scoring-anchor"):
        one.accept(bad)
    with pytest.raises(ContractError, match="without the comparison"):
        one.advance()
    assert one.updates == 0
    assert one.decide().compare


def test_the_tolerance_itself_is_accepted():
    one = schedule(ScoringConfig(tolerance=1e-7))
    one.decide()
    one.accept(FINE)


def test_an_update_without_the_due_comparison_is_an_error():
    one = schedule()
    one.decide()
    with pytest.raises(ContractError, match="without the comparison"):
        one.advance()


def test_compare_looks_at_active_tokens_only():
    found = compare(
        {0: np.array([-1.0, -2.0, np.nan]), 4: np.array([-3.0])},
        {0: np.array([-1.5, -2.0, 7.0]), 4: np.array([-3.25])},
        {0: np.array([True, True, False]), 4: np.array([True])},
    )
    assert found == Comparison(3, 0.25, 0.5)


def test_compare_keeps_what_is_not_a_number():
    for first, second in ((np.nan, 0.0), (0.0, np.nan), (np.inf, np.inf)):
        found = compare(
            {0: np.array([0.0, first, 0.0])}, {0: np.array([0.0, second, 0.0])},
            {0: np.ones(3, bool)},
        )  # fmt: skip
        assert math.isnan(found.mean_abs)
        assert math.isnan(found.max_abs)


def test_compare_refuses_other_samples_and_lengths():
    one, mask = {0: np.zeros(2)}, {0: np.ones(2, bool)}
    with pytest.raises(ContractError, match="only one forward"):
        compare(one, {1: np.zeros(2)}, mask)
    with pytest.raises(ContractError, match="shapes"):
        compare(one, {0: np.zeros(3)}, mask)


def test_merged_comparisons_are_one_comparison():
    rng = np.random.default_rng(0)
    ones = [{i: rng.normal(size=i + 1)} for i in range(4)]
    others = [{i: rng.normal(size=i + 1)} for i in range(4)]
    masks = {i: np.ones(i + 1, bool) for i in range(4)}
    parts = [compare(a, b, masks) for a, b in zip(ones, others, strict=True)]
    whole = compare(
        {k: v for one in ones for k, v in one.items()},
        {k: v for one in others for k, v in one.items()},
        masks,
    )
    joined = merge(parts)
    assert joined.tokens == whole.tokens
    assert joined.mean_abs == pytest.approx(whole.mean_abs)
    assert joined.max_abs == whole.max_abs
    assert math.isnan(merge([FINE, Comparison(1, math.nan, math.nan)]).max_abs)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"compare_interval": 0}, "compare_interval"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"tolerance": math.nan}, "tolerance"),
    ],
)
def test_impossible_controls_are_refused(changes, match):
    with pytest.raises(RefusedError, match=match):
        ScoringConfig(**changes)
