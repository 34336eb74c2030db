"""Recordings of the OLMo-core trainer on a processor: findings, and runs of an example.

`value("local_denominators", "error", ...)` reads one number of `capture/core/findings/NAME.json`, a
record that its own program writes and a test of `make check-core` runs again. `column` and
`logged` read the stored files of a recorded run, `capture/core/recorded/NAME`. Nothing here gives a
time: a processor that others use too is no stopwatch.
"""

from __future__ import annotations

import functools
import json
import lzma
import re
from pathlib import PurePosixPath
from typing import Any

from capture.core.findings import record as findings
from figures import evidence
from figures.evidence import CORE_LAB, Access, EvidenceError
from figures.sources import measured
from figures.values import Value

FOLDER = PurePosixPath("capture/core/findings")
RECORDED = PurePosixPath("capture/core/recorded")
# recorded runs of examples; other names are findings
RUNS = ("mechanics", "async", "moe", "two-ranks")
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
    """A recording as `strength` and `registry` see a run: one setup, no time."""

    on_gpu = False
    shared = True
    clock_known = False
    seed = None
    changed: tuple[str, ...] = ()

    def __init__(self, run_id: str) -> None:
        self.id = run_id
        self.lab, _, self.name = run_id.partition("/")
        self.toml: dict[str, Any] = {}
        if self.name in RUNS:
            self.folder = RECORDED / self.name
            path = self.folder / "recorded.toml"
            self.toml = evidence.parse_toml(str(path), evidence.read(path))
        else:
            self.folder = FOLDER
            self.finding = finding(self.name)

    @property
    def setup(self) -> dict[str, Any]:
        """The fingerprint: model, task, processor, software, stand-ins."""
        common = {"gpu": "a processor, no GPU"}
        if self.toml:
            return {**common, **{key: self.toml[key] for key in ("model", "data", "software")}}
        made = self.finding.environment
        software = f"OLMo-core {made['core']}, torch {made['torch']}"
        if count := made.get("stand_ins"):
            software = f"{STAND_INS.format(count)}, {software}"
        return {**common, "model": "tiny random model", "software": software}

    @property
    def recompute(self) -> str:
        """The command that makes the recording again, or holds it against a fresh one."""
        if self.toml:
            return f".venv-core/bin/{self.toml['commands'][0]}"
        return f".venv-core/bin/python -m capture.core.findings --check {self.name}"

    def clean_steps(self) -> None:
        """No heat guard was there."""
        return None


@functools.lru_cache(maxsize=16)
def _unpacked(data: bytes) -> str:
    return lzma.decompress(data).decode("utf-8")


def column(name: str, key: str, rank: int = 0) -> list[Any]:
    """A dotted key of each contract record of a recorded run, in the order of the steps."""
    text = _unpacked(evidence.read(RECORDED / name / f"training_contract_rank{rank}.jsonl.xz"))
    found = []
    for line in text.splitlines():
        item = json.loads(line)
        for part in key.split("."):
            item = item[part]
        found.append(item)
    evidence.record(Access(f"{CORE_LAB}/{name}", f"{key}:rank{rank}", steps=len(found)))
    return found


def logged(name: str, key: str, *files: str) -> list[float]:
    """A key of the run logs of a recorded run, in the order of their lines."""
    if re.search(r"time|seconds|per_s", key):
        raise EvidenceError(f"{name}: {key} is a time of a processor")
    found = []
    for file in files or ("run.log",):
        text = _unpacked(evidence.read(RECORDED / name / f"{file}.xz"))
        found += [float(item) for item in re.findall(rf"'{re.escape(key)}': ([-\d.e]+)", text)]
    evidence.record(Access(f"{CORE_LAB}/{name}", key))
    return found


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
