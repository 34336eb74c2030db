"""Section 1.1: how long one GRPO step takes, and what the engine loads at the start."""

from __future__ import annotations

from typing import Any

from figures import evidence
from figures.registry import Figure, figure
from figures.sources import measured, published
from figures.style import Style
from figures.values import Value

H200 = "h200-miles/plain_s1234"

_ROLLOUT = "rollout: the engine writes answers"
_TRAINING = "training: log-probabilities and update"
_REST = "rest: weight update, moving memory"


@figure("fig-1-1-gb10")
def gb10() -> Figure:
    """The published step times of two GB10 runs, each as its own bar."""
    steps = published("steps", "gb10", "plain-steps", kind="count", unit="")
    times = [
        published(name, "gb10", value_id, kind="time")
        for name, value_id in (
            ("first", "plain-first-step"),
            ("median", "plain-median-step"),
            ("rollout", "plain-rollout"),
            ("train", "plain-train"),
            ("logprob", "plain-logprob"),
            ("update", "plain-update"),
        )
    ]
    steps48 = published("steps48", "gb10", "plain48-steps", kind="count", unit="")
    times48 = [
        published("median48", "gb10", "plain48-median-step", kind="time"),
        published("rollout48", "gb10", "plain48-median-rollout", kind="time"),
    ]
    duration = published("duration_min", "gb10", "plain-duration", kind="time")
    labels = {
        "first": ("first step", "outside"),
        "median": ("median step", "outside"),
        "rollout": ("typical rollout", "engine"),
        "train": ("typical training", "trainer"),
        "logprob": ("of it: log-probabilities", "trainer"),
        "update": ("typical weight update", "lifecycle"),
        "median48": ("median step", "outside"),
        "rollout48": ("median rollout", "engine"),
    }
    groups = [(f"Run of {steps.bare} steps", times), (f"Run of {steps48.bare} steps", times48)]
    rows = [
        {"run": run, "what": labels[v.name][0], "seconds": v.number, "published": v.text}
        for run, values in groups
        for v in values
    ]

    def draw(style: Style) -> Any:
        made = style.canvas(3.1 if style.narrow else 2.9)
        sizes = [len(values) for _, values in groups]
        axes = made.subplots(2, 1, sharex=True, height_ratios=sizes)
        for ax, (heading, values) in zip(axes, groups, strict=True):
            style.plain(ax, left=False, grid=None)
            for place, value in enumerate(values):
                style.labelled_bar(ax, place, value.number, labels[value.name][1], value.text)
            ax.set_yticks(range(len(values)), [labels[v.name][0] for v in values])
            ax.tick_params(axis="y", length=0)
            ax.tick_params(axis="x", labelbottom=False, length=0)
            ax.spines["bottom"].set_visible(False)
            ax.set_ylim(len(values) - 0.4, -0.6)
            ax.set_title(heading)
        axes[0].set_xlim(0, times[0].high * (1.3 if style.narrow else 1.12))
        return made

    return Figure(
        shape="Horizontal bars of single published values; no curve is drawn.",
        values=[steps, *times, duration, steps48, *times48],
        rows=rows,
        draw=draw,
    )


