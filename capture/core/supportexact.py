"""Rows of the support matrix: documents of one size, and the engine that is exact with them.

Apart from `supportrows` for its length alone.
"""

from __future__ import annotations

from .supportrows import MOE, OURS, Row, iff, is_moe

#: the exact engine and the least that it needs
EXACT = {"engine.kind": "core", "batch.document_tokens": 64, "batch.pack_tokens": 128}

REFUSED_EXACT = (
    Row("document-grid", "document_tokens that do not divide a pack", "refused",
        "a pack is whole rows of so many tokens: set pack_tokens to a multiple", OURS,
        iff(lambda config, _: config.batch.document_tokens > 0 and (
                config.batch.pack_tokens == 0
                or config.batch.pack_tokens % config.batch.document_tokens != 0),
            "batch.document_tokens", "batch.pack_tokens"),
        {"batch.document_tokens": 128, "batch.pack_tokens": 200}),
    Row("document-tokens", "document_tokens too few for a sample", "refused",
        "the longest response has a prompt before it", OURS,
        iff(lambda config, _: 0 < config.batch.document_tokens <= config.rollout.max_new_tokens,
            "batch.document_tokens", "rollout.max_new_tokens"),
        {"batch.document_tokens": 16, "batch.pack_tokens": 64}),
    Row("document-moe", "document_tokens with a mixture of experts", "refused",
        "padding would be routed and counted", OURS,
        iff(lambda config, facts: config.batch.document_tokens > 0 and is_moe(config, facts),
            "batch.document_tokens"),
        {**MOE, "batch.document_tokens": 64, "batch.pack_tokens": 128}),
    Row("exact-grid", "the exact engine without document_tokens", "refused",
        "only forwards of one shape have the same numbers", OURS,
        iff(lambda config, _: config.engine.kind == "core" and config.batch.document_tokens == 0,
            "engine.kind", "batch.document_tokens"),
        {"engine.kind": "core"}),
    Row("exact-batch", "the exact engine with packs that cross optimizer steps", "refused",
        "a sample is generated in the row in which it is trained: packs must divide the global"
        " batch", OURS,
        iff(lambda config, _: config.engine.kind == "core" and config.batch.document_tokens > 0
            and config.batch.global_batch_size
            % max(config.batch.pack_tokens // config.batch.document_tokens, 1) != 0,
            "batch.global_batch_size", "batch.pack_tokens", "batch.document_tokens"),
        {**EXACT, "batch.pack_tokens": 192}),
    Row("exact-ranks", "the exact engine with several trainer ranks", "refused",
        "ranks share samples out by length, and the engine has one process", OURS,
        iff(lambda config, _: config.engine.kind == "core" and config.parallel.world_size > 1,
            "engine.kind", "parallel.world_size"),
        {**EXACT, "parallel.world_size": 2}),
    Row("exact-async", "the exact engine with an async producer", "refused",
        "the gap to older weights is no rounding", OURS,
        iff(lambda config, _: config.engine.kind == "core" and config.rollout.mode == "async",
            "engine.kind", "rollout.mode"),
        {**EXACT, "rollout.mode": "async", "rollout.max_lag": 1}),
    Row("exact-dtype", "the exact engine with rounded weights", "refused",
        "it holds the trainer's float32 master weights; model.dtype is the dtype of both forwards",
        OURS, iff(lambda config, _: config.engine.kind == "core"
            and config.engine.dtype != "float32", "engine.kind", "engine.dtype"),
        {**EXACT, "engine.dtype": "bfloat16"}),
    Row("exact-device", "the exact engine on another device than the trainer", "refused",
        "its kernels would be others", OURS,
        iff(lambda config, _: config.engine.kind == "core"
            and config.engine.device != config.model.device, "engine.device", "model.device"),
        {**EXACT, "engine.device": "cuda"}),
)  # fmt: skip
