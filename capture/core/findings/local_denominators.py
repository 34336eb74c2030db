"""What Core's denominator does to two ranks whose rows keep unequally many labels.

Core's `TransformerTrainModule` divides a rank's loss by the labels of that rank, and the ranks'
gradients are averaged. The gradient of all rows in one process is the yardstick. Once with Core's
own cross entropy, once with the policy objective of this trainer and either denominator.
"""

from __future__ import annotations

from ..hook import PackWork, StepContext
from ..objective import pack_inputs
from ..packing import plan
from . import common, tworanks
from .record import Finding, Value


def measure() -> Finding:
    """Run it; see the module."""
    seen, _ = tworanks.result()
    actor = common.actor_of()
    tokens = tworanks.rows()
    errors, cosines = [], []
    for kept in tworanks.KEPT:
        alone = tworanks.cross_entropy(actor, tokens, tworanks.labels(tokens, kept))
        errors.append(common.distance(seen["core"][kept], alone))
        one, other = common.flat(seen["core"][kept]), common.flat(alone)
        cosines.append(float(one @ other / one.norm() / other.norm()))
    data = common.lopsided(common.collection(0))
    step = plan(data.samples, world_size=1, optimizer_steps=1, pack_tokens=None).steps[0]
    work = [PackWork(pack, pack_inputs(pack, data.samples)) for pack in step.ranks[0]]
    actor.module.train_packs(work, StepContext(actor.objective, step.denominators))
    alone = common.gradients(actor)
    own = {key: common.distance(value, alone) for key, value in seen["hook"].items()}
    return Finding(
        name="",
        row=1,
        outcome="differs",
        noted="33.6% relative gradient error on 2 ranks with unequal masks; 1.2e-7 with global"
        " denominators",
        claim="With an eighth of the labels on the second rank, Core's own training has a gradient"
        " that is off by {core_error_eighth}; the same rows with all labels: {core_error_equal}."
        " The policy objective with each rank's own token count: {own_local_ddp}; with global"
        " counts: {own_global_ddp}.",
        values={
            "kept": Value(
                [kept / tworanks.KEPT[0] for kept in tworanks.KEPT], "1",
                "share of labels that rows of the second rank keep; the first keeps all", "exact",
            ),
            "core_error": Value(
                errors[1:], "1",
                "relative distance of Core's two-rank gradient, for every `kept` below 1",
            ),
            "core_cosine": Value(
                cosines[1:], "1", "cosine of both gradients: what is left when length is ignored"
            ),
            "core_error_equal": Value(
                errors[0], "1", "the same with equally many labels", "rounding", 2e-6
            ),
            "core_error_eighth": Value(errors[-1], "1", "the last of `core_error`"),
            "active": Value(seen["active"], "tokens", "active tokens of each rank", "exact"),
            "own_local_ddp": Value(
                own["ddp", "local"], "1", "policy objective, DDP, each rank's own denominators"
            ),
            "own_local_fsdp": Value(own["fsdp", "local"], "1", "the same under FSDP"),
            "own_global_ddp": Value(
                own["ddp", "global"], "1", "policy objective, DDP, global denominators",
                "rounding", 2e-6,
            ),
            "own_global_fsdp": Value(
                own["fsdp", "global"], "1", "the same under FSDP", "rounding", 2e-6
            ),
        },
        settings={"ranks": 2, "rows": tworanks.ROWS, "tokens of a row": tworanks.LENGTH},
        notes=("The size of the error is that of these rows: it grows with the inequality.",),
    )  # fmt: skip
