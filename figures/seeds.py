"""Section 5.3: how far three seeds of one recipe spread, at the start and at the end."""

from __future__ import annotations

import statistics
from typing import Any

from figures import evidence
from figures.five_numbers import SEEDS
from figures.health import SIGNALS, STEPS, legend, range_value, series
from figures.registry import Figure, figure
from figures.sources import measured, published
from figures.style import Style
from figures.tablefigure import published_table

WINDOW = 4  # steps at either end: a third of the steps that all seeds have
PANELS = ("reward", "length", "cut")
ENDS = {"first": slice(0, WINDOW), "last": slice(len(STEPS) - WINDOW, len(STEPS))}

# what, over what, name of the value, id in reported.toml, kind, unit (None: that of the source)
_GB10 = (
    ("reward", "mean of the last eight steps, three seeds", "reward_last", "reward-last", ""),
    ("reward", "width of that spread", "noise", "reward-noise", ""),
    ("cut share", "first eight steps, three seeds", "cut_first", "cut-first", ""),
    ("cut share", "last eight steps, three seeds", "cut_last", "cut-last", ""),
    ("gap", "every step", "gap", "healthy-gap", ""),
    ("reward change", "on one seed: no evidence", "small", "rule-small", ""),
    ("reward change", "on two seeds: worth a third", "large", "rule-large", ""),
    ("rollout", "run e6a-base, median of all steps", "all", "e6a-rollout-all", None),
    ("rollout", "run e6a-base, median of clean steps", "clean", "e6a-clean-rollout", None),
    ("steps", "run e6a-base, clean ones", "clean_steps", "e6a-clean", None),
    ("rollout", "run plain-48, median of all steps", "plain48", "plain48-median-rollout", None),
    ("rollout", "run plain-48, those same step numbers", "same", "plain48-rollout-same-6", None),
    ("days", "between the two runs", "days", "days-apart", None),
)


@figure("fig-5-3-h200-seeds")
def h200_seeds() -> Figure:
    """Mean of the first and of the last steps of each seed, one panel a signal."""
    runs = [evidence.run(run_id) for run_id in SEEDS]
    data = {name: [series(run, name) for run in runs] for name in (*PANELS, "gap")}
    means = {
        (name, end): [statistics.fmean(line[part]) for line in data[name]]
        for name in PANELS
        for end, part in ENDS.items()
    }
    places = {end: f"steps {STEPS[part][0]} to {STEPS[part][-1]}" for end, part in ENDS.items()}
    values = []
    for (name, end), cells in means.items():
        column, _, _, _, unit, digits, kind = SIGNALS[name]
        what = f"{column}:mean of {places[end]}:range over seeds"
        what += ", percent" if unit == "percent" else ""
        found = (min(cells), max(cells))
        digits = 3 if name == "reward" else digits
        values.append(
            measured(f"{name}_{end}", found, unit, digits, what=what, runs=SEEDS, kind=kind)
        )
    gains = [b - a for a, b in zip(means["reward", "first"], means["reward", "last"], strict=True)]
    last = means["reward", "last"]

    def number(name: str, found: Any, digits: int, what: str, unit: str = "") -> Any:
        kind = "count" if unit else "metric"
        return measured(name, found, unit, digits, what=what, runs=SEEDS, kind=kind)

    values += [
        number("gain", (min(gains), max(gains)), 3, "raw_reward:last minus first mean"),
        number("width", max(last) - min(last), 3, "raw_reward:width of the last means"),
        number("window", WINDOW, 0, "steps at either end", "steps"),
        range_value("gap", data["gap"]),
    ]
    rows = [
        {
            "run": run.name,
            "seed": run.seed,
            **{f"{name}_{end}": means[name, end][which] for name in PANELS for end in ENDS},
        }
        for which, run in enumerate(runs)
    ]

    def draw(style: Style) -> Any:
        made = style.canvas(5.6 if style.narrow else 2.8)
        axes = made.subplots(3, 1) if style.narrow else made.subplots(1, 3)
        for ax, name in zip(axes, PANELS, strict=True):
            style.plain(ax)
            for which in range(len(runs)):
                ends = [means[name, end][which] for end in ENDS]
                ax.plot((0, 1), ends, **style.line("data", which))
            ax.set_title(SIGNALS[name][1])
            ax.set_xlim(-0.25, 1.25)
            ax.set_xticks((0, 1), list(places.values()))
        columns = 1 if style.narrow else 3
        made.legend(handles=legend(style, runs), loc="outside upper left", ncols=columns)
        return made

    return Figure(
        shape=(
            "Three small charts: reward, answer length and cut answers. In each, one line a seed "
            "joins the mean of the first steps with the mean of the last."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


@figure("fig-5-3-gb10")
def gb10_seeds() -> Figure:
    """What the GB10 lab published of its seeds and of its clean steps."""
    values = [
        published(
            name,
            "gb10",
            value_id,
            kind="metric" if unit == "" else "count" if name == "clean_steps" else "time",
            unit=unit,
        )
        for _, _, name, value_id, unit in _GB10
    ]
    columns = {"what": "What", "over": "Over", "published": "Published"}
    return published_table(values, _GB10, columns)
