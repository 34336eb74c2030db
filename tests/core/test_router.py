"""The router objectives on Core's router alone, and their plain functions, against numpy."""

import itertools

import numpy as np
import pytest
import reference_router as reference
import torch
from routerbench import (
    COMBINATIONS,
    WEIGHT,
    Z_WEIGHT,
    Block,
    Forward,
    near,
    random_forward,
    run,
    settings_of,
)

from capture.core.errors import ContractError, RefusedError
from capture.core.packing import AuxiliaryDenominators
from capture.core.router import RouterSettings, balancing_loss, z_loss


def plain(forwards, k: int, source: str, *, replay: bool):
    """The forwards for the reference, with the choices that the balancing loss counts."""
    found = []
    for one in (one for one in forwards if not one.filler):
        own = [reference.top(row, k) for row in one.logits]
        executed = one.ids.tolist() if replay else own
        found.append((one.logits.copy(), executed if source == "executed" else own, one.doc_lens))
    return found


def expected(forwards, combination, k, *, replay):
    """(balancing, z) without coefficients and the gradient of their weighted sum by forward."""
    grouping, reduction, z_reduction, source = combination
    step = plain(forwards, k, source, replay=replay)

    def both():
        # choices are fixed: a step of the difference quotient must not move them
        return (
            reference.balancing(
                step, k=k, grouping=grouping, reduction=reduction, source="executed"
            ),
            reference.z(step, reduction=z_reduction),
        )

    def loss():
        balancing, z = both()
        return WEIGHT * balancing + Z_WEIGHT * z

    return both(), [reference.gradient(loss, logits) for logits, _, _ in step]


SHAPES = [
    # documents of each forward, experts, experts a token
    ([(3, 5, 1), (2, 4)], 6, 2),
    ([(1,), (2,), (1, 1)], 4, 1),
    ([(7,)], 5, 3),
    ([(2, 1, 2)], 3, 3),  # every expert runs for every token
]


@pytest.mark.parametrize("replay", [False, True], ids=["live", "replay"])
@pytest.mark.parametrize("combination", COMBINATIONS, ids="-".join)
def test_every_combination_is_the_reference_with_and_without_recomputation(combination, replay):
    for number, (documents, experts, k) in enumerate(SHAPES):
        rng = np.random.default_rng(number)
        forwards = [random_forward(rng, lens, experts, k) for lens in documents]
        (balancing, z), slopes = expected(forwards, combination, k, replay=replay)
        settings = settings_of(combination, replay=replay)
        block = Block(experts, k, normalize_expert_weights=1.0 if number % 2 else None)
        for recompute in (False, True):
            found = run(block, forwards, settings=settings, recompute=recompute)
            near(found.terms.balancing / WEIGHT, balancing)
            near(found.terms.z / Z_WEIGHT, z)
            for own, slope in zip(found.gradients, slopes, strict=True):
                near(own, slope)
            for own, one in zip(found.executed, forwards, strict=True):
                wanted = one.ids if replay else [reference.top(row, k) for row in one.logits]
                assert (np.sort(own, -1) == np.sort(wanted, -1)).all()


@pytest.mark.parametrize("combination", COMBINATIONS, ids="-".join)
def test_recomputation_and_fillers_change_no_bit(combination):
    rng = np.random.default_rng(3)
    forwards = [random_forward(rng, lens, 6, 2) for lens in ((3, 5, 1), (2, 4))]
    filler = random_forward(rng, (2,), 6, 2, filler=True)
    settings, block = settings_of(combination, replay=True), Block(6, 2)
    first = run(block, forwards, settings=settings, policy=0.3)
    for others in ({"recompute": True}, {}):
        again = run(block, [filler, *forwards, filler], settings=settings, policy=0.3, **others)
        for own, other in zip(first.gradients, again.gradients[1:-1], strict=True):
            assert (own == other).all()
        assert first.terms.balancing == again.terms.balancing
        assert first.terms.z == again.terms.z
        assert torch.equal(first.terms.counts, again.terms.counts)
        assert torch.equal(first.terms.differing, again.terms.differing)
        assert first.terms.recorded == again.terms.recorded == 10
    alone = run(block, [filler], settings=settings, denominators=AuxiliaryDenominators(15, 5, 1))
    assert (alone.gradients[0] == 0).all()
    assert (alone.weight_gradient == 0).all()
    assert not alone.terms.flat().any()


