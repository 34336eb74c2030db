"""Kept sets and sampling replay: what is kept, how it is scored, and whose set it is."""

from __future__ import annotations

import dataclasses
import math
import pickle

import numpy as np
import pytest
import torch
from tiny import VOCABULARY, collection, hf_model, settings, tiny

from capture.core import keptlogps, objective
from capture.core.actor import CoreActor
from capture.core.engines import sampling
from capture.core.engines.sglang_engine import SGLangEngine
from capture.core.engines.transformers_engine import TransformersEngine
from capture.core.errors import ContractError, RefusedError
from capture.core.keptlogps import kept_logps
from capture.core.keptsets import KeptSets
from capture.core.packing import make_pack, plan
from capture.core.records import kept_sizes
from capture.core.samples import Collection, Sample, check_kept_sets
from capture.core.verdict import digest

CUTS = [(1.0, 5), (0.8, -1), (0.8, 7), (0.3, 40), (1e-9, -1), (1.0, 1000), (0.999, 0)]

# -- the sets themselves ---------------------------------------------------------------------------


def test_sets_come_back_as_they_went_in():
    rows = [[5], [9, 2, 4], [0, 1]]
    sets = KeptSets.of(rows)
    assert [sets[i].tolist() for i in range(3)] == rows
    assert sets.sizes.tolist() == [1, 3, 2]
    both = KeptSets.join([sets, KeptSets.of([]), KeptSets.of([[7, 8]])])
    assert [both[i].tolist() for i in range(4)] == [*rows, [7, 8]]
    assert not both.ids.flags.writeable
    with pytest.raises(IndexError):
        both[4]


@pytest.mark.parametrize(
    ("offsets", "ids", "said"),
    [
        ([0, 2], [1], "do not run"),
        ([1, 2], [1, 2], "do not run"),
        ([], [], "do not run"),
        ([0, 1, 1, 2], [1, 2], "set 1 is empty"),
        ([0, 2, 1, 3], [1, 2, 3], "set 1 is empty"),
        ([0, 1], [-1], "negative"),
        ([0, 1, 4], [3, 1, 2, 1], "set 1 holds token 1 twice"),
        ([0, 1], [0.5], "integers"),
        ([[0, 1]], [1], "one row"),
        ([0, 1], [2**40], "do not fit"),
    ],
)
def test_arrays_that_are_no_sets_are_refused(offsets, ids, said):
    with pytest.raises(ContractError, match=said) as caught:
        KeptSets(np.asarray(offsets), np.asarray(ids))
    assert caught.value.check == "kept-sets"


def test_the_same_token_may_be_in_two_sets():
    KeptSets.of([[3, 1], [1, 3]]).check_tokens(np.array([1, 1]))


def test_a_set_without_its_token_is_refused():
    sets = KeptSets.of([[3, 1], [4, 5]])
    with pytest.raises(ContractError, match="set 1 lacks token 3"):
        sets.check_tokens(np.array([1, 3]))
    with pytest.raises(ContractError, match="2 sets for 1 response"):
        sets.check_tokens(np.array([1]))
    with pytest.raises(ContractError, match="sample 7: set 0 lacks token 9"):
        Sample(7, 0, [1, 9], 1, [1], [-1.0], [0], 0.0, kept=KeptSets.of([[1]]))


# -- what the sampler keeps ------------------------------------------------------------------------


def reference_set(row: np.ndarray, temperature: float, top_p: float, top_k: int) -> list[int]:
    """The rule in words, one token at a time, float64."""
    scaled = row.astype(np.float64) / temperature
    share = np.exp(scaled - scaled.max())
    share /= share.sum()
    order = sorted(range(len(row)), key=lambda token: (-share[token], token))
    order = order[:top_k] if top_k > 0 else order
    whole, running, kept = math.fsum(share[order]), 0.0, []
    for token in order:
        kept.append(token)
        running += share[token]
        if running >= top_p * whole:
            break
    return kept


def reference_logp(row: np.ndarray, temperature: float, kept, token: int) -> float:
    scaled = [float(row[other]) / temperature for other in kept]
    top = max(scaled)
    total = top + math.log(math.fsum(math.exp(value - top) for value in scaled))
    return float(row[token]) / temperature - total


