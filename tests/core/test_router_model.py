"""Routing replay and router objectives in the trainer, on a tiny Qwen3-MoE on one process.

Every number here is of Core code with CPU stand-ins: `standins` lists them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools

import numpy as np
import pytest
import reference_router as reference
import torch
from routed import LAYERS, REPLAY, TOPK, recorded, watched
from routerbench import near
from test_hook import distance
from test_moe import NO_ROUTER, loaded
from tiny import collection

from capture.core import records, router
from capture.core.contractschema import TrainingRecord
from capture.core.errors import ContractError
from capture.core.hook import PackWork, StepContext
from capture.core.objective import pack_inputs
from capture.core.packing import plan
from capture.core.routes import pack_routes
from capture.core.samples import Collection
from capture.core.verifychecks import record_checks

OBJECTIVES = list(
    itertools.product(("pack", "sequence"), ("token", "response"), ("executed", "router_selected"))
)


def objective(grouping, reduction, source, **others) -> dict:
    return {
        "core__router_aux_loss_grouping": grouping,
        "core__router_aux_loss_reduction": reduction,
        "core__router_z_loss_reduction": "response" if reduction == "token" else "token",
        "core__router_aux_count_source": source,
        "core__router_aux_loss_weight": 0.3,
        "core__router_z_loss_weight": 0.1,
        **others,
    }


def backward(actor, samples, pack_tokens=None, world_size=1):
    """(outputs, gradients) of one optimizer step's forwards and backwards."""
    step = plan(samples, world_size=world_size, optimizer_steps=1, pack_tokens=pack_tokens).steps[0]
    replays = samples[0].routes is not None
    work = [
        PackWork(pack, pack_inputs(pack, samples), pack_routes(pack, samples) if replays else None)
        for pack in step.ranks[0]
    ]
    actor.module.zero_grads()
    context = StepContext(actor.objective, step.denominators, step.auxiliary)
    outputs = actor.module.train_packs(work, context)
    return outputs, {name: p.grad.clone() for name, p in actor.named_parameters().items()}


def record_of(actor, result, data) -> TrainingRecord:
    errors = records.over_ranks(records.error_histogram(result, data))
    return records.record_of(result, data, errors, config=actor.config, rank=0, published=0)


# -- replay ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("pack_tokens", [None, 24, 200])
def test_every_token_runs_the_experts_that_were_recorded_for_it(pack_tokens, recompute):
    data = recorded(collection())
    changes = {"batch__pack_tokens": pack_tokens or 0, "core__recompute": recompute}
    actor = loaded(**REPLAY, **changes, scoring__force=True)
    with watched(actor) as forwards:
        result = actor.train(data, 0)[0]
    packs = list(result.plan.ranks[0])
    assert len(forwards) == 2 * len(packs)  # the scoring pass and the training forward
    for (doc_lens, _, ids, _), pack in zip(forwards, packs * 2, strict=True):
        assert doc_lens == pack.doc_lens
        start = 0
        for index, length in zip(pack.sample_indexes, pack.doc_lens, strict=True):
            own = data.samples[index].routes
            assert (ids[start : start + length - 1] == own).all()
            assert (ids[start + length - 1] == np.arange(TOPK)).all()
            start += length
    assert result.router.recorded == sum(len(s.tokens) - 1 for s in data.samples)
    counts = sum(
        np.bincount(s.routes[:, 1].reshape(-1), minlength=8) for s in data.samples
    ) + np.bincount([0, 1], minlength=8) * len(data.samples)
    assert result.router.counts[1].tolist() == counts.tolist()


def test_router_weights_stay_live_and_the_policy_gradient_reaches_them():
    data = recorded(collection())
    actor = loaded(**REPLAY, **NO_ROUTER)
    _, gradients = backward(actor, data.samples)
    for layer in range(LAYERS):
        assert gradients[f"blocks.{layer}.routed_experts_router.weight"].abs().max() > 1e-4
    before = actor.score(data.samples)
    actor.train(data, 0)
    with watched(actor) as forwards:
        after = actor.score(data.samples)
    assert max(np.abs(a - b).max() for a, b in zip(before, after, strict=True)) > 1e-3
    for index, (_, _, ids, _) in enumerate(forwards):
        assert (ids[:-1] == data.samples[index].routes).all()


def test_other_ids_give_other_scores_and_the_routers_own_give_its_own():
    actor, live = loaded(**REPLAY), loaded()
    data = recorded(collection())
    with watched(live) as forwards:
        wanted = live.score(collection().samples)
    own = Collection(
        [
            dataclasses.replace(sample, routes=ids[:-1])
            for sample, (_, _, ids, _) in zip(data.samples, forwards, strict=True)
        ],
        0,
    )
    # the last token's experts are synthetic; it predicts nothing, but experts multiply other rows
    for found, other in zip(actor.score(own.samples), wanted, strict=True):
        np.testing.assert_allclose(found, other, atol=1e-5, rtol=0)
    elsewhere = actor.score(data.samples)
    assert max(np.abs(a - b).max() for a, b in zip(elsewhere, wanted, strict=True)) > 0.05
    first = actor.train(own, 0)[0]
    assert first.router.disagreement.tolist() == [0.0, 0.0]
    # after an update live routing has moved on; what runs has not
    again = actor.train(own, 1)[0]
    assert 0 < float(again.router.disagreement.max()) < 1
    assert torch.equal(again.router.counts, first.router.counts)


