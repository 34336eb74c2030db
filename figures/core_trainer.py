"""Core as the trainer: its hook, its build, its documents, its skipped steps, and other code bases.

Figures of chapters 1, 4, 13 and 14 of the second manual, from recorded findings of a processor.
"""

from __future__ import annotations

from typing import Any

from figures import corelab
from figures.corelab import value
from figures.coreparts import Row, bars, table
from figures.registry import Figure, figure
from figures.style import Style
from figures.values import Value


@figure("fig-core-1-hook")
def hook() -> Figure:
    """What the hook changes in a gradient: nothing, and what accumulation and bfloat16 change."""
    name = "hook_equality"
    return table(
        [
            (
                "policy gradient through Core's loop against autograd by hand, largest difference",
                value("by_hand", name, "core_against_hand", 0),
            ),
            (
                "one sample a forward against all in one pack, relative",
                value("accumulation", name, "accumulation", 1, exponent=True),
            ),
            (
                "bfloat16 against float32, relative",
                value("bfloat16", name, "bfloat16", 1, unit="percent", scale=100),
            ),
        ]
    )


@figure("fig-core-1-build")
def weights_at_build() -> Figure:
    """What is left of a model's weights after Core has built a train module around it."""
    name = "weights_at_build"
    return table(
        [
            ("all numbers", value("kept", name, "kept", 0, unit="percent", scale=100)),
            (
                "numbers of matrices alone",
                value("matrices", name, "kept_matrices", 0, unit="percent", scale=100),
            ),
        ],
        what="Share that is as before",
    )


@figure("fig-core-4-documents")
def documents() -> Figure:
    """Packed and alone, with and without the mask between documents, for three architectures."""
    families = corelab.read("document_mask", "family")
    names = ("Llama", "Qwen3", "OLMo-2")
    masked = [
        value(f"masked_{family}", "document_mask", "masked", 1, unit="nats", exponent=True, at=n)
        for n, family in enumerate(families)
    ]
    plain = [
        value(f"plain_{family}", "document_mask", "plain", 2, unit="nats", at=n)
        for n, family in enumerate(families)
    ]
    rows = [
        {"family": name, "with": one.text, "without": other.text}
        for name, one, other in zip(names, masked, plain, strict=True)
    ]
    return Figure(
        shape="A table with one row for each architecture.",
        values=[*masked, *plain],
        rows=rows,
        columns={
            "family": "Architecture",
            "with": "With the document mask",
            "without": "Without it",
        },
    )


@figure("fig-core-13-skipped")
def skipped() -> Figure:
    """What a skip-step optimizer reports, and what it left of the weights."""
    name = "skipped_nan"
    cases = (
        ("loss is no number, AdamW", "none", "plain_bad"),
        ("loss is no number, SkipStepAdamW", "skipped", "nan_bad"),
        ("loss 1000 times as large, SkipStepAdamW", "skipped", "large_bad"),
        ("loss times -1000, SkipStepAdamW without a norm", "none", "alone_low_bad"),
    )
    expected = {"nan_skipped": 1.0, "large_skipped": 1.0, "low_skipped": 1.0}
    expected |= {"alone_large_skipped": 1.0, "alone_low_skipped": 0.0}
    for key, flag in expected.items():
        if corelab.read(name, key) != flag:
            raise ValueError(f"{name}.json: {key} is not {flag:g}")
    values = [value(key, name, key, 0, unit="percent", scale=100) for _, _, key in cases]
    moved = value("moved", name, "alone_low_moved", 4)
    rows = [
        {"case": case, "says": says, "bad": found.text}
        for (case, says, _), found in zip(cases, values, strict=True)
    ]
    return Figure(
        shape="A table of four cases.",
        values=[*values, moved],
        rows=rows,
        columns={"case": "Case", "says": "It reports", "bad": "Weights that are no numbers"},
    )


@figure("fig-core-14-references")
def references() -> Figure:
    """How far the objective is from three other code bases, on one fixed batch."""
    name = "objective_references"

    def number(key: str) -> Value:
        return value(key, name, key, 1, exponent=True)

    rows: list[Row] = [
        ("numpy, loss", number("numpy_loss")),
        ("TRL in float64, loss", number("trl_loss")),
        ("Miles in float32, loss", number("miles_loss")),
        ("TRL in float64, gradient", number("trl_gradient")),
        ("Miles in float32, gradient", number("plain_gradient")),
        ("Miles with Megatron's fused cross entropy, gradient", number("megatron_gradient")),
    ]
    cases = [
        value("trl_cases", name, "trl_cases", 0, kind="count", noun="settings"),
        value("miles_cases", name, "miles_cases", 0, kind="count", noun="settings"),
        value("largest", name, "largest_gradient", 2),
    ]
    labels = [label for label, _ in rows]
    short = ["numpy", "TRL", "Miles", "TRL grad.", "Miles grad.", "Megatron grad."]
    found = [one for _, one in rows]

    def draw(style: Style) -> Any:
        roles = ["trainer"] * 5 + ["failure"]
        return bars(style, short if style.narrow else labels, found, roles, log=True)

    return Figure(
        shape="Six bars on a logarithmic scale; the last, of a fused kernel, is the longest.",
        values=[*found, *cases],
        rows=[{"reference": label, "difference": one.low} for label, one in rows],
        draw=draw,
    )
