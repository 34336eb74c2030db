"""Section 2.2: the reported offload pairs, and what our plain run says of its memory turns."""

from __future__ import annotations

import statistics
from typing import Any

from figures import evidence
from figures.loglines import memory_lines
from figures.memory import H200, LOST
from figures.registry import Figure, figure
from figures.sources import measured, published
from figures.style import Style
from figures.values import Value

COMMON = (0, 1, 8)  # the steps that were clean in both runs of the pair


def _gb10(name: str, value_id: str, kind: str = "time", **words: Any) -> Value:
    return published(name, "gb10", value_id, kind=kind, **words)


@figure("fig-2-2-pair")
def pair() -> Figure:
    """The same-day pair as far as the text of the source gives it."""
    training = [_gb10("train_default", "pair-train-a"), _gb10("train_kept", "pair-train-b")]
    names = ("default offload", "engine kept loaded")
    rows = [
        {"setting": name, "clean": LOST, "rollout": LOST, "training": value.text}
        for name, value in zip(names, training, strict=True)
    ]
    return Figure(
        shape="A table with one row for each of two runs.",
        values=training,
        rows=rows,
        columns={
            "setting": "Setting",
            "clean": "Clean steps",
            "rollout": "Median rollout of them",
            "training": "Median training, all steps, pauses inside",
        },
    )


@figure("fig-2-2-common")
def common() -> Figure:
    """Rollout times of the steps that were clean in both runs; the differences are arithmetic."""
    values, rows = [], []
    for step in COMMON:
        default = _gb10(f"default_{step}", f"pair-default-{step}")
        kept = _gb10(f"kept_{step}", f"pair-kept-{step}")
        less = default.low - kept.low
        values += [default, kept]
        rows.append(
            {
                "step": step,
                "default": default.text,
                "kept": kept.text,
                "less": f"{less:.1f} s",
                "percent": f"{100 * less / default.low:.0f} percent",
            }
        )
    gain = _gb10("gain", "pair-gain-s")
    percent = _gb10("percent", "pair-gain-percent", kind="share")
    lengths = [
        _gb10("early", "early-length", kind="count"),
        _gb10("late", "late-length", kind="count"),
    ]
    minute = _gb10("minute", "pair-rollout-minute")
    noise = [_gb10("noise_low", "noise-s"), _gb10("noise_high", "noise-s-high")]
    fraction = _gb10("fraction", "pair-fraction", kind="metric", unit="")
    steps = _gb10("steps", "pair-steps", kind="count", unit="", noun="steps")
    rows.append(
        {
            "step": "the range that the source prints",
            "default": "",
            "kept": "",
            "less": gain.text,
            "percent": percent.text,
        }
    )
    return Figure(
        shape="A table with one row for each step that was clean in both runs.",
        values=[*values, gain, percent, *lengths, minute, *noise, fraction, steps],
        rows=rows,
        columns={
            "step": "Step",
            "default": "Default offload",
            "kept": "Engine kept loaded",
            "less": "Difference",
            "percent": "Of the default",
        },
    )


@figure("fig-2-2-first-pair")
def first_pair() -> Figure:
    """The earlier pair, which changed two settings and had other clean steps."""
    default = {
        "fraction": _gb10("fraction_default", "first-pair-fraction-a", kind="metric", unit=""),
        "median": _gb10("default", "e6a-clean-rollout"),
        "time": _gb10("default_10", "e6a-step-10"),
        "length": _gb10("default_length", "e6a-length-10", kind="count"),
    }
    kept = {
        "fraction": _gb10("fraction_kept", "first-pair-fraction-b", kind="metric", unit=""),
        "median": _gb10("kept", "e3c-clean-rollout"),
        "time": _gb10("kept_10", "e3c-step-10"),
        "length": _gb10("kept_length", "e3c-length-10", kind="count"),
    }
    gain = _gb10("gain", "first-pair-gain", kind="share")
    names = (("default offload", default), ("engine kept loaded", kept))
    rows = [
        {"setting": name, **{key: value.text for key, value in row.items()}} for name, row in names
    ]

    def less(key: str) -> str:
        return f"{100 * (1 - kept[key].low / default[key].low):.0f} percent less"

    rows.append(
        {
            "setting": "difference",
            "fraction": "",
            "median": less("median"),
            "time": less("time"),
            "length": less("length"),
        }
    )
    return Figure(
        shape="A table with one row for each of two runs and one for their difference.",
        values=[*default.values(), *kept.values(), gain],
        rows=rows,
        columns={
            "setting": "Setting",
            "fraction": "Engine share",
            "median": "Median rollout, clean steps",
            "time": "Rollout of step 10",
            "length": "Answer length of step 10",
        },
    )


