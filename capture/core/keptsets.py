"""Which tokens the sampler kept: one set for every response token, of any size. numpy only.

A truncated sampler draws from the kept set and divides by its mass. Sampling replay carries the
sets from the engine to the trainer, and both score a token over its own set:
log softmax(logits / temperature) restricted to the kept ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .errors import ContractError


@dataclass(frozen=True, slots=True, eq=False)
class KeptSets:
    """R sets: the ids of set i are `ids[offsets[i]:offsets[i + 1]]`, in any order.

    Arrays are converted to the dtype named here and made read-only. ContractError ("kept-sets")
    for offsets that do not cut the ids into sets of at least one, a negative id, or an id twice in
    one set.
    """

    offsets: np.ndarray  # int64 [R+1], from 0 to len(ids)
    ids: np.ndarray  # int32 [sum of sizes], token ids

    def __post_init__(self) -> None:
        for name, dtype in (("offsets", np.int64), ("ids", np.int32)):
            given = np.asarray(getattr(self, name))
            if given.ndim != 1 or (given.size and not np.issubdtype(given.dtype, np.integer)):
                raise _wrong(f"{name} must be one row of integers")
            array = np.array(given, dtype=dtype)
            if not np.array_equal(array, given):
                raise _wrong(f"{name} do not fit {np.dtype(dtype)}")
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        if not len(self.offsets) or self.offsets[0] != 0 or self.offsets[-1] != len(self.ids):
            raise _wrong(f"offsets do not run from 0 to {len(self.ids)}")
        empty = np.flatnonzero(np.diff(self.offsets) < 1)
        if len(empty):
            raise _wrong(f"set {empty[0]} is empty")
        if len(self.ids) and self.ids.min() < 0:
            raise _wrong(f"token id {self.ids.min()} is negative")
        # one number for (set, id): sorting it finds what stands twice faster than two columns do
        keys = np.sort(self.owners() << 32 | self.ids)
        twice = np.flatnonzero(keys[1:] == keys[:-1])
        if len(twice):
            key = int(keys[twice[0]])
            raise _wrong(f"set {key >> 32} holds token {key & 0xFFFFFFFF} twice")

    @classmethod
    def of(cls, sets: Iterable[Sequence[int] | np.ndarray]) -> KeptSets:
        """From one row of ids a token."""
        rows = [np.asarray(row, dtype=np.int64).reshape(-1) for row in sets]
        offsets = np.cumsum([0, *(len(row) for row in rows)])
        return cls(offsets, np.concatenate(rows) if rows else np.zeros(0, np.int64))

    @classmethod
    def join(cls, parts: Sequence[KeptSets]) -> KeptSets:
        """The sets of several responses one after the other."""
        sizes = np.concatenate([np.zeros(1, np.int64), *(part.sizes for part in parts)])
        ids = np.concatenate([np.zeros(0, np.int32), *(part.ids for part in parts)])
        # each part was checked when it was made, and that sorts
        found = object.__new__(cls)
        for name, array in (("offsets", np.cumsum(sizes)), ("ids", ids)):
            array.setflags(write=False)
            object.__setattr__(found, name, array)
        return found

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        """The ids of one set, int32."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def sizes(self) -> np.ndarray:
        """Ids of each set, int64 [R]."""
        return np.diff(self.offsets)

    def owners(self) -> np.ndarray:
        """Which set each id belongs to, int64 [sum of sizes]."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def check_tokens(self, tokens: np.ndarray) -> None:
        """Raise ContractError unless set i holds tokens[i], for all R tokens [R]."""
        if len(tokens) != len(self):
            raise _wrong(f"{len(self)} sets for {len(tokens)} response tokens")
        if not len(self):
            return
        hits = self.ids == np.repeat(tokens, self.sizes)
        lost = np.flatnonzero(~np.logical_or.reduceat(hits, self.offsets[:-1]))
        if len(lost):
            raise _wrong(f"set {lost[0]} lacks token {tokens[lost[0]]}, which was sampled from it")


def _wrong(what: str) -> ContractError:
    return ContractError("kept-sets", what)
