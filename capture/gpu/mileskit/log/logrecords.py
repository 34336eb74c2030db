"""One message, without its prefixes, to one event.

Each function takes (line number, time, message) and returns an event, None when the message is
not of its shape, or NOTHING when it is known to hold nothing.  Sources: the log lines of Miles at
31f1ca961 and of SGLang 0.5.16, httpx' texts of HTTPStatusError, Ray's job client.
"""

from __future__ import annotations

import re

from mileskit.log.errors_table import task_kind
from mileskit.log.events import (
    EngineCapture,
    EngineDecode,
    EngineKvCache,
    EnginePrefill,
    EngineReady,
    EngineStart,
    EngineWeights,
    EvalSkipped,
    FaultTolerance,
    JobEnd,
    Load,
    LoadFailed,
    Marker,
    RetriesExhausted,
    Save,
    TaskRaised,
    Timer,
)
from mileskit.log.lineshape import clean_text, repeat_count, scaled

NOTHING = object()

_TIMER = re.compile(rb"Timer (.{1,80}?) end \(elapsed: ([\d.]+) ?s\)")
_WEIGHTS = re.compile(
    rb"Load weight end\. (?:elapsed=([\d.]+) s, )?type=(\w+),.{0,80}? ?avail mem=([\d.]+) GB"
    rb"(?:, mem usage=([\d.]+) GB)?"
)
_KV = re.compile(
    rb"KV Cache is allocated\. (?:dtype: ([\w.]+), )?#tokens: (\d+), "
    rb"(?:K size: ([\d.]+) GB, V size: ([\d.]+) GB|KV size: ([\d.]+) GB)"
)
_CAPTURE = re.compile(
    rb"Capture (?:[\w ]{0,40} )?(?:cuda|CUDA) graph (begin|end)"
    rb"(?:.{0,80}?(?:elapsed=|Time elapsed: )([\d.]+) s)?"
)
_SKIPPED = re.compile(rb"eval (\d+) skipped: (.*)", re.S)
_SAVED = re.compile(
    rb"(?:\[FSDP\] )?(?:Saved checkpoint to|successfully saved checkpoint.{0,40} to) +(\S+)"
)
_LOADED = re.compile(rb"\[FSDP\] Loaded (model|optimizer|LR scheduler|RNG state|rng) from (\S+)")
_DATA = re.compile(rb"load metadata from (\S+)")
_FAILED = re.compile(
    rb"\[FSDP\] Failed to load (model|optimizer|LR scheduler|rng)? ?from (.+?): (.*)"
)
_NO_TRACKER = re.compile(rb"\[FSDP\] No tracker file at (.+?); skipping load")
_TASK = re.compile(rb"\[rollout\] Task raised exception: ((?:\w+\.)*(\w+))?(.*)", re.S)
_EXHAUSTED = re.compile(rb"Max retries \((\d+)\) reached, failing\.\.\.(?: \(url=(.*)\))?")
_JOB = re.compile(rb"\s*Job '([^']{1,80})' (submitted successfully|succeeded|failed|was stopped)")

# A numbered dict: groups kind, number, dict text.
NUMBERED = re.compile(rb"(step|critic-step|rollout|perf|eval|multi_turn) (\d{1,12}): (\{.*)$", re.S)
_TOLERANT = re.compile(
    rb"--use[-_]fault[-_]tolerance(?![\w=\]-])"
    rb"|\buse_fault_tolerance['\"]?(?: ?\.{2,} ?| ?[=:] ?)[Tt]rue\b"
    rb"|\AHealth check failed for rollout engine .{0,300}?Killing actor"
)
# What a bar shows behind its counts: the time since it began, as tqdm writes it.
_ELAPSED = re.compile(rb"\[(?:(\d{1,6}):)?(\d{1,2}):(\d\d)[<,\]]")
_MARK_TIME = re.compile(rb"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?(Z)?")
_MARK_RC = re.compile(rb"\brc=(-?\d{1,6})\b")


