"""Typed events of a Miles log.

Every event starts with ``line`` (1-based number of the physical line, counted at newlines) and
``time`` (seconds since the epoch as a float, or None before the first timestamp of the log; a
line without a timestamp has the time of the line before it).  ``count`` is 1, or K for a line
that Ray printed once with ``[repeated Kx across cluster]``.
"""

from __future__ import annotations

from typing import NamedTuple

Seconds = float | None


class RunStart(NamedTuple):
    """A further run begins in the same file (the first run of a file has no such event).

    ``why``: marker, job, after-end (the run before had ended) or number-down (a step number fell).
    ``since_line``: the first line that belongs to the new run; below ``line`` when only a falling
    number shows, after its engine has started, that the run is new.
    """

    line: int
    time: Seconds
    why: str
    since_line: int


class Marker(NamedTuple):
    """A ``# ...`` line of a launcher or wrapper: name is run, date, command, end or note."""

    line: int
    time: Seconds
    name: str
    text: str
    status: int | None = None


class Begun(NamedTuple):
    """The first line with a timestamp of a run (``LogParser.begun``; feed does not return it)."""

    line: int
    time: float


class FaultTolerance(NamedTuple):
    """The run restarts dead engines: its command or arguments say so, or its monitor does."""

    line: int
    time: Seconds
    text: str


class EngineStart(NamedTuple):
    """The engine printed its server arguments (``what`` server_args) or Ray started (ray)."""

    line: int
    time: Seconds
    what: str


class EngineWeights(NamedTuple):
    """Weights are loaded: elapsed seconds, memory in GB as printed by the engine."""

    line: int
    time: Seconds
    seconds: float
    type: str
    avail_gb: float
    gb: float


class EngineKvCache(NamedTuple):
    """The KV cache is allocated; sizes in GB, ``kv_gb`` when only a combined size is printed."""

    line: int
    time: Seconds
    dtype: str
    tokens: int
    k_gb: float | None
    v_gb: float | None
    kv_gb: float | None = None


class EngineCapture(NamedTuple):
    """CUDA graph capture begins or ends (``phase``); seconds is None at the beginning."""

    line: int
    time: Seconds
    phase: str
    seconds: float | None


class EngineReady(NamedTuple):
    """The engine's server accepts requests."""

    line: int
    time: Seconds
    text: str


class EngineDecode(NamedTuple):
    """Decode batch line: running requests and generated tokens per second."""

    line: int
    time: Seconds
    running: int
    tokens_per_s: float


class EnginePrefill(NamedTuple):
    """Prefill batch line: new sequences and new tokens of the batch."""

    line: int
    time: Seconds
    sequences: int
    tokens: int


class Progress(NamedTuple):
    """A bar moved: download, shards, capture, generation.  ``done`` and ``total`` as printed.

    ``elapsed``: seconds since the bar began, None when it shows none.
    """

    line: int
    time: Seconds
    label: str
    done: float
    total: float
    elapsed: float | None = None


class Retry(NamedTuple):
    """One failed request (two printed lines joined).

    ``status``: HTTP status or None (no answer); ``attempt`` of ``limit`` or None when the second
    line is missing; ``code``: the router's error code, else the start of the body.
    """

    line: int
    time: Seconds
    status: int | None
    attempt: int | None
    limit: int | None
    code: str | None
    url: str | None
    count: int = 1


class RetriesExhausted(NamedTuple):
    """The client gave a request up after its last attempt."""

    line: int
    time: Seconds
    limit: int
    url: str | None
    count: int = 1


class TaskRaised(NamedTuple):
    """A rollout task ended in an exception.

    ``kind``: reward-import, reward-await, reward-type, request or other.
    """

    line: int
    time: Seconds
    kind: str
    exception: str
    text: str
    count: int = 1


class Rollout(NamedTuple):
    """``rollout N: {...}`` of the trainer."""

    line: int
    time: Seconds
    index: int
    metrics: dict


class Step(NamedTuple):
    """``step K: {...}`` (role actor) or ``critic-step K: {...}`` (role critic)."""

    line: int
    time: Seconds
    index: int
    metrics: dict
    role: str = "actor"


class Perf(NamedTuple):
    """``perf N: {...}``; side is rollout or trainer, told apart by the keys."""

    line: int
    time: Seconds
    index: int
    metrics: dict
    side: str


class Eval(NamedTuple):
    """``eval N: {...}``."""

    line: int
    time: Seconds
    index: int
    metrics: dict


class EvalSkipped(NamedTuple):
    """``eval N skipped: reason``."""

    line: int
    time: Seconds
    index: int
    reason: str


class MultiTurn(NamedTuple):
    """``multi_turn N: {...}``."""

    line: int
    time: Seconds
    index: int
    metrics: dict


class Timer(NamedTuple):
    """``Timer NAME end (elapsed: Xs)``; the printed precision is a tenth of a second."""

    line: int
    time: Seconds
    name: str
    seconds: float


class Save(NamedTuple):
    """A checkpoint was written."""

    line: int
    time: Seconds
    path: str


class Load(NamedTuple):
    """State was read: what is model, optimizer, scheduler, rng or data."""

    line: int
    time: Seconds
    what: str
    path: str


class LoadFailed(NamedTuple):
    """State was asked for and not read; ``skipped`` when there was nothing to read."""

    line: int
    time: Seconds
    what: str
    path: str
    reason: str
    skipped: bool


class ErrorLine(NamedTuple):
    """A line of :data:`errors_table.ROWS`; ``severity`` as documented there."""

    line: int
    time: Seconds
    kind: str
    severity: str
    text: str
    count: int = 1


class JobEnd(NamedTuple):
    """The run ended: how is finished, failed, time-limit or killed; by is marker or job."""

    line: int
    time: Seconds
    how: str
    status: int | None
    by: str


class CutLine(NamedTuple):
    """The log stops inside a line (reported by ``close`` only)."""

    line: int
    time: Seconds
    text: str


Event = tuple
