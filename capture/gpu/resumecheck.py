"""What a resume must show: in one log, and from the first log to the second (section 6.3).

Rules from outside: Miles of 2026-08-21, miles/backends/fsdp_utils/checkpoint.py: a checkpoint
folder `iter_0000020` continues with rollout 20; a failed load of the model is only logged and the
run starts over; the optimizer, the schedule and the prompt position are loaded apart; an optimizer
that is loaded brings its old learning rate.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import signals
from rangejudge import Finding
from runload import Loaded
from setupdiff import Facts

_FOLDER = re.compile(r"iter_(\d+)")
_DATA = re.compile(r"state_dict_(\d+)\.pt")
LR = "train/lr-pg_0"


class Part(NamedTuple):
    """One check of a resume: ok is None when the logs cannot show it."""

    name: str
    ok: bool | None
    text: str


def loaded_from(run: dict) -> int | None:
    """The rollout that the loaded checkpoint continues with; None without a loaded model."""
    for item in run.get("loads") or []:
        number = _FOLDER.search(item["path"] or "") if item["what"] == "model" else None
        if number:
            return int(number[1])
    return None


def anomalies(one: Loaded, mine: Facts) -> list[Finding]:
    """What is wrong with a resume, or with the step numbers, inside one log."""
    run = one.run
    found = []
    steps = signals.numbers(run)
    what = {item["what"] for item in run.get("loads") or []}
    failed = [item for item in run.get("loads_failed") or [] if not item.get("skipped")]
    for item in failed:
        words = f"{item['what']} was not loaded from {item['path']}: {item['reason']}"
        found.append(Finding("load-failed", "", _short(words)))
    start = loaded_from(run)
    first = steps[0] if steps else None
    if first is not None:
        if start is not None and first != start:
            text = f"the checkpoint continues with step {start}, the log with step {first}"
            found.append(Finding("resume-step", "", text))
        elif first > 0 and start is None and run.get("startup") and not failed:
            text = f"the run starts up and begins with step {first}, and no line says from what"
            found.append(Finding("begins-late", "", text))
        elif first == 0 and failed:
            text = "after the failed load the run started over at step 0"
            found.append(Finding("started-over", "", text))
    if "model" in what and "optimizer" not in what:
        found.append(Finding("no-optimizer", "", "the model was loaded and the optimizer was not"))
    found += _learning_rate(run, mine, "optimizer" in what)
    return found


def _short(text: str) -> str:
    return text if len(text) <= 160 else text[:157] + "..."


def _learning_rate(run: dict, mine: Facts, resumed: bool) -> list[Finding]:
    settings = mine.settings or {}
    asked, decay = settings.get("lr"), settings.get("lr-decay-style", "constant")
    rates = [v for v in signals.column(run, LR).values() if math.isfinite(v)]
    if not resumed or not rates or asked is None or decay != "constant":
        return []
    if settings.get("lr-warmup-iters") or settings.get("lr-warmup-fraction"):
        return []
    if math.isclose(rates[0], float(asked), rel_tol=1e-6):
        return []
    text = f"the learning rate is {rates[0]:g} and --lr says {asked:g}: the checkpoint's old one"
    return [Finding("old-learning-rate", "", text)]


def gaps(run: dict) -> list[int]:
    """Rollout numbers that are missing between the first and the last."""
    have = signals.numbers(run)
    return sorted(set(range(have[0], have[-1] + 1)) - set(have)) if have else []


def compare(first: Loaded, second: Loaded) -> list[Part]:
    """The restart test of two logs: the second run must continue the first."""
    one, two = first.run, second.run
    before, after = signals.numbers(one), signals.numbers(two)
    saves = [int(m[1]) for item in one.get("saves") or [] if (m := _FOLDER.search(item["path"]))]
    parts = []
    if saves:
        parts.append(Part("saved", True, f"the first log saved up to iter {max(saves)}"))
    else:
        parts.append(Part("saved", None, "no line of a saved checkpoint in the first log"))
    loads = two.get("loads") or []
    for what in ("model", "optimizer"):
        hit = next((item for item in loads if item["what"] == what), None)
        text = f"loaded from {hit['path']}" if hit else "no Loaded line: the run started fresh"
        parts.append(Part(f"{what} loaded", hit is not None, text))
    for what in ("scheduler", "data"):
        hit = next((item for item in loads if item["what"] == what), None)
        text = f"loaded from {hit['path']}" if hit else "no line about it"
        parts.append(Part(f"{what} loaded", True if hit else None, text))
    failed = [item for item in two.get("loads_failed") or [] if not item.get("skipped")]
    if failed:
        words = _short("; ".join(f"{i['what']}: {i['reason']}" for i in failed))
        parts.append(Part("no failed load", False, words))
    parts.append(_first_step(before, after, saves, loaded_from(two)))
    parts.append(_data(two, after))
    parts.append(_rate(one, two))
    parts.append(_gap(one, two, after))
    return parts


def _first_step(before, after, saves, start) -> Part:
    name = "first step"
    if not after:
        return Part(name, False, "the second log has no step")
    if not before and not saves and start is None:
        return Part(name, None, "the first log has no step and no save")
    wanted = start if start is not None else max(saves) if saves else before[-1] + 1
    text = f"the second log begins with step {after[0]}, and must begin with step {wanted}"
    if after[0] != wanted:
        return Part(name, False, text)
    if start is not None and saves and start not in saves:
        return Part(name, False, f"step {start} was loaded, and the first log did not save it")
    if start is not None and saves and start != max(saves):
        text = f"continues with step {start}, not with the newest saved one, {max(saves)}"
        return Part(name, False, text)
    lost = [n for n in before if n >= wanted]
    text = f"step {after[0]}, as saved"
    if lost:
        text += f"; {signals.steps_text(lost)} of the first log ran again"
    return Part(name, True, text)


def _data(two: dict, after: list[int]) -> Part:
    name = "prompt position"
    hit = [m for i in two.get("loads") or [] if (m := _DATA.search(i["path"] or ""))]
    if not hit or not after:
        return Part(name, None, "no line of a loaded prompt position")
    number = int(hit[-1][1])
    ok = number + 1 == after[0]
    return Part(name, ok, f"of rollout {number}, and the second log begins with {after[0]}")


def _rate(one: dict, two: dict) -> Part:
    a, b = signals.column(one, LR), signals.column(two, LR)
    if not a or not b:
        return Part("learning rate", None, f"no {LR} in one of the logs")
    x, y = a[max(a)], b[min(b)]
    same = math.isclose(x, y, rel_tol=1e-6)
    text = f"{x:g} at the end of the first log, {y:g} at the start of the second"
    return Part("learning rate", True if same else None, text)


def _gap(one: dict, two: dict, after: list[int]) -> Part:
    """The gap of the second run's first steps against the first run's range."""
    name = "gap"
    a, b = signals.column(one, signals.GAP), signals.column(two, signals.GAP)
    old = [v for v in a.values() if math.isfinite(v)]
    new = [b[n] for n in after[:5] if n in b]
    if not old or not new:
        return Part(name, None, "no gap in one of the logs")
    low, high = min(old), max(old)
    slack = max(high - low, 0.25 * high)
    text = f"{min(new):.4g} to {max(new):.4g} after the load, {low:.4g} to {high:.4g} before"
    ok = all(math.isfinite(v) and low - slack <= v <= high + slack for v in new)
    if not ok:
        text += ": the engine did not get the loaded weights, or the load is not what it seems"
    return Part(name, ok, text)
