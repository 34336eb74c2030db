"""The exact setting: generated, scored and trained on, a token has the same number, bit by bit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from tiny import collection, hf_model, settings, tiny

from capture.core.actor import CoreActor
from capture.core.engines.core_engine import CoreEngine
from capture.core.errors import ContractError, RefusedError
from capture.core.grid import Grid
from capture.core.packing import make_pack, plan
from capture.core.samples import Collection, Sample

WIDTH, DOCUMENTS = 24, 4
PROMPTS = [[5, 6, 7, 8, 9], [40], [20, 21, 22], [7] * 9]
ENDS = [3, 17, 50, 61]
GRID = {"batch__document_tokens": WIDTH, "batch__pack_tokens": WIDTH * DOCUMENTS}
EXACT = {**GRID, "engine__kind": "core", "rollout__max_new_tokens": 15}


def built(folder, **changes) -> tuple[CoreActor, CoreEngine]:
    config = settings(**{**EXACT, **changes})
    actor = CoreActor(config)
    actor.init(folder)
    return actor, CoreEngine.from_folder(config, folder, eos_ids=ENDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("exact") / "hf"
    hf_model(*tiny("qwen3")).save_pretrained(str(path))
    return path


def sampled(engine, index: int, **cut) -> Collection:
    made = engine.generate(PROMPTS, n=2, max_new_tokens=15, seed=index, **cut)
    rng = np.random.default_rng(index)
    samples = []
    for number, response in enumerate(made):
        prompt = PROMPTS[number // 2]
        samples.append(
            Sample(
                sample_id=number,
                group_id=number // 2,
                tokens=np.array([*prompt, *response.tokens]),
                prompt_len=len(prompt),
                loss_mask=np.ones(len(response.tokens), bool),
                behaviour_logp=response.logps,
                behaviour_version=response.versions,
                reward=0.0,
                advantage=float(rng.normal()),
                kept=response.kept,
            )
        )
    return Collection(tuple(samples), index)


CASES = [
    {},
    {"model__dtype": "bfloat16"},
    {"model__dtype": "bfloat16", "core__fp32_lm_head": True, "core__recompute": True},
    {"model__dtype": "bfloat16", "rollout__temperature": 0.7},
    {"batch__global_batch_size": 4, "objective__kl_coef": 0.1},
    {"rollout__use_sampling_replay": True, "rollout__top_p": 0.8, "rollout__top_k": 20},
]


@pytest.mark.parametrize("changes", CASES, ids=lambda c: "-".join(c) or "plain")
def test_the_gap_is_zero_whatever_the_weights(folder, changes):
    actor, engine = built(folder, **changes)
    rollout = actor.config.rollout
    cut = {"temperature": rollout.temperature}
    if rollout.use_sampling_replay:
        cut |= {"top_p": rollout.top_p, "top_k": rollout.top_k, "kept_sets": True}
    before = {name: value.clone() for name, value in actor.export()}
    lengths = set()
    for index in range(3):
        data = sampled(engine, index, **cut)
        lengths |= {sample.response_len for sample in data.samples}
        for sample, scored in zip(data.samples, actor.score(data.samples), strict=True):
            np.testing.assert_array_equal(sample.behaviour_logp, scored)
        steps = actor.train(data, actor.policy_version)
        # the anchor of later steps is of the weights that generated, the forward is not
        assert [step.terms["abs_diff_max"] for step in steps] == [0.0] * len(steps)
        compared = steps[0].comparison
        if compared is not None:
            assert compared.max_abs == 0.0
            assert compared.tokens == sum(sample.response_len for sample in data.samples)
        else:
            assert index or len(steps) > 1
        engine.load(actor.export(), actor.policy_version)
        assert engine.compare(dict(actor.export())) == []
    assert len(lengths) > 4
    assert engine.version == actor.policy_version
    assert all(not torch.equal(before[name], value) for name, value in actor.export())


def test_another_shape_gives_other_numbers(folder):
    """What the setting is for: the same forward over packs of any shape is not exact."""
    actor, engine = built(folder, model__dtype="bfloat16")
    data = sampled(engine, 0)
    actor.module.grid = None
    gaps = [
        np.abs(sample.behaviour_logp - scored).max()
        for sample, scored in zip(data.samples, actor.score(data.samples), strict=True)
    ]
    assert max(gaps) > 0


def test_padding_is_in_no_loss_no_gradient_and_no_count():
    source = tiny()
    results = []
    for changes in ({"batch__pack_tokens": 4096}, GRID):
        actor = CoreActor(settings(**changes))
        actor.init(source)
        grads = {}
        actor.on_gradients = lambda _, named, g=grads: g.update(
            {name: value.grad.clone() for name, value in named.items()}
        )
        results.append((actor.train(collection(seed=3), 0)[0], grads))
    (plain, own), (padded, other) = results
    assert padded.denominators == plain.denominators
    assert padded.plan.model_tokens == plain.plan.model_tokens
    assert padded.terms["tokens"] == plain.terms["tokens"]
    assert padded.objective == pytest.approx(plain.objective, abs=1e-6)
    largest = max(float(value.abs().max()) for value in own.values())
    for name, value in own.items():
        assert float((value - other[name]).abs().max()) < 2e-6 * max(largest, 1.0), name


def test_every_forward_has_the_same_shape(folder, monkeypatch):
    actor, engine = built(folder)
    shapes = set()
    for module in (actor.module, engine.module):
        forward = module.model.forward

        def seen(ids, *args, f=forward, **named):
            shapes.add((tuple(ids.shape), tuple(named["doc_lens"].flatten().tolist())))
            assert named.get("logits_to_keep", 0) == 0
            return f(ids, *args, **named)

        monkeypatch.setattr(module.model, "forward", seen)
    data = sampled(engine, 0)
    actor.score(data.samples[:3])
    actor.train(data, 0)
    engine.score([5, 6, 7], 1)
    assert shapes == {((1, WIDTH * DOCUMENTS), (WIDTH,) * DOCUMENTS)}


def test_a_pack_is_laid_out_row_by_row():
    samples = collection(seed=1, count=3).samples
    pack = make_pack(samples, [2, 0])
    grid = Grid(3, WIDTH)
    tokens, positions = grid.lay(pack)
    assert tokens.shape == (3 * WIDTH,)
    rows = tokens.reshape(3, WIDTH)
    for row, sample in enumerate((samples[2], samples[0])):
        length = len(sample.tokens)
        np.testing.assert_array_equal(rows[row, :length], sample.tokens)
        assert not rows[row, length:].any()
    assert not rows[2].any()
    np.testing.assert_array_equal(tokens[positions + 1], pack.targets)
    np.testing.assert_array_equal(positions // WIDTH, pack.document)
    with pytest.raises(RefusedError, match="document_tokens is 4"):
        Grid(2, 4).lay(pack)


def test_packs_follow_the_order_of_the_samples():
    samples = collection(seed=1, count=8).samples
    made = plan(samples, world_size=1, optimizer_steps=2, pack_tokens=72, grid=Grid(3, WIDTH))
    packs = [[pack.sample_indexes for pack in step.ranks[0]] for step in made.steps]
    assert packs == [[(0, 1, 2), (3,)], [(4, 5, 6), (7,)]]
    long = dataclasses.replace
    with pytest.raises(RefusedError, match="every document"):
        plan(
            [long(samples[0], tokens=np.arange(WIDTH + 1), prompt_len=WIDTH + 1 - 2,
                  loss_mask=np.ones(2, bool), behaviour_logp=np.zeros(2),
                  behaviour_version=np.zeros(2, int))],
            world_size=1, optimizer_steps=1, pack_tokens=72, grid=Grid(3, WIDTH),
        )  # fmt: skip


def test_the_engine_does_what_engines_do(folder):
    _, engine = built(folder)
    state = tiny("qwen3")[1]
    assert engine.compare(state) == []
    one = engine.generate(PROMPTS, n=2, max_new_tokens=9, seed=4)
    again = engine.generate(PROMPTS, n=2, max_new_tokens=9, seed=4, version=0)
    for first, second in zip(one, again, strict=True):
        np.testing.assert_array_equal(first.tokens, second.tokens)
    greedy = engine.generate(PROMPTS, max_new_tokens=9, temperature=0.0)
    assert len(greedy) == 4
    engine.snapshot()
    engine.reset()
    with pytest.raises(ContractError, match="engine-version"):
        engine.generate(PROMPTS, max_new_tokens=9)
    engine.load(iter(state.items()), 1)
    assert engine.compare() == []
    with pytest.raises(ContractError, match="engine-version"):
        engine.generate(PROMPTS, max_new_tokens=9, version=0)
    with pytest.raises(RefusedError, match="document_tokens"):
        engine.generate(PROMPTS, max_new_tokens=WIDTH)
    forward, calls = engine.module.grid_logits, []
    engine.module.grid_logits = lambda ids: (calls.append(1), forward(ids), engine.abort())[1]
    made = engine.generate(PROMPTS * 2, max_new_tokens=9)
    assert [(r.finish, len(r.tokens)) for r in made] == [("abort", 1)] * 4 + [("abort", 0)] * 4
    engine.close()
    with pytest.raises(ContractError, match="engine-version"):
        engine.generate(PROMPTS, max_new_tokens=1)
