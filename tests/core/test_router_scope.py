"""Coefficients, ranks and packs of the router objectives, and the routers that are refused."""

import numpy as np
import pytest
import torch
from olmo_core.nn.moe.loss import MoELoadBalancingLossGranularity
from olmo_core.nn.moe.router import MoERouterGatingFunction
from olmo_core.nn.moe.v2.router import MoERouterV2
from routerbench import COMBINATIONS, Block, Forward, near, random_forward, run, settings_of

from capture.core import router as kit
from capture.core.errors import RefusedError
from capture.core.packing import AuxiliaryDenominators
from capture.core.router import RouterSettings


@pytest.mark.parametrize("combination", COMBINATIONS, ids="-".join)
def test_a_coefficient_of_zero_disables_its_loss_exactly(combination):
    forward = random_forward(np.random.default_rng(10), (3, 4), 6, 2)
    block = Block(6, 2)
    none = run(block, [forward], settings=settings_of(combination, weight=0.0, z_weight=0.0))
    assert (none.gradients[0] == 0).all()
    assert (none.weight_gradient == 0).all()
    assert not none.terms.balancing
    assert not none.terms.z
    assert none.terms.counts.sum() == 14
    one = run(block, [forward], settings=settings_of(combination, z_weight=0.0))
    other = run(block, [forward], settings=settings_of(combination, weight=0.0))
    both = run(block, [forward], settings=settings_of(combination))
    assert one.terms.balancing == both.terms.balancing
    assert not one.terms.z
    assert other.terms.z == both.terms.z
    assert not other.terms.balancing
    near(one.gradients[0] + other.gradients[0], both.gradients[0])


def test_a_loss_that_is_off_is_not_computed_even_where_it_would_overflow():
    forward = random_forward(np.random.default_rng(10), (3, 4), 6, 2)
    forward.logits[0] *= 1e25
    for combination in (COMBINATIONS[0], COMBINATIONS[-1]):
        found = run(Block(6, 2), [forward], settings=settings_of(combination, z_weight=0.0))
        assert np.isfinite(found.gradients[0]).all()
        assert torch.isfinite(found.terms.flat()).all()
        on = run(Block(6, 2), [forward], settings=settings_of(combination))
        assert not np.isfinite(float(on.terms.z))


@pytest.mark.parametrize("combination", COMBINATIONS, ids="-".join)
def test_cores_own_load_metric_counts_what_ran(combination):
    forward = random_forward(np.random.default_rng(14), (3, 4), 6, 2)
    block = Block(6, 2)
    for recompute in (False, True):
        found = run(
            block, [forward], settings=settings_of(combination, replay=True), recompute=recompute
        )
        router = block.routed_experts_router
        ran = np.bincount(forward.ids.reshape(-1), minlength=6)
        assert router.batch_size_per_expert.tolist() == ran.tolist()
        assert found.terms.counts[0].tolist() == ran.tolist()
        metrics = router.compute_metrics()
        assert float(metrics["load balancing loss"][0]) == pytest.approx(
            float(found.terms.balancing), rel=1e-6
        )


@pytest.mark.parametrize("combination", COMBINATIONS, ids="-".join)
def test_the_mean_over_ranks_is_one_process_where_groups_are_documents(combination):
    rng = np.random.default_rng(12)
    forwards = [random_forward(rng, lens, 6, 2) for lens in ((2,), (9,), (1, 4), (3,))]
    settings, block = settings_of(combination, replay=True), Block(6, 2)
    whole = run(block, forwards, settings=settings)
    counts = AuxiliaryDenominators(19, 5, 2)
    ranks = [run(block, part, settings=settings, denominators=counts)
             for part in (forwards[:2], forwards[2:])]  # fmt: skip
    # each forward stays as it was packed, so this holds for pack grouping too
    near(sum(rank.terms.balancing for rank in ranks) / 2, whole.terms.balancing)
    near(sum(rank.terms.z for rank in ranks) / 2, whole.terms.z)
    near(sum(rank.weight_gradient for rank in ranks) / 2, whole.weight_gradient)
    naive = [run(block, part, settings=settings) for part in (forwards[:2], forwards[2:])]
    mean = sum(rank.terms.balancing for rank in naive) / 2
    assert abs(mean - whole.terms.balancing) > 1e-3 * whole.terms.balancing


