"""Chapter 15: this trainer and TRL's on one GPU, and both ways of decoding.

Rows of both sides are summed up with the program that wrote them; the ratio is computed here.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from capture.core.peer import rows as peer_rows
from figures.core_h200 import DECODING, GB, LAB, span
from figures.corerecords import Measurement
from figures.evidence import EvidenceError
from figures.registry import Figure, figure
from figures.sources import measured
from figures.style import Style
from figures.values import Value

PEER, AGAIN = f"{LAB}/peer", f"{LAB}/peer-again"
BOTH = (PEER, AGAIN)
#: side -> files of it in the order they ran: (record, file)
SIDES = {
    "default": ((PEER, "first-default.jsonl"),),
    "fastest": ((AGAIN, "second-plain256.jsonl"),),
    "core": ((PEER, "first-core.jsonl"), (AGAIN, "second-core.jsonl")),
}
LABELS = {"default": "TRL, its defaults", "fastest": "TRL, plain256", "core": "this trainer"}
ROLES = {"default": "outside", "fastest": "lifecycle", "core": "trainer"}
TRIES = ("plain256", "plain64", "continuous", "continuous-graphs")
FAILED = "static"
WARMUP = {"try": 1, "run": peer_rows.WARMUP}


def summaries(side: str) -> list[dict[str, Any]]:
    """What the rows of each run of a side say."""
    found = []
    for record, file in SIDES[side]:
        lines = Measurement(record).lines(file, timing=True)
        found.append(peer_rows.summary(lines, WARMUP["run"]))
    return found


def runs_of(side: str) -> list[str]:
    """The records of a side."""
    return [record for record, _ in SIDES[side]]


def value_of(name: str, side: str, key: str, unit: str, digits: int, scale: float = 1.0) -> Value:
    """One number of a side: a range where it ran twice, of memory the larger."""
    cells = [found[key] / scale for found in summaries(side)]
    number = cells[0] if len(cells) == 1 else max(cells) if unit == "GB" else span(cells)
    return measured(name, number, unit, digits, what=f"{side}:{key}", runs=runs_of(side))


def ratio(name: str, side: str, record: str) -> Value:
    """How many times the samples a second ours had, of the runs in one record."""
    rate: dict[str, float] = {}
    for who in ("core", side):
        (file,) = [file for place, file in SIDES[who] if place == record]
        lines = Measurement(record).lines(file, timing=True)
        rate[who] = peer_rows.summary(lines, WARMUP["run"])["samples_per_second"]
    found = rate["core"] / rate[side]
    return measured(name, found, "times", 1, what=f"core over {side}", runs=[record])


@figure("fig-core-15-peer")
def peer() -> Figure:
    """Samples a second and peak memory of this trainer and of TRL's."""
    rates = {side: value_of(f"{side}_rate", side, "samples_per_second", "samples/s", 1)
             for side in SIDES}  # fmt: skip
    peaks = {side: value_of(f"{side}_memory", side, "peak_allocated", "GB", 1, GB)
             for side in SIDES}  # fmt: skip
    steps = [value_of(f"{side}_step", side, "step_seconds_median", "s", 2) for side in SIDES]
    parts = [
        value_of(f"{side}_{part}", side, f"{part}_seconds_median", "s", 2)
        for side in SIDES
        for part in ("generation", "train")
    ]
    least = min(found.low for found in rates.values())
    if least != rates["default"].low:
        raise EvidenceError("peer: the defaults are not the slowest side")
    timed = {found["timed_steps"] for side in SIDES for found in summaries(side)}
    (counted,) = timed
    values = [
        *rates.values(),
        *peaks.values(),
        *steps,
        *parts,
        ratio("over_default", "default", PEER),
        ratio("over_fastest", "fastest", AGAIN),
        measured(
            "timed", counted, "", 0, what="timed steps", runs=BOTH, kind="count",
            noun="steps|timed steps",
        ),
    ]  # fmt: skip
    rows = [
        {
            "side": LABELS[side],
            "samples_per_second": rates[side].bare,
            "peak_gb": peaks[side].bare,
            "step_s": step.bare,
        }
        for side, step in zip(SIDES, steps, strict=True)
    ]

    def draw(style: Style) -> Any:
        made = style.canvas(3.8 if style.narrow else 1.9)
        axes = made.subplots(2, 1) if style.narrow else made.subplots(1, 2)
        panels = ((rates, "samples per second"), (peaks, "peak memory, GB"))
        for ax, (found, title) in zip(axes, panels, strict=True):
            style.plain(ax, left=False, grid=None)
            for place, side in enumerate(SIDES):
                length = statistics.fmean(found[side].numbers)
                style.labelled_bar(ax, len(SIDES) - 1 - place, length, ROLES[side],
                                   found[side].bare)  # fmt: skip
            ax.set_title(title)
            ax.set_xlim(0, 1.5 * max(one.high for one in found.values()))
            ax.set_xticks([])
            ax.spines["bottom"].set_visible(False)
            ax.set_yticks(range(len(SIDES)), [LABELS[side] for side in reversed(SIDES)])
            ax.tick_params(axis="y", length=0)
        if not style.narrow:
            axes[1].set_yticklabels([])
        return made

    return Figure(
        shape=(
            "Two bar charts with three bars each. In samples per second the bar of this trainer is "
            "the longest; in memory that of TRL's large batch is."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


@figure("fig-core-15-candidates")
def candidates() -> Figure:
    """Each configuration of TRL that was tried, what became of it, and its speed and memory."""
    values, rows = [], []
    for name in TRIES:
        lines = Measurement(PEER).lines(f"try-{name}.jsonl", timing=True)
        found = peer_rows.summary(lines, WARMUP["try"])
        key = name.replace("-", "_")
        own = [
            measured(
                f"{key}_{short}", found[what] / scale, unit, 1, what=f"try:{name}:{what}",
                runs=[PEER],
            )
            for short, what, unit, scale in (
                ("rate", "samples_per_second", "samples/s", 1.0),
                ("step", "step_seconds_median", "s", 1.0),
                ("memory", "peak_allocated", "GB", GB),
            )
        ]  # fmt: skip
        values += own
        rows.append(
            {
                "name": name,
                "forward": str(lines[0]["forward_samples"]),
                "became": "ran",
                **{
                    short: one.text
                    for short, one in zip(("rate", "step", "memory"), own, strict=True)
                },
            }
        )
    fastest = max(values, key=lambda one: one.low if one.unit == "samples/s" else 0)
    if fastest.name != "plain256_rate":
        raise EvidenceError(f"peer: {fastest.name} is the fastest candidate")
    (setup,) = Measurement(PEER).lines(f"try-{FAILED}.jsonl")
    if setup["kind"] != "setup":
        raise EvidenceError("peer: the static cache has steps")
    nothing = {"rate": "", "step": "", "memory": ""}
    forward = str(setup["forward_samples"])
    rows.append({"name": FAILED, "forward": forward, "became": "failed at once", **nothing})
    rows.append({"name": "compiled", "forward": "", "became": "left out: no time", **nothing})
    return Figure(
        shape="A table with one row for each configuration.",
        values=values,
        rows=rows,
        columns={
            "name": "Configuration",
            "forward": "Samples of a forward",
            "became": "What became of it",
            "rate": "Samples per second",
            "step": "Median step",
            "memory": "Peak memory",
        },
    )


@figure("fig-core-15-reward")
def reward() -> Figure:
    """Mean reward of each step of all four runs, by the samples trained on."""
    names = ["default", "fastest", "core", "core again"]
    places = [SIDES["default"][0], SIDES["fastest"][0], *SIDES["core"]]
    series = []
    for record, file in places:
        lines = Measurement(record).lines(file)
        series.append([line for line in lines if line["kind"] == "step"])
    last = peer_rows.LAST
    ends = [statistics.fmean(row["reward"] for row in steps[-last:]) for steps in series]
    starts = [statistics.fmean(row["reward"] for row in steps[:last]) for steps in series]
    samples = {sum(row["samples"] for row in steps) for steps in series}
    (total,) = samples

    def value(name: str, number: Any, what: str, where: Sequence[str] = BOTH) -> Value:
        return measured(name, number, "", 3, what=what, runs=where, kind="metric")

    values = [
        value("first", span(starts), "reward:first steps:range"),
        value("last", span(ends), "reward:last steps:range"),
        value("default_last", ends[0], "default:reward:last", [PEER]),
        value("fastest_last", ends[1], "fastest:reward:last", [AGAIN]),
        value("core_last", span(ends[2:]), "core:reward:last"),
        measured("samples", total, "", 0, what="samples", runs=BOTH, kind="count", noun="samples"),
    ]
    rows = [
        {
            "run": name,
            "samples": (row["step"] + 1) * row["samples"],
            "reward": row["reward"],
        }
        for name, steps in zip(names, series, strict=True)
        for row in steps
    ]
    labels = (LABELS["default"], LABELS["fastest"], LABELS["core"], f"{LABELS['core']}, again")
    roles = (ROLES["default"], ROLES["fastest"], ROLES["core"], ROLES["core"])

    def draw(style: Style) -> Any:
        made, ax = style.axes(height=3.0)
        for which, (steps, role) in enumerate(zip(series, roles, strict=True)):
            counts = [(row["step"] + 1) * row["samples"] for row in steps]
            ax.plot(counts, [row["reward"] for row in steps], label=labels[which],
                    **style.line(role, which))  # fmt: skip
        ax.set_xlabel("samples trained on")
        ax.set_ylabel("mean reward of the step")
        ax.set_ylim(0, 0.7)
        made.legend(loc="outside upper left", ncols=1 if style.narrow else 2)
        return made

    return Figure(
        shape="Four lines that rise together and cross each other.",
        values=values,
        rows=rows,
        draw=draw,
    )


@figure("fig-core-15-decode")
def decode() -> Figure:
    """Tokens a second of both ways of decoding, by the number of answers at a time."""
    lines = [
        line
        for line in Measurement(DECODING).lines("decode_speed.jsonl", timing=True)
        if line["what"] == "decode"
    ]
    found = {(line["decode"], line["rows"]): line for line in lines}
    sizes = sorted({size for _, size in found})
    runs = [DECODING]
    values, rows, shown = [], [], {}
    for size in sizes:
        row: dict[str, Any] = {"rows": size}
        for way in ("graph", "cache"):
            line = found[way, size]
            rate = measured(
                f"{way}_{size}", line["tokens_per_second"], "tokens/s", 0,
                what=f"{way}:{size}:tokens_per_second", runs=runs,
            )  # fmt: skip
            step = measured(
                f"{way}_{size}_step", line["ms_per_step"], "ms", 1, what=f"{way}:{size}:step",
                runs=runs,
            )  # fmt: skip
            shown[way, size] = rate
            if size in (sizes[0], sizes[-1]):
                values.append(step)
            if size == sizes[0]:
                values.append(rate)
            row |= {f"{way}_tokens_per_second": line["tokens_per_second"],
                    f"{way}_peak_gb": line["peak_bytes"] / GB}  # fmt: skip
        faster = row["graph_tokens_per_second"] / row["cache_tokens_per_second"]
        values.append(
            measured(f"times_{size}", faster, "times", 1, what=f"graph over cache:{size}",
                     runs=runs)
        )  # fmt: skip
        rows.append(row)

    values += [
        measured(name, size, "answers", 0, what=f"rows:{name}", runs=runs, kind="count")
        for name, size in zip(("few", "middle", "many"), sizes, strict=True)
    ]

    def draw(style: Style) -> Any:
        made, ax = style.axes(height=2.8, left=False, grid=None)
        for place, size in enumerate(sizes):
            for shift, way, role in ((0.2, "graph", "engine"), (-0.2, "cache", "outside")):
                where = len(sizes) - 1 - place + shift
                length = shown[way, size].low
                ax.barh(where, length, height=0.36, **style.bar(role))
                ax.annotate(shown[way, size].bare, (length, where), xytext=(4, 0),
                            textcoords="offset points", va="center")  # fmt: skip
        ax.set_xlim(0, 1.3 * max(found[key]["tokens_per_second"] for key in found))
        ax.set_xticks([])
        ax.spines["bottom"].set_visible(False)
        ax.set_yticks(range(len(sizes)), [f"{size} answers" for size in reversed(sizes)])
        ax.tick_params(axis="y", length=0)
        handles = [style.swatch("engine", "graph"), style.swatch("outside", "cache")]
        made.legend(handles=handles, loc="outside upper left", ncols=2)
        return made

    return Figure(
        shape="Three pairs of bars, one pair for each number of answers. The graph's are longer.",
        values=values,
        rows=rows,
        draw=draw,
    )
