"""The policy objective in four programs: this trainer, numpy float64, TRL, Miles.

The references are those of the tests (`tests/core`): numpy written from the formulas, TRL's own
`_compute_loss`, and Miles' own `loss_function` out of the wheel `miles-rl`, in a process of its
own. The same for Miles' gradient with Megatron's fused cross entropy, whose backward rounds.
"""

from __future__ import annotations

import sys
from itertools import product
from typing import Any

import numpy as np

from .common import ROOT, beside_miles
from .record import Finding, Value

TESTS = ROOT / "tests" / "core"
TRL_CASES = list(
    product(
        (("response", "grpo"), ("token", "bnpo"), ("token", "dapo")),
        (0.0, 0.05),
        (None, (0.0, 2.0)),
    )
)
MILES_CASES = list(product(("token", "response"), (0.0, 0.05), (None, (0.0, 2.0))))
SHAPES = [(3, 4), (5, 2), (2, 6)]


def references() -> Any:
    """The tests' modules: batches, the numpy reference, TRL and Miles as they call them."""
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
    import batches
    import reference_numpy
    import test_objective_references as others

    return batches, reference_numpy, others


def miles(cases: list[dict]) -> list[dict]:
    """Results of Miles' `loss_function` for cases of `miles_case`."""
    return beside_miles([str(TESTS / "miles_driver.py")], cases)


def relative(found: float, wanted: float) -> float:
    """|found - wanted| over |wanted|."""
    return abs(found - wanted) / abs(wanted)


def measure() -> Finding:
    """Run it; see the module."""
    batches, numpy_reference, others = references()
    settings_of = numpy_reference.Settings
    batch = batches.make(41, SHAPES, drift=0.3)
    worst = {"numpy": 0.0, "numpy_gradient": 0.0, "trl": 0.0, "trl_gradient": 0.0}
    for reduction, kl_coef, tis in TRL_CASES:
        settings = settings_of(reduction=reduction[0], kl_coef=kl_coef, tis=tis, eps_high=0.28)
        loss, slopes, _ = batches.run(batch, settings)
        wanted = numpy_reference.objective(batch.rows(), settings).loss
        worst["numpy"] = max(worst["numpy"], relative(loss, wanted))
        theirs, their_slopes, _ = others.trl_loss(batch, settings, reduction[1])
        worst["trl"] = max(worst["trl"], relative(loss, theirs))
        for own, other in zip(slopes, their_slopes, strict=True):
            worst["trl_gradient"] = max(worst["trl_gradient"], float(np.abs(own - other).max()))
        if reduction[1] != "dapo":
            numeric = numpy_reference.gradient(batch.rows(), settings)
            for own, other in zip(slopes, numeric, strict=True):
                gap = float(np.abs(own - other).max())
                worst["numpy_gradient"] = max(worst["numpy_gradient"], gap)
    cases = [
        settings_of(reduction=reduction, kl_coef=kl_coef, tis=tis, eps_high=0.28)
        for reduction, kl_coef, tis in MILES_CASES
    ]
    heads = ("on-policy", "plain", "megatron")
    results = iter(
        miles([others.miles_case(batch, settings, head) for head in heads for settings in cases])
    )
    loss_gap, slope_gap, largest = {}, {}, 0.0
    for head in heads:
        loss_gap[head] = slope_gap[head] = 0.0
        for settings in cases:
            found = next(results)
            divisor = float(found["normalizer"])
            loss, slopes, _ = batches.run(batch, settings)
            gap = relative(float(found["loss"]) / divisor, loss)
            loss_gap[head] = max(loss_gap[head], gap)
            for own, other in zip(slopes, found["grads"], strict=True):
                gap = float(np.abs(own - other.double().numpy() / divisor).max())
                slope_gap[head] = max(slope_gap[head], gap)
                largest = max(largest, float(np.abs(own).max()))
    ratio = slope_gap["megatron"] / slope_gap["plain"]
    return Finding(
        name="",
        row=10,
        outcome="reproduced"
        if ratio > 100 and worst["trl"] < 1e-12 and loss_gap["plain"] < 1e-5
        else "differs",
        noted="numpy == TRL (1e-16) == Miles (3e-7), 25 cases; Megatron's fused backward rounds to"
        " bf16: 2.8e-4 of 0.153 against 2.4e-8",
        claim="Over {trl_cases} settings the loss equals TRL's to {trl_loss}, relative, and over"
        " {miles_cases} settings Miles' to {miles_loss}. Miles' gradient with Megatron's fused"
        " cross entropy is off by {megatron_gradient} where the largest entry is"
        " {largest_gradient}; with a plain softmax by {plain_gradient}.",
        values={
            "trl_cases": Value(len(TRL_CASES), "settings", "compared with TRL", "exact"),
            "miles_cases": Value(len(MILES_CASES), "settings", "compared with Miles", "exact"),
            "numpy_loss": Value(
                worst["numpy"], "1", "largest relative loss difference, numpy float64",
                "rounding", 1e-12,
            ),
            "numpy_gradient": Value(
                worst["numpy_gradient"], "1", "largest gradient difference, central differences",
                "rounding", 1e-8,
            ),
            "trl_loss": Value(
                worst["trl"], "1", "largest relative loss difference, TRL in float64",
                "rounding", 1e-12,
            ),
            "trl_gradient": Value(
                worst["trl_gradient"], "1", "largest gradient difference, TRL in float64",
                "rounding", 1e-12,
            ),
            "miles_loss_float64": Value(
                loss_gap["on-policy"], "1",
                "largest relative loss difference, Miles' float64 path, KL in float32",
                "rounding", 1e-5,
            ),
            "miles_loss": Value(
                max(loss_gap["plain"], loss_gap["megatron"]), "1",
                "largest relative loss difference, Miles in float32", "rounding", 1e-5,
            ),
            "plain_gradient": Value(
                slope_gap["plain"], "1",
                "largest gradient difference, Miles in float32 with a plain softmax",
                "rounding", 1e-6,
            ),
            "megatron_gradient": Value(
                slope_gap["megatron"], "1",
                "the same with Megatron's fused cross entropy", "close", 0.05,
            ),
            "largest_gradient": Value(largest, "1", "largest gradient entry"),
            "rounding_visible": Value(
                ratio > 100, "1", "Megatron's difference is over 100 times the plain one", "exact"
            ),
        },
        settings={"samples": SHAPES, "vocabulary": batches.VOCABULARY},
    )  # fmt: skip
