"""Section 4.2: how many answers are cut, and how long the longest answer of a step is."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

from figures import answers, evidence
from figures.five_numbers import SEEDS
from figures.registry import Figure, figure
from figures.sources import cited, measured, published
from figures.style import Style
from figures.tablefigure import published_table

STEPS = tuple(range(12))  # as many as the shortest of the three runs has
LONGEST = "rollout/response_len/max"
MEDIAN = "rollout/response_len/median"
TRUNCATED = "rollout/truncated"
WITH_ANSWERS = "h200-miles/plain3"


@figure("fig-4-2-gb10")
def gb10_cut() -> Figure:
    """The cut shares that the GB10 lab published for three seeds."""
    listed = (
        (
            "cut share, first eight steps, three seeds",
            published("first", "gb10", "cut-first", kind="metric", unit=""),
        ),
        (
            "cut share, last eight steps, three seeds",
            published("last", "gb10", "cut-last", kind="metric", unit=""),
        ),
        ("limit of an answer", published("limit", "gb10", "answer-limit", kind="count")),
    )
    columns = {"what": "Number", "published": "Published"}
    return published_table([value for _, value in listed], listed, columns)


@figure("fig-4-2-dense")
def dense_bound() -> Figure:
    """The size below which the Miles documentation advises against speculative decoding."""
    bound = cited("bound", "miles-docs.speculative-dense")
    return Figure(
        shape="A table of one published value.",
        values=[bound],
        rows=[{"what": "dense model, rollout is the bottleneck", "published": bound.text}],
        columns={"what": "Advised against below", "published": "Published"},
    )


@figure("fig-4-2-h200")
def h200_longest() -> Figure:
    """The longest and the median answer of each step, in three seeds."""
    runs = [evidence.run(run_id) for run_id in SEEDS]
    limit = runs[0].setting("rollout-max-response-len")
    longest = [run.column(LONGEST, STEPS) for run in runs]
    medians = [run.column(MEDIAN, STEPS) for run in runs]
    shares = [run.column(TRUNCATED, STEPS) for run in runs]
    flat = {
        "longest": list(itertools.chain.from_iterable(longest)),
        "median": list(itertools.chain.from_iterable(medians)),
        "cut": [100 * cell for cell in itertools.chain.from_iterable(shares)],
    }
    ratios = [a / b for a, b in zip(flat["longest"], flat["median"], strict=True)]
    at_limit = sum(cell >= limit for cell in flat["longest"])
    stored = [
        answer
        for step in answers.STEPS
        for answer in answers.of_step(runs[SEEDS.index(WITH_ANSWERS)], step).values()
        if len(answer.tokens) >= limit
    ]

    def number(name: str, value: Any, unit: str, digits: int, what: str, **more: Any) -> Any:
        what = f"{what}:12 steps of three seeds"
        return measured(name, value, unit, digits, what=what, runs=SEEDS, **more)

    values = [
        number("limit", limit, "tokens", 0, "rollout-max-response-len", kind="count"),
        number("median", _span(flat["median"]), "tokens", 1, f"{MEDIAN}:range", kind="count"),
        number("longest", _span(flat["longest"]), "tokens", 0, f"{LONGEST}:range", kind="count"),
        number("ratio", statistics.median(ratios), "times", 1, "longest over median:median"),
        number("cut", _span(flat["cut"]), "percent", 1, f"{TRUNCATED}:range, percent"),
        number("steps_cut", at_limit, "", 0, "steps with a cut answer", kind="count", noun="steps"),
        number("steps", len(ratios), "steps", 0, "steps", kind="count"),
        measured(
            "cut_stored",
            len(stored),
            "",
            0,
            what="answers at the limit:steps 0 and 1",
            runs=[WITH_ANSWERS],
            kind="count",
            noun="answers",
        ),
        measured(
            "cut_reward",
            max((answer.reward for answer in stored), default=0),
            "",
            1,
            what="largest reward of an answer at the limit:steps 0 and 1",
            runs=[WITH_ANSWERS],
            kind="metric",
        ),
    ]
    rows = [
        {
            "run": run.name,
            "step": step,
            "median_tokens": medians[at][step],
            "longest_tokens": longest[at][step],
            "cut_share": shares[at][step],
        }
        for at, run in enumerate(runs)
        for step in STEPS
    ]

    def draw(style: Style) -> Any:
        made, ax = style.axes(3.4 if style.narrow else 3.0)
        for at, run in enumerate(runs):
            look = {**style.line("data", at), "linestyle": "none"}
            ax.plot(STEPS, longest[at], **look, label=f"longest, {run.name}")
        for at in range(len(runs)):
            label = "median, each seed" if at == 0 else None
            ax.plot(STEPS, medians[at], color=style.colour("engine"), linewidth=1.4, label=label)
        dashes = {"linewidth": 0.9, "linestyle": (0, (4, 2))}
        ax.axhline(limit, color=style.colour("failure"), **dashes, label="limit")
        ax.set_ylim(0, limit * 1.1)
        ax.set_xticks(STEPS[::3])
        ax.set_xlabel("step")
        ax.set_ylabel("tokens of an answer")
        made.legend(loc="outside upper left", ncols=1 if style.narrow else 3)
        return made

    return Figure(
        shape=(
            "A chart over twelve steps: a point for the longest answer of each of three runs, "
            "lines for the median answers far below, and a dashed line at the limit."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


def _span(cells: list[float]) -> tuple[float, float]:
    return min(cells), max(cells)
