"""The FP32-output head: what it computes, what it leaves as it was, and what it cannot replace."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from olmo_core.nn.lm_head import LMHead, LMHeadConfig, LMHeadType, LMLossImplementation
from tiny import VOCABULARY, collection, hf_model, settings, tiny
from torch import nn

from capture.core import fp32head
from capture.core.actor import CoreActor
from capture.core.engines.transformers_engine import TransformersEngine
from capture.core.errors import RefusedError

LOW = [torch.bfloat16, torch.float16]


def layer(dtype=torch.float32, wide: int = 64, words: int = 300) -> nn.Linear:
    torch.manual_seed(1)
    made = nn.Linear(wide, words, bias=False)
    nn.init.normal_(made.weight, std=0.4)
    return made.to(dtype)


def rows(*shape: int, dtype=torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(*shape, 64, generator=generator).to(dtype).requires_grad_()


def swapped(dtype=torch.float32) -> nn.Linear:
    made = layer(dtype)
    fp32head._swap(made)
    return made


def test_logits_are_the_float32_sums_of_the_low_precision_operands():
    inputs, own, ordinary = rows(40, dtype=torch.bfloat16), swapped(torch.bfloat16), layer()
    ordinary.to(torch.bfloat16)
    exact = inputs.double() @ ordinary.weight.double().t()
    fine, coarse, exact = own(inputs).detach(), ordinary(inputs).detach(), exact.detach()
    assert (fine.dtype, coarse.dtype) == (torch.float32, torch.bfloat16)
    assert fine.untyped_storage().nbytes() == 2 * coarse.untyped_storage().nbytes()
    scale = float(exact.abs().max())
    assert float((fine - exact).abs().max()) < 64 * 2**-24 * scale
    errors = [
        float((torch.log_softmax(one.float(), -1) - torch.log_softmax(exact, -1)).abs().mean())
        for one in (fine, coarse)
    ]
    assert errors[0] * 1000 < errors[1]


def test_on_a_gpu_it_is_one_product_with_another_output_type(monkeypatch):
    """Without a GPU: shapes and dtypes only, which PyTorch works out for tensors without memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    calls, product = [], torch.mm
    monkeypatch.setattr(
        torch, "mm", lambda *inputs, **named: calls.append(named) or product(*inputs, **named)
    )
    with FakeTensorMode(), torch.no_grad():
        own = nn.Linear(8, 20, bias=False, device="meta", dtype=torch.bfloat16)
        own.weight = nn.Parameter(torch.empty(20, 8, device="cuda", dtype=torch.bfloat16))
        fp32head._swap(own)
        logits = own(torch.empty(2, 3, 8, device="cuda", dtype=torch.bfloat16))
    assert calls == [{"out_dtype": torch.float32}]
    assert (logits.dtype, tuple(logits.shape)) == (torch.float32, (2, 3, 20))


