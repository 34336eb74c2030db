"""Section 5.1: the eight signals over the steps that three seeds have in common."""

from __future__ import annotations

from typing import Any

from figures import evidence
from figures.five_numbers import SEEDS
from figures.registry import Figure, figure
from figures.sources import measured, published
from figures.style import Style
from figures.tablefigure import published_table
from figures.values import Value

STEPS = tuple(range(12))  # the shortest of the three runs has so many

GAP = "train/train_rollout_logprob_abs_diff"
GROUPS = "zero_std share"  # computed here: two counts over the groups of a step
# name -> column, panel title, role of its colour, factor, unit, decimals, kind
SIGNALS = {
    "reward": ("rollout/raw_reward", "reward", "data", 1, "", 2, "metric"),
    "gap": (GAP, "log-probability gap", "trainer", 1, "", 4, "metric"),
    "length": (
        "rollout/response_lengths",
        "answer length, tokens",
        "data",
        1,
        "tokens",
        1,
        "count",
    ),
    "cut": ("rollout/truncated", "cut answers, percent", "data", 100, "percent", 1, "share"),
    "gradnorm": ("train/grad_norm", "gradient norm", "trainer", 1, "", 2, "metric"),
    "entropy": ("rollout/entropy", "entropy, nats", "trainer", 1, "", 2, "metric"),
    "groups": (GROUPS, "one-reward groups, percent", "data", 100, "percent", 0, "share"),
}
ZEROS = {"kl": "train/ppo_kl", "clip": "train/pg_clipfrac"}

_GB10 = (
    ("reward", "largest change from one step to the next, 48 steps", "move48", "reward-move-48"),
    ("reward", "mean of the last eight steps, three seeds", "reward_last", "reward-last"),
    ("gap", "every step of the runs with the default sampler", "gap", "healthy-gap"),
    ("gap", "first step of the healthy runs", "gap0", "healthy-gap-0"),
    ("cut share", "first eight steps, three seeds", "cut_first", "cut-first"),
    ("cut share", "last eight steps, three seeds", "cut_last", "cut-last"),
    ("clip fraction", "first step", "clip", "clipfrac-0"),
    ("entropy", "train/entropy_loss, every step", "entropy_loss", "entropy-loss"),
)


def series(run: evidence.Run, name: str) -> list[float]:
    """A signal of one run over STEPS, in the unit of its panel.

    Miles leaves a zero-variance count out of the line when it is 0.
    """
    column, _, _, factor, *_ = SIGNALS[name]
    if name != "groups":
        return [cell * factor for cell in run.column(column, STEPS)]
    groups = int(run.setting("rollout-batch-size"))
    counts = [run.column(f"rollout/zero_std/count_{r}", STEPS, missing=0) for r in ("0.0", "1.0")]
    return [factor * sum(pair) / groups for pair in zip(*counts, strict=True)]


def range_value(name: str, lines: list[list[float]]) -> Value:
    """Smallest and largest step of a signal over the three seeds."""
    column, _, _, _, unit, digits, kind = SIGNALS[name]
    cells = [cell for line in lines for cell in line]
    what = f"{column}:range:steps 0 to {STEPS[-1]}{', percent' if unit == 'percent' else ''}"
    return measured(name, (min(cells), max(cells)), unit, digits, what=what, runs=SEEDS, kind=kind)


@figure("fig-5-1-h200-signals")
def h200_signals() -> Figure:
    """Seven visible signals, one small panel each; the two that are zero are values only."""
    runs = [evidence.run(run_id) for run_id in SEEDS]
    data = {name: [series(run, name) for run in runs] for name in SIGNALS}
    zeros = {name: [run.column(column, STEPS) for run in runs] for name, column in ZEROS.items()}
    values = [range_value(name, data[name]) for name in SIGNALS]
    for name, column in ZEROS.items():
        largest = max(abs(cell) for line in zeros[name] for cell in line)
        what = f"{column}:largest size:steps 0 to {STEPS[-1]}"
        values.append(measured(name, largest, "", 10, what=what, runs=SEEDS, kind="metric"))
    what = "steps in common"
    values.append(measured("steps", len(STEPS), "steps", 0, what=what, runs=SEEDS, kind="count"))
    rows = [
        {
            "run": run.name,
            "step": step,
            **{name: data[name][which][step] for name in SIGNALS},
            **{name: zeros[name][which][step] for name in ZEROS},
        }
        for which, run in enumerate(runs)
        for step in STEPS
    ]

    def draw(style: Style) -> Any:
        made = style.canvas(10.4 if style.narrow else 5.6)
        axes = made.subplots(7, 1, sharex=True) if style.narrow else made.subplots(3, 3).ravel()
        for ax, (name, (_, title, role, *_)) in zip(axes, SIGNALS.items(), strict=False):
            style.plain(ax)
            for which, line in enumerate(data[name]):
                ax.plot(STEPS, line, **style.line(role, which))
            ax.set_title(title)
            ax.set_xticks(STEPS[::3])
            ax.set_xlim(-0.4, STEPS[-1] + 0.4)
        keys = legend(style, runs)
        if style.narrow:
            axes[-1].set_xlabel("step")
            made.legend(handles=keys, loc="outside upper left", ncols=1)
        else:
            for ax in axes[4:7]:
                ax.set_xlabel("step")
            axes[8].set_axis_off()
            axes[7].set_axis_off()
            axes[7].legend(handles=keys, loc="center left", handlelength=3.2)
        return made

    return Figure(
        shape=(
            f"Seven small line charts over steps 0 to {STEPS[-1]}: reward, log-probability gap, "
            "answer length, cut answers, gradient norm, entropy, and groups with one reward; one "
            "line for each of three runs, told apart by marker and dashes."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


@figure("fig-5-1-gb10")
def gb10_signals() -> Figure:
    """What the GB10 lab published of the signals; its table of ranges is lost."""
    values = [
        published(name, "gb10", value_id, kind="metric", unit="") for *_, name, value_id in _GB10
    ]
    columns = {"signal": "Signal", "what": "Over", "published": "Published"}
    return published_table(values, _GB10, columns)


def legend(style: Style, runs: list[evidence.Run]) -> list[Any]:
    """Legend entries that name run and seed."""
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], label=f"{run.name}, seed {run.seed}", **style.line("ink", which))
        for which, run in enumerate(runs)
    ]
