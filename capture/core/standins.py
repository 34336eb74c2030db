"""Which functions of Core's mixture-of-experts path are replaced by plain PyTorch, and why.

Released Core's path for training mixtures of experts is written for CUDA and Transformer Engine.
What it computes is not changed here; where it is computed is. So every result of this path names
how many functions were replaced: `label`. This module loads no torch; `standinops` has the code.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from . import modelfacts
from .config import RunConfig
from .modelfacts import is_moe


@dataclass(frozen=True, slots=True)
class StandIn:
    """One replaced function.

    where: "no-te" without Transformer Engine, "cuda", "cpu", or "cpu-ep" from two EP ranks up.
    """

    name: str
    reason: str
    where: str


_TE = "Transformer Engine's kernel is not installed;"
_CUDA = "CUDA has streams, the CPU has none; work is done in order"

REGISTRY = (
    StandIn("moe_permute_no_compile", f"{_TE} sorts rows by expert with PyTorch", "no-te"),
    StandIn("moe_unpermute_no_compile", f"{_TE} puts rows back, weighted, with PyTorch", "no-te"),
    StandIn("swiglu_valid_prefix",
            "a kernel for forwards without gradients; it rounds elsewhere than the training"
            " forward, and a score has to be that forward's", "cuda"),
    StandIn("torch.cuda.current_stream", _CUDA, "cpu"),
    StandIn("OLMoDDPTransformerBlock.get_dense_stream", _CUDA, "cpu"),
    StandIn("async_copy_to_cpu", "copies through pinned memory of a GPU; here it copies", "cpu"),
    StandIn("requires_host_side_split_sizes",
            "counts of an expert's rows must lie on a GPU otherwise; the experts themselves are"
            " Core's, over F.grouped_mm", "cpu"),
    StandIn("torch.cuda.stream", _CUDA, "cpu-ep"),
)  # fmt: skip


def transformer_engine() -> bool:
    """Whether Transformer Engine is installed; it is not imported."""
    return importlib.util.find_spec("transformer_engine") is not None


def needed(device: str, ep: int) -> tuple[StandIn, ...]:
    """What is replaced on `device` ("cpu" or "cuda") with `ep` expert-parallel ranks."""
    places = {"no-te", "cpu"}  # there is no Transformer Engine for CPUs
    if ep > 1:
        places.add("cpu-ep")
    if device == "cuda":
        places = {"cuda"} if transformer_engine() else {"cuda", "no-te"}
    return tuple(one for one in REGISTRY if one.where in places)


def label_of(config: RunConfig) -> str:
    """The label of a run's results; "" for a dense model."""
    if not is_moe(config, modelfacts.of(config)):
        return ""
    return label(config.model.device, config.parallel.ep)


def label(device: str, ep: int) -> str:
    """What every result of the path is called; "" where nothing is replaced."""
    count = len(needed(device, ep))
    if not count:
        return ""
    kind = "CPU stand-ins" if device == "cpu" else "PyTorch stand-ins"
    return f"Core code with {kind} for {count} function{'s' if count > 1 else ''}"
