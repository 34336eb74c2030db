"""What becomes of weights that a model has before Core's train module is built around it."""

from __future__ import annotations

import torch
from olmo_core.optim import AdamWConfig
from olmo_core.train.train_module import TransformerTrainModule

from .. import dense
from . import common
from .record import Finding, Value

MARK = 7.0


def measure() -> Finding:
    """Run it; see the module."""
    config, _ = common.tiny("llama")
    model = dense.core_config(config).build(init_device="cpu")
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(MARK)
    TransformerTrainModule(model, AdamWConfig(), 8, 8, device=torch.device("cpu"))
    count = sum(weight.numel() for weight in model.parameters())
    kept = sum(int((weight == MARK).sum()) for weight in model.parameters())
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    kept_matrices = sum(int((weight == MARK).sum()) for weight in matrices)
    return Finding(
        name="",
        outcome="reproduced" if kept < count else "not reproduced",
        noted="building a train module re-initialises the weights",
        claim="Building Core's train module leaves {kept} of the weights that a model had, and"
        " raises nothing; so weights are loaded after it.",
        values={
            "kept": Value(kept / count, "1", "share of numbers that are as before", "exact"),
            "kept_matrices": Value(
                kept_matrices / sum(weight.numel() for weight in matrices), "1",
                "the same share of matrices alone", "exact",
            ),
        },
        settings={"family": "llama"},
    )  # fmt: skip
