"""Dense models: an HF configuration as Core's, weights in and out, and the train module around it.

Weights go in after the train module is built: Core initialises every weight while it wraps the
model, so anything loaded before is lost. They go in strictly, with the model type named: without
it Core's mapping puts two norms of a Llama in each other's place and raises nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint.state_dict as dcp_state
from olmo_core.config import DType
from olmo_core.distributed.parallel import DataParallelType
from olmo_core.nn.attention import AttentionBackendName
from olmo_core.nn.conversion.state_mapping import TemplatePlaceholder
from olmo_core.nn.feed_forward import FeedForwardConfig
from olmo_core.nn.hf.convert import convert_state_from_hf, get_converter_to_hf
from olmo_core.nn.layer_norm import LayerNormType
from olmo_core.nn.transformer import TransformerBlockType, TransformerConfig
from olmo_core.optim import AdamWConfig, SkipStepAdamWConfig
from olmo_core.train.train_module.transformer.config import (
    TransformerActivationCheckpointingConfig,
    TransformerDataParallelConfig,
)
from torch.distributed.tensor import DTensor

from . import collective, docmask
from .config import RunConfig
from .errors import CheckpointError, RefusedError
from .hook import PackTrainModule
from .schedule import core_scheduler

#: what Core's layers need beside the numbers of the HF configuration, by model_type
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"qk_norm": True, "use_head_qk_norm": True, "layer_norm_name": LayerNormType.qwen_rms},
    "olmo2": {"qk_norm": True, "block_name": TransformerBlockType.reordered_norm},
}


def read_hf(folder: Path | str) -> tuple[Any, dict[str, torch.Tensor]]:
    """(configuration, weights) of an HF folder, from its safetensors files; nothing is downloaded.

    Raises CheckpointError for a folder without them, a file that cannot be read, or a weight that
    comes twice.
    """
    from safetensors.torch import load_file
    from transformers import AutoConfig

    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder}: no config.json")
    try:
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
    except (OSError, TypeError, ValueError) as error:
        first = str(error).strip().split("\n")[0]
        raise CheckpointError(f"{folder / 'config.json'}: cannot be read: {first}") from None
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder}: no *.safetensors")
    state: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            part = load_file(str(file))
        except Exception as error:
            raise CheckpointError(f"{file}: cannot be read: {error}") from None
        twice = state.keys() & part.keys()
        if twice:
            raise CheckpointError(f"{file}: {min(twice)} is in another file too")
        state.update(part)
    return config, state


def _rope(hf: Any) -> tuple[str, float | None]:
    """(kind, base) of a configuration's rotary embedding."""
    rope = dict(getattr(hf, "rope_parameters", None) or {})
    return rope.get("rope_type", "default"), rope.get("rope_theta", getattr(hf, "rope_theta", None))


def limits(hf: Any) -> list[tuple[bool, str]]:
    """(whether this HF configuration has it, what) of all that no model of Core holds rightly."""
    kind, theta = _rope(hf)
    return [
        (kind != "default", f"rope_type {kind}"),
        (theta is None or theta != int(theta), f"rope_theta {theta}"),
        (hf.hidden_act not in ("silu", "swish"), f"hidden_act {hf.hidden_act}"),
        (getattr(hf, "attention_bias", False), "attention biases"),
        (getattr(hf, "mlp_bias", False), "feed-forward biases"),
        (getattr(hf, "use_sliding_window", False), "a sliding window"),
        (getattr(hf, "attention_dropout", 0.0), "attention dropout"),
    ]


def core_config(hf: Any) -> TransformerConfig:
    """Core's configuration of an HF one. Raises RefusedError for what it cannot hold."""
    family = hf.model_type
    if family not in FAMILIES:
        raise RefusedError(
            f'model_type = "{family}": no tested weight mapping; there is one for'
            f" {', '.join(FAMILIES)}",
            "model-family",
        )
    for wrong, what in limits(hf):
        if wrong:
            raise RefusedError(f"{family} with {what}", "model-config")
    heads = hf.num_attention_heads
    return TransformerConfig.llama_like(
        d_model=hf.hidden_size,
        vocab_size=hf.vocab_size,
        n_layers=hf.num_hidden_layers,
        n_heads=heads,
        n_kv_heads=hf.num_key_value_heads,
        head_dim=getattr(hf, "head_dim", None) or hf.hidden_size // heads,
        rope_theta=int(_rope(hf)[1]),
        layer_norm_eps=hf.rms_norm_eps,
        feed_forward=FeedForwardConfig(
            hidden_size=hf.intermediate_size, bias=False, dtype=DType.float32
        ),
        tie_word_embeddings=bool(hf.tie_word_embeddings),
        attn_backend=AttentionBackendName.torch,
        dtype=DType.float32,
        **FAMILIES[family],
    )