def batch(line, at):
    """Maker and fields of a decode or prefill batch line whose message starts at ``at``.

    Read by position, not by pattern: there is one such line for every few generated tokens.
    """
    try:
        if line.startswith(b"Decode batch", at):
            a = line.index(b"#running-req: ", at) + 14
            b = line.index(b"(token/s): ", a) + 11
            running = int(line[a : line.index(b",", a)])
            end = line.find(b",", b)
            return EngineDecode._make, (running, float(line[b : end if end > 0 else len(line)]))
        if line.startswith(b"Prefill batch", at):
            a = line.index(b"#new-seq: ", at) + 10
            b = line.index(b"#new-token: ", a) + 12
            sequences = int(line[a : line.index(b",", a)])
            return EnginePrefill._make, (sequences, int(line[b : line.index(b",", b)]))
    except ValueError:
        pass
    return None


def batch_event(n, t, msg):
    got = batch(repeat_count(msg)[0], 0)
    return got[0]((n, t, *got[1])) if got else None


def preview(n, t, msg):
    """Lines that carry samples, and two frequent ones without an event."""
    known = (b"First rollout sample:", b"Finish rollout:", b"ft op=")
    if msg.startswith(known) or b"Memory-Usage" in msg[:40]:
        return NOTHING
    return None


def timer(n, t, msg):
    m = _TIMER.match(msg)
    if m:
        return Timer(n, t, clean_text(m[1], 80), float(m[2]))
    return NOTHING if msg.endswith(b" start") and len(msg) < 100 else None


def weights(n, t, msg):
    m = _WEIGHTS.match(msg)
    if not m:
        return None
    used = float(m[4]) if m[4] else 0.0
    return EngineWeights(n, t, float(m[1] or 0), m[2].decode(), float(m[3]), used)


def kv_cache(n, t, msg):
    m = _KV.match(msg)
    if not m:
        return None
    sizes = [float(x) if x else None for x in (m[3], m[4], m[5])]
    return EngineKvCache(n, t, (m[1] or b"").decode(), int(m[2]), *sizes)


def capture(n, t, msg):
    m = _CAPTURE.match(msg)
    if not m:
        return None
    return EngineCapture(n, t, m[1].decode(), float(m[2]) if m[2] else None)


def ready(n, t, msg):
    if b"fired up and ready" in msg[:80] or b"Uvicorn running on" in msg[:80]:
        return EngineReady(n, t, clean_text(msg, 120))
    return None


def server_args(n, t, msg):
    return EngineStart(n, t, "server_args") if msg.startswith(b"server_args=") else None


def eval_skipped(n, t, msg):
    m = _SKIPPED.match(msg)
    return EvalSkipped(n, t, int(m[1]), clean_text(m[2], 200)) if m else None


def checkpoint(n, t, msg):
    """Save, Load or LoadFailed of the FSDP checkpointer and of the data source."""
    if m := _SAVED.match(msg):
        return Save(n, t, clean_text(m[1], 300))
    if m := _LOADED.match(msg):
        what = {"LR scheduler": "scheduler", "RNG state": "rng"}.get(m[1].decode(), m[1].decode())
        return Load(n, t, what, clean_text(m[2], 300))
    if m := _DATA.match(msg):
        return Load(n, t, "data", clean_text(m[1], 300))
    if m := _NO_TRACKER.match(msg):
        return LoadFailed(n, t, "model", clean_text(m[1], 300), "no tracker file", True)
    if m := _FAILED.match(msg):
        what = (m[1] or b"checkpoint").decode()
        return LoadFailed(n, t, what, clean_text(m[2], 300), clean_text(m[3], 300), False)
    return None


def task_raised(n, t, msg):
    msg, count = repeat_count(msg)
    m = _TASK.match(msg)
    if not m:
        return None
    name = (m[2] or b"").decode()
    text = clean_text((m[1] or b"") + m[3], 300)
    return TaskRaised(n, t, task_kind(name, text), name, text, count)


def exhausted(n, t, msg):
    msg, count = repeat_count(msg)
    m = _EXHAUSTED.match(msg)
    if not m:
        return None
    return RetriesExhausted(n, t, int(m[1][:9]), clean_text(m[2], 200) if m[2] else None, count)


