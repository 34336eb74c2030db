"""The objective against the independent numpy reference, and what must hold of it."""

from dataclasses import replace

import numpy as np
import pytest
import reference_numpy as reference
import torch
from batches import Batch, batches, config_of, make, run, settings_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_numpy import Settings

from capture.core.errors import ContractError, RefusedError
from capture.core.objective import (
    Denominators,
    ObjectiveConfig,
    PackInputs,
    Terms,
    pack_inputs,
    policy_objective,
    response_logps,
    token_logps,
)
from capture.core.packing import UNLIMITED, plan

SHAPES = [(3, 4), (5, 2), (2, 6), (1, 1)]
quick = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def assert_same(batch: Batch, chosen: Settings, *, gradients: bool = True, **how):
    expected = reference.objective(batch.rows(), chosen)
    loss, grads, terms = run(batch, chosen, **how)
    assert loss == pytest.approx(expected.loss, rel=1e-12, abs=1e-13)
    for name, value in expected.sums.items():
        if name == "kl" and batch.ref is None:
            continue
        assert terms[name] == pytest.approx(value, rel=1e-10, abs=1e-11), name
    if gradients:
        slopes = reference.gradient(batch.rows(), chosen)
        scale = max(float(np.abs(slope).max()) for slope in slopes)
        for own, slope in zip(grads, slopes, strict=True):
            np.testing.assert_allclose(own, slope, rtol=0, atol=2e-8 * max(scale, 1.0))


@given(data=st.data())
@quick
def test_value_and_statistics_equal_the_reference(data):
    batch = data.draw(batches())
    assert_same(
        batch,
        data.draw(settings_of(batch)),
        gradients=False,
        pack_tokens=data.draw(st.sampled_from([None, 12, UNLIMITED])),
    )


@given(data=st.data())
@settings(quick, max_examples=25)
def test_gradient_equals_central_differences(data):
    batch = data.draw(batches(size=2))
    assert_same(batch, data.draw(settings_of(batch)), pack_tokens=UNLIMITED)


@pytest.mark.parametrize("reduction", ["token", "response"])
@pytest.mark.parametrize("kl_type", ["k1", "k2", "k3", "low_var_kl"])
@pytest.mark.parametrize("tis", [None, (0.0, 2.0), (0.8, 1.2)])
def test_fixed_batch_equals_the_reference(reduction, kl_type, tis):
    chosen = Settings(
        reduction=reduction,
        kl_type=kl_type,
        kl_coef=0.05,
        tis=tis,
        entropy_coef=0.01,
        eps_high=0.28,
        temperature=0.9,
    )
    assert_same(make(1, SHAPES), chosen, pack_tokens=16)


@pytest.mark.parametrize("advantage", [1.5, -1.5, 0.0])
@pytest.mark.parametrize("log_ratio", [-1e4, -30.0, 30.0, 100.0, 1e4])
@pytest.mark.parametrize("kl_type", ["k1", "k2", "k3", "low_var_kl"])
def test_huge_log_ratios_stay_finite(advantage, log_ratio, kl_type):
    new = torch.tensor([-1.0, -2.0], requires_grad=True)
    inputs = PackInputs(
        advantage=torch.full((2,), advantage),
        mask=torch.tensor([True, True]),
        active_in_response=torch.full((2,), 2.0),
        behaviour_logp=torch.tensor([-1.0, -2.0 + log_ratio]),
        old_logp=torch.tensor([-1.0 - log_ratio, -2.0]),
        ref_logp=torch.tensor([-1.0 + log_ratio, -2.0]),
    )
    config = ObjectiveConfig(tis=True, kl_coef=0.1, kl_type=kl_type)
    loss, terms = policy_objective(new, None, inputs, Denominators(2, 1, 1), config)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(new.grad).all()
    assert all(np.isfinite(value) for value in terms.as_dict().values())


def test_dual_clip_bounds_the_loss_of_a_bad_token():
    batch = make(2, [(2, 3)], drift=3.0, holes=0.0)
    batch.samples = [replace(batch.samples[0], advantage=-1.0)]
    free, _, _ = run(batch, Settings(reduction="token"))
    bounded, _, _ = run(batch, Settings(reduction="token", dual=1.5))
    assert bounded <= 1.5 < free
    assert_same(batch, Settings(dual=1.5))


