"""The actor on one process: nothing changes before every check has passed, and state comes back."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from tiny import collection, settings, tiny

from capture.core.actor import CoreActor
from capture.core.errors import CheckpointError, ConfigError, ContractError, RefusedError
from capture.core.samples import Collection
from capture.core.schedule import core_scheduler, rate_of

TWO_STEPS = {"batch__global_batch_size": 4, "rollout__num_rollout": 10}


def actor_of(source=None, **changes) -> CoreActor:
    actor = CoreActor(settings(**changes))
    actor.init(source or tiny())
    return actor


def snapshot(actor) -> dict[str, torch.Tensor]:
    """All that a step changes: weights and optimizer state."""
    found = {name: value.clone() for name, value in actor.export()}
    for number, state in enumerate(actor.module.optim.state.values()):
        found.update({f"{number}.{key}": torch.as_tensor(v).clone() for key, v in state.items()})
    return found


def same(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def changed(data: Collection, number: int, **values) -> Collection:
    samples = list(data.samples)
    samples[number] = dataclasses.replace(samples[number], **values)
    return Collection(samples, data.index)


def poisoned_gradient(actor, value=math.nan):
    """Multiply one weight's gradient by `value` in every backward; returns the handle."""
    weight = next(iter(actor.named_parameters().values()))
    return weight.register_hook(lambda gradient: gradient * value)


def logps_with(data: Collection, number: int, value: float) -> dict:
    logps = np.array(data.samples[number].behaviour_logp)
    logps[np.flatnonzero(data.samples[number].loss_mask)[-1]] = value
    return {"behaviour_logp": logps}


DATA = collection()
BAD_INPUTS = {
    "non-finite-reward": changed(DATA, 3, reward=math.nan),
    "non-finite-advantage": changed(DATA, 3, advantage=-math.inf),
    "non-finite-logp": changed(DATA, 3, **logps_with(DATA, 3, math.nan)),
    "token": changed(DATA, 3, tokens=np.full(len(DATA.samples[3].tokens), 96)),
    # finite inputs, and a sum beyond float32
    "non-finite-loss": Collection(
        [dataclasses.replace(sample, advantage=3e38) for sample in DATA.samples], 0
    ),
}


@pytest.mark.parametrize("kind", ["adamw", "skip_step_adamw"])
@pytest.mark.parametrize("check", BAD_INPUTS)
def test_bad_inputs_stop_the_step_and_change_nothing(check, kind):
    actor = actor_of(optimizer__kind=kind)
    actor.train(DATA, 0)
    before = snapshot(actor)
    with pytest.raises(ContractError) as caught:
        actor.train(BAD_INPUTS[check], 1)
    assert caught.value.check == check
    assert same(before, snapshot(actor))
    assert actor.optimizer_step == 1
    assert all(p.grad is None for p in actor.named_parameters().values())


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("kind", ["adamw", "skip_step_adamw"])
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_gradient_that_is_not_finite_never_reaches_the_optimizer(kind, value, clip):
    changes = {"optimizer__kind": kind, "optimizer__max_grad_norm": clip}
    actor, calm = actor_of(**changes), actor_of(**changes)
    for one in (actor, calm):
        one.train(DATA, 0)
    before = snapshot(actor)
    handle = poisoned_gradient(actor, value)
    with pytest.raises(ContractError) as caught:
        actor.train(DATA, 1)
    assert caught.value.check == "non-finite-gradient"
    assert same(before, snapshot(actor))
    handle.remove()
    # and the actor goes on as one to which it never happened
    actor.train(DATA, 1)
    calm.train(DATA, 1)
    assert same(snapshot(actor), snapshot(calm))
    assert actor.train_state() == calm.train_state()


def test_cores_skip_step_optimizer_alone_would_keep_the_nan():
    """Why finiteness is checked before it: it says that it skipped, and the weights are gone."""
    actor = actor_of(optimizer__kind="skip_step_adamw")
    actor.train(DATA, 0)
    fill_history(actor)
    poisoned_gradient(actor)
    module = actor.module
    from test_hook import work_of

    module.train_packs(*work_of(actor, DATA.samples))
    module.optim_step()
    assert float(module.optim.step_skipped) == 1.0
    assert any(value.isnan().any() for _, value in actor.export())


