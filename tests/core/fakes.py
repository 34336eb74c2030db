"""A trainer, an engine and a task small enough to compute by hand, for the tests of the driver.

The policy is two vectors. Every update depends on the samples, so a lost, repeated or reordered
step shows in the weights. Nothing here loads OLMo-core or transformers.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from capture.core import collective, configfile
from capture.core.driver import Parts
from capture.core.engines.base import Difference, Generation, LoadReport
from capture.core.errors import ContractError, PublicationError
from capture.core.objective import Terms
from capture.core.packing import plan

NAMES = ("first.weight", "second.weight")
VOCABULARY = 7


class Task:
    """Prompts of two tokens; the reward is the share of even tokens."""

    name = "parity"
    pad_id, eos_id = 0, 1

    def __init__(self, train: int = 12, held_out: int = 3) -> None:
        every = [
            SimpleNamespace(index=i, text=f"p{i}", tokens=(2 + i % 5, 2 + i // 5), answer="")
            for i in range(train + held_out)
        ]
        self.train, self.held_out = tuple(every[:train]), tuple(every[train:])

    def reward(self, prompt, response) -> float:
        return sum(token % 2 == 0 for token in response) / len(response)


def first_weights() -> dict[str, torch.Tensor]:
    return {name: torch.arange(1.0, 5.0) * (place + 1) for place, name in enumerate(NAMES)}


def logp(weights, tokens, prompt_len) -> np.ndarray:
    """A log-probability of each response token that depends on weights, token and place."""
    scale = float(
        sum((tensor * (place + 1)).sum() for place, tensor in enumerate(weights.values()))
    )
    places = np.arange(prompt_len, len(tokens))
    return (
        -1.0 - 0.001 * scale * (1 + np.asarray(tokens)[prompt_len:] % 3) - 0.01 * places
    ).astype(np.float32)


class Engine:
    """Generates from seeds and its weights. fail_at: the load to die in, after one tensor."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.weights = first_weights()
        self.version: int | None = 0
        self.kept: dict | None = None
        self.loads = 0
        self.fail_at = fail_at
        self.during = lambda: None  # called once for each call of generate

    def generate(self, prompts, *, n, max_new_tokens, seed, version=None, **settings):
        held = self.version  # once: a load of another thread may come between
        if held is None or version not in (None, held):
            raise ContractError("engine-version", f"holds {held}, asked for {version}")
        self.during()
        made = []
        for prompt, own in zip(prompts, seed, strict=True):
            for number in range(n):
                rng = np.random.default_rng([own, number])
                tokens = rng.integers(1, VOCABULARY, rng.integers(1, max_new_tokens + 1))
                whole = np.concatenate([np.asarray(prompt, np.int64), tokens])
                made.append(
                    Generation(
                        tokens,
                        logp(self.weights, whole, len(prompt)),
                        np.full(len(tokens), held, np.int64),
                        "length",
                    )
                )
        return made

    def load(self, named, version, *, strict=True) -> LoadReport:
        self.loads += 1
        self.version = None
        names = set()
        for name, tensor in named:
            if self.loads == self.fail_at and names:
                raise ConnectionError("the engine went away")
            if name not in self.weights:
                raise PublicationError(f"{name}: unknown")
            self.weights[name] = tensor.clone()
            names.add(name)
        if strict and names != set(self.weights):
            raise PublicationError("a tensor did not arrive")
        self.version = version
        return LoadReport(version, len(names), 0, 0.0)

    def snapshot(self) -> None:
        self.kept = {name: tensor.clone() for name, tensor in self.weights.items()}

    def reset(self) -> None:
        self.version = None
        self.weights = {name: torch.full_like(t, torch.nan) for name, t in self.weights.items()}

    def compare(self, named=None) -> list[Difference]:
        expected = self.kept if named is None else named
        return [
            Difference(name, "value", float((self.weights[name] - expected[name]).abs().max()))
            for name in expected
            if not torch.equal(self.weights[name], expected[name])
        ]

    def score(self, tokens, prompt_len, temperature=1.0) -> np.ndarray:
        return logp(self.weights, tokens, prompt_len)

    def close(self) -> None:
        pass


