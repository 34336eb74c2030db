"""Every token stays with its sample; packs, ranks and partitions are made of whole samples."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from batches import batches, make, run, settings_of
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_numpy import Settings

from capture.core.errors import ContractError, RefusedError
from capture.core.packing import UNLIMITED, by_sample, check_batch, make_pack, plan
from capture.core.samples import Sample

quick = settings(max_examples=100, deadline=None, derandomize=True)


def samples_of(lengths: list[tuple[int, int]], seed: int = 0) -> list[Sample]:
    return make(seed, lengths).samples


@st.composite
def divisible(draw):
    """Samples, world size and optimizer steps that divide."""
    world, steps = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    count = world * steps * draw(st.integers(1, 3))
    lengths = draw(
        st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=count, max_size=count)
    )
    return samples_of(lengths, draw(st.integers(0, 99))), world, steps


limits = st.sampled_from([None, 18, 25, UNLIMITED])


@given(case=divisible(), limit=limits)
@quick
def test_every_sample_is_in_exactly_one_pack_of_its_own_partition(case, limit):
    samples, world, steps = case
    found = plan(samples, world_size=world, optimizer_steps=steps, pack_tokens=limit)
    assert len(found.steps) == steps
    size = found.global_batch_size
    for number, step in enumerate(found.steps):
        partition = list(range(number * size, (number + 1) * size))
        assert list(step.sample_indexes) == partition
        packs = [pack for packs in step.ranks for pack in packs]
        assert sorted(i for pack in packs for i in pack.sample_indexes) == partition
        assert step.denominators.global_responses == size
        assert step.denominators.global_tokens == sum(pack.active_tokens for pack in packs)
        assert step.denominators.world_size == world
        assert step.model_tokens == sum(pack.model_tokens for pack in packs)


@given(case=divisible(), limit=limits)
@quick
def test_every_rank_runs_the_same_number_of_forwards_and_samples(case, limit):
    samples, world, steps = case
    for step in plan(samples, world_size=world, optimizer_steps=steps, pack_tokens=limit).steps:
        assert len(step.ranks) == world
        assert {len(packs) for packs in step.ranks} == {step.packs_per_rank}
        assert len({sum(pack.responses for pack in packs) for packs in step.ranks}) == 1
        # no more fillers than needed: some rank has none
        assert any(not pack.is_filler for packs in step.ranks for pack in packs[-1:])


@given(case=divisible(), limit=limits)
@quick
def test_packs_keep_the_limit_and_hold_whole_documents(case, limit):
    samples, world, steps = case
    for step in plan(samples, world_size=world, optimizer_steps=steps, pack_tokens=limit).steps:
        for pack in (pack for packs in step.ranks for pack in packs):
            assert len(pack.tokens) == sum(pack.doc_lens)
            if limit is None:
                assert len(pack.doc_lens) == 1
            else:
                assert len(pack.tokens) <= limit
            start = 0
            for index, length in zip(pack.sample_indexes, pack.doc_lens, strict=False):
                np.testing.assert_array_equal(
                    pack.tokens[start : start + length], samples[index].tokens
                )
                start += length


@given(case=divisible(), limit=limits)
@quick
def test_positions_predict_the_response_of_their_own_document(case, limit):
    samples, world, steps = case
    for step in plan(samples, world_size=world, optimizer_steps=steps, pack_tokens=limit).steps:
        for pack in (pack for packs in step.ranks for pack in packs if not pack.is_filler):
            ends = np.cumsum(pack.doc_lens)
            owner = np.searchsorted(ends, pack.positions, side="right")
            np.testing.assert_array_equal(owner, pack.document)
            # the predicted token lies in the same document: none is predicted across a boundary
            np.testing.assert_array_equal(
                np.searchsorted(ends, pack.positions + 1, side="right"), pack.document
            )
            responses = pack.scatter(pack.targets)
            masks = pack.scatter(pack.mask)
            active = pack.scatter(pack.active_in_response)
            for index in pack.sample_indexes:
                np.testing.assert_array_equal(responses[index], samples[index].response)
                np.testing.assert_array_equal(masks[index], samples[index].loss_mask)
                assert set(active[index].tolist()) == {samples[index].active_tokens}


@given(case=divisible(), limit=limits)
@quick
def test_gather_and_scatter_are_inverse(case, limit):
    samples, world, steps = case
    values = [np.arange(s.response_len) + 100.0 * i for i, s in enumerate(samples)]
    found = plan(samples, world_size=world, optimizer_steps=steps, pack_tokens=limit)
    packs = [pack for step in found.steps for packs in step.ranks for pack in packs]
    back = by_sample(packs, [pack.gather(values, np.float64) for pack in packs])
    assert sorted(back) == list(range(len(samples)))
    for index, value in back.items():
        np.testing.assert_array_equal(value, values[index])


@given(case=divisible(), limit=limits)
@quick
def test_the_plan_is_a_function_of_its_input(case, limit):
    samples, world, steps = case
    how = {"world_size": world, "optimizer_steps": steps, "pack_tokens": limit}
    first, second = plan(samples, **how), plan(samples, **how)
    for one, other in zip(first.steps, second.steps, strict=True):
        assert [[p.sample_indexes for p in r] for r in one.ranks] == [
            [p.sample_indexes for p in r] for r in other.ranks
        ]


def test_ranks_get_close_to_the_same_tokens():
    lengths = [(1, n) for n in (60, 58, 30, 28, 3, 3, 2, 2)]
    step = plan(samples_of(lengths), world_size=2, optimizer_steps=1, pack_tokens=None).steps[0]
    tokens = [sum(pack.model_tokens for pack in packs) for packs in step.ranks]
    assert max(tokens) - min(tokens) <= 2


def test_packing_saves_forwards():
    samples = samples_of([(2, 2)] * 12)
    alone = plan(samples, world_size=1, optimizer_steps=1, pack_tokens=None).steps[0]
    packed = plan(samples, world_size=1, optimizer_steps=1, pack_tokens=16).steps[0]
    assert (alone.packs_per_rank, packed.packs_per_rank) == (12, 3)


def test_a_filler_is_made_of_real_tokens_and_weighs_nothing():
    samples = samples_of([(9, 9), (6, 6), (6, 6), (1, 1)])
    step = plan(samples, world_size=2, optimizer_steps=1, pack_tokens=20).steps[0]
    fillers = [pack for packs in step.ranks for pack in packs if pack.is_filler]
    assert fillers
    for pack in fillers:
        assert pack.model_tokens == pack.active_tokens == pack.responses == 0
        assert len(pack.positions) == 1
        assert not pack.gather(lambda index: 1 / 0, np.float32).any()
        assert pack.scatter(np.zeros(1)) == {}
        known = set(np.concatenate([sample.tokens for sample in samples]).tolist())
        assert set(pack.tokens.tolist()) <= known


@given(data=st.data())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_permuting_samples_permutes_their_gradients_and_nothing_else(data):
    """Masks, boundaries, scores and logits stay attached to their sample."""
    batch = data.draw(batches())
    chosen = data.draw(settings_of(batch))
    limit = data.draw(st.sampled_from([None, 12, UNLIMITED]))
    loss, grads, terms = run(batch, chosen, pack_tokens=limit)
    order = data.draw(st.permutations(range(len(batch.samples))))
    moved = replace(
        batch,
        samples=[batch.samples[i] for i in order],
        logits=[batch.logits[i] for i in order],
        old=None if batch.old is None else [batch.old[i] for i in order],
        ref=None if batch.ref is None else [batch.ref[i] for i in order],
    )
    moved_loss, moved_grads, moved_terms = run(moved, chosen, pack_tokens=limit)
    assert moved_loss == pytest.approx(loss, rel=1e-12, abs=1e-13)
    assert moved_terms.as_dict() == pytest.approx(terms.as_dict(), rel=1e-11, abs=1e-12)
    for place, index in enumerate(order):
        np.testing.assert_allclose(moved_grads[place], grads[index], rtol=1e-11, atol=1e-15)


@given(data=st.data())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_packed_equals_unpacked(data):
    batch = data.draw(batches())
    chosen = data.draw(settings_of(batch))
    loss, grads, terms = run(batch, chosen)
    for limit in (12, UNLIMITED):
        packed_loss, packed_grads, packed_terms = run(batch, chosen, pack_tokens=limit)
        assert packed_loss == pytest.approx(loss, rel=1e-12, abs=1e-13)
        assert packed_terms.as_dict() == pytest.approx(terms.as_dict(), rel=1e-11, abs=1e-12)
        for own, packed in zip(grads, packed_grads, strict=True):
            np.testing.assert_allclose(packed, own, rtol=1e-11, atol=1e-15)


def test_a_misplaced_score_would_be_seen():
    """The permutation test has teeth: two samples' anchors swapped change the loss."""
    batch = make(3, [(2, 3), (2, 3)], holes=0.0)
    loss, _, _ = run(batch, Settings())
    batch.old.reverse()
    assert abs(run(batch, Settings())[0] - loss) > 1e-3


