"""GPU samples: read from nvidia-smi, written as JSON lines, read back for a replay.

A field that the GPU or driver does not give ("[N/A]", "[Not Supported]", no such query) is absent
from the sample, never 0. One JSON line holds one GPU at one time:

    {"time": "2026-11-29T13:27:19.120Z", "gpu": 0, "temp_c": 84.0, "sm_mhz": 1980.0,
     "power_w": 613.2, "throttle": ["sw-thermal"], "memory_mib": 70211.0, "util_pct": 100.0}

`throttle` is the list of active reasons: empty means read and none active, absent means not read.
A reading that failed is a line with `time` and `trouble` only.
"""

import math
from typing import NamedTuple

from mileskit.common import command
from mileskit.summary.pauses import iso

SMI_S = 10.0
"""Default seconds to wait for nvidia-smi (it takes well under 1 s on a responsive driver)."""

QUERIES = {
    "gpu": "index",
    "temp_c": "temperature.gpu",
    "sm_mhz": "clocks.sm",
    "power_w": "power.draw",
    "memory_mib": "memory.used",
    "util_pct": "utilization.gpu",
}
THROTTLE_QUERIES = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The field's name since driver 535 and its older name; asked for in this order."""

# nvmlClocksEventReasons of NVIDIA's nvml.h, one bit each.
THROTTLE_BITS = {
    0x001: "idle",
    0x002: "application-clocks",
    0x004: "sw-power-cap",
    0x008: "hw-slowdown",
    0x010: "sync-boost",
    0x020: "sw-thermal",
    0x040: "hw-thermal",
    0x080: "hw-power-brake",
    0x100: "display-clocks",
}

_BELIEVABLE = {"temp_c": (-40.0, 150.0)}


class Sample(NamedTuple):
    """One GPU at one time. time: Unix seconds; every other field is None when it was not given."""

    time: float
    gpu: int | None = None
    temp_c: float | None = None
    sm_mhz: float | None = None
    power_w: float | None = None
    throttle: tuple[str, ...] | None = None
    memory_mib: float | None = None
    util_pct: float | None = None


class Reading(NamedTuple):
    """All chosen GPUs at one time. trouble: "" or why the temperature could not be read."""

    time: float
    samples: tuple[Sample, ...] = ()
    trouble: str = ""
    missing_program: bool = False
    refused: bool = False

    @property
    def hottest(self) -> Sample | None:
        """The sample with the highest temperature, None when no GPU gave one."""
        readable = [sample for sample in self.samples if sample.temp_c is not None]
        return max(readable, key=lambda sample: sample.temp_c, default=None)


class Smi:
    """Reads samples with the program `nvidia-smi`.

    gpus: indices as nvidia-smi counts them; empty means every GPU that it lists.
    """

    def __init__(self, gpus: tuple[int, ...] = (), program: str = "nvidia-smi"):
        self.program = program
        self.gpus = gpus
        self._throttle = list(THROTTLE_QUERIES)

    def read(self, when: float, timeout_s: float = SMI_S) -> Reading:
        """One reading taken at Unix time `when`; failures are described, never raised."""
        if command.still_stuck(self.program):
            return Reading(when, trouble=f"an earlier call of {self.program} still hangs")
        while True:
            asked = [*QUERIES.values(), *self._throttle[:1]]
            args = [self.program, f"--query-gpu={','.join(asked)}"]
            args += ["--format=csv,noheader,nounits"]
            args += [f"--id={','.join(map(str, self.gpus))}"] if self.gpus else []
            ran = command.run_program(args, timeout_s)
            told = f"{ran.out} {ran.err}"
            if ran.status and "not a valid field" in told and self._throttle:
                del self._throttle[0]
                continue
            break
        if ran.trouble == "timeout":
            return Reading(when, trouble=f"{self.program} did not answer in time")
        if ran.trouble:
            why = "not found in PATH" if ran.trouble == "missing" else ran.trouble
            missing = ran.trouble == "missing"
            return Reading(when, (), f"{self.program}: {why}", missing, True)
        if ran.status:
            words = " ".join(told.split()) or "without a message"
            why = f"{self.program} failed with status {ran.status}: {words[:200]}"
            return Reading(when, (), why, False, True)
        rows = [line.split(",") for line in ran.out.splitlines() if line.strip()]
        names = [*QUERIES, *(["throttle"] if self._throttle else [])]
        samples = tuple(make_sample(when, dict(zip(names, row, strict=False))) for row in rows)
        return Reading(when, samples, _unreadable(samples))


def make_sample(when: float, cells: dict[str, str]) -> Sample:
    """A Sample from nvidia-smi's cells; a cell that is no finite number counts as not given."""
    values = {name: _number(name, cells.get(name, "")) for name in QUERIES if name != "gpu"}
    index = cells.get("gpu", "").strip()
    return Sample(
        when,
        gpu=int(index) if index.isascii() and index.isdigit() else None,
        throttle=throttle_reasons(cells.get("throttle", "")),
        **values,
    )


def throttle_reasons(cell: str) -> tuple[str, ...] | None:
    """The names of the bits in nvidia-smi's mask; None when the cell holds no mask.

    >>> throttle_reasons("0x0000000000000024")
    ('sw-power-cap', 'sw-thermal')
    """
    try:
        mask = int(cell.strip(), 16)
    except ValueError:
        return None
    names = [name for bit, name in THROTTLE_BITS.items() if mask & bit]
    unknown = mask & ~sum(THROTTLE_BITS)
    return tuple(names + ([f"0x{unknown:x}"] if unknown else []))


def sample_fields(reading: Reading) -> list[dict]:
    """The JSON objects of one reading, absent fields left out."""
    when = iso(reading.time)
    if not reading.samples:
        return [{"time": when, "trouble": reading.trouble}]
    return [
        {
            "time": when,
            **{k: v for k, v in sample._asdict().items() if k != "time" and v is not None},
        }
        for sample in reading.samples
    ]


def _number(name: str, cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    low, high = _BELIEVABLE.get(name, (-math.inf, math.inf))
    return value if math.isfinite(value) and low <= value <= high else None


def _unreadable(samples: tuple[Sample, ...]) -> str:
    if not samples:
        return "nvidia-smi listed no GPU"
    blind = [sample for sample in samples if sample.temp_c is None]
    if not blind:
        return ""
    which = ", ".join("?" if sample.gpu is None else str(sample.gpu) for sample in blind)
    return f"nvidia-smi gave no temperature of GPU {which}"