def logits(rows: int = 40, vocab: int = 50, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(("top_p", "top_k"), CUTS)
def test_kept_sets_and_their_log_probabilities_follow_the_rule(temperature, top_p, top_k):
    given = logits()
    uniform = torch.from_numpy(sampling.uniforms((3,), 0, len(given)))
    cut = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    picked = sampling.pick(given, uniform, **cut, kept_sets=True)
    assert picked.logps.dtype == torch.float32
    rows = sampling.kept_rows(picked)
    for row, kept, token, value in zip(
        given.numpy(), rows, picked.tokens.tolist(), picked.logps.tolist(), strict=True
    ):
        expected = reference_set(row, **cut)
        assert kept.tolist() == (expected if len(expected) < len(row) else sorted(expected))
        assert token in kept
        assert value == pytest.approx(reference_logp(row, temperature, kept, token), abs=2e-6)
    alone = sampling.pick(given, uniform, **cut)
    assert torch.equal(alone.tokens, picked.tokens)
    whole = torch.log_softmax(given / temperature, -1).gather(-1, alone.tokens[:, None])[:, 0]
    torch.testing.assert_close(alone.logps, whole)


def test_equal_probabilities_are_kept_by_token_id():
    flat = torch.tensor([[0.0, 1.0, 0.0, 1.0, -0.0, 0.0]])
    draw = torch.tensor([0.5], dtype=torch.float64)
    for settings_, expected in (
        ({"top_k": 3}, [1, 3, 0]),
        ({"top_k": 4}, [1, 3, 0, 2]),
        ({"top_p": 0.75}, [1, 3, 0, 2]),
    ):
        picked = sampling.pick(flat, draw, temperature=1.0, kept_sets=True, **settings_)
        assert sampling.kept_rows(picked)[0].tolist() == expected


def test_ties_and_signs_are_ordered_as_a_stable_sort_orders_them():
    generator = torch.Generator().manual_seed(6)
    values = torch.randint(-3, 4, (200, 64), generator=generator).float() * 0.5
    values[:, ::7] *= 1e-30
    values[:, ::5] *= -1.0  # 0.0 and -0.0 are equal
    found = sampling._most_probable(values, 20)
    expected = values.sort(dim=-1, descending=True, stable=True).indices[:, :20]
    assert torch.equal(found, expected)


def test_a_token_that_cannot_be_drawn_is_not_kept():
    row = torch.tensor([[0.0, -torch.inf, 0.0, -torch.inf]])
    picked = sampling.pick(
        row, torch.tensor([0.9], dtype=torch.float64), temperature=1.0, top_k=3, kept_sets=True
    )
    assert sampling.kept_rows(picked)[0].tolist() == [0, 2]
    assert picked.logps.item() == pytest.approx(math.log(0.5))


def test_not_a_number_outside_the_set_still_shows():
    for bad in (math.nan, -math.nan, math.inf):
        row = logits(1)
        row[0, 17] = bad
        picked = sampling.pick(
            row, torch.tensor([0.5], dtype=torch.float64), temperature=1.0, top_k=3, kept_sets=True
        )
        with pytest.raises(ContractError, match="engine-logits"):
            sampling.check(picked)


# -- scores over kept sets -------------------------------------------------------------------------


def sets_of(rows: int, vocab: int, seed: int = 1) -> tuple[torch.Tensor, KeptSets]:
    """Tokens [rows] and sets of 1 to vocab ids around them."""
    rng = np.random.default_rng(seed)
    sizes = [1, vocab, *rng.integers(1, vocab + 1, rows - 2)]
    rows_ = [rng.permutation(vocab)[:size] for size in sizes]
    return torch.tensor([int(rng.choice(row)) for row in rows_]), KeptSets.of(rows_)


@pytest.mark.parametrize("chunk", [1, 64, keptlogps.CHUNK])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_and_entropies_are_those_of_float64(chunk, temperature, monkeypatch):
    monkeypatch.setattr(keptlogps, "CHUNK", chunk)
    given = logits(30, 20)
    tokens, kept = sets_of(30, 20)
    found, entropy = kept_logps(given, tokens, kept, temperature=temperature, entropy=True)
    for i in range(30):
        logp = [reference_logp(given[i].numpy(), temperature, kept[i], t) for t in kept[i]]
        own = reference_logp(given[i].numpy(), temperature, kept[i], int(tokens[i]))
        assert found[i].item() == pytest.approx(own, abs=2e-6)
        expected = -math.fsum(math.exp(value) * value for value in logp)
        assert entropy[i].item() == pytest.approx(expected, abs=2e-6)
    assert found[0] == entropy[0] == 0  # a set of one
    assert kept_logps(given, tokens, kept)[1] is None


def by_masking(given, tokens, kept, temperature):
    """The same through autograd: every id outside the set at minus infinity."""
    mask = torch.zeros(given.shape, dtype=torch.bool)
    mask[torch.from_numpy(kept.owners()), torch.from_numpy(kept.ids.copy()).long()] = True
    logp = torch.log_softmax((given / temperature).masked_fill(~mask, -torch.inf), -1)
    entropy = -(logp.exp() * logp.masked_fill(~mask, 0.0)).sum(-1)
    return logp.gather(-1, tokens[:, None])[:, 0], entropy


@pytest.mark.parametrize("chunk", [1, 64, keptlogps.CHUNK])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_gradients_are_those_of_a_masked_softmax(chunk, temperature, monkeypatch):
    monkeypatch.setattr(keptlogps, "CHUNK", chunk)
    tokens, kept = sets_of(30, 20)
    weights = torch.randn(2, 30, generator=torch.Generator().manual_seed(9)).double()
    found = []
    for score in (
        lambda given: kept_logps(given, tokens, kept, temperature=temperature, entropy=True),
        lambda given: by_masking(given, tokens, kept, temperature),
    ):
        given = logits(30, 20).double().requires_grad_()
        logps, entropy = score(given)
        (weights[0] @ logps + weights[1] @ entropy).backward()
        found.append(given.grad)
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-13)
    assert not found[0][0].any()  # a set of one pulls on nothing


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_a_part_of_the_rows_is_no_larger_than_a_chunk_or_one_row(chunk, monkeypatch):
    monkeypatch.setattr(keptlogps, "CHUNK", chunk)
    rng = np.random.default_rng(chunk)
    sets = KeptSets.of([np.arange(size) for size in rng.integers(1, 30, 200)])
    parts = list(keptlogps._chunks(sets))
    assert [part[0] for part in parts] == [0, *(end for _, end, _ in parts[:-1])]
    assert parts[-1][1] == 200
    for start, end, widest in parts:
        assert widest == sets.sizes[start:end].max()
        assert (end - start) * widest <= chunk or end == start + 1
    # and no smaller than need be
    for start, end, _ in parts[:-1]:
        assert (end + 1 - start) * sets.sizes[start : end + 1].max() > chunk
    assert list(keptlogps._chunks(KeptSets.of([]))) == []


