"""The rows of the support matrix: what this trainer does, what it refuses and what nobody tried.

A refused row has the condition that finds it in a run's settings, and an example that must be
refused; an accepted row has an example that must be accepted. Rows that a run file cannot reach
name the module that refuses or say what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .config import CoreConfig, RunConfig
from .modelfacts import MOE_FAMILIES, ModelFacts, is_moe

State = Literal["accepted", "refused", "not-covered"]
#: gives "key = value, ..." where the row applies, else None
Condition = Callable[[RunConfig, ModelFacts], str | None]

HOOKUP = "Trainer hookup"
SAMPLES = "Samples, scoring and objectives"
REPLAY = "Router replay and parallelism"
PUBLISH = "Checkpoints and publication"
CONTRACT = "Training contract checks"
ROUTER = "Router auxiliary objectives"
SCOPE = "Supported scope and runtime"
HEAD = "FP32-output vocabulary head"
OURS = ""  # a rule of this trainer, not of the page
FAMILIES = ("llama", "qwen3", "olmo2")
MOE = {"model.family": "qwen3_moe"}
REPLAYING = {"miles.use_rollout_routing_replay": True, "miles.use_miles_router": True}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the matrix. `example` holds dotted keys that differ from the defaults."""

    id: str
    what: str
    state: State
    reason: str
    seed: str
    when: Condition | None = None
    example: Mapping[str, Any] = field(default_factory=dict)
    facts: ModelFacts | None = None  # of the example's model, where it is not a tiny one
    by: str = ""  # who refuses, where it is not the settings: module or test


def values(config: RunConfig, *keys: str) -> str:
    """`key = value` of dotted keys, as messages show them."""
    found = []
    for key in keys:
        value: Any = config
        for part in key.split("."):
            value = getattr(value, part)
        found.append(f"{key} = {_toml(value)}")
    return ", ".join(found)


def _toml(value: Any) -> str:
    if value is None:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


def _if(test: Callable[[RunConfig, ModelFacts], bool], *keys: str) -> Condition:
    return lambda config, facts: values(config, *keys) if test(config, facts) else None


iff = _if  # for the rows of other modules


def router_changes(core: CoreConfig) -> list[str]:
    """The dotted keys of the router controls that are not at their defaults."""
    names = [name for name in type(core).model_fields if name.startswith("router_")]
    default = CoreConfig()
    return [f"core.{name}" for name in names if getattr(core, name) != getattr(default, name)]


def _router_dense(config: RunConfig, facts: ModelFacts) -> str | None:
    changed = router_changes(config.core)
    return values(config, *changed) if changed and not is_moe(config, facts) else None


def _above_one(axis: str) -> Condition:
    return _if(lambda config, _: getattr(config.parallel, axis) > 1, f"parallel.{axis}")


def _family(config: RunConfig, facts: ModelFacts) -> str | None:
    known = facts.family in FAMILIES or facts.experts > 0 or is_moe(config, facts)
    return None if known else f'model_type = "{facts.family}"'


def _moe_family(config: RunConfig, facts: ModelFacts) -> str | None:
    known = facts.family in MOE_FAMILIES or not is_moe(config, facts)
    return None if known else f'model_type = "{facts.family}", {values(config, "model.backend")}'


def _dense_experts(config: RunConfig, facts: ModelFacts) -> str | None:
    named = "model.family" if config.model.path is None else "model.path"
    wrong = config.model.backend == "dense" and facts.experts > 0
    return values(config, "model.backend", named) if wrong else None


def _moe(test: Callable[[RunConfig, ModelFacts], bool], *keys: str) -> Condition:
    return _if(lambda config, facts: is_moe(config, facts) and test(config, facts), *keys)


def _drop(config: RunConfig, facts: ModelFacts) -> str | None:
    dropout = max(config.model.dropout, facts.dropout)
    return f"dropout = {dropout}" if dropout > 0 else None


def _head_conflict(config: RunConfig, _: ModelFacts) -> str | None:
    serving = config.engine.enable_fp32_lm_head
    if serving is None or serving == config.fp32_lm_head:
        return None
    return values(config, "core.fp32_lm_head", "trainer.fp32_lm_head", "engine.enable_fp32_lm_head")