class Actor:
    """Two vectors, updated by the samples. faults: optimizer step to what goes wrong in it."""

    hf_config = None

    def __init__(self, config, faults: dict[int, str] | None = None) -> None:
        self.config, self.faults = config, faults or {}
        self.weights: dict[str, torch.Tensor] = {}
        self.optimizer_step = 0
        self.calls: list[str] = []

    @property
    def lr_next(self) -> float:
        return self.config.optimizer.lr / (1 + self.optimizer_step)

    def init(self, folder) -> None:
        self.calls.append("init")
        self.weights = first_weights()

    def score(self, samples):
        return [logp(self.weights, sample.tokens, sample.prompt_len) for sample in samples]

    def steps(self, collection, version):
        if version != self.optimizer_step:
            raise ContractError("policy-clock", f"{version} is not {self.optimizer_step}")
        samples = collection.samples
        layout = plan(
            samples,
            world_size=1,
            optimizer_steps=self.config.steps_per_collection,
            pack_tokens=None,
        )
        for number, step in enumerate(layout.steps):
            due = self.optimizer_step + 1
            fault = self.faults.get(due)
            if fault == "nan":
                raise ContractError("non-finite-loss", f"optimizer step {due}: nan")
            if fault == "skip":
                raise ContractError("optimizer-skip", f"Core's optimizer skipped step {due}")
            used = self.lr_next
            anchor = {i: self.score([samples[i]])[0] for i in step.sample_indexes}
            move = sum(
                samples[i].advantage * (1 + i) + float(samples[i].behaviour_logp.sum())
                for i in step.sample_indexes
            )
            for place, tensor in enumerate(self.weights.values()):
                tensor += used * (move + place)
            self.optimizer_step += 1
            tokens = step.denominators.global_tokens
            sums = torch.zeros(len(Terms.SUMS), dtype=torch.float64)
            sums[0] = sums[1] = tokens
            yield SimpleNamespace(
                step=due + (fault == "wrong step"),
                step_in_collection=number,
                trained_version=due - 1,
                consumed_version=min(samples[i].oldest_version for i in step.sample_indexes),
                local_objective=move,
                objective=move,
                gradient_norm=abs(move),
                lr_used=used * (2 if fault == "wrong lr" else 1),
                lr_next=self.lr_next,
                seconds=0.001,
                denominators=step.denominators,
                plan=step,
                accumulation=len(step.ranks[0]),
                sample_indexes=step.sample_indexes,
                terms=Terms(sums, torch.zeros(len(Terms.MAXIMA), dtype=torch.float64)),
                anchor=anchor,
                router=None,
            )

    def export(self):
        yield from self.weights.items()

    def save(self, folder) -> None:
        folder = Path(folder)
        (folder / "train").mkdir(parents=True, exist_ok=True)
        (folder / "model_and_optim").mkdir(exist_ok=True)
        own = folder / f"train/rank{collective.rank()}.pt"
        own.write_text(json.dumps({"step": self.optimizer_step}))
        if collective.rank() == 0:
            torch.save(self.weights, folder / "model_and_optim/weights.pt")

    def restore(self, folder) -> None:
        self.calls.append("restore")
        folder = Path(folder)
        own = folder / f"train/rank{collective.rank()}.pt"
        self.optimizer_step = json.loads(own.read_text())["step"]
        self.weights = torch.load(folder / "model_and_optim/weights.pt")


def settings(folder: Path | None = None, **changes):
    """Six collections of two optimizer steps. changes: `section__key=value`."""
    data: dict = {
        "rollout": {
            "num_rollout": 6,
            "rollout_batch_size": 4,
            "n_samples_per_prompt": 2,
            "max_new_tokens": 5,
        },
        "batch": {"global_batch_size": 4},
        "optimizer": {"lr": 0.001},
        "miles": {"save_interval": 1, "keep_checkpoints": 0} if folder else {},
    }
    if folder is not None:
        data["miles"] |= {"save": str(folder / "run"), "save_hf": str(folder / "hf")}
    for name, value in changes.items():
        section, key = name.split("__")
        data.setdefault(section, {})[key] = value
    return configfile.parse(data)


def parts(config, folder: Path, *, faults=None, fail_at=None) -> Parts:
    """Fresh pieces. The HF folder has a config and nothing else."""
    start = folder / "start"
    start.mkdir(parents=True, exist_ok=True)
    (start / "config.json").write_text("{}")
    return Parts(Task(), start, Actor(config, faults), Engine(fail_at))
