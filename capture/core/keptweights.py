"""A second set of weights that can take a model's place for a while: the reference of a KL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from olmo_core.distributed.utils import get_local_tensor
from torch import nn


class KeptWeights:
    """A copy of this rank's part of every parameter, as it was when the copy was made."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._kept = [tensor.clone() for tensor in self._local()]

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The kept weights in the model, then the present ones again, bitwise, whatever happens."""
        present = [tensor.clone() for tensor in self._local()]
        try:
            _fill(self._local(), self._kept)
            yield
        finally:
            _fill(self._local(), present)

    def _local(self) -> list[torch.Tensor]:
        """Without gradient, the model's own memory."""
        return [get_local_tensor(p.detach()) for p in self._model.parameters()]


@torch.no_grad()
def _fill(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)
