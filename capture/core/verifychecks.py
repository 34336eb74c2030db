"""What a contract record must fulfil: alone, after the record before it, and beside other ranks.

Pure functions that yield (check, detail): a short stable name and one line with values. They need
no torch and recompute everything that a record says twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .contractschema import TrainingRecord
from .verifyhistogram import Found, error_checks
from .verifyrouter import changed_terms, router_checks

OBJECTIVE_TOLERANCE = 1e-5
"""Of the largest local value. Ranks add in float32, in an order that the collective decides."""

NORM_TOLERANCE = 1e-4
"""Relative, for norms that were taken in float32."""


def record_checks(record: TrainingRecord) -> Found:
    """What one record shows by itself."""
    yield from _place(record)
    yield from _counts(record)
    yield from _denominators(record)
    yield from _objectives(record)
    yield from router_checks(record)
    yield from _versions(record)
    yield from error_checks(record)
    if record.diagnostics is not None:
        yield from _diagnostics(record)
    if record.kept_sets is not None:
        yield from _kept_sets(record)


def _place(record: TrainingRecord) -> Found:
    if record.rank >= record.world_size:
        yield "rank", f"rank {record.rank} of {record.world_size} ranks"
    if record.step_in_collection >= record.optimizer_steps:
        yield (
            "schedule",
            f"step_in_collection {record.step_in_collection} of {record.optimizer_steps}",
        )
    place = record.collection * record.optimizer_steps + record.step_in_collection + 1
    if record.step != place:
        yield (
            "schedule",
            f"step {record.step}, but step_in_collection {record.step_in_collection} of collection"
            f" {record.collection} with {record.optimizer_steps} optimizer steps is step {place}",
        )


def _counts(record: TrainingRecord) -> Found:
    counts = record.counts
    for name in ("samples", "active_tokens", "model_tokens"):
        part, whole = getattr(counts, f"local_{name}"), getattr(counts, f"global_{name}")
        if part > whole:
            yield "counts", f"local_{name} {part} above global_{name} {whole}"
        elif record.world_size == 1 and part != whole:
            yield "counts", f"local_{name} {part} of one rank, global_{name} {whole}"
    for scope in ("global", "local"):
        samples, active, model = (
            getattr(counts, f"{scope}_{name}")
            for name in ("samples", "active_tokens", "model_tokens")
        )
        if active < samples or (not samples and active):
            yield "counts", f"{scope}: {active} active tokens in {samples} responses"
        if model < active + samples or (not samples and model):
            # every document also has a prompt of at least one token
            yield (
                "counts",
                f"{scope}: {model} model tokens for {active} active ones in {samples} documents",
            )
    if counts.global_samples % record.world_size:
        yield (
            "counts",
            f"global_samples {counts.global_samples} cannot be dealt to {record.world_size} ranks",
        )
    if counts.accumulation > counts.global_samples:
        yield (
            "counts",
            f"accumulation {counts.accumulation} forwards for {counts.global_samples} samples",
        )


def _denominators(record: TrainingRecord) -> Found:
    parts, counts = record.denominators, record.counts
    meant = (
        ("global_active_tokens", counts.global_active_tokens)
        if parts.reduction == "token"
        else ("global_samples", counts.global_samples)
    )
    for name, value, (source, expected) in (
        (f"policy ({parts.reduction} reduction)", parts.policy, meant),
        (
            "auxiliary_tokens",
            parts.auxiliary_tokens,
            ("global_model_tokens", counts.global_model_tokens),
        ),
        (
            "auxiliary_documents",
            parts.auxiliary_documents,
            ("global_samples", counts.global_samples),
        ),
    ):
        if value != expected:
            yield "denominators", f"{name} is {value}, {source} {expected}"
    for term in record.auxiliary:
        name = "auxiliary_tokens" if term.reduction == "token" else "auxiliary_documents"
        if term.denominator != getattr(parts, name):
            yield (
                "denominators",
                f"{term.name} ({term.reduction} reduction) is divided by {term.denominator},"
                f" {name} is {getattr(parts, name)}",
            )


def _objectives(record: TrainingRecord) -> Found:
    names = [term.name for term in record.auxiliary]
    if len(set(names)) != len(names):
        yield "auxiliary", f"a term stands twice: {', '.join(names)}"
    for term in record.auxiliary:
        if term.coefficient == 0 and (term.local or term.global_):
            yield (
                "auxiliary",
                f"{term.name} has coefficient 0 and terms {term.local}, {term.global_}",
            )
    if record.world_size == 1:
        for name, value in (("policy", record.policy), *zip(names, record.auxiliary, strict=True)):
            if not math.isclose(value.local, value.global_, rel_tol=OBJECTIVE_TOLERANCE):
                yield (
                    "objective",
                    f"{name}: local {value.local} of one rank, global {value.global_}",
                )


def _versions(record: TrainingRecord) -> Found:
    versions = record.versions
    if versions.trained != record.step - 1:
        yield (
            "versions",
            f"trained {versions.trained} before completed step {record.step}: a version counts"
            " completed steps",
        )
    for low, high in (("consumed", "published"), ("published", "trained")):
        if getattr(versions, low) > getattr(versions, high):
            yield (
                "versions",
                f"{low} {getattr(versions, low)} above {high} {getattr(versions, high)}",
            )
    lag = versions.trained - versions.consumed
    if versions.allowed_lag is not None and lag > versions.allowed_lag:
        yield (
            "versions",
            f"consumed {versions.consumed} is {lag} steps old; {versions.allowed_lag} allowed",
        )


def _kept_sets(record: TrainingRecord) -> Found:
    kept, active = record.kept_sets, record.counts.global_active_tokens
    if kept.tokens != active:
        yield "kept-sets", f"sets of {kept.tokens} tokens, {active} are active"
    if kept.mean > kept.max:
        yield "kept-sets", f"mean size {kept.mean:g} above the largest, {kept.max}"


def _diagnostics(record: TrainingRecord) -> Found:
    probes = record.diagnostics
    if record.step % probes.interval:
        yield "diagnostics", f"at step {record.step} with interval {probes.interval}"
    whole = math.hypot(*probes.gradient_norms.values())
    if not math.isclose(whole, probes.gradient_norm, rel_tol=NORM_TOLERANCE, abs_tol=1e-30):
        yield (
            "diagnostics",
            f"gradient_norm {probes.gradient_norm}, its parameters give {whole}",
        )
    for name, sample in probes.updates.items():
        if sample.changed > sample.values:
            yield (
                "diagnostics",
                f"updates.{name}: {sample.changed} of {sample.values} values changed",
            )
        bound = sample.max * math.sqrt(sample.changed / sample.values)
        least = sample.max / math.sqrt(sample.values)
        slack = 1 + NORM_TOLERANCE
        if not least / slack <= sample.rms <= bound * slack or (sample.changed > 0) != (
            sample.max > 0
        ):
            yield (
                "diagnostics",
                f"updates.{name}: rms {sample.rms}, max {sample.max} and {sample.changed} changed"
                f" of {sample.values} do not fit together",
            )


def follow_checks(before: TrainingRecord, record: TrainingRecord, skipped: int = 0) -> Found:
    """What a record shows after the one before it in its file.

    skipped: unreadable lines between them, each of which stands for one step.
    """
    due = before.step + skipped + 1
    if record.step == before.step:
        yield "steps", f"step {record.step} twice"
    elif record.step < before.step:
        yield "steps", f"step {record.step} after step {before.step}: goes backwards"
    elif record.step != due:
        yield "steps", f"step {record.step} after step {before.step}: a gap"
    for name in ("rank", "world_size", "optimizer_steps"):
        if getattr(record, name) != getattr(before, name):
            yield "run", f"{name} {getattr(record, name)}, before it was {getattr(before, name)}"
    if record.denominators.reduction != before.denominators.reduction:
        yield (
            "denominators",
            f"reduction {record.denominators.reduction}, before it was"
            f" {before.denominators.reduction}",
        )
    yield from changed_terms(before, record)
    if record.versions.published < before.versions.published:
        yield (
            "versions",
            f"published {record.versions.published} after {before.versions.published}",
        )
    if record.step == before.step + 1 and record.lr.used != before.lr.next:
        yield "lr", f"used {record.lr.used}, step {before.step} said next {before.lr.next}"


def history_checks(record: TrainingRecord, oldest_before: int, interval: int | None) -> Found:
    """What a record shows after all before it.

    oldest_before: oldest version consumed by the collection before. interval: that of the last
    diagnostics, or None.
    """
    if record.versions.consumed < oldest_before:
        yield (
            "versions",
            f"consumed {record.versions.consumed}, the collection before consumed {oldest_before}",
        )
    probes = record.diagnostics
    if interval and probes is None and record.step % interval == 0:
        yield "diagnostics", f"none at step {record.step}, interval {interval}"
    if interval and probes is not None and probes.interval != interval:
        yield "diagnostics", f"interval {probes.interval}, before it was {interval}"


_PER_RANK = ("rank", "seconds", "diagnostics")
_LOCAL = ("local", "local_samples", "local_active_tokens", "local_model_tokens")


def _shared(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shared(part) for key, part in value.items() if key not in _LOCAL}
    if isinstance(value, list):
        return [_shared(part) for part in value]
    return value


def _difference(one: Any, other: Any, place: str = "") -> str | None:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            if key not in one or key not in other:
                return f"{place}{key} is in one only"
            if found := _difference(one[key], other[key], f"{place}{key}."):
                return found
        return None
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            if found := _difference(*pair, f"{place[:-1]}[{index}]."):
                return found
        return None
    return None if one == other else f"{place[:-1]} is {one} and {other}"


def agreement_checks(one: TrainingRecord, other: TrainingRecord) -> Found:
    """Two ranks' records of one step must say the same of everything that is global."""
    plain = [
        {key: part for key, part in record.plain().items() if key not in (*_PER_RANK, "digest")}
        for record in (one, other)
    ]
    if found := _difference(_shared(plain[0]), _shared(plain[1])):
        yield "ranks", f"ranks {one.rank} and {other.rank} disagree: {found}"
    if (one.diagnostics is None) != (other.diagnostics is None):
        yield "ranks", f"only one of ranks {one.rank} and {other.rank} has diagnostics"


def all_ranks_checks(records: Sequence[TrainingRecord]) -> Found:
    """One step's records of every rank: local values add up or average to the global ones."""
    first = records[0]
    for name in ("samples", "active_tokens", "model_tokens"):
        added = sum(getattr(record.counts, f"local_{name}") for record in records)
        whole = getattr(first.counts, f"global_{name}")
        if added != whole:
            yield "counts", f"local_{name} of all ranks add up to {added}, global_{name} {whole}"
    groups = [("policy", [record.policy for record in records])]
    if len({len(record.auxiliary) for record in records}) == 1:
        groups += [
            (terms[0].name, list(terms))
            for terms in zip(*(record.auxiliary for record in records), strict=True)
        ]
    for name, values in groups:
        mean = math.fsum(value.local / len(values) for value in values)
        size = max(abs(value.local) for value in values)
        if abs(mean - values[0].global_) > OBJECTIVE_TOLERANCE * size:
            yield (
                "objective",
                f"{name}: the local values average to {mean}, global is {values[0].global_}",
            )
