"""Core's router with replayed expert ids and the router objectives of `[core]`.

`install` swaps the class of every `MoERouterV2` of a model for `PackRouter`; names, parameters and
everything that is not asked for stay Core's. `armed` gives all routers the metadata of one forward
and must stay open until its backward has run, since recomputation runs the routers again.

Released Core divides its router losses by the label count that it also divides the language-model
loss by: with masked prompts that is too few, and the coefficient grows by model tokens over labels.
Here they have denominators of their own: all model tokens, or documents, of the optimizer step.
The formulas are `auxiliary`'s; pack, token, token goes through Core's own functions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from olmo_core.nn.moe.router import MoERouterGatingFunction
from olmo_core.nn.moe.v2.checkpointing import is_checkpoint_recomputing
from olmo_core.nn.moe.v2.router import MoERouterV2
from torch import nn

from .auxiliary import (
    RouterSettings,
    balancing_loss,
    counted_balancing,
    document_counts,
    settings_of,
    z_loss,
)
from .errors import ContractError, RefusedError
from .routerterms import LayerWork, RouterTerms, RouterWork
from .routes import RouterShape, recorded_rows

__all__ = [
    "PackRouter",
    "RouterSettings",
    "RouterShape",
    "RouterTerms",
    "RouterWork",
    "armed",
    "balancing_loss",
    "collect",
    "install",
    "routers_of",
    "settings_of",
    "shape_of",
    "z_loss",
]


class PackRouter(MoERouterV2):
    """Core's router; `install` makes one of an existing `MoERouterV2`."""

    settings: RouterSettings
    layer: int  # among the model's routers, from 0
    work: RouterWork | None

    def forward(self, x, scores_only, *, loss_div_factor=None, segment_ids=None):
        """Core's forward. The last item of the result also carries the forward's metadata."""
        if scores_only:
            return super().forward(x, scores_only, loss_div_factor=loss_div_factor)
        work = self._work_of(x)
        weights, ids, counts, info = super().forward(x, False, loss_div_factor=loss_div_factor)
        if work is not None and not is_checkpoint_recomputing():
            work.layers[self.layer].executed = ids
        # along with the loss's own inputs, so that no later forward's metadata can meet them
        return weights, ids, counts, (*info[:4], ids, work)

    def _work_of(self, x: torch.Tensor) -> RouterWork | None:
        """The metadata of this forward, or of the one that is being recomputed."""
        work, training = self.work, self.training and torch.is_grad_enabled()
        if work is None:
            if training or self.settings.replay:
                raise ContractError(
                    "router-context",
                    f"router {self.layer} runs outside of the context of its pack: open it before"
                    " the forward, and close it after the backward",
                )
            return None
        if len(x) != 1 or x.shape[1] != sum(work.doc_lens):
            raise ContractError(
                "router-context",
                f"router {self.layer}: input {tuple(x.shape[:2])} for documents of"
                f" {work.doc_lens} tokens; one unpadded instance a forward is supported",
            )
        if training and work.live:
            raise ContractError("router-context", "a live forward in training")
        own = work.layers[self.layer]
        if not is_checkpoint_recomputing():
            own.forwards += 1
        else:
            own.recomputed += 1
            if own.recomputed > own.forwards:
                raise ContractError(
                    "router-context",
                    f"router {self.layer}: a backward recomputes a forward of another context",
                )
        return work

    def get_top_k(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and ids [1, L, K]: the recorded ids with this forward's weights, or Core's."""
        work = self.work
        own = None if work is None else work.layers[self.layer]
        if own is None or own.ids is None:
            return super().get_top_k(scores)
        if work.rows is not None and not is_checkpoint_recomputing():
            # detached: Core turns gradients on around its choice, and a checkpoint would keep them
            live = super().get_top_k(scores.detach())[1].sort(-1).values
            changed = (live != own.ids.sort(-1).values).any(-1)[0]
            own.differing = (changed & work.rows).sum()
        return scores.gather(-1, own.ids), own.ids

    def compute_aux_loss(
        self, scores, logits, counts, batched_counts, ids, work, *, accumulate_metrics=True
    ):
        """The weighted router losses of this forward as the scalar that Core attaches, or None."""
        if not (self.training and torch.is_grad_enabled()) or work is None or not work.documents:
            return None
        if work.denominators is None:
            raise ContractError("router-context", "a training forward without denominators")
        # Core adds to running metrics: empty them, so that this forward's terms can be read
        kept = [total.clone() for total in self._running()]
        for total in self._running():
            total.zero_()
        compute = self._native if self.settings.native else self._documents
        loss = compute(scores, logits, counts, batched_counts, ids, work, accumulate_metrics)
        if accumulate_metrics:
            own = work.layers[self.layer]
            own.counts, own.balancing, own.z = counts.detach().long(), *self._weighted()
        for total, before in zip(self._running(), kept, strict=True):
            total += before
        return loss

    def _running(self) -> list[torch.Tensor]:
        """Core's running sums of unweighted losses; None of a loss whose coefficient is 0."""
        return [total for total in (self.load_balancing_loss, self.z_loss) if total is not None]

    def _weighted(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What stands in the running sums, times the coefficients, in float64."""
        zero = torch.zeros((), dtype=torch.float64, device=self.device)
        parts = (self.load_balancing_loss, self.lb_loss_weight), (self.z_loss, self.z_loss_weight)
        balancing, z = (zero if total is None else total.double() * by for total, by in parts)
        return balancing, z

    def _counted(self, scores: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The ids [L, K] of the histogram: those that ran, or what Core's router would choose."""
        if self.settings.count_source == "router_selected":
            # Core's own choice, also among equal scores, where other ways to sort choose others
            return super().get_top_k(scores.detach())[1][0]
        return ids[0]

    def _native(self, scores, logits, counts, batched_counts, ids, work, accumulate):
        """Core's own computation over our denominator of model tokens."""
        executed = counts
        if self.settings.count_source == "router_selected":
            chosen = self._counted(scores, ids)
            owner = torch.zeros_like(chosen[:, 0])
            batched_counts = document_counts(chosen, owner, 1, self.num_experts)
            counts = batched_counts[0]
        loss = super().compute_aux_loss(
            scores,
            logits,
            counts,
            batched_counts,
            work.denominators.local("token"),
            accumulate_metrics=accumulate,
        )
        if accumulate:
            self.batch_size_per_expert += executed - counts  # the load is what ran
        return loss

    def _documents(self, scores, logits, counts, batched_counts, ids, work, accumulate):
        """The objectives that know documents."""
        own, loss = self.settings, None
        for weight, running, value in (
            (
                self.lb_loss_weight,
                self.load_balancing_loss,
                lambda: counted_balancing(
                    scores[0],
                    self._counted(scores, ids),
                    work.doc_lens,
                    grouping=own.grouping,
                    reduction=own.reduction,
                    denominator=work.denominators.local(own.reduction),
                ),
            ),
            (
                self.z_loss_weight,
                self.z_loss,
                lambda: z_loss(
                    logits,
                    work.doc_lens,
                    reduction=own.z_reduction,
                    denominator=work.denominators.local(own.z_reduction),
                ),
            ),
        ):
            if weight is None:
                continue
            unweighted = value()
            loss = weight * unweighted if loss is None else loss + weight * unweighted
            if accumulate:
                running += unweighted.detach()
        if accumulate:
            self.batch_size_per_expert += counts
        return loss


def routers_of(model: nn.Module) -> list[MoERouterV2]:
    """The routers of routed experts, in the order of the layers."""
    return [
        part
        for name, part in model.named_modules()
        if isinstance(part, MoERouterV2) and not name.endswith("shared_experts_router")
    ]


def shape_of(model: nn.Module) -> RouterShape | None:
    """Layers, experts and experts a token of a model; None of one without routed experts."""
    routers = routers_of(model)
    if not routers:
        return None
    return RouterShape(len(routers), routers[0].num_experts, routers[0].top_k)


def install(model: nn.Module, settings: RouterSettings) -> RouterShape:
    """Make every router of a model a `PackRouter`; again for other settings.

    Raises RefusedError for a model without routers, one that is compiled, and a router that chooses
    or weighs experts otherwise than by the top of a plain softmax, before any is changed.
    """
    routers = routers_of(model)
    if not routers:
        raise RefusedError("router objective controls need the Core MoE backend", "router-dense")
    if getattr(model, "compile_enabled", False):
        raise RefusedError("replay and router objectives need compile_model = false", "compile")
    shape = shape_of(model)
    for number, router in enumerate(routers):
        _refuse(router, number)
        if (router.num_experts, router.top_k) != (shape.experts, shape.topk):
            raise RefusedError(
                f"router {number} has {router.num_experts} experts and chooses {router.top_k},"
                f" router 0 {shape.experts} and {shape.topk}",
                "router-shape",
            )
    for number, router in enumerate(routers):
        router.__class__ = PackRouter
        router.settings, router.layer, router.work = settings, number, None
        # Core's word for a loss that is not computed; a weight of 0.0 would compute it
        router.lb_loss_weight = settings.balancing_weight or None
        router.z_loss_weight = settings.z_weight or None
        router._load_balancing_loss = router._z_loss = None
    return shape


def _refuse(router: MoERouterV2, number: int) -> None:
    """Raise RefusedError for a router whose choices or losses are not those of the formulas."""
    for wrong, what, row in (
        (hasattr(router, "emo"), "EMO routing", "router-emo"),
        (type(router) not in (MoERouterV2, PackRouter), type(router).__name__, "router-class"),
        (
            router.gating_function != MoERouterGatingFunction.softmax,
            f"gating {router.gating_function}; a plain softmax is needed",
            "router-softmax",
        ),
        (
            router.use_bias or router.score_bias is not None or router.bias_gamma is not None,
            "routing biases",
            "router-bias",
        ),
        (
            router.n_group is not None or router.topk_group is not None,
            "expert groups",
            "router-groups",
        ),
        (
            router.uniform_expert_assignment or router.random_expert_assignment,
            "uniform or random assignment",
            "router-assignment",
        ),
        (router.global_load_balancing, "global load balancing", "router-global"),
        (
            router.lb_loss_granularity != "local_batch",
            f"balancing granularity {router.lb_loss_granularity}",
            "router-granularity",
        ),
        (router.orth_loss_weight is not None, "the router orthogonal loss", "router-orthogonal"),
        (router.jitter_eps is not None, "jitter of the router's input", "router-jitter"),
        (
            router.use_recompute_cache,
            "Core's cache of expert ids, whose weights are not those of the ids",
            "router-cache",
        ),
        (router.tp_mesh is not None, "trainer tensor parallelism", "tensor-parallel"),
        (router.cp_mesh is not None, "trainer context parallelism", "context-parallel"),
    ):
        if wrong:
            raise RefusedError(f"router {number}: {what}", row)


@contextlib.contextmanager
def armed(model: nn.Module, work: RouterWork) -> Iterator[RouterWork]:
    """Give a model's routers the metadata of one forward, until its backward has run.

    Does nothing for a dense model. Raises ContractError for routes where nothing is replayed, none
    where the run replays, a wrong shape, and a context inside another.
    """
    routers = [router for router in routers_of(model) if isinstance(router, PackRouter)]
    if not routers:
        if work.routes is not None:
            raise ContractError("routes", "recorded expert ids for a model without routers")
        yield work
        return
    _arm(routers, work)
    try:
        yield work
    finally:
        for router in routers:
            router.work = None


def _arm(routers: Sequence[PackRouter], work: RouterWork) -> None:
    first = routers[0]
    if any(router.work is not None for router in routers):
        raise ContractError("router-context", "a context of a pack is open inside another")
    if work.routes is None and first.settings.replay and not work.live:
        raise ContractError("routes", "no recorded expert ids, and routing replay is on")
    if work.routes is not None and (work.live or not first.settings.replay):
        raise ContractError("routes", "recorded expert ids, and routing replay is off")
    work.layers = [LayerWork() for _ in routers]
    if work.routes is not None:
        wanted = (sum(work.doc_lens), len(routers), first.top_k)
        if work.routes.shape != wanted:
            raise ContractError(
                "routes", f"expert ids of shape {work.routes.shape} for a pack, not {wanted}"
            )
        ids = torch.from_numpy(np.ascontiguousarray(work.routes, np.int64)).to(first.device)
        for layer, own in enumerate(work.layers):
            own.ids = ids[None, :, layer].contiguous()
        if work.compare and work.documents:
            work.rows = torch.from_numpy(recorded_rows(work.doc_lens)).to(first.device)
    for router in routers:
        router.work = work


def collect(model: nn.Module) -> RouterTerms | None:
    """The sums of the forward that has just run; None for a dense model. Inside of `armed`."""
    routers = [router for router in routers_of(model) if isinstance(router, PackRouter)]
    if not routers:
        return None
    work = routers[0].work
    if work is None or not all(own.forwards for own in work.layers):
        raise ContractError("router-context", "no forward to collect from: its context is closed")
    device = routers[0].device
    shape = RouterShape(len(routers), routers[0].num_experts, routers[0].top_k)
    terms = RouterTerms.zero(shape, device)
    if not work.documents:
        return terms
    trained = work.layers[0].balancing is not None
    compared = work.layers[0].differing is not None
    return RouterTerms(
        balancing=sum(own.balancing for own in work.layers) if trained else terms.balancing,
        z=sum(own.z for own in work.layers) if trained else terms.z,
        counts=torch.stack([own.counts for own in work.layers]) if trained else terms.counts,
        differing=torch.stack([own.differing for own in work.layers])
        if compared
        else terms.differing,
        recorded=len(recorded_rows(work.doc_lens)) - len(work.doc_lens) if compared else 0,
    )