def bar(m):
    """Name, label, done, total and elapsed seconds of a matched bar (see lineshape.BAR)."""
    label = clean_text(m[1].rstrip(b"0123456789").rstrip(b" :"), 120) or "bar"
    counts = scaled(m[2], m[3]), scaled(m[4], m[5])
    return label.split("(", 1)[0], label, *counts, _elapsed(m)


def _elapsed(m):
    found = _ELAPSED.search(m.string, m.end(5), m.end())
    if found is None:
        return None
    return float(3600 * int(found[1] or 0) + 60 * int(found[2]) + int(found[3]))


def job(n, t, msg):
    """JobEnd, or EngineStart("job") for a submission, of Ray's job client."""
    m = _JOB.match(msg)
    if not m:
        return None
    what = m[2].decode()
    if what == "submitted successfully":
        return EngineStart(n, t, "job")
    how = {"succeeded": "finished", "failed": "failed"}.get(what, "killed")
    return JobEnd(n, t, how, 0 if how == "finished" else None, "job")


def how_by_status(status: int) -> str:
    """Word for an exit status: 124 is a time limit, 128+N (N to 64) and negative are signals."""
    if status == 0:
        return "finished"
    if status == 124:
        return "time-limit"
    return "killed" if status < 0 or 128 < status <= 192 else "failed"


def fault_tolerance(n, t, msg):
    m = _TOLERANT.search(msg)
    return FaultTolerance(n, t, clean_text(m[0], 120)) if m else None


def is_whole(marker: Marker) -> bool:
    """Whether a marker that no newline ends can be believed: an end with its status.

    Two digits below 26 are more likely a status of three that was cut.
    """
    return marker.status is not None and not 10 <= marker.status <= 25


def is_cut_head(msg: bytes) -> bool:
    """Whether a message ends inside the words that begin a metric line or a task's exception."""
    return msg in _CUT_HEADS or (len(msg) < 32 and _CUT_NUMBER.fullmatch(msg) is not None)


def marker(n, t, line, clock):
    """Marker of a ``# ...`` line; its own time where it has one (Z means UTC)."""
    body = line[2:].strip()
    m = _MARK_TIME.search(body, 0, 60)
    if m:
        own = clock.at(m[1], m[2])
        if own is not None:
            t = own + clock.offset if m[3] else own
    text = clean_text(body, 4000)
    word = text.split(" ", 1)[0].rstrip(":")
    rest = text[len(word) :].lstrip(": ")
    if word == "end":
        rc = _MARK_RC.search(body)
        return Marker(n, t, "end", rest, int(rc[1]) if rc else None)
    if word in ("run", "date", "command"):
        return Marker(n, t, word, rest)
    return Marker(n, t, "note", text)


_WORDS = (b"step", b"critic-step", b"rollout", b"perf", b"eval", b"multi_turn")
_CUT_HEADS = frozenset(
    word[:end]
    for word in (*_WORDS, b"[rollout] Task raised exception: ")
    for end in range(len(word) + 1)
)
_CUT_NUMBER = re.compile(rb"(?:" + b"|".join(_WORDS) + rb") (?:\d{1,12}:? ?)?")
# A file and line of a Miles record that end the line.
CUT_SOURCE = re.compile(rb"[\w.<>-]{1,80}(?::\d{0,6}(?: -? ?)?)?")

# First four bytes of a message -> functions to try.
BY_START = {
    b"Deco": batch_event,
    b"Pref": batch_event,
    b"Firs": preview,
    b"Fini": preview,
    b"[Ran": preview,
    b"ft o": preview,
    b"Time": timer,
    b"Load": weights,
    b"KV C": kv_cache,
    b"Capt": capture,
    b"The ": ready,
    b"INFO": ready,
    b"Uvic": ready,
    b"serv": server_args,
    b"[FSD": checkpoint,
    b"Save": checkpoint,
    b"succ": checkpoint,
    b"load": checkpoint,
    b"[rol": task_raised,
    b"Max ": exhausted,
    b"Job ": job,
}
