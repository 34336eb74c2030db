"""Denominators of two ranks: what goes wrong with a rank's own counts, and what is recorded.

Figures of chapter 5 of the second manual, from recorded findings and runs of a processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from figures import corelab
from figures.corelab import value
from figures.coreparts import bars, table
from figures.evidence import CORE_LAB, EvidenceError
from figures.registry import Figure, figure
from figures.sources import measured
from figures.style import Style
from figures.values import Value

RANKS = f"{CORE_LAB}/two-ranks"
KEPT = {"half": "half of them", "quarter": "a quarter", "eighth": "an eighth"}
"""Labels that the second rank keeps, by the name of their value."""


def _by_labels(what: str, found: Sequence[Value], shape: str, *more: Value) -> Figure:
    """Three bars, one for each share of labels in `KEPT`."""
    labels = list(KEPT.values())
    rows = [{"labels": label, what: one.low} for label, one in zip(labels, found, strict=True)]

    def draw(style: Style) -> Any:
        return bars(style, labels, found, ["failure"] * 3, log=False)

    return Figure(shape=shape, values=[*found, *more], rows=rows, draw=draw)


@figure("fig-core-5-local")
def local_denominators() -> Figure:
    """Relative error of Core's own two-rank gradient, by the share of labels on the second rank."""
    name = "local_denominators"
    errors = [
        value(key, name, "core_error", 0, unit="percent", scale=100, at=n)
        for n, key in enumerate(KEPT)
    ]
    equal = value("equal", name, "core_error_equal", 1, exponent=True)
    shape = "Three bars that grow as the second rank keeps fewer labels."
    return _by_labels("error", errors, shape, equal)


@figure("fig-core-5-direction")
def direction() -> Figure:
    """Cosine between Core's own two-rank gradient and that of one process."""
    name = "local_denominators"
    cosines = [value(key, name, "core_cosine", 2, at=n) for n, key in enumerate(KEPT)]
    shape = "Three bars that shrink as the second rank keeps fewer labels."
    return _by_labels("cosine", cosines, shape)


@figure("fig-core-5-own")
def own_denominators() -> Figure:
    """The policy objective of this trainer with local and with global denominators."""
    name = "local_denominators"
    return table(
        [
            ("active tokens of the first rank", _tokens("first", name, 0)),
            ("active tokens of the second rank", _tokens("second", name, 1)),
            ("each rank's own count, DDP", _percent("local_ddp", name, "own_local_ddp")),
            ("each rank's own count, FSDP", _percent("local_fsdp", name, "own_local_fsdp")),
            (
                "counts over all ranks, DDP",
                value("global_ddp", name, "own_global_ddp", 1, exponent=True),
            ),
            (
                "counts over all ranks, FSDP",
                value("global_fsdp", name, "own_global_fsdp", 1, exponent=True),
            ),
        ],
        what="Relative distance from the gradient of one process, and what it was measured on",
    )


def _tokens(name: str, source: str, at: int) -> Value:
    return value(name, source, "active", 0, unit="tokens", kind="count", at=at)


def _percent(name: str, source: str, key: str) -> Value:
    return value(name, source, key, 0, unit="percent", scale=100)


@figure("fig-core-5-record")
def recorded_counts() -> Figure:
    """Counts and denominators of the first step of the recorded run on two ranks."""

    def first(key: str, rank: int = 0) -> int:
        return corelab.column("two-ranks", key, rank=rank)[0]

    def count(name: str, number: int, what: str, noun: str) -> Value:
        return measured(name, number, "", 0, what=what, runs=[RANKS], kind="count", noun=noun)

    shared = ("denominators.policy", "denominators.auxiliary_tokens")
    if any(first(key) != first(key, 1) for key in shared):
        raise EvidenceError("two-ranks: denominators differ between the ranks")
    active, tokens, documents = (
        first(f"denominators.{key}")
        for key in ("policy", "auxiliary_tokens", "auxiliary_documents")
    )
    own = [first("counts.local_active_tokens", rank) for rank in (0, 1)]
    if sum(own) != active:
        raise EvidenceError(f"two-ranks: {own} active tokens of the ranks, {active} in all")
    response = "active tokens"
    rows = [
        ("active tokens of rank 0", count("rank0", own[0], "active:rank0", response)),
        ("active tokens of rank 1", count("rank1", own[1], "active:rank1", response)),
        ("active tokens of the step", count("active", active, "policy", response)),
        ("model tokens of the step", count("tokens", tokens, "aux tokens", "model tokens")),
        ("documents of the step", count("documents", documents, "aux documents", "documents")),
    ]
    ratio = measured(
        "ratio", tokens / active, "times", 1, what="model over active tokens", runs=[RANKS]
    )
    return table([*rows, ("model tokens over active tokens", ratio)], what="First step of the run")
