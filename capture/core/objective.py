"""The policy objective: next-token log-probabilities, clip, KL, entropy, truncated correction.

torch. Per response token with new log-probability l, anchor o, behaviour b, reference f,
advantage A, ratio r = exp(l - o):

    policy   max(-r A, -clip(r, 1 - eps_clip, 1 + eps_clip_high) A)        PPO, arXiv:1707.06347
             capped by -dual_clip A where A < 0                            arXiv:1912.09729
             times clip(exp(o - b), tis_clip_low, tis_clip) when tis       off-policy correction
    KL       k1 l - f; k2 (l - f)^2 / 2; k3 exp(f - l) - 1 - (f - l); low_var_kl: k3 in [-10, 10]
    loss     policy + kl_coef KL - entropy_coef entropy

reduced over active tokens ("token") or over responses of token means ("response").
The correction sees only o and b: it is a constant, and never contains l.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from .config import RunConfig
from .errors import ContractError, RefusedError
from .keptlogps import kept_logps, scaled
from .keptsets import KeptSets
from .packing import Denominators, Pack

__all__ = [
    "Denominators",
    "ObjectiveConfig",
    "PackInputs",
    "Terms",
    "pack_inputs",
    "policy_objective",
    "response_logps",
    "row_logps",
    "token_logps",
]

KL_TYPES = ("k1", "k2", "k3", "low_var_kl")
REDUCTIONS = ("token", "response")

MAX_LOG_RATIO = 20.0
"""Exponents are cut here. exp overflows float32 at 88.7, and infinity times the zero gradient of
a clipped token is not a number; a ratio of e^20 is far outside every clip range."""

LOW_VAR_LIMIT = 10.0
"""low_var_kl is k3 held within plus and minus this; the value is Miles'."""


@dataclass(frozen=True, slots=True)
class ObjectiveConfig:
    """The settings of the loss. RefusedError names the one that cannot be."""

    eps_clip: float = 0.2
    eps_clip_high: float | None = None  # None: the same as eps_clip
    dual_clip: float | None = None  # above 1; None: off
    kl_coef: float = 0.0
    kl_type: str = "k3"
    entropy_coef: float = 0.0
    tis: bool = False
    tis_clip: float = 2.0
    tis_clip_low: float = 0.0
    reduction: str = "token"
    temperature: float = 1.0

    @classmethod
    def of(cls, config: RunConfig) -> ObjectiveConfig:
        """The settings of a run: `[objective]`, and the temperature that it samples at."""
        own = {spec.name for spec in fields(cls)} - {"temperature"}
        values = {name: getattr(config.objective, name) for name in own}
        return cls(**values, temperature=config.rollout.temperature)

    def __post_init__(self) -> None:
        def need(condition: bool, name: str, rule: str) -> None:
            if not condition:
                raise RefusedError(f"{name} must be {rule}, not {getattr(self, name)!r}", name)

        for spec in fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, float):
                need(math.isfinite(value), spec.name, "finite")
        need(0 <= self.eps_clip < 1, "eps_clip", "at least 0 and below 1")
        need(self.eps_clip_high is None or self.eps_clip_high >= 0, "eps_clip_high", "at least 0")
        need(self.dual_clip is None or self.dual_clip > 1, "dual_clip", "above 1")
        need(self.kl_coef >= 0, "kl_coef", "at least 0")
        need(self.kl_type in KL_TYPES, "kl_type", f"one of {', '.join(KL_TYPES)}")
        need(self.entropy_coef >= 0, "entropy_coef", "at least 0")
        need(self.tis_clip > 0, "tis_clip", "above 0")
        need(0 <= self.tis_clip_low <= self.tis_clip, "tis_clip_low", "from 0 to tis_clip")
        need(self.reduction in REDUCTIONS, "reduction", f"one of {', '.join(REDUCTIONS)}")
        need(self.temperature > 0, "temperature", "above 0")

    @property
    def clip_high(self) -> float:
        """How far the ratio may rise above 1."""
        return self.eps_clip if self.eps_clip_high is None else self.eps_clip_high


@dataclass(frozen=True, slots=True, eq=False)
class PackInputs:
    """What the loss needs beside the forward, along the N response tokens of one pack."""

    advantage: torch.Tensor  # float [N]
    mask: torch.Tensor  # bool [N]
    active_in_response: torch.Tensor  # float [N], active tokens of the token's response
    behaviour_logp: torch.Tensor  # float [N], nats, from the engine
    old_logp: torch.Tensor | None = None  # float [N]; None: this forward is the anchor
    ref_logp: torch.Tensor | None = None  # float [N]; needed for a KL


