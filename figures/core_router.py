"""Charts of the second manual on denominators, replay, router losses and the FP32 head.

Drawn from recorded findings and runs of a processor. The worked example is computed here once more
from the definition, with fractions, and compared with what the trainer's own function recorded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from figures import corelab
from figures.core_findings import GROUPED, bars, table
from figures.corelab import value
from figures.evidence import CORE_LAB, EvidenceError
from figures.registry import Figure, figure
from figures.sources import measured
from figures.style import Style
from figures.values import Value

RANKS = f"{CORE_LAB}/two-ranks"


# -- chapter 5: denominators -----------------------------------------------------------------------


@figure("fig-core-5-direction")
def direction() -> Figure:
    """Cosine between Core's own two-rank gradient and that of one process."""
    cosines = [
        value(key, "local_denominators", "core_cosine", 2, at=n)
        for n, key in enumerate(("half", "quarter", "eighth"))
    ]
    labels = ("half of them", "a quarter", "an eighth")
    rows = [
        {"labels": label, "cosine": found.low} for label, found in zip(labels, cosines, strict=True)
    ]

    def draw(style: Style) -> Any:
        return bars(style, labels, cosines, ["failure"] * 3, log=False)

    return Figure(
        shape="Three bars that shrink as the second rank keeps fewer labels.",
        values=cosines,
        rows=rows,
        draw=draw,
    )


@figure("fig-core-5-record")
def recorded_counts() -> Figure:
    """Counts and denominators of the first step of the recorded run on two ranks."""

    def first(key: str, rank: int = 0) -> int:
        return corelab.column("two-ranks", key, rank=rank)[0]

    def count(name: str, number: int, what: str, noun: str) -> Value:
        return measured(name, number, "", 0, what=what, runs=[RANKS], kind="count", noun=noun)

    shared = ("denominators.policy", "denominators.auxiliary_tokens")
    if any(first(key) != first(key, 1) for key in shared):
        raise EvidenceError("two-ranks: denominators differ between the ranks")
    active, tokens, documents = (
        first(f"denominators.{key}")
        for key in ("policy", "auxiliary_tokens", "auxiliary_documents")
    )
    own = [first("counts.local_active_tokens", rank) for rank in (0, 1)]
    if sum(own) != active:
        raise EvidenceError(f"two-ranks: {own} active tokens of the ranks, {active} in all")
    response = "active tokens"
    rows = [
        ("active tokens of rank 0", count("rank0", own[0], "active:rank0", response)),
        ("active tokens of rank 1", count("rank1", own[1], "active:rank1", response)),
        ("active tokens of the step", count("active", active, "policy", response)),
        ("model tokens of the step", count("tokens", tokens, "aux tokens", "model tokens")),
        ("documents of the step", count("documents", documents, "aux documents", "documents")),
    ]
    ratio = measured(
        "ratio", tokens / active, "times", 1, what="model over active tokens", runs=[RANKS]
    )
    return table([*rows, ("model tokens over active tokens", ratio)], what="First step of the run")


# -- chapter 6: replay -----------------------------------------------------------------------------


@figure("fig-core-6-gap")
def replay_gap() -> Figure:
    """Mean gap to the engine that sampled, of each seed, with own routing and with replay."""
    seeds = range(len(corelab.read("replay_depth", "live_seeds")))
    if corelab.read("replay_depth", "smaller") is not True:
        raise EvidenceError("replay_depth.json: replay is not the smaller one in every seed")
    cosines = [value(f"cosine_{n}", "replay_depth", "router_cosine", 2, at=n) for n in (0, 2)]
    by_seed = {
        way: [
            value(f"{way}_{n}", "replay_depth", f"{way}_seeds", 4, unit="nats", at=n) for n in seeds
        ]
        for way in ("live", "replay")
    }
    rows = [
        {
            "seed": n,
            "own routing": by_seed["live"][n].low,
            "recorded experts": by_seed["replay"][n].low,
        }
        for n in seeds
    ]

    def draw(style: Style) -> Any:
        labels = [f"seed {n}, {way}" for n in seeds for way in ("own routing", "replay")]
        shown = [by_seed[way][n] for n in seeds for way in ("live", "replay")]
        return bars(style, labels, shown, ["outside", "trainer"] * len(seeds), log=False)

    return Figure(
        shape="Pairs of bars, one pair a seed; the bar of replay is the shorter one of each.",
        values=[*by_seed["live"], *by_seed["replay"], *cosines],
        rows=rows,
        draw=draw,
    )


