"""Start-up, setup, command, differences, times and remarks of a report."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from mileskit.judge import clockcheck, signals
from mileskit.judge.clockcheck import seconds_of
from mileskit.judge.setupdiff import Difference
from mileskit.report.reportcharts import View
from mileskit.report.reporthtml import card, cards, facts, items, note, notes, table, text
from mileskit.report.reportparts import masked, seconds, stamp

_MOST_STEPS = 400


def startup(views: Sequence[View]) -> str:
    """What the engine said at its start, one card a run."""
    return cards([card(v.name if len(views) > 1 else "Engine", _startup(v)) for v in views])


def _startup(view: View) -> str:
    found = view.run.get("startup") or {}
    first = seconds_of(view.run.get("first_time"))

    def after(part: dict) -> str:
        when = seconds_of(part.get("time"))
        return (
            ""
            if when is None or first is None
            else f", {seconds(when - first)} after the first line"
        )

    rows = []
    weights = found.get("weights_loaded")
    if weights:
        rows.append(
            (
                "weights",
                _join(
                    _gb(weights.get("gb")),
                    weights.get("type"),
                    f"in {seconds(weights.get('seconds'))}",
                )
                + after(weights),
            )
        )
        rows.append(("free after them", _gb(weights.get("avail_gb"))))
    cache = found.get("kv_cache")
    if cache:
        size = _gb(cache.get("kv_gb"))
        if cache.get("k_gb") is not None:
            size = f"keys {cache['k_gb']:g} GB, values {cache['v_gb']:g} GB"
        tokens = f"{cache['tokens']:,} tokens" if cache.get("tokens") is not None else ""
        rows.append(("KV cache", _join(tokens, size, cache.get("dtype"))))
    graph = found.get("cuda_graph")
    if graph:
        rows.append(("CUDA graphs", f"captured in {seconds(graph.get('seconds'))}"))
    if found.get("ready"):
        rows.append(("engine ready", stamp(found["ready"].get("time")) + after(found["ready"])))
    steps = view.run["steps"]["columns"].get("time/step_line") or []
    done = seconds_of(steps[0]) if steps else None
    if done is not None and first is not None:
        rows.append(
            (
                f"step {view.run['steps']['index'][0]} done",
                f"{seconds(done - first)} after the first line",
            )
        )
    if view.shared:
        rows.append(("times", "GPU shared with other work: no timing result"))
    return facts(rows) or note("no start-up line of an engine in this log")


def _gb(value) -> str:
    return "" if value is None else f"{value:g} GB"


def _join(*parts) -> str:
    return ", ".join(str(p) for p in parts if p)


_APART = ("versions", "not_stock", "shared_with")


def setup(views: Sequence[View]) -> str:
    """Fingerprint, versions and the exact command of each run."""
    parts = [card(v.name if len(views) > 1 else "Setup and command", _setup(v)) for v in views]
    return cards(parts) if len(parts) > 1 else "".join(parts)


def _setup(view: View) -> str:
    one, fields = view.input.loaded, view.facts.setup
    rows = [(k.replace("_", " "), _value(v)) for k, v in fields.items() if k not in _APART]
    rows += [
        ("versions", ", ".join(f"{k} {v}" for k, v in (fields.get("versions") or {}).items())),
        ("shared with", _join(*(fields.get("shared_with") or []))),
        ("log", f"SHA-256 {one.sha256}" if one.sha256 else ""),
        ("read from", one.source),
    ]
    body = facts((name, masked(value)) for name, value in rows if value != "")
    if not fields:
        body += note("setup not stated: no run.toml, and no lines of the kit in the log")
    if fields.get("not_stock"):
        body += '<p class="sub">Not stock</p>' + items(map(masked, fields["not_stock"]))
    said = ((one.toml or {}).get("run") or {}).get("command")
    said = said or (one.run.get("markers") or {}).get("command")
    if not said:
        return body + note("command not in the log and not in a run.toml")
    return body + f'<p class="sub">Command</p><pre>{text(masked(said))}</pre>'


def _value(value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)


def differing(views: Sequence[View], pairs: Sequence[list[Difference] | None]) -> str:
    """What differs between the first run and each other one; "" for one run."""
    parts = []
    for view, found in zip(views[1:], pairs, strict=True):
        if found is None:
            body = note("not known: a run has no run.toml and no command in its log")
        elif not found:
            body = note("nothing that is recorded")
        else:
            rows = [(d.name, f"{masked(d.a)} / {masked(d.b)} ({d.kind})") for d in found]
            body = note("value of the first run / of the second (kind of difference)") + facts(rows)
        parts.append(card(f"{views[0].name} / {view.name}", body))
    return cards(parts) if parts else ""


def medians(views: Sequence[View]) -> str:
    """Medians of the times over all and over the clean steps, one card a run."""
    return cards([card(v.name if len(views) > 1 else "Medians", _medians(v)) for v in views])


_TIMES = (
    ("perf/step_time", "whole step"), ("perf/rollout_time", "rollout"),
    ("perf/train_time", "training"), ("perf/log_probs_time", "log-probabilities"),
    ("perf/ref_log_probs_time", "reference log-probabilities"),
    ("perf/actor_train_time", "actor update"), ("perf/update_weights_time", "weight update"),
    ("perf/sleep_time", "offload"), ("perf/wake_up_time", "onload"),
)  # fmt: skip


def _medians(view: View) -> str:
    rows = []
    left_out = clockcheck.first_step(view.run)
    steps = {s.step: s for s in view.timing.steps if s.step != left_out}
    for column, words in _TIMES:
        if column in view.unusable:
            continue
        cells = {n: v for n, v in signals.column(view.run, column).items() if math.isfinite(v)}
        part = "rollout" if column == "perf/rollout_time" else "step"
        every = [v for n, v in cells.items() if n != left_out]
        clean = [
            v for n, v in cells.items()
            if n in steps and getattr(steps[n], f"{part}_clean") and not steps[n].stuck
        ]  # fmt: skip
        if every:
            rows.append((words, _median(every), _median(clean)))
    if not rows:
        return note("no times in this log")
    badge = [*view.timing.badge]
    if left_out is not None:
        badge.append(f"without step {left_out}, which holds work of the start")
    return notes(badge) + table(("", "all steps (how many)", "clean steps"), rows)


def _median(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} s ({len(values)})" if values else ""


_STEP = (
    "step",
    "whole, s",
    "rollout, s",
    "paused, s",
    "since pause, s",
    "SM MHz",
    "°C",
    "clean",
)


def step_table(views: Sequence[View]) -> str:
    """Timing validity of every step, folded away."""
    parts = []
    for view in views:
        steps = view.timing.steps
        if not steps:
            continue
        rows = [
            (s.step, *(_plain(v) for v in (s.step_s, s.rollout_s, s.pause_s, s.since_pause_s)),
             _plain(s.clock_mhz, 0), _plain(s.temp_c, 0), _clean(s))
            for s in steps[:_MOST_STEPS]
        ]  # fmt: skip
        more = note(f"{len(steps) - _MOST_STEPS} more steps") if len(steps) > _MOST_STEPS else ""
        findings = notes(f.text for f in view.timing.findings)
        parts.append(
            f"<details><summary>Timing of every step, {text(view.name)}</summary>"
            f"{notes(view.timing.badge)}{findings}{table(_STEP, rows)}{more}</details>"
        )
    return "".join(parts)


def _plain(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{signals.float_of(value):.{digits}f}"


def _clean(step) -> str:
    word = {True: "yes", False: "no", None: "unknown"}[step.step_clean]
    return word + (", stuck clock" if step.stuck else "")


def remarks(views: Sequence[View]) -> str:
    """Unusable columns, masks of the stored run, and notes about the input."""
    parts = []
    for view in views:
        one = view.input.loaded
        toml = one.toml or {}
        rows = [f"{name}: not drawn here. {reason}" for name, reason in view.unusable.items()]
        rows += [
            f"masked: {m.get('what')}, now {m.get('replacement')} (by {m.get('by')})"
            for m in toml.get("masked") or []
        ]
        rows += one.notes
        said = (toml.get("run") or {}).get("note")
        rows += [f"note of the run: {said}"] if said else []
        if one.run.get("not_listed"):
            rows.append(f"entries beyond the first 1,000 of a list: {one.run['not_listed']}")
        if rows:
            body = items(map(masked, rows))
            parts.append(card(view.name if len(views) > 1 else "Remarks", body))
    return cards(parts) if len(parts) > 1 else "".join(parts)
