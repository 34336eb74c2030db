"""What all ranks must agree on before an optimizer step: the plan, and that all is finite.

Core's skip-step optimizer multiplies a bad update by zero, and zero times NaN is NaN: it reports a
skipped step while weights and moments are already gone. So nothing that is not finite may reach it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from . import collective, scoring
from .errors import ContractError
from .hook import PackOutput
from .objective import Terms
from .packing import Pack, Plan
from .routerterms import RouterTerms
from .samples import Sample

if TYPE_CHECKING:
    from .actor import CoreActor

Scores = Mapping[int, np.ndarray]  # sample index to log-probabilities [R], nats


class BeforeStep:
    """The verdict between backward and optimizer, the same on every rank.

    scored: the anchor that a standalone pass gave for the samples of the collection, or None when
    this training forward is the anchor. compare: both forwards are there, and must agree.
    """

    def __init__(
        self,
        actor: CoreActor,
        packs: Sequence[Pack],
        samples: Sequence[Sample],
        scored: Scores | None,
        *,
        compare: bool,
    ) -> None:
        self.actor, self.packs, self.samples, self.scored = actor, packs, samples, scored
        self.compare = compare
        self.outputs: Sequence[PackOutput] = ()
        self.comparison: scoring.Comparison | None = None

    def __call__(self, norm: float) -> None:
        """norm: of the synchronised gradients, before clipping. Raises ContractError."""
        self.norm = norm
        self.logps: dict[int, np.ndarray] = {}
        self.local_terms = Terms.zero(self.actor.module.device)
        shape = self.actor.module.router_shape
        self.local_router = shape and RouterTerms.zero(shape, self.actor.module.device)
        for pack, output in zip(self.packs, self.outputs, strict=True):
            self.logps.update(pack.scatter(output.logps.float().cpu().numpy()))
            self.local_terms = self.local_terms + output.terms
            if shape is not None:
                self.local_router = self.local_router + output.router
        # the policy before any update of this collection: in a later step of it the training
        # forward has moved on, and its distance from the engine is learning as well as drift
        source = self.logps if self.scored is None else self.scored
        self.anchor = {index: source[index] for index in self.logps}
        self.local_objective = float(sum(float(output.loss) for output in self.outputs))
        self._finite()
        self._reduce()
        with collective.guard("before-step"):
            if self.comparison is not None:
                self.actor.scoring.accept(self.comparison)
            limit = self.actor.config.scoring.max_mean_drift
            if limit and not self.drift <= limit:
                raise ContractError(
                    "score-drift",
                    f"mean |log-probability difference| from the engine to the trainer is"
                    f" {self.drift:.4g} nats a token, scoring.max_mean_drift = {limit:g} allows no"
                    " more",
                )

    def _finite(self) -> None:
        step = self.actor.optimizer_step + 1
        # the loss of all ranks first: one rank's makes the gradient of every rank infinite
        for check, what, value in (
            ("non-finite-loss", "loss", self.local_objective),
            ("non-finite-loss", "router losses", self._router_losses()),
            ("non-finite-gradient", "gradient norm", self.norm),
        ):
            with collective.guard("before-step"):
                if not math.isfinite(value):
                    raise ContractError(check, f"optimizer step {step}: {what} {value}")

    def _router_losses(self) -> float:
        own = self.local_router
        return 0.0 if own is None else float(own.balancing + own.z)

    def _reduce(self) -> None:
        """One sum and one maximum over ranks for everything that is global."""
        own = scoring.Comparison(0, 0.0, 0.0)
        if self.compare:
            masks = {index: self.samples[index].loss_mask for index in self.logps}
            own = scoring.compare(self.anchor, self.logps, masks)
        gap = tokens = 0.0
        for index, anchor in self.anchor.items():
            sample = self.samples[index]
            active = sample.loss_mask
            difference = np.abs(anchor.astype(np.float64) - sample.behaviour_logp)[active]
            gap += float(difference.sum())
            tokens += len(difference)
        local = [self.local_objective, gap, tokens, own.tokens, own.mean_abs * own.tokens]
        parts = [torch.tensor(local, dtype=torch.float64), self.local_terms.sums.cpu()]
        if self.local_router is not None:
            parts.append(self.local_router.flat())
        sums = collective.total(torch.cat(parts))
        maxima = collective.largest(
            torch.cat(
                [torch.tensor([own.max_abs], dtype=torch.float64), self.local_terms.maxima.cpu()]
            )
        )
        self.objective = float(sums[0]) / self.actor.world_size
        self.drift = float(sums[1] / sums[2])
        end = len(local) + len(Terms.SUMS)
        self.terms = Terms(sums[len(local) : end], maxima[1:])
        self.router = None
        if self.local_router is not None:
            whole = RouterTerms.of_flat(sums[end:], self.actor.module.router_shape)
            self.router = whole.mean_of_losses(self.actor.world_size)
        if self.compare:
            compared = int(sums[3])
            self.comparison = scoring.Comparison(
                compared, float(sums[4]) / max(compared, 1), float(maxima[0])
            )


def digest(samples: Sequence[Sample], layout: Plan) -> str:
    """A hash of what a rank is about to train on and of how it is laid out, the same everywhere."""
    found = hashlib.sha256()
    for sample in samples:
        found.update(
            repr(
                (
                    sample.sample_id,
                    sample.group_id,
                    sample.prompt_len,
                    sample.reward,
                    sample.advantage,
                )
            ).encode()
        )
        for array in (
            sample.tokens,
            sample.loss_mask,
            sample.behaviour_logp,
            sample.behaviour_version,
        ):
            found.update(array.tobytes())
        if sample.routes is not None:
            found.update(sample.routes.tobytes())
        if sample.kept is not None:
            found.update(sample.kept.offsets.tobytes())
            found.update(sample.kept.ids.tobytes())
    for step in layout.steps:
        found.update(
            repr([[pack.sample_indexes for pack in packs] for packs in step.ranks]).encode()
        )
    return found.hexdigest()


def check_finite(check: str, sample: Sample, logps: np.ndarray) -> None:
    """Raise ContractError when an active token's log-probability, of [R], is not finite."""
    wrong = np.flatnonzero(sample.loss_mask & ~np.isfinite(logps))
    if len(wrong):
        raise ContractError(
            check, f"sample {sample.sample_id}: {logps[wrong[0]]} at response position {wrong[0]}"
        )


def check_tokens(samples: Sequence[Sample], hf_config: Any) -> None:
    """Raise ContractError for no sample, one too long for the model, or an unknown token id."""
    if not samples:
        raise ContractError("empty-batch", "no sample")
    words, longest = hf_config.vocab_size, hf_config.max_position_embeddings
    for sample in samples:
        if len(sample.tokens) > longest:
            raise ContractError(
                "length",
                f"sample {sample.sample_id}: {len(sample.tokens)} tokens, the model's"
                f" max_position_embeddings is {longest}",
            )
        kept = () if sample.kept is None else (sample.kept.ids,)
        largest = max(int(ids.max()) for ids in (sample.tokens, *kept))
        if largest >= words:
            raise ContractError(
                "token",
                f"sample {sample.sample_id}: token id {largest}, the model's vocab_size is {words}",
            )