@figure("fig-2-2-turns")
def turns() -> Figure:
    """Memory of the GPU at four moments of our plain run: medians over its steps from step 1."""
    run = evidence.run(H200)
    moments = memory_lines(run)
    total = moments[0].total
    cache = run.startup("kv_cache", "k_gb") + run.startup("kv_cache", "v_gb")
    weights = run.startup("weights_loaded", "gb")
    by_when = {
        when: [m for m in moments if m.when == when][skip:]
        for when, skip in (
            ("after wake_up model", 1),
            ("before offload model", 2),
            ("after offload model", 2),
        )
    }  # step 0 is left out, and so is the offload before it
    labels = ("training begins", "training ends", "trainer is offloaded")

    def middle(when: str, field: str) -> float:
        return statistics.median(getattr(m, field) for m in by_when[when])

    def gb(name: str, number: float, digits: int, what: str) -> Value:
        return measured(name, number, "GB", digits, what=what, runs=[H200])

    names = ("begins", "ends", "offloaded")
    values = [
        gb("engine", cache + weights, 2, "startup:weights and KV cache"),
        gb("total", total, 1, "memory lines:total"),
    ]
    rows = [
        {
            "moment": "engine is ready",
            "engine_gb": round(cache + weights, 2),
            "trainer_gb": None,
            "kept_by_allocator_gb": None,
            "other_gb": None,
            "used_gb": None,
        }
    ]
    for name, label, when in zip(names, labels, by_when, strict=True):
        used, held, kept = (middle(when, f) for f in ("used", "allocated", "reserved"))
        values.append(gb(name, used, 2, f"memory lines:used {when}:median:from step 1"))
        values.append(
            gb(f"trainer_{name}", held, 2, f"memory lines:allocated {when}:median:from step 1")
        )
        rows.append(
            {
                "moment": label,
                "engine_gb": None,
                "trainer_gb": held,
                "kept_by_allocator_gb": round(kept - held, 2),
                "other_gb": round(used - kept, 2),
                "used_gb": used,
            }
        )

    def draw(style: Style) -> Any:
        made, ax = style.axes(3.1 if style.narrow else 2.6, left=False, grid=None)
        parts = (
            ("engine_gb", "engine", "weights and KV cache of the engine"),
            ("trainer_gb", "trainer", "tensors of the trainer"),
            ("kept_by_allocator_gb", "lifecycle", "kept by the trainer's allocator, free inside"),
            ("other_gb", "outside", "everything else on the GPU"),
        )
        for place, row in enumerate(rows):
            at = 0.0
            for key, role, _ in parts:
                if row[key]:
                    ax.barh(place, row[key], left=at, height=0.66, **style.bar(role))
                    at += row[key]
            ax.annotate(
                f"{at:.2f} GB",
                (at, place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                ha="left",
            )
        ax.set_yticks(range(len(rows)), [row["moment"] for row in rows])
        ax.tick_params(axis="y", length=0)
        ax.invert_yaxis()
        ax.set_xlim(0, 1.25 * (cache + weights))
        ax.set_xlabel("GB (2^30 bytes)")
        keys = [style.swatch(role, label) for _, role, label in parts]
        made.legend(handles=keys, loc="outside upper left", ncols=1 if style.narrow else 2)
        return made

    return Figure(
        shape=(
            "Four stacked horizontal bars, one for each moment. The first shows what the engine "
            "allocates at its start, the others what the trainer's memory lines print."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


@figure("fig-2-2-wait")
def waiting() -> Figure:
    """The waiting time of the trainer by timer, one bar a step, and what no timer covers."""
    run = evidence.run(H200)
    steps = run.index
    timers = {
        "rollout": run.column("perf/rollout_time"),
        "offload": run.column("perf/sleep_time"),
        "update": run.column("perf/update_weights_time"),
        "onload": run.column("perf/wake_up_time"),
    }
    wait, whole = run.column("perf/train_wait_time"), run.column("perf/step_time")
    rest = [all_ - sum(parts) for all_, *parts in zip(wait, *timers.values(), strict=True)]
    if min(rest) < 0:
        raise evidence.EvidenceError(f"{H200}: four timers exceed perf/train_wait_time")
    turn = [100 * (w - r) / s for w, r, s in zip(wait, timers["rollout"], whole, strict=True)]

    def time(name: str, number: Any, digits: int, what: str) -> Value:
        return measured(name, number, "s", digits, what=what, runs=[H200])

    untimed = "perf/train_wait_time minus four timers"
    values = [
        time("rest", statistics.median(rest[1:]), 2, f"{untimed}:median:from step 1"),
        time("rest_range", (min(rest[1:]), max(rest[1:])), 2, f"{untimed}:range:from step 1"),
        time("rest_first", rest[0], 1, f"{untimed}:step 0"),
        time("offload_0", timers["offload"][0], 2, "perf/sleep_time:step 0"),
        time("offload_1", timers["offload"][1], 2, "perf/sleep_time:step 1"),
        time("offload_most", max(timers["offload"][2:]), 2, "perf/sleep_time:maximum:from step 2"),
        measured(
            "turn_share",
            statistics.median(turn[1:]),
            "percent",
            0,
            what="perf/train_wait_time minus rollout over step_time:median:from step 1",
            runs=[H200],
        ),
    ]
    rows = [
        {"step": n, **{f"{key}_s": timers[key][at] for key in timers}, "no_timer_s": rest[at]}
        for at, n in enumerate(steps)
    ]

    def draw(style: Style) -> Any:
        made, ax = style.axes(3.5 if style.narrow else 3.0)
        base = [0.0] * len(steps)
        parts = (
            ("rollout", "engine", "", "rollout"),
            ("offload", "trainer", None, "trainer offload"),
            ("update", "lifecycle", None, "weight update"),
            ("onload", "trainer", "", "trainer onload"),
            ("rest", "outside", "", "no timer"),
        )
        keys = []
        for key, role, hatch, label in parts:
            part = rest if key == "rest" else timers[key]
            ax.bar(steps, part, bottom=base, width=0.82, **style.bar(role, hatch))
            base = [low + more for low, more in zip(base, part, strict=True)]
            keys.append(style.swatch(role, label, hatch))
        made.legend(handles=keys[::-1], loc="outside upper left", ncols=2 if style.narrow else 5)
        ax.set_xlim(steps[0] - 0.7, steps[-1] + 0.7)
        ax.set_xticks(steps[:: 5 if style.narrow else 2])
        ax.set_xlabel("step")
        ax.set_ylabel("seconds")
        return made

    return Figure(
        shape=f"Stacked bars, one for each of {len(steps)} steps: the parts of the waiting time.",
        values=values,
        rows=rows,
        draw=draw,
    )
