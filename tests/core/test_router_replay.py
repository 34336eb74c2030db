"""Replay of recorded expert ids on Core's router alone, and the context of a forward."""

import numpy as np
import pytest
import reference_router as reference
import torch
from routerbench import COMBINATIONS, Block, Forward, near, random_forward, run, settings_of

from capture.core import router as kit
from capture.core.errors import ContractError
from capture.core.packing import AuxiliaryDenominators
from capture.core.router import RouterSettings


def test_recorded_ids_run_with_the_routers_own_live_weights():
    rng = np.random.default_rng(4)
    forward = random_forward(rng, (4, 3), 6, 2)
    block = Block(6, 2, width=16)
    inputs = Forward(rng.normal(size=(7, 16)), forward.ids, forward.doc_lens)
    settings = RouterSettings(balancing_weight=0.0, z_weight=0.0, replay=True)
    first = run(block, [inputs], settings=settings, policy=1.0)
    assert (first.executed[0] == forward.ids).all()
    assert first.weight_gradient.abs().max() > 0
    router = block.routed_experts_router
    logits = inputs.logits @ router.weight.detach().double().numpy().reshape(6, 16).T
    scores = np.array([reference.softmax(row) for row in logits])
    wanted = (np.take_along_axis(scores, forward.ids, -1) * (forward.ids + 1)).sum(-1)
    near(first.outputs[0][0], wanted)
    with torch.no_grad():
        router.weight -= 0.5 * first.weight_gradient
    second = run(block, [inputs], settings=settings, policy=1.0)
    assert (second.executed[0] == forward.ids).all()
    assert not torch.equal(first.outputs[0], second.outputs[0])


@pytest.mark.parametrize("recompute", [False, True])
def test_the_objective_changes_neither_outputs_nor_policy_gradients_of_replay(recompute):
    rng = np.random.default_rng(6)
    forward = random_forward(rng, (4, 3), 6, 2)
    block = Block(6, 2)
    off = run(block, [forward], settings=settings_of(COMBINATIONS[0], replay=True, weight=0.0,
              z_weight=0.0), policy=1.0, recompute=recompute)  # fmt: skip
    for combination in COMBINATIONS:
        settings = settings_of(combination, replay=True)
        both = run(block, [forward], settings=settings, policy=1.0, recompute=recompute)
        alone = run(block, [forward], settings=settings, recompute=recompute)
        assert torch.equal(both.outputs[0], off.outputs[0])
        assert (both.executed[0] == off.executed[0]).all()
        assert torch.equal(both.terms.counts, off.terms.counts)
        near(both.gradients[0] - alone.gradients[0], off.gradients[0], 1e-5)


def test_disagreement_is_measured_beside_the_replay_and_not_on_the_tail():
    rng = np.random.default_rng(8)
    logits = rng.normal(0, 2, (9, 6))
    own = np.array([reference.top(row, 2) for row in logits])
    ids = own[:, ::-1].copy()  # the same sets in another order agree
    ids[1], ids[5] = [0, 1], [4, 5]
    ids[3] = ids[8] = [0, 1]  # last tokens of the documents: the synthetic tail
    changed = sum(set(ids[token]) != set(own[token]) for token in (1, 5))
    forward = Forward(logits, ids, (4, 5))
    for recompute in (False, True):
        found = run(Block(6, 2), [forward], settings=RouterSettings(replay=True),
                    recompute=recompute)  # fmt: skip
        assert (found.executed[0] == ids).all()
        assert found.terms.recorded == 7
        assert found.terms.differing.tolist() == [changed]
        assert found.terms.disagreement.tolist() == [changed / 7]
    live = run(Block(6, 2), [forward], settings=RouterSettings())
    assert live.terms.disagreement is None
    assert live.terms.recorded == 0