@pytest.mark.parametrize(
    ("samples", "steps", "world", "id"),
    [
        (8, 3, 1, "batch-steps"),
        (8, 16, 1, "batch-steps"),
        (8, 2, 3, "batch-world"),
        (8, 8, 2, "batch-world"),
        (0, 1, 1, "batch-positive"),
        (8, 0, 1, "batch-positive"),
        (8, 1, 0, "batch-positive"),
    ],
)
def test_collections_that_do_not_divide_are_refused(samples, steps, world, id):
    with pytest.raises(RefusedError) as caught:
        check_batch(samples=samples, optimizer_steps=steps, world_size=world)
    assert caught.value.id == id


def test_batches_that_divide_are_accepted():
    assert check_batch(samples=8, optimizer_steps=2, world_size=4) == 4
    with pytest.raises(RefusedError, match="not divisible by 3"):
        plan(samples_of([(1, 1)] * 8), world_size=3, optimizer_steps=1, pack_tokens=None)


def test_a_sample_over_the_limit_is_refused_by_name():
    with pytest.raises(RefusedError, match=r"sample 101 has 9 tokens, batch\.pack_tokens is 8"):
        plan(samples_of([(2, 2), (4, 5)]), world_size=1, optimizer_steps=1, pack_tokens=8)


def test_values_of_the_wrong_length_are_refused():
    samples = samples_of([(2, 2), (2, 3)])
    pack = make_pack(samples, [0, 1])
    with pytest.raises(ContractError, match="index 1"):
        pack.gather([np.zeros(2), np.zeros(2)], np.float32)
    with pytest.raises(ContractError, match="4 values for 5"):
        pack.scatter(np.zeros(4))
    with pytest.raises(ContractError, match="two packs"):
        by_sample([pack, pack], [np.zeros(5), np.zeros(5)])


def test_scores_from_torch_come_back_as_they_went():
    samples = samples_of([(2, 2), (1, 3)])
    pack = make_pack(samples, [1, 0])
    back = pack.scatter(torch.arange(5).numpy())
    assert back[1].tolist() == [0, 1, 2]
    assert back[0].tolist() == [3, 4]
