"""The objective a second time: float64, one sample and one token at a time, no shared code.

Written from the formulas of the page and of the papers. Imports nothing from capture.core, so that
a mistake there cannot hide here. Gradients are central differences of the value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

LARGEST_EXPONENT = 20.0


@dataclass
class Row:
    """One response with the logits of its own forward, nothing packed."""

    logits: np.ndarray  # [T, V]
    tokens: list[int]  # T of them
    prompt_len: int
    mask: list[bool]  # R = T - prompt_len
    advantage: float
    behaviour: list[float]  # R
    old: list[float] | None = None  # R; None: the new log-probability, held constant
    ref: list[float] | None = None  # R


@dataclass
class Settings:
    eps_low: float = 0.2
    eps_high: float = 0.2
    dual: float | None = None
    kl_coef: float = 0.0
    kl_type: str = "k3"
    entropy_coef: float = 0.0
    tis: tuple[float, float] | None = None  # lowest and highest weight
    reduction: str = "token"
    temperature: float = 1.0


@dataclass
class Result:
    loss: float
    sums: dict[str, float] = field(default_factory=dict)


def log_softmax(row: np.ndarray, temperature: float) -> list[float]:
    scaled = [float(value) / temperature for value in row]
    top = max(scaled)
    total = math.fsum(math.exp(value - top) for value in scaled)
    return [value - top - math.log(total) for value in scaled]


def ratio_of(log_ratio: float) -> float:
    return math.exp(min(log_ratio, LARGEST_EXPONENT))


def kl_of(new: float, base: float, kind: str) -> float:
    if kind == "k1":
        return new - base
    if kind == "k2":
        return 0.5 * (new - base) ** 2
    back = min(base - new, LARGEST_EXPONENT)
    value = math.exp(back) - back - 1.0
    if kind == "low_var_kl":
        return max(-10.0, min(10.0, value))
    assert kind == "k3"
    return value


def policy_of(ratio: float, advantage: float, settings: Settings) -> tuple[float, bool]:
    """The clipped surrogate, to be minimised, and whether the clip decided it."""
    low, high = 1.0 - settings.eps_low, 1.0 + settings.eps_high
    inside = low if ratio < low else high if ratio > high else ratio
    gain, clipped_gain = ratio * advantage, inside * advantage
    chosen, clipped = gain, False
    if clipped_gain < gain:
        chosen, clipped = clipped_gain, True
    if settings.dual is not None and advantage < 0.0 and chosen < settings.dual * advantage:
        chosen = settings.dual * advantage
    return -chosen, clipped


def objective(rows: list[Row], settings: Settings, anchors: list[list[float]] | None = None):
    """Loss of one optimizer step over all its rows, and the statistics.

    anchors replace a missing `old`; `gradient` passes them so that the anchor stays constant.
    """
    token_count = sum(1 for row in rows for kept in row.mask if kept)
    total = 0.0
    sums = dict.fromkeys(
        ("weight", "tokens", "pg", "kl", "entropy", "ppo_kl", "clipfrac", "tis", "tis_abs",
         "tis_clipfrac", "abs_diff", "train_rollout_kl", "clipped", "tis_clipped"),
        0.0,
    )  # fmt: skip
    worst = 0.0
    for number, row in enumerate(rows):
        kept_in_row = sum(1 for kept in row.mask if kept)
        for place, kept in enumerate(row.mask):
            if not kept:
                continue
            weight = 1.0 if settings.reduction == "token" else 1.0 / kept_in_row
            target = row.tokens[row.prompt_len + place]
            logps = log_softmax(row.logits[row.prompt_len + place - 1], settings.temperature)
            new = logps[target]
            if row.old is not None:
                old = row.old[place]
            elif anchors is not None:
                old = anchors[number][place]
            else:
                old = new
            value, clipped = policy_of(ratio_of(new - old), row.advantage, settings)
            gap = old - row.behaviour[place]
            trust = ratio_of(gap)
            low, high = settings.tis if settings.tis is not None else (0.0, 2.0)
            held = min(max(trust, low), high)
            if settings.tis is not None:
                value *= held
            token_loss = value
            if row.ref is not None:
                divergence = kl_of(new, row.ref[place], settings.kl_type)
                token_loss += settings.kl_coef * divergence
                sums["kl"] += weight * divergence
            spread = -math.fsum(math.exp(logp) * logp for logp in logps)
            token_loss -= settings.entropy_coef * spread
            total += weight * token_loss
            sums["weight"] += weight
            sums["tokens"] += 1
            sums["pg"] += weight * value
            sums["entropy"] += weight * spread
            sums["ppo_kl"] += weight * (old - new)
            sums["clipfrac"] += weight * clipped
            sums["clipped"] += clipped
            sums["tis"] += weight * trust
            sums["tis_abs"] += weight * abs(trust - 1.0)
            sums["tis_clipfrac"] += weight * (held != trust)
            sums["tis_clipped"] += held != trust
            sums["abs_diff"] += weight * abs(gap)
            sums["train_rollout_kl"] += weight * kl_of(row.behaviour[place], old, "low_var_kl")
            worst = max(worst, abs(gap))
    sums["abs_diff_max"] = worst
    return Result(total / (token_count if settings.reduction == "token" else len(rows)), sums)


def anchors_of(rows: list[Row], temperature: float) -> list[list[float]]:
    """The new log-probabilities of every response token, to be held constant."""
    return [
        [
            log_softmax(row.logits[row.prompt_len + place - 1], temperature)[
                row.tokens[row.prompt_len + place]
            ]
            for place in range(len(row.tokens) - row.prompt_len)
        ]
        for row in rows
    ]


def gradient(rows: list[Row], settings: Settings, step: float = 1e-5) -> list[np.ndarray]:
    """Central differences of the loss for every logit of every row, [T, V] each."""
    anchors = anchors_of(rows, settings.temperature)
    found = []
    for row in rows:
        slopes = np.zeros_like(row.logits, dtype=np.float64)
        for index in np.ndindex(row.logits.shape):
            kept = row.logits[index]
            row.logits[index] = kept + step
            above = objective(rows, settings, anchors).loss
            row.logits[index] = kept - step
            below = objective(rows, settings, anchors).loss
            row.logits[index] = kept
            slopes[index] = (above - below) / (2.0 * step)
        found.append(slopes)
    return found
