"""Which experts a transformers model ran: the ids that its routers gave out. torch.

transformers' routers of a mixture of experts return (logits, weights, expert ids); the ids are the
ones that the experts then run with, so nothing is computed twice and no tie can fall otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..errors import RefusedError

SUFFIX = "TopKRouter"
"""How transformers names the class of such a router."""


class ExpertIds:
    """Records the routers of a model, one forward at a time; RefusedError where it has none.

    layers, topk: routers in the order of the layers, and the experts that each chooses.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        routers = [m for m in model.modules() if type(m).__name__.endswith(SUFFIX)]
        if not routers:
            raise RefusedError(
                f"{type(model).__name__} has no router whose expert ids could be recorded",
                "expert-ids",
            )
        self.layers, self.topk = len(routers), int(routers[0].top_k)
        self._found: list[torch.Tensor] | None = None
        for router in routers:
            router.register_forward_hook(self._note)

    def _note(self, _module: Any, _inputs: Any, output: Any) -> None:
        if self._found is not None:
            self._found.append(output[2])

    def begin(self) -> None:
        """The next forward is recorded."""
        self._found = []

    def take(self, rows: int) -> torch.Tensor:
        """int32 [rows, tokens, layers, topk] of the forward since `begin`."""
        found, self._found = self._found, None
        ids = torch.stack(found, dim=1).to(torch.int32)
        return ids.view(rows, -1, self.layers, self.topk)


def of_response(parts: list[np.ndarray]) -> np.ndarray | None:
    """int32 [T - 1, layers, topk] of a row of T tokens, from the ids of its prompt and each step.

    A step runs the token before the one it samples, so the last one has none. None where nothing
    was recorded.
    """
    return np.concatenate(parts) if parts else None
