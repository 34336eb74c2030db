"""Lines of a stored log that its summary does not keep: memory of the trainer, weight updates."""

from __future__ import annotations

import importlib
import lzma
import re
import sys
from functools import lru_cache
from typing import Any, NamedTuple

from figures import evidence
from figures.evidence import Access, EvidenceError

_MEMORY = re.compile(rb"^.*Memory-Usage .*$", re.MULTILINE)
_UPDATE = re.compile(rb'"POST /(begin_weight_update|update_weights_from_tensor|end_weight_update) ')


class Moment(NamedTuple):
    """One memory line of the trainer, in GB of 2**30 bytes.

    when: 'after wake_up model', 'before offload model' or 'after offload model'. used: of the whole
    GPU, by whatever program. allocated: what the trainer's tensors hold. reserved: what its
    allocator keeps, allocated included. total: of the GPU.
    """

    when: str
    used: float
    allocated: float
    reserved: float
    total: float


def kit(module: str) -> Any:
    """A module of the capture kit, which is no package but a folder of flat modules."""
    folder = str(evidence.ROOT / "capture" / "gpu")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(module)


def memory_lines(run: evidence.Run) -> tuple[Moment, ...]:
    """Every memory line of the trainer, in the order of the log. EvidenceError for none."""
    path = run.folder / "run.log.xz"
    found = _moments(str(path), evidence.read(path))
    evidence.record(Access(run.id, "run.log.xz:memory lines of the trainer"))
    return found


@lru_cache(maxsize=4)
def _moments(name: str, data: bytes) -> tuple[Moment, ...]:
    reportlog, lineshape = kit("mileskit.report.reportlog"), kit("mileskit.log.lineshape")
    clock = lineshape.Clock(0.0)
    lines = [reportlog.memory_line(line, clock) for line in _MEMORY.findall(lzma.decompress(data))]
    if not lines or None in lines:
        raise EvidenceError(f"{name}: no memory lines, or one that cannot be read")
    keys = ("used_GB", "allocated_GB", "reserved_GB", "total_GB")
    return tuple(Moment(line.when, *(line.gb[key] for key in keys)) for line in lines)


def update_requests(run: evidence.Run) -> tuple[int, ...]:
    """Requests with weights that the engine answered, for each weight update of the log."""
    path = run.folder / "run.log.xz"
    found = _requests(str(path), evidence.read(path))
    evidence.record(Access(run.id, "run.log.xz:requests of each weight update"))
    return found


@lru_cache(maxsize=4)
def _requests(name: str, data: bytes) -> tuple[int, ...]:
    found: list[int] = []
    inside = False
    for match in _UPDATE.finditer(lzma.decompress(data)):
        if match[1] == b"begin_weight_update":
            found.append(0)
        elif match[1] == b"update_weights_from_tensor" and inside:
            found[-1] += 1
        inside = match[1] != b"end_weight_update"
    if not found or inside:
        raise EvidenceError(f"{name}: no weight update, or one without an end")
    return tuple(found)
