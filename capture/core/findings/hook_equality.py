"""Does Core's training loop around the objective add anything to the gradient?

The same pack through Core's `train_batch`, and by hand: forward, objective, backward. Then one
forward of all samples against one forward a sample, and bfloat16 autocast against float32.
"""

from __future__ import annotations

import numpy as np
import torch

from ..hook import PackWork, StepContext
from ..objective import pack_inputs, policy_objective
from ..packing import UNLIMITED, plan
from . import common
from .record import Finding, Value


def through_core(actor, samples, pack_tokens) -> dict[str, torch.Tensor]:
    """Gradients of one optimizer step as Core's train module accumulates them."""
    step = plan(samples, world_size=1, optimizer_steps=1, pack_tokens=pack_tokens).steps[0]
    work = [PackWork(pack, pack_inputs(pack, samples)) for pack in step.ranks[0]]
    actor.module.train_packs(work, StepContext(actor.objective, step.denominators))
    found = common.gradients(actor)
    actor.module.zero_grads()
    return found


def by_hand(actor, samples) -> dict[str, torch.Tensor]:
    """The same without Core's loop, all samples in one pack."""
    step = plan(samples, world_size=1, optimizer_steps=1, pack_tokens=UNLIMITED).steps[0]
    (pack,) = step.ranks[0]
    logps, _ = actor.module.pack_logps(pack, temperature=1.0)
    inputs = pack_inputs(pack, samples)
    policy_objective(logps, None, inputs, step.denominators, actor.objective)[0].backward()
    found = common.gradients(actor)
    actor.module.zero_grads()
    return found


def measure() -> Finding:
    """Run it; see the module."""
    actor, samples = common.actor_of(), common.collection(4).samples
    whole = through_core(actor, samples, UNLIMITED)
    hand = by_hand(actor, samples)
    single = through_core(actor, samples, None)
    low = through_core(common.actor_of(model__dtype="bfloat16"), samples, UNLIMITED)
    largest = max(float((whole[name] - hand[name]).abs().max()) for name in whole)
    scores = actor.score(samples)
    again = actor.score(samples[::-1])[::-1]
    return Finding(
        name="",
        outcome="reproduced" if largest == 0.0 else "differs",
        noted="direct against Core's train_batch 0.0; accumulation 2.2e-8 of 0.158; bf16 autocast"
        " 0.00525 relative",
        claim="Core's loop changes the gradient of the objective by {core_against_hand};"
        " one sample a forward against all in one: {accumulation}; bfloat16: {bfloat16}.",
        values={
            "core_against_hand": Value(
                largest, "1", "largest difference of a gradient entry", "exact"
            ),
            "accumulation": Value(
                common.distance(single, whole), "1",
                "relative gradient difference, one sample a forward against one pack",
                "rounding", 2e-6,
            ),
            "bfloat16": Value(
                common.distance(low, whole), "1",
                "relative gradient difference, bfloat16 autocast against float32", "close", 0.05,
            ),
            "order": Value(
                max(float(np.abs(a - b).max()) for a, b in zip(scores, again, strict=True)),
                "nats", "largest change of a score when the samples come in another order",
                "exact",
            ),
        },
    )  # fmt: skip
