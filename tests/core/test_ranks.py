"""Two gloo ranks equal one process, and one rank's problem is every rank's, for DDP and FSDP."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from ranks import start
from test_hook import distance, through_core
from tiny import collection, lopsided, settings, tiny

from capture.core.actor import CoreActor

HERE = Path(__file__).resolve().parent
LAYOUTS = ("ddp", "fsdp")
TIMEOUT = 540  # seconds


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    """What each of the two ranks saw."""
    folder = tmp_path_factory.mktemp("ranks")
    return start("rankworker.py", folder, timeout=TIMEOUT)


def single(**changes) -> CoreActor:
    actor = CoreActor(settings(**changes))
    actor.init(tiny())
    return actor


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_ranks_have_the_gradient_of_one_process(ranks, layout):
    alone, _ = through_core(single(), lopsided(collection(0)).samples)
    active = [rank[layout]["global"]["active"] for rank in ranks]
    assert max(active) > 3 * min(active)  # unequal masks, or the test shows nothing
    for rank in ranks:
        assert distance(rank[layout]["global"]["gradients"], alone) < 2e-6


@pytest.mark.parametrize("layout", LAYOUTS)
def test_denominators_of_the_own_rank_would_give_another_gradient(ranks, layout):
    """Core's default: the trap that the global denominators are there for."""
    alone, _ = through_core(single(), lopsided(collection(0)).samples)
    assert distance(ranks[0][layout]["local"]["gradients"], alone) > 0.05


@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_ranks_run_equally_many_forwards_and_have_the_same_gradient(ranks, layout):
    alone, _ = through_core(single(), lopsided(collection(0)).samples)
    packed = [rank[layout]["packed"] for rank in ranks]
    assert packed[0]["packs"] == packed[1]["packs"] == 3
    assert sorted(one["fillers"] for one in packed) == [0, 1]
    for one in packed:
        assert distance(one["gradients"], alone) < 5e-6


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["learn", "packed learn"])
def test_two_ranks_learn_what_one_process_learns(ranks, layout, kind):
    changes = {}
    if kind == "packed learn":
        changes = {"batch__pack_tokens": 40, "objective__kl_coef": 0.05,
                   "objective__reduction": "response"}  # fmt: skip
    actor = single(schedule__kind="linear", **changes)
    wanted = [actor.train(collection(number), number)[0] for number in range(2)]
    for rank in ranks:
        for found, result in zip(rank[layout][kind]["results"], wanted, strict=True):
            assert found["objective"] == pytest.approx(result.objective, rel=1e-4, abs=1e-6)
            assert found["norm"] == pytest.approx(result.gradient_norm, rel=1e-4)
            assert found["lr"] == result.lr_used
            for name, value in result.terms.as_dict().items():
                assert found["terms"][name] == pytest.approx(value, rel=2e-3, abs=1e-4), name
            assert found["compared"] in (None, 0.0)
        for name, value in actor.export():
            # Adam divides by the gradient's own size, so entries that are rounding may differ
            far = (rank[layout][kind]["weights"][name] - value).abs() > 1e-4
            assert far.float().mean() < 5e-3, name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_mean_of_local_objectives_is_the_global_one(ranks, layout):
    pairs = zip(*(rank[layout]["learn"]["results"] for rank in ranks), strict=True)
    for one, two in pairs:
        assert one["local"] != two["local"]
        assert (one["local"] + two["local"]) / 2 == pytest.approx(one["objective"], rel=1e-9)
        assert one["objective"] == two["objective"]
        assert one["terms"] == two["terms"]
        for name in ("pg", "tokens", "abs_diff"):
            assert one["local_terms"][name] + two["local_terms"][name] == pytest.approx(
                one["terms"][name], rel=1e-9
            )
        assert sorted(one["samples"] + two["samples"]) == list(range(8))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_rank_holds_the_same_weights_and_scores(ranks, layout):
    one, two = (rank[layout]["learn"] for rank in ranks)
    assert all(torch.equal(one["weights"][name], two["weights"][name]) for name in one["weights"])
    for a, b in zip(one["after"], two["after"], strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scores_of_any_number_of_samples_come_back_whole(ranks, layout):
    wanted = single().score(collection(9).samples[:7])
    for rank in ranks:
        found = rank[layout]["learn"]["scores"]
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_scoring_leaves_fsdp_its_shards(ranks):
    whole = [tuple(p.shape) for p in single().named_parameters().values()]
    for rank in ranks:
        assert rank["ddp"]["learn"]["shards"] == whole
        for shard, shape in zip(rank["fsdp"]["learn"]["shards"], whole, strict=True):
            assert shard == (shape[0] // 2, *shape[1:])


FAILURES = {
    "reward": "non-finite-reward",
    "advantage": "non-finite-advantage",
    "loss": "non-finite-loss",
    "gradient": "non-finite-gradient",
    "size": "collection-size",
    "order": "rank-schedule",
    "packs": "rank-schedule",
    "rate": "learning-rate",
    "version": "policy-clock",
    "anchor": "scoring-anchor",
    "crash": "inputs",
    "skip": "optimizer-skip",
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", FAILURES)
def test_a_problem_of_one_rank_stops_both_and_changes_nothing(ranks, layout, case):
    found = [rank[layout]["failures"][case] for rank in ranks]
    assert found[0]["check"] == found[1]["check"]
    assert found[0]["detail"] == found[1]["detail"]
    assert found[0]["check"] == FAILURES[case]
    for rank, one in enumerate(found):
        assert one["step"] == 0
        # a skip on one rank alone comes after the other's update: it ends the run, nothing more
        assert one["same"] or (case == "skip" and (layout == "fsdp" or rank == 0))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_problem_names_its_rank(ranks, layout):
    for case in ("reward", "loss", "size", "rate", "version", "crash", "skip"):
        assert ranks[0][layout]["failures"][case]["detail"].startswith("rank 1: "), case


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_ranks_resume_bitwise(ranks, layout):
    for rank in ranks:
        found = rank[layout]["resume"]
        assert found["same"]
        assert found["extra"] == {"cursor": 5}
        assert found["lr"] == found["wanted"]
