"""Which sample runs in which optimizer step, on which rank, in which forward.

numpy only. Three levels, each made of whole samples: a collection is cut into optimizer
partitions of equal size in the order given; a partition is dealt to the ranks, the same number
of samples each, balanced by tokens; a rank's samples become packs, one forward each.
A pack holds documents one after the other, without padding; a document is one sample's prompt
and response. Ranks with fewer packs get filler packs that weigh nothing, so that every rank runs
the same number of forwards and backwards.

Every rank computes the same plan from the same collection; nothing here communicates.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .errors import ContractError, RefusedError
from .grid import Grid
from .keptsets import KeptSets
from .samples import Sample

UNLIMITED = sys.maxsize
"""pack_tokens for one pack a rank and step, however long."""

FILLER_TOKENS = 2
"""The shortest document: one prompt token, one response token that the mask leaves out."""


@dataclass(frozen=True, slots=True)
class Denominators:
    """What one optimizer step divides its sums by, counted over all ranks and packs."""

    global_tokens: int  # active response tokens
    global_responses: int  # responses with at least one active token
    world_size: int  # ranks over which gradients are averaged

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ContractError("denominators", f"world size {self.world_size}")
        if self.global_tokens < 1 or self.global_responses < 1:
            raise ContractError(
                "empty-batch",
                f"{self.global_tokens} active tokens in {self.global_responses} responses",
            )


@dataclass(frozen=True, slots=True)
class AuxiliaryDenominators:
    """What the router losses of one optimizer step are divided by, counted over all ranks.

    Not the policy's: prompts, inactive tokens and each document's last token count here too.
    """

    model_tokens: int  # tokens of all documents, no filler
    documents: int
    world_size: int  # ranks over which gradients are averaged

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ContractError("denominators", f"world size {self.world_size}")
        if not 1 <= self.documents <= self.model_tokens:
            raise ContractError(
                "denominators", f"{self.model_tokens} model tokens in {self.documents} documents"
            )

    def whole(self, reduction: str) -> int:
        """Model tokens for "token", documents for "response"."""
        return self.model_tokens if reduction == "token" else self.documents

    def local(self, reduction: str) -> float:
        """What a rank divides by so that the mean over ranks is the global loss."""
        return self.whole(reduction) / self.world_size


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """One forward: D documents, L tokens, N response tokens.

    `positions` are indexes into the row of L: the logits there predict the response token one
    further on. Response arrays are the documents' responses one after the other, N entries.
    """

    tokens: np.ndarray  # int64 [L]
    doc_lens: tuple[int, ...]  # tokens of each document, sum L
    prompt_lens: tuple[int, ...]  # tokens of each document before its response
    sample_indexes: tuple[int, ...]  # into the planned samples; empty for a filler
    positions: np.ndarray  # int64 [N]
    document: np.ndarray  # int64 [N], which document of the pack the token belongs to
    mask: np.ndarray  # bool [N], all False for a filler
    active_in_response: np.ndarray  # int64 [N], active tokens of the token's whole response
    kept: KeptSets | None = None  # N sets to score over; None: the whole vocabulary

    @property
    def is_filler(self) -> bool:
        """A forward and backward that adds exactly nothing."""
        return not self.sample_indexes

    @property
    def response_lens(self) -> tuple[int, ...]:
        """Response tokens of each document, sum N."""
        return tuple(
            total - prompt for total, prompt in zip(self.doc_lens, self.prompt_lens, strict=True)
        )

    @property
    def model_tokens(self) -> int:
        """Tokens of real documents; 0 for a filler."""
        return 0 if self.is_filler else len(self.tokens)

    @property
    def active_tokens(self) -> int:
        """Response tokens that count in the loss."""
        return int(self.mask.sum())

    @property
    def responses(self) -> int:
        """Real documents."""
        return len(self.sample_indexes)

    @property
    def targets(self) -> np.ndarray:
        """The response tokens, int64 [N]."""
        return self.tokens[self.positions + 1]

    def gather(self, value: Callable[[int], np.ndarray] | Sequence, dtype: type) -> np.ndarray:
        """Lay values of samples out along the N response tokens.

        value: from sample index to an array [R] or a scalar, as a function or a sequence over
        all planned samples. A filler gets zeros. Raises ContractError for another length.
        """
        if self.is_filler:
            return np.zeros(len(self.positions), dtype)
        parts = []
        for index, length in zip(self.sample_indexes, self.response_lens, strict=True):
            part = np.asarray(value(index) if callable(value) else value[index], dtype)
            if part.ndim == 0:
                part = np.full(length, part, dtype)
            if part.shape != (length,):
                raise ContractError(
                    "packing",
                    f"sample at index {index}: {part.shape} values for {length} response tokens",
                )
            parts.append(part)
        return np.concatenate(parts)

    def scatter(self, values: np.ndarray) -> dict[int, np.ndarray]:
        """Give values [N] back to their samples: sample index to [R]. Nothing for a filler."""
        if len(values) != len(self.positions):
            raise ContractError(
                "packing", f"{len(values)} values for {len(self.positions)} response tokens"
            )
        if self.is_filler:
            return {}
        cuts = np.cumsum(self.response_lens)[:-1]
        parts = np.split(np.asarray(values), cuts)
        return dict(zip(self.sample_indexes, parts, strict=True))


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One optimizer step: its samples and, for each rank, its packs in order."""

    sample_indexes: tuple[int, ...]
    ranks: tuple[tuple[Pack, ...], ...]
    denominators: Denominators
    model_tokens: int  # tokens of all documents, no filler
    documents: int

    @property
    def auxiliary(self) -> AuxiliaryDenominators:
        """The denominators of the router losses."""
        return AuxiliaryDenominators(
            self.model_tokens, self.documents, self.denominators.world_size
        )

    @property
    def packs_per_rank(self) -> int:
        """Forwards, and backwards, of every rank."""
        return len(self.ranks[0])