def test_low_precision_logits_get_a_gradient_of_their_own_dtype():
    tokens, kept = sets_of(30, 20)
    given = logits(30, 20).bfloat16().requires_grad_()
    logps, _ = kept_logps(given, tokens, kept)
    assert logps.dtype == torch.float32
    logps.sum().backward()
    assert given.grad.dtype == torch.bfloat16


def test_a_second_derivative_is_refused_in_words():
    tokens, kept = sets_of(30, 20)
    given = logits(30, 20).requires_grad_()
    with pytest.raises(RefusedError, match="first-order"):
        torch.autograd.grad(kept_logps(given, tokens, kept)[0].sum(), given, create_graph=True)


def test_a_token_outside_its_set_is_no_number():
    found, _ = kept_logps(logits(2), torch.tensor([5, 5]), KeptSets.of([[4, 6], [5, 6]]))
    assert found.isnan().tolist() == [True, False]


def test_what_backward_holds_grows_with_the_sets_and_not_with_the_vocabulary():
    given = logits(30, 2000).requires_grad_()
    tokens = torch.arange(30)
    kept = KeptSets.of([[token, token + 30, token + 60] for token in range(30)])
    logps, _ = kept_logps(given, tokens, kept)
    held = sum(part.numel() for part in logps.grad_fn.saved_tensors)
    assert held < 30 * 10 < given.numel()


# -- through samples, packs and the actor ----------------------------------------------------------


