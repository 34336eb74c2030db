"""What a standalone scoring pass costs beside a training step, on a processor."""

from __future__ import annotations

import statistics
import time

from ..hook import PackWork, StepContext
from ..objective import pack_inputs
from ..packing import plan
from . import common
from .record import Finding, Value

WIDTH = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4}
REPEATS = 3
PACK_TOKENS = 256


def measure() -> Finding:
    """Run it; see the module."""
    actor = common.actor_of(common.tiny("llama", **WIDTH))
    module, data = actor.module, common.collection(1, 32, longer=40)
    step = plan(data.samples, world_size=1, optimizer_steps=1, pack_tokens=PACK_TOKENS).steps[0]
    packs = step.ranks[0]
    score, train = [], []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        for pack in packs:
            module.score_pack(pack, temperature=1.0)
        middle = time.perf_counter()
        work = [PackWork(pack, pack_inputs(pack, data.samples)) for pack in packs]
        module.train_packs(work, StepContext(actor.objective, step.denominators))
        actor._recorder.global_step = 1
        module.optim_step()
        module.zero_grads()
        score.append(middle - started)
        train.append(time.perf_counter() - middle)
    shares = [s / (s + t) for s, t in zip(score[1:], train[1:], strict=True)]
    return Finding(
        name="",
        outcome="reproduced",
        noted="about a quarter of a step",
        claim="On a processor the scoring pass is {share} of scoring plus training step.",
        values={
            "share": Value(statistics.median(shares), "1", "median share of the pass", "time"),
            "share_low": Value(min(shares), "1", "smallest share", "time"),
            "share_high": Value(max(shares), "1", "largest share", "time"),
            "score_seconds": Value(statistics.median(score[1:]), "s", "median pass", "time"),
            "train_seconds": Value(statistics.median(train[1:]), "s", "median step", "time"),
            "model_tokens": Value(step.model_tokens, "tokens", "tokens of the step", "exact"),
            "packs": Value(len(packs), "forwards", "forwards of the step", "exact"),
        },
        settings={"repeats": REPEATS, "pack_tokens": PACK_TOKENS, "threads": 1, **WIDTH},
        notes=("Processor, one thread, machine not alone: no timing result of a GPU.",),
    )  # fmt: skip
