"""The rows of the support matrix that no run file can be refused by: accepted, refused elsewhere
while a run starts or goes on, and not covered at all."""

from __future__ import annotations

from .supportrows import (
    CONTRACT,
    HEAD,
    HOOKUP,
    OURS,
    PUBLISH,
    REPLAY,
    SAMPLES,
    Row,
)

_TWO = {"parallel.world_size": 2}

ACCEPTED = (
    Row("dense-one", "a dense model on one process", "accepted", "", HOOKUP),
    Row("dense-ddp", "a dense model, DDP", "accepted", "two ranks over gloo are tested", HOOKUP,
        example=_TWO),
    Row("dense-fsdp", "a dense model, FSDP", "accepted", "two ranks over gloo are tested", HOOKUP,
        example={**_TWO, "parallel.data_parallel": "fsdp"}),
    Row("family-qwen3", "Qwen3 weights", "accepted", "", HOOKUP,
        example={"model.family": "qwen3"}),
    Row("family-olmo2", "OLMo-2 weights", "accepted", "", HOOKUP,
        example={"model.family": "olmo2"}),
    Row("packing", "document-isolated packs", "accepted", "", SAMPLES,
        example={"batch.pack_tokens": 512}),
    Row("several-steps", "several optimizer steps per collection", "accepted",
        "the scoring pass always runs", SAMPLES, example={"batch.global_batch_size": 32}),
    Row("response-mean", "response reduction", "accepted", "", SAMPLES,
        example={"objective.reduction": "response"}),
    Row("reference-kl", "KL to the first policy", "accepted", "the scoring pass always runs",
        SAMPLES, example={"objective.kl_coef": 0.01, "objective.kl_type": "low_var_kl"}),
    Row("tis", "truncated importance sampling", "accepted",
        "corrects the ratio, not that the data is stale", SAMPLES,
        example={"objective.tis": True}),
    Row("async", "an async producer", "accepted", "lag in optimizer steps", SAMPLES,
        example={"rollout.mode": "async", "rollout.max_lag": 1}),
    Row("forced-scoring", "the scoring pass in every step", "accepted", "", SAMPLES,
        example={"scoring.force": True}),
    Row("bfloat16", "a bfloat16 engine or forward", "accepted", "", OURS,
        example={"engine.dtype": "bfloat16", "model.dtype": "bfloat16"}),
    Row("weight-audit", "the audit of serving weights", "accepted",
        "finds missing transfers; no proof of the export mapping", CONTRACT,
        example={"miles.check_weight_update_equal": True, "core.diagnostic_interval": 2}),
    Row("debug-exit", "a deliberate stop, resumable", "accepted", "", PUBLISH,
        example={"miles.debug_exit_after_rollout": 2, "miles.save": "runs/x"}),
)  # fmt: skip

#: refused by something else than the settings; `by` is the test that shows it
REFUSED_ELSEWHERE = (
    Row("model-config", "a layout of a known family that Core would hold wrongly", "refused",
        "rotary scaling, biases and the like have no tested mapping", HOOKUP,
        by="tests/core/test_dense.py::"
        "test_a_configuration_that_core_would_hold_wrongly_is_refused"),
    Row("schema-1", "a schema-1 checkpoint of several ranks", "refused",
        "it needs an explicit migration", PUBLISH,
        by="tests/core/test_manifest.py::test_schema_1_of_several_ranks_says_what_to_do"),
    Row("topology", "a checkpoint of another world size or EP degree", "refused",
        "topology changes on restore are not supported", PUBLISH,
        by="tests/core/test_manifest.py::test_another_topology_or_lock_is_refused"),
    Row("runtime", "another version of Core, torch or transformers", "refused",
        "private surfaces of exactly these versions are used", HOOKUP,
        by="tests/core/test_runtime.py::test_an_older_version_is_named"),
)  # fmt: skip

NOT_COVERED = (
    Row("sglang-live", "a live SGLang server", "not-covered",
        "its client replays a synthetic exchange; never tried against a server", PUBLISH),
    Row("sglang-routes", "SGLang's capture of expert ids", "not-covered",
        "no server was run here", REPLAY),
    Row("nccl-buckets", "NCCL broadcast and IPC of weight buckets", "not-covered",
        "buckets are flattened and copied inside one process", PUBLISH),
    Row("multi-node", "several nodes", "not-covered", "two ranks of one machine are tried", HOOKUP),
    Row("megatron-equality", "equality with a whole Megatron model", "not-covered",
        "only loss functions are compared", CONTRACT),
    Row("moe-kernels", "DeepEP, NVSHMEM and Transformer Engine paths", "not-covered",
        "they need CUDA extensions that are not installed here", REPLAY),
    Row("moe-weights", "trained mixture-of-experts weights", "not-covered",
        "none are at hand; random and tiny ones only", REPLAY),
    Row("hybrid-export", "per-head attention and hybrid configurations", "not-covered",
        "released Core's mappings for them are not tried", HOOKUP),
    Row("fp8-stores", "FP8 stores outside named parameters", "not-covered",
        "diagnostics read named parameters", CONTRACT),
    Row("fp32-learning", "what an FP32 head does to learning", "not-covered",
        "the page does not establish it either", HEAD),
    Row("serving-rng", "the engine's random state after a restart", "not-covered",
        "pending prompts are generated again, not the same tokens", PUBLISH),
)  # fmt: skip
