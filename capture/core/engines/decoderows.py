"""What the host knows of a batch that is decoded without its help. numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import ContractError
from ..keptsets import KeptSets
from .base import Generation
from .routers import of_response


class Look:
    """What the host reads at once: tokens and log-probabilities [steps, rows], kept sets, and for
    each row the expert ids of what ran, [tokens, layers, topk]."""

    def __init__(
        self,
        tokens: np.ndarray,
        logps: np.ndarray,
        kept: tuple[np.ndarray, np.ndarray] | None,
        routes: Sequence[np.ndarray] | None,
    ) -> None:
        self.tokens, self.logps, self.kept, self.routes = tokens, logps, kept, routes


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
        self.sizes = [0] * count
        self.finish = ["abort"] * count
        self.kept: list[list[np.ndarray]] | None = [[] for _ in range(count)] if kept else None
        self.routes: list[list[np.ndarray]] = [[] for _ in prompts]
        self.length = 0  # tokens of a row that still runs
        self.places = {row: row for row in range(count)}  # of the rows that still run

    def note(self, look: Look, version: int) -> None:
        """Add what was sampled to the rows that run, up to their end token."""
        start, steps = self.length, len(look.tokens)
        ends = np.isin(look.tokens, self.eos)
        for row, place in list(self.places.items()):
            found = np.flatnonzero(ends[:, place])
            count = int(found[0]) + 1 if len(found) else steps
            part = slice(start, start + count)
            self.tokens[row, part] = look.tokens[:count, place]
            self.logps[row, part] = look.logps[:count, place]
            self.versions[row, part] = version
            self.sizes[row] = start + count
            if np.isnan(self.logps[row, part]).any():
                raise ContractError("engine-logits", "the engine's logits are not finite")
            if self.kept is not None:
                ids, counts = look.kept
                self.kept[row] += [ids[i, place, : counts[i, place]].copy() for i in range(count)]
            if look.routes is not None:
                # the first look is of the padded prompts; later, what ran for a token is the
                # token before it
                ran = look.routes[place]
                ran = ran[:count] if self.routes[row] else ran[-self.prompts[row] :]
                self.routes[row].append(ran.copy())
            if len(found) or start + steps == self.longest:
                self.finish[row] = "stop" if len(found) else "length"
                del self.places[row]
        self.length += steps

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
                expert_ids=of_response(self.routes[row], self.prompts[row] + size),
                kept=None if self.kept is None else KeptSets.of(self.kept[row]),
            )
            for row, size in enumerate(self.sizes)
        ]
