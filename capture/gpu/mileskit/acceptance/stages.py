"""The stages of the protocol, and the verdict on each from the files that a run left.

A verdict is `passed`, `failed` or `not-run`, always with a reason. It is judged anew from the
files each time, so a protocol that is started again knows what an earlier one did.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import NamedTuple

from mileskit.acceptance import enginekill, recordcheck
from mileskit.common import tomlio
from mileskit.guard import verdicts
from mileskit.host import doctor, doctor_checks
from mileskit.host.runspec import Spec
from mileskit.summary import pauses

PASSED, FAILED, NOT_RUN = "passed", "failed", "not-run"
DOCTOR, STEPS, DEATH, HEAT = "doctor", "steps", "engine-death", "heat-pause"
NAMES = (DOCTOR, STEPS, DEATH, HEAT)
EXPECTED_DEATH = "engine-dead"


class Stage(NamedTuple):
    """One stage. seconds: how long it took, None when that is not known. facts: what was seen."""

    name: str
    verdict: str
    reason: str
    seconds: float | None = None
    facts: dict = {}  # noqa: RUF012  (never changed)

    def row(self) -> dict:
        """The stage as acceptance.json holds it."""
        reason = recordcheck.one_line(self.reason)
        row = {"name": self.name, "verdict": self.verdict, "reason": reason}
        if self.seconds is not None:
            row["seconds"] = round(self.seconds, 1)
        return {**row, **self.facts}


def of_doctor(lines: list[doctor_checks.Line], seconds: float | None) -> Stage:
    """The host: failed by a failing line, not run when nothing could be looked at."""
    states = {line.name: line.state for line in lines}
    failing = [
        f"{line.name}: {line.found}" for line in lines if line.state == doctor_checks.FAILING
    ]
    counted = {"lines": doctor.counts(lines)}
    if doctor.exit_code(lines) == 3:
        return Stage(DOCTOR, NOT_RUN, "nothing could be looked at", seconds, counted)
    if failing:
        return Stage(DOCTOR, FAILED, "; ".join(failing), seconds, counted)
    warned = [name for name, state in states.items() if state == doctor_checks.WARNING]
    reason = f"warnings: {', '.join(warned)}" if warned else "no line is failing"
    return Stage(DOCTOR, PASSED, reason, seconds, counted)


def of_steps(spec: Spec, steps: int, why_not: str) -> Stage:
    """The guarded steps: passed when the run finished by itself with all of them.

    why_not: why no run was started, for the case that there is none.
    """
    document = record(spec)
    if document is None:
        return Stage(STEPS, NOT_RUN, why_not or "no run was started")
    seconds, ended = lasted(spec, document), document.get("ended", {})
    facts = {"run": spec.name, "steps": ended.get("steps", 0), "of": steps}
    facts["run_verdict"] = ended.get("verdict", "")
    whole = ended.get("how") == "finished" and ended.get("steps", 0) >= steps
    if whole and not ended.get("partial") and not ended.get("unguarded"):
        word = ended.get("verdict", "")
        warned = f", with the warning {word}" if word in verdicts.WARNINGS else ""
        return Stage(STEPS, PASSED, f"{ended['steps']} steps{warned}", seconds, facts)
    return Stage(STEPS, FAILED, end_in_words(document), seconds, facts)


def of_death(spec: Spec, why_not: str, stored: bool = False) -> Stage:
    """The provoked death: passed when the watchdog stopped the run and saw why.

    why_not: why no run was started, or why the engine in it could not be killed. stored: the
    record is one of `store`, which keeps no `by`: the watchdog's own line counts, and the verdict
    that the log gives.
    """
    document = record(spec)
    if document is None:
        return Stage(DEATH, NOT_RUN, why_not or "no run was started")
    seconds, ended = lasted(spec, document), document.get("ended", {})
    kill = enginekill.read(spec.file(enginekill.RECORD))
    facts = {"run": spec.name, "run_verdict": ended.get("verdict", ""), "expected": EXPECTED_DEATH}
    if kill is None:
        reason = why_not or f"the engine was not killed: {end_in_words(document)}"
        return Stage(DEATH, FAILED, reason, seconds, facts)
    facts["rollout"] = kill.rollout
    stopped, word = watchdog_stop(spec)
    if stopped is not None and stopped + 1 >= kill.at:  # else somebody set the clock back
        facts["seconds_to_stop"] = max(0.0, round(stopped - kill.at, 1))
    if ended.get("by") != "watchdog" and not (stored and word):
        reason = f"the watchdog did not stop the run: {end_in_words(document)}"
        return Stage(DEATH, FAILED, reason, seconds, facts)
    seen = word or ended.get("verdict", "")
    if stored and ended.get("verdict") != EXPECTED_DEATH:
        seen = str(ended.get("verdict"))
    facts["watchdog_verdict"] = seen
    if seen != EXPECTED_DEATH:
        reason = f"the watchdog stopped the run with the verdict {seen}, not {EXPECTED_DEATH}"
        return Stage(DEATH, FAILED, reason, seconds, facts)
    after = facts.get("seconds_to_stop")
    when = "" if after is None else f" {after:g} s after the kill"
    return Stage(DEATH, PASSED, f"stopped by the watchdog{when}, {seen}", seconds, facts)


def of_heat(specs: list[Spec], guarded: bool) -> Stage:
    """Pauses of the heat guard in the runs: none is forced, and none may stay open."""
    if not guarded:
        return Stage(HEAT, NOT_RUN, "the heat guard was left out")
    found: list[pauses.Pause] = []
    read = 0
    for spec in specs:
        path = spec.file("heat-guard.log")
        try:
            data = path.read_bytes()
        except OSError:
            continue
        try:
            found += pauses.read_pauses(data, path.name)
        except pauses.PauseLogError as error:
            return Stage(HEAT, FAILED, str(error))
        read += 1
    if not read:
        return Stage(HEAT, NOT_RUN, "no run had a heat guard yet")
    if not found:
        return Stage(HEAT, NOT_RUN, "no pause came, and none is forced")
    open_ = [pause for pause in found if pause.end is None]
    if open_:
        return Stage(HEAT, FAILED, f"{len(open_)} of {len(found)} pauses have no resume")
    total = sum(pause.end - pause.start for pause in found)
    facts = {"pauses": len(found), "longest_s": round(max(p.end - p.start for p in found), 1)}
    return Stage(HEAT, PASSED, f"{len(found)} pauses, each with its resume", total, facts)


# -- what a run left -------------------------------------------------------------------------------


def record(spec: Spec) -> dict | None:
    """The record of a run, None when there is none; a damaged one is an empty record."""
    path = spec.file("run.toml")
    if not path.exists():
        return {} if spec.file("log").exists() else None
    with contextlib.suppress(tomlio.TomlError, OSError):
        return tomlio.load(path)
    return {}


def end_in_words(document: dict) -> str:
    """How a run ended, for a reason."""
    ended = document.get("ended")
    if not ended:
        return "nobody recorded its end"
    who = {"watchdog": "stopped by the watchdog", "limit": "stopped at its time limit",
           "user": "stopped by its user"}  # fmt: skip
    how = who.get(ended.get("by", ""), str(ended.get("how", "unknown")))
    lost = ", without a guard" if ended.get("unguarded") else ""
    return f"{how} after {ended.get('steps', 0)} steps, verdict {ended.get('verdict')}{lost}"


def lasted(spec: Spec, document: dict) -> float | None:
    """Seconds from the launch to the last byte of the log."""
    launched = document.get("run", {}).get("launched")
    try:
        return max(0.0, spec.file("log").stat().st_mtime - launched.timestamp())
    except (OSError, AttributeError):
        return None


def watchdog_stop(spec: Spec) -> tuple[float | None, str]:
    """(Unix seconds, verdict) of the line in which the watchdog says that it stopped the run."""
    try:
        lines = spec.file("watchdog.log").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None, ""
    for line in reversed(lines):
        when, _, rest = line.partition(" ")
        head, _, tail = rest.partition(": ")
        word = tail.partition(":")[0]
        if head == spec.container and word in verdicts.STOPS and line.endswith("stopped the run"):
            return utc(when), word
    return None, ""


def utc(text: str) -> float | None:
    """Unix seconds of a time like 2026-11-29T13:27:19Z."""
    with contextlib.suppress(ValueError):
        moment = dt.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
        return moment.replace(tzinfo=dt.timezone.utc).timestamp()
    return None
