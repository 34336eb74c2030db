"""Section 4.4: the gap with a cut sampler; with replay as reported, without replay as measured."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

from figures import answers, evidence
from figures.five_numbers import SEEDS
from figures.registry import Figure, figure
from figures.sources import measured, published
from figures.style import Style

CUT = "h200-miles/topp2"  # top-p 0.95, top-k 64; this Miles has no sampling replay
GAP = "train/train_rollout_logprob_abs_diff"
ENGINE = "rollout/rollout_log_probs"
TRAINER = "rollout/log_probs"
STEPS = tuple(range(12))  # as many as the shortest of the runs has
STORED = "h200-miles/plain3"  # a plain seed whose answers of two steps are stored
TOP_P = 0.95

_LOST = "lost"


@figure("fig-4-4-gap")
def gb10_gap() -> Figure:
    """The two runs of the GB10 lab: full vocabulary without replay, cut sampler with replay."""
    without = published("without", "gb10", "replay-gap-without", kind="metric")
    replay = published("replay", "gb10", "replay-gap-with", kind="metric")
    percent = published("percent", "gb10", "replay-gap-percent")
    steps = published("steps", "gb10", "replay-steps", kind="count")
    rows = [
        ("e6a-base", "not set", "no", without.text, _LOST),
        ("e11-topp-topk", "top-p 0.95, top-k 64", "yes", replay.text, _LOST),
        ("difference, as printed", "", "", percent.text, ""),
        ("length of the second run", "", "", steps.text, ""),
    ]
    return Figure(
        shape="A table with one row for each of two runs, their difference and their length.",
        values=[without, replay, percent, steps],
        rows=[
            {"run": run, "cut": cut, "replay": on, "gap": text, "range": span}
            for run, cut, on, text, span in rows
        ],
        columns={
            "run": "Run",
            "cut": "Sampler cut",
            "replay": "Replay",
            "gap": "Median gap",
            "range": "Range of the steps",
        },
    )


@figure("fig-4-4-mass")
def kept_mass() -> Figure:
    """The worked example of the GB10 lab: how far a kept mass moves a log-probability."""
    mass = published("mass", "gb10", "kept-mass", kind="metric", unit="")
    shift = published("shift", "gb10", "kept-mass-log", kind="metric")
    return Figure(
        shape="A table with one row: a kept mass and the shift that follows from it.",
        values=[mass, shift],
        rows=[{"mass": mass.text, "shift": shift.text}],
        columns={"mass": "Kept mass", "shift": "Shift of each log-probability"},
    )


@figure("fig-4-4-h200")
def h200_gap() -> Figure:
    """Gap of each step: one run with a cut sampler and no replay beside three plain seeds."""
    plain = [evidence.run(run_id) for run_id in SEEDS]
    cut = evidence.run(CUT)
    lines = [run.column(GAP, STEPS) for run in plain]
    cut_line = cut.column(GAP, STEPS)
    medians = [statistics.median(line) for line in lines]
    low = [min(cells) for cells in zip(*lines, strict=True)]
    below = [step for step in STEPS if cut_line[step] < low[step]]
    signed = {
        run.id: [
            engine - trainer
            for engine, trainer in zip(
                run.column(ENGINE, STEPS), run.column(TRAINER, STEPS), strict=True
            )
        ]
        for run in (*plain, cut)
    }
    of_plain = list(itertools.chain.from_iterable(signed[run.id] for run in plain))

    def number(name: str, value: Any, digits: int, what: str, of: Any) -> Any:
        return measured(name, value, "", digits, what=f"{what}:12 steps", runs=of, kind="metric")

    flat = list(itertools.chain.from_iterable(lines))
    values = [
        number("plain", (min(medians), max(medians)), 4, f"{GAP}:median, range", SEEDS),
        number("cut", statistics.median(cut_line), 4, f"{GAP}:median", [CUT]),
        number("plain_steps", (min(flat), max(flat)), 4, f"{GAP}:range", SEEDS),
        number("cut_steps", (min(cut_line), max(cut_line)), 4, f"{GAP}:range", [CUT]),
        number("plain_signed", _span(of_plain), 4, "engine minus trainer:range", SEEDS),
        number("cut_signed", _span(signed[CUT]), 4, "engine minus trainer:range", [CUT]),
        measured(
            "would",
            _span(_shift_of_certain_tokens()),
            "",
            4,
            what="shift of tokens that reach top-p alone:mean over answers:2 steps",
            runs=[STORED],
            kind="metric",
        ),
        measured(
            "below",
            len(below),
            "",
            0,
            what=f"{GAP}:steps below the lowest of three:12 steps",
            runs=(*SEEDS, CUT),
            kind="count",
            noun="steps",
        ),
        measured("steps", len(STEPS), "steps", 0, what="steps", runs=(*SEEDS, CUT), kind="count"),
    ]
    rows = [
        {
            "run": run.name,
            "seed": run.seed,
            "step": step,
            "gap": run.column(GAP, (step,))[0],
            "engine_minus_trainer": signed[run.id][step],
        }
        for run in (*plain, cut)
        for step in STEPS
    ]

    def draw(style: Style) -> Any:
        made = style.canvas(5.2 if style.narrow else 3.0)
        axes = made.subplots(2, 1) if style.narrow else made.subplots(1, 2)
        for ax in axes:
            style.plain(ax)
            ax.set_xticks(STEPS[::3])
            ax.set_xlabel("step")
        for which, run in enumerate(plain):
            axes[0].plot(STEPS, lines[which], **style.line("trainer", which), label=run.name)
            axes[1].plot(STEPS, signed[run.id], **style.line("trainer", which))
        look = style.line("engine", 3)
        axes[0].plot(STEPS, cut_line, **look, label="topp2, cut sampler")
        axes[1].plot(STEPS, signed[CUT], **look)
        axes[1].axhline(0, color=style.colour("muted"), linewidth=0.9)
        axes[0].set_title("log-probability gap")
        axes[1].set_title("engine minus trainer, mean")
        made.legend(loc="outside upper left", ncols=2, handlelength=3.2)
        return made

    return Figure(
        shape=(
            "Two line charts over twelve steps, one line for each of four runs: the gap, and the "
            "mean of the engine's log-probability minus the trainer's, around zero."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


def _shift_of_certain_tokens() -> list[float]:
    """What tokens that reach top-p alone would add to engine minus trainer, for each stored step.

    The kept set of such a token is the token, so over the kept set its log-probability is zero.
    Other tokens add to it, so an engine that reports over the kept set adds at least this much.
    """
    run = evidence.run(STORED)
    return [
        statistics.fmean(
            -sum(lp for lp in answer.log_probs if math.exp(lp) >= TOP_P) / len(answer.log_probs)
            for answer in answers.of_step(run, step).values()
        )
        for step in answers.STEPS
    ]


def _span(cells: list[float]) -> tuple[float, float]:
    return min(cells), max(cells)
