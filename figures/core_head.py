"""Errors of the vocabulary head with BF16 and with FP32 logits.

Figures of chapter 8 of the second manual, from a recorded finding of a processor.
"""

from __future__ import annotations

from typing import Any

from figures import corelab
from figures.corelab import value
from figures.coreparts import bars
from figures.evidence import EvidenceError
from figures.registry import Figure, figure
from figures.style import Style


@figure("fig-core-8-rounding")
def fp32_head() -> Figure:
    """Mean error of a log-probability by the spread of the logits, with both heads."""
    name = "fp32_head"
    spreads = [int(item) for item in corelab.read(name, "spread")]
    low = [
        value(f"bf16_{s}", name, "bf16_mean", 4, unit="nats", at=n) for n, s in enumerate(spreads)
    ]
    high = [
        value(f"fp32_{s}", name, "fp32_mean", 1, unit="nats", exponent=True, at=n)
        for n, s in enumerate(spreads)
    ]
    ratio = value("bytes", name, "bytes_ratio", 0, unit="times")
    labels = [f"spread {s}, {head}" for s in spreads for head in ("BF16 logits", "FP32 logits")]
    shown = [found for pair in zip(low, high, strict=True) for found in pair]
    rows = [{"case": label, "nats": found.low} for label, found in zip(labels, shown, strict=True)]

    def draw(style: Style) -> Any:
        return bars(style, labels, shown, ["failure", "trainer"] * len(spreads), log=True)

    return Figure(
        shape="Pairs of bars on a logarithmic scale, one pair for each spread of the logits.",
        values=[*low, *high, ratio],
        rows=rows,
        draw=draw,
    )


@figure("fig-core-8-largest")
def largest() -> Figure:
    """Largest errors of logits and log-probabilities with both heads, by spread of the logits."""
    name = "fp32_head"
    spreads = [int(item) for item in corelab.read(name, "spread")]
    if corelab.read(name, "same_backward") is not True:
        raise EvidenceError("fp32_head.json: the gradients differ")
    values, rows = [], []
    for n, spread in enumerate(spreads):
        row: dict[str, Any] = {"spread": spread}
        for head in ("bf16", "fp32"):
            for what, unit in (("logit", ""), ("max", "nats")):
                exponent = head == "fp32"
                found = value(
                    f"{head}_{what}_{spread}", name, f"{head}_{what}", 1 if exponent else 3,
                    unit=unit, exponent=exponent, at=n,
                )  # fmt: skip
                values.append(found)
                row[f"{head}_{what}"] = found.text
        rows.append(row)
    return Figure(
        shape="A table of three spreads of the logits.",
        values=values,
        rows=rows,
        columns={
            "spread": "Spread of the logits",
            "bf16_logit": "BF16, a logit",
            "bf16_max": "BF16, a log-probability",
            "fp32_logit": "FP32, a logit",
            "fp32_max": "FP32, a log-probability",
        },
    )
