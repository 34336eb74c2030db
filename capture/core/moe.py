"""Mixture-of-experts models: Core's second MoE stack and its train module around packs.

The same facade as `dense`: `build`, `load_hf`, `export_hf`. Experts may be spread over ranks, which
is expert parallelism: each rank then holds a part of every layer's experts and all of the rest.
Core's optimizer divides expert gradients by the number of those ranks when it takes them in; before
that they are that many times larger, so local gradient norms are no global ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from olmo_core.distributed.parallel import DataParallelType
from olmo_core.optim.moe_optimizer import OLMoDDPOptimizer, OLMoDDPOptimizerConfig
from olmo_core.train.train_module.transformer.config import (
    TransformerDataParallelConfig,
    TransformerExpertParallelConfig,
)
from olmo_core.train.train_module.transformer.ddp_train_module import OLMoDDPTrainModule

from . import collective, dense, docmask, moemodel, router, standinops
from .config import RunConfig
from .hook import PackHook, PackWork
from .schedule import core_scheduler


class PackOptimizer(OLMoDDPOptimizer):
    """Core's optimizer of this stack, stopped between the gradient norm and the step.

    It always has Core's skip-step form; `may_skip` says whether it uses it.
    """

    may_skip = False
    on_gradients: Callable[[], None] | None = None
    before_step: Callable[[float], None] | None = None

    def _copy_model_grads_to_main_grads(self) -> None:
        if self.on_gradients is not None:
            self.on_gradients()
        super()._copy_model_grads_to_main_grads()

    def _clip_grad(self) -> torch.Tensor:
        try:
            norm = super()._clip_grad()
            if self.before_step is not None:
                self.before_step(float(norm))
        except BaseException:
            self._dealloc_main_grad()
            raise
        return norm

    def get_step_factor(self) -> torch.Tensor:
        """1 for a step, 0 for a skipped one."""
        if self.may_skip:
            return super().get_step_factor()
        return torch.ones((), device=self.device)


class PackOptimizerConfig(OLMoDDPOptimizerConfig):
    """Builds a `PackOptimizer`."""

    @classmethod
    def optimizer(cls):
        """The class that `build` makes."""
        return PackOptimizer


class PackMoETrainModule(PackHook, OLMoDDPTrainModule):
    """Core's train module of mixture-of-experts models over packs."""

    def model_forward_no_pipeline(self, input_ids, labels=None, **others):
        """Core's forward, or for a batch of `train_packs` the policy objective of one pack."""
        work = others.pop("work", None)
        if work is None:
            return super().model_forward_no_pipeline(input_ids, labels=labels, **others)
        return self._pack_objective(work)

    def _core_forward(self, input_ids, **others):
        return super().model_forward_no_pipeline(input_ids, **others)

    def _pack_context(self, item: PackWork):
        context = self._context
        work = router.RouterWork(
            routes=item.routes,
            doc_lens=item.pack.doc_lens,
            denominators=None if context is None else context.auxiliary,
            documents=item.pack.responses,
            # a pack that is scored without ids is one of another policy than sampled it
            live=context is None and item.routes is None,
            compare=context is not None,
        )
        return router.armed(self.model, work)

    def _router_terms(self) -> router.RouterTerms | None:
        return router.collect(self.model)

    def optim_step(self) -> None:
        """Core's step, with the callbacks of `PackHook` inside it."""
        self.optim.on_gradients, self.optim.before_step = self.on_gradients, self.before_step
        try:
            super().optim_step()
        finally:
            self.optim.on_gradients = self.optim.before_step = None

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Core's names, without those of the wrapper that synchronises gradients."""
        return self.model.module.named_parameters()

    def main_weight(self, name: str) -> torch.Tensor:
        """The flat float32 weights that the optimizer steps, this rank's part."""
        # the optimizer names parameters as the wrapper does
        return self.optim.states[f"module.{name}.main"].to_local()


def build(config: RunConfig, hf: Any) -> PackMoETrainModule:
    """The train module of a mixture-of-experts run, with random weights: `load_hf` comes after."""
    core = moemodel.core_config(config, hf)
    low = config.model.dtype == "bfloat16"
    dtype = torch.bfloat16 if low else torch.float32
    standinops.install(config.model.device, config.parallel.ep, dtype)
    # Core's train module of this stack needs a process group, even of one process
    collective.start_alone(config.model.device)
    model = core.build(init_device="meta")
    docmask.install(model)
    shape = router.install(model, router.settings_of(config))
    longest = hf.max_position_embeddings
    own = config.optimizer
    module = PackMoETrainModule(
        model=model,
        optim=PackOptimizerConfig(
            lr=own.lr,
            betas=(own.beta1, own.beta2),
            eps=own.eps,
            weight_decay=own.weight_decay,
            max_grad_norm=own.max_grad_norm or math.inf,
            # shards of the optimizer's state would have to be found again at every export
            use_distributed=False,
            # whether all is finite is agreed by all ranks before the step, with an error that
            # says what; Core's check would end one process
            check_nan_inf_grad=False,
        ),
        rank_microbatch_size=longest,
        max_sequence_length=longest,
        dp_config=TransformerDataParallelConfig(
            name=DataParallelType.ddp, accumulate_grads_in_fp32=low
        ),
        ep_config=(
            TransformerExpertParallelConfig(degree=config.parallel.ep)
            if config.parallel.ep > 1
            else None
        ),
        scheduler=core_scheduler(config.schedule),
        device=dense.device_of(config),
    )
    module.router_shape = shape
    module.optim.may_skip = own.kind == "skip_step_adamw"
    return module


def load_hf(module: PackMoETrainModule, hf: Any, state: Mapping[str, torch.Tensor]) -> None:
    """Put HF weights into model and optimizer. Every rank calls it with the whole state.

    Experts may be one tensor a layer or one an expert. Raises CheckpointError for a missing,
    unknown or misshapen weight, before any is changed.
    """
    given = moemodel.checked(hf, state)
    known = moemodel.names(hf.num_hidden_layers)
    with torch.no_grad():
        for name, _ in module.named_parameters():
            value = moemodel.to_core(known[name], given[known[name]])
            if _of_experts(name):
                value = _own_experts(module, value)
            module.main_weight(name).copy_(value.reshape(-1))
        module.optim._copy_main_params_to_model_params()


def export_hf(module: PackMoETrainModule, hf: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(HF name, whole float32 tensor), one at a time, all experts of a layer in one tensor.

    A collective under expert parallelism: every rank gets every expert. Without it tensors may be
    the optimizer's own memory: copy what must outlive the next step.
    """
    known = moemodel.names(hf.num_hidden_layers)
    for name, parameter in module.named_parameters():
        value = module.main_weight(name).detach().view(parameter.shape)
        if _of_experts(name) and module.ep_enabled:
            parts = [torch.empty_like(value) for _ in range(dist.get_world_size(_group(module)))]
            dist.all_gather(parts, value.contiguous(), group=_group(module))
            value = torch.cat(parts)
        yield known[name], moemodel.to_hf(known[name], value, hf)


def _of_experts(name: str) -> bool:
    return ".routed_experts." in name


def _group(module: PackMoETrainModule) -> dist.ProcessGroup:
    """The ranks that hold a layer's experts together."""
    return module.ep_mp_group


def _own_experts(module: PackMoETrainModule, value: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor of all experts."""
    if not module.ep_enabled:
        return value
    return value.chunk(dist.get_world_size(_group(module)))[dist.get_rank(_group(module))]
