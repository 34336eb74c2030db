"""Where the prompt data stands: a committed place, and the prompts that were drawn but not trained.

Prompts are drawn in a fixed order that the seed and the epoch decide. A collection that was drawn
stays pending until its optimizer steps are done; a checkpoint keeps pending prompts pristine, as
places in the data, and nothing of the responses that were under way, so a restart generates those
again. Loads neither torch nor numpy.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import CheckpointError, ContractError

_FIXED = ("pool", "batch", "seed", "shuffle")


@dataclass(frozen=True, slots=True)
class Draw:
    """The prompts of one collection: index of the collection, places of its prompts in the data."""

    collection: int
    prompts: tuple[int, ...]


class RolloutCursor:
    """Draws prompts and commits them. Safe to share between the trainer and a producer thread.

    pool: how many prompts the data has. batch: prompts of a collection.
    """

    def __init__(self, *, pool: int, batch: int, seed: int, shuffle: bool = True) -> None:
        if pool < 1 or batch < 1:
            raise ContractError("cursor", f"{batch} prompts a collection of {pool} prompts")
        self.pool, self.batch, self.seed, self.shuffle = pool, batch, seed, shuffle
        self._lock = threading.Lock()
        self._drawn = 0  # prompts drawn since the start, over all epochs
        self._committed = 0  # collections trained on
        self._pending: list[Draw] = []
        self._again: list[Draw] = []  # pending ones of a restart, still to be given out
        self._epoch: tuple[int, list[int]] | None = None

    @property
    def committed(self) -> int:
        """Collections that were trained on."""
        return self._committed

    def draw(self) -> Draw:
        """The next collection's prompts. A restart gets those that were pending first."""
        with self._lock:
            if self._again:
                return self._again.pop(0)
            index = self._committed + len(self._pending)
            prompts = tuple(self._prompt(self._drawn + i) for i in range(self.batch))
            self._drawn += self.batch
            draw = Draw(index, prompts)
            self._pending.append(draw)
            return draw

    def commit(self, collection: int) -> None:
        """Note that the oldest pending collection was trained on; ContractError for another."""
        with self._lock:
            if not self._pending or self._pending[0].collection != collection:
                expected = self._pending[0].collection if self._pending else None
                raise ContractError(
                    "cursor", f"collection {collection} is done, collection {expected} is due"
                )
            if any(draw.collection == collection for draw in self._again):
                raise ContractError("cursor", f"collection {collection} was never generated")
            del self._pending[0]
            self._committed += 1

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as plain JSON data."""
        with self._lock:
            return {
                **{name: getattr(self, name) for name in _FIXED},
                "collection": self._committed,
                "drawn": self._drawn,
                "pending": [
                    {"collection": draw.collection, "prompts": list(draw.prompts)}
                    for draw in self._pending
                ],
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the place of `state`; what was pending is drawn again, in its order.

        Raises CheckpointError for a state of other data or settings, or one that contradicts
        itself.
        """
        check_cursor(state)
        for name in _FIXED:
            if state[name] != getattr(self, name):
                raise CheckpointError(
                    f"cursor.{name} is {state[name]} in the checkpoint and {getattr(self, name)}"
                    " in this run; the order of the prompts would change"
                )
        pending = [Draw(item["collection"], tuple(item["prompts"])) for item in state["pending"]]
        for draw in pending:
            due = tuple(self._prompt(draw.collection * self.batch + i) for i in range(self.batch))
            if draw.prompts != due:
                raise CheckpointError(
                    f"cursor.pending of collection {draw.collection}: {str(draw.prompts)[:60]}:"
                    f" the order of this run's prompts gives {str(due)[:60]}"
                )
        with self._lock:
            self._committed, self._drawn = state["collection"], state["drawn"]
            self._pending, self._again = pending, list(pending)

    def start_at(self, collection: int) -> None:
        """Take the place after `collection` committed collections, with nothing pending."""
        with self._lock:
            self._committed, self._drawn = collection, collection * self.batch
            self._pending, self._again = [], []

    def _prompt(self, position: int) -> int:
        epoch, offset = divmod(position, self.pool)
        if not self.shuffle:
            return offset
        if self._epoch is None or self._epoch[0] != epoch:
            order = list(range(self.pool))
            random.Random(f"{self.seed}/{epoch}").shuffle(order)
            self._epoch = (epoch, order)
        return self._epoch[1][offset]


def check_cursor(state: Any) -> None:
    """Raise CheckpointError unless `state` is a committed cursor that agrees with itself."""

    def wrong(what: str) -> CheckpointError:
        return CheckpointError(f"cursor{what}")

    if not isinstance(state, Mapping):
        raise wrong(f" is {type(state).__name__}, not an object")
    if odd := sorted(set(state) - {*_FIXED, "collection", "drawn", "pending"}):
        raise wrong(f".{str(odd[0])[:60]}: no such key; a cursor keeps places and nothing else")
    for name in ("pool", "batch", "seed", "collection", "drawn"):
        if type(state.get(name)) is not int or state[name] < (name in ("pool", "batch")):
            raise wrong(f".{name} is {repr(state.get(name))[:60]}")
    if type(state.get("shuffle")) is not bool:
        raise wrong(f".shuffle is {repr(state.get('shuffle'))[:60]}")
    if not isinstance(state.get("pending"), list):
        raise wrong(f".pending is {repr(state.get('pending'))[:60]}")
    for place, item in enumerate(state["pending"]):
        if not isinstance(item, Mapping) or set(item) != {"collection", "prompts"}:
            raise wrong(f".pending[{place}] is not a pristine prompt list: {str(item)[:60]}")
        if item["collection"] != state["collection"] + place:
            raise wrong(
                f".pending[{place}] is of collection {item['collection']}, not"
                f" {state['collection'] + place}"
            )
        prompts = item["prompts"]
        if (
            not isinstance(prompts, list)
            or len(prompts) != state["batch"]
            or not all(type(p) is int and 0 <= p < state["pool"] for p in prompts)
        ):
            raise wrong(f".pending[{place}].prompts is {str(prompts)[:60]}")
    expected = (state["collection"] + len(state["pending"])) * state["batch"]
    if state["drawn"] != expected:
        raise wrong(
            f".drawn is {state['drawn']}, but {state['collection']} committed and"
            f" {len(state['pending'])} pending collections make {expected}"
        )
