"""One generated response with all that belongs to it, and the collection of one rollout.

numpy only. A sample is immutable: its mask, its response boundary, its engine log-probabilities
and its versions are checked once and travel with it through partitions, ranks and packs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import ContractError
from .keptsets import KeptSets

FINISHES = ("stop", "length", "abort")


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A prompt and one response, T tokens in all, R = T - prompt_len of them generated.

    Arrays are converted to the dtype named here and made read-only.
    Raises ContractError when a shape, a range or the mask is wrong. Values that only make sense
    for active tokens (finite log-probabilities, a finite reward) are `check_active_inputs`'s.
    """

    sample_id: int
    group_id: int
    tokens: np.ndarray  # int64 [T], prompt then response
    prompt_len: int  # tokens before the response, at least 1: the first response token has logits
    loss_mask: np.ndarray  # bool [R], the response tokens that count
    behaviour_logp: np.ndarray  # float32 [R], nats, from the engine
    behaviour_version: np.ndarray  # int64 [R], policy version that sampled each token
    reward: float
    advantage: float = 0.0
    routes: np.ndarray | None = None  # int [T-1, layers, topk]
    finish: str = "stop"
    kept: KeptSets | None = None  # R sets that the tokens were sampled from and scored over

    def __post_init__(self) -> None:
        def put(name: str, dtype: type) -> np.ndarray:
            try:
                given = np.asarray(getattr(self, name))
            except (TypeError, ValueError):
                raise self._wrong(f"{name} is no list of numbers") from None
            integral = np.issubdtype(given.dtype, np.integer)
            if dtype is np.int64 and not integral and given.size:
                raise self._wrong(f"{name} must hold integers, not {given.dtype}")
            if dtype is np.bool_ and given.dtype != np.bool_ and not np.isin(given, (0, 1)).all():
                raise self._wrong(f"{name} must hold only 0 and 1")
            if dtype is np.float32 and given.dtype.kind not in "fiu" and given.size:
                raise self._wrong(f"{name} must hold numbers, not {given.dtype}")
            if given.ndim != 1:
                raise self._wrong(f"{name} must have one dimension, not {given.ndim}")
            with np.errstate(over="ignore"):  # to infinity, which an active token may not have
                array = np.array(given, dtype=dtype)
            array.setflags(write=False)
            object.__setattr__(self, name, array)
            return array

        tokens = put("tokens", np.int64)
        if isinstance(self.prompt_len, bool) or not isinstance(self.prompt_len, (int, np.integer)):
            raise self._wrong(f"prompt_len must be an integer, not {self.prompt_len!r}")
        object.__setattr__(self, "prompt_len", int(self.prompt_len))
        for name in ("reward", "advantage"):
            if not isinstance(getattr(self, name), (int, float, np.integer, np.floating)):
                raise self._wrong(f"{name} must be a number, not {getattr(self, name)!r}")
        if not 1 <= self.prompt_len < len(tokens):
            raise self._wrong(
                f"prompt_len {self.prompt_len} of {len(tokens)} tokens; the prompt and the"
                " response both need at least one token"
            )
        if tokens.min() < 0:
            raise self._wrong(f"token id {tokens.min()} is negative")
        for name, dtype in (
            ("loss_mask", np.bool_),
            ("behaviour_logp", np.float32),
            ("behaviour_version", np.int64),
        ):
            if len(put(name, dtype)) != self.response_len:
                raise self._wrong(
                    f"{name} has {len(getattr(self, name))} entries for a response of"
                    f" {self.response_len} tokens"
                )
        if not self.loss_mask.any():
            raise ContractError(
                "empty-response", f"sample {self.sample_id}: the mask leaves no response token"
            )
        if self.behaviour_version.min() < 0:
            raise self._wrong(f"behaviour_version {self.behaviour_version.min()} is negative")
        if self.finish not in FINISHES:
            raise self._wrong(f"finish {self.finish!r} is none of {', '.join(FINISHES)}")
        if self.routes is not None:
            routes = np.array(self.routes)
            if not np.issubdtype(routes.dtype, np.integer):
                raise self._wrong(f"routes must hold integers, not {routes.dtype}")
            if routes.ndim != 3 or len(routes) != len(tokens) - 1:
                raise self._wrong(
                    f"routes have shape {routes.shape}, not ({len(tokens) - 1}, layers, topk)"
                )
            routes.setflags(write=False)
            object.__setattr__(self, "routes", routes)
        if self.kept is not None:
            try:
                self.kept.check_tokens(self.response)
            except ContractError as error:
                raise ContractError(
                    "kept-sets", f"sample {self.sample_id}: {error.detail}"
                ) from None

    def _wrong(self, what: str) -> ContractError:
        return ContractError("sample", f"sample {self.sample_id}: {what}")

    @property
    def response_len(self) -> int:
        """R, the number of generated tokens."""
        return len(self.tokens) - self.prompt_len

    @property
    def response(self) -> np.ndarray:
        """The generated tokens, int64 [R]."""
        return self.tokens[self.prompt_len :]

    @property
    def active_tokens(self) -> int:
        """How many response tokens count in the loss."""
        return int(self.loss_mask.sum())

    @property
    def oldest_version(self) -> int:
        """The policy version that the age of this sample is measured from."""
        return int(self.behaviour_version.min())


