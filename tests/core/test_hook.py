"""The objective hook: Core's own training with our loss, over packs that stay apart."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from tiny import collection, settings, tiny

from capture.core.actor import CoreActor
from capture.core.docmask import DocumentAttention, document_mask
from capture.core.errors import ContractError
from capture.core.hook import PackWork, StepContext
from capture.core.objective import pack_inputs, policy_objective, response_logps
from capture.core.packing import make_pack, plan
from capture.core.samples import Sample


def actor_of(source=None, **changes) -> CoreActor:
    actor = CoreActor(settings(**changes))
    actor.init(source or tiny())
    return actor


def work_of(actor, samples, pack_tokens=None, old=None):
    step = plan(samples, world_size=1, optimizer_steps=1, pack_tokens=pack_tokens).steps[0]
    work = [PackWork(p, pack_inputs(p, samples, old_logp=old)) for p in step.ranks[0]]
    return work, StepContext(actor.objective, step.denominators)


def gradients(actor) -> dict[str, torch.Tensor]:
    return {
        name: p.grad.clone() for name, p in actor.named_parameters().items() if p.grad is not None
    }


def distance(one: dict, other: dict) -> float:
    """Largest difference over the largest value."""
    assert one.keys() == other.keys()
    scale = max(float(value.abs().max()) for value in other.values())
    return max(float((one[name] - other[name]).abs().max()) for name in one) / scale


def through_core(actor, samples, pack_tokens=None, old=None):
    actor.module.zero_grads()
    outputs = actor.module.train_packs(*work_of(actor, samples, pack_tokens, old))
    return gradients(actor), outputs


def directly(actor, samples, *, whole_head: bool):
    """The same objective with nothing of Core but the model: one graph, one backward."""
    actor.module.zero_grads()
    work, context = work_of(actor, samples)
    model = actor.module.model
    for item in work:
        tokens, rows = torch.from_numpy(item.pack.tokens), torch.from_numpy(item.pack.positions)
        if whole_head:
            logps, entropy = response_logps(model(tokens[None]), tokens[None], rows)
        else:
            logits = model(tokens[None], logits_to_keep=rows[None])[0]
            logps = torch.log_softmax(logits, -1)[torch.arange(len(rows)), tokens[rows + 1]]
            entropy = None
        loss, _ = policy_objective(
            logps, entropy, item.inputs, context.denominators, actor.objective
        )
        loss.backward()
    return gradients(actor)


def test_the_hook_adds_nothing_to_the_gradient():
    actor = actor_of()
    samples = collection().samples
    found, _ = through_core(actor, samples)
    assert distance(found, directly(actor, samples, whole_head=False)) == 0.0
    assert distance(found, directly(actor, samples, whole_head=True)) < 1e-6


@pytest.mark.parametrize("reduction", ["token", "response"])
def test_accumulation_does_not_change_the_gradient(reduction):
    actor = actor_of(objective__reduction=reduction)
    samples = collection().samples
    eight, outputs = through_core(actor, samples)
    assert len(outputs) == 8
    few, outputs = through_core(actor, samples, pack_tokens=40)
    assert 1 < len(outputs) < 8
    one, outputs = through_core(actor, samples, pack_tokens=10_000)
    assert len(outputs) == 1
    assert distance(eight, one) < 2e-6
    assert distance(few, one) < 2e-6


@pytest.mark.parametrize("family", ["llama", "qwen3", "olmo2"])
def test_a_packed_sample_gets_the_log_probabilities_it_has_alone(family):
    source = tiny(family)
    samples = collection(3).samples
    alone = actor_of(source).score(samples)
    packed = actor_of(source, batch__pack_tokens=64).score(samples)
    for one, other in zip(alone, packed, strict=True):
        np.testing.assert_allclose(one, other, atol=5e-6, rtol=0)


def test_a_document_does_not_see_another_document():
    """Nor is that so without the mask: the same rows as one document differ."""
    actor = actor_of()
    samples = collection(4).samples[:3]
    pack = make_pack(samples, range(3))
    other = np.array(pack.tokens)
    other[: pack.doc_lens[0]] = other[: pack.doc_lens[0]][::-1]
    changed = dataclasses.replace(pack, tokens=other)
    first = pack.response_lens[0]
    score = actor.module.score_pack
    one, two = (score(p, temperature=1.0)[first:] for p in (pack, changed))
    assert torch.equal(one, two)
    merged = dataclasses.replace(pack, doc_lens=(len(other),))
    assert (score(merged, temperature=1.0)[first:] - one).abs().max() > 0.1


def test_the_mask_is_causal_inside_documents_and_closed_between_them():
    mask = document_mask(torch.tensor([0, 2, 2 + 3]), 5)
    rows = ["10000", "11000", "00100", "00110", "00111"]
    assert mask.int().tolist() == [[int(c) for c in row] for row in rows]


def test_one_document_is_exactly_cores_own_attention():
    actor = actor_of()
    tokens = torch.randint(1, 90, (1, 30))
    with torch.no_grad():
        ours = actor.module.model(tokens)
        for module in actor.module.model.modules():
            if isinstance(module, DocumentAttention):
                module.__class__ = DocumentAttention.__mro__[1]
        assert torch.equal(ours, actor.module.model(tokens))


@pytest.mark.parametrize("pack_tokens", [0, 64])
def test_scoring_gives_the_training_forwards_numbers(pack_tokens):
    actor = actor_of(batch__pack_tokens=pack_tokens, core__recompute=True)
    result = actor.train(collection(), 0)[0]
    assert result.comparison.tokens == result.denominators.global_tokens
    assert result.comparison.max_abs == 0.0
    assert result.terms["ppo_kl"] == 0.0


def test_recomputation_changes_no_gradient():
    samples = collection().samples
    plain, _ = through_core(actor_of(), samples, pack_tokens=64)
    again, _ = through_core(actor_of(core__recompute=True), samples, pack_tokens=64)
    assert distance({name.replace("._checkpoint_wrapped_module", ""): g for name, g in
                     again.items()}, plain) == 0.0  # fmt: skip


def test_a_filler_pack_adds_exactly_nothing():
    actor = actor_of()
    samples = collection().samples
    alone, _ = through_core(actor, samples)
    lengths = (24, 12, 12, 12)  # one rank gets 24 and 12, the other 12 and 12: a pack less
    uneven = [sized(number, length) for number, length in enumerate(lengths)]
    ranks = plan(uneven, world_size=2, optimizer_steps=1, pack_tokens=24).steps[0].ranks
    filler = next(pack for packs in ranks for pack in packs if pack.is_filler)
    work, context = work_of(actor, samples)
    actor.module.zero_grads()
    outputs = actor.module.train_packs([*work, PackWork(filler, pack_inputs(filler, ()))], context)
    assert float(outputs[-1].loss) == 0.0
    assert distance(gradients(actor), alone) == 0.0


def sized(number: int, length: int) -> Sample:
    """A sample of so many tokens, 4 of them its response."""
    rng = np.random.default_rng(number)
    return Sample(
        sample_id=number, group_id=0, tokens=rng.integers(1, 90, length), prompt_len=length - 4,
        loss_mask=np.ones(4, bool), behaviour_logp=np.full(4, -4.0),
        behaviour_version=np.zeros(4, int), reward=1.0, advantage=0.5,
    )  # fmt: skip


def test_a_microbatch_of_core_is_one_pack(monkeypatch):
    actor = actor_of()
    seen = []
    own = actor.module._train_microbatch_context

    def watched(index, number):
        seen.append((index, number))
        return own(index, number)

    monkeypatch.setattr(actor.module, "_train_microbatch_context", watched)
    result = actor.train(collection(), 0)[0]
    assert seen == [(index, 8) for index in range(8)]
    assert result.accumulation == 8


def test_a_wrong_number_of_forwards_is_noticed(monkeypatch):
    actor = actor_of()
    import olmo_core.train.train_module.transformer.train_module as core

    own = core.split_batch
    monkeypatch.setattr(core, "split_batch", lambda *a: own(*a)[:-1])
    with pytest.raises(ContractError, match="accumulation"):
        actor.train(collection(), 0)


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_the_step_is_that_of_an_independent_adamw_on_the_same_gradient(clip):
    changes = {"optimizer__max_grad_norm": clip, "optimizer__weight_decay": 0.1}
    actor, bare = actor_of(**changes), actor_of(**changes)
    samples = collection().samples
    before = bare.score(samples)
    directly(bare, samples, whole_head=True)
    weights = list(bare.module.model.parameters())
    if clip:
        torch.nn.utils.clip_grad_norm_(weights, clip)
    torch.optim.AdamW(weights, lr=1e-2, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.1).step()
    result = actor.train(collection(), 0)[0]
    assert result.gradient_norm > 0.5
    wanted = dict(bare.export())
    for name, value in actor.export():
        # Adam's first step is lr times a sign: only entries whose gradient is rounding may differ
        far = (value - wanted[name]).abs() > 1e-5
        assert far.float().mean() < 1e-3, name
    assert any((a != b).any() for a, b in zip(before, actor.score(samples), strict=True))


def test_bfloat16_autocast_stays_near_float32():
    samples = collection().samples
    exact, low = actor_of().score(samples), actor_of(model__dtype="bfloat16").score(samples)
    gap = np.concatenate([np.abs(a - b) for a, b in zip(exact, low, strict=True)])
    assert 0 < gap.mean() < 0.05
    assert all(p.dtype == torch.float32 for p in actor_of().module.model.parameters())


def test_temperature_divides_the_logits():
    samples = collection().samples
    cold, plain = actor_of(rollout__temperature=0.5), actor_of()
    pack = make_pack(samples, [0])
    logits = plain.module.model(torch.from_numpy(pack.tokens)[None])
    wanted = response_logps(
        logits / 0.5, torch.from_numpy(pack.tokens)[None], torch.from_numpy(pack.positions)
    )[0]
    np.testing.assert_allclose(cold.score(samples)[0], wanted.detach().numpy(), atol=1e-5)
