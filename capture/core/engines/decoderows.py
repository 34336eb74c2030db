"""What the host knows of a batch that is decoded without its help. numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..errors import ContractError
from ..keptsets import KeptSets
from .base import Generation
from .routers import of_response


class Look(NamedTuple):
    """What the host reads at once."""

    tokens: np.ndarray  # int64 [steps, rows]
    logps: np.ndarray  # float32 [steps, rows]
    kept: tuple[np.ndarray, np.ndarray] | None  # ids [steps, rows, widest], sizes [steps, rows]
    routes: Sequence[np.ndarray] | None  # of each row, expert ids [tokens that ran, layers, topk]


class Rows:
    """What the host knows of a batch: the responses so far, and which row is at which place."""

    def __init__(
        self, prompts: Sequence[int], longest: int, eos_ids: frozenset[int], kept: bool
    ) -> None:
        self.longest, self.eos = longest, np.array(sorted(eos_ids), dtype=np.int64)
        self.prompts, count = prompts, len(prompts)
        self.tokens = np.zeros((count, longest), np.int64)
        self.logps = np.zeros((count, longest), np.float32)
        self.versions = np.zeros((count, longest), np.int64)
        self.sizes = np.zeros(count, int)
        self.finish = ["abort"] * count
        self.kept: list[list[np.ndarray]] | None = [[] for _ in range(count)] if kept else None
        self.routes: list[list[np.ndarray]] = [[] for _ in prompts]
        self.length = 0  # tokens of a row that still runs
        self.places = {row: row for row in range(count)}  # of the rows that still run

    def note(self, look: Look, version: int) -> None:
        """Add what was sampled to the rows that run, up to their end token."""
        start, steps = self.length, len(look.tokens)
        part = slice(start, start + steps)
        rows, places = (np.fromiter(x, int) for x in (self.places, self.places.values()))
        tokens, logps = look.tokens[:, places].T, look.logps[:, places].T
        ends = np.isin(tokens, self.eos)
        ended = ends.any(axis=1)
        counts = np.where(ended, ends.argmax(axis=1) + 1, steps)
        if np.isnan(logps[np.arange(steps) < counts[:, None]]).any():
            raise ContractError("engine-logits", "the engine's logits are not finite")
        # what stands after an end token is beyond the row's size, and nobody reads it
        self.tokens[rows, part], self.logps[rows, part] = tokens, logps
        self.versions[rows, part] = version
        self.sizes[rows] = start + counts
        if look.kept is not None or look.routes is not None:
            for row, place, count in zip(rows, places, counts, strict=True):
                self._note_lists(look, int(row), int(place), int(count))
        for row in rows[ended]:
            self.finish[row] = "stop"
            del self.places[row]
        self.length += steps
        if self.length == self.longest:
            for row in self.places:
                self.finish[row] = "length"
            self.places.clear()

    def _note_lists(self, look: Look, row: int, place: int, count: int) -> None:
        """Add the kept sets and expert ids of one row, where they were asked for."""
        if look.kept is not None:
            ids, sizes = look.kept
            self.kept[row] += [ids[i, place, : sizes[i, place]].copy() for i in range(count)]
        if look.routes is not None:
            # the first look is of the padded prompts; later, what ran for a token is the token
            # before it
            ran = look.routes[place]
            ran = ran[:count] if self.routes[row] else ran[-self.prompts[row] :]
            self.routes[row].append(ran.copy())

    def compact(self, count: int) -> list[int]:
        """Put the running rows first; gives the present place of each of `count` places."""
        before = list(self.places.values())
        self.places = {row: place for place, row in enumerate(self.places)}
        return before + before[:1] * (count - len(before))

    def generations(self) -> list[Generation]:
        """The responses, in the order of the rows."""
        return [
            Generation(
                self.tokens[row, :size].copy(),
                self.logps[row, :size].copy(),
                self.versions[row, :size].copy(),
                self.finish[row],
                expert_ids=of_response(self.routes[row]),
                kept=None if self.kept is None else KeptSets.of(self.kept[row]),
            )
            for row, size in enumerate(self.sizes)
        ]
