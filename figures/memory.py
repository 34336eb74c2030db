"""Sections 2.1 and 2.3: memory by model size, the rules against a log, and the memory kill."""

from __future__ import annotations

from typing import Any

from figures import evidence
from figures.loglines import kit, memory_lines
from figures.registry import Figure, figure
from figures.sources import measured, published
from figures.values import Value

H200 = "h200-miles/plain_s1234"
LOST = "lost"  # only the lost tables of the source held it
GB = 2**30


def _gb10(name: str, value_id: str, kind: str = "memory", **words: Any) -> Value:
    return published(name, "gb10", value_id, kind=kind, **words)


@figure("fig-2-1-memory")
def by_model_size() -> Figure:
    """The 16-byte estimate of each model that the GB10 lab ran, and what came of the run.

    The estimates are arithmetic; outcome and node memory are the published ones.
    """
    bytes_ = _gb10("bytes", "adam-bytes", kind="metric")
    node = _gb10("node", "node-gb")
    steps = _gb10("fit_steps", "fit-1-7b-steps", kind="count", unit="", noun="steps")
    full = [
        _gb10(f"steps_{n}", value_id, kind="count", unit="", noun="steps")
        for n, value_id in ((12, "plain-steps"), (48, "plain48-steps"))
    ]
    finished = f"finished {full[0].bare} and {full[1].bare} steps"
    kills = [_gb10(f"kill_{n}", f"kill-{n}-gb") for n in (1, 2)]
    ends = [_gb10("fit_gb", "limit-low-gb"), _gb10("killed_gb", "limit-high-gb")]
    whole = _gb10("memory", "gpu-memory")
    short = _gb10("short_limit", "short-answer-limit", kind="count")
    limit = _gb10("limit", "answer-limit", kind="count")
    longest = {name: value.text for name, value in (("full", limit), ("short", short))}
    outcomes = (
        ("params-0-6b", "Qwen3-0.6B", "full", "0.4", finished, LOST),
        ("params-1-7b", "Qwen3-1.7B", "short", "not stated", f"finished {steps.bare} steps", LOST),
        ("params-4b", "Qwen3-4B", "short", "0.4", "killed in its first step", kills[0].text),
        ("params-4b", "Qwen3-4B", "short", "0.2", "killed in its first step", kills[1].text),
    )
    rows = []
    for value_id, model, answers, fraction, outcome, at in outcomes:
        state = bytes_.low * _gb10("params", value_id, kind="metric").low * 1e9
        rows.append(
            {
                "model": model,
                "state": f"{state / 1e9:.1f} GB",
                "state_binary": f"{state / GB:.1f} GB",
                "share": f"{100 * state / GB / node.low:.0f} percent",
                "answers": longest[answers],
                "fraction": fraction,
                "outcome": outcome,
                "node": at,
            }
        )
    return Figure(
        shape="A table with one row for each reported run.",
        values=[*ends, *kills, node, steps, *full, whole, short, limit, bytes_],
        rows=rows,
        columns={
            "model": "Model",
            "state": f"{bytes_.bare} bytes a parameter, GB of 10^9",
            "state_binary": "the same, GB of 2^30",
            "share": f"share of the {node.text} of the node",
            "answers": "longest answer",
            "fraction": "engine share",
            "outcome": "outcome",
            "node": "node memory at the kill",
        },
    )


