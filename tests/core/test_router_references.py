"""The router objectives and replay against Core's own and Megatron's functions."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import reference_router as reference
import torch
from routerbench import (
    Block,
    near,
    random_forward,
    run,
)

from capture.core import router as kit
from capture.core.findings.common import beside_miles
from capture.core.router import RouterSettings, balancing_loss, z_loss

HERE = Path(__file__).resolve().parent


def test_the_default_is_core_to_the_bit_over_model_tokens():
    rng = np.random.default_rng(11)
    forwards = [random_forward(rng, lens, 6, 2) for lens in ((3, 5), (4,))]
    for normalize, recompute in itertools.product((None, 1.0), (False, True)):
        own = Block(6, 2, normalize_expert_weights=normalize)
        found = run(own, forwards, policy=0.7, recompute=recompute, settings=RouterSettings())
        core = Block(
            6, 2, normalize_expert_weights=normalize, lb_loss_weight=0.01, z_loss_weight=1e-5
        )
        core.train()
        for forward, slope, output in zip(forwards, found.gradients, found.outputs, strict=True):
            x = torch.tensor(forward.logits, dtype=torch.float32)[None].requires_grad_()
            router = core.routed_experts_router
            weights, ids, _, info = router(x, False, loss_div_factor=12.0)
            out = (weights * (ids + 1)).sum(-1)
            (0.7 * out.sum() + router.compute_aux_loss(*info)).backward()
            assert torch.equal(out, output)
            assert (x.grad[0].numpy() == slope).all()
        assert torch.equal(core.routed_experts_router.weight.grad, found.weight_gradient)
        metrics = core.routed_experts_router.compute_metrics()
        ours = own.routed_experts_router.compute_metrics()
        assert {name: float(value[0]) for name, value in ours.items()} == {
            name: float(value[0]) for name, value in metrics.items()
        }
        assert float(found.terms.balancing) == pytest.approx(
            float(metrics["load balancing loss"][0]), rel=1e-6
        )


def test_core_would_scale_the_coefficient_by_model_tokens_over_labels():
    """Core's divisor is the label count; ours stays at the model tokens."""
    rng = np.random.default_rng(1)
    forward = random_forward(rng, (8, 8), 6, 2)
    core = Block(6, 2, lb_loss_weight=1.0).train().routed_experts_router
    x = torch.tensor(forward.logits, dtype=torch.float32)[None]
    losses = [
        float(core.compute_aux_loss(*core(x, False, loss_div_factor=labels)[3]).detach())
        for labels in (16.0, 8.0, 4.0)
    ]
    assert losses[1] == 2 * losses[0]
    assert losses[2] == 4 * losses[0]
    settings = RouterSettings(balancing_weight=1.0)
    assert float(run(Block(6, 2), [forward], settings=settings).terms.balancing) == losses[0]


@pytest.fixture(scope="module")
def megatron():
    """Documents and their pack through Megatron's functions, in a process of its own."""
    forward = random_forward(np.random.default_rng(2), (5, 1, 4), 6, 2)
    logits = torch.tensor(forward.logits, dtype=torch.float32)
    ids = torch.tensor(forward.ids)
    parts = [slice(first, end) for first, end in reference.spans(forward.doc_lens)]
    cases = [{"logits": logits[part], "ids": ids[part]} for part in (slice(None), *parts)]
    pack, *documents = beside_miles([str(HERE / "megatron_router_driver.py")], cases)
    return forward, pack, documents


@pytest.mark.parametrize("grouping", ["pack", "sequence"])
@pytest.mark.parametrize("reduction", ["token", "response"])
def test_losses_and_gradients_are_megatrons(megatron, grouping, reduction):
    forward, pack, documents = megatron
    lengths = torch.tensor(forward.doc_lens, dtype=torch.float32)
    weights = lengths / 10 if reduction == "token" else torch.full((3,), 1 / 3)
    logits = torch.tensor(forward.logits, dtype=torch.float32).requires_grad_()
    scores = torch.softmax(logits, -1)
    found = balancing_loss(scores, torch.tensor(forward.ids), forward.doc_lens,
                           grouping=grouping, reduction=reduction)  # fmt: skip
    slope = torch.autograd.grad(found, logits, retain_graph=True)[0]
    z = z_loss(logits, forward.doc_lens, reduction=reduction)
    z_slope = torch.autograd.grad(z, logits)[0]
    pairs = list(zip(weights, documents, strict=True))
    means = sum(weight * one["z"] for weight, one in pairs)
    near(z.detach(), means)
    near(
        z_slope,
        torch.cat([w * one["slopes"][1] for w, one in pairs]),
    )
    if grouping == "sequence":
        wanted = sum(weight * one["balancing"] for weight, one in pairs)
        near(found.detach(), wanted)
        near(
            slope,
            torch.cat([w * one["slopes"][0] for w, one in pairs]),
        )
    elif reduction == "token":
        near(found.detach(), pack["balancing"])
        near(slope, pack["slopes"][0])
        near(z.detach(), pack["z"])
    else:
        # Megatron has no such average: it is the pack's counts with equal weight for documents
        shares = torch.bincount(torch.tensor(forward.ids).reshape(-1), minlength=6) / 10
        means = torch.stack([part.mean(0) for part in scores.detach().split(forward.doc_lens)])
        near(found.detach(), 6 / 2 * (shares * means.mean(0)).sum())


def test_replay_is_megatrons(megatron):
    forward, pack, _ = megatron
    block = Block(6, 2)
    kit.install(block, RouterSettings(replay=True))
    work = kit.RouterWork(forward.ids[:, None], forward.doc_lens, None, 3)
    with torch.no_grad(), kit.armed(block, work):
        x = torch.tensor(forward.logits, dtype=torch.float32)[None]
        weights, ids, _, _ = block.routed_experts_router(x, False)
    assert torch.equal(ids[0], pack["ids"])
    assert torch.equal(weights[0], pack["weights"])
