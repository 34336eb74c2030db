"""The trainer actor: initialise, score, train, save, restore, export.

One actor is one rank. All methods but the properties are collectives: every rank calls them in the
same order, with the same samples. Failures are agreed before anything changes: a ContractError
leaves weights, optimizer state, schedule and step count as they were, on every rank. The exception
is a step that Core's optimizer skipped or that broke inside it, which ends the run.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import collective, models, scoring
from .config import RunConfig
from .errors import CheckpointError, ContractError
from .grid import Grid
from .hook import PackHook, PackWork, Recorder, StepContext
from .keptweights import KeptWeights
from .objective import ObjectiveConfig, pack_inputs
from .packing import Pack, Plan, plan
from .routes import check_samples, pack_routes
from .samples import Collection, Sample, check_active_inputs, check_kept_sets
from .schedule import check_rate, rate_of
from .skipstep import averages, check_stepped, keeps_averages, set_averages
from .stepresult import StepResult
from .verdict import BeforeStep, Scores, check_finite, check_tokens, digest


class CoreActor:
    """Trains one policy. Build it, `init` it, and use it until `close`.

    on_gradients(step, named parameters): called with the local gradients before clipping.
    after_step(step, named parameters): called when the optimizer has stepped.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        on_gradients: Callable[[int, Mapping[str, torch.Tensor]], None] | None = None,
        after_step: Callable[[int, Mapping[str, torch.Tensor]], None] | None = None,
    ) -> None:
        from . import runtime, support

        support.evaluate(config)
        runtime.check()
        self.config = config
        self.on_gradients = on_gradients
        self.after_step = after_step
        self.module: PackHook | None = None
        self.hf_config: Any = None
        self._owns_group = collective.start(config.parallel.world_size, config.model.device)
        self.objective = ObjectiveConfig.of(config)
        self.rate = rate_of(config.optimizer, config.schedule, config.total_steps)
        self.scoring = scoring.ScoringSchedule.of(config)
        self._step = 0
        self._reference: KeptWeights | None = None

    # -- life ------------------------------------------------------------------------------------

    def init(self, source: Path | str | tuple[Any, Mapping[str, torch.Tensor]]) -> None:
        """Build the train module and load HF weights: a folder, or (HF config, state).

        They are also the reference policy of a KL, before and after any `restore`.
        """
        hf, state = source if isinstance(source, tuple) else models.read(source)
        self._backend, self.module = models.train_module(self.config, hf, state)
        self.hf_config = hf
        self._recorder = Recorder(max_steps=self.rate.horizon)
        self.module._attach_trainer(self._recorder)
        self._step = 0
        if self.objective.kl_coef:
            self._reference = KeptWeights(self.module.model)

    def close(self) -> None:
        """Leave the process group, if this actor or its train module made it."""
        if self._owns_group:
            collective.stop()
            self._owns_group = False
        collective.stop_alone()

    @property
    def optimizer_step(self) -> int:
        """Completed optimizer steps of the run; the policy version of the weights."""
        return self._step

    policy_version = optimizer_step

    @property
    def rank(self) -> int:
        """This rank's number."""
        return collective.rank()

    @property
    def world_size(self) -> int:
        """Ranks that train."""
        return collective.world_size()

    @property
    def lr_next(self) -> float:
        """The learning rate of the next optimizer step."""
        return self.rate(self._step + 1)

    def named_parameters(self) -> dict[str, torch.Tensor]:
        """Core's parameters; sharded ones are DTensors."""
        return dict(self._ready().named_parameters())

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(HF name, whole float32 tensor), one at a time. Under FSDP every rank iterates.

        Without sharding the tensors are the model's own memory: copy them before the next step.
        """
        return self._backend.export_hf(self._ready(), self.hf_config)

    def save(self, folder: Path, extra: Mapping[str, Any] | None = None) -> None:
        """Core's native checkpoint in a new folder, with each rank's state, `extra` and random
        state. A manifest makes it a checkpoint of a run: `checkpoint.CheckpointStore`.
        """
        from . import checkpoint

        state = {"actor": self.train_state(), "extra": dict(extra or {})}
        checkpoint.save_native(Path(folder), self._ready(), state)

    def restore(self, folder: Path) -> dict[str, Any]:
        """Continue from a folder that `save` wrote; gives its `extra`. Call `init` before.

        Core would load the folder of another world size: check the manifest first.
        """
        from . import checkpoint

        state = checkpoint.load_native(Path(folder), self._ready())
        with collective.guard("restore"):
            self.load_train_state(state["actor"])
        collective.same("restore", "the optimizer step", self._step)
        return dict(state["extra"])

    def train_state(self) -> dict[str, Any]:
        """What Core saves neither with the model nor with the optimizer: step and averages."""
        kept = averages(self._ready().optim)
        rolling = {name: [float(v) for v in values] for name, values in kept.items()} or None
        return {"global_step": self._step, "lr_next": self.lr_next, "rolling": rolling}

    def load_train_state(self, state: Mapping[str, Any]) -> None:
        """Continue after `state`. Call it when Core has loaded model and optimizer.

        Raises CheckpointError when the run's schedule gives another rate for the next step than
        the run that saved had.
        """
        step = int(state["global_step"])
        wanted = float(state["lr_next"])
        if not math.isclose(self.rate(step + 1), wanted, rel_tol=1e-9):
            raise CheckpointError(
                f"the checkpoint's next learning rate is {wanted!r}, this run's schedule gives"
                f" {self.rate(step + 1)!r} for optimizer step {step + 1}: optimizer.lr, [schedule]"
                " and the length of the run must stay as they were"
            )
        optim = self._ready().optim
        if keeps_averages(optim):
            kept = state["rolling"]
            if kept is None:
                raise CheckpointError(
                    "the checkpoint lacks the averages of the skip-step optimizer"
                )
            device = self.module.device
            kept = {
                name: [torch.tensor(v, device=device) for v in values]
                for name, values in kept.items()
            }
            set_averages(optim, kept)
        self._step = self._recorder.global_step = step

    # -- scoring ---------------------------------------------------------------------------------

    def score(self, samples: Sequence[Sample], *, reference: bool = False) -> list[np.ndarray]:
        """Log-probabilities of every sample's response tokens, float32 [R], on every rank.

        reference: under the first policy instead of the present one.
        """
        with collective.guard("inputs"):
            self._ready()
            check_tokens(samples, self.hf_config)
            if not reference:
                check_samples(
                    samples, self._ready().router_shape, replay=self.config.replays_routes
                )
            missing = -len(samples) % self.world_size
            padded = [*samples, *[samples[-1]] * missing] if samples else []
            layout = plan(
                padded,
                world_size=self.world_size,
                optimizer_steps=1,
                pack_tokens=self.config.pack_tokens,
                grid=Grid.of(self.config),
            )
        collective.same("rank-schedule", "the samples to score", digest(padded, layout))
        with self._weights_of(reference):
            own = self._score(layout, padded, replay=self.config.replays_routes and not reference)
        found: dict[int, np.ndarray] = {}
        for part in collective.gather(own):
            found.update(part)
        return [found[index] for index in range(len(samples))]

    def _score(
        self, layout: Plan, samples: Sequence[Sample], *, replay: bool
    ) -> dict[int, np.ndarray]:
        """This rank's share of a plan, in the packs in which it will train.

        replay: with the recorded expert ids. The reference policy never sampled with them, and
        routes by itself.
        """
        module, found = self._ready(), {}
        for step in layout.steps:
            for pack in step.ranks[self.rank]:
                logps = module.score_pack(
                    pack,
                    temperature=self.objective.temperature,
                    routes=pack_routes(pack, samples) if replay else None,
                )
                found.update(pack.scatter(logps.numpy()))
        module.settle()
        with collective.guard("scoring"):
            for index, logps in found.items():
                check_finite("non-finite-score", samples[index], logps)
        return found

    def _weights_of(self, reference: bool) -> contextlib.AbstractContextManager[None]:
        """The reference policy's weights in the model while it is open, or nothing."""
        if not reference:
            return contextlib.nullcontext()
        if self._reference is None:
            raise ContractError("reference", "objective.kl_coef is 0: no reference policy is kept")
        return self._reference.in_place()

    # -- training --------------------------------------------------------------------------------

    def train(self, collection: Collection, policy_version: int) -> list[StepResult]:
        """All optimizer steps of a collection; see `steps`."""
        return list(self.steps(collection, policy_version))

    def steps(self, collection: Collection, policy_version: int) -> Iterator[StepResult]:
        """Train on a collection, one optimizer step for each item taken.

        policy_version: what the driver's clock says the weights are. Raises ContractError on every
        rank for inputs that are not finite or not the same everywhere, for a clock that disagrees,
        and for a loss or gradient that is not finite, before the optimizer sees it.
        """
        samples = collection.samples
        with collective.guard("inputs"):
            self._ready()
            check_active_inputs(samples)
            check_kept_sets(samples, replay=self.config.rollout.use_sampling_replay)
            check_tokens(samples, self.hf_config)
            check_samples(samples, self._ready().router_shape, replay=self.config.replays_routes)
            if len(samples) != self.config.samples_per_collection:
                raise ContractError(
                    "collection-size",
                    f"collection {collection.index} has {len(samples)} samples, not"
                    f" {self.config.samples_per_collection}",
                )
            if policy_version != self._step:
                raise ContractError(
                    "policy-clock",
                    f"the clock says version {policy_version}, the trainer has completed"
                    f" {self._step} optimizer steps",
                )
            layout = plan(
                samples,
                world_size=self.world_size,
                optimizer_steps=self.config.steps_per_collection,
                pack_tokens=self.config.pack_tokens,
                grid=Grid.of(self.config),
            )
        collective.same(
            "rank-schedule",
            "the plan (version, collection, packs of a rank in each step, digest)",
            (
                self._step,
                collection.index,
                [step.packs_per_rank for step in layout.steps],
                digest(samples, layout),
            ),
        )
        decision = self.scoring.decide()
        scored = None
        if decision.run_pass:
            scored = self._score(layout, samples, replay=self.config.replays_routes)
        ref = None
        if self.objective.kl_coef:
            with self._weights_of(reference=True):
                ref = self._score(layout, samples, replay=False)
        for number in range(len(layout.steps)):
            yield self._train_step(collection, layout, number, scored, ref, decision)

    def _train_step(
        self,
        collection: Collection,
        layout: Plan,
        number: int,
        scored: Scores | None,
        ref: Scores | None,
        decision: scoring.Decision,
    ) -> StepResult:
        started = time.perf_counter()
        module, step_plan, samples = self._ready(), layout.steps[number], collection.samples
        packs = step_plan.ranks[self.rank]
        with collective.guard("inputs"):
            work = [
                PackWork(
                    pack,
                    self._inputs(pack, samples, scored, ref),
                    pack_routes(pack, samples) if self.config.replays_routes else None,
                )
                for pack in packs
            ]
            lr_used = check_rate(
                module.scheduler, module.optim.param_groups, self.rate, self._step + 1
            )
        kept = averages(module.optim)
        self._recorder.global_step = self._step + 1
        before = BeforeStep(self, packs, samples, scored, compare=decision.compare)
        module.on_gradients = self._on_gradients
        module.before_step = before
        try:
            context = StepContext(self.objective, step_plan.denominators, step_plan.auxiliary)
            before.outputs = module.train_packs(work, context)
            module.optim_step()
        except BaseException:
            # the optimizer has not run, or the run is over: leave nothing for a later step
            self._recorder.global_step = self._step
            set_averages(module.optim, kept)
            module.zero_grads()
            module.settle()
            raise
        finally:
            module.on_gradients = module.before_step = None
        with collective.guard("optimizer-step"):
            check_stepped(module.optim, lr_used, self._step + 1)
        module.zero_grads()
        self._step += 1
        self.scoring.advance()
        if self.after_step is not None:
            self.after_step(self._step, self.named_parameters())
        own = tuple(index for pack in packs for index in pack.sample_indexes)
        return StepResult(
            collection=collection.index,
            step_in_collection=number,
            step=self._step,
            trained_version=self._step - 1,
            consumed_version=min(samples[i].oldest_version for i in step_plan.sample_indexes),
            local_objective=before.local_objective,
            objective=before.objective,
            gradient_norm=before.norm,
            lr_used=lr_used,
            lr_next=self.lr_next,
            seconds=time.perf_counter() - started,
            denominators=step_plan.denominators,
            plan=step_plan,
            accumulation=len(packs),
            sample_indexes=own,
            local_terms=before.local_terms,
            terms=before.terms,
            local_router=before.local_router,
            router=before.router,
            anchor=before.anchor,
            scored=scored is not None,
            scoring_reason=decision.reason,
            comparison=before.comparison,
        )

    def _inputs(
        self, pack: Pack, samples: Sequence[Sample], scored: Scores | None, ref: Scores | None
    ) -> Any:
        return pack_inputs(pack, samples, old_logp=scored, ref_logp=ref, device=self.module.device)

    def _on_gradients(self) -> None:
        if self.on_gradients is not None:
            self.on_gradients(self._step + 1, self.named_parameters())

    # -- inside ----------------------------------------------------------------------------------

    def _ready(self) -> PackHook:
        if self.module is None:
            raise ContractError("actor", "init has not been called")
        return self.module
