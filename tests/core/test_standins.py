"""The functions that stand in for Core's CUDA code: what they compute, and where they are put."""

from __future__ import annotations

import torch
from test_moe import loaded
from tiny import settings

from capture.core import standinops, standins


def test_permute_sorts_rows_by_expert_and_unpermute_weighs_them_back():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(11, 5, generator=generator, dtype=torch.float64)
    ids = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(11)])
    found, back = standinops.permute(inp=rows, routing_map=ids.int(), num_out_tokens=22)
    wanted = [rows[t] for expert in range(4) for t in range(11) for k in range(2)
              if ids[t, k] == expert]  # fmt: skip
    assert torch.equal(found, torch.stack(wanted))
    weights = torch.rand(11, 2, generator=generator)
    merged = standinops.unpermute(inp=found, row_id_map=back, restore_shape=rows.shape,
                                  merging_probs=weights)  # fmt: skip
    assert torch.allclose(merged, rows * weights.sum(1, keepdim=True).double(), atol=1e-6)
    one, back = standinops.permute(inp=rows, routing_map=ids[:, :1].int(), num_out_tokens=11)
    assert torch.equal(standinops.unpermute(one, back, rows.shape), rows)


def test_the_gradients_of_permute_and_unpermute_are_those_of_their_definition():
    rows = torch.randn(6, 3, requires_grad=True)
    ids = torch.tensor([[0, 2], [1, 0], [2, 1], [0, 1], [1, 2], [2, 0]])
    weights = torch.rand(6, 2, requires_grad=True)

    def merged(inp, probs):
        found, back = standinops.permute(inp, ids.int(), 12)
        return standinops.unpermute(found.square(), back, inp.shape, probs)

    def plainly(inp, probs):
        return (inp.square()[:, None] * probs[..., None]).sum(1)

    out = torch.randn(6, 3)
    one = torch.autograd.grad((merged(rows, weights) * out).sum(), (rows, weights))
    two = torch.autograd.grad((plainly(rows, weights) * out).sum(), (rows, weights))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(one, two, strict=True))


def test_an_expert_without_tokens_and_a_rank_without_rows_are_fine():
    rows = torch.zeros(0, 3, requires_grad=True)
    found, back = standinops.permute(rows, torch.zeros(0, 1).int(), 0)
    assert standinops.unpermute(found, back, rows.shape).shape == (0, 3)


def test_the_label_counts_what_is_replaced():
    assert standins.label("cpu", 1) == "Core code with CPU stand-ins for 6 functions"
    assert standins.label("cpu", 2) == "Core code with CPU stand-ins for 7 functions"
    assert standins.label_of(settings()) == ""
    assert standins.label_of(settings(model__family="qwen3_moe")) == standins.label("cpu", 1)
    assert all(one.reason for one in standins.REGISTRY)


def test_on_a_gpu_only_permutations_and_the_activation_of_scoring_are_replaced(monkeypatch):
    monkeypatch.setattr(standins, "transformer_engine", lambda: False)
    names = [one.name for one in standins.needed("cuda", 2)]
    assert names == ["moe_permute_no_compile", "moe_unpermute_no_compile", "swiglu_valid_prefix"]
    assert standins.label("cuda", 1) == "Core code with PyTorch stand-ins for 3 functions"
    monkeypatch.setattr(standins, "transformer_engine", lambda: True)
    assert [one.name for one in standins.needed("cuda", 1)] == ["swiglu_valid_prefix"]
    assert standins.label("cuda", 1) == "Core code with PyTorch stand-ins for 1 function"


def test_the_activation_of_scoring_is_the_one_of_training():
    """On a GPU Core would take another kernel where no gradient is asked for."""
    rows = torch.randn(7, 64, dtype=torch.bfloat16)
    experts = loaded().module.model.blocks["0"].routed_experts
    wanted = experts.chunk_and_activate(rows, num_elements=torch.tensor(7))
    assert torch.equal(standinops.swiglu(rows, torch.tensor(7)), wanted)


def test_every_replaced_name_exists_in_core():
    """What the registry says is replaced is what `install` replaces, where Core looks it up."""
    from olmo_core.nn.ddp.block import OLMoDDPTransformerBlock
    from olmo_core.nn.moe.v2 import ep_sync_1d, no_ep, routed_experts

    standinops.install("cpu", 2, torch.float32)
    for module in (no_ep, ep_sync_1d):
        assert module.moe_permute_no_compile is standinops.permute
        assert module.moe_unpermute_no_compile is standinops.unpermute
        assert module.torch.cuda.current_stream() is standinops.NO_STREAM
        assert module.torch.cuda.stream(None) is standinops.NO_STREAM
        assert module.torch.arange is torch.arange
    assert OLMoDDPTransformerBlock.get_dense_stream(None) is standinops.NO_STREAM
    assert routed_experts.requires_host_side_split_sizes()
    assert torch.cuda.current_stream is not module.torch.cuda.current_stream


def test_core_runs_its_own_experts():
    """No stand-in for them: F.grouped_mm works on a CPU, and the loop over experts agrees."""
    from olmo_core.nn.moe.v2.routed_experts import RoutedExperts

    assert RoutedExperts.forward.__module__ == RoutedExperts.__module__
    actor = loaded()
    experts = actor.module.model.blocks["0"].routed_experts
    rows = torch.randn(10, 64)
    counts = torch.tensor([3, 0, 5, 0, 0, 1, 1, 0])
    with torch.no_grad():
        found = experts(rows, counts)
        wanted, start = [], 0
        for expert, count in enumerate(counts.tolist()):
            part = rows[start : start + count]
            up, gate = (part @ experts.w_up_gate[expert].T).chunk(2, dim=-1)
            wanted.append((up * torch.nn.functional.silu(gate)) @ experts.w_down[expert])
            start += count
    assert torch.allclose(found, torch.cat(wanted), atol=1e-5)
