"""Part 6: the cost of a weight update beside a step, and published values of 6.2 and 6.3."""

from __future__ import annotations

from figures import evidence
from figures.registry import Figure, figure
from figures.sources import measured, published
from figures.tablefigure import published_table

TIMED = "h200-miles/plain_s1234"


@figure("fig-6-1-update-share")
def update_share() -> Figure:
    """Weight update and waiting beside the whole step, in the one run whose times may be shown.

    Step 0 is left out: its line holds the very first update, which comes before any training.
    """
    run = evidence.run(TIMED)
    later = run.index[1:]
    columns = (
        ("step", "whole step", "perf/step_time"),
        ("update", "weight update", "perf/update_weights_time"),
        ("wait", "trainer waits", "perf/train_wait_time"),
        ("rollout", "of that: rollout", "perf/rollout_time"),
    )
    medians = {name: run.median(column, later) for name, _, column in columns}
    values = [
        measured(
            name,
            medians[name],
            "s",
            2,
            what=f"{column}:median:from step 1",
            runs=[TIMED],
        )
        for name, _, column in columns
    ]
    shares = {
        name: measured(
            f"{name}_share",
            100 * medians[name] / medians["step"],
            "percent",
            0,
            what=f"{column}:median over step:from step 1",
            runs=[TIMED],
        )
        for name, _, column in columns[1:]
    }
    rows = [
        {
            "part": label,
            "key": column,
            "median": value.text,
            "share": shares[name].text if name in shares else "",
        }
        for (name, label, column), value in zip(columns, values, strict=True)
    ]
    return Figure(
        shape="A table of medians and of their shares of the median step.",
        values=[*values, *shares.values()],
        rows=rows,
        columns={"part": "Part", "key": "Key", "median": "Median", "share": "Share of the step"},
    )


def _published(rows: list[tuple[str, str, str, str]], heading: str) -> Figure:
    """A table of published counts: what, name, id of the value, noun."""
    values = [
        published(
            name,
            "gb10",
            value_id,
            kind="time" if noun == "" else "count",
            **({} if noun == "" else {"unit": "", "noun": noun}),
        )
        for _, name, value_id, noun in rows
    ]
    columns = {"what": heading, "published": "Published"}
    return published_table(values, rows, columns, "A table of published values.")


@figure("fig-6-2-gb10-eval")
def eval_gb10() -> Figure:
    """The two evaluations that the GB10 lab tried, as published."""
    return _published(
        [
            ("runs that stopped before step 0", "stopped", "eval-tries", "runs|evaluation runs"),
            ("test questions of the first evaluation", "questions", "eval-questions", "questions"),
            ("steps asked for", "steps", "eval-steps", "steps"),
        ],
        "Evaluation on the training engine",
    )


@figure("fig-6-3-gb10-resume")
def resume_gb10() -> Figure:
    """The restart test of the GB10 lab, and the calculation of its advice, as published."""
    return _published(
        [
            ("steps of the first run", "steps_first", "resume-steps-a", "steps"),
            ("steps asked for in the second run", "steps_second", "resume-steps-b", "steps"),
            (
                "number of the first step line after the load",
                "first_step",
                "resume-first-step",
                "step",
            ),
            ("work lost at most, in the example", "lost", "save-loss", ""),
        ],
        "Restart test of the GB10 lab",
    )
