"""Gradients of experts under two expert-parallel ranks, before and after Core's optimizer.

Two ranks train the same batch, once each with all experts and once with half of every layer's
experts each. The gradients are those that the backward left, before the optimizer takes them in:
there the trainer's diagnostics read them. Then the weights after the step.
"""

from __future__ import annotations

import torch

from . import common, moe, tworanks
from .record import Finding, Value


def measure() -> Finding:
    """Run it; see the module."""
    seen, _ = tworanks.result()
    one, two = seen["expert"][1], seen["expert"][2]
    ratios, others = [], []
    for name, gradient in two["gradients"].items():
        whole = one["gradients"][name]
        if ".routed_experts." in name:
            # rank 0 holds the first half of the experts
            whole = whole[: len(whole) // 2]
            ratios.append(float(gradient.double().norm() / whole.double().norm()))
        else:
            others.append((gradient.double(), whole.double()))
    same = torch.cat([a.flatten() for a, _ in others]), torch.cat([b.flatten() for _, b in others])
    factor = sum(ratios) / len(ratios)
    norms = one["norm"], two["norm"]
    return Finding(
        name="",
        row=4,
        outcome="reproduced" if abs(factor - 2) < 1e-3 else "differs",
        noted="EP2 raw expert gradients exactly 2.0 x EP1 before optimizer intake; equal after",
        claim="Before the optimizer takes them in, gradients of experts under two expert-parallel"
        " ranks are {factor} times those of one; all other gradients differ by {others}. The"
        " global gradient norms are {norms}; the weights after the step differ by {weights}.",
        values={
            "factor": Value(factor, "1", "norm of an expert tensor's gradient, EP2 over EP1"),
            "factor_low": Value(min(ratios), "1", "smallest such ratio"),
            "factor_high": Value(max(ratios), "1", "largest such ratio"),
            "others": Value(
                float((same[0] - same[1]).norm() / same[1].norm()), "1",
                "relative difference of all other gradients", "rounding", 1e-5,
            ),
            "norms": Value(list(norms), "1", "global gradient norm, EP1 and EP2"),
            "norm_gap": Value(
                abs(norms[0] - norms[1]) / norms[0], "1", "their relative difference", "rounding",
                1e-5,
            ),
            "weights": Value(
                common.distance(two["weights"], one["weights"]), "1",
                "relative difference of all weights after the step", "rounding", 1e-4,
            ),
        },
        settings={"ranks": 2, "experts": moe.EXPERTS, "topk": moe.TOPK, "layers": moe.LAYERS},
        environment=moe.stand_ins(2),
    )  # fmt: skip
