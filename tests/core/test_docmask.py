"""Which attention keeps documents apart: the mask here, PyTorch's variable-length one on a GPU."""

from __future__ import annotations

import inspect
import itertools
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from tiny import collection, settings, tiny

from capture.core import docmask
from capture.core.actor import CoreActor
from capture.core.errors import RefusedError
from capture.core.packing import make_pack

BF16, F32 = torch.bfloat16, torch.float32


def loop(q, k, v, bounds, scale, whole=False):
    """Variable-length attention as a loop over documents, [T, H, D] each."""
    parts = []
    edges = [0, len(q)] if whole else bounds.tolist()
    for start, end in itertools.pairwise(edges):
        rows = [x[start:end].transpose(0, 1)[None] for x in (q, k, v)]
        parts.append(
            F.scaled_dot_product_attention(*rows, is_causal=True, scale=scale, enable_gqa=True)
        )
    return torch.cat([part[0].transpose(0, 1) for part in parts])


def as_in_2_10(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, return_aux=None):
    assert is_causal
    assert q.shape == k.shape == v.shape
    assert max_q == max_k == int(cu_seq_q.diff().max())
    return loop(q, k, v, cu_seq_q, None)


def as_in_2_11(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
    assert window_size == (-1, 0)
    assert q.shape == k.shape == v.shape
    return loop(q, k, v, cu_seq_q, scale)


def as_in_2_13(
    q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1), enable_gqa=False
):
    assert window_size == (-1, 0)
    assert enable_gqa == (q.shape != k.shape)
    return loop(q, k, v, cu_seq_q, scale)


def across(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
    return loop(q, k, v, cu_seq_q, scale, whole=True)


def use(monkeypatch, kernel) -> None:
    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", kernel)


@pytest.fixture(autouse=True)
def _import():
    import torch.nn.attention.varlen  # noqa: F401


def operand(dtype=BF16, cuda=True, dim=64):
    return SimpleNamespace(
        is_cuda=cuda, dtype=dtype, shape=(1, 8, 4, dim), device=torch.device("cuda", 0)
    )


def test_only_low_precision_on_a_gpu_goes_without_a_mask(monkeypatch):
    way = docmask.varlen_dtype
    for dtype in (BF16, torch.float16):
        assert way(*[operand(dtype)] * 3) is dtype
    assert way(*[operand(F32)] * 3) is None
    assert way(*[operand(cuda=False)] * 3) is None
    assert way(*[operand(dim=512)] * 3) is None
    assert way(operand(F32), operand(BF16), operand(BF16)) is None
    # autocast casts the operands of attention, whatever they are
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind == "cuda")
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda _: BF16)
    assert way(operand(F32), operand(BF16), operand(F32)) is BF16


@pytest.mark.parametrize("kernel", [as_in_2_10, as_in_2_11, as_in_2_13])
@pytest.mark.parametrize(("heads", "scale"), [(2, None), (4, 0.3)])
def test_every_signature_gives_the_numbers_of_the_mask(monkeypatch, kernel, heads, scale):
    use(monkeypatch, kernel)
    made = torch.Generator().manual_seed(0)
    lengths = (3, 1, 5)
    bounds = torch.tensor([0, 3, 4, 9], dtype=torch.int32)
    mask = docmask.document_mask(bounds, 9)
    results = []
    for way in (
        lambda *x: docmask.masked(*x, mask, scale),
        lambda *x: docmask.varlen(*x, bounds, max(lengths), scale),
    ):
        made.manual_seed(0)
        leaves = [
            torch.randn(1, 9, h, 8, dtype=torch.float64, generator=made).requires_grad_()
            for h in (heads, 2, 2)
        ]
        out = way(*leaves)
        results.append([out, *torch.autograd.grad(out.pow(2).sum(), leaves)])
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=1e-12)


def test_the_installed_pytorch_has_one_of_these_signatures():
    kernel, named = docmask._varlen_kernel()
    assert named.items() >= {"window_size": (-1, 0)}.items() or named["is_causal"]
    first = list(inspect.signature(kernel).parameters)[:7]
    assert first == ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]


def test_packs_and_single_documents_take_the_kernel_and_keep_their_numbers(monkeypatch):
    source = tiny()
    samples = collection(seed=3, count=4).samples
    packs = [make_pack(samples, [0, 1, 2, 3]), make_pack(samples, [1])]

    def logps():
        actor = CoreActor(settings())
        actor.init(source)
        return [actor.module.pack_logps(pack, temperature=1.0)[0].detach() for pack in packs]

    with_mask = logps()
    calls = []

    def counted(*args, **named):
        calls.append(args[3].tolist())
        return as_in_2_13(*args, **named)

    counted.__signature__ = inspect.signature(as_in_2_13)
    use(monkeypatch, counted)
    monkeypatch.setattr(docmask, "varlen_dtype", lambda q, k, v: F32)
    without = logps()
    lengths = [len(samples[i].tokens) for i in range(4)]
    several = torch.tensor([0, *lengths]).cumsum(0).tolist()
    assert calls == [several] * 2 + [[0, lengths[1]]] * 2  # two layers each
    for one, other in zip(with_mask, without, strict=True):
        assert torch.allclose(one, other, atol=2e-6)


def test_what_layers_share_is_made_anew_for_other_documents():
    """Of one length each: a mask or bounds of the pack before would fit, and be wrong."""
    own, cpu = docmask.DocumentAttention, torch.device("cpu")
    for lengths in ([3, 5], [4, 4], [1, 7], [4, 4]):
        bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        mask = own._mask(None, bounds, 8, cpu)
        assert torch.equal(mask, docmask.document_mask(bounds, 8))
        assert own._mask(None, bounds, 8, cpu) is mask
    for rows, length in ((2, 6), (3, 4), (3, 5), (2, 6)):
        found = own._rows(None, rows, length, cpu)
        assert found.tolist() == [length * i for i in range(rows + 1)]
        assert own._rows(None, rows, length, cpu) is found


def test_the_check_passes_the_same_attention_and_refuses_another(monkeypatch):
    use(monkeypatch, as_in_2_13)
    gaps = docmask.check("cpu", lengths=(1, 7, 4))
    assert gaps.keys() == {f"{way} {x}" for way in ("mask", "varlen") for x in (
        "out", "dq", "dk", "dv"
    )}  # fmt: skip
    assert 0 < gaps["varlen out"] < 0.05
    use(monkeypatch, across)
    with pytest.raises(RefusedError, match="variable-length attention: out"):
        docmask.check("cpu", lengths=(1, 7, 4))