@dataclass(frozen=True, slots=True)
class Collection:
    """The samples of one rollout, in the order in which optimizer steps consume them.

    index counts rollouts of the run from 0; cursor is where the prompt data stood afterwards.
    """

    samples: tuple[Sample, ...]
    index: int
    cursor: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", tuple(self.samples))
        if not self.samples:
            raise ContractError("empty-batch", f"collection {self.index} holds no sample")
        seen: set[int] = set()
        for sample in self.samples:
            if sample.sample_id in seen:
                raise ContractError(
                    "sample", f"sample {sample.sample_id} is twice in collection {self.index}"
                )
            seen.add(sample.sample_id)

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def model_tokens(self) -> int:
        """Prompt and response tokens of all samples; no padding, no filler."""
        return sum(len(sample.tokens) for sample in self.samples)

    @property
    def active_tokens(self) -> int:
        """Response tokens that count in the loss."""
        return sum(sample.active_tokens for sample in self.samples)

    @property
    def oldest_version(self) -> int:
        """The oldest policy version of any token."""
        return min(sample.oldest_version for sample in self.samples)


def check_active_inputs(samples: Sequence[Sample]) -> None:
    """Raise ContractError when a value that reaches the loss is not finite.

    Looks at rewards, advantages and the engine's log-probabilities of active tokens. What stands
    at inactive positions never reaches a sum and may be anything.
    """
    if not samples:
        raise ContractError("empty-batch", "no sample to train on")
    for sample in samples:
        for name in ("reward", "advantage"):
            value = getattr(sample, name)
            if not math.isfinite(value):
                raise ContractError(f"non-finite-{name}", f"sample {sample.sample_id}: {value}")
        active = sample.behaviour_logp[sample.loss_mask]
        wrong = ~np.isfinite(active)
        if wrong.any():
            position = int(np.flatnonzero(sample.loss_mask)[wrong][0])
            raise ContractError(
                "non-finite-logp",
                f"sample {sample.sample_id}: behaviour_logp is"
                f" {sample.behaviour_logp[position]} at response position {position}",
            )


def check_kept_sets(samples: Sequence[Sample], *, replay: bool) -> None:
    """Raise ContractError unless every sample has kept sets under sampling replay, else none has.

    One that lacks them would be scored over the whole vocabulary, beside others that are not.
    """
    for sample in samples:
        if (sample.kept is not None) != replay:
            found = "no kept sets" if replay else "kept sets"
            raise ContractError(
                "kept-sets",
                f"sample {sample.sample_id} has {found}, rollout.use_sampling_replay is"
                f" {str(replay).lower()}",
            )
