"""The verb ``estimate``: the memory of a colocated run on one GPU, before it starts."""

from __future__ import annotations

import argparse
import json
import math
import sys
import textwrap

from mileskit.common import tomlio
from mileskit.estimate import estimatecheck, memoryplan, modelsize
from mileskit.estimate.estimatecheck import Support
from mileskit.estimate.memoryplan import FITS, GB, STATE, Ask, Plan
from mileskit.judge import runload

EXIT_CODES = """exit codes:
  0  it fits the GPU (host memory for what is offloaded is printed and not judged)
  1  it does not fit, or it is too close to say
  2  bad usage, or a file cannot be read"""
WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``kit.py estimate``."""
    parser.description = (
        "Estimate the memory of a colocated GRPO run with the FSDP trainer on one GPU, as ranges,"
        " with what stored runs say about each rule. GB are 2**30 bytes, as nvidia-smi, PyTorch,"
        " SGLang and Ray count (a GB10 prints 121.69)."
    )
    parser.epilog = EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--params", type=float, metavar="N", help="parameters, as 0.6e9")
    model.add_argument("--config", metavar="FILE", help="config.json of a dense Llama or Qwen")
    parser.add_argument("--memory-gb", type=float, required=True, metavar="GB", help="memory")
    parser.add_argument(
        "--unified", action="store_true", help="CPU and GPU share the memory (GB10)"
    )
    parser.add_argument(
        "--mem-fraction",
        type=float,
        default=0.4,
        metavar="F",
        help="--sglang-mem-fraction-static (default %(default)s)",
    )
    parser.add_argument("--kv-tokens", type=int, metavar="N", help="a fixed KV cache instead")
    parser.add_argument(
        "--kv-value-bytes", type=int, default=2, metavar="N", help="of a key or value (default 2)"
    )
    for name, default, about in (
        ("--prompts", 32, "--rollout-batch-size"),
        ("--answers", 8, "--n-samples-per-prompt"),
        ("--prompt-tokens", 512, "longest prompt"),
        ("--limit", 1024, "--rollout-max-response-len"),
        ("--max-tokens-per-gpu", 8192, "tokens of one micro-batch"),
    ):
        words = f"{about} (default {default})"
        parser.add_argument(name, type=int, default=default, metavar="N", help=words)
    parser.add_argument("--no-offload", action="store_true", help="nothing is offloaded")
    parser.add_argument(
        "--no-reference", action="store_true", help="no reference model (no --use-kl-loss)"
    )
    parser.add_argument(
        "--no-checkpointing", action="store_true", help="without --gradient-checkpointing"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def ask_of(args: argparse.Namespace) -> Ask:
    """The question of the arguments. Raises ModelError for a bad value."""
    model = modelsize.load(args.config) if args.config else modelsize.of_count(args.params)
    if not (math.isfinite(args.memory_gb) and 0 < args.memory_gb < 1e6):
        raise modelsize.ModelError(f"--memory-gb must be above 0, not {args.memory_gb:g}")
    if not 0 < args.mem_fraction < 1:
        raise modelsize.ModelError(f"--mem-fraction is between 0 and 1, not {args.mem_fraction:g}")
    counts = ("prompts", "answers", "prompt_tokens", "limit", "max_tokens_per_gpu", "kv_tokens")
    for name in (*counts, "kv_value_bytes"):
        value = getattr(args, name)
        if value is not None and not 0 < value < 10**9:
            option = f"--{name.replace('_', '-')}"
            raise modelsize.ModelError(f"{option} must be a positive number, not {value}")
    if args.kv_tokens is not None and model.kv_values is None:
        raise modelsize.ModelError("--kv-tokens needs --config: KV bytes of a token are unknown")
    return Ask(
        model,
        args.memory_gb,
        args.unified,
        args.mem_fraction,
        args.kv_tokens,
        args.kv_value_bytes,
        args.prompts,
        args.answers,
        args.prompt_tokens,
        args.limit,
        args.max_tokens_per_gpu,
        not args.no_offload,
        not args.no_reference,
        not args.no_checkpointing,
    )


def run(args: argparse.Namespace) -> int:
    """Runs the verb; returns the exit code."""
    try:
        ask = ask_of(args)
        seen = estimatecheck.seen()
        found = memoryplan.plan(ask, seen)
        supports, missing = estimatecheck.supports()
    except (modelsize.ModelError, runload.LoadError, tomlio.TomlError) as error:
        print(f"estimate: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"estimate: {error.filename}: {error.strerror or error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(document(ask, found, supports, missing), indent=1))
    else:
        print("\n".join(lines(ask, found, supports, missing)))
    return 0 if found.verdict == FITS else 1


def document(ask: Ask, found: Plan, supports: list[Support], missing: list[str]) -> dict:
    """Everything as data."""
    return {
        "model": ask.model._asdict(),
        "ask": {k: v for k, v in ask._asdict().items() if k != "model"},
        "state_gb": STATE * ask.model.params / GB,
        "rows": [row._asdict() for row in found.rows],
        "peaks_gb": found.peaks,
        "room_gb": found.room_gb,
        "host_gb": found.host_gb,
        "kv_tokens": found.kv_tokens,
        "kv_wanted": found.kv_wanted,
        "verdict": found.verdict,
        "verdict_line": found.line,
        "why": list(found.why),
        "supports": [{**s._asdict(), "off": s.off} for s in supports],
        "outcomes": [o._asdict() for o in estimatecheck.outcomes()],
        "not_compared": missing,
        "half_rule": estimatecheck.half_rule(),
    }


def lines(ask: Ask, found: Plan, supports: list[Support], missing: list[str]) -> list[str]:
    """The estimate for people, at most WIDTH wide."""
    kind = "unified" if ask.unified else "separate"
    out = [
        f"{ask.model.name}: {ask.model.params:,} parameters, {ask.memory_gb:g} GB {kind} memory",
        *(f"note: {note}" for note in ask.model.notes),
        "",
        f"  {'GB of 2**30 bytes':<18}{'low':>8}{'high':>8}  how",
    ]
    for row in found.rows:
        head = f"  {row.name:<18}{row.low:>8.2f}{row.high:>8.2f}  "
        out += textwrap.wrap(row.how, WIDTH, initial_indent=head, subsequent_indent=" " * 38)
    state = STATE * ask.model.params / GB
    out.append(f"  trainer state: {state:.2f} GB ({STATE} bytes a parameter)")
    out += ["", f"  {'peak of a phase':<18}{'low':>8}{'high':>8}"]
    out += [f"  {name:<18}{low:>8.2f}{high:>8.2f}" for name, (low, high) in found.peaks.items()]
    if found.host_gb is not None:
        out.append(f"  host memory for what is offloaded: up to {found.host_gb:.2f} GB, not judged")
    out += ["", *_cache(ask, found), "", found.line, *_wrapped(found.why)]
    return out + _evidence(supports, missing)


def _wrapped(texts, indent: str = "  ") -> list[str]:
    return [
        piece
        for words in texts
        for piece in textwrap.wrap(
            words, WIDTH, initial_indent=indent, subsequent_indent=indent + "  "
        )
    ]


def _cache(ask: Ask, found: Plan) -> list[str]:
    wanted = (
        f"{found.kv_wanted:,} tokens if all {ask.prompts * ask.answers} answers of a rollout reach"
        f" the limit"
    )
    if found.kv_tokens is None:
        return _wrapped([f"KV cache: {wanted}; what it holds needs --config"], "")
    low, high = found.kv_tokens
    bytes_ = ask.model.kv_values * ask.kv_value_bytes
    held = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    text = f"KV cache: {bytes_:,} bytes a token, holds {held} tokens; {wanted}"
    if high < found.kv_wanted:
        text += ": some would wait their turn, which costs time and not memory"
    return _wrapped([text], "")


def _evidence(supports: list[Support], missing: list[str]) -> list[str]:
    out = ["", "What runs say about the rules (estimate, printed, how far off)"]
    for rule in dict.fromkeys(s.rule for s in supports):
        rows = [s for s in supports if s.rule == rule]
        for tier in ("measured", "reported"):
            some = [s for s in rows if s.tier == tier]
            if some:
                line = _support(rule, tier, some)
                out += textwrap.wrap(line, WIDTH, subsequent_indent=" " * 67)
    out += ["", "Reported runs on unified memory, by 16 bytes a parameter"]
    out += _wrapped(
        f"{o.state_gb:.1f} GB, {o.share:.0%} of the node: {o.what}: {o.outcome}"
        for o in estimatecheck.outcomes()
    )
    out += _wrapped([estimatecheck.half_rule()])
    return out + _wrapped(f"not compared: {text}" for text in missing)


def _support(rule: str, tier: str, rows: list[Support]) -> str:
    """One line: the run that is furthest off stands for several."""
    worst = max(rows, key=lambda s: abs(s.off))
    digits = 0 if worst.unit == "bytes" else 2
    low, high = (f"{v:,.{digits}f}" for v in (worst.low, worst.high))
    span = low if worst.low == worst.high else f"{low} to {high}"
    off = "inside" if worst.low != worst.high and not worst.off else f"{worst.off:+.2%}"
    who = worst.run if len(rows) == 1 else f"{worst.run}, furthest of {len(rows)}"
    what = f"{span} {worst.unit}, {worst.printed:,.{digits}f}"
    return f"  {rule:<27}{what:<29}{off:>7}  {tier}, {who}"
