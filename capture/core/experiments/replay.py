"""Routing replay on a random mixture of experts: by depth, and by how old the routes are.

`python -m capture.core.experiments.replay --out FILE.jsonl [--device cuda ...]`

A random Qwen3-MoE generates in transformers and records which experts ran; the same weights in Core
score those tokens, once routing by themselves and once with the recorded experts. Then the trainer
takes optimizer steps, and the same tokens are scored again with the routes of version 0. Weights
are random, never trained: how often two programs disagree about experts is that of such weights.

Measurements of a seed, for each staleness k (optimizer steps since the routes were recorded):

`layers`    share of recorded tokens whose expert set the trainer's own routing changes, by layer:
            `free` in a forward that routes by itself, `replayed` behind layers that are replayed
`live`, `replay`  gap of the trainer's scores to those of the engine that has the same weights now
`behaviour/live`, `behaviour/replay`  gap to what the engine said when it sampled
`between`   gap between the trainer's two ways
`gradient`  norms of the policy gradient of both ways, of the routers and of everything, and the
            cosine between the routers' gradients
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .. import configfile, router, standins
from ..actor import CoreActor
from ..engines.transformers_engine import DTYPES, TransformersEngine
from ..hook import PackWork, StepContext
from ..objective import pack_inputs
from ..packing import plan
from ..rollouts import seed_of
from ..routes import pack_routes
from ..samples import Collection, Sample
from . import setting
from .gapstats import gap
from .lines import Lines


def random_moe(args: argparse.Namespace, seed: int) -> tuple[Any, Any]:
    """(HF configuration, transformers model) with normal random weights, in the engine's dtype."""
    import transformers

    config = transformers.Qwen3MoeConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.width,
        intermediate_size=args.width * 2,
        moe_intermediate_size=args.expert_width,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=max(1, args.heads // 2),
        head_dim=args.width // args.heads,
        num_experts=args.experts,
        num_experts_per_tok=args.topk,
        norm_topk_prob=True,
        max_position_embeddings=2 * (args.prompt + args.new),
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    kind = DTYPES[args.engine_dtype]
    with torch.device(args.device):
        model = transformers.Qwen3MoeForCausalLM(config).to(kind).eval()
    generator = torch.Generator(args.device).manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                # normal in float32, then rounded: trainer and engine start from the same numbers
                draw = torch.empty(weight.shape, device=weight.device)
                weight.copy_(draw.normal_(0, args.std, generator=generator))
    return config, model


class Replay:
    """One seed: its model on both sides, its samples."""

    def __init__(self, args: argparse.Namespace, lines: Lines, seed: int) -> None:
        self.args, self.lines, self.seed = args, lines, seed
        config, model = random_moe(args, seed)
        rows = args.rows
        self.run = configfile.parse(
            {
                "model": {"family": "qwen3_moe", "dtype": args.dtype, "device": args.device},
                "rollout": {"rollout_batch_size": rows // 2, "n_samples_per_prompt": 2,
                            "num_rollout": max(args.stale) + 1, "max_new_tokens": args.new},
                "engine": {"dtype": args.engine_dtype, "device": args.device, "batch_size": rows},
                "optimizer": {"lr": args.lr},
                "batch": {"global_batch_size": rows, "pack_tokens": args.pack},
                "scoring": {"tolerance": 1.0, "compare_interval": 1000, "max_mean_drift": 0.0},
                "miles": {"use_rollout_routing_replay": True, "use_miles_router": True},
                # the policy's gradient alone
                "core": {"router_aux_loss_weight": 0.0, "router_z_loss_weight": 0.0},
            }
        )  # fmt: skip
        self.actor = CoreActor(self.run)
        state = {name: value.detach() for name, value in model.state_dict().items()}
        self.actor.init((config, state))
        self.engine = TransformersEngine(
            model, eos_ids=[], pad_id=0, batch_size=rows, expert_ids=True
        )

    def measure(self) -> None:
        """Everything of the seed."""
        samples = self._samples(0)
        for step in range(max(self.args.stale) + 1):
            if step in self.args.stale:
                self._mark(samples, step)
            if step < max(self.args.stale):
                fresh = self._samples(step + 1)
                (result,) = self.actor.train(
                    Collection(tuple(fresh), step), self.actor.policy_version
                )
                self._add({"gradient_norm": result.gradient_norm}, step + 1, "train")
                self.engine.load(self.actor.export(), self.actor.policy_version)
        self._add({"seconds": 0.0}, max(self.args.stale), "done")
        self.engine.close()
        self.actor.close()

    def _add(self, values: dict[str, Any], step: int, what: str) -> None:
        self.lines.add(values, seed=self.seed, stale=step, what=what)

    def _samples(self, index: int) -> list[Sample]:
        """Random prompts, responses of the engine as it is now, advantages +1 and -1 in a group."""
        args = self.args
        rng = np.random.default_rng([self.seed, index, 5])
        prompts = [
            rng.integers(3, args.vocabulary, args.prompt).tolist() for _ in range(args.rows // 2)
        ]
        made = self.engine.generate(
            prompts, n=2, max_new_tokens=args.new, seed=seed_of("replay", self.seed, index)
        )
        signs = [1.0 if number % 2 else -1.0 for number in range(len(made))]
        return setting.samples_of(
            prompts, made, version=self.actor.policy_version, rewards=signs, advantages=signs
        )

    # -- one mark --------------------------------------------------------------------------------

    def _mark(self, samples: list[Sample], step: int) -> None:
        module = self.actor.module
        layout = plan(samples, world_size=1, optimizer_steps=1, pack_tokens=self.args.pack)
        packs = layout.steps[0].ranks[0]
        scored: dict[str, dict[int, np.ndarray]] = {"live": {}, "replay": {}}
        changed = {"free": np.zeros(self.args.layers), "replayed": np.zeros(self.args.layers)}
        rows = 0
        for pack in packs:
            routes = pack_routes(pack, samples)
            keep = np.ones(len(pack.tokens), bool)
            keep[np.cumsum(pack.doc_lens) - 1] = False  # the synthetic tail is no recorded route
            rows += int(keep.sum())
            for name in scored:
                work = router.RouterWork(
                    routes=routes if name == "replay" else None,
                    doc_lens=pack.doc_lens,
                    denominators=None,
                    documents=pack.responses,
                    live=name == "live",
                )
                with torch.no_grad(), router.armed(module.model, work):
                    module._train_mode()
                    logps, _ = module.pack_logps(pack, temperature=1.0)
                scored[name].update(pack.scatter(logps.float().cpu().numpy()))
                for number, layer in enumerate(work.layers):
                    if name == "replay":
                        changed["replayed"][number] += int(layer.differing)
                    else:
                        own = layer.executed[0].cpu().sort(-1).values.numpy()
                        other = np.sort(routes[:, number], axis=-1)
                        changed["free"][number] += int((own != other).any(-1)[keep].sum())
        order = range(len(samples))
        by = {name: [parts[index] for index in order] for name, parts in scored.items()}
        now = [self.engine.score(s.tokens.tolist(), s.prompt_len) for s in samples]
        said = [sample.behaviour_logp for sample in samples]
        shares = {name: (counts / rows).tolist() for name, counts in changed.items()}
        self._add({**shares, "tokens": rows}, step, "layers")
        for name, parts in by.items():
            self._add(gap(parts, now), step, name)
            self._add(gap(parts, said), step, f"behaviour/{name}")
        self._add(gap(by["replay"], by["live"]), step, "between")
        self._add(self._gradients(samples, layout.steps[0]), step, "gradient")

    def _gradients(self, samples: list[Sample], step: Any) -> dict[str, float]:
        """Norms of the policy gradient with and without replay; nothing is stepped."""
        module, own = self.actor.module, router.settings_of(self.run)
        found: dict[str, Any] = {}
        routers: dict[str, torch.Tensor] = {}
        for name in ("replay", "live"):
            router.install(module.model, dataclasses.replace(own, replay=name == "replay"))
            work = [
                PackWork(
                    pack,
                    pack_inputs(pack, samples, device=module.device),
                    pack_routes(pack, samples) if name == "replay" else None,
                )
                for pack in step.ranks[0]
            ]
            context = StepContext(self.actor.objective, step.denominators, step.auxiliary)
            module.train_packs(work, context)
            total, parts = 0.0, []
            for weight_name, weight in module.named_parameters():
                beside = getattr(weight, "_main_grad_fp32", None)
                gradient = weight.grad if beside is None else beside
                total += float(gradient.double().square().sum())
                if "router" in weight_name:
                    parts.append(gradient.detach().double().flatten())
            routers[name] = torch.cat(parts)
            found[f"{name}_norm"] = total**0.5
            found[f"{name}_router_norm"] = float(routers[name].norm())
            module.zero_grads()
        router.install(module.model, own)
        one, other = routers["replay"], routers["live"]
        found["router_cosine"] = float(one @ other / (one.norm() * other.norm()))
        found["router_distance"] = float((one - other).norm() / other.norm())
        return found


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = setting.parser("replay", "Measure routing replay on a random mixture of experts.")
    parser.add_argument("--engine-dtype", choices=tuple(DTYPES), default="bfloat16")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--topk", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--expert-width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--std", type=float, default=0.04, help="deviation of the random weights")
    parser.add_argument("--rows", type=int, default=32, help="responses of a collection")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens of a response")
    parser.add_argument("--pack", type=int, default=4096, help="tokens of a pack of the trainer")
    parser.add_argument("--stale", type=setting.numbers(0), default=[0, 1, 2, 4, 8],
                        help="optimizer steps since the routes were recorded")  # fmt: skip
    parser.add_argument("--lr", type=float, default=1e-4)
    args = parser.parse_args(argv)

    def body() -> None:
        environment = setting.environment(args.device)
        environment["stand_ins"] = standins.label(args.device, 1)
        environment["weights"] = "random, not trained"
        lines = Lines(args.out, "replay", setting.settings_of(args), environment, quiet=args.quiet)
        for seed in args.seeds:
            if not lines.has(seed=seed, stale=max(args.stale), what="done"):
                Replay(args, lines, seed).measure()
                setting.free(args.device)

    return setting.run("replay", body)


if __name__ == "__main__":
    sys.exit(main())
