"""What the router parts of a contract record must fulfil: `auxiliary` and `router`. No torch."""

from __future__ import annotations

import math

from .contractschema import TrainingRecord
from .verifyhistogram import Found

TERMS = ("load_balancing", "z_loss")

SLACK = 1e-5
"""Relative, for sums that ranks added in float32."""


def router_checks(record: TrainingRecord) -> Found:
    """What one record's router parts show by themselves and beside its counts."""
    load = record.router
    for term in record.auxiliary:
        for place, value in (("local", term.local), ("global", term.global_)):
            if value < 0:
                yield "auxiliary", f"{term.name}: {place} {value} is negative"
    if load is None:
        return
    if (names := tuple(term.name for term in record.auxiliary)) != TERMS:
        yield "auxiliary", f"terms {names} beside a router block; a router has {TERMS}"
    layers, tokens = len(load.imbalance), record.counts.global_model_tokens
    if not layers or len(load.idle) != layers:
        yield "router", f"imbalance of {layers} layers, idle of {len(load.idle)}"
        return
    topk, rest = divmod(load.choices, tokens)
    if rest or not 1 <= topk <= load.experts:
        yield (
            "router",
            f"{load.choices} choices of {tokens} model tokens among {load.experts} experts",
        )
        return
    for layer, (ratio, idle) in enumerate(zip(load.imbalance, load.idle, strict=True)):
        busy = load.experts - idle
        # the busiest of `busy` experts has at least their mean, and at most every token once
        least, most = load.experts / max(busy, 1), load.experts / topk
        if busy < topk or not least * (1 - 1e-9) <= ratio <= most * (1 + 1e-9):
            yield (
                "router",
                f"layer {layer}: imbalance {ratio} with {idle} of {load.experts} experts idle and"
                f" {topk} a token",
            )
    for term in record.auxiliary:
        bound = term.coefficient * layers * load.experts / topk
        if term.name == "load_balancing" and term.global_ > bound * (1 + SLACK):
            yield "auxiliary", f"load_balancing: global {term.global_} above its bound {bound}"
    yield from _replay(record, layers)


def _replay(record: TrainingRecord, layers: int) -> Found:
    load, counts = record.router, record.counts
    has = (load.recorded is not None, load.disagreement is not None)
    if has != (load.replayed, load.replayed):
        yield (
            "router",
            f"replayed is {load.replayed}, recorded {load.recorded},"
            f" disagreement {load.disagreement}",
        )
        return
    if not load.replayed:
        return
    # the last token of every document has a synthetic assignment, not a recorded one
    wanted = counts.global_model_tokens - counts.global_samples
    if load.recorded != wanted:
        yield (
            "router",
            f"{load.recorded} recorded tokens, {counts.global_model_tokens} model tokens in"
            f" {counts.global_samples} documents have {wanted}",
        )
    if len(load.disagreement) != layers:
        yield "router", f"disagreement of {len(load.disagreement)} layers, not {layers}"
    for layer, share in enumerate(load.disagreement):
        tokens = share * load.recorded
        if not math.isclose(tokens, round(tokens), abs_tol=1e-6 * max(load.recorded, 1)):
            yield (
                "router",
                f"layer {layer}: disagreement {share} of {load.recorded} tokens is {tokens} tokens",
            )


def changed_terms(before: TrainingRecord, record: TrainingRecord) -> Found:
    """What a run never changes from one step to the next."""
    terms = [
        [(term.name, term.reduction, term.coefficient) for term in one.auxiliary]
        for one in (before, record)
    ]
    if terms[0] != terms[1]:
        yield "auxiliary", f"terms {terms[1]}, before they were {terms[0]}"
    loads = [
        one.router
        and (
            one.router.grouping,
            one.router.count_source,
            one.router.replayed,
            one.router.experts,
            len(one.router.imbalance),
        )
        for one in (before, record)
    ]
    if loads[0] != loads[1]:
        yield "router", f"settings {loads[1]}, before they were {loads[0]}"
