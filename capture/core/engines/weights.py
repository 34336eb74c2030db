"""The weights of a model by their HF names: taking a stream, copies and exact comparison. torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..errors import PublicationError
from .base import Difference


class NamedWeights:
    """A model's state by name. Two names of one tensor (a tied head) are aliases of each other."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.tensors: dict[str, torch.Tensor] = {
            name: value.detach() for name, value in model.state_dict(keep_vars=True).items()
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
