"""One of two ranks: runs every scenario of test_router_ranks.py and writes what it saw.

Started by torchrun, with the repository and this folder on PYTHONPATH. Core code with CPU
stand-ins; see `standins`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from moerankworker import STEADY, export
from routed import REPLAY, recorded, watched
from tiny import collection, lopsided, settings, tiny

from capture.core import collective, records
from capture.core.actor import CoreActor
from capture.core.contract import ContractWriter, path_for
from capture.core.errors import ContractError
from capture.core.samples import Collection

WEIGHTS = {"core__router_aux_loss_weight": 0.3, "core__router_z_loss_weight": 0.1}
CASES = {
    "sequence-token": {"core__router_aux_loss_grouping": "sequence"},
    "sequence-response": {
        "core__router_aux_loss_grouping": "sequence",
        "core__router_aux_loss_reduction": "response",
        "core__router_z_loss_reduction": "response",
        "core__router_aux_count_source": "router_selected",
        "core__recompute": True,
    },
    "pack-token": {},
}
MOE = {"model__family": "qwen3_moe", **WEIGHTS, **REPLAY, **STEADY}
#: packs of so many tokens give the two ranks unequal numbers of packs, and one a filler
PACK_TOKENS = 24


def data_of() -> Collection:
    """Unequal documents and masks, with random expert ids."""
    return recorded(lopsided(collection(0)))


def step(ep: int, case: str, folder: Path) -> dict:
    """One optimizer step in packs: its record, what ran, weights after it."""
    data = data_of()
    actor = CoreActor(
        settings(
            **MOE, **CASES[case], parallel__world_size=2, parallel__ep=ep,
            batch__pack_tokens=PACK_TOKENS,
        )
    )  # fmt: skip
    actor.init(tiny("qwen3_moe"))
    with watched(actor) as forwards:
        result = actor.train(data, 0)[0]
    packs = result.plan.ranks[collective.rank()]
    errors = records.over_ranks(records.error_histogram(result, data))
    record = records.record_of(
        result, data, errors, config=actor.config, rank=collective.rank(), published=0
    )
    save = folder / f"{case}-{ep}"
    with ContractWriter(
        path_for(save, collective.rank()), rank=collective.rank(), world_size=2
    ) as writer:
        writer.write(record)
    return {
        "fillers": sum(pack.is_filler for pack in packs),
        "packs": [(pack.sample_indexes, pack.doc_lens) for pack in packs],
        "ids": [ids for _, _, ids, _ in forwards[len(packs) :]],
        "terms": [(term.name, term.local, term.global_) for term in record.auxiliary],
        "load": record.router.model_dump(),
        "counts": result.router.counts,
        "weights": export(actor),
    }


def missing(ep: int) -> tuple:
    """Rank 1 alone lacks the expert ids of its first sample."""
    data = data_of()
    if collective.rank() == 1:
        data = Collection([*collection(0).samples[:1], *data.samples[1:]], 0)
    actor = CoreActor(settings(**MOE, parallel__world_size=2, parallel__ep=ep))
    actor.init(tiny("qwen3_moe"))
    try:
        actor.train(data, 0)
    except ContractError as error:
        return error.check, error.detail, actor.optimizer_step
    return None, None, actor.optimizer_step


def main(folder: Path) -> None:
    collective.start(2)
    found = {
        ep: {**{case: step(ep, case, folder) for case in CASES}, "missing": missing(ep)}
        for ep in (1, 2)
    }
    torch.save(found, folder / f"rank{collective.rank()}.pt")
    collective.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