def worked_example(second_expert: int) -> Forward:
    """Documents of 2 and 6 tokens with penalties 1 and 3 at one expert of four."""
    rest = (1 - 0.75) / 3
    rows = [[0.25] * 4] * 2 + [[0.75, rest, rest, rest]] * 6
    ids = np.zeros((8, 1), np.int64)
    ids[:2] = second_expert
    return Forward(np.log(rows), ids, (2, 6))


@pytest.mark.parametrize(
    ("grouping", "reduction", "one_expert", "two_experts"),
    [
        ("pack", "token", 2.5, 2.0),
        ("pack", "response", 2.0, 5 / 3),
        ("sequence", "token", 2.5, 2.5),
        ("sequence", "response", 2.0, 2.0),
    ],
)
def test_the_worked_example_of_the_page(grouping, reduction, one_expert, two_experts):
    for expert, value in ((0, one_expert), (1, two_experts)):
        example = worked_example(expert)
        scores = torch.tensor(np.exp(example.logits))
        found = balancing_loss(
            scores,
            torch.tensor(example.ids),
            example.doc_lens,
            grouping=grouping,
            reduction=reduction,
        )
        assert float(found) == pytest.approx(value, rel=1e-15)
        settings = RouterSettings(grouping, reduction, "token", "executed", 0.01, 0.0, True)
        terms = run(Block(4, 1), [example], settings=settings).terms
        assert float(terms.balancing) == pytest.approx(0.01 * value, rel=3e-7)
        assert float(terms.z) == 0.0


def test_the_worked_example_is_exact_in_float32():
    example = worked_example(0)
    scores = torch.tensor([[0.25] * 4] * 2 + [[0.75, 0.125, 0.0625, 0.0625]] * 6)
    for grouping in ("pack", "sequence"):
        found = [
            float(balancing_loss(scores, torch.tensor(example.ids), (2, 6), grouping=grouping,
                                 reduction=reduction))
            for reduction in ("token", "response")
        ]  # fmt: skip
        assert found == [2.5, 2.0]
        assert [0.01 * value for value in found] == [0.025, 0.02]


# -- the plain functions -----


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("doc_lens", "padding"), [((1,), 0), ((2, 1, 5), 0), ((4, 3), 6)])
def test_the_plain_functions_are_the_reference_in_every_dtype(dtype, doc_lens, padding):
    rng = np.random.default_rng(7)
    one = random_forward(rng, doc_lens, 5, 2)
    logits = torch.tensor(one.logits).to(dtype)
    exact = logits.double().numpy()
    rows = torch.cat([logits, torch.full((padding, 5), 9.0, dtype=dtype)])
    ids = torch.cat([torch.tensor(one.ids), torch.zeros(padding, 2, dtype=torch.long)])
    step = [(exact, one.ids, doc_lens)]
    close = 1e-12 if dtype == torch.float64 else 2e-6
    scores = torch.softmax(rows.double(), -1).to(torch.promote_types(dtype, torch.float32))
    for grouping, reduction, _, source in COMBINATIONS:
        found = balancing_loss(scores, ids, doc_lens, grouping=grouping, reduction=reduction,
                               count_source=source, padding=padding)  # fmt: skip
        wanted = reference.balancing(step, k=2, grouping=grouping, reduction=reduction,
                                     source=source)  # fmt: skip
        near(found, wanted, close)
        near(z_loss(rows, doc_lens, reduction=reduction, padding=padding),
             reference.z(step, reduction=reduction), close)  # fmt: skip
        assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_low_precision_scores_are_added_in_float32():
    scores = torch.full((4096, 8), 1 / 8, dtype=torch.bfloat16)
    ids = torch.arange(4096)[:, None] % 8
    assert float(balancing_loss(scores, ids, (4096,))) == pytest.approx(1.0, rel=1e-6)


def test_large_logits_are_finite_and_right():
    logits = torch.tensor([[1e4, -1e4, 0.0], [-300.0, -301.0, -300.5]], requires_grad=True)
    found = z_loss(logits, (1, 1), reduction="response")
    step = [(logits.detach().double().numpy(), None, (1, 1))]
    near(found.detach(), reference.z(step, reduction="response"))
    found.backward()
    assert torch.isfinite(logits.grad).all()
    assert float(logits.grad[0, 0]) == pytest.approx(1e4)


