"""The objective hook: Core trains, and only what it calls the loss is ours.

Core's train modules split a batch into microbatches, call a forward method for each inside the
context that says when gradients are synchronised, and run backward on the loss they get. `PackHook`
puts the policy objective of one pack in that forward's place; which method it is differs between
the dense train module (here) and that of mixture-of-experts models (`moe`). Accumulation,
synchronisation, clipping, schedule and optimizer step stay Core's.

Core divides a loss by the labels of its own rank, so with unequal masks the ranks would weigh
unequally. The objective here is already over the step's global denominators; Core divides by none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from olmo_core.nn.lm_head import LMOutputWithLoss
from olmo_core.train.train_module import TransformerTrainModule
from torch.distributed.fsdp import FSDPModule

from .errors import ContractError
from .grid import Grid
from .objective import (
    Denominators,
    ObjectiveConfig,
    PackInputs,
    Terms,
    policy_objective,
    response_logps,
    row_logps,
)
from .packing import AuxiliaryDenominators, Pack
from .routerterms import RouterTerms
from .routes import RouterShape

IGNORED = -100  # Core's label for a position without a loss; it only feeds Core's label count


@dataclass(frozen=True, slots=True, eq=False)
class PackWork:
    """One microbatch: a pack and, along its N response tokens, what the loss needs.

    inputs: None for a pack that is only scored. routes: int64 [L, layers, top k], the expert ids
    that its L tokens are to execute, or None.
    """

    pack: Pack
    inputs: PackInputs | None
    routes: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class StepContext:
    """What all microbatches of one optimizer step share; auxiliary is for router losses."""

    objective: ObjectiveConfig
    denominators: Denominators
    auxiliary: AuxiliaryDenominators | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PackOutput:
    """Detached results of one microbatch."""

    loss: torch.Tensor  # scalar that went through backward
    logps: torch.Tensor  # [N], nats, of this training forward
    terms: Terms
    router: RouterTerms | None = None  # None for a dense model


class Recorder:
    """What Core's train module asks of a trainer: the step, the horizon and a place for metrics."""

    dp_process_group = None
    global_batch_size = 0  # in tokens; Core only looks whether microbatches divide it

    def __init__(self, max_steps: int) -> None:
        self.global_step = 0
        self.max_steps = max_steps
        self.metrics: dict[str, Any] = {}

    def record_metric(self, name, value, reduce_type=None, namespace=None, **_):
        """Keep the latest value; nothing is reduced."""
        self.metrics[f"{namespace}/{name}" if namespace else name] = value

    def record_ce_loss(self, value, reduce_type=None):
        """Core's name for the loss; here it is the policy objective."""
        self.metrics["train/objective"] = value


