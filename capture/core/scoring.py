"""When the training forward may serve as the anchor, and the proof that it may.

numpy only. The anchor of a collection is the trainer policy's log-probability of every response
token before any update. A standalone scoring pass always gives it. The training forward gives the
same numbers when nothing has changed the policy before it and nothing makes it differ: one
optimizer step per collection, no reference KL, no dropout. Even then the two forwards are compared
at the first update of a process and every `compare_interval` updates after it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .config import RunConfig
from .errors import ContractError, RefusedError

DEFAULT_TOLERANCE = 1e-4
"""Largest mean difference, nats a token, between the two forwards. In float32 a packed row and a
row alone differ by about 1e-6; one token bound to the wrong sample moves the mean far more."""

DEFAULT_COMPARE_INTERVAL = 10


@dataclass(frozen=True, slots=True)
class ScoringConfig:
    """force: always run the standalone pass. compare_interval: optimizer updates of this process
    from one comparison to the next. tolerance: largest mean |difference| that permits the skip.
    """

    force: bool = False
    compare_interval: int = DEFAULT_COMPARE_INTERVAL
    tolerance: float = DEFAULT_TOLERANCE

    def __post_init__(self) -> None:
        if self.compare_interval < 1:
            raise RefusedError(
                f"scoring.compare_interval must be at least 1, not {self.compare_interval}: a"
                " skipped pass is compared again from time to time",
                "scoring-interval",
            )
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise RefusedError(
                "scoring.tolerance must be a finite number of nats, at least 0, not"
                f" {self.tolerance}",
                "scoring-tolerance",
            )


@dataclass(frozen=True, slots=True)
class Decision:
    """What one collection does: run the standalone pass or not, compare it or not, and why."""

    run_pass: bool
    compare: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far the training forward was from the standalone pass, over active tokens, nats."""

    tokens: int
    mean_abs: float
    max_abs: float


def reasons_to_score(
    *, optimizer_steps: int, reference_kl: bool, dropout: float
) -> tuple[str, ...]:
    """Why the training forward cannot be the anchor; empty when it can."""
    reasons = []
    if optimizer_steps > 1:
        reasons.append(f"{optimizer_steps} optimizer steps per collection")
    if reference_kl:
        reasons.append("a reference KL")
    if dropout > 0:
        reasons.append(f"dropout {dropout:g}")
    return tuple(reasons)


class ScoringSchedule:
    """Decides for each collection of one process. Never saved: a resumed process compares again."""

    def __init__(
        self, config: ScoringConfig, *, optimizer_steps: int, reference_kl: bool, dropout: float
    ) -> None:
        self.config = config
        self.reasons = reasons_to_score(
            optimizer_steps=optimizer_steps, reference_kl=reference_kl, dropout=dropout
        )
        self._updates = 0
        self._last: int | None = None  # updates when the two forwards last agreed
        self._pending = False

    @classmethod
    def of(cls, config: RunConfig) -> ScoringSchedule:
        """That of a run."""
        own = config.scoring
        return cls(
            ScoringConfig(own.force, own.compare_interval, own.tolerance),
            optimizer_steps=config.steps_per_collection,
            reference_kl=config.objective.kl_coef > 0,
            dropout=config.model.dropout,
        )

    @property
    def updates(self) -> int:
        """Successful optimizer updates of this process."""
        return self._updates

    def decide(self) -> Decision:
        """Say what the next collection does. Asking twice gives the same answer."""
        if self.reasons:
            return Decision(True, False, "needed: " + " and ".join(self.reasons))
        if self.config.force:
            return Decision(True, False, "forced")
        if self._last is None:
            return self._compare("first update of this process")
        if self._updates - self._last >= self.config.compare_interval:
            return self._compare("periodic check")
        return Decision(False, False, "the training forward is the anchor")

    def _compare(self, reason: str) -> Decision:
        self._pending = True
        return Decision(True, True, reason)

    def accept(self, comparison: Comparison) -> None:
        """Judge the comparison that `decide` asked for, before the optimizer steps.

        Give the same, globally reduced, comparison on every rank so that all agree.
        Raises ContractError above the tolerance, or when it compared nothing.
        """
        if not comparison.tokens:
            raise ContractError("scoring-anchor", "the two forwards share no active token")
        # written so that NaN fails
        if not comparison.mean_abs <= self.config.tolerance:
            raise ContractError(
                "scoring-anchor",
                f"training forward and scoring pass differ by {comparison.mean_abs:.3g} nats a"
                f" token (at most {comparison.max_abs:.3g}) over {comparison.tokens} tokens,"
                f" scoring.tolerance = {self.config.tolerance:g} allows no more; with scoring.force"
                " = true every collection trains on the pass",
            )
        self._last = self._updates
        self._pending = False

    def advance(self, optimizer_steps: int = 1) -> None:
        """Count successful optimizer updates.

        Raises ContractError when a comparison that was asked for was never accepted.
        """
        if self._pending:
            raise ContractError("scoring-anchor", "an update without the comparison that was due")
        self._updates += optimizer_steps


def compare(
    standalone: Mapping[int, np.ndarray],
    training: Mapping[int, np.ndarray],
    masks: Mapping[int, np.ndarray],
) -> Comparison:
    """Compare log-probabilities [R] of the same samples, by sample index, over active tokens.

    Raises ContractError when the two do not cover the same samples and lengths.
    """
    if standalone.keys() != training.keys():
        odd = sorted(standalone.keys() ^ training.keys())
        raise ContractError("scoring-anchor", f"only one forward has the samples at {odd[:5]}")
    total, worst, tokens = 0.0, 0.0, 0
    for index, scored in standalone.items():
        trained, mask = training[index], masks[index]
        if not scored.shape == trained.shape == mask.shape:
            raise ContractError(
                "scoring-anchor",
                f"sample at index {index}: shapes {scored.shape}, {trained.shape}, {mask.shape}",
            )
        with np.errstate(invalid="ignore"):  # two infinities: not a number, which `accept` refuses
            gaps = np.abs(np.subtract(scored, trained, dtype=np.float64))[mask]
        total += float(gaps.sum())
        # np.max keeps NaN, the builtin would drop it
        worst = float(np.max([worst, *gaps])) if len(gaps) else worst
        tokens += len(gaps)
    return Comparison(tokens, total / tokens if tokens else 0.0, worst)


def merge(comparisons: list[Comparison]) -> Comparison:
    """Join the comparisons of several packs or ranks."""
    tokens = sum(part.tokens for part in comparisons)
    total = sum(part.mean_abs * part.tokens for part in comparisons)
    worst = float(np.max([0.0, *(part.max_abs for part in comparisons)]))
    return Comparison(tokens, total / tokens if tokens else 0.0, worst)