@pytest.mark.parametrize("combination", [COMBINATIONS[0], COMBINATIONS[-1]], ids="-".join)
def test_a_context_that_closes_before_the_backward_fails_loudly(combination):
    from olmo_core.nn.moe.v2.checkpointing import checkpoint_recompute_context_fn
    from torch.utils.checkpoint import checkpoint

    forward = random_forward(np.random.default_rng(9), (3, 2), 6, 2)
    for replay in (False, True):
        block = Block(6, 2)
        kit.install(block, settings_of(combination, replay=replay))
        block.train()
        x = torch.tensor(forward.logits, dtype=torch.float32)[None].requires_grad_()
        routes = forward.ids[:, None] if replay else None
        counts = AuxiliaryDenominators(5, 2, 1)

        def work(routes=routes, counts=counts):
            return kit.RouterWork(routes, forward.doc_lens, counts, 2)

        def forward_of(block=block, x=x):
            return checkpoint(
                block, x, use_reentrant=False, context_fn=checkpoint_recompute_context_fn
            ).sum()

        with kit.armed(block, work()):
            out = forward_of()
        with pytest.raises(ContractError, match="outside of the context"):
            out.backward()
        with kit.armed(block, work()):
            out = forward_of()
        with kit.armed(block, work()), pytest.raises(ContractError, match="of another context"):
            out.backward()


def test_forwards_outside_of_a_context_are_refused_where_they_would_train_or_replay():
    block = Block(6, 2)
    x = torch.randn(1, 4, 6)
    kit.install(block, RouterSettings())
    with pytest.raises(ContractError, match="outside of the context"):
        block.train()(x.requires_grad_())
    with torch.no_grad():
        block(x)
    kit.install(block, RouterSettings(replay=True))
    with torch.no_grad(), pytest.raises(ContractError, match="outside of the context"):
        block(x)
    with torch.no_grad(), kit.armed(block, kit.RouterWork(None, (4,), None, 1, live=True)) as work:
        block(x)
        top = torch.topk(x, 2).indices
        assert torch.equal(work.layers[0].executed.sort(-1).values, top.sort(-1).values)


def test_what_a_context_is_given_must_fit_the_run():
    counts = AuxiliaryDenominators(4, 1, 1)
    ids = np.zeros((4, 1, 2), np.int64) + np.arange(2)

    def opened(replay, x=None, **changes):
        block = Block(6, 2).train()
        kit.install(block, RouterSettings(replay=replay))
        values = {"routes": ids, "doc_lens": (4,), "denominators": counts, "documents": 1}
        with kit.armed(block, kit.RouterWork(**{**values, **changes})):
            block(torch.randn(1, 4, 6) if x is None else x)

    for said, call in (
        ("replay is off", lambda: opened(False)),
        ("replay is on", lambda: opened(True, routes=None)),
        ("replay is off", lambda: opened(True, live=True)),
        ("not \\(4, 1, 2\\)", lambda: opened(True, routes=ids[..., :1])),
        ("not \\(4, 1, 2\\)", lambda: opened(True, routes=np.tile(ids, (1, 2, 1)))),
        ("not \\(3, 1, 2\\)", lambda: opened(True, doc_lens=(3,))),
        ("unpadded instance", lambda: opened(False, routes=None, doc_lens=(3,))),
        ("unpadded instance", lambda: opened(True, x=torch.randn(1, 5, 6))),
        ("unpadded instance", lambda: opened(True, x=torch.randn(2, 4, 6))),
        ("without denominators", lambda: opened(True, denominators=None)),
        ("live forward in training", lambda: opened(True, routes=None, live=True)),
    ):
        with pytest.raises(ContractError, match=said):
            call()
    opened(True)


def test_contexts_do_not_nest_and_leave_nothing_behind():
    block = Block(6, 2)
    kit.install(block, RouterSettings())
    work = kit.RouterWork(None, (4,), None, 1)
    second = kit.armed(block, kit.RouterWork(None, (4,), None, 1))
    with kit.armed(block, work), pytest.raises(ContractError, match="inside another"):
        second.__enter__()
    assert block.routed_experts_router.work is None
    with pytest.raises(KeyError), kit.armed(block, kit.RouterWork(None, (4,), None, 1)):
        raise KeyError
    assert block.routed_experts_router.work is None
    with pytest.raises(ContractError, match="no forward to collect from"):
        kit.collect(block)


def test_a_dense_model_needs_no_context():
    dense = torch.nn.Linear(3, 3)
    with kit.armed(dense, kit.RouterWork(None, (4,), None, 1)):
        assert kit.collect(dense) is None
        assert kit.shape_of(dense) is None
    routed = kit.armed(dense, kit.RouterWork(np.zeros((4, 1, 1), int), (4,), None, 1))
    with pytest.raises(ContractError, match="without routers"):
        routed.__enter__()