def test_the_reference_policy_routes_by_itself():
    data = recorded(collection())
    actor = loaded(**REPLAY, objective__kl_coef=0.1)
    with watched(actor) as forwards:
        found = actor.score(data.samples, reference=True)
    wanted = loaded().score(collection().samples)
    assert all((a == b).all() for a, b in zip(found, wanted, strict=True))
    assert any((ids[:-1] != s.routes).any() for (_, _, ids, _), s in
               zip(forwards, data.samples, strict=True))  # fmt: skip
    assert actor.train(data, 0)[0].terms["kl"] != 0.0


def wrong_routes(data, number=3):
    samples = list(data.samples)
    routes = samples[number].routes.copy()
    routes[1, 1, 0] = 8
    samples[number] = dataclasses.replace(samples[number], routes=routes)
    return Collection(samples, 0)


@pytest.mark.parametrize(
    ("changes", "make", "said"),
    [
        (REPLAY, collection, "sample 0: no recorded expert ids"),
        ({}, lambda: recorded(collection()), "sample 0: has recorded expert ids"),
        (REPLAY, lambda: wrong_routes(recorded(collection())),
         "sample 3: token 1, layer 1: expert id 8"),
    ],
)  # fmt: skip
def test_samples_that_do_not_fit_the_replay_switch_stop_before_anything_changes(
    changes, make, said
):
    actor = loaded(**changes)
    before = {name: value.clone() for name, value in actor.export()}
    for call in (lambda: actor.train(make(), 0), lambda: actor.score(make().samples)):
        with pytest.raises(ContractError, match=said) as caught:
            call()
        assert caught.value.check == "routes"
    assert all(torch.equal(before[name], value) for name, value in actor.export())
    assert actor.optimizer_step == 0


def test_a_context_that_closes_before_the_backward_fails_loudly_and_changes_nothing():
    data = recorded(collection())
    actor = loaded(**REPLAY, core__recompute=True)
    before = {name: value.clone() for name, value in actor.export()}
    module, open_context = actor.module, actor.module._pack_context

    def early(item):
        stack = contextlib.ExitStack()
        stack.enter_context(open_context(item))
        forward = type(module)._pack_objective

        def closing(work):
            found = forward(module, work)
            stack.close()
            return found

        module._pack_objective = closing
        return stack

    module._pack_context = early
    with pytest.raises(ContractError, match="outside of the context"):
        actor.train(data, 0)
    assert all(torch.equal(before[name], value) for name, value in actor.export())
    del module._pack_context, module._pack_objective
    actor.train(data, 0)


# -- objectives ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("grouping", "reduction", "source"), OBJECTIVES)
@pytest.mark.parametrize("replay", [False, True])
def test_the_record_has_the_references_router_losses(grouping, reduction, source, replay):
    data = recorded(collection()) if replay else collection()
    settings = objective(grouping, reduction, source, batch__pack_tokens=40)
    actor = loaded(**settings, **(REPLAY if replay else {}))
    with watched(actor) as forwards:
        result = actor.train(data, 0)[0]
    packs = len(result.plan.ranks[0])
    assert len(forwards) == 2 * packs > 2  # the first update scores the samples too
    forwards = forwards[packs:]
    balancing = z = 0.0
    for layer in range(LAYERS):
        step = [(logits[layer], ids[:, layer].tolist(), lens) for lens, _, ids, logits in forwards]
        balancing += reference.balancing(
            step, k=TOPK, grouping=grouping, reduction=reduction, source=source
        )
        z += reference.z(step, reduction="response" if reduction == "token" else "token")
    terms = {term.name: term for term in record_of(actor, result, data).auxiliary}
    assert list(terms) == ["load_balancing", "z_loss"]
    near(terms["load_balancing"].global_, 0.3 * balancing)
    near(terms["z_loss"].global_, 0.1 * z)
    assert all(term.local == term.global_ for term in terms.values())
    tokens, documents = sum(len(s.tokens) for s in data.samples), len(data.samples)
    assert [term.denominator for term in terms.values()] == (
        [tokens, documents] if reduction == "token" else [documents, tokens]
    )
    assert list(record_checks(record_of(actor, result, data))) == []


@pytest.mark.parametrize(("grouping", "reduction", "source"), OBJECTIVES)
def test_recomputation_changes_no_gradient_under_replay_in_packs(grouping, reduction, source):
    data = recorded(collection())
    found = []
    for recompute in (False, True):
        actor = loaded(**objective(grouping, reduction, source), **REPLAY,
                       core__recompute=recompute)  # fmt: skip
        outputs, gradients = backward(actor, data.samples, pack_tokens=40)
        found.append((outputs, gradients))
    (one, first), (other, second) = found
    assert all(torch.equal(first[name], second[name]) for name in first)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.logps, b.logps)
        assert torch.equal(a.router.flat(), b.router.flat())


