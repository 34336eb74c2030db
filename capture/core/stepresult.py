"""What the trainer actor says about a completed optimizer step."""

from __future__ import annotations

from dataclasses import dataclass

from . import scoring
from .objective import Terms
from .packing import Denominators, StepPlan
from .routerterms import RouterTerms
from .verdict import Scores


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """One completed optimizer step, as this rank saw it. Terms are sums, not means."""

    collection: int
    step_in_collection: int  # from 0
    step: int  # completed optimizer steps of the run, this one included; the new policy version
    trained_version: int  # policy version of the weights that it started from
    consumed_version: int  # oldest behaviour version of its samples
    local_objective: float  # the mean over ranks is `objective`
    objective: float
    gradient_norm: float  # global, before clipping
    lr_used: float
    lr_next: float
    seconds: float
    denominators: Denominators
    plan: StepPlan
    accumulation: int  # forwards and backwards of this rank, fillers too
    sample_indexes: tuple[int, ...]  # of this rank's samples in the collection
    local_terms: Terms
    terms: Terms  # over all ranks
    local_router: RouterTerms | None  # None for a dense model
    router: RouterTerms | None  # over all ranks: losses are the global ones, counts are sums
    anchor: Scores  # trainer-policy log-probabilities of this rank's samples
    scored: bool  # the anchor came from the standalone pass
    scoring_reason: str
    comparison: scoring.Comparison | None  # of both forwards, over all ranks