def test_correction_sees_only_behaviour_and_anchor():
    """Moving the policy from its anchor changes the loss and leaves the correction alone."""
    batch = make(3, SHAPES)
    chosen = Settings(tis=(0.0, 2.0))
    loss, _, before = run(batch, chosen)
    batch.logits = [own + np.random.default_rng(5).normal(size=own.shape) for own in batch.logits]
    moved, _, after = run(batch, chosen)
    assert moved != loss
    for name in ("tis", "tis_abs", "tis_clipfrac", "abs_diff", "abs_diff_max"):
        assert after[name] == before[name], name


def test_correction_is_no_path_for_gradients():
    """With the forward as its own anchor, the gradient is the plain one times the capped weight."""
    batch = make(4, [(2, 4)], old=False, ref=False, holes=0.0)
    _, plain, _ = run(batch, Settings())
    _, corrected, _ = run(batch, Settings(tis=(0.5, 0.5)))
    np.testing.assert_allclose(corrected[0], 0.5 * plain[0], rtol=1e-12)


@pytest.mark.parametrize("reduction", ["token", "response"])
@pytest.mark.parametrize("tis", [None, (0.0, 2.0), (0.9, 1.1)])
def test_training_forward_as_anchor_equals_a_scored_anchor(reduction, tis):
    batch = make(5, SHAPES, old=False)
    chosen = Settings(reduction=reduction, kl_coef=0.1, tis=tis)
    loss, grads, _ = run(batch, chosen)
    batch.old = [np.array(own) for own in reference.anchors_of(batch.rows(), 1.0)]
    scored_loss, scored_grads, _ = run(batch, chosen)
    assert loss == pytest.approx(scored_loss, rel=1e-14)
    for own, scored in zip(grads, scored_grads, strict=True):
        np.testing.assert_allclose(own, scored, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("reduction", ["token", "response"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("pack_tokens", [None, 10, UNLIMITED])
def test_average_over_ranks_is_the_global_objective(reduction, world_size, pack_tokens):
    """Whatever the ranks and packs: same loss, same gradient, same sums."""
    batch = make(6, [*SHAPES, (4, 1), (1, 5), (2, 2), (3, 3)])
    chosen = Settings(reduction=reduction, kl_coef=0.1, entropy_coef=0.02, tis=(0.0, 2.0))
    loss, grads, terms = run(batch, chosen)
    other_loss, other_grads, other_terms = run(
        batch, chosen, world_size=world_size, pack_tokens=pack_tokens
    )
    assert other_loss == pytest.approx(loss, rel=1e-13)
    for own, other in zip(grads, other_grads, strict=True):
        np.testing.assert_allclose(other, own, rtol=1e-11, atol=1e-15)
    assert other_terms.as_dict() == pytest.approx(terms.as_dict(), rel=1e-12)


def test_local_means_would_be_another_objective():
    """Why the denominators are global: the mean of the ranks' own token means differs."""
    batch = make(6, [(1, 5), (1, 1)], holes=0.0)
    together, _, _ = run(batch, Settings())
    apart = [
        run(Batch([batch.samples[i]], [batch.logits[i]], [batch.old[i]], None), Settings())[0]
        for i in range(2)
    ]
    assert abs(sum(apart) / 2 - together) > 1e-3 * abs(together)


@given(data=st.data())
@settings(quick, max_examples=20)
def test_inactive_tokens_change_nothing(data):
    batch = data.draw(batches())
    chosen = data.draw(settings_of(batch))
    loss, grads, _ = run(batch, chosen)
    for i, sample in enumerate(batch.samples):
        rubbish = np.where(sample.loss_mask, sample.behaviour_logp, np.inf)
        batch.samples[i] = replace(sample, behaviour_logp=rubbish)
        for scores in (batch.old, batch.ref):
            if scores is not None:
                scores[i] = np.where(sample.loss_mask, scores[i], np.nan)
    again, same_grads, _ = run(batch, chosen)
    assert again == loss
    for own, same in zip(grads, same_grads, strict=True):
        np.testing.assert_array_equal(own, same)


def test_logits_outside_active_positions_get_no_gradient():
    batch = make(7, SHAPES)
    _, grads, _ = run(batch, Settings(kl_coef=0.1, entropy_coef=0.1), pack_tokens=UNLIMITED)
    for sample, grad in zip(batch.samples, grads, strict=True):
        predicting = np.zeros(len(sample.tokens), bool)
        predicting[sample.prompt_len - 1 : -1] = sample.loss_mask
        assert grad[predicting].any(axis=1).all()
        assert not grad[~predicting].any()


def test_statistics_are_not_part_of_the_gradient():
    batch = make(8, SHAPES)
    _, _, terms = run(batch, Settings(kl_coef=0.1))
    assert not terms.sums.requires_grad
    assert not terms.maxima.requires_grad


def test_terms_of_no_pack_are_neutral():
    _, _, terms = run(make(9, SHAPES), Settings())
    assert (Terms.zero() + terms).as_dict() == terms.as_dict()


def test_token_logps_are_the_next_token_slice():
    torch.manual_seed(0)
    logits, tokens = torch.randn(2, 5, 9), torch.randint(0, 9, (2, 5))
    found = token_logps(logits, tokens, temperature=0.5)
    assert found.shape == (2, 4)
    for row in range(2):
        for place in range(4):
            expected = reference.log_softmax(logits[row, place].numpy(), 0.5)
            assert found[row, place].item() == pytest.approx(
                expected[int(tokens[row, place + 1])], abs=1e-5
            )
    chosen, entropy = response_logps(
        logits[:1], tokens[:1], torch.tensor([1, 3]), temperature=0.5, entropy=True
    )
    torch.testing.assert_close(chosen, found[0, [1, 3]])
    logps = torch.log_softmax(logits[0, [1, 3]] / 0.5, -1)
    torch.testing.assert_close(entropy, torch.distributions.Categorical(logits=logps).entropy())


def test_low_precision_logits_are_scored_in_float32():
    logits = torch.randn(1, 4, 6).bfloat16()
    found = token_logps(logits, torch.tensor([[1, 2, 3, 4]]))
    assert found.dtype == torch.float32
    torch.testing.assert_close(
        found, token_logps(logits.float(), torch.tensor([[1, 2, 3, 4]])), rtol=0, atol=0
    )


def test_float32_is_close_to_float64():
    batch = make(10, SHAPES)
    chosen = Settings(kl_coef=0.1, entropy_coef=0.02, tis=(0.0, 2.0))
    wide, wide_grads, _ = run(batch, chosen)
    narrow, narrow_grads, _ = run(batch, chosen, dtype=torch.float32)
    assert narrow == pytest.approx(wide, rel=2e-6)
    for own, other in zip(wide_grads, narrow_grads, strict=True):
        np.testing.assert_allclose(other, own, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("eps_clip", -0.1),
        ("eps_clip", 1.0),
        ("eps_clip", float("nan")),
        ("eps_clip_high", -0.1),
        ("dual_clip", 1.0),
        ("kl_coef", -1.0),
        ("kl_coef", float("inf")),
        ("kl_type", "k4"),
        ("entropy_coef", -0.1),
        ("tis_clip", 0.0),
        ("tis_clip_low", 2.5),
        ("reduction", "sequence"),
        ("temperature", 0.0),
    ],
)
def test_impossible_settings_are_refused_by_name(field, value):
    with pytest.raises(RefusedError, match=field):
        ObjectiveConfig(**{field: value})


def test_missing_or_misshapen_inputs_are_refused():
    batch = make(11, SHAPES, ref=False)
    pack = plan(batch.samples, world_size=1, optimizer_steps=1, pack_tokens=UNLIMITED)
    pack = pack.steps[0].ranks[0][0]
    inputs = pack_inputs(pack, batch.samples)
    logps, denominators = torch.zeros(len(pack.positions)), Denominators(1, 1, 1)
    for config, match in (
        (ObjectiveConfig(kl_coef=0.1), "without reference"),
        (ObjectiveConfig(entropy_coef=0.1), "without entropies"),
    ):
        with pytest.raises(ContractError, match=match):
            policy_objective(logps, None, inputs, denominators, config)
    with pytest.raises(ContractError, match="shape"):
        policy_objective(logps[:-1], None, inputs, denominators, ObjectiveConfig())
    with pytest.raises(ContractError, match="one row"):
        response_logps(torch.zeros(2, 3, 4), torch.zeros(2, 3).long(), torch.tensor([0]))


def test_empty_denominators_are_refused():
    for tokens, responses, world in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ContractError):
            Denominators(tokens, responses, world)


def test_defaults_of_the_test_settings_are_those_of_the_trainer():
    assert replace(ObjectiveConfig(), eps_clip_high=0.2) == config_of(Settings())