@pytest.mark.parametrize("grouping", ["sequence", "pack"])
def test_repacking_keeps_the_objective_of_documents_and_changes_that_of_packs(grouping):
    data = recorded(collection())
    actor = loaded(**objective(grouping, "response", "executed"), **REPLAY)
    _, alone = backward(actor, data.samples)
    for pack_tokens in (40, 200):
        _, packed = backward(actor, data.samples, pack_tokens=pack_tokens)
        if grouping == "sequence":
            assert distance(alone, packed) < 1e-5
        else:
            assert distance(alone, packed) > 1e-3


@pytest.mark.parametrize("replay", [False, True])
def test_a_filler_pack_adds_nothing_to_router_losses_loads_and_gradients(replay):
    data = recorded(collection()) if replay else collection()
    step = plan(data.samples, world_size=2, optimizer_steps=1, pack_tokens=24).steps[0]
    packs = next(own for own in step.ranks if any(pack.is_filler for pack in own))
    actor = loaded(**objective("pack", "response", "executed"), **(REPLAY if replay else {}))
    found = []
    for filled in (True, False):
        work = [
            PackWork(pack, pack_inputs(pack, data.samples),
                     pack_routes(pack, data.samples) if replay else None)
            for pack in packs if filled or not pack.is_filler
        ]  # fmt: skip
        actor.module.zero_grads()
        context = StepContext(actor.objective, step.denominators, step.auxiliary)
        outputs = actor.module.train_packs(work, context)
        gradients = {name: p.grad.clone() for name, p in actor.named_parameters().items()}
        found.append((outputs, gradients))
    (with_fillers, first), (without, second) = found
    for pack, output in zip(packs, with_fillers, strict=True):
        assert output.router.flat().any() == (not pack.is_filler)
    assert len(with_fillers) > len(without) > 0
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_count_source_changes_no_policy_gradient_and_no_output():
    data = recorded(collection())
    weights = dict.fromkeys(NO_ROUTER, 0.0)
    policy = loaded(**REPLAY, **weights)
    outputs, wanted = backward(policy, data.samples)
    for source in ("executed", "router_selected"):
        actor = loaded(**REPLAY, **objective("sequence", "response", source))
        found, both = backward(actor, data.samples)
        still = [dataclasses.replace(sample, advantage=0.0) for sample in data.samples]
        _, auxiliary = backward(actor, still)
        for a, b in zip(outputs, found, strict=True):
            assert torch.equal(a.logps, b.logps)
            assert torch.equal(a.loss, b.loss)
        assert distance({n: both[n] - auxiliary[n] for n in both}, wanted) < 1e-5


def test_coefficients_of_zero_leave_no_gradient_where_the_policy_has_none():
    data = collection()
    off = loaded(**NO_ROUTER)
    _, gradients = backward(off, [dataclasses.replace(s, advantage=0.0) for s in data.samples])
    assert all((value == 0).all() for value in gradients.values())
    result = off.train(data, 0)[0]
    terms = record_of(off, result, data).auxiliary
    assert [(term.coefficient, term.local, term.global_) for term in terms] == [(0.0, 0.0, 0.0)] * 2


def test_the_record_says_how_experts_were_used_and_passes_its_checks():
    data = recorded(collection())
    actor = loaded(**REPLAY, batch__pack_tokens=40)
    result = actor.train(data, 0)[0]
    record = record_of(actor, result, data)
    assert list(record_checks(record)) == []
    load = record.router
    assert (load.replayed, load.experts, load.grouping) == (True, 8, "pack")
    assert load.choices == TOPK * record.counts.global_model_tokens
    counts = result.router.counts.numpy()
    assert load.imbalance == pytest.approx((counts.max(1) / counts.mean(1)).tolist())
    assert load.idle == (counts == 0).sum(1).tolist()
    assert all(0.3 < share < 1 for share in load.disagreement)  # the ids were random
    live = loaded()
    plain = collection()
    record = record_of(live, live.train(plain, 0)[0], plain)
    assert record.router.disagreement is None
    assert "disagreement" not in record.plain()["router"]


def test_a_model_with_refused_routers_is_refused_while_it_is_built(monkeypatch):
    from capture.core import moe, moemodel
    from capture.core.errors import RefusedError

    build = moemodel.core_config

    def biased(config, hf):
        core = build(config, hf)
        core.block.routed_experts_router.bias_gamma = 1e-3
        return core

    monkeypatch.setattr(moe.moemodel, "core_config", biased)
    with pytest.raises(RefusedError, match="router 0: routing biases"):
        loaded()


def test_router_losses_that_are_not_finite_stop_the_step():
    actor = loaded(core__router_z_loss_weight=1e300)
    with pytest.raises(ContractError) as caught:
        actor.train(collection(), 0)
    assert caught.value.check in ("non-finite-loss", "non-finite-gradient")
    assert actor.optimizer_step == 0
    assert all(one.work is None for one in router.routers_of(actor.module.model))
