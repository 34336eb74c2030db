"""Section 1.3: five numbers of the first ten steps, and how noisy a reward of one batch is."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

from figures import evidence
from figures.registry import Figure, figure
from figures.sources import measured, published
from figures.style import Style
from figures.values import Value

SEEDS = ("h200-miles/plain_s1234", "h200-miles/plain_s4321", "h200-miles/plain3")
FIRST_TEN = tuple(range(10))

_REWARD = "rollout/raw_reward"
# name -> column, panel title, role of its colour, factor, unit, decimals
_FIVE = {
    "reward": (_REWARD, "reward", "data", 1, "", 2),
    "gap": (
        "train/train_rollout_logprob_abs_diff",
        "log-probability gap",
        "trainer",
        1,
        "",
        4,
    ),
    "length": ("rollout/response_lengths", "answer length, tokens", "data", 1, "tokens", 1),
    "cut": ("rollout/truncated", "cut answers, percent", "data", 100, "percent", 1),
    "gradnorm": ("train/grad_norm", "gradient norm", "trainer", 1, "", 2),
}
_KINDS = {"length": "count", "cut": "share"}


@figure("fig-1-3-gb10-ranges")
def gb10_ranges() -> Figure:
    """The ranges and moves that the GB10 lab published for the first ten steps."""
    values = {
        "reward per step, first ten steps": published(
            "reward", "gb10", "first10-reward", kind="metric"
        ),
        "log-probability gap, first ten steps": published(
            "gap", "gb10", "first10-gap", kind="metric"
        ),
        "largest move of the reward, first ten steps": published(
            "move10", "gb10", "reward-move-10", kind="metric"
        ),
        "largest move of the reward, 48 steps": published(
            "move48", "gb10", "reward-move-48", kind="metric"
        ),
        "reward of step 2 in the printed log": published(
            "excerpt_high", "gb10", "plain-reward-2", kind="metric"
        ),
        "groups with only right answers, step 0": published(
            "zero_std_one", "gb10", "zero-std-one-0", kind="count", unit=""
        ),
        "groups with only wrong answers, step 0": published(
            "zero_std_zero", "gb10", "zero-std-zero-0", kind="count", unit=""
        ),
        "groups that teach nothing, step 0": published(
            "zero_std_groups", "gb10", "dead-groups-0", kind="count", unit=""
        ),
        "groups in a step": published("groups", "gb10", "groups-0", kind="count", unit=""),
    }
    rows = [
        {"what": label, "published": value.text, "low": value.low, "high": value.high}
        for label, value in values.items()
    ]
    return Figure(
        shape="A table of published values.",
        values=list(values.values()),
        rows=rows,
        columns={"what": "Number", "published": "Published"},
    )


@figure("fig-1-3-h200-five")
def h200_five() -> Figure:
    """Five metrics over the first ten steps of three seeds, one small panel each."""
    runs = [evidence.run(run_id) for run_id in SEEDS]
    data = {
        name: [[cell * factor for cell in run.column(column, FIRST_TEN)] for run in runs]
        for name, (column, _, _, factor, _, _) in _FIVE.items()
    }
    values = [_range_over(name, data[name]) for name in _FIVE]
    rewards = data["reward"]
    move = max(abs(b - a) for line in rewards for a, b in itertools.pairwise(line))
    first = [statistics.fmean(line[:5]) for line in rewards]
    last = [statistics.fmean(line[5:]) for line in rewards]
    values += [
        _seeds("move", move, 2, f"{_REWARD}:largest move:steps 0 to 9"),
        _seeds("mean_first5", (min(first), max(first)), 2, f"{_REWARD}:mean:steps 0 to 4"),
        _seeds("mean_next5", (min(last), max(last)), 2, f"{_REWARD}:mean:steps 5 to 9"),
    ]
    rows = [
        {"run": run.name, "step": step, **{name: data[name][which][step] for name in _FIVE}}
        for which, run in enumerate(runs)
        for step in FIRST_TEN
    ]

    def draw(style: Style) -> Any:
        made = style.canvas(7.6 if style.narrow else 3.9)
        axes = made.subplots(5, 1, sharex=True) if style.narrow else made.subplots(2, 3).ravel()
        for ax, (name, (_, title, role, _, _, _)) in zip(axes, _FIVE.items(), strict=False):
            style.plain(ax)
            for which, line in enumerate(data[name]):
                ax.plot(FIRST_TEN, line, **style.line(role, which))
            ax.set_title(title)
            ax.set_xticks(FIRST_TEN[::3])
            ax.set_xlim(-0.4, 9.4)
            low, high = ax.get_ylim()
            ax.set_ylim(min(low, 0) if name == "cut" else low, high)
        keys = [_key(style, run, which) for which, run in enumerate(runs)]
        if style.narrow:
            axes[-1].set_xlabel("step")
            made.legend(handles=keys, loc="outside upper left", ncols=1)
        else:
            for ax in axes[2:5]:
                ax.set_xlabel("step")
            axes[5].set_axis_off()
            axes[5].legend(handles=keys, loc="center left", handlelength=3.2)
        return made

    return Figure(
        shape=(
            "Five small line charts over steps 0 to 9: reward, log-probability gap, answer length, "
            "cut answers and gradient norm; one line for each of three runs, told apart by marker "
            "and dashes."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


@figure("fig-1-3-h200-zero-std")
def h200_zero_std() -> Figure:
    """Groups whose eight answers all got one reward, in each step of one run.

    Miles leaves a count out of the line when no group has it, so an absent cell means zero.
    """
    run_id = SEEDS[0]
    run = evidence.run(run_id)
    index = run.index
    groups = int(run.setting("rollout-batch-size"))
    zero = [int(n) for n in run.column("rollout/zero_std/count_0.0", missing=0)]
    one = [int(n) for n in run.column("rollout/zero_std/count_1.0", missing=0)]
    share = [100 * (a + b) / groups for a, b in zip(zero, one, strict=True)]

    def value(name: str, number: Any, unit: str, what: str, kind: str) -> Value:
        noun = {"steps": "steps"}.get(name, "groups") if kind == "count" else ""
        return measured(name, number, unit, 0, what=what, runs=[run_id], kind=kind, noun=noun)

    values = [
        value("count_step0_zero", zero[0], "", "zero_std/count_0:step 0", "count"),
        value("count_step0_one", one[0], "", "zero_std/count_1:step 0", "count"),
        value("groups", groups, "", "rollout_batch_size", "count"),
        value("share", share[0], "percent", "zero_std share:step 0", "share"),
        value("share_range", (min(share), max(share)), "percent", "zero_std share:range", "share"),
        value("count_last_zero", zero[-1], "", f"zero_std/count_0:step {index[-1]}", "count"),
        value("count_last_one", one[-1], "", f"zero_std/count_1:step {index[-1]}", "count"),
        value("share_last", share[-1], "percent", f"zero_std share:step {index[-1]}", "share"),
        value("steps", len(index), "", "steps", "count"),
    ]
    rows = [
        {"step": n, "all_wrong": a, "all_right": b, "groups": groups, "share_percent": c}
        for n, a, b, c in zip(index, zero, one, share, strict=True)
    ]

    def draw(style: Style) -> Any:
        made, ax = style.axes(3.2 if style.narrow else 2.8)
        mixed = [groups - a - b for a, b in zip(zero, one, strict=True)]
        look = {
            "wrong": style.bar("outside", "xxxx"),
            "right": style.bar("data", "////"),
            "mixed": style.bar("data", ""),
        }
        ax.bar(index, mixed, width=0.82, **look["mixed"])
        ax.bar(index, zero, bottom=mixed, width=0.82, **look["wrong"])
        low = [m + z for m, z in zip(mixed, zero, strict=True)]
        ax.bar(index, one, bottom=low, width=0.82, **look["right"])
        keys = [
            style.swatch("data", "all answers right: no signal", "////"),
            style.swatch("outside", "all answers wrong: no signal", "xxxx"),
            style.swatch("data", "mixed: the group teaches", ""),
        ]
        made.legend(handles=keys, loc="outside upper left", ncols=1)
        ax.set_ylim(0, groups)
        ax.set_yticks(range(0, groups + 1, 8))
        ax.set_xlim(index[0] - 0.7, index[-1] + 0.7)
        ax.set_xticks(index[:: 5 if style.narrow else 2])
        ax.set_xlabel("step")
        ax.set_ylabel("groups")
        return made

    return Figure(
        shape=(
            f"Stacked bars, one for each of {len(index)} steps: of {groups} groups, how many had "
            "mixed answers, only wrong ones and only right ones."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


@figure("fig-1-3-h200-noise")
def h200_noise() -> Figure:
    """The spread of three seeds beside the least noise that a batch mean can have.

    A mean of n answers that are right with probability p has a standard deviation of
    sqrt(p (1 - p) / n) when all answers are independent. Answers of one group share a prompt, so
    they are not, and for prompts drawn at random the true deviation is at least this.
    Both are pooled over the steps as root mean squares: the median of deviations over three values
    each would lie below the deviation that they estimate.
    """
    runs = [evidence.run(run_id) for run_id in SEEDS]
    answers = {int(run.setting("rollout-batch-size")) * _group_size(run) for run in runs}
    if len(answers) != 1:
        raise evidence.EvidenceError(f"three seeds with different batches: {sorted(answers)}")
    (answers_per_step,) = answers
    lines = [run.column(_REWARD, FIRST_TEN) for run in runs]
    means = [statistics.fmean(cells) for cells in zip(*lines, strict=True)]
    floors = [math.sqrt(p * (1 - p) / answers_per_step) for p in means]
    spreads = [statistics.stdev(cells) for cells in zip(*lines, strict=True)]
    widest = [max(cells) - min(cells) for cells in zip(*lines, strict=True)]
    values = [
        _seeds("floor", _pooled(floors), 3, "binomial floor:root mean square:steps 0 to 9"),
        _seeds("spread", _pooled(spreads), 3, f"{_REWARD}:stdev over seeds:root mean square"),
        _seeds("spread_range", (min(spreads), max(spreads)), 3, f"{_REWARD}:stdev over seeds"),
        _seeds("widest", max(widest), 2, f"{_REWARD}:widest distance of two seeds in a step"),
        measured(
            "answers",
            answers_per_step,
            "",
            0,
            what="answers per step",
            runs=SEEDS,
            kind="count",
            noun="answers",
        ),
    ]
    rows = [
        {
            "step": step,
            **{run.name: lines[which][step] for which, run in enumerate(runs)},
            "mean": means[step],
            "floor": floors[step],
            "spread": spreads[step],
        }
        for step in FIRST_TEN
    ]

    def draw(style: Style) -> Any:
        made, ax = style.axes(3.5 if style.narrow else 2.9)
        low = [m - f for m, f in zip(means, floors, strict=True)]
        high = [m + f for m, f in zip(means, floors, strict=True)]
        band = ax.fill_between(
            FIRST_TEN,
            low,
            high,
            facecolor=style.colour("grid"),
            edgecolor=style.colour("muted"),
            linewidth=0.8,
            label="mean of the runs ± floor",
        )
        keys: list[Any] = [band]
        for which, (run, line) in enumerate(zip(runs, lines, strict=True)):
            look = {**style.line("data", which), "linestyle": "none", "markersize": 5.5}
            ax.plot(FIRST_TEN, line, **look)
            keys.append(_key(style, run, which, linestyle="none"))
        made.legend(handles=keys, loc="outside upper left", ncols=1 if style.narrow else 2)
        ax.set_xticks(FIRST_TEN)
        ax.set_xlim(-0.4, 9.4)
        ax.set_xlabel("step")
        ax.set_ylabel("reward")
        return made

    return Figure(
        shape=(
            "Rewards of three runs over steps 0 to 9 as points, over a band of one binomial "
            "standard deviation around their mean."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


def _pooled(deviations: list[float]) -> float:
    return math.sqrt(statistics.fmean(one * one for one in deviations))


def _group_size(run: evidence.Run) -> int:
    return int(run.setting("n-samples-per-prompt"))


def _range_over(name: str, lines: list[list[float]]) -> Value:
    column, _, _, _, unit, digits = _FIVE[name]
    cells = [cell for line in lines for cell in line]
    return measured(
        name,
        (min(cells), max(cells)),
        unit,
        digits,
        what=f"{column}:range:steps 0 to 9",
        runs=SEEDS,
        kind=_KINDS.get(name, "metric"),
    )


def _seeds(name: str, number: Any, digits: int, what: str) -> Value:
    return measured(name, number, "", digits, what=what, runs=SEEDS, kind="metric")


def _key(style: Style, run: evidence.Run, which: int, **changes: Any) -> Any:
    from matplotlib.lines import Line2D

    look = {**style.line("ink", which), **changes}
    return Line2D([], [], label=f"{run.name}, seed {run.seed}", **look)
