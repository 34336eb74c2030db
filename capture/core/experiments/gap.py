"""The gap between engine and trainer: how far apart they score the tokens that the engine sampled.

`python -m capture.core.experiments.gap --model FOLDER --out FILE.jsonl [--device cuda ...]`

For each seed (other prompts, other random numbers) at several optimizer steps: the FP32-output head
on neither side, the trainer's, the engine's or both; top-p and top-k with and without sampling
replay; and the exact engine, which generates with the trainer's own forward. The engine's weights
are published before every measurement, so both sides have the same ones up to the dtype.

Cases: `head/neither`, `head/trainer`, `head/engine`, `head/both`; `top_p/full` and `top_k/full`
(the engine's numbers over the whole vocabulary, as without replay), `.../mismatch` (what the tokens
were really drawn from, against the trainer's whole vocabulary) and `.../replay` (both over the kept
set); `exact` with `exact/packed`, the same responses scored in ordinary packs, and `exact/plain`,
the ordinary engine on the same few prompts. `cost/...` has the seconds of generating.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import configfile, engines, fp32head, tasks
from ..actor import CoreActor
from ..advantages import with_advantages
from ..engines.transformers_engine import TransformersEngine
from ..rollouts import seed_of
from ..samples import Collection, Sample
from . import setting
from .gapstats import gap
from .lines import Lines

HEADS = {"neither": (False, False), "trainer": (True, False), "engine": (False, True),
         "both": (True, True)}  # fmt: skip
"""FP32-output head of (trainer, engine)."""


class Gap:
    """One model, its trainer and its engines. `measure` runs everything of one seed."""

    def __init__(self, args: argparse.Namespace, lines: Lines) -> None:
        self.args, self.lines = args, lines
        self.config = configfile.parse(self._settings())
        self.task = tasks.load(self.config)
        self.samplers = {
            "top_p": {"top_p": args.top_p, "top_k": -1},
            "top_k": {"top_p": 1.0, "top_k": args.top_k},
        }
        self._version = 0

    def _settings(self) -> dict[str, Any]:
        args = self.args
        rows = args.prompts * args.samples
        return {
            "model": {"path": str(args.model), "dtype": args.dtype, "device": args.device},
            "task": {"name": args.task, "train_prompts": max(64, 4 * args.prompts),
                     "eval_prompts": 8},
            "rollout": {
                "rollout_batch_size": args.prompts,
                "n_samples_per_prompt": args.samples,
                "num_rollout": max(args.marks) + 1,
                "max_new_tokens": args.new,
                "temperature": args.temperature,
            },
            "engine": {"dtype": args.dtype, "device": args.device, "batch_size": rows},
            "optimizer": {"lr": args.lr},
            "batch": {"global_batch_size": rows, "pack_tokens": args.pack},
            # in bfloat16 two packings differ by more than the default allows
            "scoring": {"tolerance": 1.0, "compare_interval": 1000, "max_mean_drift": 0.0},
        }  # fmt: skip

    def _exact_settings(self) -> dict[str, Any]:
        """The exact setting: every document of trainer and engine in a row of one size."""
        args, own = self.args, self._settings()
        rows = args.exact_prompts * args.samples
        longest = max(len(prompt.tokens) for prompt in self.task.train) + args.new
        row = -(-longest // 32) * 32
        own["rollout"] |= {"rollout_batch_size": args.exact_prompts}
        own["engine"] |= {"kind": "core", "dtype": "float32"}
        own["batch"] = {"global_batch_size": rows, "document_tokens": row,
                        "pack_tokens": row * rows}  # fmt: skip
        return own

    def complete(self, seed: int) -> bool:
        """Whether the file has all of a seed."""
        return self.lines.has(seed=seed, step=max(self.args.marks), case="done")

    def measure(self, seed: int) -> None:
        """All marks of one seed: measure, train up to the next mark, publish."""
        args = self.args
        actor = CoreActor(self.config)
        actor.init(args.model)
        # engines differ in their head only; both are kept, since a graph holds its head
        served = {head: self._engine(head) for head in (False, True)}
        exact = self._exact() if args.exact_prompts else None
        rng = np.random.default_rng([seed, 77])
        order = rng.permutation(len(self.task.train))
        for step in range(max(args.marks) + 1):
            prompts = [self.task.train[order[(step * args.prompts + i) % len(order)]]
                       for i in range(args.prompts)]  # fmt: skip
            if step in args.marks:
                self._mark(actor, served, exact, prompts, seed, step)
            if step < max(args.marks):
                self._train(actor, served[False], prompts, seed, step)
        self.lines.add({"seconds": 0.0}, seed=seed, step=max(args.marks), case="done")
        for part in (*served.values(), *(exact or ()), actor):
            part.close()

    # -- one mark --------------------------------------------------------------------------------

    def _mark(
        self, actor: CoreActor, served: dict, exact: Any, prompts: list, seed: int, step: int
    ) -> None:
        def done(case: str) -> bool:
            return self.lines.has(seed=seed, step=step, case=case)

        def add(case: str, values: dict[str, Any]) -> None:
            self.lines.add(values, seed=seed, step=step, case=case)

        for engine in served.values():
            self._publish(actor, engine)
        made: dict[bool, list[Sample]] = {}
        for on_engine in (False, True):
            if all(done(f"head/{name}") for name, (_, e) in HEADS.items() if e == on_engine):
                continue
            made[on_engine], seconds = self._generate(actor, served[on_engine], prompts, seed, step)
            kind = "fp32" if on_engine else "plain"
            add(f"cost/{self.args.decode}/{kind}", _cost(made[on_engine], seconds))
        for name, (on_trainer, on_engine) in HEADS.items():
            if not done(f"head/{name}"):
                add(f"head/{name}", self._gap(actor, made[on_engine], trainer_head=on_trainer))
        if step not in (min(self.args.marks), max(self.args.marks)):
            return
        for name, how in self.samplers.items():
            if not done(f"{name}/full"):
                plain, _ = self._generate(actor, served[False], prompts, seed, step, **how)
                add(f"{name}/full", self._gap(actor, plain))
            if not (done(f"{name}/mismatch") and done(f"{name}/replay")):
                kept, _ = self._generate(
                    actor, served[False], prompts, seed, step, kept_sets=True, **how
                )
                size = np.concatenate([sample.kept.sizes for sample in kept])
                sizes = {"kept_mean": float(size.mean()), "kept_max": int(size.max())}
                without = [dataclasses.replace(sample, kept=None) for sample in kept]
                add(f"{name}/mismatch", {**self._gap(actor, without), **sizes})
                add(f"{name}/replay", {**self._gap(actor, kept), **sizes})
        if exact is None or done("cost/exact"):
            return
        few = prompts[: self.args.exact_prompts]
        trainer, engine = exact
        # the same weights as the trainer's, and the engine's come from there
        trainer._backend.load_hf(trainer.module, trainer.hf_config, dict(actor.export()))
        self._publish(trainer, engine)
        own, seconds = self._generate(trainer, engine, few, seed, step)
        add("exact", self._gap(trainer, own))
        add("exact/packed", self._gap(actor, own))
        add("cost/exact", _cost(own, seconds))
        self._generate(actor, served[False], few, seed, step)  # a new shape sets things up
        plain, seconds = self._generate(actor, served[False], few, seed, step)
        add("exact/plain", self._gap(actor, plain))
        add("cost/exact/plain", _cost(plain, seconds))

    def _gap(
        self, actor: CoreActor, samples: list[Sample], *, trainer_head: bool = False
    ) -> dict[str, Any]:
        """How far the trainer scores samples from what the engine said."""
        if trainer_head:
            fp32head.install(actor.module.model)
        try:
            scored = actor.score(samples)
        finally:
            fp32head.remove(actor.module.model)
        return gap(scored, [sample.behaviour_logp for sample in samples])

    def _generate(
        self, actor: CoreActor, engine: Any, prompts: list, seed: int, step: int, **how: Any
    ) -> tuple[list[Sample], float]:
        """Samples of the prompts, with rewards, and the seconds that generating them took."""
        rows = [prompt.tokens for prompt in prompts]
        seeds = [seed_of("gap", seed, step, place) for place in range(len(rows))]
        made, seconds = setting.timed(
            self.args.device,
            lambda: engine.generate(
                rows,
                n=self.args.samples,
                max_new_tokens=self.args.new,
                temperature=self.args.temperature,
                seed=seeds,
                **how,
            ),
        )
        rewards = [
            self.task.reward(prompts[i // self.args.samples], [int(t) for t in one.tokens])
            for i, one in enumerate(made)
        ]
        found = setting.samples_of(rows, made, version=actor.policy_version, rewards=rewards)
        return with_advantages(found), seconds

    # -- between marks ---------------------------------------------------------------------------

    def _train(self, actor: CoreActor, engine: Any, prompts: list, seed: int, step: int) -> None:
        self._publish(actor, engine)
        samples, _ = self._generate(actor, engine, prompts, seed, step)
        (result,) = actor.train(Collection(tuple(samples), step), actor.policy_version)
        self.lines.add(
            {
                "reward": float(np.mean([sample.reward for sample in samples])),
                "gradient_norm": result.gradient_norm,
                "groups_with_advantage": len({s.group_id for s in samples if s.advantage}),
            },
            seed=seed, step=step + 1, case="train",
        )  # fmt: skip

    def _publish(self, actor: CoreActor, engine: Any) -> None:
        self._version += 1
        engine.load(actor.export(), self._version)

    # -- engines ---------------------------------------------------------------------------------

    def _engine(self, head: bool) -> TransformersEngine:
        engine = TransformersEngine.from_folder(
            self.args.model,
            dtype=self.args.dtype,
            device=self.args.device,
            fp32_lm_head=head,
            decode=self.args.decode,
            eos_ids=[self.task.eos_id],
            pad_id=self.task.pad_id,
            batch_size=self.args.prompts * self.args.samples,
        )
        rows = [prompt.tokens for prompt in self.task.train[: self.args.prompts]]
        # what a first call sets up is no cost of generating
        engine.generate(rows, n=self.args.samples, max_new_tokens=self.args.new)
        return engine

    def _exact(self) -> tuple[CoreActor, Any]:
        """Trainer and engine of the exact setting."""
        config = configfile.parse(self._exact_settings())
        trainer = CoreActor(config)
        trainer.init(self.args.model)
        engine = engines.build(
            config, self.args.model, eos_id=self.task.eos_id, pad_id=self.task.pad_id
        )
        return trainer, engine


def _cost(samples: list[Sample], seconds: float) -> dict[str, Any]:
    tokens = sum(sample.response_len for sample in samples)
    return {"seconds": seconds, "tokens": tokens, "tokens_per_second": tokens / seconds}


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = setting.parser("gap", "Measure the gap between engine and trainer.")
    parser.add_argument("--model", type=Path, required=True, help="HF folder")
    parser.add_argument("--task", default="wordproblems", help="module of capture.core.tasks")
    parser.add_argument("--prompts", type=int, default=8, help="prompts of a collection")
    parser.add_argument("--samples", type=int, default=8, help="responses a prompt")
    parser.add_argument("--new", type=int, default=64, help="longest response, in tokens")
    parser.add_argument("--pack", type=int, default=8192, help="tokens of a pack of the trainer")
    parser.add_argument("--marks", type=setting.numbers(0), default=[0, 1, 4, 8],
                        help="optimizer steps before each measurement")  # fmt: skip
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=0.9)
    parser.add_argument("--top-k", type=int, default=50)
    parser.add_argument("--decode", choices=("cache", "graph"), default="graph")
    parser.add_argument("--exact-prompts", type=int, default=4,
                        help="prompts of the exact engine; 0 leaves it out")  # fmt: skip
    args = parser.parse_args(argv)

    def body() -> None:
        environment = setting.environment(args.device)
        lines = Lines(args.out, "gap", setting.settings_of(args), environment, quiet=args.quiet)
        found = Gap(args, lines)
        for seed in args.seeds:
            if not found.complete(seed):
                found.measure(seed)
                setting.free(args.device)

    return setting.run("gap", body)


if __name__ == "__main__":
    sys.exit(main())