def build(config: RunConfig, hf: Any) -> PackTrainModule:
    """The train module of a dense run, with random weights: `load_hf` comes after it."""
    model = core_config(hf).build(init_device="meta")
    docmask.install(model)
    longest = hf.max_position_embeddings
    return PackTrainModule(
        model=model,
        optim=_optimizer(config),
        rank_microbatch_size=longest,
        max_sequence_length=longest,
        dp_config=_data_parallel(config),
        ac_config=TransformerActivationCheckpointingConfig() if config.core.recompute else None,
        autocast_precision=torch.bfloat16 if config.model.dtype == "bfloat16" else None,
        # without clipping Core would not compute the norm that is checked before the step, and
        # an infinite limit multiplies gradients by exactly 1
        max_grad_norm=config.optimizer.max_grad_norm or math.inf,
        scheduler=core_scheduler(config.schedule),
        device=device_of(config),
    )


def device_of(config: RunConfig) -> torch.device:
    """This rank's device."""
    if config.model.device == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _data_parallel(config: RunConfig) -> TransformerDataParallelConfig | None:
    if collective.world_size() == 1:
        return None
    kind = {"ddp": DataParallelType.ddp, "fsdp": DataParallelType.fsdp}
    if config.parallel.data_parallel not in kind:
        raise RefusedError(f"data parallelism {config.parallel.data_parallel}", "hsdp")
    return TransformerDataParallelConfig(name=kind[config.parallel.data_parallel])


def _optimizer(config: RunConfig) -> Any:
    own = config.optimizer
    kind = AdamWConfig if own.kind == "adamw" else SkipStepAdamWConfig
    return kind(lr=own.lr, betas=(own.beta1, own.beta2), eps=own.eps, weight_decay=own.weight_decay)


def load_hf(module: PackTrainModule, hf: Any, state: Mapping[str, torch.Tensor]) -> None:
    """Put HF weights into the model, in float32. Every rank calls it with the whole state.

    Raises CheckpointError for a missing, unknown or misshapen weight, before any is changed.
    """
    given = {name: value.to(torch.float32) for name, value in state.items()}
    if hf.tie_word_embeddings:
        head, embedding = given.get("lm_head.weight"), given.get("model.embed_tokens.weight")
        if head is not None and embedding is not None and not torch.equal(head, embedding):
            raise CheckpointError("lm_head.weight: differs from the embeddings it is tied to")
        if embedding is not None:
            given["lm_head.weight"] = embedding
    names = _names(hf, module)
    wanted = {hf_name: tensor.shape for hf_name, tensor in names.items()}
    for problem, found in (
        ("missing", sorted(wanted.keys() - given.keys())),
        ("unknown", sorted(given.keys() - wanted.keys())),
    ):
        if found:
            raise CheckpointError(f"{problem} weight {found[0]}, {len(found)} in all")
    for name, shape in wanted.items():
        if given[name].shape != shape:
            raise CheckpointError(f"{name}: shape {tuple(given[name].shape)}, not {tuple(shape)}")
    converted = convert_state_from_hf(hf, given, model_type=hf.model_type)
    dcp_state.set_model_state_dict(
        module.model,
        converted,
        options=dcp_state.StateDictOptions(full_state_dict=True, strict=True),
    )


def _names(hf: Any, module: PackTrainModule) -> dict[str, torch.Tensor]:
    """HF name to Core's parameter, through Core's own mapping.

    Raises RefusedError when the mapping does more than rename: a stream of single tensors could
    not follow it.
    """
    own = {
        name: value
        for name, value in module.model.state_dict(keep_vars=True).items()
        if isinstance(value, torch.Tensor)
    }
    mappings = get_converter_to_hf(hf.model_type).get_mappings(
        own, {TemplatePlaceholder.LAYER: hf.num_hidden_layers}
    )
    renamed: dict[str, str] = {}
    for mapping in mappings:
        changed = (mapping.unflatten_dim, mapping.dims_permutation, mapping.flatten_dims)
        if (
            len(mapping.source_keys) != 1
            or len(mapping.dest_keys) != 1
            or any(part is not None for part in changed)
            or mapping.source_keys[0] in renamed
        ):
            raise RefusedError(
                f"the mapping of {hf.model_type} does more than rename {mapping.source_keys[0]}",
                "model-mapping",
            )
        renamed[mapping.source_keys[0]] = mapping.dest_keys[0]
    if renamed.keys() != own.keys() or len(set(renamed.values())) != len(own):
        lost = sorted(own.keys() - renamed.keys()) or sorted(renamed.values())
        raise RefusedError(f"the mapping of {hf.model_type} loses {lost[0]}", "model-mapping")
    return {hf_name: own[name] for name, hf_name in renamed.items()}


def export_hf(module: PackTrainModule, hf: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(HF name, whole float32 tensor), one at a time; a collective of all ranks under FSDP.

    Unsharded tensors are the model's own memory: copy what must outlive the next step. A tied
    head is the embeddings, and is not given a second time.
    """
    for name, value in _names(hf, module).items():
        if name == "lm_head.weight" and hf.tie_word_embeddings:
            continue
        tensor = value.detach()
        yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