def engine(dtype=torch.float32, **others) -> TransformersEngine:
    return TransformersEngine(hf_model(*tiny()).to(dtype), eos_ids=[3], batch_size=8, **others)


PROMPTS = [[5, 6, 7], [40], [20, 21, 22, 23], [9, 8]]


def sampled(*, kept_sets: bool, temperature: float = 1.0, own=None, **cut) -> Collection:
    """Eight samples of an engine with a truncated sampler."""
    made = (own or engine()).generate(
        PROMPTS, n=2, max_new_tokens=12, kept_sets=kept_sets, temperature=temperature, **cut, seed=5
    )
    rng = np.random.default_rng(2)
    samples = []
    for number, response in enumerate(made):
        prompt = PROMPTS[number // 2]
        mask = rng.random(len(response.tokens)) > 0.2
        mask[0] = True
        samples.append(
            Sample(
                sample_id=number,
                group_id=number // 2,
                tokens=[*prompt, *response.tokens],
                prompt_len=len(prompt),
                loss_mask=mask,
                behaviour_logp=response.logps,
                behaviour_version=response.versions,
                reward=float(number % 2),
                advantage=float(rng.normal()),
                kept=response.kept,
            )
        )
    return Collection(samples, 0)


def actor_of(**changes) -> CoreActor:
    actor = CoreActor(settings(**changes))
    actor.init(tiny())
    return actor


CUT = {"top_p": 0.8, "top_k": 20}
REPLAY = {"rollout__use_sampling_replay": True, "rollout__top_p": 0.8, "rollout__top_k": 20}
MISMATCH = {"rollout__allow_sampler_mismatch": True, "rollout__top_p": 0.8, "rollout__top_k": 20}


def gaps(actor, data) -> np.ndarray:
    """Engine minus trainer, every response token."""
    scores = actor.score(data.samples)
    return np.concatenate(
        [sample.behaviour_logp - own for sample, own in zip(data.samples, scores, strict=True)]
    )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("pack_tokens", [0, 64])
def test_replay_leaves_rounding_of_the_gap(temperature, pack_tokens):
    actor = actor_of(**REPLAY, rollout__temperature=temperature, batch__pack_tokens=pack_tokens)
    data = sampled(kept_sets=True, temperature=temperature, **CUT)
    assert max(sample.kept.sizes.max() for sample in data.samples) > 3
    assert np.abs(gaps(actor, data)).max() < 2e-5


def test_without_replay_the_gap_is_the_kept_mass_and_has_one_sign():
    """An engine that reports over its kept set beside a trainer that scores the vocabulary."""
    data = sampled(kept_sets=True, **CUT)
    blind = Collection([dataclasses.replace(s, kept=None) for s in data.samples], 0)
    found = gaps(actor_of(**MISMATCH), blind)
    assert found.min() > -2e-5
    assert found.mean() > 0.05
    # engine.score is over the whole vocabulary: what a token gained is minus the log of the mass
    whole = np.concatenate([engine().score(s.tokens, s.prompt_len) for s in data.samples])
    reported = np.concatenate([s.behaviour_logp for s in data.samples])
    np.testing.assert_allclose(found, reported - whole, atol=2e-5)


def test_an_engine_that_reports_the_vocabulary_hides_the_cut():
    """The third case of Miles 101, section 4.4: no gap, and yet another sampler."""
    data = sampled(kept_sets=False, **CUT)
    assert np.abs(gaps(actor_of(**MISMATCH), data)).max() < 2e-5


def test_order_of_samples_and_of_packs_does_not_move_a_set():
    data = sampled(kept_sets=True, **CUT)
    actor = actor_of(**REPLAY, batch__pack_tokens=64)
    straight = actor.score(data.samples)
    order = [5, 2, 7, 0, 3, 6, 1, 4]
    turned = actor.score([data.samples[i] for i in order])
    for place, index in enumerate(order):
        np.testing.assert_allclose(turned[place], straight[index], atol=2e-5)
    pack = make_pack(data.samples, [4, 1])
    cut = data.samples[4].response_len
    assert np.array_equal(pack.kept[cut], data.samples[1].kept[0])
    pack.kept.check_tokens(pack.targets)


def test_training_forward_and_scoring_pass_agree_and_the_step_is_recorded():
    data = sampled(kept_sets=True, **CUT)
    actor = actor_of(**REPLAY, batch__pack_tokens=64, objective__entropy_coef=0.01)
    result = actor.train(data, 0)[0]
    assert result.comparison.mean_abs < 2e-6
    assert result.terms["abs_diff"] / result.terms["tokens"] < 1e-5
    entropies = result.terms["entropy"] / result.terms["tokens"]
    sizes = kept_sizes(data.samples)
    assert 0 < entropies < math.log(sizes["max"])
    active = [s.kept.sizes[s.loss_mask] for s in data.samples]
    assert sizes["tokens"] == data.active_tokens
    assert sizes["max"] == max(map(max, active))
    assert sizes["mean"] == pytest.approx(np.concatenate(active).mean())
    assert kept_sizes(collection().samples) is None


def test_the_gradient_of_a_step_is_that_of_the_restricted_softmax():
    data = sampled(kept_sets=True, **CUT)
    actor = actor_of(**REPLAY)
    module = actor.module
    from test_hook import gradients, work_of

    module.zero_grads()
    module.train_packs(*work_of(actor, data.samples))
    through = gradients(actor)
    module.zero_grads()
    work, context = work_of(actor, data.samples)
    for item in work:
        pack = item.pack
        rows = module.model(torch.from_numpy(pack.tokens)[None])[0][pack.positions]
        logps, _ = by_masking(rows, torch.from_numpy(pack.targets), pack.kept, 1.0)
        loss, _ = objective.policy_objective(
            logps, None, item.inputs, context.denominators, context.objective
        )
        loss.backward()
    direct = gradients(actor)
    scale = max(float(value.abs().max()) for value in direct.values())
    for name, value in direct.items():
        assert float((through[name] - value).abs().max()) < 1e-5 * scale


def test_a_filler_has_a_set_of_its_own_token():
    long, short = sampled(kept_sets=True, **CUT).samples[:2]
    quick = dataclasses.replace(
        short,
        tokens=short.tokens[: short.prompt_len + 1],
        loss_mask=[True],
        behaviour_logp=short.behaviour_logp[:1],
        behaviour_version=[0],
        kept=KeptSets.of([short.kept[0]]),
    )
    room = len(long.tokens)
    layout = plan([long, long, quick, quick], world_size=2, optimizer_steps=1, pack_tokens=room)
    ranks = layout.steps[0].ranks
    uneven = plan([long, long, long, quick], world_size=2, optimizer_steps=1, pack_tokens=room + 4)
    fillers = [p for packs in (*ranks, *uneven.steps[0].ranks) for p in packs if p.is_filler]
    assert fillers
    for pack in fillers:
        pack.kept.check_tokens(pack.targets)
        assert pack.kept.sizes.tolist() == [1]


def test_samples_with_and_without_sets_never_mix():
    data = sampled(kept_sets=True, **CUT)
    bare = dataclasses.replace(data.samples[0], kept=None)
    with pytest.raises(ContractError, match="with and without"):
        make_pack([bare, data.samples[1]], [0, 1])
    check_kept_sets(data.samples, replay=True)
    with pytest.raises(ContractError, match="sample 0 has no kept sets"):
        check_kept_sets([bare, *data.samples[1:]], replay=True)
    with pytest.raises(ContractError, match="sample 0 has kept sets"):
        check_kept_sets(data.samples, replay=False)
    actor = actor_of(**REPLAY)
    with pytest.raises(ContractError, match="kept-sets"):
        actor.train(collection(), 0)
    assert actor.optimizer_step == 0


def test_ranks_with_other_sets_would_disagree_about_the_plan():
    data = sampled(kept_sets=True, **CUT)
    layout = plan(data.samples, world_size=1, optimizer_steps=1, pack_tokens=64)
    first = data.samples[0]
    sets = [first.kept[i] for i in range(len(first.kept))]
    other = KeptSets.of([[*sets[0], 0 if 0 not in sets[0] else 95], *sets[1:]])
    turned = [dataclasses.replace(first, kept=other), *data.samples[1:]]
    assert digest(turned, layout) != digest(data.samples, layout)
    again = [dataclasses.replace(first, kept=KeptSets.of(sets)), *data.samples[1:]]
    assert digest(again, layout) == digest(data.samples, layout)


def test_sets_survive_the_way_between_ranks():
    sets = pickle.loads(pickle.dumps(KeptSets.of([[4, 2], [7]])))
    assert [sets[0].tolist(), sets[1].tolist()] == [[4, 2], [7]]


def test_an_id_beyond_the_vocabulary_is_refused():
    data = sampled(kept_sets=True, **CUT)
    first = data.samples[0]
    sets = [first.kept[i] for i in range(len(first.kept))]
    wrong = dataclasses.replace(first, kept=KeptSets.of([[*sets[0], VOCABULARY], *sets[1:]]))
    with pytest.raises(ContractError, match=f"token id {VOCABULARY}"):
        actor_of(**REPLAY).train(Collection([wrong, *data.samples[1:]], 0), 0)


@pytest.mark.parametrize(
    "wrong", [{"temperature": 0.0, "top_k": 4}, {"top_p": 1.0}, {"top_p": 1.0, "top_k": 0}]
)
def test_requests_without_a_set_to_keep_are_refused(wrong):
    with pytest.raises(ContractError, match="kept sets"):
        engine().generate(PROMPTS, max_new_tokens=2, kept_sets=True, **wrong)


def test_a_server_is_not_asked_for_kept_sets():
    client = type("Client", (), {"get": lambda *_: {"weight_version": "0"}})()
    with pytest.raises(RefusedError, match="kept sets"):
        SGLangEngine("http://unused", eos_ids=[3], client=client).generate(
            PROMPTS, max_new_tokens=2, kept_sets=True, top_k=4
        )


# -- whole runs ------------------------------------------------------------------------------------


def whole_run(folder, monkeypatch, **changes):
    """Two collections of a tiny dense model; the contract records and the final report."""
    from capture.core import configfile, contract, driver
    from capture.core.tasks.arithmetic import Arithmetic

    # a random model never answers: the share of even tokens differs within groups
    monkeypatch.setattr(
        Arithmetic, "reward", lambda _, prompt, given: sum(t % 2 == 0 for t in given) / len(given)
    )
    data = {
        "rollout": {"num_rollout": 2, "rollout_batch_size": 3, "n_samples_per_prompt": 4,
                    "max_new_tokens": 5},
        "batch": {"global_batch_size": 12, "pack_tokens": 64},
        "model": {"d_model": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 1, "ffn": 32},
        "optimizer": {"lr": 1e-2},
        "miles": {"save": str(folder / "run")},
    }  # fmt: skip
    changed = configfile.with_changes(data, changes)
    driver.run(configfile.parse(changed))
    path = contract.path_for(folder / "run", 0)
    lines = list(contract.read(path))
    assert [line.problem for line in lines] == [None, None]
    return [line.record for line in lines], path


def test_a_run_with_replay_has_the_gap_of_one_without_a_cut(tmp_path, monkeypatch):
    from capture.core import verify

    found, path = whole_run(
        tmp_path,
        monkeypatch,
        **{"rollout.use_sampling_replay": True, "rollout.top_p": 0.4, "rollout.top_k": 6},
    )
    for record in found:
        assert record.kept_sets.tokens == record.counts.global_active_tokens
        assert 1 < record.kept_sets.mean <= record.kept_sets.max <= 6
        assert record.probability_error.all.max < 2e-5
    assert verify.main([str(path)]) == 0


def test_a_run_with_an_allowed_mismatch_records_no_sets(tmp_path, monkeypatch):
    changes = {"rollout.allow_sampler_mismatch": True, "rollout.top_k": 6}
    for record in whole_run(tmp_path, monkeypatch, **changes)[0]:
        assert record.kept_sets is None
        assert record.probability_error.all.max < 2e-5  # this engine reports the vocabulary


def test_a_run_in_bfloat16_has_a_smaller_gap_with_the_head_on_both_sides(tmp_path, monkeypatch):
    means = []
    for head in (False, True):
        found, _ = whole_run(
            tmp_path / str(head),
            monkeypatch,
            **{"core.fp32_lm_head": head, "model.dtype": "bfloat16", "engine.dtype": "bfloat16"},
            **{"scoring.tolerance": 1.0},
        )
        means.append(found[0].probability_error.all.mean)
    assert means[1] < means[0]