# -- chapter 7: router objectives ------------------------------------------------------------------


def penalties(
    experts: int,
    probabilities: Sequence[Sequence[Fraction]],
    chosen: Sequence[int],
    lengths: Sequence[int],
    grouping: str,
) -> list[Fraction]:
    """Balancing penalty of each document, whose tokens all have its probabilities and its expert.

    One expert a token. The definition: experts times the sum over experts of the share of the
    group's tokens that chose it, times its mean probability in the document.
    """
    found = []
    for own, document in enumerate(probabilities):
        group = range(len(lengths)) if grouping == "pack" else [own]
        tokens = sum(lengths[other] for other in group)
        shares = [
            Fraction(sum(lengths[other] for other in group if chosen[other] == expert), tokens)
            for expert in range(experts)
        ]
        found.append(experts * sum(s * p for s, p in zip(shares, document, strict=True)))
    return found


def averaged(documents: Sequence[Fraction], lengths: Sequence[int], reduction: str) -> Fraction:
    """The penalties averaged by model tokens, or with one weight a document."""
    weights = lengths if reduction == "token" else [1] * len(lengths)
    return sum(w * b for w, b in zip(weights, documents, strict=True)) / sum(weights)


def _example() -> tuple[int, list[list[Fraction]], list[int]]:
    """Experts, probabilities of both documents and their lengths, as the finding states them."""
    made = corelab.finding("worked_example").settings
    if made["topk"] != 1:
        raise EvidenceError("worked_example.json: another number of experts a token")
    exact = [[Fraction(p).limit_denominator(1000) for p in made[key]] for key in ("even", "second")]
    if any(sum(row) != 1 for row in exact):
        raise EvidenceError("worked_example.json: probabilities that do not sum to one")
    return made["experts"], exact, corelab.read("worked_example", "lengths")


def _agrees(computed: Fraction, recorded: float, what: str) -> None:
    if not math.isclose(float(computed), recorded, rel_tol=1e-6):
        raise EvidenceError(f"worked_example.json: {what}: {recorded}, by definition {computed}")


