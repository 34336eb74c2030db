"""What a loss that is not a number leaves in the weights, by Core's two optimizers.

Core's own train module and optimizer, without any check of this trainer in between. The skip-step
optimizer multiplies the update by 0 when it skips, and 0 times NaN is NaN. The same step through
the trainer, which looks at the loss and the gradient norm before the optimizer does.

The skip-step optimizer judges the loss that Core records and, where the train module clips, the
gradient norm too. It skips what lies far above the recent ones, and looks at neither downwards: so
a loss far below them is skipped for its gradient norm, or passes where there is no norm.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from ..errors import ContractError
from ..samples import Collection
from . import common
from .record import Finding, Value

STEPS = 6  # ordinary steps before the bad one
LENGTH = 32


def step_with(kind: str, factor: float, *, clips: bool = True) -> dict[str, float]:
    """One bad step after ordinary ones: what is reported, and what became of the weights.

    factor: what the bad step's loss is multiplied by. clips: without, the optimizer gets no norm.
    """
    # clipping is Core's own 1.0; the window is shortened so that a few steps fill it
    actor = common.actor_of(optimizer__kind=kind, optimizer__max_grad_norm=1.0)
    module = actor.module
    if not clips:
        module.max_grad_norm = None
    module.rank_microbatch_size = 4 * LENGTH
    if kind == "skip_step_adamw":
        module.optim.rolling_interval_length = STEPS
    forward = type(module).model_forward
    scale = 1.0

    def scaled(input_ids, labels=None, **others):
        found = forward(module, input_ids, labels=labels, **others)
        if labels is None:
            return found
        # the loss that Core records is the one that the optimizer judges
        return found._replace(loss=found.loss * scale, ce_loss=found.ce_loss * scale)

    module.model_forward = scaled
    generator = torch.Generator().manual_seed(2)
    for number in range(STEPS + 1):
        scale = 1.0 if number < STEPS else factor
        tokens = torch.randint(1, 96, (4, LENGTH), generator=generator)
        actor._recorder.global_step = number + 1
        before = {name: value.clone() for name, value in actor.export()}
        module.train_batch({"input_ids": tokens, "labels": tokens})
        module.optim_step()
        module.zero_grads()
    after = dict(actor.export())
    count = sum(value.numel() for value in after.values())
    bad = sum(int((~torch.isfinite(value)).sum()) for value in after.values())
    moved = max(float((after[name] - before[name]).nan_to_num().abs().max()) for name in after)
    skipped = float(getattr(module.optim, "step_skipped", torch.zeros(())))
    return {"skipped": skipped, "bad": bad / count, "moved": moved}


def checked() -> tuple[bool, bool]:
    """(the trainer raised before the optimizer, its weights are as before)."""
    actor = common.actor_of(optimizer__kind="skip_step_adamw")
    data = common.collection(0)
    samples = [dataclasses.replace(s, advantage=3e38, reward=0.0) for s in data.samples]
    before = {name: value.clone() for name, value in actor.export()}
    try:
        actor.train(Collection(tuple(samples), 0), 0)
        raised = False
    except ContractError as error:
        raised = error.check.startswith("non-finite")
    after = dict(actor.export())
    return raised, all(torch.equal(after[name], before[name]) for name in before)


def measure() -> Finding:
    """Run it; see the module."""
    large = step_with("skip_step_adamw", 1000.0)
    nan = step_with("skip_step_adamw", math.nan)
    plain = step_with("adamw", math.nan)
    low = step_with("skip_step_adamw", -1000.0)
    alone = {
        factor: step_with("skip_step_adamw", factor, clips=False) for factor in (1000.0, -1000.0)
    }
    raised, same = checked()
    return Finding(
        name="",
        row=3,
        outcome="reproduced" if nan["skipped"] == 1.0 and nan["bad"] > 0 else "not reproduced",
        noted="SkipStepAdamW on NaN reports skipped = 1.0, the parameters are NaN",
        claim="After a loss that is not a number Core's SkipStepAdamW reports"
        " step_skipped = {nan_skipped}, and {nan_bad} of the weights are not numbers. A loss 1000"
        " times as large is skipped and moves nothing ({large_moved}). The trainer stops before"
        " the optimizer: {trainer_raised}, weights as before: {trainer_same}.",
        values={
            "nan_skipped": Value(nan["skipped"], "1", "step_skipped after a NaN loss", "exact"),
            "nan_bad": Value(nan["bad"], "1", "share of weights not finite then", "exact"),
            "plain_bad": Value(plain["bad"], "1", "the same share with plain AdamW", "exact"),
            "large_skipped": Value(
                large["skipped"], "1", "step_skipped after a loss times 1000", "exact"
            ),
            "large_bad": Value(large["bad"], "1", "share of weights not finite then", "exact"),
            "large_moved": Value(
                large["moved"], "1", "largest change of a weight in that step", "exact"
            ),
            "low_skipped": Value(
                low["skipped"], "1", "step_skipped after a loss times -1000", "exact"
            ),
            "alone_large_skipped": Value(
                alone[1000.0]["skipped"],
                "1",
                "step_skipped after a loss times 1000, no gradient norm",
                "exact",
            ),
            "alone_low_skipped": Value(
                alone[-1000.0]["skipped"],
                "1",
                "step_skipped after a loss times -1000, no gradient norm",
                "exact",
            ),
            "alone_low_bad": Value(
                alone[-1000.0]["bad"], "1", "share of weights not finite then", "exact"
            ),
            "alone_low_moved": Value(
                alone[-1000.0]["moved"],
                "1",
                "largest change of a weight in that step",
                "close",
                0.05,
            ),
            "trainer_raised": Value(
                raised, "1", "the trainer refused a step with an infinite loss", "exact"
            ),
            "trainer_same": Value(same, "1", "its weights are bitwise as before", "exact"),
        },
        settings={"ordinary steps": STEPS, "rolling_interval_length": STEPS, "clipping": 1.0},
    )  # fmt: skip
