"""How fast a model generates and trains: tokens a second of both ways of decoding, and of packs.

`python -m capture.core.experiments.decode_speed HF_FOLDER [--device cuda --dtype bfloat16 ...]`
prints one JSON object a line. Responses never end early, so tokens are rows times new tokens. The
first call of a shape, which sets up libraries and records graphs, is timed apart. Packs are of
random tokens; a training step is what `CoreActor.train` does without the scoring pass.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capture.core import docmask
from capture.core.actor import CoreActor
from capture.core.configfile import parse
from capture.core.engines.core_engine import CoreEngine
from capture.core.engines.transformers_engine import DECODES, DTYPES, TransformersEngine
from capture.core.errors import ContractError, CoreRunError
from capture.core.experiments import setting
from capture.core.packing import make_pack
from capture.core.samples import Collection, Sample


def ways(text: str) -> list[str]:
    """`graph,cache,core` as a list."""
    found = text.split(",")
    if not set(found) <= {*DECODES, "core"}:
        raise ValueError(text)
    return found


def timed(device: str, action: Any) -> tuple[float, int]:
    """(seconds, peak bytes of the device or 0) of a call."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    _, seconds = setting.timed(device, action)
    return seconds, torch.cuda.max_memory_allocated() if device == "cuda" else 0


def engine_of(args: argparse.Namespace, decode: str, rows: int) -> Any:
    """The engine of one way: a way of decoding, or `core`, the exact engine."""
    if decode != "core":
        return TransformersEngine.from_folder(
            args.folder,
            dtype=args.dtype,
            device=args.device,
            eos_ids=[],
            batch_size=rows,
            decode=decode,
        )
    width = args.prompt + args.new
    config = parse(
        {
            "model": {"path": str(args.folder), "dtype": args.dtype, "device": args.device},
            "rollout": {"max_new_tokens": args.new},
            "engine": {"kind": "core", "device": args.device},
            "batch": {"document_tokens": width, "pack_tokens": width * rows},
        }
    )
    return CoreEngine.from_folder(config, args.folder, eos_ids=[])


