"""Section 4.5: what deterministic inference repeats, what it does not, and the gap with it."""

from __future__ import annotations

import statistics
from typing import Any

from figures import answers, evidence
from figures.registry import Figure, figure
from figures.sources import measured, published
from figures.style import Style
from figures.tablefigure import published_table

TWINS = ("h200-miles/determ", "h200-miles/determ2")
PEER = "h200-miles/plain3"  # the same seeds, deterministic inference off
GAP = "train/train_rollout_logprob_abs_diff"
GRAD = "train/grad_norm"
REWARD = "rollout/raw_reward"
TRAINER = "rollout/log_probs"
_LOST = "lost"
PAIRS = {"determ and determ2": "equal runs", "determ and plain3": "with plain3"}


@figure("fig-4-5-repeat")
def repeat() -> Figure:
    """Answers that two runs share in steps 0 and 1: the deterministic pair, and one with a peer."""
    one, two, peer = (evidence.run(run_id) for run_id in (*TWINS, PEER))
    pairs = {
        ("determ and determ2", step): answers.compare(
            answers.of_step(one, step), answers.of_step(two, step)
        )
        for step in answers.STEPS
    }
    apart = answers.compare(answers.of_step(one, 0), answers.of_step(peer, 0))
    pairs["determ and plain3", 0] = apart
    norms = [run.column(GRAD, (0,))[0] for run in (one, two)]
    trainer = [run.column(TRAINER, (0,))[0] for run in (one, two)]
    if trainer[0] != trainer[1]:
        raise evidence.EvidenceError("the trainers of the pair differ in their log-probabilities")
    first, second = (pairs["determ and determ2", step] for step in answers.STEPS)

    def count(name: str, number: int, what: str, of: Any, noun: str = "answers") -> Any:
        return measured(name, number, "", 0, what=what, runs=of, kind="count", noun=noun)

    with_peer = (TWINS[0], PEER)
    values = [
        count("answers", first.answers, "answers:step 0", TWINS),
        count("same", first.same_text, "answers with equal tokens:step 0", TWINS),
        count("same_values", first.same_log_probs, "answers with equal values:step 0", TWINS),
        count("tokens", first.tokens, "tokens:step 0", TWINS, "tokens|log-probabilities"),
        count("later", second.same_text, "answers with equal tokens:step 1", TWINS),
        count("later_values", second.same_log_probs, "answers with equal values:step 1", TWINS),
        count("peer", apart.same_text, "answers with equal tokens:step 0", with_peer),
        measured("trainer", trainer[0], "", 6, what=f"{TRAINER}:step 0", runs=TWINS, kind="metric"),
        measured("norm", norms[0], "", 5, what=f"{GRAD}:step 0", runs=TWINS[:1], kind="metric"),
        measured("norm2", norms[1], "", 5, what=f"{GRAD}:step 0", runs=TWINS[1:], kind="metric"),
    ]
    rows = [
        {
            "pair": PAIRS[runs],
            "runs": runs,
            "step": step,
            "answers": pair.answers,
            "same_tokens": pair.same_text,
            "same_values": pair.same_log_probs,
            "same_rewards": pair.same_rewards,
        }
        for (runs, step), pair in pairs.items()
    ]

    def draw(style: Style) -> Any:
        made, ax = style.axes(2.7 if style.narrow else 2.3, grid="x")
        for place, row in enumerate(rows):
            role = "engine" if "determ2" in row["runs"] else "outside"
            style.labelled_bar(ax, place, row["same_tokens"], role, str(row["same_tokens"]))
        ax.axvline(first.answers, color=style.colour("muted"), linewidth=0.9, linestyle=(0, (4, 2)))
        ax.set_yticks(range(len(rows)), [f"{row['pair']}, step {row['step']}" for row in rows])
        ax.invert_yaxis()
        ax.set_xlim(0, first.answers * 1.12)
        what = "equal answers" if style.narrow else "answers with the same tokens"
        ax.set_xlabel(f"{what}, of {first.answers}")
        return made

    return Figure(
        shape=(
            "Three bars: how many answers of a step have the same tokens in two runs. A dashed "
            "line marks all answers of the step."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


@figure("fig-4-5-gap")
def gap() -> Figure:
    """The gap and the reward of each step: the deterministic pair and the plain peer."""
    runs = [evidence.run(run_id) for run_id in (*TWINS, PEER)]
    every = [run.id for run in runs]
    gaps = [run.column(GAP) for run in runs]
    rewards = [run.column(REWARD) for run in runs]
    steps = runs[0].index
    medians = [statistics.median(line) for line in gaps]
    apart = max(abs(a - b) for a, b in zip(*gaps[:2], strict=True))
    reward_apart = max(abs(a - b) for a, b in zip(*rewards[:2], strict=True))
    peer_apart = max(abs(a - b) for a, b in zip(rewards[0], rewards[2], strict=True))
    equal = [step for step, a, b in zip(steps, *gaps[:2], strict=True) if a == b]

    def number(name: str, value: Any, digits: int, what: str, of: Any = TWINS) -> Any:
        return measured(name, value, "", digits, what=what, runs=of, kind="metric")

    values = [
        number("with", (min(medians[:2]), max(medians[:2])), 4, f"{GAP}:median:all steps"),
        number("without", medians[2], 4, f"{GAP}:median:all steps", [PEER]),
        number("apart", apart, 4, f"{GAP}:largest difference of a step"),
        number("reward_apart", reward_apart, 3, f"{REWARD}:largest difference of a step"),
        number(
            "peer_apart",
            peer_apart,
            3,
            f"{REWARD}:largest difference of a step",
            (TWINS[0], PEER),
        ),
        measured(
            "equal_steps",
            len(equal),
            "",
            0,
            what=f"{GAP}:steps with one value",
            runs=TWINS,
            kind="count",
            noun="steps",
        ),
        measured("steps", len(steps), "steps", 0, what="steps", runs=every, kind="count"),
    ]
    rows = [
        {"run": run.name, "step": step, "gap": gaps[at][step], "reward": rewards[at][step]}
        for at, run in enumerate(runs)
        for step in steps
    ]

    def draw(style: Style) -> Any:
        made = style.canvas(5.0 if style.narrow else 2.8)
        axes = made.subplots(2, 1) if style.narrow else made.subplots(1, 2)
        panels = ((gaps, "log-probability gap", "trainer"), (rewards, "reward", "data"))
        for ax, (lines, title, role) in zip(axes, panels, strict=True):
            style.plain(ax)
            for at, line in enumerate(lines):
                look = style.line(role if at < 2 else "outside", at)
                ax.plot(steps, line, label=runs[at].name, **look)
            ax.set_title(title)
            ax.set_xticks(steps[::3])
        axes[-1].set_xlabel("step")
        if not style.narrow:
            axes[0].set_xlabel("step")
        axes[0].legend(loc="best", handlelength=3.2)
        return made

    return Figure(
        shape=(
            "Two line charts over the steps: log-probability gap and reward. Two runs with "
            "deterministic inference start at one point, a plain run beside them."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


_REPORTED = (
    ("median gap, the four runs", "gap", "det-gap", "metric", ""),
    ("width of the four medians", "width", "det-gap-width", "metric", ""),
    ("gap of step 0, both triton runs", "first", "det-gap-step-0", "metric", ""),
    ("decimals that agree", "decimals", "det-decimals", "count", ""),
    ("runs", "runs", "det-runs", "count", ""),
    ("steps clean in all four runs", "clean", "det-clean", "count", ""),
    ("rollout without it, clean steps", "rollout", "det-default-rollout", "time", None),
    ("rollout with it, clean steps", "rollout_with", "det-rollout", "time", None),
    ("added rollout time", "cost", "det-cost", "share", None),
)


@figure("fig-4-5-gb10")
def gb10() -> Figure:
    """What the GB10 lab published of its deterministic runs."""
    values = [
        published(name, "gb10", value_id, kind=kind, unit=unit)
        for _, name, value_id, kind, unit in _REPORTED
    ]
    columns = {"what": "Number", "published": "Published"}
    return published_table(values, _REPORTED, columns)


@figure("fig-4-5-gb10-runs")
def gb10_runs() -> Figure:
    """The four runs of the GB10 lab, one row each; cells that only its lost table held say so."""
    base = published("base", "gb10", "replay-gap-without", kind="metric")
    span = published("span", "gb10", "det-gap", kind="metric")
    described = (
        ("e6a-base", "flashinfer", "no", base.text),
        ("no name is left", "triton", "yes", _LOST),
        ("no name is left", "triton", "yes", _LOST),
        ("no name is left", "flashinfer, by inference", "yes", _LOST),
        ("all four", "", "", span.text),
    )
    return Figure(
        shape="A table with one row for each of four runs, and one for their span.",
        values=[base, span],
        rows=[
            {"run": run, "attention": attention, "deterministic": deterministic, "gap": gap_text}
            for run, attention, deterministic, gap_text in described
        ],
        columns={
            "run": "Run",
            "attention": "Engine attention",
            "deterministic": "Deterministic inference",
            "gap": "Median gap",
        },
    )
