"""A mixture of experts on one process: weights in and out, gradients, steps, what is refused.

Every number here is of Core code with CPU stand-ins: `standins` lists them.
"""

from __future__ import annotations

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from test_hook import distance
from tiny import collection, hf_model, settings, tiny

from capture.core import dense, export, models, moe, moemodel
from capture.core.actor import CoreActor
from capture.core.errors import CheckpointError, ContractError, RefusedError
from capture.core.hook import PackWork, StepContext
from capture.core.objective import pack_inputs, policy_objective, response_logps
from capture.core.packing import plan
from capture.core.samples import Collection

NO_ROUTER = {"core__router_aux_loss_weight": 0.0, "core__router_z_loss_weight": 0.0}


def loaded(source=None, **changes) -> CoreActor:
    actor = CoreActor(settings(**{"model__family": "qwen3_moe", **changes}))
    actor.init(source or tiny("qwen3_moe"))
    return actor


def exported(actor) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in actor.export()}


def work_of(actor, samples, pack_tokens=None):
    step = plan(samples, world_size=1, optimizer_steps=1, pack_tokens=pack_tokens).steps[0]
    work = [PackWork(p, pack_inputs(p, samples)) for p in step.ranks[0]]
    return work, StepContext(actor.objective, step.denominators, step.auxiliary)


def gradients(actor, samples, pack_tokens=None) -> dict[str, torch.Tensor]:
    actor.module.zero_grads()
    actor.module.train_packs(*work_of(actor, samples, pack_tokens))
    return {name: p.grad.clone() for name, p in actor.named_parameters().items()}


# -- weights -------------------------------------------------------------------------------------


def test_weights_go_in_and_out_bitwise_and_change_their_layout_on_the_way():
    config, state = tiny("qwen3_moe")
    actor = loaded((config, state))
    out = exported(actor)
    assert out.keys() == state.keys()
    assert all(torch.equal(out[name], state[name]) for name in state)
    own = actor.named_parameters()["blocks.1.routed_experts.w_up_gate"]
    assert not torch.equal(own, state["model.layers.1.mlp.experts.gate_up_proj"])


def test_experts_may_come_one_by_one_and_are_exported_so():
    config, state = tiny("qwen3_moe")
    sliced = dict(export.per_expert(state.items()))
    assert "model.layers.0.mlp.experts.7.down_proj.weight" in sliced
    assert sliced["model.layers.1.mlp.experts.3.gate_proj.weight"].shape == (32, 64)
    out = exported(loaded((config, sliced)))
    assert all(torch.equal(out[name], state[name]) for name in state)


def test_an_export_is_a_folder_that_transformers_loads(tmp_path):
    from transformers import AutoModelForCausalLM

    config, state = tiny("qwen3_moe")
    actor = loaded((config, state))
    actor.train(collection(), 0)
    source = tmp_path / "source"
    config.save_pretrained(source)
    folder = export.write_hf(actor.export(), source, tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    out = exported(actor)
    assert again.keys() == out.keys()
    assert all(torch.equal(again[name], out[name]) for name in out)
    assert any(not torch.equal(state[name], out[name]) for name in out)
    hf, read = models.read(folder)
    assert all(torch.equal(moemodel.checked(hf, read)[name], out[name]) for name in out)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("topk", [1, 2, 8])
def test_core_computes_the_logits_of_the_hf_model(topk, normalised):
    config, state = tiny("qwen3_moe", num_experts_per_tok=topk, norm_topk_prob=normalised)
    tokens = torch.randint(1, 90, (1, 60), generator=torch.Generator().manual_seed(0))
    module = loaded((config, state)).module
    with torch.no_grad():
        wanted = hf_model(config, state)(tokens).logits
        found = module.model.eval()(tokens)
    assert float((wanted - found).abs().max()) < 2e-6 * float(wanted.abs().max())


def test_swapped_up_and_gate_projections_would_show_in_the_logits(monkeypatch):
    """The layout trap: the shapes are the same, so nothing else would notice."""
    config, state = tiny("qwen3_moe")
    right = loaded((config, state)).score(collection().samples)
    monkeypatch.setattr(moemodel, "to_core", lambda name, value: value.transpose(1, 2)
                        if name.endswith("down_proj") else value)  # fmt: skip
    wrong = loaded((config, state)).score(collection().samples)
    assert max(float(abs(a - b).max()) for a, b in zip(right, wrong, strict=True)) > 0.05


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("model.layers.1.mlp.gate.weight"), "missing weight .*mlp.gate.weight"),
        (lambda s: s.update({"model.extra": torch.ones(2)}), "unknown weight model.extra"),
        (lambda s: s.update({"model.norm.weight": torch.ones(3)}), r"shape \(3,\), not \(64,\)"),
        (lambda s: s.pop("model.layers.0.mlp.experts.5.up_proj.weight"),
         r"missing weight model.layers.0.mlp.experts.5.up_proj.weight"),
        (lambda s: s.pop("model.layers.0.mlp.experts.7.up_proj.weight"), "experts.7.up_proj"),
        (lambda s: s.update({"model.layers.0.mlp.experts.5.up_proj.weight": torch.ones(3, 64)}),
         "experts of several shapes"),
        (lambda s: [s.pop(n) for n in list(s) if ".experts.7." in n], r"shape \(7, 64, 64\), not"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_refused_before_any_is_loaded(change, message):
    config, state = tiny("qwen3_moe")
    actor = loaded((config, state))
    other = dict(export.per_expert(tiny("qwen3_moe", seed=1)[1].items()))
    change(other)
    with pytest.raises(CheckpointError, match=message):
        moe.load_hf(actor.module, config, other)
    assert all(torch.equal(value, state[name]) for name, value in actor.export())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tie_word_embeddings": True}, "a head tied"),
        ({"mlp_only_layers": [0]}, "layers without experts"),
        ({"decoder_sparse_step": 2}, "layers without experts"),
        ({"attention_bias": True}, "attention biases"),
        ({"hidden_act": "gelu"}, "hidden_act gelu"),
        ({"use_sliding_window": True, "sliding_window": 8}, "a sliding window"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
         "rope_type linear"),
        ({"num_experts": 2, "num_experts_per_tok": 4}, "more chosen experts"),
    ],
)  # fmt: skip
def test_a_configuration_that_core_would_hold_wrongly_is_refused(changes, message):
    config = copy.deepcopy(tiny("qwen3_moe")[0])
    for name, value in changes.items():
        setattr(config, name, value)
    with pytest.raises(RefusedError, match=message) as caught:
        moemodel.core_config(settings(), config)
    assert caught.value.id == "model-config"