@pytest.mark.parametrize("combination", COMBINATIONS, ids="-".join)
def test_repacking_changes_nothing_for_sequence_grouping_and_the_objective_for_pack(combination):
    rng = np.random.default_rng(13)
    documents = [random_forward(rng, (length,), 6, 2) for length in (2, 7, 1, 4)]

    def packed(*groups):
        return [
            Forward(
                np.concatenate([documents[i].logits for i in group]),
                np.concatenate([documents[i].ids for i in group]),
                tuple(documents[i].doc_lens[0] for i in group),
            )
            for group in groups
        ]

    settings, block = settings_of(combination, replay=True), Block(6, 2)
    one, other, alone = (
        run(block, packed(*groups), settings=settings)
        for groups in (((0, 1, 2, 3),), ((3, 0), (1, 2)), ((0,), (1,), (2,), (3,)))
    )
    near(one.terms.z, other.terms.z)
    near(one.terms.z, alone.terms.z)
    if combination[0] == "sequence":
        for repacked in (other, alone):
            near(repacked.terms.balancing, one.terms.balancing)
            near(repacked.weight_gradient, one.weight_gradient)
    else:
        assert abs(other.terms.balancing - one.terms.balancing) > 1e-3 * one.terms.balancing


@pytest.mark.parametrize(
    ("row", "changes"),
    [
        ("router-softmax", {"gating_function": MoERouterGatingFunction.sigmoid}),
        ("router-softmax", {"gating_function": MoERouterGatingFunction.topk_softmax}),
        ("router-bias", {"bias": True}),
        ("router-bias", {"bias_gamma": 1e-3}),
        ("router-bias", {"score_correction_bias": True}),
        ("router-groups", {"n_group": 3, "topk_group": 2}),
        ("router-assignment", {"uniform_expert_assignment": True}),
        ("router-assignment", {"random_expert_assignment": True}),
        ("router-global", {"global_load_balancing": True}),
        (
            "router-granularity",
            {"lb_loss_granularity": MoELoadBalancingLossGranularity.instance},
        ),
        ("router-orthogonal", {"orth_loss_weight": 0.1}),
        ("router-jitter", {"jitter_eps": 0.01}),
    ],
)
def test_routers_that_choose_or_weigh_otherwise_are_refused(row, changes):
    model = torch.nn.ModuleList([Block(6, 2), Block(6, 2, **changes)])
    with pytest.raises(RefusedError) as caught:
        kit.install(model, RouterSettings())
    assert caught.value.id == row
    assert "router 1" in str(caught.value)
    assert all(type(router) is MoERouterV2 for router in kit.routers_of(model))


def test_models_that_the_controls_do_not_reach_are_refused():
    from olmo_core.nn.moe.emo import EmoRouterConfig
    from olmo_core.nn.moe.v2.router import MoERouterConfigV2

    def refused(model):
        with pytest.raises(RefusedError) as caught:
            kit.install(model, RouterSettings())
        return caught.value.id

    assert refused(torch.nn.Linear(3, 3)) == "router-dense"
    compiled = Block(6, 2)
    compiled.compile_enabled = True
    assert refused(compiled) == "compile"
    emo = Block(6, 2)
    pool = EmoRouterConfig(eos_token_id=0, min_document_expert_pool=2, max_document_expert_pool=4)
    config = MoERouterConfigV2(d_model=6, num_experts=6, top_k=2, emo=pool)
    emo.routed_experts_router = config.build()
    assert refused(emo) == "router-emo"
    assert refused(torch.nn.ModuleList([Block(6, 2), Block(6, 3)])) == "router-shape"
    for name, row in (("tp_mesh", "tensor-parallel"), ("cp_mesh", "context-parallel")):
        parallel = Block(6, 2)
        setattr(parallel.routed_experts_router, name, object())
        assert refused(parallel) == row
    cached = Block(6, 2)
    cached.routed_experts_router.use_recompute_cache = True
    assert refused(cached) == "router-cache"


def test_installing_keeps_names_weights_and_the_shared_router():
    class Both(Block):
        def __init__(self):
            super().__init__(6, 2)
            self.shared_experts_router = MoERouterV2(d_model=6, num_experts=6, top_k=2)

    model = Both()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert kit.install(model, RouterSettings()) == kit.RouterShape(1, 6, 2)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert type(model.shared_experts_router) is MoERouterV2
    kit.install(model, RouterSettings(replay=True))
    assert model.routed_experts_router.settings.replay
