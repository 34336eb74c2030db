"""What rounding the logits costs: a bfloat16 head against one that keeps its float32 sum.

The same bfloat16 operands through an ordinary linear layer and through this trainer's head; the
yardstick is their product in float64. Then the backward of both, for the same logit gradient.
"""

from __future__ import annotations

import torch
from torch import nn

from .. import fp32head
from .record import Finding, Value

ROWS, WIDTH, WORDS = 64, 576, 4096
SPREADS = (1.0, 4.0, 16.0)  # standard deviation of the logits


def operands(spread: float) -> tuple[torch.Tensor, nn.Linear, torch.Tensor]:
    """(rows [N, D], head, targets [N]) in bfloat16."""
    generator = torch.Generator().manual_seed(10)
    rows = torch.randn(ROWS, WIDTH, generator=generator).bfloat16()
    head = nn.Linear(WIDTH, WORDS, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        weight = torch.randn(WORDS, WIDTH, generator=generator) * spread / WIDTH**0.5
        head.weight.copy_(weight)
    exact = rows.double() @ head.weight.detach().double().T
    # words that a sampler would take: by the model's own distribution
    targets = torch.multinomial(exact.softmax(-1), 1, generator=generator)
    return rows, head, targets


def measured(spread: float) -> dict[str, float]:
    """Mean and largest errors of log-probabilities and logits, of both heads."""
    rows, head, targets = operands(spread)
    exact = rows.double() @ head.weight.detach().double().T
    wanted = exact.log_softmax(-1).gather(-1, targets)
    found = {}
    for name in ("bf16", "fp32"):
        if name == "fp32":
            head.__class__ = fp32head.Fp32OutputLinear
        with torch.no_grad():
            logits = head(rows)
        error = (logits.float().log_softmax(-1).gather(-1, targets) - wanted).abs()
        found[f"{name}_mean"], found[f"{name}_max"] = float(error.mean()), float(error.max())
        found[f"{name}_logit"] = float((logits.double() - exact).abs().max())
        found[f"{name}_bytes"] = logits.numel() * logits.element_size()
    return found


def same_backward() -> bool:
    """Whether both heads have bitwise the same gradients for one logit gradient."""
    by_logits = torch.randn(ROWS, WORDS, generator=torch.Generator().manual_seed(11))
    found = []
    for kind in (nn.Linear, fp32head.Fp32OutputLinear):
        rows, head, _ = operands(4.0)
        head.__class__ = kind
        rows.requires_grad_()
        out = head(rows)
        out.backward(by_logits.to(out.dtype))
        found.append((rows.grad, head.weight.grad))
    return all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def measure() -> Finding:
    """Run it; see the module."""
    found = [measured(spread) for spread in SPREADS]

    def each(name: str) -> list[float]:
        return [one[name] for one in found]

    size = found[0]["fp32_bytes"] / found[0]["bf16_bytes"]
    return Finding(
        name="",
        row=8,
        outcome="reproduced"
        if all(one["bf16_mean"] > 1000 * one["fp32_mean"] for one in found)
        else "differs",
        noted="8.4e-3 to 3.2e-7 mean log-probability error on the same operands, logits off by"
        " 0.062 and 3.5e-6; output bytes x2",
        claim="With logits of standard deviation {spread}, rounding them to bfloat16 moves the"
        " log-probability of a sampled word by {bf16_mean} nats on average; with the FP32-output"
        " head by {fp32_mean}. Its output takes {bytes_ratio} times the bytes; gradients bitwise"
        " the same: {same_backward}.",
        values={
            "spread": Value(list(SPREADS), "1", "standard deviation of the logits", "exact"),
            "bf16_mean": Value(each("bf16_mean"), "nats", "mean error, bfloat16 logits"),
            "bf16_max": Value(each("bf16_max"), "nats", "largest error, bfloat16 logits"),
            "bf16_logit": Value(each("bf16_logit"), "1", "largest logit error, bfloat16 logits"),
            "fp32_mean": Value(
                each("fp32_mean"), "nats", "mean error, FP32-output head", "rounding", 1e-5
            ),
            "fp32_max": Value(each("fp32_max"), "nats", "largest error of it", "rounding", 1e-4),
            "fp32_logit": Value(each("fp32_logit"), "1", "largest logit error", "rounding", 1e-4),
            "bytes_ratio": Value(size, "1", "bytes of the logits, over bfloat16's", "exact"),
            "same_backward": Value(
                same_backward(), "1", "gradients of rows and weights, one logit gradient", "exact"
            ),
        },
        settings={"rows": ROWS, "width": WIDTH, "vocabulary": WORDS},
        notes=("Operands are equal on both sides; a trainer and an engine differ in them too.",),
    )