def test_the_backend_is_chosen_by_the_models_own_configuration():
    assert models.backend(settings(), tiny("qwen3_moe")[0]) is moe
    assert models.backend(settings(model__family="qwen3_moe"), tiny("qwen3_moe")[0]) is moe
    assert models.backend(settings(), tiny("qwen3")[0]) is dense


# -- gradients -----------------------------------------------------------------------------------


def test_the_hook_adds_nothing_to_the_gradient():
    actor = loaded(**NO_ROUTER)
    samples = collection().samples
    found = gradients(actor, samples)
    actor.module.zero_grads()
    work, context = work_of(actor, samples)
    module = actor.module
    module._context = context
    module._train_mode()
    for number, item in enumerate(work):
        # Core's wrapper sums gradients over microbatches inside `no_sync`, as `train_batch` has it
        with module._train_microbatch_context(number, len(work)), module._pack_context(item):
            tokens, rows = torch.from_numpy(item.pack.tokens), torch.from_numpy(item.pack.positions)
            logits = module.model(tokens[None])
            logps, entropy = response_logps(logits, tokens[None], rows)
            loss, _ = policy_objective(
                logps, entropy, item.inputs, context.denominators, actor.objective
            )
            loss.backward()
    module.model.finalize_grad_reduce()
    direct = {name: p.grad.clone() for name, p in actor.named_parameters().items()}
    assert distance(found, direct) < 1e-6


def test_the_gradient_is_that_of_the_hf_model():
    """Without router losses: an implementation that shares no line with Core's."""
    config, state = tiny("qwen3_moe")
    actor = loaded((config, state), **NO_ROUTER)
    samples = collection().samples
    found = gradients(actor, samples)
    model = hf_model(config, state)
    work, context = work_of(actor, samples)
    for item in work:
        tokens, rows = torch.from_numpy(item.pack.tokens), torch.from_numpy(item.pack.positions)
        logps, entropy = response_logps(model(tokens[None]).logits, tokens[None], rows)
        policy_objective(logps, entropy, item.inputs, context.denominators, actor.objective)[
            0
        ].backward()
    names = moemodel.names(2)
    wanted = dict(model.named_parameters())
    assert distance(
        {names[name]: moemodel.to_hf(names[name], value, config) for name, value in found.items()},
        {names[name]: wanted[names[name]].grad for name in found},
    ) < 1e-5  # fmt: skip


@pytest.mark.parametrize("changes", [{}, NO_ROUTER])
def test_recomputation_changes_no_gradient(changes):
    samples = collection().samples
    plain = gradients(loaded(**changes), samples, pack_tokens=64)
    again = gradients(loaded(core__recompute=True, **changes), samples, pack_tokens=64)
    assert distance(plain, again) == 0.0


