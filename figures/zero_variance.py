"""Section 3.2: what the zero-variance filter drops, as published and in one run of our own."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

from figures import evidence
from figures.registry import Figure, figure
from figures.sources import measured, published
from figures.style import Style
from figures.tablefigure import published_table

FILTER = "h200-miles/filter"
PLAIN = ("h200-miles/plain_s1234", "h200-miles/plain_s4321", "h200-miles/plain3")
STEPS = range(8)
GROUPS = 32  # of a step, the setting rollout-batch-size
LOST = "lost"

_REWARD = "rollout/raw_reward"
_DROPPED = ("rollout/dynamic_filter/drop_zero_std_0.0", "rollout/dynamic_filter/drop_zero_std_1.0")
_ZERO = ("rollout/zero_std/count_0.0", "rollout/zero_std/count_1.0")
_LEFT = ("rollout/zero_std/all_zero_percentage", "rollout/zero_std/all_one_percentage")


@figure("fig-3-2-gb10-counts")
def gb10_counts() -> Figure:
    """The published counts of groups with one reward, with and without the filter."""
    # The source says "about half".
    half = published("share", "gb10", "plain-dead-share", kind="share")
    share = replace(half, unit="", digits=1, noun="share")
    dropped = published("dropped", "gb10", "filter-dropped", kind="count")
    median = published("median", "gb10", "filter-dropped-median", kind="count")
    steps = published("steps", "gb10", "filter-steps", kind="count")
    rows = [
        _count_row("without the filter", "about half of the groups", LOST),
        _count_row("with the filter", f"{dropped.text} dropped", median.text),
    ]
    return Figure(
        shape="A table with one row for each of two runs. The split by reward is lost.",
        values=[share, dropped, median, steps],
        rows=rows,
        columns={
            "run": "Run",
            "right": "All right",
            "wrong": "All wrong",
            "total": "Groups with one reward",
            "median": "Median of a step",
        },
    )


def _count_row(run: str, total: str, median: str) -> dict[str, str]:
    return {"run": run, "right": LOST, "wrong": LOST, "total": total, "median": median}


# what, over what, name of the value, id in reported.toml, kind, unit (None: that of the source)
_COST = (
    ("rollout", "without the filter, pauses taken out", "plain", "e6a-rollout-no-pause", None),
    ("rollout", "without the filter, clean steps", "clean", "e6a-clean-rollout", None),
    ("clean steps", "without the filter", "clean_steps", "e6a-clean", None),
    ("steps", "with one over-sampling batch", "few", "filter-few-steps", None),
    ("most dropped", "in those steps", "few_dropped", "filter-few-dropped", None),
    ("rollout", "in those steps, pauses taken out", "few_rollout", "filter-few-rollout", None),
    ("ratio", "in those steps", "few_ratio", "filter-few-ratio", None),
    ("steps", "with a second batch", "many", "filter-many-steps", None),
    ("rollout", "in those steps, pauses taken out", "many_rollout", "filter-many-rollout", None),
    ("ratio", "in those steps", "many_ratio", "filter-many-ratio", None),
    ("ratio", "both kinds of steps", "ratio", "filter-time-ratio", None),
    ("ratio", "prompts of a batch, 48 to 32", "work", "filter-work-ratio", None),
    ("all 12 steps", "with the filter, pauses inside", "total", "filter-total", None),
    ("all 12 steps", "without it, pauses inside", "plain_total", "e6a-total", None),
    ("steps", "of either run", "steps", "filter-run-steps", None),
)


@figure("fig-3-2-gb10-cost")
def gb10_cost() -> Figure:
    """What the extra prompts cost the GB10 lab, and how it took the heat pauses out."""
    return _published_table(_COST)


_REWARDS = (
    ("mean reward", "12 steps, with the filter, unfiltered", "filter", "filter-reward", ""),
    ("mean reward", "12 steps, without it", "plain", "e6a-reward", ""),
    ("mean reward", "12 steps, baseline runs", "baselines", "baseline-reward-12", ""),
    ("baseline runs", "count", "runs", "baseline-runs", ""),
    ("mean reward", "first 4 steps, with it", "filter_first", "filter-reward-first4", ""),
    ("mean reward", "first 4 steps, without it", "plain_first", "e6a-reward-first4", ""),
)


@figure("fig-3-2-gb10-reward")
def gb10_reward() -> Figure:
    """The rewards that the GB10 lab compared."""
    return _published_table(_REWARDS)


def _published_table(rows: tuple[tuple[str, str, str, str, str | None], ...]) -> Figure:
    values = []
    for what, _, name, value_id, unit in rows:
        counted = what in ("clean steps", "steps", "most dropped", "baseline runs")
        kind = "count" if counted else "metric" if what in ("mean reward", "ratio") else ""
        values.append(published(name, "gb10", value_id, kind=kind, unit=unit))
    columns = {"what": "What", "over": "Over", "published": "Published"}
    return published_table(values, rows, columns)


@figure("fig-3-2-h200-drops")
def h200_drops() -> Figure:
    """Groups that the filter dropped in each step of our run, by reward, and what was kept."""
    run = evidence.run(FILTER)
    wrong, right = (run.column(name, STEPS, missing=0) for name in _DROPPED)
    kept = run.column(_REWARD, STEPS)
    left = max(max(run.column(name, STEPS)) for name in _LEFT)
    batch = int(run.setting("over-sampling-batch-size"))
    spare = batch - int(run.setting("rollout-batch-size"))
    dropped = [a + b for a, b in zip(wrong, right, strict=True)]
    second = [step for step in STEPS if dropped[step] > spare]
    finished = [GROUPS + count for count in dropped]
    before = [
        (GROUPS * mean + ones) / count
        for mean, ones, count in zip(kept, right, finished, strict=True)
    ]

    def number(name: str, found: Any, unit: str, what: str, digits: int = 0, noun: str = "") -> Any:
        kind = "metric" if digits else "" if unit == "percent" else "count"
        return measured(name, found, unit, digits, what=what, runs=[FILTER], kind=kind, noun=noun)

    share = sum(dropped) / sum(finished) * 100
    wrongs = sum(wrong) / sum(dropped) * 100
    values = [
        number("steps", len(STEPS), "steps", "steps with an update"),
        number("dropped", (min(dropped), max(dropped)), "groups", "dropped groups:range"),
        number("median", statistics.median(dropped), "groups", "dropped groups:median", digits=1),
        number("share", share, "percent", "dropped:share of finished groups"),
        number("wrong", wrongs, "percent", "dropped with reward 0:share of dropped groups"),
        number("spare", spare, "groups", "over-sampling batch minus rollout batch"),
        number("second", len(second), "steps", "steps with over 16 dropped groups"),
        number("one", len(STEPS) - len(second), "steps", "steps with at most 16 dropped groups"),
        number(
            "second_dropped",
            (min(dropped[step] for step in second), max(dropped[step] for step in second)),
            "groups",
            "dropped groups of the steps with a second batch",
        ),
        number("left", left, "", "zero-variance groups among the kept", noun="groups"),
        number("kept", statistics.fmean(kept), "", f"{_REWARD}:mean", digits=3),
        number("before", statistics.fmean(before), "", "mean reward of finished groups", digits=3),
        number("kept0", kept[0], "", f"{_REWARD}:step 0", digits=3),
        number("before0", before[0], "", "mean reward of finished groups:step 0", digits=3),
    ]
    rows = [
        {
            "step": step,
            "dropped_all_wrong": wrong[step],
            "dropped_all_right": right[step],
            "kept": GROUPS,
            "reward_of_kept": kept[step],
            "reward_of_finished": before[step],
        }
        for step in STEPS
    ]

    def draw(style: Style) -> Any:
        made, ax = style.axes(2.6)
        ax.bar(STEPS, wrong, width=0.72, **style.bar("failure", "///"))
        ax.bar(STEPS, right, bottom=wrong, width=0.72, **style.bar("data"))
        ax.axhline(spare, color=style.colour("ink"), linewidth=1.1, linestyle=(0, (4, 2)))
        ax.set_ylabel("dropped groups")
        ax.set_xlabel("step")
        ax.set_xticks(STEPS)
        line = ax.plot([], [], color=style.colour("ink"), linestyle=(0, (4, 2)), linewidth=1.1)[0]
        line.set_label("above it: a second batch")
        keys = [
            style.swatch("failure", "all wrong", "///"),
            style.swatch("data", "all right"),
            line,
        ]
        made.legend(handles=keys, loc="outside upper left", ncols=1 if style.narrow else 3)
        return made

    return Figure(
        shape=(
            "Stacked bars, one a step: groups dropped because all answers were wrong, and because "
            "all were right. A dashed line marks the number above which a second batch is sent."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


@figure("fig-3-2-h200-peers")
def h200_peers() -> Figure:
    """The same steps of three runs without the filter: zero-variance groups and the reward."""
    runs = [evidence.run(run_id) for run_id in PLAIN]
    zero, reward, rows = [], [], []
    for run in runs:
        wrong, right = (run.column(name, STEPS, missing=0) for name in _ZERO)
        both = [a + b for a, b in zip(wrong, right, strict=True)]
        zero.append(sum(both) / (GROUPS * len(STEPS)) * 100)
        reward.append(statistics.fmean(run.column(_REWARD, STEPS)))
        rows.append(
            {
                "run": run.name,
                "wrong": f"{min(wrong):g} to {max(wrong):g}",
                "right": f"{min(right):g} to {max(right):g}",
                "share": f"{zero[-1]:.0f} percent",
                "reward": f"{reward[-1]:.3f}",
            }
        )
    values = [
        measured(
            "share",
            (min(zero), max(zero)),
            "percent",
            0,
            what="zero-variance groups:share of steps 0 to 7:range",
            runs=PLAIN,
        ),
        measured(
            "reward",
            (min(reward), max(reward)),
            "",
            3,
            what=f"{_REWARD}:mean of steps 0 to 7:range",
            runs=PLAIN,
            kind="metric",
        ),
    ]
    return Figure(
        shape="A table with one row for each of three runs without the filter.",
        values=values,
        rows=rows,
        columns={
            "run": "Run",
            "wrong": "All wrong, a step",
            "right": "All right, a step",
            "share": "Share of groups",
            "reward": "Mean reward",
        },
    )