@dataclass(frozen=True, slots=True)
class Plan:
    """All optimizer steps of one collection."""

    steps: tuple[StepPlan, ...]
    world_size: int
    samples: int

    @property
    def global_batch_size(self) -> int:
        """Samples of one optimizer step over all ranks."""
        return self.samples // len(self.steps)


def check_batch(*, samples: int, optimizer_steps: int, world_size: int) -> int:
    """Return the samples of one optimizer step over all ranks.

    Raises RefusedError when the collection is not a whole number of steps, or a step cannot be
    dealt evenly to the ranks.
    """
    for name, value in (
        ("samples", samples),
        ("optimizer_steps", optimizer_steps),
        ("world_size", world_size),
    ):
        if value < 1:
            raise RefusedError(f"{name} must be at least 1, not {value}", "batch-positive")
    if samples % optimizer_steps:
        raise RefusedError(
            f"{samples} samples of a collection do not divide into {optimizer_steps} optimizer"
            " steps of equal size",
            "batch-steps",
        )
    batch = samples // optimizer_steps
    if batch % world_size:
        raise RefusedError(
            f"a global batch of {batch} samples is not divisible by {world_size} trainer ranks",
            "batch-world",
        )
    return batch


def plan(
    samples: Sequence[Sample],
    *,
    world_size: int,
    optimizer_steps: int,
    pack_tokens: int | None,
    grid: Grid | None = None,
) -> Plan:
    """Partition, deal and pack one collection.

    pack_tokens None: no packing, one sample a forward. A number: packs of at most so many tokens.
    grid: packs of the grid's number of documents, in the order of the samples, instead.
    Raises RefusedError for a collection that does not divide (`check_batch`) or a sample longer
    than pack_tokens or than a row of the grid.
    """
    batch = check_batch(
        samples=len(samples), optimizer_steps=optimizer_steps, world_size=world_size
    )
    if grid is not None:
        for sample in samples:
            grid.check(len(sample.tokens), f"sample {sample.sample_id}")
    elif pack_tokens is not None:
        for sample in samples:
            if len(sample.tokens) > pack_tokens:
                raise RefusedError(
                    f"sample {sample.sample_id} has {len(sample.tokens)} tokens, batch.pack_tokens"
                    f" is {pack_tokens}; samples are never split, so raise it to the longest one",
                    "pack-tokens",
                )
    steps = []
    for start in range(0, len(samples), batch):
        indexes = range(start, start + batch)
        ranks = [
            [
                make_pack(samples, pack)
                for pack in (grid.parts(share) if grid else _first_fit(samples, share, pack_tokens))
            ]
            for share in _deal(samples, indexes, world_size)
        ]
        forwards = max(len(packs) for packs in ranks)
        for packs, share in zip(ranks, _deal(samples, indexes, world_size), strict=True):
            packs.extend([_filler(samples[share[0]])] * (forwards - len(packs)))
        step_samples = [samples[index] for index in indexes]
        steps.append(
            StepPlan(
                sample_indexes=tuple(indexes),
                ranks=tuple(tuple(packs) for packs in ranks),
                denominators=Denominators(
                    global_tokens=sum(sample.active_tokens for sample in step_samples),
                    global_responses=len(step_samples),
                    world_size=world_size,
                ),
                model_tokens=sum(len(sample.tokens) for sample in step_samples),
                documents=len(step_samples),
            )
        )
    return Plan(steps=tuple(steps), world_size=world_size, samples=len(samples))


