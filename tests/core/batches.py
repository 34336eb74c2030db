"""Batches for the tests of samples, packing and objective: fixed ones and generated ones.

A batch is samples and, for each, the logits of its own unpacked forward in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from reference_numpy import Row, Settings

from capture.core.objective import ObjectiveConfig, pack_inputs, policy_objective, response_logps
from capture.core.packing import plan
from capture.core.samples import Sample

VOCABULARY = 7


@dataclass
class Batch:
    samples: list[Sample]
    logits: list[np.ndarray]  # [T, V] each
    old: list[np.ndarray] | None
    ref: list[np.ndarray] | None

    def rows(self) -> list[Row]:
        """The same batch for the numpy reference."""
        return [
            Row(
                logits=self.logits[i].copy(),
                tokens=sample.tokens.tolist(),
                prompt_len=sample.prompt_len,
                mask=sample.loss_mask.tolist(),
                advantage=sample.advantage,
                behaviour=sample.behaviour_logp.astype(float).tolist(),
                old=None if self.old is None else self.old[i].tolist(),
                ref=None if self.ref is None else self.ref[i].tolist(),
            )
            for i, sample in enumerate(self.samples)
        ]


def make(
    seed: int,
    shapes: list[tuple[int, int]],
    *,
    drift: float = 0.3,
    holes: float = 0.3,
    old: bool = True,
    ref: bool = True,
    vocabulary: int = VOCABULARY,
) -> Batch:
    """shapes: prompt and response length of each sample. drift: deviation of the log-ratios."""
    rng = np.random.default_rng(seed)
    samples, logits, olds, refs = [], [], [], []
    for number, (prompt_len, response_len) in enumerate(shapes):
        tokens = rng.integers(0, vocabulary, prompt_len + response_len)
        mask = rng.random(response_len) >= holes
        mask[rng.integers(response_len)] = True
        own = rng.normal(size=(len(tokens), vocabulary))
        shifted = own - np.log(np.exp(own).sum(-1, keepdims=True))
        steps = np.arange(prompt_len - 1, len(tokens) - 1)
        new = shifted[steps, tokens[steps + 1]]
        behaviour = new + drift * rng.normal(size=response_len)
        behaviour[~mask] = np.nan  # what is not active may be anything
        logits.append(own)
        olds.append(new + drift * rng.normal(size=response_len))
        refs.append(new + drift * rng.normal(size=response_len))
        samples.append(
            Sample(
                sample_id=100 + number,
                group_id=number // 2,
                tokens=tokens,
                prompt_len=prompt_len,
                loss_mask=mask,
                behaviour_logp=behaviour,
                behaviour_version=np.full(response_len, 3),
                reward=float(rng.integers(2)),
                advantage=float(rng.normal()),
            )
        )
    return Batch(samples, logits, olds if old else None, refs if ref else None)


def config_of(settings: Settings) -> ObjectiveConfig:
    """The same settings for the trainer."""
    low, high = settings.tis if settings.tis is not None else (0.0, 2.0)
    return ObjectiveConfig(
        eps_clip=settings.eps_low,
        eps_clip_high=settings.eps_high,
        dual_clip=settings.dual,
        kl_coef=settings.kl_coef,
        kl_type=settings.kl_type,
        entropy_coef=settings.entropy_coef,
        tis=settings.tis is not None,
        tis_clip=high,
        tis_clip_low=low,
        reduction=settings.reduction,
        temperature=settings.temperature,
    )


def run(batch: Batch, settings: Settings, *, world_size=1, pack_tokens=None, dtype=torch.float64):
    """One optimizer step through plan, packs and objective.

    Returns the loss averaged over ranks, the gradient for each sample's logits [T, V] averaged
    over ranks, and the joined terms of all ranks.
    """
    config = config_of(settings)
    leaves = [torch.tensor(own, dtype=dtype, requires_grad=True) for own in batch.logits]
    step = plan(
        batch.samples, world_size=world_size, optimizer_steps=1, pack_tokens=pack_tokens
    ).steps[0]
    losses, joined = [], None
    for packs in step.ranks:
        for pack in packs:
            if pack.is_filler:
                row = torch.zeros(len(pack.tokens), VOCABULARY, dtype=dtype, requires_grad=True)
            else:
                row = torch.cat([leaves[index] for index in pack.sample_indexes])
            logps, entropy = response_logps(
                row[None],
                torch.from_numpy(pack.tokens)[None],
                torch.from_numpy(pack.positions),
                temperature=settings.temperature,
                entropy=True,
            )
            inputs = pack_inputs(
                pack, batch.samples, old_logp=batch.old, ref_logp=batch.ref, dtype=dtype
            )
            loss, terms = policy_objective(logps, entropy, inputs, step.denominators, config)
            (loss / world_size).backward()
            losses.append(loss.item() / world_size)
            joined = terms if joined is None else joined + terms
            if pack.is_filler:
                assert loss.item() == 0.0
                assert not row.grad.any()
    return sum(losses), [leaf.grad.numpy() for leaf in leaves], joined


@st.composite
def batches(draw, *, size=None):
    """Unequal lengths, one-token responses, mask holes, log-ratios from 0 to enormous."""
    count = size or draw(st.integers(1, 5))
    shapes = draw(
        st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=count, max_size=count)
    )
    return make(
        draw(st.integers(0, 2**32 - 1)),
        shapes,
        drift=draw(st.sampled_from([0.0, 0.01, 0.3, 2.0, 40.0])),
        holes=draw(st.sampled_from([0.0, 0.4, 1.0])),
        old=draw(st.booleans()),
        ref=draw(st.booleans()),
    )


@st.composite
def settings_of(draw, batch: Batch):
    """Any settings that the batch supports."""
    return Settings(
        eps_low=draw(st.sampled_from([0.1, 0.2])),
        eps_high=draw(st.sampled_from([0.2, 0.28])),
        dual=draw(st.sampled_from([None, 3.0])),
        kl_coef=draw(st.sampled_from([0.0, 0.05])) if batch.ref is not None else 0.0,
        kl_type=draw(st.sampled_from(["k1", "k2", "k3", "low_var_kl"])),
        entropy_coef=draw(st.sampled_from([0.0, 0.01])),
        tis=draw(st.sampled_from([None, (0.0, 2.0), (0.5, 1.5)])),
        reduction=draw(st.sampled_from(["token", "response"])),
        temperature=draw(st.sampled_from([1.0, 0.7])),
    )
