"""What routers are given for a forward, and what they did in it. torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch

from .packing import AuxiliaryDenominators
from .routes import RouterShape


@dataclass(slots=True, eq=False)
class LayerWork:
    """What one router did in one forward; sums are detached and in the loss's own scale."""

    ids: torch.Tensor | None = None  # int64 [1, L, K] to replay
    executed: torch.Tensor | None = None  # int64 [1, L, K] that ran
    counts: torch.Tensor | None = None  # int64 [E], of a training forward with real documents
    differing: torch.Tensor | None = None  # int64, recorded rows that live routing would change
    balancing: torch.Tensor | None = None  # weight included
    z: torch.Tensor | None = None
    forwards: int = 0
    recomputed: int = 0


@dataclass(slots=True, eq=False)
class RouterWork:
    """What the routers of one forward need: L tokens in one row, no padding.

    routes: recorded ids, int64 [L, layers, K]; None where the run replays nothing.
    documents: real documents; 0 for a filler pack, which adds exactly nothing.
    denominators: of the optimizer step; None for a forward without a backward.
    live: let the routers choose in a run that replays, as an engine does; it has no backward.
    """

    routes: np.ndarray | None
    doc_lens: tuple[int, ...]
    denominators: AuxiliaryDenominators | None
    documents: int
    live: bool = False
    compare: bool = True  # count recorded tokens that live routing would send elsewhere
    layers: list[LayerWork] = field(default_factory=list)  # filled by `armed`
    rows: torch.Tensor | None = None  # bool [L], rows with a recorded assignment


@dataclass(frozen=True, slots=True, eq=False)
class RouterTerms:
    """Detached sums over forwards; `+` joins forwards, adding `flat` over ranks joins ranks.

    Losses are weighted, normalised by the step's denominators and scaled like the policy loss: the
    mean of ranks' sums is the global one. Counts are plain.
    """

    balancing: torch.Tensor  # float64 scalar, over all layers
    z: torch.Tensor  # float64 scalar, over all layers
    counts: torch.Tensor  # int64 [layers, E], executed choices of model tokens
    differing: torch.Tensor  # int64 [layers], recorded tokens that live routing would move
    recorded: int  # recorded tokens that were compared in every layer

    @classmethod
    def zero(cls, shape: RouterShape, device: torch.device | str = "cpu") -> RouterTerms:
        """The neutral element of `+`."""
        scalar = torch.zeros((), dtype=torch.float64, device=device)
        counts = torch.zeros(shape.layers, shape.experts, dtype=torch.int64, device=device)
        return cls(scalar, scalar, counts, counts.new_zeros(shape.layers), 0)

    def __add__(self, other: RouterTerms) -> RouterTerms:
        return RouterTerms(
            self.balancing + other.balancing,
            self.z + other.z,
            self.counts + other.counts,
            self.differing + other.differing,
            self.recorded + other.recorded,
        )

    def flat(self) -> torch.Tensor:
        """All of it as float64 [3 + layers (E + 1)] on the CPU, for one sum over ranks."""
        head = torch.stack([self.balancing, self.z, self.z.new_tensor(float(self.recorded))])
        parts = (head, self.counts.reshape(-1).double(), self.differing.double())
        return torch.cat(parts).cpu()

    @classmethod
    def of_flat(cls, values: torch.Tensor, shape: RouterShape) -> RouterTerms:
        """The inverse of `flat`."""
        size = shape.layers * shape.experts
        counts = values[3 : 3 + size].long().view(shape.layers, shape.experts)
        return cls(values[0], values[1], counts, values[3 + size :].long(), int(values[2]))

    def mean_of_losses(self, ranks: int) -> RouterTerms:
        """The global terms, given the sum over ranks."""
        return replace(self, balancing=self.balancing / ranks, z=self.z / ranks)

    @property
    def imbalance(self) -> torch.Tensor:
        """Tokens of the busiest expert over the mean of all, float64 [layers]; 1 is even.

        Not a number where no token was routed.
        """
        counts = self.counts.double()
        return counts.amax(-1) / counts.mean(-1)

    @property
    def disagreement(self) -> torch.Tensor | None:
        """Share of recorded tokens whose expert set live routing would change, float64 [layers].

        None without replay. It is no match of what ran: that is what was recorded, always.
        """
        return self.differing.double() / self.recorded if self.recorded else None