def test_packs_and_microbatches_change_no_policy_gradient():
    actor = loaded(**NO_ROUTER)
    samples = collection().samples
    eight = gradients(actor, samples)
    for tokens in (40, 10_000):
        assert distance(gradients(actor, samples, pack_tokens=tokens), eight) < 5e-6


def test_a_packed_sample_gets_the_log_probabilities_it_has_alone():
    samples = collection(3).samples
    alone = loaded().score(samples)
    packed = loaded(batch__pack_tokens=64).score(samples)
    for one, other in zip(alone, packed, strict=True):
        np.testing.assert_allclose(one, other, atol=5e-6, rtol=0)


def test_masking_responses_leaves_the_router_losses_as_they_are():
    """Core's own denominator is its label count: half the labels, twice the coefficient."""
    data = collection().samples
    idle = [dataclasses.replace(sample, advantage=0.0) for sample in data]
    few = []
    for sample in idle:
        mask = np.zeros(sample.response_len, bool)
        mask[0] = True
        few.append(dataclasses.replace(sample, loss_mask=mask))
    actor = loaded(core__router_aux_loss_weight=0.5)
    one, two = gradients(actor, idle), gradients(actor, few)
    assert max(float(value.abs().max()) for value in one.values()) > 0
    assert distance(one, two) == 0.0


# -- steps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack_tokens", [0, 64])
def test_scoring_gives_the_training_forwards_numbers(pack_tokens):
    actor = loaded(batch__pack_tokens=pack_tokens, core__recompute=True)
    result = actor.train(collection(), 0)[0]
    assert result.comparison.tokens == result.denominators.global_tokens
    assert result.comparison.max_abs == 0.0


def test_a_step_is_cores_adamw_on_the_clipped_gradient():
    actor = loaded(optimizer__max_grad_norm=0.5, optimizer__weight_decay=0.1)
    samples = collection().samples
    before = {name: p.detach().clone() for name, p in actor.named_parameters().items()}
    own = {name: p.grad.double() for name, p in actor.named_parameters().items()
           if gradients(actor, samples)}  # fmt: skip
    actor.module.zero_grads()
    result = actor.train(collection(), 0)[0]
    norm = math.sqrt(sum(float(value.square().sum()) for value in own.values()))
    assert result.gradient_norm == pytest.approx(norm, rel=1e-5)
    scale, rate, eps = 0.5 / (norm + 1e-6), result.lr_used, 1e-8
    for name, parameter in actor.named_parameters().items():
        g = own[name] * scale
        # the first step of AdamW: both moments are the gradient's own after their correction
        wanted = before[name].double() * (1 - rate * 0.1) - rate * g / (g.abs() + eps)
        clear = g.abs() > 1e-6  # where the sign of a rounding error decides nothing
        assert torch.allclose(parameter.double()[clear], wanted[clear], atol=1e-5), name


def test_a_resume_is_bitwise(tmp_path):
    actor = loaded(schedule__kind="cosine")
    for number in range(2):
        actor.train(collection(number), number)
    actor.save(tmp_path / "native", {"cursor": 5})
    actor.train(collection(2), 2)
    other = loaded(schedule__kind="cosine")
    assert other.restore(tmp_path / "native") == {"cursor": 5}
    other.train(collection(2), 2)
    one, two = exported(actor), exported(other)
    assert all(torch.equal(one[name], two[name]) for name in one)
    for key, value in actor.module.optim.states.items():
        assert torch.equal(value.to_local(), other.module.optim.states[key].to_local()), key


def spoil(actor) -> None:
    """Every gradient of the logits becomes NaN; the loss stays finite."""

    def hook(module, inputs, output):
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient * math.nan)

    actor.module.model.lm_head.w_out.register_forward_hook(hook)


def huge(data: Collection) -> Collection:
    samples = list(data.samples)
    samples[0] = dataclasses.replace(
        samples[0], advantage=3e38, loss_mask=np.ones(samples[0].response_len, bool),
        behaviour_logp=np.full(samples[0].response_len, -4.0),
    )  # fmt: skip
    return Collection(samples, 0)


