"""Is Core's `_recompute_cache` a replay of expert ids?

A router of Core's second MoE stack runs once with its cache on, then again as a recomputation
would, after its weights changed. A replay keeps the ids and takes the weights of those ids from
the present scores; here the weights are looked at. The same with this trainer's replay.
"""

from __future__ import annotations

import torch
from olmo_core.nn.moe.v2.router import MoERouterV2

from .. import router as routers
from ..auxiliary import RouterSettings
from ..routerterms import RouterWork
from . import moe
from .record import Finding, Value

TOKENS = 64


def measure() -> Finding:
    """Run it; see the module."""
    x = torch.randn(1, TOKENS, moe.WIDTH, generator=torch.Generator().manual_seed(6))
    own = moe.one_router()
    own.use_recompute_cache = True
    _, first, *_ = own(x, False)
    with torch.no_grad():
        own.weight.add_(
            0.3 * torch.randn(own.weight.shape, generator=torch.Generator().manual_seed(7))
        )
    weights, second, *_ = own(x, False)
    scores = (x @ own.weight.view(own.num_experts, -1).T).softmax(-1).detach()
    live = MoERouterV2.get_top_k(own, scores)[1]
    of_ids = scores.gather(-1, second)
    of_ids = of_ids / of_ids.sum(-1, keepdim=True)
    moved = (live.sort(-1).values != first.sort(-1).values).any(-1)
    core_gap = (weights.detach() - of_ids).abs().max(-1).values
    # the same in this trainer's router
    model = torch.nn.ModuleList([own])
    own.use_recompute_cache = False
    routers.install(model, RouterSettings(replay=True))
    routes = torch.cat([first[0, :-1], torch.arange(own.top_k)[None]])[:, None].numpy()
    work = RouterWork(routes, (TOKENS,), None, 1)
    with torch.no_grad(), routers.armed(model, work):
        replayed, ids, *_ = own(x, False)
    wanted = scores.gather(-1, ids)
    wanted = wanted / wanted.sum(-1, keepdim=True)
    wrong = float((core_gap > 1e-5).double().mean())
    return Finding(
        name="",
        row=11,
        outcome="reproduced" if wrong > 0 else "not reproduced",
        noted="ids replayed True, weights match replayed ids False",
        claim="Core's recompute cache gives the first ids again: {ids_replayed}. But of the tokens"
        " whose top-{topk} moved in between ({moved} of them) {moved_wrong} run with weights that"
        " belong to other experts. This trainer's replay: largest difference {own_gap}.",
        values={
            "topk": Value(own.top_k, "experts", "experts of a token", "exact"),
            "ids_replayed": Value(torch.equal(first, second), "1", "ids of the cache", "exact"),
            "moved": Value(
                float(moved.double().mean()), "1", "share of tokens that live routing would move"
            ),
            "moved_wrong": Value(
                float((core_gap > 1e-5)[moved].double().mean()), "1",
                "share of those whose weights are not those of the ids that run",
            ),
            "wrong": Value(wrong, "1", "the same share of all tokens"),
            "largest": Value(float(core_gap.max()), "1", "largest difference of an expert weight"),
            "own_ids": Value(
                torch.equal(ids[0, :-1], first[0, :-1]), "1", "ids of this trainer's replay",
                "exact",
            ),
            "own_gap": Value(
                float((replayed - wanted).abs().max()), "1",
                "largest difference of its weights from those of the ids", "rounding", 1e-5,
            ),
        },
        settings={"tokens": TOKENS, "experts": moe.EXPERTS, "topk": moe.TOPK},
    )  # fmt: skip
