"""A training step packed and one by one, with the standalone scoring pass and without.

`python -m capture.core.experiments.packing --model FOLDER --out FILE.jsonl [--device cuda ...]`

The same samples of unequal lengths, once with one sample a forward (`pack` 0) and once in packs of
so many tokens. `scoring` "kept" runs the standalone pass before each step, "skipped" lets the
training forward be the anchor. A step is all of `CoreActor.train`: packing, scoring, forward,
backward, clipping, optimizer. On CUDA it is timed by events; the first step is left out, since it
compares both forwards and sets libraries up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import configfile
from ..actor import CoreActor
from ..errors import ConfigError
from ..samples import Collection, Sample
from . import setting
from .lines import Lines

SCORING = ("skipped", "kept")


def collection(args: argparse.Namespace, vocabulary: int, index: int, seed: int) -> Collection:
    """Random tokens; response lengths are spread as those of generated answers, by a lognormal."""
    rng = np.random.default_rng([seed, 3])
    lengths = np.clip(rng.lognormal(np.log(args.response), 0.6, args.rows), 4, 4 * args.response)
    rng = np.random.default_rng([seed, index, 4])
    samples = []
    for number, length in enumerate(lengths.astype(int)):
        samples.append(
            Sample(
                sample_id=number,
                group_id=number // 2,
                tokens=rng.integers(0, vocabulary, args.prompt + length),
                prompt_len=args.prompt,
                loss_mask=np.ones(length, bool),
                behaviour_logp=np.full(length, -float(np.log(vocabulary))),
                behaviour_version=np.full(length, index),
                reward=float(number % 2),
                advantage=1.0 if number % 2 else -1.0,
            )
        )
    return Collection(tuple(samples), index)


def measure(
    args: argparse.Namespace, vocabulary: int, pack: int, scoring: str, seed: int
) -> dict[str, Any]:
    """Times and peak memory of one way."""
    config = configfile.parse(
        {
            "model": {"path": str(args.model), "dtype": args.dtype, "device": args.device},
            "rollout": {"rollout_batch_size": args.rows // 2, "n_samples_per_prompt": 2,
                        "num_rollout": args.repeats + 1, "max_new_tokens": 4 * args.response},
            "batch": {"global_batch_size": args.rows, "pack_tokens": pack},
            "scoring": {"force": scoring == "kept", "tolerance": 1.0, "compare_interval": 1000,
                        "max_mean_drift": 0.0},
        }
    )  # fmt: skip
    actor = CoreActor(config)
    actor.init(args.model)
    times, results = [], []
    try:
        for index in range(args.repeats + 1):
            data = collection(args, vocabulary, index, seed)
            if args.device == "cuda" and index == 1:
                torch.cuda.reset_peak_memory_stats()
            times.append(
                setting.clocked(args.device, lambda d=data: results.extend(actor.train(d, d.index)))
            )
        peak = torch.cuda.max_memory_allocated() if args.device == "cuda" else None
    finally:
        actor.close()
    wanted = {"kept": True, "skipped": False}[scoring]
    if any(result.scored != wanted for result in results[1:]):
        raise RuntimeError("the scoring pass ran otherwise than asked")
    median = statistics.median(times[1:])
    tokens = data.model_tokens
    return {
        "seconds": median,
        "seconds_low": min(times[1:]),
        "seconds_high": max(times[1:]),
        "first_seconds": times[0],
        "all_seconds": times[1:],
        "model_tokens": tokens,
        "response_tokens": data.active_tokens,
        "tokens_per_second": tokens / median,
        "samples_per_second": len(data) / median,
        "forwards": results[-1].accumulation,
        "peak_bytes": peak,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = setting.parser("packing", "Time training steps packed and one by one.")
    parser.set_defaults(seeds=[0])
    parser.add_argument("--model", type=Path, required=True, help="HF folder of a dense model")
    parser.add_argument("--rows", type=int, default=64, help="samples of a step, an even number")
    parser.add_argument("--prompt", type=int, default=96, help="tokens of a prompt")
    parser.add_argument("--response", type=int, default=80, help="median tokens of a response")
    parser.add_argument("--packs", type=setting.numbers(0), default=[0, 2048, 8192, 16384],
                        help="tokens of a pack; 0: one sample a forward")  # fmt: skip
    parser.add_argument("--repeats", type=int, default=3, help="timed steps after the first")
    args = parser.parse_args(argv)
    if args.rows < 2 or args.rows % 2 or args.repeats < 1:
        parser.error("--rows is an even number from 2, --repeats a number from 1")

    def body() -> None:
        path = args.model / "config.json"
        try:
            vocabulary = int(json.loads(path.read_text())["vocab_size"])
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"{path}: no vocab_size: {error}") from None
        environment = setting.environment(args.device)
        lines = Lines(args.out, "packing", setting.settings_of(args), environment,
                      quiet=args.quiet)  # fmt: skip
        for seed in args.seeds:
            # one by one is the slowest: what a run whose time is up leaves should not be that alone
            for pack in sorted(args.packs, reverse=True):
                for scoring in SCORING:
                    key = {"seed": seed, "pack": pack, "scoring": scoring}
                    if not lines.has(**key):
                        lines.add(measure(args, vocabulary, pack, scoring, seed), **key)
                        setting.free(args.device)

    return setting.run("packing", body)


if __name__ == "__main__":
    sys.exit(main())