def test_an_even_router_has_penalty_one_and_a_collapsed_one_experts_over_k():
    scores = torch.full((6, 6), 1 / 6, dtype=torch.float64)
    ids = torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6], -1)
    assert float(balancing_loss(scores, ids, (6,))) == pytest.approx(1.0)
    collapsed = torch.zeros(6, 6, dtype=torch.float64)
    collapsed[:, 2] = 1.0
    assert float(balancing_loss(collapsed, torch.full((6, 1), 2), (2, 4))) == pytest.approx(6.0)


def test_counts_carry_no_gradient_and_experts_without_tokens_get_none():
    scores = torch.softmax(torch.randn(5, 4, dtype=torch.float64), -1).requires_grad_()
    ids = torch.tensor([[0], [0], [1], [0], [1]])
    balancing_loss(scores, ids, (2, 3), grouping="sequence").backward()
    assert (scores.grad[:, 2:] == 0).all()
    # each token's slope is experts / k times its document's share of an expert, over all tokens
    assert scores.grad[0].tolist() == pytest.approx([4 * 1.0 / 5, 0, 0, 0])
    assert scores.grad[2].tolist() == pytest.approx([4 / 3 / 5, 4 * 2 / 3 / 5, 0, 0])


def test_both_count_sources_agree_where_the_router_chose_what_ran():
    scores = torch.softmax(torch.randn(9, 6), -1)
    ids = torch.topk(scores, 3).indices
    for grouping, reduction in itertools.product(("pack", "sequence"), ("token", "response")):
        one, other = (
            balancing_loss(scores, ids, (4, 5), grouping=grouping, reduction=reduction,
                           count_source=source)
            for source in ("executed", "router_selected")
        )  # fmt: skip
        assert one == other
    alone = balancing_loss(scores, None, (4, 5), topk=3, count_source="router_selected")
    assert alone == balancing_loss(scores, ids, (4, 5))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_of_equal_scores_the_first_are_counted_and_a_live_router_counts_what_ran(k):
    rng = np.random.default_rng(k)
    logits = np.round(rng.normal(0, 1, (60, 6)))  # many experts of a token have the same score
    one = Forward(logits, None, (25, 1, 34))
    first = [reference.top(row, k) for row in logits]
    assert any(row[first[t][-1]] in np.delete(row, first[t]) for t, row in enumerate(logits))
    scores = torch.softmax(torch.tensor(logits), -1)
    for *how, _ in COMBINATIONS[::2]:
        grouping, reduction, _ = how
        found = balancing_loss(scores, None, one.doc_lens, topk=k, grouping=grouping,
                               reduction=reduction, count_source="router_selected")  # fmt: skip
        near(found, reference.balancing([(logits, first, one.doc_lens)], k=k, grouping=grouping,
                                        reduction=reduction, source="executed"), 1e-12)  # fmt: skip
        ran, selected = (
            run(Block(6, k), [one], settings=settings_of((*how, source)))
            for source in ("executed", "router_selected")
        )
        assert ran.terms.balancing == selected.terms.balancing
        assert (ran.gradients[0] == selected.gradients[0]).all()


def test_a_denominator_of_the_step_makes_forwards_add_up():
    rng = np.random.default_rng(5)
    one, other = (random_forward(rng, lens, 6, 2) for lens in ((3, 2), (4,)))
    total = 0.0
    for part in (one, other):
        scores = torch.softmax(torch.tensor(part.logits), -1)
        total += float(balancing_loss(scores, torch.tensor(part.ids), part.doc_lens,
                                      grouping="sequence", denominator=9.0))  # fmt: skip
    step = [(part.logits, part.ids, part.doc_lens) for part in (one, other)]
    near(total, reference.balancing(step, k=2, grouping="sequence", reduction="token",
                                    source="executed"), 1e-12)  # fmt: skip