@pytest.mark.parametrize("what", ["gradient", "loss", "skip"])
def test_a_step_that_must_not_be_taken_leaves_weights_and_state(what):
    kind = "skip_step_adamw" if what == "skip" else "adamw"
    actor = loaded(optimizer__kind=kind)
    actor.train(collection(), 0)
    before = exported(actor)
    states = {key: value.to_local().clone() for key, value in actor.module.optim.states.items()}
    data, check = collection(1), {"gradient": "non-finite-gradient", "loss": "non-finite-loss"}
    if what == "gradient":
        spoil(actor)
    if what == "loss":
        data = huge(data)
    if what == "skip":
        actor.module.optim._losses = [torch.tensor(-100.0)] * 80
        actor.module.optim._grad_norms = [torch.tensor(1.0)] * 80
    with pytest.raises(ContractError) as caught:
        actor.train(data, 1)
    assert caught.value.check == check.get(what, "optimizer-skip")
    assert actor.optimizer_step == 1
    after = exported(actor)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(torch.equal(states[key], value.to_local())
               for key, value in actor.module.optim.states.items())  # fmt: skip
    assert not actor.module.optim.main_grad


def test_plain_adamw_skips_no_step():
    actor = loaded()
    actor.module.optim._losses = [torch.tensor(-100.0)] * 80
    actor.module.optim._grad_norms = [torch.tensor(1.0)] * 80
    assert actor.train(collection(), 0)[0].step == 1


def test_a_reference_policy_scores_with_the_first_weights():
    actor = loaded(objective__kl_coef=0.1)
    first = actor.score(collection(9).samples)
    actor.train(collection(), 0)
    moved = actor.score(collection(9).samples)
    kept = actor.score(collection(9).samples, reference=True)
    assert all(np.array_equal(one, two) for one, two in zip(first, kept, strict=True))
    assert not np.array_equal(first[0], moved[0])


def test_diagnostics_take_gradients_from_where_core_keeps_them():
    from capture.core.diagnostics import LocalProbes

    one, two = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    one.grad = torch.full((3,), 2.0)
    two._main_grad_fp32 = torch.full((3,), 4.0)
    probes = LocalProbes([("one", one), ("two", two)], interval=1)
    probes.before_intake()
    found = probes.after_step()["gradient_norms"]
    assert found["two"] == 2 * found["one"]


# -- bfloat16 ------------------------------------------------------------------------------------


@pytest.fixture
def low(monkeypatch):
    """An actor in bfloat16 on a CPU: Core's optimizer is told that the weights lie on a GPU.

    What a GPU alone can show are its kernels; where weights, gradients and masters lie is the same.
    """
    from capture.core import support

    names = {torch.bfloat16: "torch.cuda.BFloat16Tensor", torch.float32: "torch.cuda.FloatTensor"}
    plain = torch.Tensor.type
    monkeypatch.setattr(
        torch.Tensor, "type", lambda self, *a, **o: plain(self, *a, **o) if a else names[self.dtype]
    )
    monkeypatch.setattr(support, "evaluate", lambda *a: None)

    def build(**changes):
        config = settings(model__family="qwen3_moe", **changes)
        model = config.model.model_copy(update={"dtype": "bfloat16"})
        actor = CoreActor(config.model_copy(update={"model": model}))
        actor.init(tiny("qwen3_moe"))
        return actor

    return build


def test_in_bfloat16_the_float32_weights_go_in_out_and_through_a_checkpoint(low, tmp_path):
    _, state = tiny("qwen3_moe")
    actor = low()
    assert all(p.dtype == torch.bfloat16 for p in actor.named_parameters().values())
    assert all(torch.equal(value, state[name]) for name, value in actor.export())
    rounded = actor.named_parameters()["lm_head.w_out.weight"]
    assert torch.equal(rounded, state["lm_head.weight"].bfloat16())
    norms = {}
    actor.on_gradients = lambda step, named: norms.update(
        {name: float(p._main_grad_fp32.norm()) for name, p in named.items()}
    )
    result = actor.train(collection(), 0)[0]
    assert result.comparison.max_abs == 0.0
    assert math.hypot(*norms.values()) == pytest.approx(result.gradient_norm, rel=1e-4)
    actor.save(tmp_path / "native")
    actor.train(collection(1), 1)
    other = low()
    other.restore(tmp_path / "native")
    other.train(collection(1), 1)
    one, two = exported(actor), exported(other)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], one["lm_head.weight"].bfloat16().float())


def test_in_bfloat16_a_reference_leaves_the_weights_as_they_were(low):
    actor = low(objective__kl_coef=0.1)
    first = actor.score(collection(9).samples)
    actor.train(collection(), 0)
    before, weights = exported(actor), actor.score(collection(9).samples)
    kept = actor.score(collection(9).samples, reference=True)
    assert all(np.array_equal(one, two) for one, two in zip(first, kept, strict=True))
    again = actor.score(collection(9).samples)
    assert all(np.array_equal(one, two) for one, two in zip(weights, again, strict=True))
    assert all(torch.equal(value, before[name]) for name, value in actor.export())