@figure("fig-2-1-rules")
def rules_against_the_log() -> Figure:
    """Each rule of the estimate beside what the log of our plain run says."""
    run = evidence.run(H200)
    model_size, plan = kit("mileskit.estimate.modelsize"), kit("mileskit.estimate.memoryplan")
    model = model_size.count(model_size.KNOWN[run.info("setup", "model")], "model")
    moments = memory_lines(run)
    loaded = [m for m in moments if m.when == "before offload model"][1:]
    left = [m for m in moments if m.when == "after offload model"][1:]
    kept = max(m.allocated for m in loaded) - min(m.allocated for m in left)
    peak = max(m.reserved - m.allocated for m in loaded)
    others = max(m.used - m.reserved for m in moments)
    weights, avail = (run.startup("weights_loaded", key) for key in ("gb", "avail_gb"))
    cache = run.startup("kv_cache", "k_gb") + run.startup("kv_cache", "v_gb")
    fraction = run.setting("sglang-mem-fraction-static")
    ask = plan.Ask(
        model,
        0.0,
        False,
        fraction,
        limit=run.setting("rollout-max-response-len"),
        micro_tokens=run.setting("max-tokens-per-gpu"),
    )
    served = [plan.SERVED * n / GB for n in (model.params, model.params + model.doubled)]
    state = plan.STATE * model.params / GB

    def gb(name: str, number: float, what: str) -> Value:
        return measured(name, number, "GB", 2, what=what, runs=[H200])

    parts = (
        (
            gb("weights", weights, "startup:weights_loaded.gb"),
            "engine weights",
            "2 bytes a parameter",
            served,
        ),
        (
            gb("cache", cache, "startup:kv_cache.k_gb+v_gb"),
            "KV cache",
            "share of the free memory, less the weights",
            [fraction * (avail + weights) - weights],
        ),
        (
            gb("state", kept, "memory lines:allocated, onload minus offload"),
            "trainer state",
            "16 bytes a parameter",
            [state],
        ),
        (
            gb("activations", peak, "memory lines:reserved minus allocated, maximum"),
            "activations",
            "layer inputs, and 2 to 14 bytes a logit",
            list(plan.activations(ask)),
        ),
        (
            gb("others", others, "memory lines:used minus reserved, maximum"),
            "everything else",
            "no rule",
            [],
        ),
    )
    per_parameter = measured(
        "per_parameter",
        kept * GB / model.params,
        "bytes",
        1,
        what="memory lines:allocated a parameter",
        runs=[H200],
        kind="metric",
    )
    rows = [
        {
            "part": part,
            "rule": rule,
            "estimate": " to ".join(f"{size:.2f}" for size in sizes) + " GB" if sizes else "none",
            "log": value.text,
        }
        for value, part, rule, sizes in parts
    ]
    return Figure(
        shape="A table with one row for each part of the memory.",
        values=[*(value for value, *_ in parts), per_parameter],
        rows=rows,
        columns={"part": "Part", "rule": "Rule", "estimate": "Estimate", "log": "Log"},
    )


_KILL_ROWS = (
    ("node memory in use", "used_1", "kill-1-gb", "used_2", "kill-2-gb"),
    ("node memory in all", "node", "node-gb", "node", "node-gb"),
    ("share, as Ray prints it", "share", "kill-1-share", "", ""),
    ("trainer process", "trainer_1", "kill-1-trainer-gb", "trainer_2", "kill-2-trainer-gb"),
    ("engine process", "engine", "kill-1-engine-gb", "", ""),
    ("rollout process", "rollout", "kill-1-rollout-gb", "", ""),
    ("time from the start", "minutes", "kill-1-minutes", "", ""),
)


@figure("fig-2-3-kills")
def kills() -> Figure:
    """Both reported kills, line by line; what the three listed processes leave is arithmetic."""
    values: dict[str, Value] = {}
    rows = []

    def cell(name: str, value_id: str) -> str:
        if not name:
            return "not printed"
        unit = "" if name == "share" else None
        values.setdefault(name, _gb10(name, value_id, kind="", unit=unit))
        return values[name].text

    for what, first, first_id, second, second_id in _KILL_ROWS:
        rows.append({"what": what, "a": cell(first, first_id), "b": cell(second, second_id)})
    listed = sum(values[name].low for name in ("trainer_1", "engine", "rollout"))
    rest = values["used_1"].low - listed
    rows.insert(6, {"what": "sum of these three", "a": f"{listed:.2f} GB", "b": "not printed"})
    rows.insert(7, {"what": "used and not of them", "a": f"{rest:.2f} GB", "b": "not printed"})
    kills_ = _gb10("kills", "kills", kind="count", unit="", noun="runs|times|kills")
    percent = _gb10("percent", "kill-1-percent", kind="share")
    workers = _gb10("workers", "kill-1-workers", kind="count", unit="", noun="workers")
    rows.append({"what": "the share in percent", "a": percent.text, "b": "not printed"})
    rows.append({"what": "workers killed", "a": workers.bare, "b": "not printed"})
    rows.append({"what": "runs that Ray stopped", "a": kills_.bare, "b": kills_.bare})
    return Figure(
        shape="A table of published values, one column for each killed run.",
        values=[*values.values(), percent, workers, kills_],
        rows=rows,
        columns={"what": "Qwen3-4B", "a": "engine share 0.4", "b": "engine share 0.2"},
    )