@figure("fig-1-1-h200-steps")
def h200_steps() -> Figure:
    """Each step of our run as a stacked bar whose three parts sum to perf/step_time.

    Miles defines step time as train_wait_time + train_time. The rollout lies inside the waiting
    time, so waiting minus rollout is what remains: the weight update, moving the trainer's
    memory out and back, and releasing the engine's memory.
    """
    run = evidence.run(H200)
    index = run.index
    whole = run.column("perf/step_time")
    rollout = run.column("perf/rollout_time")
    training = run.column("perf/train_time")
    rest = [all_ - part - other for all_, part, other in zip(whole, rollout, training, strict=True)]
    if min(rest) < 0:
        raise evidence.EvidenceError(f"{H200}: the parts of a step exceed perf/step_time")
    median = run.median("perf/step_time")
    first = _time("first", whole[0], 1, "perf/step_time:step 0")
    middle = _time("median", median, 1, "perf/step_time:median:all")
    values = [
        measured("steps", len(index), "", 0, what="steps", runs=[H200], kind="count", noun="steps"),
        first,
        middle,
        measured(
            "first_ratio",
            whole[0] / median,
            "times",
            1,
            what="perf/step_time:step 0 over median:all",
            runs=[H200],
            kind="metric",
        ),
        _time("rest_first", rest[0], 1, "perf/step_time minus rollout and train_time:step 0"),
        _time("train_first", training[0], 1, "perf/train_time:step 0"),
        _time("rollout_first", rollout[0], 1, "perf/rollout_time:step 0"),
        _time("fastest", min(whole), 1, "perf/step_time:minimum:all"),
        _time("slowest_later", max(whole[1:]), 1, "perf/step_time:maximum:from step 1"),
    ]
    parts = zip(index, rollout, training, rest, whole, strict=True)
    rows = [
        {"step": n, "rollout_s": a, "training_s": b, "rest_s": c, "step_s": d}
        for n, a, b, c, d in parts
    ]

    def draw(style: Style) -> Any:
        made, ax = style.axes(3.4 if style.narrow else 3.0)
        base = [0.0] * len(index)
        keys = []
        for label, role, part in (
            (_ROLLOUT, "engine", rollout),
            (_TRAINING, "trainer", training),
            (_REST, "lifecycle", rest),
        ):
            ax.bar(index, part, bottom=base, width=0.82, **style.bar(role))
            base = [low + more for low, more in zip(base, part, strict=True)]
            keys.append(style.swatch(role, label))
        ax.axhline(median, color=style.colour("ink"), linewidth=1.1, linestyle=(0, (5, 3)))
        ax.annotate(
            f"median {middle.text}",
            (index[-1] + 0.45, median),
            xytext=(0, 8),
            textcoords="offset points",
            ha="right",
            va="bottom",
        )
        ax.annotate(
            f"first step {first.text}",
            (index[0] - 0.4, whole[0]),
            xytext=(0, 4),
            textcoords="offset points",
            ha="left",
            va="bottom",
        )
        # Top of the stack first, as it is read in the bars.
        made.legend(
            handles=keys[::-1],
            loc="outside upper left" if style.narrow else "upper right",
            bbox_to_anchor=None if style.narrow else (0.99, 0.93),
        )
        ax.set_ylim(0, whole[0] * 1.1)
        ax.set_yticks(range(0, int(whole[0]) + 1, 5))
        ax.set_xlim(index[0] - 0.7, index[-1] + 0.7)
        ax.set_xticks(index[:: 5 if style.narrow else 2])
        ax.set_xlabel("step")
        ax.set_ylabel("seconds")
        return made

    return Figure(
        shape=(
            f"Stacked bars, one for each of {len(index)} steps; the parts are rollout, training "
            "and the rest, and their sum is the step time of the log."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


@figure("fig-1-1-h200-phases")
def h200_phases() -> Figure:
    """Median time of each phase over the steps after the first.

    Step 0 is left out: its line holds the first offload and the first weight update.
    """
    run = evidence.run(H200)
    later = run.index[1:]
    phases = (
        ("step", "whole step", "outside", "perf/step_time"),
        ("rollout", "rollout", "engine", "perf/rollout_time"),
        ("train", "training", "trainer", "perf/train_time"),
        ("logprob", "of it: log-probabilities", "trainer", "perf/log_probs_time"),
        ("ref_logprob", "of it: reference pass", "trainer", "perf/ref_log_probs_time"),
        ("actor_train", "of it: update of the actor", "trainer", "perf/actor_train_time"),
        ("update", "weight update", "lifecycle", "perf/update_weights_time"),
        ("sleep", "trainer offload (sleep)", "lifecycle", "perf/sleep_time"),
        ("wake", "trainer onload (wake up)", "lifecycle", "perf/wake_up_time"),
    )
    values = [
        _time(name, run.median(column, later), 2, f"{column}:median:from step 1")
        for name, _, _, column in phases
    ]
    rows = [
        {"phase": label, "column": column, "median_s": value.number}
        for (_, label, _, column), value in zip(phases, values, strict=True)
    ]
    count = measured(
        "steps",
        len(later),
        "",
        0,
        what="steps:from 1",
        runs=[H200],
        kind="count",
        noun="steps",
    )

    def draw(style: Style) -> Any:
        made, ax = style.axes(2.9 if style.narrow else 2.6, left=False, grid=None)
        for place, (value, (_, _, role, _)) in enumerate(zip(values, phases, strict=True)):
            style.labelled_bar(ax, place, value.number, role, value.text)
        ax.set_yticks(range(len(phases)), [label for _, label, _, _ in phases])
        ax.tick_params(axis="y", length=0)
        ax.tick_params(axis="x", labelbottom=False, length=0)
        ax.spines["bottom"].set_visible(False)
        ax.set_ylim(len(phases) - 0.4, -0.6)
        ax.set_xlim(0, values[0].high * (1.32 if style.narrow else 1.12))
        return made

    return Figure(
        shape="Horizontal bars, one for each phase; medians of phases need not add up.",
        values=[*values, count],
        rows=rows,
        draw=draw,
    )


@figure("fig-1-1-startup")
def startup_gb10() -> Figure:
    """What the engine of the GB10 lab logged at its start, as published."""
    values = {
        "weights loaded": published("weights", "gb10", "plain-weights-gb", kind="memory"),
        "time to load them": published("weights_s", "gb10", "plain-weights-s", kind="time"),
        "memory left after that": published("avail", "gb10", "plain-avail-gb", kind="memory"),
        "room in the KV cache": published("kv_tokens", "gb10", "plain-kv-tokens", kind="count"),
        "keys in the KV cache": published("k_size", "gb10", "plain-k-size", kind="memory"),
        "values in the KV cache": published("v_size", "gb10", "plain-v-size", kind="memory"),
    }
    return _startup_table(values)


@figure("fig-1-1-startup-h200")
def startup_h200() -> Figure:
    """The same lines of our run, and the time from the first log time to the line of step 0."""
    run = evidence.run(H200)

    def fact(name: str, unit: str, digits: int, part: str, key: str, kind: str) -> Value:
        number = run.startup(part, key)
        what = f"startup:{part}.{key}"
        return measured(name, number, unit, digits, what=what, runs=[H200], kind=kind)

    step_0 = run.column("time/step_line", [0])[0]
    elapsed = evidence.seconds_between(run.fact("first_time"), step_0)
    values = {
        "weights loaded": fact("weights", "GB", 2, "weights_loaded", "gb", "memory"),
        "time to load them": fact("weights_s", "s", 2, "weights_loaded", "seconds", "time"),
        "memory left after that": fact("avail", "GB", 2, "weights_loaded", "avail_gb", "memory"),
        "room in the KV cache": fact("kv_tokens", "tokens", 0, "kv_cache", "tokens", "count"),
        "keys in the KV cache": fact("k_size", "GB", 2, "kv_cache", "k_gb", "memory"),
        "values in the KV cache": fact("v_size", "GB", 2, "kv_cache", "v_gb", "memory"),
        "first log time to the line of step 0": _time(
            "log_to_step0", elapsed, 0, "first_time to time/step_line:step 0"
        ),
    }
    return _startup_table(values)


def _startup_table(values: dict[str, Value]) -> Figure:
    rows = [
        {"what": label, "value": value.text, "number": value.number, "unit": value.unit}
        for label, value in values.items()
    ]
    return Figure(
        shape="A table of the engine's start-up values.",
        values=list(values.values()),
        rows=rows,
        columns={"what": "At start-up", "value": "Value"},
    )


def _time(name: str, seconds: float, digits: int, what: str) -> Value:
    return measured(name, seconds, "s", digits, what=what, runs=[H200], kind="time")