def fill_history(actor, loss=-100.0):
    """Enough equal steps for the skip-step optimizer to judge by; lower than any loss here."""
    actor.module.optim._losses = [torch.tensor(loss)] * 80
    actor.module.optim._grad_norms = [torch.tensor(1.0)] * 80


def test_a_skipped_step_stops_the_run():
    actor = actor_of(optimizer__kind="skip_step_adamw")
    actor.train(DATA, 0)
    fill_history(actor)
    weights = {name: value.clone() for name, value in actor.export()}
    with pytest.raises(ContractError) as caught:
        actor.train(DATA, 1)
    assert caught.value.check == "optimizer-skip"
    assert actor.optimizer_step == 1
    assert all(torch.equal(value, weights[name]) for name, value in actor.export())


def test_a_clock_of_another_version_is_refused():
    actor = actor_of()
    before = snapshot(actor)
    with pytest.raises(ContractError) as caught:
        actor.train(DATA, 1)
    assert caught.value.check == "policy-clock"
    assert same(before, snapshot(actor))


def test_nothing_to_train_on_is_refused():
    with pytest.raises(ContractError, match="empty-batch"):
        Collection([], 0)
    with pytest.raises(ContractError, match="empty-batch"):
        actor_of().score([])


def test_a_sample_longer_than_the_model_is_refused():
    actor = actor_of(tiny(max_position_embeddings=8))
    with pytest.raises(ContractError, match="length"):
        actor.score(DATA.samples)


def test_a_collection_of_another_size_is_refused():
    with pytest.raises(ContractError, match="collection-size: collection 0 has 6 samples, not 8"):
        actor_of(**TWO_STEPS).train(Collection(DATA.samples[:6], 0), 0)


def test_an_actor_without_weights_says_so():
    actor = CoreActor(settings())
    for call in (actor.named_parameters, lambda: actor.score(DATA.samples),
                 lambda: actor.train(DATA, 0)):  # fmt: skip
        with pytest.raises(ContractError, match="actor: init has not been called"):
            call()


def test_ranks_that_torchrun_did_not_start_are_refused():
    with pytest.raises(ConfigError, match=r"parallel.world_size: 2: 1 trainer"):
        CoreActor(settings(parallel__world_size=2))


def test_each_optimizer_step_is_a_version_and_trains_its_own_part():
    actor = actor_of(**TWO_STEPS)
    versions = []
    for result in actor.steps(collection(version=0), 0):
        versions.append((result.trained_version, result.step, actor.optimizer_step))
        assert result.scored
        assert len(result.sample_indexes) == 4
    assert versions == [(0, 1, 1), (1, 2, 2)]


def test_the_anchor_of_a_collection_is_from_before_its_first_step():
    actor = actor_of(**TWO_STEPS)
    before = actor.score(DATA.samples)
    results = actor.train(DATA, 0)
    for result in results:
        for index, values in result.anchor.items():
            np.testing.assert_allclose(values, before[index], atol=1e-6)
    assert abs(results[0].terms["ppo_kl"]) < 1e-5
    assert abs(results[1].terms["ppo_kl"]) > 1e-3


def test_the_training_forward_is_the_anchor_after_a_comparison():
    actor = actor_of(scoring__compare_interval=2)
    calls, own = [], actor.module.score_pack

    def counted(*args, **others):
        calls.append(actor.optimizer_step)
        return own(*args, **others)

    actor.module.score_pack = counted
    scored = [actor.train(DATA, step)[0].scored for step in range(5)]
    assert scored == [True, False, True, False, True]
    assert sorted(set(calls)) == [0, 2, 4]


@pytest.mark.parametrize("skip", ["skipped", "forced"])
def test_skipping_the_pass_gives_the_same_weights(skip):
    changes = {"scoring__force": skip == "forced", "scoring__compare_interval": 100}
    actor, other = actor_of(**changes), actor_of(scoring__compare_interval=1)
    for step in range(3):
        actor.train(DATA, step)
        other.train(DATA, step)
    assert same(snapshot(actor), snapshot(other))