@pytest.mark.parametrize("dtype", LOW)
def test_the_backward_is_bitwise_two_ordinary_products_of_the_rounded_gradient(dtype):
    gradient = torch.randn(5, 8, 300, generator=torch.Generator().manual_seed(3))
    found = []
    for made in (swapped(dtype), layer(dtype)):
        inputs = rows(5, 8, dtype=dtype)
        logits = made(inputs)
        logits.backward(gradient.to(logits.dtype))
        assert inputs.grad.dtype == made.weight.grad.dtype == dtype
        found.append((inputs.grad, made.weight.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("dtype", LOW)
def test_autocast_chooses_the_operands_of_float32_weights(dtype):
    gradient = torch.randn(6, 300, generator=torch.Generator().manual_seed(3))
    found = []
    for made in (swapped(), layer()):
        inputs = rows(6)
        with torch.autocast("cpu", dtype=dtype):
            logits = made(inputs)
        logits.backward(gradient.to(logits.dtype))
        assert made.weight.dtype == made.weight.grad.dtype == inputs.grad.dtype == torch.float32
        found.append((logits, inputs.grad, made.weight.grad))
    assert (found[0][0].dtype, found[1][0].dtype) == (torch.float32, dtype)
    # the ordinary one is rounded once more, from sums in another order
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(found[0][0], found[1][0].float(), rtol=unit, atol=1e-3 * unit)
    assert torch.equal(found[0][1], found[1][1])
    assert torch.equal(found[0][2], found[1][2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wider_operands_pass_through_as_before(dtype):
    inputs = rows(3, 4, dtype=dtype)
    with torch.autocast("cpu", enabled=False):
        assert torch.equal(swapped(dtype)(inputs), layer(dtype)(inputs))


def test_a_second_derivative_is_refused_in_words():
    own, inputs = swapped(torch.bfloat16), rows(4, dtype=torch.bfloat16)
    loss = own(inputs).square().sum()
    with pytest.raises(RefusedError, match="first-order gradients only"):
        torch.autograd.grad(loss, inputs, create_graph=True)


def test_gradients_that_nobody_asked_for_are_not_computed():
    own, inputs = swapped(torch.bfloat16), rows(4, dtype=torch.bfloat16)
    own.weight.requires_grad_(False)
    own(inputs).sum().backward()
    assert own.weight.grad is None
    assert inputs.grad is not None


def actor_of(source=None, **changes) -> CoreActor:
    actor = CoreActor(settings(**changes))
    actor.init(source or tiny())
    return actor


HEAD = {"core__fp32_lm_head": True}
BF16 = {"model__dtype": "bfloat16"}


@pytest.mark.parametrize("form", ["core__fp32_lm_head", "trainer__fp32_lm_head"])
def test_names_dtype_and_export_stay_as_they_were_bit_by_bit(form):
    source = tiny()
    own, ordinary = actor_of(source, **BF16, **{form: True}), actor_of(source, **BF16)
    assert fp32head.installed(own.module.model)
    assert not fp32head.installed(ordinary.module.model)
    states = [one.module.model.state_dict() for one in (own, ordinary)]
    assert list(states[0]) == list(states[1])
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert all(states[0][name].dtype == states[1][name].dtype for name in states[0])
    exported = dict(own.export())
    assert exported.keys() == source[1].keys()
    assert all(torch.equal(exported[name], source[1][name]) for name in exported)


def test_a_mixture_of_experts_takes_the_head_too():
    """Core code with CPU stand-ins, in float32: in bfloat16 its optimizer needs CUDA."""
    source, data = tiny("qwen3_moe"), collection()
    changes = {"model__family": "qwen3_moe"}
    own, ordinary = actor_of(source, **changes, **HEAD), actor_of(source, **changes)
    head = own.module.model.lm_head
    assert fp32head.installed(own.module.model)
    scores = [np.concatenate(one.score(data.samples)) for one in (own, ordinary)]
    np.testing.assert_array_equal(*scores)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert head(rows(1, 4)).dtype == torch.float32
    before = {name: value.clone() for name, value in own.export()}
    assert before.keys() == source[1].keys()
    own.train(data, 0)
    assert not torch.equal(dict(own.export())["lm_head.weight"], before["lm_head.weight"])


def test_installing_moves_no_weight_and_twice_is_once():
    model = actor_of().module.model
    weight = model.lm_head.w_out.weight
    place = weight.data_ptr()
    for _ in range(2):
        fp32head.install(model)
        assert model.lm_head.w_out.weight is weight
        assert weight.data_ptr() == place
    fp32head.remove(model)
    assert type(model.lm_head.w_out) is nn.Linear


@pytest.mark.parametrize("tied", [False, True])
def test_a_step_in_bfloat16_scores_closer_and_trains(tied):
    source, data = tiny(tie_word_embeddings=tied), collection()
    own, ordinary = actor_of(source, **BF16, **HEAD), actor_of(source, **BF16)
    model = own.module.model
    if tied:
        assert model.lm_head.w_out.weight is model.embeddings.weight
    found = []
    for actor in (own, ordinary):
        kept = {}
        hook = actor.module.model.lm_head.w_out.register_forward_hook(
            lambda _, inputs, output, kept=kept: kept.update(x=inputs[0], logits=output)
        )
        actor.score(data.samples[:1])
        hook.remove()
        operands = kept["x"].bfloat16().double(), source[1]["lm_head.weight"].bfloat16().double()
        exact = torch.log_softmax(operands[0] @ operands[1].t(), -1)
        found.append(float((torch.log_softmax(kept["logits"].double(), -1) - exact).abs().mean()))
        assert kept["logits"].dtype == (torch.float32 if actor is own else torch.bfloat16)
        before = {name: value.clone() for name, value in actor.export()}
        result = actor.train(data, 0)[0]
        assert np.isfinite(result.objective)
        assert any(not torch.equal(value, before[name]) for name, value in actor.export())
    assert found[0] * 100 < found[1]


@pytest.mark.parametrize("keep", [3, torch.tensor([[4, 1], [0, 6]])])
def test_kept_rows_are_those_of_the_whole_sequence(keep):
    head = LMHeadConfig(bias=False).build(d_model=64, vocab_size=300)
    model = nn.Module()
    model.lm_head = head
    fp32head.install(model)
    inputs = rows(2, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        whole, part = head(inputs), head(inputs, logits_to_keep=keep)
    places = torch.tensor([[4, 5, 6], [4, 5, 6]]) if isinstance(keep, int) else keep
    expected = whole.gather(1, places[..., None].expand(-1, -1, 300))
    assert part.dtype == torch.float32
    torch.testing.assert_close(part, expected, rtol=0, atol=1e-5)


def test_the_default_loss_of_core_takes_the_float32_logits():
    head = LMHeadConfig(bias=False).build(d_model=64, vocab_size=300)
    model = nn.Module()
    model.lm_head = head
    fp32head.install(model)
    labels = torch.randint(300, (2, 7), generator=torch.Generator().manual_seed(5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = head(rows(2, 7), labels=labels, return_logits=True)
    expected = F.cross_entropy(out.logits.double().flatten(0, 1), labels.flatten())
    assert out.logits.dtype == torch.float32
    assert abs(out.loss.item() - expected.item()) < 1e-5


def with_head(head: nn.Module | None) -> nn.Module:
    model = nn.Module()
    model.lm_head = head
    return model


def sharded() -> LMHead:
    head = LMHeadConfig(bias=False).build(d_model=8, vocab_size=9)
    head._tp_mesh = object()
    return head


def odd_layer() -> LMHead:
    head = LMHeadConfig(bias=False).build(d_model=8, vocab_size=9)
    head.w_out = nn.Sequential(head.w_out)
    return head


@pytest.mark.parametrize(
    ("make", "row"),
    [
        (lambda: None, "fp32-head-kind"),
        (
            lambda: LMHeadConfig(name=LMHeadType.normalized).build(d_model=8, vocab_size=9),
            "fp32-head-kind",
        ),
        (
            lambda: LMHeadConfig(
                bias=False, loss_implementation=LMLossImplementation.fused_linear
            ).build(d_model=8, vocab_size=9),
            "fp32-head-loss",
        ),
        (sharded, "fp32-head-tp"),
        (lambda: LMHeadConfig(bias=True).build(d_model=8, vocab_size=9), "fp32-head-bias"),
        (odd_layer, "fp32-head-kind"),
    ],
    ids=["none", "normalized", "fused", "sharded", "bias", "other-layer"],
)
def test_what_the_head_cannot_replace_is_refused(make, row):
    model = with_head(make())
    kinds = [type(part) for part in model.modules()]
    with pytest.raises(RefusedError) as caught:
        fp32head.install(model)
    assert caught.value.id == row
    assert [type(part) for part in model.modules()] == kinds


def test_fsdp_around_the_head_changes_neither_logits_nor_gradients():
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    owned = not dist.is_initialized()  # an actor of experts keeps one of its own
    if owned:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        found = []
        for shard in (False, True):
            model = with_head(LMHeadConfig(bias=False).build(d_model=64, vocab_size=300))
            model.lm_head.w_out.load_state_dict(layer().state_dict())
            if shard:
                policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
                mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
                fully_shard(model.lm_head, mesh=mesh, mp_policy=policy)
            else:
                model.bfloat16()
            fp32head.install(model)
            logits = model.lm_head(rows(1, 5).detach().bfloat16())
            logits.square().sum().backward()
            gradient = model.lm_head.w_out.weight.grad
            found.append((logits, gradient.full_tensor() if shard else gradient.float()))
        assert found[1][0].dtype == torch.float32
        assert torch.equal(found[0][0], found[1][0])
        assert torch.equal(found[0][1], found[1][1].float())
    finally:
        if owned:
            dist.destroy_process_group()


def engine(fp32: bool) -> TransformersEngine:
    model = hf_model(*tiny()).to(torch.bfloat16)
    if fp32:
        fp32head.install_serving(model)
    return TransformersEngine(model, eos_ids=[3])


def test_the_serving_side_scores_closer_and_takes_the_same_weights():
    fine, coarse = engine(True), engine(False)
    tokens = [5, 6, 7, 8, 9, 10, 11, 12]
    hidden = fine.model.model(input_ids=torch.tensor([tokens])).last_hidden_state[0, 3:-1]
    exact = torch.log_softmax(hidden.double() @ fine.model.lm_head.weight.double().t(), -1)
    exact = exact.gather(-1, torch.tensor(tokens)[4:, None])[:, 0].detach().numpy()
    errors = [np.abs(one.score(tokens, 4) - exact).max() for one in (fine, coarse)]
    assert errors[0] < 1e-5 < 1e-3 < errors[1]
    for one in (fine, coarse):
        one.load(tiny(seed=7)[1].items(), 1)
    assert not fine.compare(dict(coarse.model.state_dict()))
    fp32head.remove(fine.model)
    np.testing.assert_array_equal(fine.score(tokens, 4), coarse.score(tokens, 4))


@pytest.mark.parametrize("trainer", [False, True])
def test_an_engine_of_a_run_has_the_head_that_its_trainer_has(trainer, tmp_path):
    from capture.core import engines

    hf_model(*tiny()).save_pretrained(tmp_path)
    config = settings(core__fp32_lm_head=trainer, engine__dtype="bfloat16")
    made = engines.build(config, tmp_path, eos_id=3, pad_id=0)
    assert fp32head.installed(made.model) == trainer
    assert len(made.generate([[4, 5]], max_new_tokens=3)[0].tokens)


def test_a_serving_model_with_another_output_layer_is_refused():
    model = hf_model(*tiny())
    model.lm_head = nn.Linear(64, VOCABULARY, bias=True)
    with pytest.raises(RefusedError, match="bias"):
        fp32head.install_serving(model)
    model.set_output_embeddings(None)
    with pytest.raises(RefusedError, match="no vocabulary head"):
        fp32head.install_serving(model)
