"""Read stored runs, and write down every read.

`run("h200-miles/plain_s1234")` gives the stored summary of one run; published values of other
labs come from `figures.reported`. Each read is appended to the active `recording()`, so that the
tier, setup and strength of a figure are computed from what it really used. Reads that would make
a claim dishonest raise `EvidenceError`: a column known to be wrong, and a time of a run that
shared its GPU.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from figures.timekeys import (
    BY_METHOD,
    OF_LOG_LINES,
    holds_time,
    is_median,
    is_time,
    is_time_column,
)

ROOT = Path(__file__).resolve().parent.parent
STORE = PurePosixPath("capture/gpu")
CORE_LAB = "core-cpu"  # recordings of the OLMo-core trainer, see `corelab`

_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
# Flags that tell runs apart without changing what they do in a step.
_INCIDENTAL = re.compile(r"^--(seed|rollout-seed|num-rollout|sglang-router-port)\b")


class EvidenceError(Exception):
    """Evidence that is missing, broken, or may not be used for this claim."""


@dataclass(frozen=True, slots=True)
class Access:
    """One read: of which run, what, how many steps (None for a fact), and whether it is a time.

    log: it is of log lines with their own times, which `sources.log_distance` may use.
    """

    run: str
    what: str
    steps: int | None = None
    timing: bool = False
    tier: str = "measured"
    log: bool = False


_overlay: ContextVar[Mapping[str, bytes]] = ContextVar("overlay", default={})  # noqa: B039
_root: ContextVar[Path] = ContextVar("root", default=ROOT)
_recording: ContextVar[list[Access] | None] = ContextVar("recording", default=None)


@contextlib.contextmanager
def use_overlay(files: Mapping[str | Path, bytes]) -> Iterator[None]:
    """Inside the block, reads of these repository paths give these bytes instead of the file."""
    named = {}
    for path, data in files.items():
        path = Path(path)
        if path.is_absolute():
            path = path.relative_to(_root.get())
        named[path.as_posix()] = data
    token = _overlay.set({**_overlay.get(), **named})
    try:
        yield
    finally:
        _overlay.reset(token)


@contextlib.contextmanager
def use_root(path: Path) -> Iterator[None]:
    """Inside the block, evidence is read below `path` instead of this repository."""
    token = _root.set(Path(path))
    try:
        yield
    finally:
        _root.reset(token)


@contextlib.contextmanager
def recording() -> Iterator[list[Access]]:
    """Collect the reads made inside the block."""
    accesses: list[Access] = []
    token = _recording.set(accesses)
    try:
        yield accesses
    finally:
        _recording.reset(token)


def active_reads() -> tuple[Access, ...] | None:
    """The reads so far of the active recording; None when there is none."""
    accesses = _recording.get()
    return None if accesses is None else tuple(accesses)


def record(access: Access) -> None:
    """Append a read to the active recording, once."""
    accesses = _recording.get()
    if accesses is not None and access not in accesses:
        accesses.append(access)


def read(path: str | PurePosixPath) -> bytes:
    """The bytes of a repository file, or those that the overlay gives for it."""
    name = str(path)
    overlay = _overlay.get()
    if name in overlay:
        return overlay[name]
    try:
        return (_root.get() / name).read_bytes()
    except OSError as error:
        raise EvidenceError(f"{name}: {error.strerror or error}") from None


@lru_cache(maxsize=64)
def parse_json(name: str, data: bytes) -> Any:
    """JSON of a file called `name`, parsed once for the same bytes. Do not change the result."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise EvidenceError(f"{name}: not JSON: {error}") from None


@lru_cache(maxsize=64)
def parse_toml(name: str, data: bytes) -> dict[str, Any]:
    """TOML of a file called `name`, parsed once for the same bytes. Do not change the result."""
    try:
        return tomllib.loads(data.decode("utf-8"))
    except ValueError as error:
        raise EvidenceError(f"{name}: not TOML: {error}") from None


def number(item: Any) -> Any:
    """A stored cell as Python: 'nan', 'inf' and '-inf' become floats, the rest stays."""
    return _NON_FINITE.get(item, item) if isinstance(item, str) else item


def seconds_between(start: str, end: str) -> float:
    """Seconds from one stored time (ISO, `Z`) to another."""
    return (_moment(end) - _moment(start)).total_seconds()


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