def _deal(samples: Sequence[Sample], indexes: Sequence[int], world_size: int) -> list[list[int]]:
    """Give every rank the same number of samples and close to the same number of tokens.

    Longest first, each to the rank with the fewest tokens that still has room.
    """
    room = len(indexes) // world_size
    shares: list[list[int]] = [[] for _ in range(world_size)]
    tokens = [0] * world_size
    for index in _longest_first(samples, indexes):
        rank = min(
            (rank for rank in range(world_size) if len(shares[rank]) < room),
            key=lambda rank: (tokens[rank], rank),
        )
        shares[rank].append(index)
        tokens[rank] += len(samples[index].tokens)
    return [sorted(share) for share in shares]


def _first_fit(
    samples: Sequence[Sample], share: Sequence[int], pack_tokens: int | None
) -> list[list[int]]:
    """Fill packs of at most pack_tokens, longest sample first, each where it first fits."""
    if pack_tokens is None:
        return [[index] for index in share]
    packs: list[list[int]] = []
    left: list[int] = []
    for index in _longest_first(samples, share):
        length = len(samples[index].tokens)
        for pack, room in enumerate(left):
            if length <= room:
                packs[pack].append(index)
                left[pack] -= length
                break
        else:
            packs.append([index])
            left.append(pack_tokens - length)
    return [sorted(pack) for pack in packs]


def _longest_first(samples: Sequence[Sample], indexes: Sequence[int]) -> list[int]:
    return sorted(indexes, key=lambda index: (-len(samples[index].tokens), index))


def make_pack(samples: Sequence[Sample], indexes: Sequence[int]) -> Pack:
    """Lay the samples at these indexes out in one row, in this order.

    Raises ContractError when some of them have kept sets and some have none.
    """
    chosen = [samples[index] for index in indexes]
    kept = [sample.kept for sample in chosen]
    if len({sets is None for sets in kept}) > 1:
        raise ContractError("kept-sets", "a pack of samples with and without kept sets")
    return _layout(
        documents=[(sample.tokens, sample.prompt_len, sample.loss_mask) for sample in chosen],
        indexes=tuple(indexes),
        kept=None if None in kept else KeptSets.join(kept),
    )


def _filler(like: Sample) -> Pack:
    """A pack without a sample: real token ids, so that any model takes them, and no weight."""
    tokens = np.array(like.tokens[:FILLER_TOKENS])
    # a set of its token alone: the score is 0, and so is its gradient
    kept = None if like.kept is None else KeptSets.of([tokens[1:]])
    return _layout(documents=[(tokens, 1, np.zeros(1, np.bool_))], indexes=(), kept=kept)


def _layout(
    documents: Sequence[tuple[np.ndarray, int, np.ndarray]],
    indexes: tuple[int, ...],
    kept: KeptSets | None,
) -> Pack:
    starts = np.cumsum([0, *(len(tokens) for tokens, _, _ in documents)])
    positions, owners, masks, active = [], [], [], []
    for number, (tokens, prompt_len, mask) in enumerate(documents):
        # logits at p predict token p + 1, so the first response token is predicted at the last
        # prompt token and the row's last token predicts nothing
        first = starts[number] + prompt_len - 1
        response_len = len(tokens) - prompt_len
        positions.append(np.arange(first, first + response_len, dtype=np.int64))
        owners.append(np.full(response_len, number, dtype=np.int64))
        masks.append(mask)
        active.append(np.full(response_len, mask.sum(), dtype=np.int64))
    return Pack(
        tokens=np.concatenate([tokens for tokens, _, _ in documents]),
        doc_lens=tuple(len(tokens) for tokens, _, _ in documents),
        prompt_lens=tuple(prompt_len for _, prompt_len, _ in documents),
        sample_indexes=indexes,
        positions=np.concatenate(positions),
        document=np.concatenate(owners),
        mask=np.concatenate(masks),
        active_in_response=np.concatenate(active),
        kept=kept,
    )


def by_sample(packs: Sequence[Pack], values: Sequence[np.ndarray]) -> Mapping[int, np.ndarray]:
    """Collect the values [N] of several packs: sample index to [R].

    Raises ContractError when a sample comes twice.
    """
    found: dict[int, np.ndarray] = {}
    for pack, part in zip(packs, values, strict=True):
        for index, value in pack.scatter(part).items():
            if index in found:
                raise ContractError("packing", f"the sample at index {index} is in two packs")
            found[index] = value
    return found