@figure("fig-core-7-histograms")
def histograms() -> Figure:
    """The example with two experts, by hand: histograms, penalties, and both ways to average."""
    experts, probabilities, lengths = _example()
    chosen = [1, 0]  # the first document on another expert
    found = {g: penalties(experts, probabilities, chosen, lengths, g) for g in ("pack", "sequence")}
    values: list[Value] = []
    for n, (grouping, reduction) in enumerate(GROUPED):
        recorded = value(f"{grouping}_{reduction}", "worked_example", "two_experts", 2, at=n)
        _agrees(averaged(found[grouping], lengths, reduction), recorded.low, recorded.name)
        values.append(recorded)
    runs = [f"{CORE_LAB}/worked_example"]
    for grouping, both in found.items():
        for name, penalty in zip(("short", "long"), both, strict=True):
            what = f"penalty of {name} document, {grouping} grouping, from the definition"
            values.append(
                measured(f"{grouping}_{name}", float(penalty), "", 2, what=what, runs=runs)
            )
    by = {found.name: found for found in values}
    rows = [
        {
            "grouping": grouping,
            "document": n,
            "tokens": lengths[n],
            "expert": chosen[n],
            "penalty": float(found[grouping][n]),
        }
        for grouping in found
        for n in range(len(lengths))
    ]

    def draw(style: Style) -> Any:
        made = style.canvas(4.6 if style.narrow else 2.7)
        axes = made.subplots(2, 1) if style.narrow else made.subplots(1, 2)
        roles, marks = {0: "trainer", 1: "lifecycle"}, {0: "///", 1: ""}
        for ax, grouping in zip(axes, found, strict=True):
            style.plain(ax, left=False, grid=None)
            place = 0
            for document, size in enumerate(lengths):
                for _ in range(size):
                    kind = chosen[document]
                    look = style.bar(roles[kind], marks[kind])
                    ax.bar(place + 0.06, 0.8, width=0.88, align="edge", **look)
                    place += 1
            groups = [(0, place)] if grouping == "pack" else [(0, lengths[0]), (lengths[0], place)]
            for start, end in groups:
                ax.plot(
                    [start + 0.06, start + 0.06, end - 0.06, end - 0.06],
                    [0.95, 1.05, 1.05, 0.95],
                    color=style.colour("ink"),
                    linewidth=1,
                )
                counted = [
                    sum(
                        size
                        for document, size in enumerate(lengths)
                        if chosen[document] == expert and start <= sum(lengths[:document]) < end
                    )
                    for expert in (0, 1)
                ]
                ax.text(
                    (start + end) / 2,
                    1.12,
                    f"counts {counted[0]} | {counted[1]}",
                    ha="center",
                    va="bottom",
                )
            starts = [0, lengths[0]]
            for document, name in enumerate(("short", "long")):
                ax.text(
                    starts[document] + lengths[document] / 2,
                    -0.08,
                    f"penalty {by[f'{grouping}_{name}'].text}",
                    ha="center",
                    va="top",
                )
            ends = [by[f"{grouping}_{reduction}"].text for reduction in ("token", "response")]
            ax.text(0, -0.42, f"by token {ends[0]}, by response {ends[1]}", ha="left", va="top")
            ax.set_title(f"{grouping} grouping")
            ax.set_xlim(-0.1, place + 0.1)
            ax.set_ylim(-0.75, 1.5)
            ax.set_xticks([])
            ax.set_yticks([])
            ax.spines["bottom"].set_visible(False)
        handles = [
            style.swatch("trainer", "token on expert 0", "///"),
            style.swatch("lifecycle", "token on expert 1", ""),
        ]
        made.legend(handles=handles, loc="outside lower left", ncols=1 if style.narrow else 2)
        return made

    return Figure(
        shape=(
            "Two charts of eight squares, one a token: two of expert 1, then six of expert 0. On "
            "the left one bracket holds all of them, on the right each document has its own. Above "
            "a bracket stand its counts of expert 0 and of expert 1, below each document its "
            "penalty, and at the foot both averages."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


@figure("fig-core-7-z")
def z_averaging() -> Figure:
    """The z loss of the same two documents, averaged in both ways."""
    found = [
        value(key, "worked_example", "z", 2, at=n) for n, key in enumerate(("token", "response"))
    ]
    return table(
        [("z loss, averaged over tokens", found[0]), ("z loss, averaged over documents", found[1])]
    )


# -- chapter 8: the FP32 head ----------------------------------------------------------------------


@figure("fig-core-8-largest")
def largest() -> Figure:
    """Largest errors of logits and log-probabilities with both heads, by spread of the logits."""
    name = "fp32_head"
    spreads = [int(item) for item in corelab.read(name, "spread")]
    if corelab.read(name, "same_backward") is not True:
        raise EvidenceError("fp32_head.json: the gradients differ")
    values, rows = [], []
    for n, spread in enumerate(spreads):
        row: dict[str, Any] = {"spread": spread}
        for head in ("bf16", "fp32"):
            for what, unit in (("logit", ""), ("max", "nats")):
                exponent = head == "fp32"
                found = value(
                    f"{head}_{what}_{spread}", name, f"{head}_{what}", 1 if exponent else 3,
                    unit=unit, exponent=exponent, at=n,
                )  # fmt: skip
                values.append(found)
                row[f"{head}_{what}"] = found.text
        rows.append(row)
    return Figure(
        shape="A table of three spreads of the logits.",
        values=values,
        rows=rows,
        columns={
            "spread": "Spread of the logits",
            "bf16_logit": "BF16, a logit",
            "bf16_max": "BF16, a log-probability",
            "fp32_logit": "FP32, a logit",
            "fp32_max": "FP32, a log-probability",
        },
    )
