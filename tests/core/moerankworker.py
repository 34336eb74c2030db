"""One of two ranks: runs every scenario of test_moe_ranks.py and writes what it saw.

Started by torchrun, with the repository and this folder on PYTHONPATH. Core code with CPU
stand-ins; see `standins`.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path

import torch
from tiny import collection, lopsided, settings, tiny

from capture.core import collective, driver
from capture.core.actor import CoreActor
from capture.core.errors import CoreRunError
from capture.core.samples import Collection

KINDS = {
    "policy": {"core__router_aux_loss_weight": 0.0, "core__router_z_loss_weight": 0.0},
    "auxiliary": {"core__router_aux_loss_weight": 0.3, "core__router_z_loss_weight": 0.1},
    "combined": {"core__router_aux_loss_weight": 0.3, "core__router_z_loss_weight": 0.1},
}
#: with a large eps a weight's first step is nearly proportional to its gradient, not to its sign
STEADY = {"optimizer__eps": 1e-3}
MOE = {"model__family": "qwen3_moe", "parallel__world_size": 2, **STEADY}


def data_of(kind: str, number: int = 0) -> Collection:
    """Unequal masks on the two ranks; without advantages only router losses are left."""
    data = lopsided(collection(number))
    if kind != "auxiliary":
        return data
    samples = [dataclasses.replace(sample, advantage=0.0) for sample in data.samples]
    return Collection(samples, number)


def actor_of(ep: int, **changes) -> CoreActor:
    actor = CoreActor(settings(**{**MOE, "parallel__ep": ep, **changes}))
    actor.init(tiny("qwen3_moe"))
    return actor


def export(actor) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in actor.export()}


def step(actor, kind: str) -> dict:
    """One optimizer step: what was back-propagated, raw gradients, weights and moments after."""
    raw: dict[str, torch.Tensor] = {}

    def keep(number, named):
        raw.update({name: p.grad.clone() for name, p in named.items()})

    actor.on_gradients = keep
    result = actor.train(data_of(kind, actor.optimizer_step), actor.optimizer_step)[0]
    return {
        "objective": result.objective,
        "norm": result.gradient_norm,
        "raw": raw,
        "weights": export(actor),
        "states": {
            key.removeprefix("module."): value.to_local().clone()
            for key, value in actor.module.optim.states.items()
        },
    }


def failing(ep: int) -> dict:
    """Rank 1 alone has a NaN in its gradient, then its optimizer alone would skip."""
    found = {}
    for name, changes in (("gradient", {}), ("skip", {"optimizer__kind": "skip_step_adamw"})):
        actor = actor_of(ep, **changes)
        before = export(actor)
        if collective.rank() == 1 and name == "gradient":

            def spoil(module, inputs, output):
                if output.requires_grad:
                    output.register_hook(lambda gradient: gradient * math.nan)

            actor.module.model.lm_head.w_out.register_forward_hook(spoil)
        if collective.rank() == 1 and name == "skip":
            actor.module.optim._losses = [torch.tensor(-100.0)] * 80
            actor.module.optim._grad_norms = [torch.tensor(1.0)] * 80
        try:
            actor.train(collection(0), 0)
            check = None
        except CoreRunError as error:
            check = getattr(error, "check", str(error))
        after = export(actor)
        found[name] = {
            "check": check,
            "same": all(torch.equal(before[key], after[key]) for key in before),
            "step": actor.optimizer_step,
        }
    return found


def resume(ep: int, folder: Path) -> dict:
    """Two steps, a checkpoint, one more; against a new actor that takes the checkpoint."""
    actor = actor_of(ep, schedule__kind="cosine")
    for number in range(2):
        actor.train(collection(number), number)
    target = folder / f"native-{ep}"
    saved = export(actor)
    actor.save(target, {"cursor": 5})
    unchanged = all(torch.equal(saved[name], value) for name, value in actor.export())
    actor.train(collection(2), 2)
    other = actor_of(ep, schedule__kind="cosine")
    extra = other.restore(target)
    other.train(collection(2), 2)
    one, two = export(actor), export(other)
    states = actor.module.optim.states
    return {
        "saving changed nothing": unchanged,
        "weights": all(torch.equal(one[name], two[name]) for name in one),
        "states": all(
            torch.equal(value.to_local(), other.module.optim.states[key].to_local())
            for key, value in states.items()
        ),
        "extra": extra,
    }


def whole_run(ep: int, folder: Path) -> dict:
    """A run of the driver, and the same folder resumed with another EP degree."""
    save = folder / f"run-{ep}"
    short = {
        **MOE, "parallel__ep": ep, "model__d_model": 32, "model__threads": 1,
        "rollout__num_rollout": 3, "rollout__max_new_tokens": 4, "task__train_prompts": 16,
        "task__eval_prompts": 4, "miles__save": str(save), "model__warm_steps": 4,
        "miles__check_weight_update_equal": True, "batch__pack_tokens": 32,
        "core__diagnostic_interval": 1,
    }  # fmt: skip
    driver.run(settings(**short, miles__debug_exit_after_rollout=2))
    refused = None
    try:
        driver.run(settings(**{**short, "parallel__ep": 3 - ep}, miles__load=str(save)))
    except CoreRunError as error:
        refused = str(error)
    hf = folder / f"hf-{ep}"
    driver.run(settings(**short, miles__load=str(save), miles__save_hf=str(hf)))
    return {"refused": refused, "log": (save / "run.log").read_text()}


def main(folder: Path) -> None:
    collective.start(2)
    found: dict = {}
    for ep in (1, 2):
        own: dict = {"start": export(actor_of(ep))}
        for kind, changes in KINDS.items():
            for recompute in (False, True):
                actor = actor_of(ep, core__recompute=recompute, **changes)
                own[kind, recompute] = step(actor, kind)
        own["scores"] = actor.score(collection(9).samples[:7])
        own["failing"] = failing(ep)
        own["resume"] = resume(ep, folder)
        own["run"] = whole_run(ep, folder)
        found[ep] = own
    torch.save(found, folder / f"rank{collective.rank()}.pt")
    collective.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