def pack_inputs(
    pack: Pack,
    samples: Sequence,
    *,
    old_logp: Sequence[np.ndarray] | None = None,
    ref_logp: Sequence[np.ndarray] | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> PackInputs:
    """Gather a pack's inputs from the planned samples and their scores ([R] for each sample)."""

    def put(value: Sequence | object) -> torch.Tensor:
        return torch.from_numpy(pack.gather(value, np.float64)).to(device, dtype)

    return PackInputs(
        advantage=put(lambda index: samples[index].advantage),
        mask=torch.from_numpy(pack.mask).to(device),
        active_in_response=torch.from_numpy(pack.active_in_response).to(device, dtype),
        behaviour_logp=put(lambda index: samples[index].behaviour_logp),
        old_logp=None if old_logp is None else put(old_logp),
        ref_logp=None if ref_logp is None else put(ref_logp),
    )


def token_logps(
    logits: torch.Tensor, tokens: torch.Tensor, *, temperature: float = 1.0
) -> torch.Tensor:
    """Log-probability of every token given the ones before it, [B, L-1] for logits [B, L, V].

    Entry p is token p + 1 under the logits at p. Computed in float32, or float64 for float64.
    """
    scores = scaled(logits[:, :-1], temperature)
    return torch.log_softmax(scores, dim=-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)


def response_logps(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    positions: torch.Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    kept: KeptSets | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probability, and entropy if asked, of the tokens after `positions`; both [N], nats.

    logits: [L, V] or [1, L, V]; tokens: [L] or [1, L]; positions: [N] below L - 1.
    Only the N rows that are needed go through the softmax. kept: N sets that the softmax, and so
    the entropy, is over in place of the vocabulary.
    """
    if logits.dim() == 3:
        if len(logits) != 1:
            raise ContractError("objective", f"a pack is one row, the logits have {len(logits)}")
        logits, tokens = logits[0], tokens.reshape(-1)
    return row_logps(
        logits[positions],
        tokens[positions + 1],
        temperature=temperature,
        entropy=entropy,
        kept=kept,
    )


def row_logps(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    kept: KeptSets | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The same where row n of logits [N, V] predicts tokens[n], [N]: nothing is copied first."""
    if kept is not None:
        return kept_logps(logits, tokens, kept, temperature=temperature, entropy=entropy)
    logps = torch.log_softmax(scaled(logits, temperature), dim=-1)
    chosen = logps.gather(-1, tokens[:, None]).squeeze(-1)
    return chosen, -(logps.exp() * logps).sum(-1) if entropy else None


class Terms:
    """Detached sums of one or more packs; `+` joins packs, `vector` joins ranks.

    Sums weigh a token as the loss does: 1 for "token", 1 / active tokens of its response for
    "response"; `weight` is the sum of those weights. A mean is a sum over the global weight.
    """

    SUMS = (
        "weight",  # active tokens, or responses
        "tokens",  # active tokens, plain count
        "pg",  # policy term, correction included
        "kl",  # KL to the reference
        "entropy",
        "ppo_kl",  # anchor minus new log-probability
        "clipfrac",  # weights of tokens that the clip held
        "tis",  # ratio exp(anchor - behaviour), before its caps
        "tis_abs",  # distance of that ratio from 1
        "tis_clipfrac",  # weights of tokens whose ratio met a cap
        "abs_diff",  # |anchor - behaviour|, nats
        "train_rollout_kl",  # k3 of the behaviour against the anchor, within 10
        "clipped",  # tokens that the clip held, plain count
        "tis_clipped",  # tokens whose ratio met a cap, plain count
    )
    MAXIMA = ("abs_diff_max",)

    __slots__ = ("maxima", "sums")

    def __init__(self, sums: torch.Tensor, maxima: torch.Tensor) -> None:
        self.sums = sums  # float64 [len(SUMS)]
        self.maxima = maxima  # float64 [len(MAXIMA)]

    @classmethod
    def zero(cls, device: torch.device | str = "cpu") -> Terms:
        """The neutral element of `+`."""
        return cls(
            torch.zeros(len(cls.SUMS), dtype=torch.float64, device=device),
            torch.zeros(len(cls.MAXIMA), dtype=torch.float64, device=device),
        )

    def __add__(self, other: Terms) -> Terms:
        return Terms(self.sums + other.sums, torch.maximum(self.maxima, other.maxima))

    def __getitem__(self, name: str) -> float:
        """One sum or maximum as a number; waits for the device."""
        if name in self.MAXIMA:
            return float(self.maxima[self.MAXIMA.index(name)])
        return float(self.sums[self.SUMS.index(name)])

    def as_dict(self) -> dict[str, float]:
        """All of them; one transfer from the device."""
        values = torch.cat([self.sums, self.maxima]).tolist()
        return dict(zip((*self.SUMS, *self.MAXIMA), values, strict=True))


def policy_objective(
    logps: torch.Tensor,
    entropy: torch.Tensor | None,
    inputs: PackInputs,
    denominators: Denominators,
    config: ObjectiveConfig,
) -> tuple[torch.Tensor, Terms]:
    """Return the scalar to call backward on and the pack's sums.

    logps [N] (with gradient) and entropy [N] or None belong to the same response tokens as
    `inputs`. The scalar is the local sum times world_size over the global denominator: averaging
    it over ranks, as the gradient synchronisation does, gives the global objective, and adding
    it over packs gives the whole step's. A pack without an active token gives 0 with a gradient
    of exactly 0. Raises ContractError when an input that the settings need is missing.
    """
    _check_shapes(logps, entropy, inputs, config)
    mask = inputs.mask
    # a constant: neither the ratio's lower end nor the correction may pull on the policy
    anchor = (logps if inputs.old_logp is None else inputs.old_logp).detach()

    def clean(values: torch.Tensor) -> torch.Tensor:
        # inactive positions may hold anything, even NaN, whose gradient a product would keep
        return torch.where(mask, values, values.new_zeros(()))

    new, old = clean(logps), clean(anchor.to(logps.dtype))
    behaviour = clean(inputs.behaviour_logp.to(logps.dtype))
    advantage = clean(inputs.advantage.to(logps.dtype))

    ratio = _exp(new - old)
    free = -ratio * advantage
    held = -ratio.clamp(1 - config.eps_clip, 1 + config.clip_high) * advantage
    policy = torch.maximum(free, held)
    clipped = held > free
    if config.dual_clip is not None:
        ceiling = -config.dual_clip * advantage
        policy = torch.where(advantage < 0, torch.minimum(policy, ceiling), policy)

    correction = _exp(old - behaviour)
    capped = correction.clamp(config.tis_clip_low, config.tis_clip)
    if config.tis:
        policy = policy * capped

    per_token = policy
    kl = None
    if inputs.ref_logp is not None:
        kl = _kl(new, clean(inputs.ref_logp.to(logps.dtype)), config.kl_type)
        if config.kl_coef:
            per_token = per_token + config.kl_coef * kl
    bonus = None if entropy is None else clean(entropy)
    if bonus is not None and config.entropy_coef:
        per_token = per_token - config.entropy_coef * bonus

    weights = mask.to(logps.dtype)
    denominator = denominators.global_tokens
    if config.reduction == "response":
        weights = weights / inputs.active_in_response.to(logps.dtype).clamp(min=1)
        denominator = denominators.global_responses
    # the product with the weights, not a selection, keeps an all-inactive pack in the graph
    loss = (per_token * weights).sum() * (denominators.world_size / denominator)

    with torch.no_grad():
        plain = mask.double()
        wide = plain if config.reduction == "token" else weights.double()
        gap = (old - behaviour).abs()
        met_cap = capped != correction
        zero = plain.new_zeros(())
        values = {
            "weight": wide.sum(),
            "tokens": plain.sum(),
            "pg": (policy * wide).sum(),
            "kl": zero if kl is None else (kl * wide).sum(),
            "entropy": zero if bonus is None else (bonus * wide).sum(),
            "ppo_kl": ((old - new) * wide).sum(),
            "clipfrac": (clipped * wide).sum(),
            "tis": (correction * wide).sum(),
            "tis_abs": ((correction - 1).abs() * wide).sum(),
            "tis_clipfrac": (met_cap * wide).sum(),
            "abs_diff": (gap * wide).sum(),
            "train_rollout_kl": (_kl(behaviour, old, "low_var_kl") * wide).sum(),
            "clipped": (clipped * plain).sum(),
            "tis_clipped": (met_cap * plain).sum(),
        }
        terms = Terms(
            torch.stack([values[name].double() for name in Terms.SUMS]),
            gap.max().double()[None],
        )
    return loss, terms


def _exp(log_ratio: torch.Tensor) -> torch.Tensor:
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


def _kl(new: torch.Tensor, base: torch.Tensor, kind: str) -> torch.Tensor:
    """Estimate KL(new || base) a token; the forms are Schulman's, joschu.net/blog/kl-approx."""
    if kind == "k1":
        return new - base
    if kind == "k2":
        return (new - base).square() / 2
    back = (base - new).clamp(max=MAX_LOG_RATIO)
    k3 = back.exp() - 1 - back
    return k3.clamp(-LOW_VAR_LIMIT, LOW_VAR_LIMIT) if kind == "low_var_kl" else k3


def _check_shapes(
    logps: torch.Tensor,
    entropy: torch.Tensor | None,
    inputs: PackInputs,
    config: ObjectiveConfig,
) -> None:
    if logps.dim() != 1 or not len(logps):
        raise ContractError("objective", f"log-probabilities have shape {tuple(logps.shape)}")
    for name in (
        "advantage",
        "mask",
        "active_in_response",
        "behaviour_logp",
        "old_logp",
        "ref_logp",
    ):
        value = getattr(inputs, name)
        if value is not None and value.shape != logps.shape:
            raise ContractError(
                "objective", f"{name} has shape {tuple(value.shape)}, not {tuple(logps.shape)}"
            )
    if config.kl_coef and inputs.ref_logp is None:
        raise ContractError("objective", f"kl_coef is {config.kl_coef} without reference scores")
    if config.entropy_coef and entropy is None:
        raise ContractError("objective", f"entropy_coef is {config.entropy_coef} without entropies")