class Run:
    """One stored run: `toml` (what was run) and the derived summary (what the log says)."""

    def __init__(self, run_id: str) -> None:
        lab, _, name = run_id.partition("/")
        if not lab or not name or "/" in name:
            raise EvidenceError(f"{run_id!r} is not of the form LAB/RUN")
        self.id = run_id
        self.lab = lab
        self.name = name
        self.folder = STORE / f"out-{lab}" / name
        toml_path, summary_path = self.folder / "run.toml", self.folder / "summary.json"
        self.toml = parse_toml(str(toml_path), read(toml_path))
        summary = parse_json(str(summary_path), read(summary_path))
        try:
            (self._summary,) = summary["runs"]
        except (KeyError, TypeError, ValueError):
            raise EvidenceError(f"{summary_path}: must hold exactly one run") from None

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    @property
    def setup(self) -> dict[str, Any]:
        """The setup fingerprint of run.toml."""
        return self.toml.get("setup", {})

    @property
    def seed(self) -> Any:
        """The value of --seed."""
        return self.toml.get("run", {}).get("seed")

    @property
    def shared(self) -> bool:
        """True when other work used the GPU; a run that does not say so counts as shared."""
        return bool(self.setup.get("shared", True))

    @property
    def on_gpu(self) -> bool:
        """True: a run of a lab had a GPU; `corelab.Recording` is of a processor."""
        return True

    @property
    def recompute(self) -> str:
        """The folder whose summary the kit computes again."""
        return str(self.folder)

    @property
    def clock_known(self) -> bool:
        """True when GPU clock samples of the run are stored."""
        return bool(self.setup.get("clock_record"))

    @property
    def index(self) -> list[int]:
        """Rollout numbers, one a step."""
        record(Access(self.id, "index"))
        return list(self._summary["rollouts"]["index"])

    def has_step(self, step: int) -> bool:
        """True when the run finished this training step; chooses runs, so it is no read."""
        return step in self._summary["steps"]["index"]

    def has_column(self, name: str) -> bool:
        """True when the log has the metric; reading it may still be refused."""
        return any(
            name in (self._summary.get(table) or {}).get("columns", {})
            for table in ("rollouts", "steps")
        )

    @property
    def changed(self) -> list[str]:
        """What the command changes in the lab's plain recipe, but for seeds, length and ports."""
        flags = self.toml.get("run", {}).get("changed", [])
        return [flag for flag in flags if not _INCIDENTAL.search(flag)]

    def setting(self, name: str) -> Any:
        """A flag of the command, without its dashes; raises when it was not given."""
        try:
            found = self.toml["settings"][name]
        except KeyError:
            raise EvidenceError(f"{self.folder}/run.toml: no setting {name!r}") from None
        record(Access(self.id, f"run.toml:settings.{name}"))
        return found

    def info(self, table: str, key: str, default: Any = None) -> Any:
        """An entry of run.toml, recorded as a read of this run."""
        record(Access(self.id, f"run.toml:{table}.{key}"))
        return self.toml.get(table, {}).get(key, default)

    def column(
        self,
        name: str,
        steps: Sequence[int] | None = None,
        *,
        missing: float | None = None,
    ) -> list[Any]:
        """The values of a metric at `steps` (default: every step), in step order.

        missing: what an absent cell means; without it an absent cell raises.
        Raises EvidenceError for a column marked unusable, a column or step that the log does
        not have, and a time column of a run that shared its GPU.
        """
        self._refuse_unusable(name)
        timing = self._refuse_time(name)
        index, cells = self._table(name)
        where = {step: position for position, step in enumerate(index)}
        wanted = index if steps is None else list(steps)
        found = []
        for step in wanted:
            cell = number(cells[where[step]]) if step in where else None
            if cell is None:
                if missing is None or step not in where:
                    raise EvidenceError(f"{self.folder}/summary.json: no {name} at step {step}")
                cell = missing
            found.append(cell)
        record(Access(self.id, name, steps=len(wanted), timing=timing))
        return found

    def median(self, name: str, steps: Sequence[int] | None = None) -> float:
        """Median of a column; over every step it must be the one that the summary stores."""
        computed = statistics.median(self.column(name, steps))
        if steps is None:
            stored = number(self._summary.get("medians", {}).get(name, {}).get("all"))
            if stored is not None and not math.isclose(stored, computed, rel_tol=1e-9):
                raise EvidenceError(
                    f"{self.folder}/summary.json: the stored median of {name} is {stored!r}, "
                    f"its column gives {computed!r}"
                )
        return computed

    def startup(self, fact: str, key: str) -> Any:
        """One start-up fact, for example startup('kv_cache', 'tokens')."""
        what = f"startup:{fact}.{key}"
        is_time = key in ("seconds", "time")
        if is_time and self.shared:
            raise EvidenceError(self._shared_message(what))
        try:
            found = number(self._summary["startup"][fact][key])
        except (KeyError, TypeError):
            raise EvidenceError(f"{self.folder}/summary.json: no {what}") from None
        record(Access(self.id, what, timing=is_time))
        return found

    def fact(self, *keys: str) -> Any:
        """Any other entry of the summary by its keys, for example fact('retries', 'total').

        Raises EvidenceError when it is missing, holds the numbers of a table (`column`, `median`
        and `startup` read those), is a median of an unusable column or, on a shared GPU, holds any
        duration or time.
        """
        what = ":".join(keys)
        for key in keys:
            self._refuse_unusable(key)
        found = self._entry(keys)
        if keys[0] in BY_METHOD and keys[1:] != ("index",) and not is_median(keys):
            raise EvidenceError(f"{self.folder}: {what} is read with {BY_METHOD[keys[0]]}")
        timing = any(is_time(key) for key in keys) or holds_time(found)
        if timing and self.shared:
            raise EvidenceError(self._shared_message(what))
        record(Access(self.id, what, timing=timing))
        return number(found)

    def log_fact(self, *keys: str) -> Any:
        """An entry that holds times of log lines, for `sources.log_distance`, GPU shared or not.

        Only what a log says about itself and its errors; raises EvidenceError for the rest.
        """
        what = ":".join(keys)
        if keys[0] not in OF_LOG_LINES:
            raise EvidenceError(f"{self.folder}: {what} holds more than times of log lines")
        found = self._entry(keys)
        record(Access(self.id, what, log=True))
        return number(found)

    def _entry(self, keys: Sequence[str]) -> Any:
        found: Any = self._summary
        for key in keys:
            try:
                found = found[key]
            except (KeyError, TypeError):
                raise EvidenceError(f"{self.folder}/summary.json: no {':'.join(keys)}") from None
        return found

    def clean_steps(self) -> int | None:
        """How many whole steps no heat-guard pause touched; None without a timing table."""
        marks = self._summary.get("timing", {}).get("step_clean")
        return None if marks is None else sum(mark is True for mark in marks)

    def _table(self, name: str) -> tuple[list[int], list[Any]]:
        for table in ("rollouts", "steps"):
            part = self._summary.get(table) or {}
            if name in part.get("columns", {}):
                return list(part["index"]), part["columns"][name]
        raise EvidenceError(f"{self.folder}/summary.json: no column {name!r}")

    def _refuse_unusable(self, name: str) -> None:
        for entry in self.toml.get("unusable", []):
            if entry.get("column") == name:
                raise EvidenceError(
                    f"{self.folder}/run.toml: column {name} may not be used: {entry.get('reason')}"
                )

    def _refuse_time(self, name: str) -> bool:
        timing = is_time_column(name)
        if timing and self.shared:
            raise EvidenceError(self._shared_message(name))
        return timing

    def _shared_message(self, what: str) -> str:
        return (
            f"{self.folder}/run.toml: the GPU was shared, so {what} is no timing result "
            "(setup.shared = true)"
        )


def run(run_id: str) -> Any:
    """The stored run or measurement 'LAB/NAME', or the recording 'core-cpu/NAME' of the trainer."""
    if run_id.startswith(f"{CORE_LAB}/"):
        from figures.corelab import Recording

        return Recording(run_id)
    from figures import corerecords

    return corerecords.Measurement(run_id) if corerecords.is_record(run_id) else Run(run_id)


def run_ids(lab: str) -> list[str]:
    """Ids of all runs that the lab stores, by name."""
    folder = _root.get() / STORE / f"out-{lab}"
    return [f"{lab}/{path.parent.name}" for path in sorted(folder.glob("*/run.toml"))]
