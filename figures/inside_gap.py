"""Sections 8.1 to 8.3: the gap as reported and as measured, and what it goes with."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from figures import evidence
from figures.five_numbers import SEEDS
from figures.registry import Figure, figure
from figures.sources import measured, published
from figures.style import Style
from figures.tablefigure import published_table
from figures.values import Value

LAB = "h200-miles"
GAP = "train/train_rollout_logprob_abs_diff"
HIT = "rollout/prefix_cache_hit_rate"
ENTROPY = "rollout/entropy"
PLAIN = f"{LAB}/plain3"
TWINS = (f"{LAB}/determ", f"{LAB}/determ2")
SAMPLER = f"{LAB}/topp2"
# name of a value -> run with another group size
GROUPS = {"cached_four": f"{LAB}/n4", "cached_sixteen": f"{LAB}/n16"}
# run -> what tells it from the plain recipe
FLOORS = {
    f"{LAB}/plain_s1234": "plain",
    f"{LAB}/plain_s4321": "plain",
    PLAIN: "plain",
    f"{LAB}/n4": "4 answers",
    f"{LAB}/n16": "16 answers",
    TWINS[0]: "deterministic",
    TWINS[1]: "deterministic",
}
# runs with steps that are neither plain nor sampled with top-p and top-k
OTHERS = (*GROUPS.values(), *TWINS, f"{LAB}/filter", f"{LAB}/kill_noft")

# what, name of the value, id in reported.toml, kind, noun
_GB10_1 = (
    ("answers in one step", "answers", "batch-8-answers", "count", "answers"),
    ("gap for each token, Qwen3-0.6B runs", "gap", "gap-8-1", "metric", ""),
)
_GB10_2 = (
    ("methods said to have touched the runs", "touched", "touched-methods", "count", "methods"),
    ("median gap without sampling replay", "without", "replay-gap-without", "metric", ""),
    ("median gap with sampling replay", "with", "replay-gap-with", "metric", ""),
    ("gap that replay removed", "share", "replay-gap-percent", "share", ""),
    ("median gap, with and without deterministic inference", "determ", "det-gap", "metric", ""),
    ("flat gap of a dense model, plain sampling", "flat", "gap-flat", "metric", ""),
)
_GB10_3 = (
    ("gap for each token, healthy runs", "gap", "gap-8-1", "metric", ""),
    ("gap of every step, runs without top-p and top-k", "steps", "healthy-gap", "metric", ""),
    ("gap with deterministic inference", "flat", "gap-flat", "metric", ""),
    ("gap of step 0, two deterministic runs", "repeats", "det-gap-step-0", "metric", ""),
    ("decimals that agree in those two", "decimals", "det-decimals", "count", "decimal places"),
    ("layers of the model", "layers", "model-layers", "count", "layers"),
    ("tokens of its vocabulary", "vocabulary", "model-vocabulary", "count", "tokens"),
)
_COLUMNS = {"what": "Number", "published": "Published"}


def table_of(entries: Sequence[tuple[str, str, str, str, str]]) -> Figure:
    """A table of published values of the GB10 lab, one row each."""
    values = [_published(*entry[1:]) for entry in entries]
    return published_table(values, entries, _COLUMNS)


def _published(name: str, value_id: str, kind: str, noun: str) -> Value:
    unit = "" if kind in ("count", "metric") else None
    return published(name, "gb10", value_id, kind=kind, unit=unit, noun=noun)


@figure("fig-8-1-gb10")
def gb10_engine() -> Figure:
    """What section 8.1 of the GB10 manual prints."""
    return table_of(_GB10_1)


@figure("fig-8-2-gb10")
def gb10_corrections() -> Figure:
    """What section 8.2 of the GB10 manual prints, and the four runs that it leans on."""
    return table_of(_GB10_2)


@figure("fig-8-3-gb10")
def gb10_gap() -> Figure:
    """What section 8.3 of the GB10 manual prints of its own runs, and the range of its 4.6."""
    return table_of(_GB10_3)


@figure("fig-8-1-h200")
def h200_engine() -> Figure:
    """What the engine gave in three plain runs and two other group sizes: cache share and gap."""
    runs = [evidence.run(run_id) for run_id in (*SEEDS, *GROUPS.values())]
    hits = {run.id: [100 * cell for cell in run.column(HIT)] for run in runs}
    gaps = {run.id: run.column(GAP) for run in runs}
    sizes = {run.id: int(run.setting("n-samples-per-prompt")) for run in runs}
    batches = {run.id: sizes[run.id] * int(run.setting("rollout-batch-size")) for run in runs}
    if len({batches[run_id] for run_id in SEEDS}) != 1:
        raise evidence.EvidenceError(f"three seeds with different batches: {batches}")

    def cached(name: str, of: Sequence[str]) -> Value:
        what = f"{HIT}:range:all steps, percent"
        return _over(name, [hits[run_id] for run_id in of], "percent", 0, what, of)

    values = [
        measured(
            "answers",
            batches[SEEDS[0]],
            "",
            0,
            what="answers per step",
            runs=SEEDS,
            kind="count",
            noun="answers",
        ),
        cached("cached", SEEDS),
        *(cached(name, [run_id]) for name, run_id in GROUPS.items()),
        _over("gap", [gaps[i] for i in SEEDS], "", 3, f"{GAP}:range:all steps", SEEDS),
    ]
    rows = [
        {
            "run": run.name,
            "seed": str(run.seed),
            "steps": len(gaps[run.id]),
            "group": sizes[run.id],
            "answers": batches[run.id],
            "cached": f"{min(hits[run.id]):.0f} to {max(hits[run.id]):.0f} percent",
            "gap": f"{min(gaps[run.id]):.4f} to {max(gaps[run.id]):.4f}",
        }
        for run in runs
    ]
    return Figure(
        shape="A table with one row for each of five runs.",
        values=values,
        rows=rows,
        columns={
            "run": "Run",
            "seed": "Seed",
            "steps": "Steps",
            "group": "Answers to a prompt",
            "answers": "Answers in a step",
            "cached": "Prompt tokens from the cache",
            "gap": "Gap",
        },
    )


@figure("fig-8-2-h200")
def h200_causes() -> Figure:
    """The gap of each step: plain, deterministic inference twice, and top-p with top-k."""
    ids = (PLAIN, *TWINS, SAMPLER)
    labels = ("plain", "deterministic", "deterministic", "top-p and top-k")
    runs = [evidence.run(run_id) for run_id in ids]
    gaps = [run.column(GAP) for run in runs]
    steps = runs[0].index
    middles = [statistics.median(line) for line in gaps]

    def median(name: str, number: Any, of: Sequence[str]) -> Value:
        what = f"{GAP}:median:all steps"
        return measured(name, number, "", 4, what=what, runs=of, kind="metric")

    values = [
        median("plain", middles[0], [PLAIN]),
        median("determ", (min(middles[1:3]), max(middles[1:3])), TWINS),
        median("sampler", middles[3], [SAMPLER]),
        measured("steps", len(steps), "steps", 0, what="steps", runs=ids, kind="count"),
    ]
    rows = [
        {"run": run.name, "what": label, "step": step, "gap": line[at]}
        for run, label, line in zip(runs, labels, gaps, strict=True)
        for at, step in enumerate(steps)
    ]

    def draw(style: Style) -> Any:
        made, ax = style.axes(3.4 if style.narrow else 2.9)
        roles = ("outside", "engine", "engine", "data")
        for which, line in enumerate(gaps):
            label = f"{runs[which].name}: {labels[which]}"
            ax.plot(steps, line, label=label, **style.line(roles[which], which))
        ax.set_xticks(steps[:: 3 if style.narrow else 1])
        ax.set_xlabel("step")
        ax.set_ylabel("log-probability gap")
        made.legend(loc="outside upper left", ncols=1 if style.narrow else 2, handlelength=3.2)
        return made

    return Figure(
        shape=(
            f"Four lines over {len(steps)} steps: the log-probability gap of a plain run, of two "
            "runs with deterministic inference and of one with top-p and top-k."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


@figure("fig-8-3-floor")
def floors() -> Figure:
    """Range and median of the gap of each run without top-p and top-k."""
    runs = [evidence.run(run_id) for run_id in FLOORS]
    gaps = [run.column(GAP) for run in runs]
    middles = [statistics.median(line) for line in gaps]
    every = list(FLOORS)

    def value(name: str, number: Any, digits: int, what: str) -> Value:
        return measured(name, number, "", digits, what=what, runs=every, kind="metric")

    values = [
        value("median", (min(middles), max(middles)), 4, f"{GAP}:median:range over runs"),
        _over("all", gaps, "", 4, f"{GAP}:range:all steps", every),
        value("first", _ends([line[0] for line in gaps]), 4, f"{GAP}:range:first step"),
        value("last", _ends([line[-1] for line in gaps]), 4, f"{GAP}:range:last step"),
        measured("runs", len(runs), "runs", 0, what="runs", runs=every, kind="count"),
    ]
    rows = [
        {
            "run": run.name,
            "what": FLOORS[run.id],
            "steps": len(line),
            "lowest": min(line),
            "median": middle,
            "highest": max(line),
        }
        for run, line, middle in zip(runs, gaps, middles, strict=True)
    ]

    def draw(style: Style) -> Any:
        made, ax = style.axes(3.6 if style.narrow else 3.0, grid="x")
        for place, (line, middle) in enumerate(zip(gaps, middles, strict=True)):
            ax.plot(
                (min(line), max(line)),
                (place, place),
                color=style.colour("trainer"),
                linewidth=5,
                alpha=0.35,
                solid_capstyle="butt",
            )
            ax.plot([middle], [place], **{**style.line("trainer", 0), "markersize": 6})
        ax.set_yticks(range(len(runs)), [f"{run.name}: {FLOORS[run.id]}" for run in runs])
        ax.set_ylim(len(runs) - 0.5, -0.5)
        ax.set_xlim(0, max(map(max, gaps)) * 1.06)
        ax.set_xticks((0, 0.005, 0.01, 0.015, 0.02))
        ax.set_xlabel("gap: range, median as a point")
        return made

    return Figure(
        shape=(
            f"One bar for each of {len(runs)} runs, from the lowest to the highest gap of its "
            "steps, with the median as a point."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


@figure("fig-8-3-entropy")
def entropy() -> Figure:
    """The gap over the entropy of the same step, for every run that finished a step."""
    families = {"plain": SEEDS, "other settings": OTHERS, "top-p and top-k": (SAMPLER,)}
    family = {run_id: name for name, ids in families.items() for run_id in ids}
    every = list(family)
    gaps, entropies, indexes = {}, {}, {}
    for run_id in every:
        run = evidence.run(run_id)
        gaps[run_id] = run.column(GAP)
        indexes[run_id] = run.index[: len(gaps[run_id])]
        entropies[run_id] = run.column(ENTROPY, indexes[run_id])
    ratios = {
        run_id: [a / b for a, b in zip(gaps[run_id], entropies[run_id], strict=True)]
        for run_id in every
    }
    longest = max(SEEDS, key=lambda run_id: len(gaps[run_id]))

    def ratio(name: str, of: Sequence[str]) -> Value:
        what = f"{GAP} over {ENTROPY}:range:all steps"
        return _over(name, [ratios[run_id] for run_id in of], "", 3, what, of)

    def value(name: str, number: float, digits: int, what: str) -> Value:
        return measured(name, number, "", digits, what=what, runs=[longest], kind="metric")

    values = [
        ratio("ratio", SEEDS),
        ratio("ratio_all", every),
        ratio("ratio_sampler", [SAMPLER]),
        measured("runs", len(every), "runs", 0, what="runs:entropy", runs=every, kind="count"),
        value("gap_first", gaps[longest][0], 4, f"{GAP}:first step"),
        value("gap_last", gaps[longest][-1], 4, f"{GAP}:last step"),
        value("entropy_first", entropies[longest][0], 2, f"{ENTROPY}:first step"),
        value("entropy_last", entropies[longest][-1], 2, f"{ENTROPY}:last step"),
    ]
    rows = [
        {
            "run": run_id.partition("/")[2],
            "family": family[run_id],
            "step": step,
            "entropy": entropies[run_id][at],
            "gap": gaps[run_id][at],
            "ratio": ratios[run_id][at],
        }
        for run_id in every
        for at, step in enumerate(indexes[run_id])
    ]

    def draw(style: Style) -> Any:
        made, ax = style.axes(3.4 if style.narrow else 2.9)
        roles = ("trainer", "outside", "data")
        for which, (name, ids) in enumerate(families.items()):
            look = {**style.line(roles[which], which), "linestyle": "none", "markersize": 5}
            x = [cell for run_id in ids for cell in entropies[run_id]]
            y = [cell for run_id in ids for cell in gaps[run_id]]
            ax.plot(x, y, label=name, **look)
        ax.set_xlim(0, max(map(max, entropies.values())) * 1.06)
        ax.set_ylim(0, max(map(max, gaps.values())) * 1.1)
        ax.set_xlabel("entropy of the step, nats per token")
        ax.set_ylabel("log-probability gap")
        made.legend(loc="outside upper left", ncols=1 if style.narrow else 3)
        return made

    return Figure(
        shape=(
            f"Points, one a step of {len(every)} runs: the log-probability gap over the entropy. "
            "They lie close to one line through zero."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


def _ends(cells: Sequence[float]) -> tuple[float, float]:
    return min(cells), max(cells)


def _over(
    name: str,
    lines: Sequence[Sequence[float]],
    unit: str,
    digits: int,
    what: str,
    runs: Sequence[str],
) -> Value:
    found = _ends([cell for line in lines for cell in line])
    return measured(name, found, unit, digits, what=what, runs=runs)
