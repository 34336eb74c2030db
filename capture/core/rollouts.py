"""Collections and evaluations: prompts to the serving engine, responses to samples with rewards."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .advantages import with_advantages
from .config import RunConfig
from .cursor import Draw
from .errors import ContractError
from .publish import Serving
from .samples import Collection, Sample


def seed_of(*parts: object) -> int:
    """A seed, 0 to 2**63 - 1, that depends on nothing but `parts`."""
    text = "/".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def collect(
    config: RunConfig,
    task: Any,
    serving: Serving,
    draw: Draw,
    *,
    gate: Callable[[], None] | None = None,
) -> Collection:
    """Generate, reward and group one collection.

    gate: asked before each chunk of prompts, so that weights can be published between chunks;
    without one all prompts go out at once. Seeds depend on the run, the collection and the place of
    the prompt, so a restart that draws the same prompts asks for the same responses.
    """
    rollout = config.rollout
    n = rollout.n_samples_per_prompt
    chunk = len(draw.prompts) if gate is None else max(1, config.engine.batch_size // n)
    waiting = list(range(len(draw.prompts)))
    done: dict[int, list[Sample]] = {}
    while waiting:
        places, waiting = waiting[:chunk], waiting[chunk:]
        if gate is not None:
            gate()
        prompts = [task.train[draw.prompts[place]] for place in places]
        made = serving.generate(
            [prompt.tokens for prompt in prompts],
            n=n,
            max_new_tokens=rollout.max_new_tokens,
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
            kept_sets=rollout.use_sampling_replay,
            seed=[seed_of(config.seed, draw.collection, place) for place in places],
        )
        if len(made) != len(prompts) * n:
            raise ContractError(
                "generation", f"{len(made)} responses to {len(prompts)} prompts of {n} samples"
            )
        for offset, (place, prompt) in enumerate(zip(places, prompts, strict=True)):
            own = made[offset * n : (offset + 1) * n]
            if any(response.finish == "abort" for response in own):
                waiting.append(place)  # a partial response is not kept: the whole group again
                continue
            group = draw.collection * len(draw.prompts) + place
            done[place] = [
                _sample(task, prompt, response, group, group * n + number)
                for number, response in enumerate(own)
            ]
    samples = [sample for place in range(len(draw.prompts)) for sample in done[place]]
    whole = with_advantages(samples, normalize=config.objective.normalize_std)
    return Collection(tuple(whole), draw.collection)


def _sample(task: Any, prompt: Any, response: Any, group: int, number: int) -> Sample:
    return Sample(
        sample_id=number,
        group_id=group,
        tokens=np.concatenate([np.asarray(prompt.tokens, np.int64), response.tokens]),
        prompt_len=len(prompt.tokens),
        loss_mask=np.ones(len(response.tokens), bool),
        behaviour_logp=response.logps,
        behaviour_version=response.versions,
        reward=float(task.reward(prompt, [int(token) for token in response.tokens])),
        routes=response.expert_ids,
        finish=response.finish,
        kept=response.kept,
    )


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Rewards on held-out prompts: collections done before it, version, one reward a response."""

    collection: int
    version: int
    rewards: tuple[float, ...]
    finishes: tuple[str, ...]
    seconds: float

    @property
    def mean(self) -> float:
        """The mean reward."""
        return float(np.mean(self.rewards))


def evaluate(config: RunConfig, task: Any, serving: Serving, collection: int) -> Evaluation:
    """Generate for the held-out prompts and reward what comes. Touches no state of the run."""
    import time

    own = config.evaluation
    started = time.perf_counter()
    prompts: Sequence[Any] = task.held_out
    version = serving.version
    made = serving.generate(
        [prompt.tokens for prompt in prompts],
        n=own.samples,
        max_new_tokens=config.rollout.max_new_tokens,
        temperature=own.temperature,
        seed=[seed_of(config.seed, "evaluation", collection, i) for i in range(len(prompts))],
    )
    rewards = tuple(
        float(task.reward(prompts[i // own.samples], [int(t) for t in response.tokens]))
        for i, response in enumerate(made)
    )
    seconds = time.perf_counter() - started
    return Evaluation(
        collection, int(version or 0), rewards, tuple(r.finish for r in made), seconds
    )
