"""Valid records for the tests, made from drawn tokens by plain loops."""

from __future__ import annotations

import numpy as np

from capture.core.contract import TrainingRecord
from capture.core.histogram import ErrorHistogram


def histogram(rng, responses=6, scale=0.01):
    result, active, model = ErrorHistogram(), 0, 0
    for _ in range(responses):
        length = int(rng.integers(1, 60))
        mask = rng.random(length) < 0.8
        mask[0] = True
        anchor = -rng.random(length)
        result.add(anchor, anchor + scale * rng.standard_normal(length), mask)
        active += int(mask.sum())
        model += length + 5
    return result, active, model


def records(
    steps=4,
    world_size=2,
    optimizer_steps=2,
    seed=0,
    reduction="token",
    auxiliary=True,
    diagnostics=True,
    scale=0.01,
):
    """steps x world_size valid records: a list by step of lists by rank."""
    rng = np.random.default_rng(seed)
    out = []
    for step in range(1, steps + 1):
        parts = [histogram(rng, scale=scale) for _ in range(world_size)]
        merged = parts[0][0]
        for part in parts[1:]:
            merged = merged.merge(part[0])
        active, model = sum(p[1] for p in parts), sum(p[2] for p in parts)
        samples = 6 * world_size
        collection, inner = divmod(step - 1, optimizer_steps)
        local = rng.standard_normal(world_size)
        local_aux = rng.random(world_size) / 100
        row = []
        for rank in range(world_size):
            document = {
                "schema": 2,
                "rank": rank,
                "world_size": world_size,
                "collection": collection,
                "optimizer_steps": optimizer_steps,
                "step_in_collection": inner,
                "step": step,
                "seconds": 0.5 + rank / 8,
                "counts": {
                    "global_samples": samples,
                    "global_active_tokens": active,
                    "global_model_tokens": model,
                    "local_samples": 6,
                    "local_active_tokens": parts[rank][1],
                    "local_model_tokens": parts[rank][2],
                    "accumulation": 6,
                },
                "denominators": {
                    "reduction": reduction,
                    "policy": active if reduction == "token" else samples,
                    "auxiliary_tokens": model,
                    "auxiliary_documents": samples,
                },
                "policy": {"local": float(local[rank]), "global": float(local.mean())},
                "auxiliary": [],
                "versions": {
                    "consumed": collection * optimizer_steps,
                    "published": collection * optimizer_steps,
                    "trained": step - 1,
                    "allowed_lag": optimizer_steps - 1,
                },
                "lr": {"used": 1e-3 / step, "next": 1e-3 / (step + 1)},
                "probability_error": merged.summary(),
            }
            if auxiliary:
                document["auxiliary"] = [
                    {
                        "name": "load_balancing",
                        "reduction": "response",
                        "denominator": samples,
                        "coefficient": 0.01,
                        "local": float(local_aux[rank]),
                        "global": float(local_aux.mean()),
                    },
                    {
                        "name": "z_loss",
                        "reduction": "token",
                        "denominator": model,
                        "coefficient": 1e-5,
                        "local": float(local_aux[rank]) / 2,
                        "global": float(local_aux.mean()) / 2,
                    },
                ]
            if diagnostics and step % 2 == 0:
                document["diagnostics"] = {
                    "scope": "local, not global",
                    "interval": 2,
                    "gradient_norm": 5.0,
                    "gradient_norms": {"w": 3.0, "b": 4.0},
                    "updates": {"w": {"values": 256, "changed": 250, "rms": 1e-4, "max": 1e-3}},
                    "not_covered": ["FP8 stores outside named_parameters"],
                }
            row.append(TrainingRecord.model_validate(document))
        out.append(row)
    return out