class PackHook:
    """What makes one of Core's train modules train on packs: mix it in before the module's class.

    Train with `train_packs`, then `optim_step`. A subclass overrides the forward that its Core
    class calls for a microbatch, gives it `_pack_objective`, and keeps Core's as `_core_forward`.
    """

    #: called with the global gradient norm before clipping has any effect on weights; what it
    #: raises stops the step before schedule and optimizer
    before_step: Callable[[float], None] | None = None
    #: called with gradients as the backward left them, before clipping
    on_gradients: Callable[[], None] | None = None
    #: the exact setting's layout of a forward; None: documents one after the other
    grid: Grid | None = None

    _context: StepContext | None = None
    _work: Sequence[PackWork] = ()

    def _core_forward(self, input_ids: torch.Tensor, **others: Any) -> torch.Tensor:
        """Core's own forward of one row: logits [1, kept rows, V]."""
        raise NotImplementedError

    def _pack_context(self, item: PackWork) -> contextlib.AbstractContextManager[Any]:
        """What is open around forward and backward of a microbatch, or around its scoring."""
        return contextlib.nullcontext()

    #: layers, experts and experts a token; None for a dense model
    router_shape: RouterShape | None = None

    def _router_terms(self) -> RouterTerms | None:
        """What the routers did in the forward of a microbatch; None for a dense model."""
        return None

    def _train_mode(self) -> None:
        """Put the model into training mode, as Core does before a batch."""
        self.model.train()

    def train_packs(self, work: Sequence[PackWork], context: StepContext) -> list[PackOutput]:
        """Forward and backward of one optimizer step on this rank, one microbatch a pack.

        Gradients are added to what is there. Collective: every rank has the same number of packs.
        """
        longest = max(len(item.pack.tokens) for item in work)
        tokens = torch.zeros(len(work), longest, dtype=torch.long)
        labels = torch.full((len(work), longest), IGNORED, dtype=torch.long)
        for row, item in enumerate(work):
            pack = item.pack
            tokens[row, : len(pack.tokens)] = torch.from_numpy(pack.tokens)
            active = torch.from_numpy(pack.positions[pack.mask])
            labels[row, active] = torch.from_numpy(pack.targets[pack.mask])
        # one row a microbatch: the padding that makes rows equal is cut off in `model_forward`
        self.rank_microbatch_size = longest
        self._context, self._work = context, work
        self._outputs: list[PackOutput] = []
        try:
            self.train_batch({"input_ids": tokens, "labels": labels, "work": list(work)})
        finally:
            self._context, self._work = None, ()
        if len(self._outputs) != len(work):
            raise ContractError(
                "accumulation", f"{len(self._outputs)} forwards for {len(work)} packs"
            )
        return self._outputs

    @contextlib.contextmanager
    def _train_microbatch_context(self, micro_batch_idx: int, num_micro_batches: int):
        with super()._train_microbatch_context(micro_batch_idx, num_micro_batches):
            if not self._work:
                yield
                return
            with self._pack_context(self._work[micro_batch_idx]):
                yield

    def _pack_objective(self, work: Sequence[PackWork]) -> LMOutputWithLoss:
        """The policy objective of the one pack of a microbatch, in the shape that Core expects."""
        if len(work) != 1:
            raise ContractError("microbatch", f"{len(work)} packs in one microbatch")
        item, context = work[0], self._context
        objective = context.objective
        logps, entropy = self.pack_logps(
            item.pack, temperature=objective.temperature, entropy=bool(objective.entropy_coef)
        )
        loss, terms = policy_objective(logps, entropy, item.inputs, context.denominators, objective)
        self._outputs.append(PackOutput(loss.detach(), logps.detach(), terms, self._router_terms()))
        return LMOutputWithLoss(None, loss, loss.detach(), None)

    def pack_logps(
        self, pack: Pack, *, temperature: float, entropy: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probability and entropy of a pack's N response tokens, nats; one Core forward.

        Only the rows that predict a response token go through the vocabulary head; on a grid all
        of them do, so that its product has one shape too.
        """
        if self.grid is not None:
            tokens, positions = (
                torch.from_numpy(part).to(self.device) for part in self.grid.lay(pack)
            )
            return response_logps(
                self.grid_logits(tokens),
                tokens,
                positions,
                temperature=temperature,
                entropy=entropy,
                kept=pack.kept,
            )
        documents: dict[str, Any] = {}
        if len(pack.doc_lens) > 1:
            documents = {
                "doc_lens": torch.tensor([pack.doc_lens], dtype=torch.int32),
                "max_doc_lens": [max(pack.doc_lens)],
            }
        rows = torch.from_numpy(pack.positions).to(self.device)
        logits = self._core_forward(
            torch.from_numpy(pack.tokens)[None].to(self.device),
            logits_to_keep=rows[None],
            **documents,
        )
        return row_logps(
            logits[0],
            torch.from_numpy(pack.targets).to(self.device),
            temperature=temperature,
            entropy=entropy,
            kept=pack.kept,
        )

    def grid_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [1, documents * tokens, V] of one whole grid, int64 [documents * tokens]."""
        grid = self.grid
        return self._core_forward(
            tokens[None],
            doc_lens=torch.full((1, grid.documents), grid.tokens, dtype=torch.int32),
            max_doc_lens=[grid.tokens],
        )

    @torch.no_grad()
    def score_pack(
        self, pack: Pack, *, temperature: float, routes: np.ndarray | None = None
    ) -> torch.Tensor:
        """The same log-probabilities without a graph, [N] on the CPU, float32.

        routes: as in `PackWork`.
        """
        # the mode of training: without dropout it changes no number, and one mode for both
        # forwards leaves none to differ in
        self._train_mode()
        with self._pack_context(PackWork(pack, None, routes)):
            return self.pack_logps(pack, temperature=temperature)[0].float().cpu()

    def settle(self) -> None:
        """Make parameters readable after forwards without a backward."""

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """(Core's name, parameter) of the model; sharded ones are DTensors."""
        return self.model.named_parameters()


class PackTrainModule(PackHook, TransformerTrainModule):
    """Core's dense train module over packs."""

    def model_forward(self, input_ids, labels=None, **others):
        """Core's forward, or for a batch of `train_packs` the policy objective of one pack."""
        work = others.pop("work", None)
        if work is None:
            return super().model_forward(input_ids, labels=labels, **others)
        return self._pack_objective(work)

    def _core_forward(self, input_ids, **others):
        return super().model_forward(input_ids, **others)

    def _train_mode(self) -> None:
        self._set_model_mode("train")

    def settle(self) -> None:
        """Give every rank its shard again.

        FSDP leaves some weights whole after a forward without backward; whoever then reads or
        writes parameters would meet copies in place of the shards that the optimizer steps.
        """
        for part in self.model.modules():
            if isinstance(part, FSDPModule):
                part.reshard()

    def _clip_grad_norm(self, *args, **others):
        if self.on_gradients is not None:
            self.on_gradients()
        norm = super()._clip_grad_norm(*args, **others)
        if self.before_step is not None:
            self.before_step(float(norm))
        return norm
