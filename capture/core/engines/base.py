"""What every engine does, whatever generates the tokens. numpy only.

The log-probability rule, the same for every engine and for the trainer: natural logarithms of
softmax(logits / temperature) over the whole vocabulary, for the token that was sampled. top_p and
top_k restrict which token can be sampled and leave the log-probability as it is, unless the kept
sets are asked for: then they come with the response, and the softmax is over them. Temperature 0
takes the most probable token, and its log-probabilities are those of temperature 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..errors import ContractError
from ..keptsets import KeptSets

FINISHES = ("stop", "length", "abort")


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """One response of R tokens. ContractError when its arrays disagree.

    An end token that was sampled belongs to the response. An aborted response can be empty.
    """

    tokens: np.ndarray  # int64 [R]
    logps: np.ndarray  # float32 [R], by the rule of this module
    versions: np.ndarray  # int64 [R], the weights that sampled each token
    finish: str  # stop: end token; length: max_new_tokens; abort: ended from outside
    expert_ids: np.ndarray | None = None  # int [T-1, layers, topk], None for a dense model
    kept: KeptSets | None = None  # of R sets, where they were asked for

    def __post_init__(self) -> None:
        if self.finish not in FINISHES:
            raise ContractError("generation", f"finish {self.finish!r}")
        lengths = {len(self.tokens), len(self.logps), len(self.versions)}
        if len(lengths) != 1:
            raise ContractError("generation", f"arrays of {sorted(lengths)} entries")
        if not len(self.tokens) and self.finish != "abort":
            raise ContractError("generation", f"no token, but finish is {self.finish!r}")
        if self.kept is not None:
            self.kept.check_tokens(self.tokens)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a publication did: tensors and bytes taken, names of the model that were not given."""

    version: int
    tensors: int
    bytes: int
    seconds: float
    missing: tuple[str, ...] = ()
    repeated_version: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor that is not as expected. `kind` is missing, unexpected, shape, dtype or value."""

    name: str
    kind: str
    max_abs: float | None = None  # of kind value
    detail: str = ""


class Engine(Protocol):
    """Generates with its own copy of the weights."""

    @property
    def version(self) -> int | None:
        """The policy version of its weights; None while they are of no one version."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        n: int = 1,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = -1,
        kept_sets: bool = False,
        seed: int | Sequence[int] = 0,
        version: int | None = None,
    ) -> list[Generation]:
        """n responses to each prompt, those of prompt i at i*n to i*n+n-1.

        kept_sets: give the kept set of every token, and score the tokens over them.
        seed: one number a prompt, or one for all. ContractError ("engine-version") when `version`
        is given and is not the engine's at the start, and for prompts without a token.
        """

    def load(
        self, named: Iterable[tuple[str, Any]], version: int, *, strict: bool = True
    ) -> LoadReport:
        """Take a stream of (HF name, tensor). The version holds once all have arrived.

        PublicationError for an unknown name, a wrong shape, a name twice, an older version, and
        with strict for a tensor that did not come. An engine whose weights were touched then has
        no version until a whole load succeeds, and generates nothing.
        """

    def snapshot(self) -> None:
        """Keep the present weights for `compare`."""

    def reset(self) -> None:
        """Destroy the weights, so that only what is published again can be right."""

    def compare(self, named: Mapping[str, Any] | None = None) -> list[Difference]:
        """Differences of the weights from `named`, or from the snapshot; exact."""

    def score(self, tokens: Sequence[int], prompt_len: int, temperature: float = 1.0) -> np.ndarray:
        """Log-probabilities float32 [R] of the response tokens of one sample."""

    def abort(self) -> None:
        """End what is being generated; those responses come back with finish abort."""

    def close(self) -> None:
        """Free what the engine holds."""


def prompt_seeds(
    prompts: Sequence[Sequence[int]], seed: int | Sequence[int]
) -> list[tuple[int, ...]]:
    """A key for each prompt, from which the keys of its samples follow.

    One number for all: the key is that number, the prompt itself, and how often the same prompt
    came before in this call, so that neither other prompts nor their order change a sample.
    """
    if not isinstance(seed, int):
        seeds = [int(value) for value in seed]
        if len(seeds) != len(prompts):
            raise ContractError("engine-seed", f"{len(seeds)} seeds for {len(prompts)} prompts")
        return [(value,) for value in seeds]
    seen: dict[tuple[int, ...], int] = {}
    keys = []
    for prompt in prompts:
        tokens = tuple(int(token) for token in prompt)
        again = seen.get(tokens, 0)
        seen[tokens] = again + 1
        keys.append((seed, again, *tokens))
    return keys


def check_version(held: int | None, wanted: int | None) -> int:
    """The version that an engine holds. ContractError ("engine-version") where it is not wanted."""
    if held is None:
        raise ContractError("engine-version", "the engine's weights are of no one version")
    if wanted is not None and wanted != held:
        raise ContractError("engine-version", f"the engine holds version {held}, not {wanted}")
    return held


def digest(key: Sequence[int], sample: int) -> int:
    """128 bits that depend on a prompt's key and the number of the sample, and on nothing else."""
    text = ",".join(str(part) for part in (*key, sample)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")


def check_request(
    prompts: Sequence[Sequence[int]],
    *,
    n: int,
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    top_k: int,
    kept_sets: bool = False,
) -> None:
    """Raise ContractError ("engine-request") for arguments that mean nothing."""
    for wrong, what in (
        (n < 1, f"n is {n}"),
        (max_new_tokens < 1, f"max_new_tokens is {max_new_tokens}"),
        (not 0 <= temperature < float("inf"), f"temperature is {temperature}"),
        (not 0 < top_p <= 1, f"top_p is {top_p}"),
        (top_k < -1, f"top_k is {top_k}"),
        (kept_sets and temperature == 0, "kept sets at temperature 0, which samples nothing"),
        (kept_sets and top_p == 1 and top_k < 1, "kept sets without top_p or top_k"),
        (any(not len(prompt) for prompt in prompts), "a prompt without a token"),
    ):
        if wrong:
            raise ContractError("engine-request", what)
