"""One of two ranks: runs every scenario of test_ranks.py and writes what it saw.

Started by torchrun, with the repository and this folder on PYTHONPATH. Scenarios share one process
group; each ends with both ranks in step.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path

import numpy as np
import olmo_core.distributed.parallel as parallel
import torch
from olmo_core.distributed.utils import get_local_tensor
from tiny import collection, lopsided, settings, tiny

from capture.core import collective
from capture.core.actor import CoreActor
from capture.core.errors import ContractError
from capture.core.hook import PackWork, StepContext
from capture.core.objective import pack_inputs
from capture.core.packing import Denominators, plan
from capture.core.samples import Collection

LAYOUTS = ("ddp", "fsdp")


def actor_of(layout: str, **changes) -> CoreActor:
    parallel._WORLD_MESH = None  # Core builds one mesh a process, and a run has one actor
    actor = CoreActor(settings(parallel__world_size=2, parallel__data_parallel=layout, **changes))
    actor.init(tiny())
    return actor


def export(actor) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in actor.export()}


def full_gradients(actor) -> dict[str, torch.Tensor]:
    found = {}
    for name, weight in actor.named_parameters().items():
        gradient = weight.grad
        found[name] = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return {name: value.clone() for name, value in found.items()}


def gradients(layout: str, data: Collection, *, local: bool, pack_tokens=None) -> dict:
    """Synchronised gradients; local: each rank divides by its own tokens, as Core would."""
    actor = actor_of(layout)
    step = plan(data.samples, world_size=2, optimizer_steps=1, pack_tokens=pack_tokens).steps[0]
    packs = step.ranks[collective.rank()]
    counts = step.denominators
    if local:
        own = sum(pack.active_tokens for pack in packs)
        counts = Denominators(own, sum(pack.responses for pack in packs), 1)
    work = [PackWork(pack, pack_inputs(pack, data.samples)) for pack in packs]
    actor.module.train_packs(work, StepContext(actor.objective, counts))
    found = full_gradients(actor)
    actor.module.zero_grads()
    return {
        "gradients": found,
        "packs": len(packs),
        "fillers": sum(pack.is_filler for pack in packs),
        "active": sum(pack.active_tokens for pack in packs),
    }


def learn(layout: str, **changes) -> dict:
    actor = actor_of(layout, schedule__kind="linear", **changes)
    scores = actor.score(collection(9).samples[:7])
    shards = [tuple(get_local_tensor(p).shape) for p in actor.named_parameters().values()]
    results = []
    for number in range(2):
        for result in actor.steps(collection(number), actor.optimizer_step):
            results.append(
                {
                    "local": result.local_objective,
                    "objective": result.objective,
                    "norm": result.gradient_norm,
                    "lr": result.lr_used,
                    "terms": result.terms.as_dict(),
                    "local_terms": result.local_terms.as_dict(),
                    "samples": result.sample_indexes,
                    "compared": result.comparison and result.comparison.max_abs,
                }
            )
    return {"shards": shards, "weights": export(actor), "results": results, "scores": scores,
            "after": actor.score(collection(9).samples)}  # fmt: skip


def poison(actor) -> None:
    """Every gradient of this rank's logits becomes NaN; the loss stays finite."""

    def spoil(module, inputs, output):
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient * math.nan)

    actor.module.model.lm_head.w_out.register_forward_hook(spoil)


def on_one(data: Collection, rank: int, **values) -> Collection:
    """The collection, but on `rank` the first sample differs."""
    if collective.rank() != rank:
        return data
    samples = list(data.samples)
    samples[0] = dataclasses.replace(samples[0], **values)
    return Collection(samples, data.index)