SCORES = torch.full((4, 3), 1 / 3)
IDS = torch.zeros(4, 1, dtype=torch.long)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: balancing_loss(SCORES, IDS, (2, 3)), "4 rows for documents of 5 tokens"),
        (lambda: balancing_loss(SCORES, IDS, (2, 1), padding=2), "and 2 of padding"),
        (lambda: balancing_loss(SCORES, IDS, ()), "documents of"),
        (lambda: balancing_loss(SCORES, IDS, (4, 0)), "documents of"),
        (lambda: balancing_loss(SCORES, IDS, 4), "documents of 4 tokens"),
        (lambda: balancing_loss(SCORES, IDS, (2.0, 2.0)), "documents of"),
        (lambda: balancing_loss(SCORES, IDS[:3], (4,)), r"\(3, 1\) for 4 rows"),
        (lambda: balancing_loss(SCORES, IDS[:, 0], (4,)), r"\(4,\) for 4 rows"),
        (lambda: balancing_loss(SCORES, IDS[:, :0], (4,)), r"\(4, 0\) for 4 rows"),
        (lambda: balancing_loss(SCORES, IDS.expand(4, 5), (4,)), "4 rows of 3 experts"),
        (lambda: balancing_loss(SCORES, IDS.float(), (4,)), "ids are torch.float32"),
        (lambda: balancing_loss(SCORES, IDS.bool(), (4,)), "ids are torch.bool"),
        (lambda: balancing_loss(SCORES, IDS.numpy(), (4,)), "ids are ndarray"),
        (lambda: balancing_loss(SCORES.numpy(), IDS, (4,)), "scores or logits are ndarray"),
        (lambda: balancing_loss(SCORES.long(), IDS, (4,)), "scores or logits are torch.int64"),
        (lambda: balancing_loss(SCORES[:, :0], IDS, (4,)), r"shape \(4, 0\)"),
        (lambda: balancing_loss(SCORES, IDS + 3, (1, 3)), "row 0: expert id 3, the layer has"),
        (lambda: balancing_loss(SCORES, IDS - 1, (1, 3)), "row 0: expert id -1, the layer has"),
        (lambda: balancing_loss(SCORES, IDS, (4,), topk=2), "topk 2 and 1 ids a token"),
        (lambda: balancing_loss(SCORES, None, (4,)), "need expert ids"),
        (lambda: balancing_loss(SCORES, None, (4,), count_source="router_selected"), "need topk"),
        (
            lambda: balancing_loss(SCORES, None, (4,), topk=4, count_source="router_selected"),
            "topk 4 of 3 experts",
        ),
        (lambda: balancing_loss(SCORES, IDS, (4,), denominator=0.0), "denominator 0"),
        (lambda: balancing_loss(SCORES, IDS, (4,), denominator=float("inf")), "denominator inf"),
        (lambda: z_loss(SCORES[None].expand(2, 4, 3), (4,)), "one unpadded instance"),
        (lambda: z_loss(SCORES, (4,), padding=-1), "-1 of padding"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_in_one_line(call, said):
    with pytest.raises(ContractError, match=said) as caught:
        call()
    assert caught.value.check == "auxiliary"
    assert "\n" not in str(caught.value)


def test_an_id_of_no_expert_is_never_counted_for_another_document():
    """The counts of all documents lie in one row, where it would be the next one's expert."""
    scores = torch.softmax(torch.randn(4, 3), -1)
    for wrong, row in ((3, 0), (-1, 2)):
        ids = IDS.clone()
        ids[row] = wrong
        with pytest.raises(ContractError, match=f"row {row}: expert id {wrong}"):
            balancing_loss(scores, ids, (2, 2), grouping="sequence")
    padded = torch.cat([IDS, torch.full((2, 1), -1)])
    rows = torch.cat([scores, scores[:2]])
    assert balancing_loss(rows, padded, (2, 2), padding=2) == balancing_loss(scores, IDS, (2, 2))


@pytest.mark.parametrize(
    "changes",
    [
        {"grouping": "batch"},
        {"reduction": "mean"},
        {"z_reduction": "sum"},
        {"count_source": "recorded"},
        {"balancing_weight": -0.1},
        {"z_weight": float("inf")},
        {"z_weight": float("nan")},
        {"z_weight": "1e-5"},
    ],
)
def test_unknown_settings_are_refused(changes):
    with pytest.raises(RefusedError, match="router_"):
        RouterSettings(**changes)
