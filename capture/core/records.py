"""The contract record of one optimizer step, from what the actor says about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import standins
from .config import RunConfig
from .contract import TrainingRecord
from .histogram import ErrorHistogram
from .samples import Collection, Sample


def error_histogram(result: Any, collection: Collection) -> ErrorHistogram:
    """The probability errors of this rank's samples of a step."""
    found = ErrorHistogram()
    for index in result.sample_indexes:
        sample = collection.samples[index]
        found.add(result.anchor[index], sample.behaviour_logp, sample.loss_mask)
    return found


def over_ranks(found: ErrorHistogram) -> ErrorHistogram:
    """The histogram of all ranks; a collective."""
    import torch

    from . import collective

    return found.reduced(
        lambda flat: collective.total(torch.from_numpy(flat)).numpy(),
        lambda flat: collective.largest(torch.from_numpy(flat)).numpy(),
    )


def record_of(
    result: Any,
    collection: Collection,
    errors: ErrorHistogram,
    *,
    config: RunConfig,
    rank: int,
    published: int,
    diagnostics: dict[str, Any] | None = None,
) -> TrainingRecord:
    """One rank's record. result: the actor's StepResult. errors: over all ranks.

    published: the version that served while the step ran. diagnostics: the plain form, or None.
    """
    mine = [collection.samples[index] for index in result.sample_indexes]
    whole = [collection.samples[index] for index in result.plan.sample_indexes]
    tokens = config.objective.reduction == "token"
    steps = config.steps_per_collection
    lag = config.rollout.max_lag if config.rollout.mode == "async" else steps - 1
    document = {
        "schema": 2,
        "rank": rank,
        "world_size": config.parallel.world_size,
        "collection": collection.index,
        "optimizer_steps": steps,
        "step_in_collection": result.step_in_collection,
        "step": result.step,
        "seconds": result.seconds,
        "counts": {
            "global_samples": len(whole),
            "global_active_tokens": sum(sample.active_tokens for sample in whole),
            "global_model_tokens": sum(len(sample.tokens) for sample in whole),
            "local_samples": len(mine),
            "local_active_tokens": sum(sample.active_tokens for sample in mine),
            "local_model_tokens": sum(len(sample.tokens) for sample in mine),
            "accumulation": result.accumulation,
        },
        "denominators": {
            "reduction": config.objective.reduction,
            "policy": result.denominators.global_tokens
            if tokens
            else result.denominators.global_responses,
            "auxiliary_tokens": result.plan.model_tokens,
            "auxiliary_documents": result.plan.documents,
        },
        "policy": {"local": result.local_objective, "global": result.objective},
        "auxiliary": auxiliary_terms(result, config),
        "versions": {
            "consumed": result.consumed_version,
            "published": published,
            "trained": result.trained_version,
            "allowed_lag": lag,
        },
        "lr": {"used": result.lr_used, "next": result.lr_next},
        "probability_error": errors.summary(),
    }
    if (load := router_load(result, config)) is not None:
        document["router"] = load
    if diagnostics is not None:
        document["diagnostics"] = diagnostics
    if (kept := kept_sizes(whole)) is not None:
        document["kept_sets"] = kept
    if how := standins.label_of(config):
        document["standins"] = how
    return TrainingRecord.model_validate(document)


def auxiliary_terms(result: Any, config: RunConfig) -> list[dict[str, Any]]:
    """The record's `auxiliary` block: both router losses, or nothing for a dense model."""
    if result.router is None:
        return []
    core, plan = config.core, result.plan.auxiliary
    return [
        {
            "name": name,
            "reduction": reduction,
            "denominator": plan.whole(reduction),
            "coefficient": weight,
            "local": float(getattr(result.local_router, term)),
            "global": float(getattr(result.router, term)),
        }
        for name, term, reduction, weight in (
            (
                "load_balancing",
                "balancing",
                core.router_aux_loss_reduction,
                core.router_aux_loss_weight,
            ),
            ("z_loss", "z", core.router_z_loss_reduction, core.router_z_loss_weight),
        )
    ]


def router_load(result: Any, config: RunConfig) -> dict[str, Any] | None:
    """The record's `router` block: what experts did in the step, over all ranks."""
    terms = result.router
    if terms is None:
        return None
    core = config.core
    found = {
        "grouping": core.router_aux_loss_grouping,
        "count_source": core.router_aux_count_source,
        "replayed": terms.recorded > 0,
        "experts": terms.counts.shape[1],
        "choices": int(terms.counts[0].sum()),
        "imbalance": terms.imbalance.tolist(),
        "idle": (terms.counts == 0).sum(-1).tolist(),
    }
    if terms.recorded:
        found["recorded"] = terms.recorded
        found["disagreement"] = terms.disagreement.tolist()
    return found


def kept_sizes(samples: Sequence[Sample]) -> dict[str, Any] | None:
    """The record's `kept_sets` block, over active tokens; None without sampling replay."""
    if any(sample.kept is None for sample in samples):
        return None
    sizes = np.concatenate([sample.kept.sizes[sample.loss_mask] for sample in samples])
    return {"tokens": len(sizes), "mean": float(sizes.mean()), "max": int(sizes.max())}


def versions_of(collection: Collection, steps: int) -> list[tuple[int, int]]:
    """(oldest, newest) behaviour version of each optimizer step's samples, in order."""
    size = len(collection.samples) // steps
    parts = [collection.samples[i * size : (i + 1) * size] for i in range(steps)]
    return [
        (
            min(sample.oldest_version for sample in part),
            max(int(np.max(sample.behaviour_version)) for sample in part),
        )
        for part in parts
    ]