def failures(layout: str) -> dict:
    """What happens on both ranks when only rank 1 has a problem."""
    data = collection(0)
    second = collective.rank() == 1
    own_share = plan(data.samples, world_size=2, optimizer_steps=1, pack_tokens=None)
    packs_of_second = own_share.steps[0].ranks[1]
    mine = max(packs_of_second, key=lambda pack: len(pack.positions)).sample_indexes[0]

    def huge() -> Collection:
        samples = list(data.samples)
        # the same collection everywhere; only rank 1 trains on this sample, and overflows
        samples[mine] = dataclasses.replace(
            samples[mine], advantage=3e38, loss_mask=np.ones(samples[mine].response_len, bool),
            behaviour_logp=np.full(samples[mine].response_len, -4.0),
        )  # fmt: skip
        return Collection(samples, 0)

    def shorter() -> Collection:
        return Collection(data.samples[:6], 0) if second else data

    def other_order() -> Collection:
        return Collection(data.samples[::-1], 0) if second else data

    def rate(actor) -> None:
        if second:
            actor.module.optim.param_groups[0]["initial_lr"] *= 2

    def version(actor) -> None:
        if second:
            actor._step = actor._recorder.global_step = 1

    def gradient(actor) -> None:
        if second:
            poison(actor)

    def skip(actor) -> None:
        if second:
            actor.module.optim._losses = [torch.tensor(-100.0)] * 80
            actor.module.optim._grad_norms = [torch.tensor(1.0)] * 80

    def packs(actor) -> None:
        if second:
            changed = actor.config.batch.model_copy(update={"pack_tokens": 64})
            actor.config = actor.config.model_copy(update={"batch": changed})

    def score(actor) -> None:
        if second:
            own = actor.module.score_pack
            actor.module.score_pack = lambda *a, **o: own(*a, **o) + 0.1

    def crash(actor) -> None:
        if second:
            actor._inputs = lambda *a: 1 / 0

    skipping = {"optimizer__kind": "skip_step_adamw"}
    cases = {
        "reward": (lambda: on_one(data, 1, reward=math.nan), None, {}),
        "advantage": (lambda: on_one(data, 1, advantage=math.inf), None, {}),
        "loss": (huge, None, {}),
        "gradient": (lambda: data, gradient, {}),
        "size": (shorter, None, {}),
        "order": (other_order, None, {}),
        "packs": (lambda: data, packs, {}),
        "rate": (lambda: data, rate, {}),
        "version": (lambda: data, version, {}),
        "anchor": (lambda: data, score, {}),
        "crash": (lambda: data, crash, {}),
        "skip": (lambda: data, skip, skipping),
    }
    found = {}
    for name, (make, disturb, changes) in cases.items():
        actor = actor_of(layout, **changes)
        before = export(actor)
        if disturb is not None:
            disturb(actor)
        try:
            actor.train(make(), 0)
            check = detail = None
        except ContractError as error:
            check, detail = error.check, error.detail
        after = export(actor)
        found[name] = {
            "check": check,
            "detail": detail,
            "same": [name for name in before if not torch.equal(before[name], after[name])] == [],
            "step": actor.optimizer_step if name != "version" else 0,
        }
    return found


def resume(layout: str, folder: Path) -> dict:
    """Two steps, a checkpoint, one more; against a new actor that takes the checkpoint."""
    actor = actor_of(layout, schedule__kind="cosine")
    for number in range(2):
        actor.train(collection(number), number)
    target = folder / f"native-{layout}"
    actor.save(target, {"cursor": 5})
    actor.train(collection(2), 2)
    other = actor_of(layout, schedule__kind="cosine")
    extra = other.restore(target)
    result = other.train(collection(2), 2)[0]
    one, two = export(actor), export(other)
    return {
        "same": all(torch.equal(one[name], two[name]) for name in one),
        "extra": extra,
        "lr": result.lr_used,
        "wanted": actor.rate(3),
    }


def main(folder: Path) -> None:
    collective.start(2)
    data = lopsided(collection(0))
    found: dict = {}
    for layout in LAYOUTS:
        found[layout] = {
            "global": gradients(layout, data, local=False),
            "local": gradients(layout, data, local=True),
            "packed": gradients(layout, data, local=False, pack_tokens=24),
            "learn": learn(layout),
            "packed learn": learn(layout, batch__pack_tokens=40, objective__kl_coef=0.05,
                                  objective__reduction="response"),
            "failures": failures(layout),
            "resume": resume(layout, folder),
        }  # fmt: skip
    torch.save(found, folder / f"rank{collective.rank()}.pt")
    collective.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
