"""Charts of the second manual from experiments on a GPU: replay by depth and age, the FP32 head.

Each reads the stored lines of one experiment (`capture/core/experiments`). Numbers are means over
the seeds of the file; a band or a range is their lowest and highest.
"""

from __future__ import annotations

import statistics
from typing import Any

from figures.corerecords import Measurement
from figures.evidence import EvidenceError
from figures.registry import Figure, figure
from figures.sources import measured
from figures.style import Style
from figures.values import Value

REPLAY, HEADS = "h200-core/replay", "h200-core/fp32_head"
FILES = {REPLAY: "replay.jsonl", HEADS: "fp32_head.jsonl"}


class Lines:
    """The lines of one experiment: settings, and values by their key."""

    def __init__(self, run: str, *, timing: bool = False) -> None:
        self.run = run
        head, *rest = Measurement(run).lines(FILES[run], timing=timing)
        self.settings = head["settings"]
        self.rest = rest

    def over_seeds(self, name: str, **key: Any) -> list[float]:
        """The numbers of a name, one a seed. EvidenceError when there are none."""
        found = [
            line["values"][name]
            for line in self.rest
            if all(line["key"].get(part) == value for part, value in key.items())
            and name in line["values"]
        ]
        if not found:
            raise EvidenceError(f"{self.run}: no {name} of {key}")
        return found

    def mean(self, name: str, **key: Any) -> float:
        """Their mean."""
        return statistics.fmean(self.over_seeds(name, **key))

    def value(
        self, shown: str, number: Any, unit: str, digits: int, what: str, **more: Any
    ) -> Value:
        """A value that this experiment stands behind."""
        return measured(shown, number, unit, digits, what=what, runs=[self.run], **more)


# -- chapter 6: replay -----------------------------------------------------------------------------


@figure("fig-core-6-gpu-depth")
def depth() -> Figure:
    """Share of tokens whose experts the trainer's own routing changes, by layer, fresh routes."""
    own = Lines(REPLAY)
    ways = {
        way: [
            list(layers)
            for layers in zip(*own.over_seeds(way, what="layers", stale=0), strict=True)
        ]
        for way in ("free", "replayed")
    }
    count = len(ways["free"])
    means = {way: [100 * statistics.fmean(row) for row in rows] for way, rows in ways.items()}
    values = [
        own.value(f"{way}_{name}", means[way][at], "percent", 1, f"{way}:layer{at}")
        for way, name, at in (
            ("free", "first", 0),
            ("free", "last", count - 1),
            ("replayed", "last", count - 1),
        )
    ]
    for name, key in (("layers", "layers"), ("experts", "experts")):
        noun = name
        values.append(
            own.value(name, own.settings[key], "", 0, f"settings:{key}", kind="count", noun=noun)
        )
    rows = [
        {
            "layer": n,
            "own routing, percent": means["free"][n],
            "behind replay, percent": means["replayed"][n],
        }
        for n in range(count)
    ]

    def draw(style: Style) -> Any:
        drawing, axes = style.axes(height=2.6)
        for which, (way, label) in enumerate(
            (("free", "own routing in each layer"), ("replayed", "behind layers that are replayed"))
        ):
            axes.plot(range(count), means[way], label=label, **style.line("trainer", which))
            low, high = ([100 * pick(row) for row in ways[way]] for pick in (min, max))
            axes.fill_between(range(count), low, high, color=style.colour("trainer"), alpha=0.15)
        axes.set_xlabel("layer")
        axes.set_ylabel("percent of tokens")
        axes.set_ylim(0, None)
        axes.set_xticks(range(0, count, 3))
        drawing.legend(loc="outside upper left", ncols=1 if style.narrow else 2)
        return drawing

    return Figure(
        shape="Two lines over the layers, each with a band from the lowest to the highest seed.",
        values=values,
        rows=rows,
        draw=draw,
    )


@figure("fig-core-6-gpu-age")
def age() -> Figure:
    """Gaps by the age of the routes, to the sampling engine and to one with today's weights."""
    own = Lines(REPLAY)
    ages = list(own.settings["stale"])
    cases = {
        "live": ("live", "today's engine, own routing", "engine"),
        "replay": ("replay", "today's engine, recorded experts", "engine"),
        "said_live": ("behaviour/live", "sampling engine, own routing", "trainer"),
        "said_replay": ("behaviour/replay", "sampling engine, recorded experts", "trainer"),
    }
    series = {
        name: [own.mean("mean_abs", what=what, stale=k) for k in ages]
        for name, (what, _, _) in cases.items()
    }
    values = [
        own.value(f"{name}_{ages[at]}", numbers[at], "nats", 4, f"{name}:stale{ages[at]}")
        for name, numbers in series.items()
        for at in (0, -1)
    ]
    rows = [{"steps": k, **{name: series[name][n] for name in cases}} for n, k in enumerate(ages)]

    def draw(style: Style) -> Any:
        drawing, axes = style.axes(height=3.4 if style.narrow else 2.8)
        for which, (name, (_, label, role)) in enumerate(cases.items()):
            axes.plot(ages, series[name], label=label, **style.line(role, which))
        axes.set_xlabel("optimizer steps since recording")
        axes.set_ylabel("mean gap, nats")
        axes.set_ylim(0, None)
        drawing.legend(loc="outside upper left", ncols=1 if style.narrow else 2)
        return drawing

    return Figure(
        shape="Four lines over the age of the routes, two for each engine.",
        values=values,
        rows=rows,
        draw=draw,
    )


