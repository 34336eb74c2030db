"""Recorded expert ids: what is refused, and where they lie along a pack. No torch."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from capture.core.errors import ContractError
from capture.core.packing import AuxiliaryDenominators, plan
from capture.core.routes import (
    RouterShape,
    check_routes,
    check_samples,
    pack_routes,
    recorded_rows,
    synthetic_tail,
)
from capture.core.samples import Sample

LAYERS, EXPERTS, TOPK = 3, 7, 2
SHAPE = RouterShape(LAYERS, EXPERTS, TOPK)


def sample(number: int, prompt: int, response: int, routes=..., dtype=np.int16) -> Sample:
    """Ids that say where they come from: token t of sample n, layer l begins at n + t + l."""
    length = prompt + response
    if routes is ...:
        token, layer, slot = np.ogrid[: length - 1, :LAYERS, :TOPK]
        routes = ((number + token + layer + slot) % EXPERTS).astype(dtype)
    return Sample(
        sample_id=number,
        group_id=0,
        tokens=np.arange(length) + 1,
        prompt_len=prompt,
        loss_mask=np.ones(response, bool),
        behaviour_logp=np.full(response, -1.0),
        behaviour_version=np.zeros(response, np.int64),
        reward=0.0,
        routes=routes,
    )


def with_routes(change) -> Sample:
    routes = np.array(sample(5, 2, 3).routes)
    return sample(5, 2, 3, change(routes))


def put(place, value):
    def change(routes):
        routes[place] = value
        return routes

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put((2, 1, 0), EXPERTS), "token 2, layer 1: expert id 7, the layer has experts 0 to 6"),
        (put((3, 2, 1), -1), "token 3, layer 2: expert id -1"),
        (put((1, 0), 4), "token 1, layer 0: expert id 4 twice in [4, 4]"),
        (lambda routes: routes[:, :2], "expert ids of 2 layers, the model routes in 3"),
        (lambda routes: np.tile(routes, (1, 2, 1)), "expert ids of 6 layers"),
        (lambda routes: routes[..., :1], "1 expert ids a token, the model's routers choose 2"),
        (lambda routes: None, "no recorded expert ids, and routing replay is on"),
    ],
)
def test_ids_that_cannot_be_replayed_are_refused_by_sample_token_layer_and_value(change, said):
    with pytest.raises(ContractError) as caught:
        check_samples([sample(4, 1, 1), with_routes(change)], SHAPE, replay=True)
    assert caught.value.check == "routes"
    assert "sample 5" in caught.value.detail
    assert said in caught.value.detail


@pytest.mark.parametrize(
    ("routes", "said"),
    [
        (np.zeros((5, LAYERS, TOPK), np.int64), r"\(5, 3, 2\), not \(4, layers, topk\)"),
        (np.zeros((4, LAYERS), np.int64), "not"),
        (np.zeros((4, LAYERS, TOPK)), "integers, not float64"),
    ],
)
def test_a_wrong_shape_or_type_is_no_sample(routes, said):
    with pytest.raises(ContractError, match=said):
        sample(5, 2, 3, routes)


def test_a_shape_that_a_sample_would_not_take_is_refused_by_the_check_too():
    own = sample(5, 2, 3)
    for routes, said in (
        (np.zeros((5, LAYERS, TOPK), np.int64), r"for 5 tokens, not \(4"),
        (np.zeros((4, LAYERS, TOPK)), "no integers"),
    ):
        object.__setattr__(own, "routes", routes)
        with pytest.raises(ContractError, match=said):
            check_routes(own, LAYERS, EXPERTS, TOPK)


def test_ids_without_replay_are_refused_and_absent_ones_are_fine():
    bare = sample(4, 1, 1, None)
    check_samples([bare], SHAPE, replay=False)
    check_samples([bare], None, replay=False)
    check_samples([bare], None, replay=True)  # the support matrix refuses such a run
    for shape in (SHAPE, None):
        with pytest.raises(ContractError, match="sample 5: has recorded expert ids"):
            check_samples([bare, sample(5, 2, 3)], shape, replay=False)
    with pytest.raises(ContractError, match="sample 5: has recorded expert ids"):
        check_samples([bare, sample(5, 2, 3)], None, replay=True)


def test_every_expert_may_be_chosen_at_once():
    own = sample(1, 1, 1, np.arange(EXPERTS)[None, None].repeat(LAYERS, 1))
    check_routes(own, LAYERS, EXPERTS, EXPERTS)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.int64])
@pytest.mark.parametrize("pack_tokens", [None, 12, 40])
def test_ids_stay_with_document_token_and_layer_through_packing(pack_tokens, dtype):
    lengths = [(2, 3), (1, 1), (4, 6), (3, 2), (1, 7), (2, 2)]
    samples = [sample(n, *pair, dtype=dtype) for n, pair in enumerate(lengths)]
    check_samples(samples, SHAPE, replay=True)
    seen = set()
    laid = plan(samples, world_size=2, optimizer_steps=1, pack_tokens=pack_tokens)
    for pack in (pack for rank in laid.steps[0].ranks for pack in rank):
        routes = pack_routes(pack, samples)
        assert routes.dtype == np.int64
        assert routes.shape == (len(pack.tokens), LAYERS, TOPK)
        kept = recorded_rows(pack.doc_lens)
        assert (routes[~kept] == synthetic_tail(LAYERS, TOPK)).all()
        start = 0
        for index, length in zip(pack.sample_indexes, pack.doc_lens, strict=True):
            own = samples[index]
            assert length == len(own.tokens)
            for token in range(length - 1):
                for layer in range(LAYERS):
                    assert routes[start + token, layer].tolist() == [
                        (index + token + layer + slot) % EXPERTS for slot in range(TOPK)
                    ]
            assert routes[start + length - 1].tolist() == [[0, 1]] * LAYERS
            start += length
            seen.add(index)
        assert not kept[np.cumsum(pack.doc_lens) - 1].any()
        assert kept.sum() == start - pack.responses
    assert seen == set(range(len(samples)))


def test_a_filler_runs_different_experts_that_every_layer_has():
    samples = [sample(n, 2, 2 + 5 * (n == 0)) for n in range(4)]
    laid = plan(samples, world_size=2, optimizer_steps=1, pack_tokens=9).steps[0]
    fillers = [pack for rank in laid.ranks for pack in rank if pack.is_filler]
    assert fillers
    for pack in fillers:
        routes = pack_routes(pack, samples)
        assert routes.shape == (len(pack.tokens), LAYERS, TOPK)
        assert (routes == np.arange(TOPK)).all()


def test_a_pack_refuses_ids_of_another_document():
    samples = [sample(0, 2, 3), sample(1, 1, 3)]
    pack = plan(samples, world_size=1, optimizer_steps=1, pack_tokens=20).steps[0].ranks[0][0]
    for wrong in (
        dataclasses.replace(samples[1], routes=None),
        dataclasses.replace(samples[0], sample_id=1),
    ):
        with pytest.raises(ContractError, match="sample 1"):
            pack_routes(pack, [samples[0], wrong])
    with pytest.raises(ContractError, match="sample 0"):
        pack_routes(pack, [dataclasses.replace(samples[0], routes=None), samples[1]])


def test_denominators_count_all_model_tokens_of_the_step_and_no_filler():
    samples = [sample(n, 2, 2 + 5 * (n == 0)) for n in range(4)]
    laid = plan(samples, world_size=2, optimizer_steps=1, pack_tokens=9).steps[0]
    assert any(pack.is_filler for rank in laid.ranks for pack in rank)
    own = laid.auxiliary
    assert (own.model_tokens, own.documents, own.world_size) == (21, 4, 2)
    assert own.whole("token") == 21
    assert own.whole("response") == 4
    assert own.local("token") == 10.5
    assert own.local("response") == 2.0
    assert laid.denominators.global_tokens == 13


@pytest.mark.parametrize("wrong", [(0, 0, 1), (3, 4, 1), (3, 0, 1), (3, 1, 0)])
def test_denominators_of_nothing_are_refused(wrong):
    with pytest.raises(ContractError, match="denominators"):
        AuxiliaryDenominators(*wrong)


def test_the_module_needs_no_torch():
    code = "import sys, capture.core.routes; sys.exit('torch' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
