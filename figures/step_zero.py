"""Section 5.2: the gap of step 0 in every stored run, and what must be 0 there."""

from __future__ import annotations

from typing import Any

from figures import evidence
from figures.five_numbers import SEEDS
from figures.registry import Figure, figure
from figures.sources import measured, published
from figures.style import Style
from figures.tablefigure import published_table

LAB = "h200-miles"
GAP = "train/train_rollout_logprob_abs_diff"
KL = "train/ppo_kl"
CLIP = "train/pg_clipfrac"
REPEATS = ("h200-miles/determ", "h200-miles/determ2")
KILLED = "h200-miles/kill_noft"  # the plain recipe, until its engine was killed in rollout 3
FIRST = (0,)
# run -> what tells it from the plain recipe, short enough for a chart
DIFFERS = {
    "plain_s1234": "plain",
    "plain_s4321": "plain",
    "plain3": "plain",
    "determ": "deterministic",
    "determ2": "deterministic",
    "n4": "4 answers",
    "n16": "16 answers",
    "topp2": "top-p, top-k",
    "filter": "filter",
    "kill_noft": "plain, killed",
}

_GB10 = (
    ("gap at step 0, healthy runs", "range", "healthy-gap-0"),
    ("gap at step 0 of run plain", "plain", "plain-gap-0"),
    ("gap at step 0 of two runs with deterministic inference", "repeats", "det-gap-step-0"),
    ("clip fraction at step 0", "clip", "clipfrac-0"),
)


def with_step_zero() -> list[evidence.Run]:
    """The stored runs that finished step 0, plain seeds first."""
    found = [evidence.run(run_id) for run_id in evidence.run_ids(LAB)]
    found = [run for run in found if run.has_step(0)]
    unknown = sorted({run.name for run in found} - set(DIFFERS))
    if unknown:
        raise evidence.EvidenceError(f"figures/step_zero.py says nothing of run {unknown[0]}")
    return sorted(found, key=lambda run: list(DIFFERS).index(run.name))


@figure("fig-5-2-gap")
def gap_of_step_zero() -> Figure:
    """One point a run, over the range of the three plain seeds."""
    runs = with_step_zero()
    every = [run.id for run in runs]
    gaps = {run.id: run.column(GAP, FIRST)[0] for run in runs}
    kl = max(abs(run.column(KL, FIRST)[0]) for run in runs)
    clip = max(run.column(CLIP, FIRST)[0] for run in runs)
    seeds = [gaps[run_id] for run_id in SEEDS]
    repeats = [gaps[run_id] for run_id in REPEATS]

    def value(name: str, number: Any, digits: int, what: str, of: Any, unit: str = "") -> Any:
        kind = "count" if unit else "metric"
        return measured(name, number, unit, digits, what=f"{what}:step 0", runs=of, kind=kind)

    values = [
        value("seeds", (min(seeds), max(seeds)), 4, f"{GAP}:range", SEEDS),
        value("all", (min(gaps.values()), max(gaps.values())), 4, f"{GAP}:range", every),
        value("repeats", repeats[0], 6, GAP, REPEATS[:1]),
        value("repeats_differ", abs(repeats[0] - repeats[1]), 6, f"{GAP}:difference", REPEATS),
        value("sampler", gaps[f"{LAB}/topp2"], 4, GAP, [f"{LAB}/topp2"]),
        value("killed", gaps[KILLED], 4, GAP, [KILLED]),
        value("kl", kl, 10, f"{KL}:largest size", every),
        value("clip", clip, 10, f"{CLIP}:largest", every),
        value("runs", len(runs), 0, "runs", every, "runs"),
    ]
    rows = [
        {"run": run.name, "what": DIFFERS[run.name], "seed": run.seed, "gap": gaps[run.id]}
        for run in runs
    ]

    def draw(style: Style) -> Any:
        made, ax = style.axes(4.6 if style.narrow else 3.6, grid="x")
        places = range(len(runs))
        band = ax.axvspan(
            min(seeds),
            max(seeds),
            facecolor=style.colour("grid"),
            edgecolor=style.colour("muted"),
            linewidth=0.8,
        )
        look = {**style.line("trainer", 0), "linestyle": "none", "markersize": 6}
        ax.plot([gaps[run.id] for run in runs], places, **look)
        ax.set_yticks(places, [f"{run.name}: {DIFFERS[run.name]}" for run in runs])
        ax.invert_yaxis()
        low, high = min(gaps.values()), max(gaps.values())
        ax.set_xlim(low - 0.0008, high + 0.0008)
        ax.set_xticks((0.016, 0.018, 0.020))
        ax.set_xlabel("log-probability gap of step 0")
        made.legend([band], ["range of the three plain seeds"], loc="outside upper left")
        return made

    return Figure(
        shape=(
            f"One point for each of {len(runs)} runs: the gap of its step 0. A band marks the "
            "range of the three plain seeds."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


@figure("fig-5-2-gb10")
def gb10_step_zero() -> Figure:
    """What the GB10 lab published of step 0; its table by model and sampler is lost."""
    values = [
        published(name, "gb10", value_id, kind="metric", unit="") for _, name, value_id in _GB10
    ]
    columns = {"what": "Number", "published": "Published"}
    return published_table(values, _GB10, columns)
