"""Values of the run log's lines from samples, anchors and reduced sums. numpy only.

Meanings are those of `manuals/data/miles-metrics.yaml`. What was not measured has no key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from .contract import TrainingRecord
from .samples import Sample


def generation(
    samples: Sequence[Sample], *, seconds: float, gpus: int = 0, extra: Mapping[str, float] = {}
) -> dict[str, float]:
    """`perf N`, rollout side. seconds: wall time of the generation. gpus: 0 on a CPU, no rate then.

    Lengths count active tokens. Versions are ours: the first policy is 0, where Miles says 1.
    """
    active = np.array([sample.active_tokens for sample in samples])
    oldest = np.array([sample.oldest_version for sample in samples])
    mixed = [len(set(sample.behaviour_version.tolist())) > 1 for sample in samples]
    values: dict[str, float] = {}
    for prefix, column in (("rollout/response_len", active),):
        values.update(_statistics(prefix, column))
    values.update(zero_std(samples))
    values["rollout/truncated_ratio"] = _truncated(samples)
    values.update(_statistics("rollout/weight_version", oldest))
    values["rollout/weight_version/mixed_version_ratio"] = float(np.mean(mixed))
    values.update(extra)
    values["perf/rollout_time"] = seconds
    if seconds > 0:
        responses = [sample.response_len for sample in samples]
        if gpus:
            values["perf/tokens_per_gpu_per_sec"] = sum(responses) / seconds / gpus
            values["perf/effective_tokens_per_gpu_per_sec"] = float(active.sum()) / seconds / gpus
        values["perf/longest_sample_tokens_per_sec"] = max(responses) / seconds
        values["perf/longest_effective_sample_tokens_per_sec"] = float(active.max()) / seconds
    return values


def zero_std(samples: Sequence[Sample]) -> dict[str, float]:
    """Groups whose answers all got one reward, by that reward rounded to one decimal."""
    groups: dict[int, list[float]] = {}
    for sample in samples:
        groups.setdefault(sample.group_id, []).append(float(sample.reward))
    flat = Counter(round(group[0], 1) for group in groups.values() if len(set(group)) == 1)
    values: dict[str, float] = {
        f"rollout/zero_std/count_{reward}": count for reward, count in sorted(flat.items())
    }
    values["rollout/zero_std/all_zero_percentage"] = flat[0.0] / len(groups)
    values["rollout/zero_std/all_one_percentage"] = flat[1.0] / len(groups)
    return values


def collection(
    samples: Sequence[Sample],
    *,
    anchors: Sequence[np.ndarray] | Mapping[int, np.ndarray] | None = None,
    references: Sequence[np.ndarray] | Mapping[int, np.ndarray] | None = None,
    entropies: Sequence[np.ndarray] | Mapping[int, np.ndarray] | None = None,
) -> dict[str, float]:
    """`rollout N`. anchors, references, entropies: [R] of each sample by position, or None.

    Token values are averaged over active tokens of a sample, then over samples.
    """
    advantages = [sample.advantage for sample in samples]
    values = {
        "rollout/response_lengths": float(np.mean([sample.response_len for sample in samples])),
        "rollout/rewards": float(np.mean(advantages)),
        "rollout/truncated": _truncated(samples),
        "rollout/rollout_log_probs": _mean([sample.behaviour_logp for sample in samples], samples),
        "rollout/raw_reward": float(np.mean([sample.reward for sample in samples])),
        "rollout/total_lengths": float(np.mean([len(sample.tokens) for sample in samples])),
    }
    for key, tokens in (
        ("rollout/ref_log_probs", references),
        ("rollout/log_probs", anchors),
        ("rollout/entropy", entropies),
    ):
        if tokens is not None:
            values[key] = _mean([tokens[i] for i in range(len(samples))], samples)
    values["rollout/advantages"] = values["rollout/returns"] = values["rollout/rewards"]
    return values


def update(
    record: TrainingRecord,
    sums: Mapping[str, float],
    *,
    grad_norm: float,
    kl: bool = False,
    entropy: bool = False,
    tis: bool = False,
) -> dict[str, float]:
    """`step K`. sums: `objective.Terms.as_dict()` reduced over packs and ranks.

    kl, entropy, tis: whether the run has a reference, measures entropies, corrects.
    """
    weight = sums["weight"]
    values = {
        "train/loss": record.policy.global_ + sum(term.global_ for term in record.auxiliary),
        "train/pg_loss": sums["pg"] / weight,
    }
    if entropy:
        values["train/entropy_loss"] = sums["entropy"] / weight
    values["train/pg_clipfrac"] = sums["clipfrac"] / weight
    values["train/ppo_kl"] = sums["ppo_kl"] / weight
    values["train/train_rollout_logprob_abs_diff"] = sums["abs_diff"] / weight
    values["train/train_rollout_kl"] = sums["train_rollout_kl"] / weight
    if kl:
        values["train/kl_loss"] = sums["kl"] / weight
    if tis:
        for name in ("tis", "tis_clipfrac", "tis_abs"):
            values[f"train/{name}"] = sums[name] / weight
    values["train/grad_norm"] = grad_norm
    values["train/lr-pg_0"] = record.lr.next
    values["train/step"] = record.step - 1
    return values


def router_note(record: TrainingRecord) -> str | None:
    """One line about the routers of a step; None for a dense model. Miles logs nothing of it.

    Values by layer are shown as their mean and the worst layer; `record.router` has them all.
    """
    load = record.router
    if load is None:
        return None
    losses = ", ".join(f"{term.name} {term.global_:.6g}" for term in record.auxiliary)
    text = (
        f"router: {losses}; busiest expert {np.mean(load.imbalance):.3f} times the mean load,"
        f" worst layer {max(load.imbalance):.3f}; {sum(load.idle)} experts idle"
    )
    if load.replayed:
        text += (
            f"; live routing would move {np.mean(load.disagreement):.4f} of {load.recorded}"
            f" recorded tokens, worst layer {max(load.disagreement):.4f}"
        )
    return text


def times(seconds: Mapping[str, float], *, model_tokens: int | None = None) -> dict[str, float]:
    """`perf N`, trainer side. seconds: names without `perf/` and `_time`, such as train_wait.

    train_wait and train are needed; the step is their sum. model_tokens: prompt and response
    tokens of the collection.
    """
    values = {f"perf/{name}_time": value for name, value in seconds.items()}
    wait, train = seconds["train_wait"], seconds["train"]
    if model_tokens is not None and seconds.get("actor_train"):
        values["perf/actor_train_tok_per_s"] = model_tokens / seconds["actor_train"]
    values["perf/step_time"] = wait + train
    if wait + train > 0:
        values["perf/wait_time_ratio"] = wait / (wait + train)
    return values


def evaluation(
    name: str, rewards: Sequence[float], finishes: Sequence[str], seconds: float | None = None
) -> dict[str, float]:
    """`eval N` of one data set: mean reward and the share of responses cut at the limit."""
    values = {
        f"eval/{name}": float(np.mean(rewards)),
        f"eval/{name}-truncated_ratio": float(np.mean([f == "length" for f in finishes])),
    }
    if seconds is not None:
        values["eval/duration_seconds"] = seconds
    return values


def _statistics(prefix: str, column: np.ndarray) -> dict[str, float]:
    return {
        f"{prefix}/mean": float(column.mean()),
        f"{prefix}/median": float(np.median(column)),
        f"{prefix}/max": int(column.max()),
        f"{prefix}/min": int(column.min()),
    }


def _truncated(samples: Sequence[Sample]) -> float:
    return float(np.mean([sample.finish == "length" for sample in samples]))


def _mean(tokens: Sequence[np.ndarray], samples: Sequence[Sample]) -> float:
    means = [
        np.asarray(values, np.float64)[sample.loss_mask].mean()
        for values, sample in zip(tokens, samples, strict=True)
    ]
    return float(np.mean(means))
