"""HF weights in and out of a dense Core model, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from tiny import hf_model, settings, tiny

from capture.core import dense, docmask, models
from capture.core.actor import CoreActor
from capture.core.errors import CheckpointError, RefusedError

FAMILIES = ("llama", "qwen3", "olmo2")


def loaded(source, **changes) -> CoreActor:
    actor = CoreActor(settings(**changes))
    actor.init(source)
    return actor


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_go_in_and_out_bitwise(family, tied):
    config, state = tiny(family, tie_word_embeddings=tied)
    out = dict(loaded((config, state)).export())
    assert set(state) - set(out) == ({"lm_head.weight"} if tied else set())
    assert set(out) <= set(state)
    for name, value in out.items():
        assert torch.equal(value, state[name]), name


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_core_computes_the_logits_of_the_hf_model(family, tied):
    config, state = tiny(family, tie_word_embeddings=tied)
    tokens = torch.randint(1, 90, (3, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = hf_model(config, state)(tokens).logits
        found = loaded((config, state)).module.model(tokens)
    assert float((wanted - found).abs().max()) < 1e-6 * float(wanted.abs().max())


def test_a_trained_model_goes_back_into_hf():
    from tiny import collection

    source = tiny()
    actor = loaded(source)
    actor.train(collection(), 0)
    again = loaded((source[0], dict(actor.export())))
    for (name, one), (_, two) in zip(actor.export(), again.export(), strict=True):
        assert torch.equal(one, two), name
    assert not torch.equal(dict(actor.export())["lm_head.weight"], source[1]["lm_head.weight"])


def test_an_hf_folder_is_read(tmp_path):
    from safetensors.torch import save_file

    config, state = tiny()
    config.save_pretrained(tmp_path)
    names = sorted(state)
    save_file({name: state[name] for name in names[:7]}, tmp_path / "model-1.safetensors")
    save_file({name: state[name] for name in names[7:]}, tmp_path / "model-2.safetensors")
    out = dict(loaded(tmp_path).export())
    assert all(torch.equal(out[name], state[name]) for name in state)
    save_file({names[0]: state[names[0]]}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="is in another file too"):
        dense.read_hf(tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors"):
        dense.read_hf(tmp_path)
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        dense.read_hf(tmp_path / "nothing")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"model_type": "zork"}'])
def test_a_configuration_that_cannot_be_read_is_one_line_that_names_it(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read: ") as caught:
        dense.read_hf(tmp_path)
    assert "\n" not in str(caught.value)


def test_bfloat16_weights_come_back_exactly_after_the_cast_back():
    config, state = tiny()
    state = {name: value.bfloat16() for name, value in state.items()}
    for name, value in loaded((config, state)).export():
        assert value.dtype == torch.float32
        assert torch.equal(value.bfloat16(), state[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("model.norm.weight"), "missing weight model.norm.weight"),
        (lambda s: s.update({"model.extra": torch.ones(2)}), "unknown weight model.extra"),
        (lambda s: s.update({"model.norm.weight": torch.ones(3)}), r"shape \(3,\), not \(64,\)"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_any_is_loaded(change, message):
    source = tiny()
    actor = loaded(source)
    before = {name: value.clone() for name, value in actor.export()}
    other = dict(tiny(seed=1)[1])
    change(other)
    with pytest.raises(CheckpointError, match=message):
        dense.load_hf(actor.module, source[0], other)
    assert all(torch.equal(value, before[name]) for name, value in actor.export())


def test_a_tied_head_of_its_own_is_refused():
    config, state = tiny(tie_word_embeddings=True)
    state["lm_head.weight"] = state["lm_head.weight"] + 1
    with pytest.raises(CheckpointError, match="tied"):
        loaded((config, state))


def test_without_the_model_type_core_puts_norms_in_each_others_place():
    """Why the type is always given and loading is strict: Core raises nothing by itself."""
    from olmo_core.nn.hf.convert import convert_state_from_hf

    config, state = tiny()
    named = convert_state_from_hf(config, state, model_type="llama")
    silent = convert_state_from_hf(config, state)
    assert named.keys() != silent.keys() or any(
        not torch.equal(named[name], silent[name]) for name in named
    )


def test_building_a_train_module_loses_weights_that_were_there():
    """Why weights are loaded after it."""
    source = tiny()
    core = dense.core_config(source[0]).build(init_device="cpu")
    with torch.no_grad():
        core.lm_head.w_out.weight.fill_(7.0)
    from olmo_core.optim import AdamWConfig
    from olmo_core.train.train_module import TransformerTrainModule

    TransformerTrainModule(core, AdamWConfig(), 8, 8, device=torch.device("cpu"))
    assert not (core.lm_head.w_out.weight == 7.0).any()


def test_a_mixture_of_experts_is_not_taken_by_the_dense_module():
    source = tiny("mixtral", num_local_experts=4, num_experts_per_tok=2)
    with pytest.raises(RefusedError, match="no tested weight mapping of experts") as caught:
        loaded(source)
    assert caught.value.id == "moe-family"
    with pytest.raises(RefusedError, match="needs the MoE backend") as caught:
        loaded(source, model__backend="dense")
    assert caught.value.id == "backend-experts"


def test_a_dense_run_gets_the_dense_module():
    config, _ = tiny()
    assert models.backend(settings(), config) is dense


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention biases"),
        ({"mlp_bias": True}, "feed-forward biases"),
        ({"hidden_act": "gelu"}, "hidden_act gelu"),
        ({"attention_dropout": 0.1}, "dropout"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "rope_type linear",
        ),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1234.5}}, "rope_theta"),
    ],
)
def test_a_configuration_that_core_would_hold_wrongly_is_refused(changes, message):
    config, _ = tiny(**changes)
    with pytest.raises(RefusedError, match=message):
        dense.core_config(config)


def test_a_family_without_a_tested_mapping_is_refused():
    import transformers

    with pytest.raises(RefusedError, match="qwen2"):
        dense.core_config(transformers.Qwen2Config())


def attention_model(**changes):
    from olmo_core.nn.attention import AttentionBackendName
    from olmo_core.nn.transformer import TransformerConfig

    return TransformerConfig.llama_like(
        d_model=64, vocab_size=90, n_layers=2, n_heads=4,
        attn_backend=AttentionBackendName.torch, **changes,
    ).build(init_device="meta")  # fmt: skip


def test_every_attention_of_a_model_gets_the_document_mask():
    model = attention_model()
    assert docmask.install(model) == 2
    kinds = {type(m) for m in model.modules() if "Attention" in type(m).__name__}
    assert docmask.DocumentAttention in kinds


def test_attention_that_cannot_be_masked_is_refused_at_construction():
    from olmo_core.nn.attention import SlidingWindowAttentionConfig

    window = SlidingWindowAttentionConfig(pattern=[4, -1], force_full_attention_on_last_layer=False)
    with pytest.raises(RefusedError, match="sliding window"):
        docmask.install(attention_model(sliding_window=window))
    model = attention_model()
    model.blocks["1"].attention.backend.dropout_p = 0.1
    with pytest.raises(RefusedError, match=r"blocks\.1\.attention: no document mask.*dropout"):
        docmask.install(model)
    model = attention_model()
    model.blocks["0"].attention.sinks = torch.nn.Parameter(torch.zeros(4))
    with pytest.raises(RefusedError, match="sinks"):
        docmask.install(model)
    with pytest.raises(RefusedError, match="no attention"):
        docmask.install(torch.nn.Linear(2, 2))


def test_the_hf_configuration_is_kept_for_the_export(tmp_path):
    source = tiny()
    actor = loaded(source)
    actor.hf_config.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llama"
