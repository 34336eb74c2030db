"""Local probes of every `core.diagnostic_interval`-th optimizer step. No value here is global.

torch, imported when used. Gradient norms are taken after the backward and before the optimizer
takes the gradients in: expert gradients may still need Core's EP-MP rescaling, and each rank of a
sharded model sees its own shards. Update samples keep at most 256 values per named parameter and
never a copy of the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from .errors import ContractError

if TYPE_CHECKING:
    import torch

SAMPLED = 256
"""Values of a parameter that an update sample keeps at most."""

SCOPE = "local, not global"
NOT_COVERED = (
    "expert gradients before Core's EP-MP rescaling are as the backward left them",
    "FP8 stores outside named_parameters",
)


def due(step: int, interval: int) -> bool:
    """Whether completed step `step`, from 1, is probed: at N, 2N and so on; never with 0."""
    return interval > 0 and step % interval == 0


class LocalProbes:
    """Probes one optimizer step of one rank.

    named_parameters: (name, parameter) of the model, in a fixed order. Call `before_intake` when
    the gradients are complete and nothing has clipped or taken them, then step, then `after_step`.
    """

    def __init__(
        self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]], *, interval: int
    ) -> None:
        self.interval = interval
        self._parameters = [(name, value) for name, value in named_parameters]
        self._norms: dict[str, float] | None = None
        self._before: dict[str, torch.Tensor] = {}

    def before_intake(self) -> None:
        """Take gradient norms and the sampled values. Raises ContractError if one is not finite.

        Parameters without a gradient have no norm; frozen ones have an update sample all the same.
        """
        import torch

        names, norms = [], []
        for name, parameter in self._parameters:
            gradient = _gradient(parameter)
            if gradient is not None and _local(gradient).numel():
                names.append(name)
                norms.append(torch.linalg.vector_norm(_local(gradient), dtype=torch.float64))
            sampled = _sample(_local(parameter.detach()))
            if len(sampled):
                self._before[name] = sampled
        # one transfer for all, not one a parameter
        values = torch.stack(norms).tolist() if norms else []
        self._norms = dict(zip(names, values, strict=True))
        for name, value in self._norms.items():
            if not math.isfinite(value):
                raise ContractError("non-finite-gradient", f"{name} has a gradient norm of {value}")

    def after_step(self) -> dict:
        """Return the plain form that `contract.Diagnostics` takes, and forget the samples.

        Raises ContractError without `before_intake`.
        """
        import torch

        if self._norms is None:
            raise ContractError("diagnostics", "after_step without before_intake")
        rows, sizes = [], {}
        for name, parameter in self._parameters:
            before = self._before.get(name)
            if before is None:
                continue
            change = (_sample(_local(parameter.detach())) - before).double()
            sizes[name] = len(change)
            rows.append(
                torch.stack(
                    [
                        (change != 0).sum().double(),
                        change.square().mean().sqrt(),
                        change.abs().max(),
                    ]
                )
            )
        table = torch.stack(rows).tolist() if rows else []
        norms, self._norms, self._before = self._norms, None, {}
        return {
            "scope": SCOPE,
            "interval": self.interval,
            "gradient_norm": math.hypot(*norms.values()),
            "gradient_norms": norms,
            "updates": {
                name: {"values": size, "changed": int(changed), "rms": rms, "max": largest}
                for (name, size), (changed, rms, largest) in zip(sizes.items(), table, strict=True)
            },
            "not_covered": list(NOT_COVERED),
        }

    @property
    def kept_values(self) -> int:
        """Parameter values held between the two calls."""
        return sum(len(values) for values in self._before.values())


class StepProbes:
    """Probes the due steps of a run; give its two methods to `CoreActor` and take the result.

    interval: `core.diagnostic_interval`; 0 probes nothing and costs nothing.
    """

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self._open: LocalProbes | None = None
        self._found: tuple[int, dict] | None = None

    def on_gradients(self, step: int, named: Mapping[str, torch.nn.Parameter]) -> None:
        """Before the optimizer of step `step`, from 1. named: parameters with their gradients."""
        self._open = self._found = None
        if due(step, self.interval):
            self._open = LocalProbes(named.items(), interval=self.interval)
            self._open.before_intake()

    def after_step(self, step: int, named: Mapping[str, torch.nn.Parameter]) -> None:
        """After that optimizer has stepped."""
        if self._open is not None:
            self._found = step, self._open.after_step()
            self._open = None

    def take(self, step: int) -> dict | None:
        """The diagnostics of a step, once; None where it was not due."""
        found, self._found = self._found, None
        if found is None:
            return None
        if found[0] != step:
            raise ContractError("diagnostics", f"of step {found[0]}, asked for step {step}")
        return found[1]


def sample_positions(count: int) -> list[int]:
    """Positions of the sampled values among `count`: all, or 256 spread evenly over both ends."""
    if count <= SAMPLED:
        return list(range(count))
    return [index * (count - 1) // (SAMPLED - 1) for index in range(SAMPLED)]


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    """What the backward left; Core keeps a float32 sum beside a parameter in bfloat16."""
    beside = getattr(parameter, "_main_grad_fp32", None)
    return parameter.grad if beside is None else beside


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor, or the tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """Copies of the sampled values, float64 for float64 and float32 otherwise."""
    import torch

    positions = torch.tensor(sample_positions(tensor.numel()), device=tensor.device)
    if tensor.is_contiguous():
        values = tensor.reshape(-1)[positions]
    else:  # reshape would copy the whole parameter
        values = tensor[torch.unravel_index(positions, tensor.shape)]
    return values if values.dtype == torch.float64 else values.float()
