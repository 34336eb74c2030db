"""The policy clock: which version the trainer holds, which one serves, and how old data may be.

A policy version is the number of optimizer steps that succeeded on every rank since the HF weights,
so lag is counted in optimizer steps. Nothing here moves before every check has passed: a
`ContractError` leaves the clock as it was. Loads neither torch nor numpy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .errors import CheckpointError, ContractError


@dataclass(frozen=True, slots=True)
class Vote:
    """What one rank says about one optimizer step. lr_used and lr_next are learning rates."""

    rank: int
    step: int  # the optimizer step that this rank completed, counted from 1
    ok: bool  # finite everywhere, and the optimizer did step
    lr_used: float
    lr_next: float
    reason: str = ""  # why not ok


class PolicyClock:
    """Versions of one run. Change it only through `consume`, `advance` and `publish`.

    steps_per_collection: optimizer steps of a collection. max_lag: None for synchronous collection,
    else the largest age of a token, in optimizer steps, at the step that trains on it.
    """

    def __init__(
        self,
        *,
        steps_per_collection: int,
        max_lag: int | None = None,
        world_size: int = 1,
        lr: float | None = None,
    ) -> None:
        if steps_per_collection < 1 or world_size < 1:
            raise ContractError(
                "clock", f"{steps_per_collection} steps a collection on {world_size} ranks"
            )
        if max_lag is not None and max_lag < 1:
            raise ContractError("clock", f"async needs a lag of at least 1, not {max_lag}")
        if max_lag is not None and max_lag < steps_per_collection - 1:
            raise ContractError(
                "clock",
                f"a lag of {max_lag} makes the last of {steps_per_collection} optimizer steps of a"
                f" fresh collection stale; max_lag must be at least {steps_per_collection - 1}",
            )
        self.steps_per_collection = steps_per_collection
        self.max_lag = max_lag
        self.world_size = world_size
        self._step = 0
        self._published: int | None = None
        self._consumed: int | None = None
        self._lr = lr

    @property
    def optimizer_step(self) -> int:
        """Optimizer steps that succeeded on every rank."""
        return self._step

    @property
    def version(self) -> int:
        """The policy version of the trainer's weights."""
        return self._step

    @property
    def published(self) -> int | None:
        """The version that serves; None before the first publication."""
        return self._published

    @property
    def consumed(self) -> int | None:
        """The oldest behaviour version of the collection trained on last; None before the first."""
        return self._consumed

    @property
    def lr(self) -> float | None:
        """The learning rate that the next step must use; None while no step has said it."""
        return self._lr

    def least_version(self, start: int) -> int:
        """The oldest version that may generate a collection whose training starts at `start`.

        Anything older would be too old by the time the collection's last optimizer step runs.
        """
        last = self.steps_per_collection - 1
        return start + last - (last if self.max_lag is None else self.max_lag)

    def consume(self, steps: Sequence[tuple[int, int]]) -> None:
        """Check the age of a collection at the moment when the trainer takes it.

        steps: (oldest, newest) behaviour version of the samples of each optimizer step, in order.
        Raises ContractError for data that is too old, or newer than what was ever published.
        """
        if len(steps) != self.steps_per_collection:
            raise ContractError(
                "schedule",
                f"{len(steps)} optimizer steps in a collection that has"
                f" {self.steps_per_collection}",
            )
        for offset, (oldest, newest) in enumerate(steps):
            if self._published is None or newest > self._published:
                raise ContractError(
                    "version-ahead",
                    f"behaviour version {newest}, but version {self._published} is published",
                )
            age = self._step + offset - oldest
            allowed = offset if self.max_lag is None else self.max_lag
            if age > allowed:
                raise ContractError(
                    "stale-version",
                    f"optimizer step {self._step + offset + 1} would train on version {oldest},"
                    f" {age} steps old; {allowed} allowed",
                )
        self._consumed = min(oldest for oldest, _ in steps)

    def advance(self, votes: Sequence[Vote]) -> int:
        """Count one optimizer step that every rank completed, and give the new version.

        votes: one of each rank. Raises ContractError, and does not move, when a rank is missing,
        skipped or failed, or disagrees about the step or the learning rate.
        """
        if sorted(vote.rank for vote in votes) != list(range(self.world_size)):
            raise ContractError(
                "rank-votes", f"ranks {sorted(v.rank for v in votes)} of {self.world_size} voted"
            )
        for vote in votes:
            if not vote.ok:
                raise ContractError(
                    "optimizer-skip",
                    f"rank {vote.rank} did not complete optimizer step {self._step + 1}:"
                    f" {vote.reason or 'skipped'}",
                )
            if vote.step != self._step + 1:
                raise ContractError(
                    "clock-step",
                    f"rank {vote.rank} completed optimizer step {vote.step}, the clock expects"
                    f" {self._step + 1}",
                )
            for name in ("lr_used", "lr_next"):
                value = getattr(vote, name)
                if not (math.isfinite(value) and value >= 0):
                    raise ContractError("clock-lr", f"rank {vote.rank}: {name} is {value}")
                if value != getattr(votes[0], name):
                    raise ContractError(
                        "clock-lr",
                        f"rank {vote.rank} has {name} {value}, rank {votes[0].rank} has"
                        f" {getattr(votes[0], name)}",
                    )
        if self._lr is not None and votes[0].lr_used != self._lr:
            raise ContractError(
                "clock-lr",
                f"optimizer step {self._step + 1} used {votes[0].lr_used}, the schedule said"
                f" {self._lr}",
            )
        self._lr = votes[0].lr_next
        self._step += 1
        return self._step

    def publish(self, version: int) -> None:
        """Note that `version` serves now, after its last bucket landed.

        The same version may be published again. Raises ContractError for any other than the
        trainer's version, which is also the only way to go on.
        """
        if version != self._step:
            raise ContractError(
                "version-order", f"published version {version}, the trainer holds {self._step}"
            )
        self._published = version

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as plain JSON data."""
        return {"optimizer_step": self._step, "consumed": self._consumed, "lr": self._lr}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the place of `state`. The serving side holds nothing yet, so nothing is published.

        Raises CheckpointError for a state that no clock wrote.
        """
        step, consumed, lr = (state.get(key) for key in ("optimizer_step", "consumed", "lr"))
        if (
            type(step) is not int
            or step < 0
            or not (consumed is None or type(consumed) is int)
            or not (lr is None or (type(lr) in (int, float) and math.isfinite(lr)))
        ):
            raise CheckpointError(f"no clock state: {dict(state)}")
        if step % self.steps_per_collection:
            raise CheckpointError(
                f"optimizer step {step} is not the end of a collection of"
                f" {self.steps_per_collection} steps"
            )
        self._step, self._consumed, self._lr, self._published = step, consumed, lr, None


def ballot(vote: Vote) -> dict[str, Any]:
    """A vote as plain data, to be gathered over the ranks."""
    return asdict(vote)
