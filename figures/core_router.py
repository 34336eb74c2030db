"""The worked example of the router objectives: two documents, two groupings, two averages.

Figures of chapter 7 of the second manual. The example is computed here once more from the
definition, with fractions, and compared with what the trainer's own function recorded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from figures import corelab
from figures.corelab import value
from figures.coreparts import table
from figures.evidence import CORE_LAB, EvidenceError
from figures.registry import Figure, figure
from figures.sources import measured
from figures.style import Style
from figures.values import Value

GROUPED = (("pack", "token"), ("pack", "response"), ("sequence", "token"), ("sequence", "response"))


@figure("fig-core-7-example")
def worked_example() -> Figure:
    """Two documents of two and six tokens, their penalties, and both ways to average them."""
    name = "worked_example"
    lengths = [
        value(key, name, "lengths", 0, unit="tokens", kind="count", at=n)
        for n, key in enumerate(("short", "long"))
    ]
    penalties = [
        value(f"penalty_{key}", name, "penalties", 0, at=n)
        for n, key in enumerate(("short", "long"))
    ]
    token, response = (
        value("token", name, "token", 1),
        value("response", name, "response", 0),
    )
    weighted = [
        value("weighted_token", name, "weighted_token", 3),
        value("weighted_response", name, "weighted_response", 2),
    ]
    sizes = [int(found.low) for found in lengths]
    heights = [float(found.low) for found in penalties]
    rows = [
        {"document": n, "tokens": size, "penalty": height}
        for n, (size, height) in enumerate(zip(sizes, heights, strict=True))
    ]

    def draw(style: Style) -> Any:
        made = style.canvas(3.9 if style.narrow else 2.3)
        axes = made.subplots(2, 1) if style.narrow else made.subplots(1, 2)
        places = {"token": [0.0, float(sizes[0])], "response": [0.0, sum(sizes) / 2]}
        widths = {"token": sizes, "response": [sum(sizes) / 2] * 2}
        titles = {"token": "weight by tokens", "response": "one weight a document"}
        means = {"token": token, "response": response}
        for ax, key in zip(axes, places, strict=True):
            style.plain(ax, grid=None)
            for place, width, height, hatch in zip(
                places[key], widths[key], heights, ("", "///"), strict=True
            ):
                ax.bar(place, height, width=width, align="edge", **style.bar("trainer", hatch))
            ax.axhline(float(means[key].low), color=style.colour("failure"), linestyle="--")
            ax.annotate(
                f"mean {means[key].text}",
                (0.1, float(means[key].low)),
                xytext=(0, 3),
                textcoords="offset points",
            )
            ax.set_title(titles[key])
            ax.set_ylim(0, 3.6)
            ax.set_yticks((0, 1, 2, 3))
            ax.set_xticks([])
        axes[0].set_ylabel("penalty")
        return made

    return Figure(
        shape=(
            "Two charts of two bars, one a document, as high as its penalty. On the left a bar is "
            "as wide as its document has tokens, on the right both are equally wide. A dashed line "
            "marks the mean."
        ),
        values=[*lengths, *penalties, token, response, *weighted],
        rows=rows,
        draw=draw,
    )


@figure("fig-core-7-grouping")
def grouping() -> Figure:
    """The example with one common expert, and with two: grouping, reduction, both losses."""
    order = [tuple(pair) for pair in corelab.read("worked_example", "executed")]
    if order != list(GROUPED):
        raise ValueError(f"worked_example.json: other combinations: {order}")
    one = [_combination("one", n, "one_expert") for n in range(4)]
    two = [_combination("two", n, "two_experts") for n in range(4)]
    rows = [
        {"grouping": pair[0], "reduction": pair[1], "one": a.text, "two": b.text}
        for pair, a, b in zip(GROUPED, one, two, strict=True)
    ]
    return Figure(
        shape="A table of four combinations.",
        values=[*one, *two],
        rows=rows,
        columns={
            "grouping": "Grouping",
            "reduction": "Averaging",
            "one": "All tokens on one expert",
            "two": "First document on another expert",
        },
    )


def _combination(prefix: str, n: int, key: str) -> Value:
    return value(f"{prefix}_{'_'.join(GROUPED[n])}", "worked_example", key, 2, at=n)


@figure("fig-core-7-counts")
def counts() -> Figure:
    """The example with a document whose router prefers another expert: both sources of counts."""
    order = corelab.read("worked_example", "every")
    values = {
        tuple(names): value("_".join(names), "worked_example", "tilted", 2, at=n)
        for n, names in enumerate(order)
    }
    rows = [
        {
            "grouping": a,
            "reduction": b,
            "executed": values[a, b, "executed"].text,
            "selected": values[a, b, "router_selected"].text,
        }
        for a, b in GROUPED
    ]
    return Figure(
        shape="A table of four combinations under two sources of counts.",
        values=list(values.values()),
        rows=rows,
        columns={
            "grouping": "Grouping",
            "reduction": "Averaging",
            "executed": "Executed",
            "selected": "Router-selected",
        },
    )


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
