"""Section 3.1: three group sizes, as the GB10 lab published them and in runs of our own."""

from __future__ import annotations

import statistics
from typing import Any

from figures import evidence
from figures.registry import Figure, figure
from figures.sources import measured, published
from figures.style import Style
from figures.values import Value

RUNS = ("h200-miles/n4", "h200-miles/plain3", "h200-miles/n16")
NAMES = ("n4", "n8", "n16")  # of the values, in the order of RUNS
STEPS = range(12)
WINDOW = 4  # steps at either end
FIRST, LAST = STEPS[:WINDOW], STEPS[-WINDOW:]
LOST = "lost"

_REWARD = "rollout/raw_reward"
_ZERO = ("rollout/zero_std/count_0.0", "rollout/zero_std/count_1.0")


@figure("fig-3-1-gb10")
def gb10_groups() -> Figure:
    """The table of the GB10 lab by group size: what its text kept, and what is lost."""
    small = published("rollout4", "gb10", "n4-rollout", kind="time")
    clean = published("clean4", "gb10", "n4-clean", kind="count")
    same = published("rollout8", "gb10", "plain48-rollout-same-14", kind="time")
    gain8 = published("gain8", "gb10", "n8-gain", kind="metric", unit="")
    best8 = published("best8", "gb10", "n8-gain-max", kind="metric", unit="")
    seeds8 = published("seeds8", "gb10", "n8-seeds", kind="count", unit="")
    gain16 = published("gain16", "gb10", "n16-gain", kind="metric", unit="")
    large = published("rollout16", "gb10", "n16-rollout", kind="time")
    steps = published("steps", "gb10", "n16-steps", kind="count")
    requests = published(
        "open",
        "gb10",
        "n16-open-requests",
        kind="count",
        unit="",
        noun="open requests|requests",
    )
    rows = [
        _row("4", "one", LOST, small.text, f"{clean.bare} clean steps"),
        _row("8", "three", gain8.text, same.text, "the default seed, on those same step numbers"),
        _row("16", "one", gain16.text, large.text, "median of all steps, heat pauses inside"),
    ]
    return Figure(
        shape="A table with one row for each group size. Means of the reward are lost.",
        values=[small, clean, same, gain8, best8, seeds8, gain16, large, steps, requests],
        rows=rows,
        columns={
            "answers": "Answers",
            "seeds": "Seeds",
            "first": "Reward, steps 0 to 7",
            "last": "Reward, steps 16 to 23",
            "gain": "Gain",
            "rollout": "Rollout",
            "over": "Rollout over",
        },
    )


def _row(answers: str, seeds: str, gain: str, rollout: str, over: str) -> dict[str, str]:
    return {
        "answers": answers,
        "seeds": seeds,
        "first": LOST,
        "last": LOST,
        "gain": gain,
        "rollout": rollout,
        "over": over,
    }


@figure("fig-3-1-h200")
def h200_groups() -> Figure:
    """Reward, zero-variance share and tokens of each step in three runs, one a group size."""
    runs = [evidence.run(run_id) for run_id in RUNS]
    answers = [int(run.setting("n-samples-per-prompt")) for run in runs]
    prompts = [int(run.setting("rollout-batch-size")) for run in runs]
    reward = [run.column(_REWARD, STEPS) for run in runs]
    zero = [
        [sum(pair) / groups for pair in zip(*_counts(run), strict=True)]
        for run, groups in zip(runs, prompts, strict=True)
    ]
    tokens = [
        [mean * size * groups for mean in run.column("rollout/response_lengths", STEPS)]
        for run, size, groups in zip(runs, answers, prompts, strict=True)
    ]
    values = [
        measured("steps", len(STEPS), "steps", 0, what="steps compared", runs=RUNS, kind="count")
    ]
    for which, (name, run) in enumerate(zip(NAMES, runs, strict=True)):
        values += _values(name, run.id, reward[which], zero[which], tokens[which])
    failed = sum(run.fact("retries", "total") for run in runs)
    values.append(
        measured(
            "failed",
            failed,
            "",
            0,
            what="retries:total over the runs",
            runs=RUNS,
            kind="count",
            noun="failed requests|requests",
        )
    )
    rows = [
        {
            "run": run.name,
            "answers": answers[which],
            "step": step,
            "reward": reward[which][step],
            "zero_variance_share": zero[which][step],
            "tokens": tokens[which][step],
        }
        for which, run in enumerate(runs)
        for step in STEPS
    ]
    panels = (
        ("reward", "data", reward, 1.0),
        ("zero variance, percent", "lifecycle", zero, 100.0),
        ("tokens, thousands", "engine", tokens, 0.001),
    )

    def draw(style: Style) -> Any:
        made = style.canvas(5.8 if style.narrow else 2.9)
        axes = made.subplots(3, 1, sharex=True) if style.narrow else made.subplots(1, 3)
        for ax, (title, role, lines, factor) in zip(axes, panels, strict=True):
            style.plain(ax)
            for which, line in enumerate(lines):
                ax.plot(STEPS, [cell * factor for cell in line], **style.line(role, which))
            ax.set_title(title)
            ax.set_xticks(STEPS[::3])
            ax.set_ylim(0, None)
            if not style.narrow:
                ax.set_xlabel("step")
        axes[-1].set_xlabel("step")
        keys = [
            axes[0].plot([], [], label=f"{size} answers", **style.line("outside", which))[0]
            for which, size in enumerate(answers)
        ]
        made.legend(handles=keys, loc="outside upper left", ncols=1 if style.narrow else 3)
        return made

    return Figure(
        shape=(
            "Three small line charts over twelve steps: reward, share of zero-variance groups, and "
            "tokens written. One line for each of three runs, told apart by marker and dashes."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


def _counts(run: evidence.Run) -> list[list[float]]:
    return [run.column(column, STEPS, missing=0) for column in _ZERO]


def _values(
    name: str, run_id: str, reward: list[float], zero: list[float], tokens: list[float]
) -> list[Value]:
    """First and last mean, gain, share of zero-variance groups and tokens of one run."""
    first, last = (statistics.fmean(reward[step] for step in part) for part in (FIRST, LAST))

    def number(key: str, found: float, unit: str, digits: int, what: str, kind: str = "") -> Value:
        return measured(f"{key}_{name}", found, unit, digits, what=what, runs=[run_id], kind=kind)

    return [
        number("first", first, "", 3, f"{_REWARD}:mean:steps 0 to 3", "metric"),
        number("last", last, "", 3, f"{_REWARD}:mean:steps 8 to 11", "metric"),
        number("gain", last - first, "", 3, f"{_REWARD}:last minus first mean", "metric"),
        number("zero", statistics.fmean(zero) * 100, "percent", 0, "zero-variance groups:share"),
        number(
            "tokens", statistics.median(tokens), "tokens", 0, "tokens of a step:median", "count"
        ),
    ]
