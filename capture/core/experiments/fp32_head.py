"""What the FP32-output head costs and gives: time, peak memory and error, beside an ordinary head.

`python -m capture.core.experiments.fp32_head --out FILE.jsonl [--device cuda ...]`

Hidden states of one forward go through a vocabulary head with float32 weights under autocast, as in
the trainer, then forward and backward run in three scopes: `head` (the head alone, for a given
logit gradient in its own dtype), `loss` (log-probabilities of one token a row over the vocabulary)
and `kept` (the same over kept sets, as under sampling replay). On a GPU times are CUDA events, and
peaks are what the allocator held above the operands; a CPU has no peaks. Errors are against a
float64 product of the same low-precision operands.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from ..fp32head import Fp32OutputLinear
from ..keptlogps import kept_logps, scaled
from ..keptsets import KeptSets
from . import setting
from .lines import Lines

HEADS = {"ordinary": nn.Linear, "fp32": Fp32OutputLinear}
SCOPES = ("head", "loss", "kept")
ERROR_ROWS = 256
"""Rows of the error: their float64 logits must fit beside everything else."""

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class Case:
    """Operands of one size: hidden states [N, D], a head [V, D], a token and a kept set a row."""

    def __init__(self, args: argparse.Namespace, vocab: int, width: int, tokens: int, seed: int):
        self.device, self.dtype = args.device, DTYPES[args.dtype]
        generator = torch.Generator().manual_seed(seed)
        self.hidden = torch.randn(tokens, width, generator=generator).to(self.device)
        self.head = nn.Linear(width, vocab, bias=False, device=self.device)
        with torch.no_grad():  # logits of standard deviation 4, as of a trained model
            weight = torch.randn(vocab, width, generator=generator) * 4 / width**0.5
            self.head.weight.copy_(weight)
        rng = np.random.default_rng(seed)
        sets = min(args.kept, vocab)
        ids = rng.integers(0, vocab, (tokens, 1)) + np.arange(sets)  # different by construction
        self.sets = KeptSets(np.arange(tokens + 1) * sets, (ids % vocab).reshape(-1))
        self.targets = torch.from_numpy(ids[:, 0] % vocab).to(self.device)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, V], as the trainer's forward makes them."""
        on = self.dtype != torch.float32
        with torch.autocast(self.device, dtype=self.dtype if on else None, enabled=on):
            return self.head(hidden)

    def run(self, head: str, scope: str) -> Callable[[], None]:
        """One forward and backward, whose gradients are dropped at its end."""
        self.head.__class__ = HEADS[head]
        hidden = self.hidden.to(self.dtype).requires_grad_()
        given = None
        if scope == "head":
            with torch.no_grad():
                given = torch.full_like(self.logits(hidden[:1]), 1e-4).expand(len(hidden), -1)
            given = given.contiguous()

        def step() -> None:
            logits = self.logits(hidden)
            if scope == "head":
                logits.backward(given)
            elif scope == "loss":
                logp = torch.log_softmax(scaled(logits, 1.0), dim=-1)
                logp.gather(-1, self.targets[:, None]).mean().backward()
            else:
                kept_logps(logits, self.targets, self.sets)[0].mean().backward()
            hidden.grad = self.head.weight.grad = None

        return step

    @torch.no_grad()
    def error(self, head: str) -> dict[str, float]:
        """Mean and largest |log-probability error|, nats, and the bytes of all logits."""
        self.head.__class__ = HEADS[head]
        rows, targets = self.hidden[:ERROR_ROWS].to(self.dtype), self.targets[:ERROR_ROWS, None]
        exact = rows.double() @ self.head.weight.to(self.dtype).double().T
        wanted = torch.log_softmax(exact, -1).gather(-1, targets)
        logits = self.logits(rows)
        found = torch.log_softmax(logits.float(), -1).gather(-1, targets)
        gaps = (found - wanted).abs()
        return {
            "error_mean": float(gaps.mean()),
            "error_max": float(gaps.max()),
            "logit_error_max": float((logits.double() - exact).abs().max()),
            "logit_bytes": len(self.hidden) * logits.shape[-1] * logits.element_size(),
        }


def measured(step: Callable[[], None], device: str, warm: int, repeat: int) -> dict[str, Any]:
    """Milliseconds of every timed call, their median, and on a GPU the peak above what was held."""
    for _ in range(warm):
        step()
    setting.wait(device)
    held = 0
    if device == "cuda":
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    times = [1000 * setting.clocked(device, step) for _ in range(repeat)]
    found: dict[str, Any] = {}
    if device == "cuda":
        found["peak_bytes"] = torch.cuda.max_memory_allocated() - held
        found["held_bytes"] = held
    return {"ms": statistics.median(times), "ms_all": times, **found}


def measure(args: argparse.Namespace, lines: Lines) -> None:
    """Every size, seed, scope and head that the file does not have yet."""
    sizes = [(v, d, n) for v in args.vocabularies for d in args.widths for n in args.tokens]
    for vocab, width, tokens in sizes:
        for seed in args.seeds:
            size = {"vocab": vocab, "width": width, "tokens": tokens, "seed": seed}
            due = [
                (scope, head)
                for scope in (*args.scopes, "error")
                for head in HEADS
                if not lines.has(**size, scope=scope, head=head)
            ]
            case = Case(args, vocab, width, tokens, seed) if due else None
            for scope, head in due:
                try:
                    if scope == "error":
                        values = case.error(head)
                    else:
                        step = case.run(head, scope)
                        values = measured(step, args.device, args.warm, args.repeat)
                except torch.OutOfMemoryError:
                    values = {"out_of_memory": True}
                step = None
                case.head.weight.grad = None  # of a call that broke off
                lines.add(values, **size, scope=scope, head=head)
                setting.free(args.device)
            case = None
            setting.free(args.device)


def scopes(text: str) -> list[str]:
    """`head,loss` as a list of scopes."""
    found = text.split(",")
    if not set(found) <= set(SCOPES):
        raise argparse.ArgumentTypeError(f"{text!r}: some of {', '.join(SCOPES)}")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write; see the module."""
    parser = setting.parser("fp32_head", "Time, memory and error of the FP32-output head.")
    positive = setting.numbers(1)
    parser.add_argument("--vocabularies", type=positive, default=[49_152, 151_936])
    parser.add_argument("--widths", type=positive, default=[576, 1024], help="d_model")
    parser.add_argument("--tokens", type=positive, default=[2048, 4096, 8192, 16_384])
    parser.add_argument("--scopes", type=scopes, default=list(SCOPES), help="such as head,loss")
    parser.add_argument("--kept", type=int, default=64, help="ids of a kept set")
    parser.add_argument("--warm", type=int, default=3, help="calls before the timed ones")
    parser.add_argument("--repeat", type=int, default=10, help="timed calls")
    args = parser.parse_args(argv)
    if args.kept < 1 or args.warm < 0 or args.repeat < 1:
        print("fp32_head: --kept and --repeat from 1, --warm from 0", file=sys.stderr)
        return 2

    def body() -> None:
        environment = setting.environment(args.device)
        lines = Lines(
            args.out, "fp32-head", setting.settings_of(args), environment, quiet=args.quiet
        )
        measure(args, lines)

    return setting.run("fp32_head", body)


if __name__ == "__main__":
    raise SystemExit(main())