def test_two_forwards_that_differ_stop_the_step():
    actor = actor_of()
    own = actor.module.score_pack
    actor.module.score_pack = lambda *a, **o: own(*a, **o) + 0.01
    before = snapshot(actor)
    with pytest.raises(ContractError) as caught:
        actor.train(DATA, 0)
    assert caught.value.check == "scoring-anchor"
    assert same(before, snapshot(actor))


def test_a_trainer_far_from_its_engine_stops_the_step():
    actor = actor_of(scoring__max_mean_drift=0.1)
    before = snapshot(actor)
    with pytest.raises(ContractError) as caught:
        actor.train(DATA, 0)
    assert caught.value.check == "score-drift"
    assert same(before, snapshot(actor))


def test_the_drift_of_a_later_step_is_that_of_the_anchor_and_not_of_what_was_learned():
    """The engine is exact; after step 1 the training forward is far from it, and must be."""
    actor = actor_of(**TWO_STEPS, scoring__max_mean_drift=1e-4)
    scores = actor.score(DATA.samples)
    exact = [
        dataclasses.replace(sample, behaviour_logp=logps)
        for sample, logps in zip(DATA.samples, scores, strict=True)
    ]
    results = actor.train(Collection(exact, 0), 0)
    assert abs(results[1].terms["ppo_kl"]) > 1e-3
    assert results[1].terms["abs_diff_max"] < 1e-4


def test_the_drift_of_a_later_step_is_still_judged():
    actor = actor_of(**TWO_STEPS, scoring__max_mean_drift=0.1)
    samples = [
        dataclasses.replace(sample, behaviour_logp=logps + (0.5 if number >= 4 else 0.0))
        for number, (sample, logps) in enumerate(
            zip(DATA.samples, actor.score(DATA.samples), strict=True)
        )
    ]
    with pytest.raises(ContractError, match=r"is 0\.5 nats a token, scoring.max_mean_drift = 0\.1"):
        actor.train(Collection(samples, 0), 0)
    assert actor.optimizer_step == 1


def test_a_score_that_is_not_finite_is_refused():
    actor = actor_of()
    with torch.no_grad():
        actor.named_parameters()["lm_head.w_out.weight"].fill_(math.nan)
    with pytest.raises(ContractError, match="non-finite-score"):
        actor.score(DATA.samples)


def test_the_reference_stays_the_first_policy_and_costs_no_weight_its_value():
    changes = {"objective__kl_coef": 0.1}
    actor = actor_of(**changes)
    first = actor.score(DATA.samples)
    results = [actor.train(DATA, step)[0] for step in range(3)]
    assert results[0].terms["kl"] == pytest.approx(0.0, abs=1e-9)
    assert results[2].terms["kl"] > 1e-3
    before = snapshot(actor)
    again = actor.score(DATA.samples, reference=True)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert same(before, snapshot(actor))
    with pytest.raises(ContractError, match="no reference policy"):
        actor_of().score(DATA.samples, reference=True)


def test_the_scores_belong_to_their_samples_in_any_order():
    actor = actor_of(batch__pack_tokens=48)
    order = np.random.default_rng(0).permutation(8)
    one = actor.score(DATA.samples)
    two = actor.score([DATA.samples[i] for i in order])
    for place, index in enumerate(order):
        np.testing.assert_allclose(two[place], one[index], atol=5e-6)
    assert all(len(a) == s.response_len for a, s in zip(one, DATA.samples, strict=True))


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 3])
def test_core_uses_the_rate_of_the_formula(kind, warmup):
    changes = {"schedule__kind": kind, "schedule__warmup_steps": warmup}
    config = settings(**changes, rollout__num_rollout=8)
    rate = rate_of(config.optimizer, config.schedule, config.total_steps)
    core = core_scheduler(config.schedule)
    for step in range(1, 12):
        assert float(core.get_lr(1e-2, step, 8)) == pytest.approx(rate(step), rel=1e-12)
    actor = actor_of(**changes, rollout__num_rollout=8)
    results = [actor.train(DATA, step)[0] for step in range(3)]
    assert [r.lr_used for r in results] == [rate(1), rate(2), rate(3)]
    assert [r.lr_next for r in results] == [rate(2), rate(3), rate(4)]
    assert [g["lr"] for g in actor.module.optim.param_groups] == [pytest.approx(rate(3))]


