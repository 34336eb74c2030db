"""Section 2.4: the reported weight updates of two models, and each update of our plain run."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

from figures import evidence
from figures.loglines import kit, update_requests
from figures.memory import H200, LOST
from figures.registry import Figure, figure
from figures.sources import measured, published
from figures.style import Style
from figures.values import Value


def _gb10(name: str, value_id: str, kind: str = "time", **words: Any) -> Value:
    return published(name, "gb10", value_id, kind=kind, **words)


@figure("fig-2-4-gb10")
def gb10() -> Figure:
    """Update, offload and onload of two models, as far as the source still gives them."""
    small = {
        "update": _gb10("update_small", "update-0-6b"),
        "warm": _gb10("warm_small", "warm-offload-0-6b"),
        "offload": _gb10("offload_small", "offload-median"),
        "onload": _gb10("onload_small", "onload-median"),
        "step": _gb10("step_small", "plain48-median-step"),
    }
    large = {
        "update": _gb10("update_large", "update-1-7b"),
        "warm": _gb10("warm_large", "warm-offload-1-7b"),
    }
    ratios = {
        "update": _gb10("update_ratio", "update-ratio", kind="metric"),
        "model": _gb10("size_ratio", "size-ratio", kind="metric"),
    }
    shares = [
        _gb10("share", "update-share", kind="share"),
        # printed as the word half, which has no decimals to count
        dataclasses.replace(_gb10("share_48", "update-share-48", kind="share"), digits=1),
    ]
    second = _gb10("second", "update-under-second")
    steps = _gb10("steps_48", "plain48-steps", kind="count", unit="", noun="steps")
    short = _gb10("steps", "short-steps", kind="count", unit="", noun="steps")
    limit = _gb10("limit", "short-answer-limit", kind="count")
    reward = _gb10("reward", "short-reward", kind="metric", unit="")
    empty = dict.fromkeys(("update", "warm", "offload", "onload", "step"), LOST)
    rows = [
        {"model": "Qwen3-0.6B", **empty, **{k: v.text for k, v in small.items()}},
        {"model": "Qwen3-1.7B", **empty, **{k: v.text for k, v in large.items()}},
        {
            "model": f"ratio; {ratios['model'].bare} by size",
            **empty,
            "update": ratios["update"].bare,
            "warm": f"{large['warm'].low / small['warm'].low:.1f}",
        },
    ]
    return Figure(
        shape="A table with one row for each of two models, and one for their ratio.",
        values=[
            *small.values(),
            *large.values(),
            *ratios.values(),
            *shares,
            second,
            steps,
            short,
            limit,
            reward,
        ],
        rows=rows,
        columns={
            "model": "Model",
            "update": "Weight update",
            "warm": "Trainer offload, warm-up steps, at most",
            "offload": "Trainer offload, median",
            "onload": "Trainer onload, median",
            "step": "Whole step, median",
        },
    )


@figure("fig-2-4-h200")
def each_update() -> Figure:
    """Seconds of each weight update of our plain run, and its share of the step."""
    run = evidence.run(H200)
    steps = run.index
    update, whole = run.column("perf/update_weights_time"), run.column("perf/step_time")
    share = [100 * part / all_ for part, all_ in zip(update, whole, strict=True)]
    requests = update_requests(run)
    if len(set(requests)) != 1:
        raise evidence.EvidenceError(f"{H200}: weight updates with different requests: {requests}")
    model_size = kit("mileskit.estimate.modelsize")
    model = model_size.count(model_size.KNOWN[run.info("setup", "model")], "model")
    bucket = run.setting("update-weight-buffer-size")

    def value(name: str, number: Any, unit: str, digits: int, what: str, **words: Any) -> Value:
        return measured(name, number, unit, digits, what=what, runs=[H200], **words)

    column = "perf/update_weights_time"
    later = update[1:]
    values = [
        value("update", statistics.median(later), "s", 2, f"{column}:median:from step 1"),
        value("range", (min(later), max(later)), "s", 2, f"{column}:range:from step 1"),
        value("first", update[0], "s", 2, f"{column}:step 0"),
        value(
            "share",
            statistics.median(share[1:]),
            "percent",
            1,
            f"{column} over step_time:median:from step 1",
        ),
        value(
            "share_range",
            (min(share[1:]), max(share[1:])),
            "percent",
            1,
            f"{column} over step_time:range:from step 1",
        ),
        value(
            "requests",
            requests[0],
            "",
            0,
            "requests a weight update",
            kind="count",
            noun="requests",
        ),
        value(
            "updates",
            len(requests),
            "",
            0,
            "weight updates in the log",
            kind="count",
            noun="weight updates|updates",
        ),
        value(
            "buckets_fp32", 4 * model.params / bucket, "buckets", 3, "fp32 bytes over the bucket"
        ),
        value(
            "buckets_bf16", 2 * model.params / bucket, "buckets", 3, "bf16 bytes over the bucket"
        ),
    ]
    rows = [
        {"step": n, "update_s": a, "share_percent": round(b, 3)}
        for n, a, b in zip(steps, update, share, strict=True)
    ]

    def draw(style: Style) -> Any:
        made = style.canvas(3.6 if style.narrow else 3.2)
        top, low = made.subplots(2, 1, sharex=True)
        for ax, part, what in ((top, update, "seconds"), (low, share, "percent of the step")):
            style.plain(ax)
            ax.bar(steps, part, width=0.82, **style.bar("lifecycle"))
            ax.set_ylabel(what)
        low.set_xticks(steps[:: 5 if style.narrow else 2])
        low.set_xlim(steps[0] - 0.7, steps[-1] + 0.7)
        low.set_xlabel("step whose line logs it")
        made.align_ylabels()
        return made

    return Figure(
        shape=(
            f"Two rows of {len(steps)} bars: the seconds of each weight update, and the same as a "
            "share of the step time. The first share is the smallest, because step 0 is long."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )
