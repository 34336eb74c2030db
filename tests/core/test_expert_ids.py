"""Recorded expert ids are those of transformers' own routers, for every token that ran."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import hf_model, tiny

from capture.core.engines.transformers_engine import TransformersEngine
from capture.core.errors import RefusedError
from capture.core.routes import check_routes
from capture.core.samples import Sample

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [40], [20, 21, 22], [40]]
ENDS = [3, 17, 50]
LAYERS, EXPERTS, TOPK = 3, 8, 2


def engine(decode: str, **settings) -> TransformersEngine:
    config, state = tiny("qwen3_moe", num_hidden_layers=LAYERS, **settings.pop("changes", {}))
    settings = {"eos_ids": ENDS, "batch_size": 16, "expert_ids": True, **settings}
    return TransformersEngine(hf_model(config, state), decode=decode, **settings)


def own_choice(model, tokens) -> np.ndarray:
    """[T, layers, topk] from the router logits of one forward without cache and padding."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor([tokens]), use_cache=False, output_router_logits=True)
    chosen = [logits.float().softmax(-1).topk(TOPK).indices for logits in out.router_logits]
    return torch.stack(chosen, dim=1).numpy()


@pytest.mark.parametrize("decode", ["cache", "graph"])
def test_every_token_but_the_last_has_the_ids_that_its_routers_chose(decode):
    made_by = engine(decode)
    made = made_by.generate(PROMPTS, n=4, max_new_tokens=24, seed=1)
    lengths = set()
    for number, response in enumerate(made):
        prompt = PROMPTS[number // 4]
        tokens = [*prompt, *response.tokens.tolist()]
        expected = own_choice(made_by.model, tokens)
        assert response.expert_ids.shape == (len(tokens) - 1, LAYERS, TOPK)
        np.testing.assert_array_equal(response.expert_ids, expected[:-1])
        lengths.add(len(tokens) - len(prompt))
    assert len(lengths) > 5
    assert len(np.unique(np.concatenate([r.expert_ids for r in made]))) == EXPERTS


def test_both_ways_of_decoding_record_the_same():
    made = [
        engine(decode).generate(PROMPTS, n=4, max_new_tokens=24, seed=2, top_k=9, kept_sets=True)
        for decode in ("cache", "graph")
    ]
    for one, other in zip(*made, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.expert_ids, other.expert_ids)
        np.testing.assert_array_equal(one.kept.ids, other.kept.ids)


@pytest.mark.parametrize("decode", ["cache", "graph"])
def test_the_ids_fit_the_sample_that_is_made_of_them(decode):
    made = engine(decode).generate(PROMPTS[:1], max_new_tokens=9, seed=1)[0]
    count = len(made.tokens)
    sample = Sample(
        sample_id=0,
        group_id=0,
        tokens=np.array([*PROMPTS[0], *made.tokens]),
        prompt_len=len(PROMPTS[0]),
        loss_mask=np.ones(count, bool),
        behaviour_logp=made.logps,
        behaviour_version=made.versions,
        reward=0.0,
        routes=made.expert_ids,
    )
    check_routes(sample, LAYERS, EXPERTS, TOPK)


@pytest.mark.parametrize("decode", ["cache", "graph"])
def test_a_forward_in_between_leaves_no_ids_behind(decode):
    own = engine(decode)
    before = own.generate(PROMPTS, max_new_tokens=5, seed=1)
    own.score([5, 6, 7, 8], 2)
    after = own.generate(PROMPTS, max_new_tokens=5, seed=1)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one.expert_ids, other.expert_ids)


@pytest.mark.parametrize("decode", ["cache", "graph"])
def test_layers_without_experts_have_no_place(decode):
    own = engine(decode, changes={"mlp_only_layers": [1]})
    made = own.generate(PROMPTS[:1], max_new_tokens=5, seed=1)[0]
    assert made.expert_ids.shape[1] == LAYERS - 1


def test_ended_responses_have_the_ids_of_what_they_hold():
    own = engine("cache", eos_ids=[], batch_size=2)
    forward, calls = own.model.forward, 0

    def hooked(*arguments, **named):
        nonlocal calls
        calls += 1
        if calls == 3:
            own.abort()
        return forward(*arguments, **named)

    own.model.forward = hooked
    made = own.generate(PROMPTS, max_new_tokens=8)
    sizes = [None if r.expert_ids is None else len(r.expert_ids) for r in made]
    assert sizes == [7 + 3 - 1, 1 + 3 - 1, None, None]


def test_without_being_asked_nothing_is_recorded():
    own = engine("cache", expert_ids=False)
    assert own.generate(PROMPTS[:1], max_new_tokens=3)[0].expert_ids is None


def test_a_model_without_routers_is_refused():
    with pytest.raises(RefusedError, match="no router"):
        TransformersEngine(hf_model(*tiny()), eos_ids=ENDS, expert_ids=True)
