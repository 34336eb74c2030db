"""The weights of a model by their HF names: taking a stream, copies and exact comparison. torch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..errors import ContractError, PublicationError
from .base import Difference, LoadReport
from .gate import Gate


class NamedWeights:
    """A model's state by name. Two names of one tensor (a tied head) are aliases of each other.

    A mapping has the tensors of another model under the names that a stream has.
    """

    def __init__(self, model: torch.nn.Module | Mapping[str, torch.Tensor]) -> None:
        if isinstance(model, torch.nn.Module):
            model = model.state_dict(keep_vars=True)
        self.tensors: dict[str, torch.Tensor] = {
            name: value.detach() for name, value in model.items()
        }
        first: dict[tuple[int, torch.Size], str] = {}
        self._owner = {
            name: first.setdefault((value.data_ptr(), value.shape), name)
            for name, value in self.tensors.items()
        }

    def take(self, named: Iterable[tuple[str, torch.Tensor]]) -> tuple[int, int, list[str]]:
        """Copy a stream into the model; give how many tensors, how many bytes, and what is missing.

        PublicationError for an unknown name, a name twice, a wrong shape, or an alias with other
        values than its tensor.
        """
        taken: set[str] = set()
        owners: set[str] = set()
        size = 0
        for name, value in named:
            target = self.tensors.get(name)
            if target is None:
                raise PublicationError(f"{name}: the serving model has no such tensor")
            if name in taken:
                raise PublicationError(f"{name}: came twice")
            if value.shape != target.shape:
                raise PublicationError(
                    f"{name}: shape {tuple(value.shape)}, the serving model has"
                    f" {tuple(target.shape)}"
                )
            owner = self._owner[name]
            if owner in owners:
                if not torch.equal(value.to(target), target):
                    raise PublicationError(f"{name}: differs from {owner}, which it is tied to")
            else:
                target.copy_(value)
            taken.add(name)
            owners.add(owner)
            size += value.numel() * value.element_size()
        missing = [name for name, owner in self._owner.items() if owner not in owners]
        return len(taken), size, missing

    def copy(self) -> dict[str, torch.Tensor]:
        """A copy of every tensor, in host memory."""
        return {name: value.to("cpu", copy=True) for name, value in self.tensors.items()}

    def fill(self, value: float) -> None:
        """Put one value into every floating-point tensor."""
        for tensor in self.tensors.values():
            if tensor.is_floating_point():
                tensor.fill_(value)

    def differences(self, expected: Mapping[str, Any]) -> list[Difference]:
        """How the model differs from `expected`, rounded to the model's dtype first; exact.

        A tied name may be left out. NaN equals nothing, not even NaN.
        """
        found = []
        owners = {self._owner[name] for name in expected if name in self.tensors}
        for name in sorted(self.tensors.keys() | expected.keys()):
            if name not in self.tensors:
                found.append(Difference(name, "unexpected"))
            elif name not in expected:
                if self._owner[name] not in owners:
                    found.append(Difference(name, "missing"))
            else:
                own, want = self.tensors[name], expected[name]
                if own.shape != want.shape:
                    shapes = f"{tuple(own.shape)}, expected {tuple(want.shape)}"
                    found.append(Difference(name, "shape", detail=shapes))
                    continue
                want = want.to(own)
                if not bool((own == want).all()):
                    gap = (own.double() - want.double()).abs().max()
                    found.append(Difference(name, "value", float(gap)))
        return found


class HeldWeights:
    """The part of an engine in this process that is about its weights; see `base.Engine`.

    A load and a turn of generating exclude each other through `_gate`.
    """

    def _hold(self, held: NamedWeights, version: int) -> None:
        self._weights = held
        self._version: int | None = version
        self._newest = version
        self._snapshot: dict[str, torch.Tensor] | None = None
        self._gate = Gate()

    @property
    def version(self) -> int | None:
        """The policy version of the weights; None while they are of no one version."""
        return self._version

    def load(
        self, named: Iterable[tuple[str, Any]], version: int, *, strict: bool = True
    ) -> LoadReport:
        """See `base.Engine.load`. Tensors are rounded to the engine's dtype as they arrive."""
        if version < self._newest:
            raise PublicationError(
                f"version {version} after version {self._newest}: serving weights never go back"
            )
        started = time.perf_counter()
        with self._gate.load(), torch.no_grad():
            repeated = version == self._newest
            self._version = None
            taken, size, missing = self._weights.take(named)
            if strict and missing:
                raise PublicationError(
                    f"version {version}: {missing[0]} did not arrive, {len(missing)} in all"
                )
            self._version = self._newest = version
        return LoadReport(
            version, taken, size, time.perf_counter() - started, tuple(missing), repeated
        )

    def snapshot(self) -> None:
        """See `base.Engine.snapshot`. The copy lies in the memory of the host."""
        with self._gate.load():
            self._snapshot = self._weights.copy()

    def reset(self) -> None:
        """See `base.Engine.reset`. Fills with NaN: no published weight can be equal to it."""
        with self._gate.load():
            self._version = None
            self._weights.fill(float("nan"))

    def compare(self, named: Mapping[str, Any] | None = None) -> list[Difference]:
        """See `base.Engine.compare`. `named` is rounded to the engine's dtype first."""
        expected = self._snapshot if named is None else named
        if expected is None:
            raise ContractError("engine-snapshot", "compare without a snapshot")
        with self._gate.load():
            return self._weights.differences(expected)