@figure("fig-core-6-gpu-gradient")
def gradient() -> Figure:
    """Gradient of the routers with and without replay, by the age of the routes."""
    own = Lines(REPLAY)
    ages = list(own.settings["stale"])
    cosines = [
        own.value(f"cosine_{k}", own.mean("router_cosine", what="gradient", stale=k), "", 3,
                  f"router_cosine:stale{k}")
        for k in ages
    ]  # fmt: skip
    rows = [{"steps": k, "cosine": a.text} for k, a in zip(ages, cosines, strict=True)]
    return Figure(
        shape="A table with one row for each age of the routes.",
        values=cosines,
        rows=rows,
        columns={
            "steps": "Steps since recording",
            "cosine": "Cosine of router gradients, with and without replay",
        },
    )


# -- chapter 8: the FP32 head ----------------------------------------------------------------------


def _sizes(own: Lines) -> tuple[list[int], list[int], int]:
    keys = [line["key"] for line in own.rest]
    vocabularies = sorted({key["vocab"] for key in keys})
    tokens = sorted({key["tokens"] for key in keys})
    return vocabularies, tokens, max(key["width"] for key in keys)


@figure("fig-core-8-gpu-cost")
def cost() -> Figure:
    """Time and peak memory of head, loss and kept sets with both heads, smallest and largest."""
    own = Lines(HEADS, timing=True)
    vocabularies, tokens, width = _sizes(own)
    values, rows = [], []
    sizes = (("small", vocabularies[0], tokens[0]), ("large", vocabularies[-1], tokens[-1]))
    for size, vocab, count in sizes:
        for scope, label in (
            ("head", "head alone"),
            ("loss", "loss over the vocabulary"),
            ("kept", "loss over kept sets"),
        ):
            key = {"vocab": vocab, "width": width, "tokens": count, "scope": scope}
            row: dict[str, Any] = {"vocab": vocab, "tokens": count, "scope": label}
            for head in ("ordinary", "fp32"):
                name = f"{size}_{scope}_{head}"
                ms = own.value(f"{name}_ms", own.mean("ms", head=head, **key), "ms", 1, name)
                peak = own.value(
                    f"{name}_peak", own.mean("peak_bytes", head=head, **key) / 1e9, "GB", 1,
                    f"{name}:peak",
                )  # fmt: skip
                values += [ms, peak]
                row |= {f"{head}_ms": ms.text, f"{head}_peak": peak.text}
            rows.append(row)
    return Figure(
        shape="A table of two sizes and three scopes, with time and peak memory of both heads.",
        values=values,
        rows=rows,
        columns={
            "vocab": "Vocabulary",
            "tokens": "Tokens",
            "scope": "What runs",
            "ordinary_ms": "Ordinary, time",
            "fp32_ms": "FP32, time",
            "ordinary_peak": "Ordinary, peak",
            "fp32_peak": "FP32, peak",
        },
    )


@figure("fig-core-8-gpu-error")
def error() -> Figure:
    """Error of log-probabilities with both heads against float64, by vocabulary."""
    own = Lines(HEADS)
    vocabularies, tokens, width = _sizes(own)
    values, rows = [], []
    for vocab in vocabularies:
        row: dict[str, Any] = {"vocab": vocab}
        for head, digits, exponent in (("ordinary", 4, False), ("fp32", 1, True)):
            key = {"vocab": vocab, "width": width, "tokens": tokens[0], "scope": "error"}
            found = own.value(
                f"{head}_{vocab}",
                own.mean("error_mean", head=head, **key),
                "nats",
                digits,
                f"error:{head}:{vocab}", exponent=exponent,
            )  # fmt: skip
            values.append(found)
            row[head] = found.text
        rows.append(row)
    return Figure(
        shape="A table with one row a vocabulary.",
        values=values,
        rows=rows,
        columns={"vocab": "Vocabulary", "ordinary": "Ordinary head", "fp32": "FP32-output head"},
    )