def test_a_warm_up_longer_than_the_run_is_refused():
    with pytest.raises(RefusedError, match="warmup_steps = 10"):
        CoreActor(settings(schedule__kind="cosine", schedule__warmup_steps=10))


@pytest.mark.parametrize("broken", ["peak", "step"])
def test_a_rate_that_is_not_the_schedules_stops_the_step(broken):
    actor = actor_of(schedule__kind="linear")
    actor.train(DATA, 0)
    before = snapshot(actor)
    if broken == "peak":
        actor.module.optim.param_groups[0]["initial_lr"] *= 2
    else:
        actor.module.scheduler.t_max = 5
    with pytest.raises(ContractError) as caught:
        actor.train(DATA, 1)
    assert caught.value.check == "learning-rate"
    assert same(before, snapshot(actor))


@pytest.mark.parametrize("kind", ["adamw", "skip_step_adamw"])
def test_a_restored_actor_goes_on_bitwise(tmp_path, kind):
    changes = {"optimizer__kind": kind, "schedule__kind": "cosine", "objective__kl_coef": 0.05,
               "schedule__warmup_steps": 2}  # fmt: skip
    source = tiny()
    actor = actor_of(source, **changes)
    actor.train(collection(1), 0)
    actor.train(collection(2), 1)
    actor.save(tmp_path / "native", {"cursor": 7})
    whole = [actor.train(collection(seed), seed - 1)[0] for seed in (3, 4)]
    other = actor_of(source, **changes)
    assert other.restore(tmp_path / "native") == {"cursor": 7}
    assert other.optimizer_step == 2
    parts = [other.train(collection(seed), seed - 1)[0] for seed in (3, 4)]
    assert same(snapshot(actor), snapshot(other))
    for one, two in zip(whole, parts, strict=True):
        assert (one.lr_used, one.lr_next, one.objective) == (
            two.lr_used,
            two.lr_next,
            two.objective,
        )
    assert actor.train_state() == other.train_state()


def test_a_checkpoint_of_another_schedule_is_refused(tmp_path):
    source = tiny()
    actor = actor_of(source, schedule__kind="cosine")
    actor.train(DATA, 0)
    actor.save(tmp_path / "native")
    with pytest.raises((CheckpointError, ContractError), match="next learning rate"):
        actor_of(source, schedule__kind="linear").restore(tmp_path / "native")


def test_probes_see_gradients_before_clipping_and_weights_after_the_step():
    seen = {}

    def on_gradients(step, named):
        seen["gradient"] = (step, sum(float(p.grad.square().sum()) for p in named.values()) ** 0.5)

    def after_step(step, named):
        seen["after"] = (step, {name: p.detach().clone() for name, p in named.items()})

    config = settings(optimizer__max_grad_norm=0.1)
    actor = CoreActor(config, on_gradients=on_gradients, after_step=after_step)
    actor.init(tiny())
    result = actor.train(DATA, 0)[0]
    assert seen["gradient"] == (1, pytest.approx(result.gradient_norm, rel=1e-5))
    assert result.gradient_norm > 0.1
    assert seen["after"][0] == 1
    assert all(torch.equal(p, seen["after"][1][n]) for n, p in actor.named_parameters().items())


def test_the_local_objective_of_one_rank_is_the_global_one():
    result = actor_of().train(DATA, 0)[0]
    assert result.local_objective == result.objective
    assert result.terms.as_dict() == result.local_terms.as_dict()
    assert result.terms["pg"] / result.denominators.global_tokens == pytest.approx(
        result.objective, rel=1e-5
    )


def test_every_setting_of_the_objective_reaches_it():
    """A field that stays behind is accepted and does nothing."""
    from capture.core.config import ObjectiveConfig as Settings

    changed = {
        "eps_clip": 0.11, "eps_clip_high": 0.33, "dual_clip": 3.5, "kl_coef": 0.02, "kl_type": "k2",
        "entropy_coef": 0.03, "tis": True, "tis_clip": 4.5, "tis_clip_low": 0.25,
        "reduction": "response",
    }  # fmt: skip
    assert set(Settings.model_fields) == {*changed, "normalize_std"}  # that one is the advantages'
    actor = CoreActor(settings(**{f"objective__{key}": value for key, value in changed.items()}))
    assert {key: getattr(actor.objective, key) for key in changed} == changed