def decoding(args: argparse.Namespace, vocab: int) -> Iterator[dict[str, Any]]:
    """Every way of decoding, at every number of rows."""
    rng = np.random.default_rng(0)
    for decode in args.decode:
        for rows in args.rows:
            engine = engine_of(args, decode, rows)
            # groups of eight share a prompt; lengths differ by half
            sizes = rng.integers(max(1, args.prompt // 2), args.prompt + 1, max(1, rows // 8))
            prompts = [rng.integers(0, vocab, size).tolist() for size in sizes]
            share = min(8, rows)

            def generate(seed: int, e=engine, p=prompts, n=share) -> None:
                e.generate(p, n=n, max_new_tokens=args.new, seed=seed)

            first, _ = timed(args.device, lambda: generate(0))
            times = [timed(args.device, lambda i=i: generate(i)) for i in range(1, args.repeat + 1)]
            seconds = min(value for value, _ in times)
            count = len(prompts) * share
            yield {
                "what": "decode",
                "decode": decode,
                "rows": count,
                "prompt_tokens": args.prompt,
                "new_tokens": args.new,
                "first_seconds": first,
                "seconds": [value for value, _ in times],
                "tokens_per_second": count * args.new / seconds,
                "ms_per_step": 1000 * seconds / args.new,
                "peak_bytes": max(peak for _, peak in times),
            }
            engine.close()


def checks(args: argparse.Namespace, vocab: int) -> Iterator[dict[str, Any]]:
    """Whether what is fast is also right. CoreRunError where it is not."""
    if args.device == "cuda":
        yield {"what": "docmask", **docmask.check(args.device)}
    rng = np.random.default_rng(1)
    sizes = rng.integers(max(1, args.prompt // 2), args.prompt + 1, 8)
    prompts = [rng.integers(0, vocab, size).tolist() for size in sizes]
    made, gaps = {}, {}
    whole = TransformersEngine.from_folder(args.folder, device=args.device, eos_ids=[])
    for decode in DECODES:
        engine = engine_of(args, decode, 16)
        made[decode] = engine.generate(prompts, n=2, max_new_tokens=args.new, seed=3)
        # rounding decides which of two ways is nearer; neither may be much farther from float32
        scored = [
            whole.score([*prompts[i // 2], *one.tokens.tolist()], len(prompts[i // 2]))
            for i, one in enumerate(made[decode])
        ]
        apart = [np.abs(a - one.logps) for a, one in zip(scored, made[decode], strict=True)]
        gaps[decode] = np.concatenate(apart)
        engine.close()
    mean = {decode: float(gap.mean()) for decode, gap in gaps.items()}
    equal = [
        bool(np.array_equal(one.tokens, other.tokens))
        for one, other in zip(*made.values(), strict=True)
    ]
    yield {
        "what": "decode_check",
        "equal_responses": sum(equal) / len(equal),
        **{f"{decode}_mean_gap": value for decode, value in mean.items()},
        **{f"{decode}_max_gap": float(gap.max()) for decode, gap in gaps.items()},
    }
    if not mean["graph"] <= 2 * mean["cache"] + 1e-4:
        raise ContractError("decode", f"mean gaps to a float32 forward without cache: {mean}")
    whole.close()
    exact = engine_of(args, "core", 8)
    made_exact = exact.generate(prompts, max_new_tokens=args.new, seed=4)
    samples = [
        sample_of(i, [*prompt, *one.tokens], len(prompt), one.logps)
        for i, (prompt, one) in enumerate(zip(prompts, made_exact, strict=True))
    ]
    pack = make_pack(samples, list(range(8)))
    behaviour = pack.gather([sample.behaviour_logp for sample in samples], np.float32)
    scores = exact.module.score_pack(pack, temperature=1.0).numpy()
    trained = exact.module.pack_logps(pack, temperature=1.0)[0]
    yield {
        "what": "exact_check",
        "tokens": len(behaviour),
        "score_max_gap": float(np.abs(scores - behaviour).max()),
        "train_max_gap": float(np.abs(trained.detach().cpu().numpy() - behaviour).max()),
    }
    exact.close()


def sample_of(number: int, tokens: Sequence[int], prompt_len: int, logps: Any) -> Sample:
    """A sample whose whole response counts."""
    return Sample(
        sample_id=number,
        group_id=number,
        tokens=np.asarray(tokens),
        prompt_len=prompt_len,
        loss_mask=np.ones(len(logps), bool),
        behaviour_logp=logps,
        behaviour_version=np.zeros(len(logps), int),
        reward=0.0,
    )


def collection(index: int, tokens: int, document: int, vocab: int) -> Collection:
    """Two packs of random documents, about half of each a response."""
    rng = np.random.default_rng(index)
    samples = []
    for number in range(2 * max(1, tokens // document)):
        response = document // 2
        logps = np.full(response, -float(np.log(vocab)), np.float32)
        sample = sample_of(number, rng.integers(0, vocab, document), document - response, logps)
        samples.append(dataclasses.replace(sample, advantage=float(rng.normal())))
    return Collection(index=index, samples=tuple(samples))


def training(args: argparse.Namespace, vocab: int) -> Iterator[dict[str, Any]]:
    """A training step of two packs of every size, with and without a mask where that differs."""
    ways = ["own"] + (["mask"] if args.device == "cuda" and args.dtype != "float32" else [])
    for tokens in args.packs:
        for way in ways:
            samples = 2 * max(1, tokens // args.document)
            config = parse(
                {
                    "model": {"path": str(args.folder), "dtype": args.dtype, "device": args.device},
                    "rollout": {
                        "rollout_batch_size": samples // 2,
                        "n_samples_per_prompt": 2,
                        "num_rollout": args.repeat + 1,
                        "max_new_tokens": 1,
                    },
                    "batch": {"global_batch_size": samples, "pack_tokens": tokens},
                    "scoring": {"compare_interval": 1000, "tolerance": 1.0, "max_mean_drift": 0.0},
                }
            )
            actor = CoreActor(config)
            actor.init(args.folder)
            kept = docmask.varlen_dtype
            if way == "mask":
                docmask.varlen_dtype = lambda *_: None
            try:
                made = [collection(i, tokens, args.document, vocab) for i in range(args.repeat + 1)]
                times = [timed(args.device, lambda a=actor, c=c: a.train(c, c.index)) for c in made]
            finally:
                docmask.varlen_dtype = kept
                actor.close()
            seconds = min(value for value, _ in times[1:])
            real = sum(len(sample.tokens) for sample in made[0].samples)
            yield {
                "what": "train",
                "attention": "varlen" if way == "own" and len(ways) == 2 else "mask",
                "pack_tokens": tokens,
                "document_tokens": args.document,
                "first_seconds": times[0][0],
                "seconds": [value for value, _ in times[1:]],
                "tokens_per_second": real / seconds,
                "peak_bytes": max(peak for _, peak in times),
            }
            actor = None
            if args.device == "cuda":
                torch.cuda.empty_cache()


def versions(args: argparse.Namespace) -> dict[str, Any]:
    """What ran: versions and the device's name."""
    import transformers

    name = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    return {
        "what": "setup",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": name,
        "dtype": args.dtype,
        "threads": torch.get_num_threads(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts asked for and print their lines."""
    parser = argparse.ArgumentParser(
        prog="python -m capture.core.experiments.decode_speed",
        description="Tokens a second of decoding and of training steps, as JSON lines.",
        epilog="Exit codes: 0 measured, 1 attention or a part failed, 2 bad usage.",
    )
    parser.add_argument("folder", type=Path, help="HF folder of the model")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="bfloat16")
    parser.add_argument("--decode", type=ways, default=["graph", "cache"], help="also: core")
    parser.add_argument(
        "--rows", type=setting.numbers(1), default=[128, 256, 512], help="responses at once"
    )
    parser.add_argument("--prompt", type=int, default=96, help="longest prompt, in tokens")
    parser.add_argument("--new", type=int, default=128, help="new tokens a response")
    parser.add_argument(
        "--packs", type=setting.numbers(1), default=[4096, 8192, 16384], help="tokens a pack"
    )
    parser.add_argument("--document", type=int, default=256, help="tokens of a document")
    parser.add_argument("--repeat", type=int, default=2, help="timed calls after the first")
    parser.add_argument("--only", choices=("check", "decode", "train"), help="one part alone")
    args = parser.parse_args(argv)
    config = args.folder / "config.json"
    try:
        vocab = int(json.loads(config.read_text())["vocab_size"])
    except (OSError, ValueError, KeyError) as error:
        print(f"{config}: no vocab_size: {error}", file=sys.stderr)
        return 2

    parts = {
        "check": lambda: checks(args, vocab),
        "decode": lambda: decoding(args, vocab),
        "train": lambda: training(args, vocab),
    }
    try:
        setting.check_device(args.device)
        print(json.dumps(versions(args)), flush=True)
        for name, part in parts.items():
            if args.only in (None, name):
                for line in part():
                    print(json.dumps(line), flush=True)
    except CoreRunError as error:
        print(f"decode_speed: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
