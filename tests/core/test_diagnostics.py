"""Local probes: norms of what the backward left, updates of at most 256 values, nothing global."""

import copy
import math

import pytest
import torch
from contract_records import records

from capture.core import diagnostics, verifychecks
from capture.core.contract import TrainingRecord
from capture.core.diagnostics import LocalProbes, StepProbes, due, sample_positions
from capture.core.errors import ContractError


def model(width=40):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, 3))


def probe(net, lr=0.1, interval=2, change=None):
    """One SGD step with probes: (plain diagnostics, parameters before, gradients)."""
    net.zero_grad()
    net(torch.randn(5, net[0].in_features)).square().sum().backward()
    if change:
        change(net)
    probes = LocalProbes(net.named_parameters(), interval=interval)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    grads = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
    probes.before_intake()
    torch.optim.SGD(net.parameters(), lr).step()
    return probes.after_step(), before, grads


@pytest.mark.parametrize(
    ("interval", "steps"), [(0, []), (1, [1, 2, 3, 4, 5]), (2, [2, 4]), (5, [5]), (6, [])]
)
def test_interval_n_probes_steps_n_2n_and_zero_none(interval, steps):
    assert [step for step in range(1, 6) if due(step, interval)] == steps


def test_norms_are_those_of_the_local_gradients():
    found, _, grads = probe(model())
    assert found["gradient_norms"].keys() == grads.keys()
    for name, grad in grads.items():
        norm = float(grad.double().norm())
        assert math.isclose(found["gradient_norms"][name], norm, rel_tol=1e-12)
    whole = torch.cat([g.flatten() for g in grads.values()]).double().norm()
    assert math.isclose(found["gradient_norm"], float(whole), rel_tol=1e-9)


def test_norms_are_taken_before_clipping():
    net = model()
    net(torch.randn(5, 40)).square().sum().backward()
    probes = LocalProbes(net.named_parameters(), interval=1)
    probes.before_intake()
    before = torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
    assert math.isclose(probes.after_step()["gradient_norm"], float(before), rel_tol=1e-5)


def test_samples_hold_at_most_256_values_of_each_parameter():
    net = model(width=400)
    net(torch.randn(2, 400)).sum().backward()
    probes = LocalProbes(net.named_parameters(), interval=1)
    probes.before_intake()
    assert probes.kept_values == 256 + 256 + 256 + 3
    assert sum(p.numel() for p in net.parameters()) > 100 * probes.kept_values
    torch.optim.SGD(net.parameters(), 0.1).step()
    values = {name: row["values"] for name, row in probes.after_step()["updates"].items()}
    assert values == {"0.weight": 256, "0.bias": 256, "1.weight": 256, "1.bias": 3}
    assert probes.kept_values == 0


@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 511, 1000, 10**9])
def test_positions_are_distinct_even_and_reach_both_ends(count):
    positions = sample_positions(count)
    assert len(positions) == min(count, 256)
    assert positions == sorted(set(positions))
    assert (positions[0], positions[-1]) == (0, count - 1)


def test_updates_are_those_of_the_sampled_values():
    found, before, grads = probe(model(), lr=0.5)
    for name, row in found["updates"].items():
        at = sample_positions(before[name].numel())
        change = (0.5 * grads[name]).flatten()[at].double()
        assert row["rms"] == pytest.approx(float(change.square().mean().sqrt()), rel=1e-4)
        assert row["max"] == pytest.approx(float(change.abs().max()), rel=1e-4)


def test_a_parameter_that_did_not_move_says_so():
    found, _, _ = probe(model(), lr=0.0)
    assert {row["changed"] for row in found["updates"].values()} == {0}
    assert {row["max"] for row in found["updates"].values()} == {0.0}


def test_a_frozen_parameter_has_an_update_sample_and_no_norm():
    net = model()
    net[0].bias.requires_grad_(False)
    found, _, _ = probe(net)
    assert "0.bias" not in found["gradient_norms"]
    assert found["updates"]["0.bias"]["changed"] == 0


def test_a_transposed_parameter_is_sampled_in_place():
    raw = torch.randn(300, 7).t()
    assert not raw.is_contiguous()
    sampled = diagnostics._sample(raw)
    assert torch.equal(sampled, raw.reshape(-1)[sample_positions(raw.numel())])


def test_bfloat16_updates_below_its_resolution_show_as_unchanged():
    net = model().bfloat16()
    net(torch.randn(5, 40).bfloat16()).sum().backward()
    probes = LocalProbes(net.named_parameters(), interval=1)
    probes.before_intake()
    torch.optim.SGD(net.parameters(), 1e-8).step()
    assert {row["changed"] for row in probes.after_step()["updates"].values()} == {0}


def test_a_local_shard_is_probed_and_not_the_whole():
    class Shard:
        grad = None

        def detach(self):
            return self

        def to_local(self):
            return torch.zeros(10)

    probes = LocalProbes([("w", Shard())], interval=1)
    probes.before_intake()
    assert probes.after_step()["updates"]["w"]["values"] == 10


def test_a_gradient_that_is_not_finite_stops_before_the_optimizer():
    def spoil(net):
        net[1].weight.grad[0, 0] = math.nan

    with pytest.raises(ContractError, match=r"non-finite-gradient: 1\.weight"):
        probe(model(), change=spoil)


def test_the_order_of_the_calls_is_checked():
    probes = LocalProbes(model().named_parameters(), interval=1)
    with pytest.raises(ContractError, match="without before_intake"):
        probes.after_step()


def test_probing_changes_neither_gradients_nor_weights():
    one = model()
    other = copy.deepcopy(one)
    torch.manual_seed(1)
    probe(one)
    torch.manual_seed(1)
    other(torch.randn(5, 40)).square().sum().backward()
    torch.optim.SGD(other.parameters(), 0.1).step()
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_record_takes_them_labels_them_and_the_verifier_accepts_them():
    found, _, _ = probe(model())
    document = records(steps=2)[1][0].model_dump(by_alias=True)
    record = TrainingRecord.model_validate({**document, "diagnostics": found})
    assert record.diagnostics.scope == "local, not global"
    told = " ".join(record.diagnostics.not_covered)
    assert "FP8 stores outside named_parameters" in told
    assert "EP-MP" in told
    assert list(verifychecks.record_checks(record)) == []


@pytest.mark.parametrize("interval", [0, 1, 2, 3])
def test_only_due_steps_of_a_run_have_diagnostics(interval):
    net, probes = model(), StepProbes(interval)
    optimizer, found = torch.optim.SGD(net.parameters(), 0.1), []
    for step in range(1, 7):
        net.zero_grad()
        net(torch.randn(5, 40)).square().mean().backward()
        probes.on_gradients(step, dict(net.named_parameters()))
        optimizer.step()
        probes.after_step(step, dict(net.named_parameters()))
        found.append(probes.take(step))
        assert probes.take(step) is None
    assert [step for step, one in enumerate(found, 1) if one] == [
        step for step in range(1, 7) if due(step, interval)
    ]


def test_diagnostics_are_never_attached_to_another_step():
    net, probes = model(), StepProbes(1)
    net(torch.randn(5, 40)).sum().backward()
    named = dict(net.named_parameters())
    probes.on_gradients(1, named)
    probes.after_step(1, named)
    with pytest.raises(ContractError, match="of step 1, asked for step 2"):
        probes.take(2)
