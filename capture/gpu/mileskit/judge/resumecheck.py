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

from mileskit.judge import healthdrift, healthrules, setupdiff, signals
from mileskit.judge.rangejudge import LATE, Finding
from mileskit.judge.runload import Loaded
from mileskit.judge.setupdiff import Facts

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
    position = prompt_position(run)
    if position is not None and first is not None and position + 1 != first:
        text = f"the prompt position is that of rollout {position}, the log begins with {first}"
        found.append(Finding("prompt-position", "", text))
    found += _learning_rate(run, mine, "optimizer" in what)
    return found


def load_notes(run: dict, mine: Facts) -> list[str]:
    """Says that --load was given and that no line tells of a load."""
    where = (mine.settings or {}).get("load")
    if not where or run.get("loads") or not run.get("startup"):
        return []
    skipped = [item for item in run.get("loads_failed") or [] if item.get("skipped")]
    if run.get("loads_failed") and not skipped:
        return []  # a finding says so
    why = f": {skipped[0]['reason']}" if skipped else ", and no line says why"
    return [_short(f"--load {where} was given and nothing was loaded{why}")]


def prompt_position(run: dict) -> int | None:
    """The rollout whose prompt position was loaded; None without such a line."""
    hits = [m for i in run.get("loads") or [] if (m := _DATA.search(i["path"] or ""))]
    return int(hits[-1][1]) if hits else None


def _short(text: str) -> str:
    return text if len(text) <= 160 else text[:157] + "..."


def _learning_rate(run: dict, mine: Facts, resumed: bool) -> list[Finding]:
    settings = mine.settings or {}
    asked = settings.get("lr")
    rates = [v for v in signals.column(run, LR).values() if math.isfinite(v)]
    if not resumed or not rates or asked is None or _scheduled(settings):
        return []
    if math.isclose(rates[0], float(asked), rel_tol=1e-6):
        return []
    text = f"the learning rate is {rates[0]:g} and --lr says {asked:g}: the checkpoint's old one"
    return [Finding("old-learning-rate", "", text)]


def _scheduled(settings: dict) -> bool:
    """Whether the flags make the learning rate move."""
    return bool(
        settings.get("lr-decay-style", "constant") != "constant"
        or settings.get("lr-warmup-iters")
        or settings.get("lr-warmup-fraction")
    )


def gaps(run: dict) -> list[int]:
    """Rollout numbers that are missing between the first and the last."""
    have = signals.numbers(run)
    return sorted(set(range(have[0], have[-1] + 1)) - set(have)) if have else []


def compare(
    first: Loaded, second: Loaded, mine: Facts, theirs: Facts, floor: float | None = None
) -> list[Part]:
    """The restart test of two logs: the second run must continue the first.

    mine, theirs: the setups of the two; floor: the binomial floor of one step's reward.
    """
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
    parts.append(_settings(mine, theirs))
    parts.append(_rate(one, two, after, theirs))
    ends = [_ends(one, two, after, name) for name in (signals.GAP, signals.REWARD, signals.LENGTH)]
    return [*parts, _gap(*ends[0]), _reward(*ends[1], floor), _length(*ends[2])]


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
    name, number = "prompt position", prompt_position(two)
    if number is None or not after:
        return Part(name, None, "no line of a loaded prompt position")
    ok = number + 1 == after[0]
    return Part(name, ok, f"of rollout {number}, and the second log begins with {after[0]}")


def _settings(mine: Facts, theirs: Facts) -> Part:
    """A resume keeps every flag that can change a sample or an update."""
    name = "settings"
    found = setupdiff.differences(mine, theirs)
    if found is None:
        return Part(name, None, "the flags of one log are unknown")
    real = [d for d in found if d.kind == "seed" or d in setupdiff.metric_differences(found)]
    if not real:
        return Part(name, True, "equal but for what changes no sample and no update")
    return Part(name, False, f"differ (first / second): {'; '.join(str(d) for d in real)}")