def _export_folder(config: RunConfig, _: ModelFacts) -> str | None:
    if config.miles.save is None or config.miles.save_hf is None:
        return None
    save, export = Path(config.miles.save).resolve(), Path(config.miles.save_hf).resolve()
    own = [save / "checkpoints", save / "start-model"]
    if export in (save, *save.parents) or any(export.is_relative_to(folder) for folder in own):
        return values(config, "miles.save", "miles.save_hf")
    return None


REFUSED_BY_SETTINGS = (
    Row("moe-family", "a mixture-of-experts model that is not Qwen3-MoE", "refused",
        "no weight mapping of experts that round-trips bitwise is tested for it", HOOKUP,
        _moe_family, {"model.backend": "moe"}),
    Row("backend-experts", "the dense backend for a model with experts", "refused",
        "its configuration names experts, and the dense trainer has none", HOOKUP,
        _dense_experts,
        {"model.backend": "dense"}, facts=ModelFacts("llama", 8)),
    Row("model-family", "a model that is not Llama, Qwen3 or OLMo-2", "refused",
        "no weight mapping that round-trips bitwise is tested for it", HOOKUP,
        _family, facts=ModelFacts("qwen2")),
    Row("attention-bias", "a model with attention biases", "refused",
        "Core's mapping has no place for them", HOOKUP,
        _if(lambda _, facts: facts.attention_bias, "model.path"),
        facts=ModelFacts("llama", attention_bias=True)),
    Row("compile", "core.compile_model", "refused",
        "no test compiles the trainer; replay and router objectives need it off", SCOPE,
        _if(lambda config, _: config.core.compile_model, "core.compile_model"),
        {"core.compile_model": True}),
    Row("microbatch-one", "more than one instance in a Core forward", "refused",
        "the Core microbatch size is one; pack_tokens puts several samples into a forward",
        SAMPLES, _if(lambda config, _: config.batch.microbatch_size != 1, "batch.microbatch_size"),
        {"batch.microbatch_size": 2}),
    Row("batch-collections", "a collection that is not whole optimizer steps", "refused",
        "the global batch must divide the samples of a collection", SAMPLES,
        _if(lambda config, _: config.samples_per_collection % config.batch.global_batch_size != 0,
            "batch.global_batch_size", "rollout.rollout_batch_size",
            "rollout.n_samples_per_prompt"),
        {"batch.global_batch_size": 48}),
    Row("batch-world", "a global batch that ranks cannot share", "refused",
        "the global batch must be divisible by the trainer world size", SAMPLES,
        _if(lambda config, _: config.batch.global_batch_size % config.parallel.world_size != 0,
            "batch.global_batch_size", "parallel.world_size"),
        {"parallel.world_size": 3}),
    Row("pack-tokens", "packs too short for a sample", "refused",
        "samples are never split, and the longest response has a prompt before it", SAMPLES,
        _if(lambda config, _: 0 < config.batch.pack_tokens <= config.rollout.max_new_tokens,
            "batch.pack_tokens", "rollout.max_new_tokens"),
        {"batch.pack_tokens": 16}),
    Row("schedule-warmup", "a warm-up as long as the run", "refused",
        "the learning rate would never fall", OURS,
        _if(lambda config, _: config.schedule.kind != "constant"
            and config.schedule.warmup_steps >= max(config.total_steps, 1),
            "schedule.kind", "schedule.warmup_steps"),
        {"schedule.kind": "cosine", "schedule.warmup_steps": 10}),
    Row("group-of-one", "one sample per prompt", "refused",
        "the advantage of a group of one is always 0", OURS,
        _if(lambda config, _: config.rollout.n_samples_per_prompt == 1,
            "rollout.n_samples_per_prompt"),
        {"rollout.n_samples_per_prompt": 1, "batch.global_batch_size": 8}),
    Row("async-lag", "async without a positive lag", "refused",
        "async needs max_lag of at least 1 optimizer step", SAMPLES,
        _if(lambda config, _: config.rollout.mode == "async" and config.rollout.max_lag == 0,
            "rollout.mode", "rollout.max_lag"),
        {"rollout.mode": "async"}),
    Row("async-lag-steps", "a lag that the last optimizer step of a collection exceeds", "refused",
        "with several optimizer steps a collection, max_lag must be at least their number less one",
        SAMPLES, _if(lambda config, _: config.rollout.mode == "async"
            and 0 < config.rollout.max_lag < config.steps_per_collection - 1,
            "rollout.max_lag", "batch.global_batch_size", "rollout.rollout_batch_size",
            "rollout.n_samples_per_prompt"),
        {"rollout.mode": "async", "rollout.max_lag": 2, "batch.global_batch_size": 16}),
    Row("sync-lag", "a lag without async", "refused",
        "synchronous collections are trained on by the version that made them; max_lag needs async",
        SAMPLES, _if(lambda config, _: config.rollout.mode == "sync" and config.rollout.max_lag > 0,
            "rollout.mode", "rollout.max_lag"),
        {"rollout.max_lag": 1}),
    Row("sglang-colocated", "an SGLang server in turns with the trainer", "refused",
        "colocation hands weights over by IPC, not there yet", PUBLISH,
        _if(lambda config, _: config.engine.kind == "sglang"
            and config.engine.placement == "colocated", "engine.kind", "engine.placement"),
        {"engine.kind": "sglang", "engine.url": "http://127.0.0.1:30000",
         "engine.placement": "colocated"}),
    Row("async-resident", "async with a colocated engine", "refused",
        "async needs a resident engine of its own", SAMPLES,
        _if(lambda config, _: config.rollout.mode == "async"
            and config.engine.placement == "colocated", "rollout.mode", "engine.placement"),
        {"rollout.mode": "async", "rollout.max_lag": 1, "engine.placement": "colocated"}),
    Row("tis-bounds", "a lower TIS bound above the upper one", "refused",
        "no weight lies between them", OURS,
        _if(lambda config, _: config.objective.tis
            and config.objective.tis_clip_low > config.objective.tis_clip,
            "objective.tis_clip_low", "objective.tis_clip"),
        {"objective.tis": True, "objective.tis_clip_low": 3.0}),
    Row("dropout", "dropout in the trainer", "refused",
        "nothing here checks a scoring pass against a forward with dropout", SAMPLES,
        _drop, {"model.dropout": 0.1}),
    Row("sampling-truncated", "top-p or top-k sampling without replay", "refused",
        "the trainer would score another distribution than was sampled: set use_sampling_replay,"
        " or allow_sampler_mismatch to measure that", OURS,
        _if(lambda config, _: config.truncates and not config.rollout.use_sampling_replay
            and not config.rollout.allow_sampler_mismatch, "rollout.top_p", "rollout.top_k"),
        {"rollout.top_p": 0.9}),
    Row("sampling-replay-whole", "sampling replay of a sampler that keeps all", "refused",
        "there is no kept set to replay", OURS,
        _if(lambda config, _: config.rollout.use_sampling_replay and not config.truncates,
            "rollout.use_sampling_replay", "rollout.top_p", "rollout.top_k"),
        {"rollout.use_sampling_replay": True}),
    Row("sampling-replay-one", "sampling replay of a sampler that keeps one token", "refused",
        "over one token every log-probability is 0, and so is its gradient", OURS,
        _if(lambda config, _: config.rollout.use_sampling_replay and config.rollout.top_k == 1,
            "rollout.use_sampling_replay", "rollout.top_k"),
        {"rollout.use_sampling_replay": True, "rollout.top_k": 1}),
    Row("sampling-replay-kl", "sampling replay with a reference KL", "refused",
        "the KL needs scores over the whole vocabulary; Miles refuses it too", OURS,
        _if(lambda config, _: config.rollout.use_sampling_replay and config.objective.kl_coef > 0,
            "rollout.use_sampling_replay", "objective.kl_coef"),
        {"rollout.use_sampling_replay": True, "rollout.top_k": 8, "objective.kl_coef": 0.01}),
    Row("sampling-replay-sglang", "sampling replay with an SGLang server", "refused",
        "the client asks no server for kept sets", OURS,
        _if(lambda config, _: config.rollout.use_sampling_replay
            and config.engine.kind == "sglang", "rollout.use_sampling_replay", "engine.kind"),
        {"rollout.use_sampling_replay": True, "rollout.top_k": 8, "engine.kind": "sglang",
         "engine.url": "http://127.0.0.1:30000"}),
    Row("sampler-mismatch-idle", "a sampler mismatch allowed where there is none", "refused",
        "allow_sampler_mismatch is for top_p or top_k without replay", OURS,
        _if(lambda config, _: config.rollout.allow_sampler_mismatch
            and (config.rollout.use_sampling_replay or not config.truncates),
            "rollout.allow_sampler_mismatch", "rollout.use_sampling_replay", "rollout.top_p",
            "rollout.top_k"),
        {"rollout.allow_sampler_mismatch": True}),
    Row("replay-both", "one of the two replay switches alone", "refused",
        "routing replay needs use_rollout_routing_replay and use_miles_router", REPLAY,
        _if(lambda config, _: config.miles.use_rollout_routing_replay
            != config.miles.use_miles_router,
            "miles.use_rollout_routing_replay", "miles.use_miles_router"),
        {"miles.use_rollout_routing_replay": True}),
    Row("replay-dense", "routing replay with a dense model", "refused",
        "a dense model has no routes to replay", REPLAY,
        _if(lambda config, facts: config.miles.use_rollout_routing_replay
            and config.miles.use_miles_router and not is_moe(config, facts),
            "miles.use_rollout_routing_replay", "miles.use_miles_router"),
        REPLAYING),
    Row("tensor-parallel", "trainer TP above one", "refused",
        "trainer tensor parallelism is rejected", REPLAY, _above_one("tp"), {"parallel.tp": 2}),
    Row("pipeline-parallel", "trainer PP above one", "refused",
        "trainer pipeline parallelism is rejected", REPLAY, _above_one("pp"), {"parallel.pp": 2}),
    Row("context-parallel", "trainer CP above one", "refused",
        "trainer context parallelism is rejected", REPLAY, _above_one("cp"), {"parallel.cp": 2}),
    Row("expert-parallel", "expert parallelism of a dense model", "refused",
        "it has no experts", REPLAY,
        _if(lambda config, facts: config.parallel.ep > 1 and not is_moe(config, facts),
            "parallel.ep"),
        {"parallel.ep": 2}),
    Row("expert-ranks", "expert parallelism that ranks cannot share", "refused",
        "parallel.ep must divide the trainer world size", REPLAY,
        _moe(lambda config, _: config.parallel.world_size % config.parallel.ep != 0,
             "parallel.ep", "parallel.world_size"),
        {**MOE, "parallel.ep": 2}),
    Row("expert-share", "experts that ranks cannot share", "refused",
        "parallel.ep must divide the number of experts", REPLAY,
        _moe(lambda config, facts: facts.experts % config.parallel.ep != 0,
             "parallel.ep", "model.n_experts"),
        {**MOE, "model.n_experts": 9, "parallel.ep": 2, "parallel.world_size": 2}),
    Row("expert-choice", "more chosen experts than there are", "refused",
        "a token cannot execute an expert twice", OURS,
        _if(lambda config, _: config.model.path is None and config.model.family in MOE_FAMILIES
            and config.model.experts_per_token > config.model.n_experts,
            "model.experts_per_token", "model.n_experts"),
        {**MOE, "model.experts_per_token": 9}),
    Row("moe-sharded", "FSDP of a mixture of experts", "refused",
        "Core's train module of this stack replicates all but experts; data_parallel must be ddp",
        HOOKUP, _moe(lambda config, _: config.parallel.data_parallel != "ddp",
                     "parallel.data_parallel"),
        {**MOE, "parallel.data_parallel": "fsdp", "parallel.world_size": 2}),
    Row("moe-bfloat16", "a mixture of experts in bfloat16 on a CPU", "refused",
        "Core's optimizer of this stack keeps float32 weights beside bfloat16 ones on CUDA only",
        HOOKUP, _moe(lambda config, _: config.model.dtype == "bfloat16"
                     and config.model.device == "cpu", "model.dtype", "model.device"),
        {**MOE, "model.dtype": "bfloat16"}),
    Row("moe-sglang", "an SGLang server with a mixture of experts", "refused",
        "its names of experts were never compared with a server's", PUBLISH,
        _moe(lambda config, _: config.engine.kind == "sglang", "engine.kind"),
        {**MOE, "engine.kind": "sglang", "engine.url": "http://127.0.0.1:30000"}),
    Row("hsdp", "hybrid sharding", "refused",
        "it hung with two CPU ranks when tried, and the cause was not looked for", HOOKUP,
        _if(lambda config, _: config.parallel.data_parallel == "hsdp", "parallel.data_parallel"),
        {"parallel.data_parallel": "hsdp"}),
    Row("router-dense", "a router control with a dense model", "refused",
        "router objective controls need the Core MoE backend", SCOPE,
        _router_dense, {"core.router_aux_loss_grouping": "sequence"}),
    Row("fp32-conflict", "an FP32 head on one side only", "refused",
        "the trainer's head and the serving head are set together", HEAD,
        _head_conflict, {"trainer.fp32_lm_head": True, "engine.enable_fp32_lm_head": False}),
    Row("weight-tolerance", "a tolerance in the weight audit", "refused",
        "quantized serving weights are not covered; the audit compares exactly", CONTRACT,
        _if(lambda config, _: config.miles.check_weight_update_tolerance > 0,
            "miles.check_weight_update_tolerance"),
        {"miles.check_weight_update_tolerance": 0.01}),
    Row("exit-without-save", "a deliberate stop with nothing to resume from", "refused",
        "debug_exit_after_rollout needs miles.save", PUBLISH,
        _if(lambda config, _: config.miles.debug_exit_after_rollout is not None
            and config.miles.save is None, "miles.debug_exit_after_rollout", "miles.save"),
        {"miles.debug_exit_after_rollout": 2}),
    Row("exit-after-horizon", "a deliberate stop after the horizon", "refused",
        "the run ends before it", PUBLISH,
        _if(lambda config, _: (config.miles.debug_exit_after_rollout or 0)
            > config.rollout.num_rollout,
            "miles.debug_exit_after_rollout", "rollout.num_rollout"),
        {"miles.debug_exit_after_rollout": 99, "miles.save": "runs/x"}),
    Row("export-folder", "a final export over the run's own files", "refused",
        "save_hf must be a folder of its own: not miles.save, one above it, its checkpoints or its"
        " start-model", PUBLISH, _export_folder,
        {"miles.save": "runs/x", "miles.save_hf": "runs/x"}),
    Row("save-interval", "checkpoints without a folder", "refused",
        "save_interval needs miles.save", PUBLISH,
        _if(lambda config, _: config.miles.save_interval > 0 and config.miles.save is None,
            "miles.save_interval", "miles.save"),
        {"miles.save_interval": 2}),
    Row("engine-url", "an SGLang engine without an address", "refused",
        "the server is started outside this program", OURS,
        _if(lambda config, _: config.engine.kind == "sglang" and config.engine.url is None,
            "engine.kind", "engine.url"),
        {"engine.kind": "sglang"}),
    Row("engine-decode", "a way of decoding for an engine that has its own", "refused",
        "engine.decode is of the transformers engine", OURS,
        _if(lambda config, _: config.engine.kind != "transformers"
            and config.engine.decode != "cache", "engine.kind", "engine.decode"),
        {"engine.kind": "sglang", "engine.url": "http://127.0.0.1:30000",
         "engine.decode": "graph"}),
    Row("sglang-model", "an SGLang engine with a tiny model", "refused",
        "the server loads its first weights from an HF folder", PUBLISH,
        _if(lambda config, _: config.engine.kind == "sglang" and config.engine.url is not None
            and config.model.path is None, "engine.kind", "model.path"),
        {"engine.kind": "sglang", "engine.url": "http://127.0.0.1:30000"}),
    Row("tiny-heads", "heads that do not share a width", "refused",
        "n_heads must divide d_model, and n_kv_heads must divide n_heads", OURS,
        _if(lambda config, _: config.model.path is None
            and (config.model.d_model % config.model.n_heads != 0
                 or config.model.n_heads % config.model.n_kv_heads != 0),
            "model.d_model", "model.n_heads", "model.n_kv_heads"),
        {"model.n_heads": 3}),
)  # fmt: skip
