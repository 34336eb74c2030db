"""Recordings of the OLMo-core trainer on a processor: findings, and runs of an example.

`value("local_denominators", "error", ...)` reads one number of `capture/core/findings/NAME.json`, a
record that its own program writes and a test of `make check-core` runs again. Nothing here gives
a time: a processor that others use too is no stopwatch.
"""

from __future__ import annotations

import functools
from pathlib import PurePosixPath
from typing import Any

from capture.core.findings import record as findings
from figures import evidence
from figures.evidence import CORE_LAB, Access, EvidenceError
from figures.sources import measured
from figures.values import Value

FOLDER = PurePosixPath("capture/core/findings")
STAND_INS = "Core code with CPU stand-ins for {} functions"


@functools.lru_cache(maxsize=64)
def _parsed(name: str, data: bytes) -> findings.Finding:
    try:
        return findings.parse(data, name)
    except findings.RecordError as error:
        raise EvidenceError(str(error)) from None


def finding(name: str) -> findings.Finding:
    """A stored finding. EvidenceError where it is missing or damaged."""
    return _parsed(name, evidence.read(FOLDER / f"{name}.json"))


class Recording:
    """A recording as `strength` and `registry` see a run: one setup, no seed, no time."""

    on_gpu = False
    shared = True
    clock_known = False
    seed = None
    changed: tuple[str, ...] = ()

    def __init__(self, run_id: str) -> None:
        self.id = run_id
        self.lab, _, self.name = run_id.partition("/")
        self.finding = finding(self.name)
        self.folder = FOLDER
        self.toml: dict[str, Any] = {}

    @property
    def setup(self) -> dict[str, Any]:
        """The fingerprint: model, processor, software, stand-ins."""
        made = self.finding.environment
        software = f"OLMo-core {made['core']}, torch {made['torch']}"
        if count := made.get("stand_ins"):
            software = f"{STAND_INS.format(count)}, {software}"
        return {"model": "tiny random model", "gpu": "a processor, no GPU", "software": software}

    @property
    def recompute(self) -> str:
        """The command that makes the recording again."""
        return f".venv-core/bin/{self.finding.command}"

    def clean_steps(self) -> None:
        """No heat guard was there."""
        return None


def value(
    name: str,
    source: str,
    key: str,
    digits: int,
    *,
    unit: str = "",
    kind: str = "",
    noun: str = "",
    scale: float = 1.0,
    exponent: bool = False,
    at: int | None = None,
) -> Value:
    """A number of a finding as a figure's value.

    source, key: the finding and the name of its value; at: which of a row of them. scale: factor to
    the unit shown, 100 for percent. Raises EvidenceError for what is missing, is no number, or is
    a time.
    """
    number = read(source, key, at)
    if not isinstance(number, (int, float)) or isinstance(number, bool):
        raise EvidenceError(f"{source}.json: {key} is {number!r}, no number")
    what = key if at is None else f"{key}[{at}]"
    run = f"{CORE_LAB}/{source}"
    return measured(
        name,
        number if scale == 1.0 else number * scale,
        unit,
        digits,
        what=what,
        runs=[run],
        kind=kind,
        noun=noun,
        exponent=exponent,
    )


def read(source: str, key: str, at: int | None = None) -> Any:
    """A value of a finding, recorded as a read of it."""
    found = finding(source)
    if key not in found.values:
        raise EvidenceError(f"{source}.json: no value {key!r}")
    if found.values[key].rule == "time":
        raise EvidenceError(f"{source}.json: {key} is a time of a processor")
    evidence.record(Access(f"{CORE_LAB}/{source}", key))
    return found[key] if at is None else found[key][at]
