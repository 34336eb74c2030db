"""What a decision rests on, as data and as lines to read."""

from __future__ import annotations

from collections import Counter

from mileskit.guard.rules import Decision, Guard
from mileskit.guard.verdicts import ABOUT, FINE
from mileskit.log.events import (
    EngineDecode,
    EngineKvCache,
    EnginePrefill,
    EngineWeights,
    ErrorLine,
    Eval,
    JobEnd,
    Perf,
    Progress,
    Retry,
    Rollout,
    Save,
    Step,
    TaskRaised,
    Timer,
)
from mileskit.summary.pauses import iso

_NAMES = {
    Step: "step",
    Rollout: "rollout",
    Eval: "eval",
}


def describe(event: tuple | None) -> str:
    """A few words for an event."""
    kind = type(event)
    if event is None:
        return "none"
    if kind in _NAMES:
        return f"{_NAMES[kind]} {event.index}"
    if kind is Perf:
        return f"perf {event.index} ({event.side})"
    if kind is EngineDecode:
        return f"decode, {event.tokens_per_s:g} tokens/s"
    if kind is EnginePrefill:
        return f"prefill, {event.tokens} tokens"
    if kind is Progress:
        return f"{event.label} {event.done:g}/{event.total:g}"
    if kind is Timer:
        return f"{event.name} took {event.seconds:g} s"
    if kind is EngineWeights:
        return "engine weights loaded"
    if kind is EngineKvCache:
        return f"engine cache of {event.tokens} tokens allocated"
    if kind is JobEnd:
        status = "" if event.status is None else f", status {event.status}"
        return f"the job ended ({event.how}{status})"
    if kind is Save:
        return f"saved {event.path}"
    if kind is Retry:
        return f"failed request, {status_word(event.status)}"
    if kind in (ErrorLine, TaskRaised):
        return event.text
    return getattr(event, "text", "") or kind.__name__


def status_word(status: int | None) -> str:
    return "no answer" if status is None else f"HTTP {status}"


def place(event: tuple | None) -> dict | None:
    """Line, time and words of an event; None for none."""
    if event is None:
        return None
    when = None if event.time is None else iso(event.time)
    return {"line": event.line, "time": when, "text": describe(event)[:300]}


def evidence(guard: Guard, decision: Decision) -> dict:
    """Everything that a decision rests on, ready for JSON."""
    out = guard.outage
    stall, ceiling = guard.deadlines.allowed()
    statuses = Counter({status_word(s): n for s, n in out.statuses.items()})
    found = {
        "verdict": decision.verdict,
        "about": ABOUT[decision.verdict],
        "stop": decision.stop,
        "why": decision.why,
        "root": place(decision.root),
        "last_progress": place(guard.deadlines.last),
        "phase": guard.deadlines.phase,
        "steps": guard.training.steps,
        "run": guard.runs,
        "failed_requests": {
            "total": out.total,
            "since_progress": dict(sorted(statuses.items())),
            "in_window": decision.failed,
            "bad_checks": out.streak,
            "first": place(out.first),
            "last": place(out.last),
            "deepest_attempt": None if out.deepest is None else list(out.deepest),
            "given_up": guard.exhausted,
        },
        "allowed_s": {"stall": stall, "ceiling": ceiling},
        "paused_s": round(guard.paused, 3),
        "fault_tolerance": guard.fatals.fault_tolerance,
        "warnings": dict(decision.warnings),
    }
    if decision.missed is not None:
        found["deadline"] = decision.missed._asdict()
    return found


def _line(title: str, spot: dict | None) -> list[str]:
    if spot is None:
        return []
    when = f", {spot['time']}" if spot["time"] else ""
    return [f"  {title}: line {spot['line']}{when}: {spot['text']}"]


def lines(found: dict) -> list[str]:
    """The evidence as indented lines, the most telling first."""
    failed = found["failed_requests"]
    text = _line("end" if found["verdict"] in FINE else "root cause", found["root"])
    text += _line("last progress", found["last_progress"]) or ["  last progress: none"]
    if failed["since_progress"]:
        mix = ", ".join(f"{n} x {word}" for word, n in failed["since_progress"].items())
        deep = failed["deepest_attempt"]
        depth = f"; deepest attempt {deep[0]} of {deep[1]}" if deep else ""
        text.append(f"  failed requests since then: {mix}{depth}")
    for word, why in found["warnings"].items():
        text.append(f"  warning {word}: {why}")
    for name in ("memory", "gpu"):
        if found.get(name):
            text.append(f"  {name}: {found[name]}")
    return text