def _rate(one: dict, two: dict, after: list[int], theirs: Facts) -> Part:
    """Equal rates, or a schedule that moves them."""
    name = "learning rate"
    a, b = _before(signals.column(one, LR), after), signals.column(two, LR)
    if not a or not b:
        return Part(name, None, f"no {LR} in one of the logs")
    x, y = a[max(a)], b[min(b)]
    text = f"{x:g} at the end of the first log, {y:g} at the start of the second"
    if math.isclose(x, y, rel_tol=1e-6):
        return Part(name, True, text)
    if theirs.settings is None:
        return Part(name, None, f"{text}; the flags are unknown")
    if _scheduled(theirs.settings):
        return Part(name, None, f"{text}; a schedule moves it")
    return Part(name, False, f"{text}, and no schedule in the flags moves it")


def _before(series: dict, after: list[int]) -> dict:
    """The steps before the second log's first one; all of them when there is none."""
    kept = {n: v for n, v in series.items() if not after or n < after[0]}
    return kept or series


def _ends(one: dict, two: dict, after: list[int], column: str) -> tuple[list, list, list]:
    """The last five values before the load, the first five after it, and all before it; finite
    ones, but for the values after the load."""
    a, b = _before(signals.column(one, column), after), signals.column(two, column)
    _, old = healthrules.finite(a)
    return old[-LATE:], [b[n] for n in sorted(b)][:LATE], old


def _told(old: list, new: list, digits: str) -> str:
    return (
        f"{min(new):{digits}} to {max(new):{digits}} after the load,"
        f" {min(old):{digits}} to {max(old):{digits}} in the last {len(old)} before"
    )


def _none(name: str, new: list) -> Part:
    words = "in the first log" if new else "in the second log"
    return Part(name, None, f"no {name} {words}")


def _gap(old: list, new: list, every: list) -> Part:
    """Only a higher gap is wrong: while a run learns its gap falls, in the second log as well."""
    name = "gap"
    if not old or not new:
        return _none(name, new)
    low, high = min(old), max(old)
    slack = max(high - low, 0.25 * high)
    text = _told(old, new, ".4g")
    if any(not math.isfinite(v) for v in new) or _above(new, high, slack):
        return Part(name, False, f"{text}: the engine did not get the loaded weights, or the load"
                    " is not what it seems")  # fmt: skip
    if healthdrift.mean(new) < low - slack:
        return Part(name, None, f"{text}: lower, which a learning run does and a wrong load may")
    return Part(name, True, text)


def _above(new: list, high: float, slack: float) -> bool:
    """The mean above by more than the slack, or one step by more than twice that."""
    return healthdrift.mean(new) > high + slack or max(new) > high + 2 * slack


def _reward(old: list, new: list, every: list, floor: float | None) -> Part:
    """A reward that falls at the load by more than the noise of such a mean allows."""
    name = "reward"
    if not old or not new:
        return _none(name, new)
    text = _told(old, new, ".3f")
    if any(not math.isfinite(v) for v in new):
        return Part(name, False, text)
    sigma = max(healthdrift.noise(every), floor or 0.0)
    spread = sigma * math.sqrt(1 / len(old) + 1 / len(new))
    if not spread:
        return Part(name, None, f"{text}; the noise of a step is unknown")
    move = (healthdrift.mean(new) - healthdrift.mean(old)) / spread
    if move < -healthrules.SIGMAS:
        return Part(name, False, f"{text}: it fell at the load by {-move:.1f} times its noise")
    if move > healthrules.SIGMAS:
        return Part(name, None, f"{text}: it rose at the load by {move:.1f} times its noise")
    return Part(name, True, text)


def _length(old: list, new: list, every: list) -> Part:
    """An answer length that jumps at the load, either way."""
    name = "answer length"
    if not old or not new:
        return _none(name, new)
    low, high = min(old), max(old)
    slack = max(high - low, 0.25 * high)
    text = _told(old, new, ".1f")
    if any(not math.isfinite(v) for v in new) or _above(new, high, slack):
        return Part(name, False, f"{text}: it jumped at the load")
    if healthdrift.mean(new) < low - slack:
        return Part(name, False, f"{text}: it fell at the load")
    return Part(name, True, text)
