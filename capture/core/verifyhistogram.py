"""What the probability errors of a contract record must fulfil: bins, quantiles and their parts.

Pure functions that yield (check, detail). They need no torch and recompute all that is said twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from . import histogram
from .contractschema import LengthSegment, Segment, TrainingRecord

Found = Iterator[tuple[str, str]]

SUM_TOLERANCE = 1e-9
"""Relative, for means that were reduced in float64."""

_POSITIONS = {
    high: np.bincount(histogram.thirds_of(high), minlength=3).tolist()
    for high in histogram.LENGTH_BOUNDS
}
"""Positions in each third of the longest response of a bucket; shorter ones have no more."""


def error_checks(record: TrainingRecord) -> Found:
    """What the probability errors of one record show by themselves and beside its counts."""
    table = record.probability_error
    if tuple(table.bounds) != histogram.BOUNDS:
        yield "histogram", f"bounds {table.bounds} are not the fixed ones {list(histogram.BOUNDS)}"
        return
    thirds = [(f"thirds.{name}", getattr(table.thirds, name)) for name in histogram.THIRDS]
    fields = type(table.lengths).model_fields
    lengths = [
        (f"lengths.{info.alias}", getattr(table.lengths, name)) for name, info in fields.items()
    ]
    for name, segment in (("all", table.all), *thirds, *lengths):
        yield from _segment(name, segment)
    if table.all.tokens != record.counts.global_active_tokens:
        yield (
            "histogram",
            f"{table.all.tokens} observations, global_active_tokens"
            f" {record.counts.global_active_tokens}",
        )
    for group, parts in (("thirds", thirds), ("lengths", lengths)):
        yield from _partition(group, table.all, [segment for _, segment in parts])
    responses = sum(segment.responses for _, segment in lengths)
    if responses != record.counts.global_samples:
        yield (
            "histogram",
            f"{responses} responses in the length buckets, global_samples"
            f" {record.counts.global_samples}",
        )
    for (name, segment), high in zip(lengths, (*histogram.LENGTH_BOUNDS, math.inf), strict=True):
        most = segment.responses * high if segment.responses else 0
        if not segment.responses <= segment.tokens <= most:
            yield (
                "histogram",
                f"{name}: {segment.tokens} active tokens in {segment.responses} responses",
            )
    yield from _room(thirds, lengths)


def _room(thirds: Sequence[tuple[str, Segment]], lengths: Sequence[tuple[str, Any]]) -> Found:
    """No third may hold more tokens than responses of these lengths have positions in it."""
    if lengths[-1][1].responses:  # as long as one likes
        return
    for third, (name, segment) in enumerate(thirds):
        most = sum(
            part.responses * _POSITIONS[high][third]
            for (_, part), high in zip(lengths, histogram.LENGTH_BOUNDS, strict=False)
        )
        if segment.tokens > most:
            yield (
                "histogram",
                f"{name}: {segment.tokens} active tokens, responses of these lengths have at most"
                f" {most} positions there",
            )


def _segment(name: str, segment: Segment | LengthSegment) -> Found:
    counts, total = segment.counts, sum(segment.counts)
    if segment.tokens != total:
        yield "histogram", f"{name}: tokens {segment.tokens}, the counts add up to {total}"
        return
    given = [key for key in ("mean", "max", "upper") if getattr(segment, key) is not None]
    if not total:
        if given:
            yield "histogram", f"{name}: {', '.join(given)} without observations"
        return
    if len(given) < 3:
        lacking = [key for key in ("mean", "max", "upper") if key not in given]
        yield "histogram", f"{name}: no {', '.join(lacking)} for {total} observations"
        return
    for quantile, fraction in histogram.QUANTILES.items():
        value, expected = (
            getattr(segment.upper, quantile),
            histogram.quantile_upper(counts, fraction),
        )
        if value != expected:
            yield (
                "quantile",
                f"{name}.upper.{quantile} is {_bound(value)}, the counts say {_bound(expected)}",
            )
    top = max(index for index, count in enumerate(counts) if count)
    if int(histogram.bin_of([segment.max])[0]) != top:
        yield (
            "histogram",
            f"{name}: max {segment.max} is not in the highest bin that is filled, {top}",
        )
    low, high = histogram.mean_bounds(counts)
    slack = SUM_TOLERANCE * max(segment.mean, low)
    if not low - slack <= segment.mean <= min(high, segment.max) + slack:
        yield (
            "histogram",
            f"{name}: mean {segment.mean}, the counts allow {low} to {min(high, segment.max)}",
        )


def _bound(value: float | None) -> str:
    return "null (above 1.0)" if value is None else repr(value)


def _partition(group: str, whole: Segment, parts: Sequence[Segment]) -> Found:
    added = [sum(column) for column in zip(*(part.counts for part in parts), strict=True)]
    if added != list(whole.counts):
        where = next(i for i, (a, b) in enumerate(zip(added, whole.counts, strict=True)) if a != b)
        yield (
            "histogram",
            f"{group}: bin {where} adds up to {added[where]}, all has {whole.counts[where]}",
        )
    filled = [part for part in parts if part.max is not None]
    if not filled or whole.max is None:
        return
    if max(part.max for part in filled) != whole.max:
        yield "histogram", f"{group}: largest max {max(p.max for p in filled)}, all has {whole.max}"
    means = [(part.tokens, part.mean) for part in filled if part.mean is not None]
    tokens = sum(n for n, _ in means)
    if whole.mean is None or not tokens:
        return
    mean = sum(n * value for n, value in means) / tokens
    if not math.isclose(mean, whole.mean, rel_tol=SUM_TOLERANCE, abs_tol=1e-300):
        yield "histogram", f"{group}: means add up to {mean}, all has {whole.mean}"
