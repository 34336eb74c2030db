"""Chapter 15: the gap between engine and trainer on one GPU, and what takes parts of it out."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from figures.core_h200 import GAP, LAB, SEEDS, seed_legend, seeds, span
from figures.corerecords import Measurement
from figures.evidence import EvidenceError
from figures.registry import Figure, figure
from figures.sources import measured
from figures.style import Style
from figures.values import Value, number_text

GAPS = f"{LAB}/gap"
ENGINE_LOGP = "rollout/rollout_log_probs"
HEADS = {
    "neither": "on neither side",
    "trainer": "trainer only",
    "engine": "engine only",
    "both": "on both sides",
}
WAYS = {
    "full": "engine over all tokens",
    "mismatch": "engine over the set, trainer over all",
    "replay": "both over the set",
}


def cells(case: str, key: str, *, timing: bool = False) -> list[tuple[int, int, float]]:
    """(seed, step, value) of a case, in the order of seed and step."""
    lines = Measurement(GAPS).lines("gap.jsonl", timing=timing)
    found = [
        (line["key"]["seed"], line["key"]["step"], line["values"][key])
        for line in lines[1:]
        if line["key"]["case"] == case
    ]
    if not found:
        raise EvidenceError(f"gap.jsonl: no case {case}")
    return sorted(found)


def numbers(case: str, key: str = "mean_abs", *, timing: bool = False) -> list[float]:
    """The values of a case over all seeds and steps."""
    return [value for *_, value in cells(case, key, timing=timing)]


def seed_means(case: str) -> list[float]:
    """The mean over the steps of each seed."""
    found = cells(case, "mean_abs")
    return [
        statistics.fmean(value for seed, _, value in found if seed == one)
        for one in sorted({seed for seed, *_ in found})
    ]


def gap_range(name: str, case: str) -> Value:
    """Smallest and largest mean gap of a case."""
    found = span(numbers(case))
    return measured(name, found, "nats", 4, what=f"{case}:mean_abs:range", runs=[GAPS])


def dots(style: Style, labels: Sequence[str], groups: Sequence[tuple[str, list[float]]]) -> Any:
    """One row a case with a mark for each seed and step, and the range at its right."""
    made, ax = style.axes(height=0.5 * len(labels) + 0.7, left=False, grid="x")
    top = max(max(found) for _, found in groups)
    for place, (role, found) in enumerate(groups):
        where = len(labels) - 1 - place
        ax.plot(found, [where] * len(found), linestyle="", marker="o", markersize=5, alpha=0.75,
                color=style.colour(role), markeredgecolor=style.colour("paper"),
                markeredgewidth=0.5)  # fmt: skip
        low, high = (number_text(number, 4) for number in span(found))
        after = max(found) < top / 2
        ax.annotate(
            f"{low} to {high}",
            (max(found) if after else min(found), where),
            xytext=(7 if after else -7, 0),
            textcoords="offset points",
            va="center",
            ha="left" if after else "right",
        )
    ax.set_yticks(range(len(labels)), list(reversed(labels)))
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(-0.6, len(labels) - 0.4)
    ax.set_xlim(0, top * 1.08)
    ax.set_xlabel("mean gap, nats")
    return made


@figure("fig-core-15-heads")
def heads() -> Figure:
    """The gap with the FP32-output head on neither side, on one, and on both."""
    settings = Measurement(GAPS).lines("gap.jsonl")[0]["settings"]
    values = [gap_range(name, f"head/{name}") for name in HEADS]
    by_seed = {name: seed_means(f"head/{name}") for name in HEADS}
    means = {name: statistics.fmean(numbers(f"head/{name}")) for name in HEADS}
    spread = max(by_seed["neither"]) - min(by_seed["neither"])
    removed = 100 * (1 - means["both"] / means["neither"])
    if max(numbers("head/both")) >= min(numbers("head/neither")):
        raise EvidenceError("gap.jsonl: the ranges of both heads and of none overlap")

    def value(name: str, number: float, unit: str, digits: int, what: str) -> Value:
        return measured(name, number, unit, digits, what=what, runs=[GAPS])

    values += [
        *(
            value(f"{name}_mean", means[name], "nats", 4, f"head/{name}:mean")
            for name in ("neither", "trainer", "engine")
        ),
        value("spread", spread, "nats", 4, "head/neither:means of the seeds:width"),
        value("removed", removed, "percent", 0, "share of the mean that both heads take out"),
        value("difference", means["neither"] - means["both"], "nats", 4, "neither less both"),
        measured(
            "marks", len(settings["marks"]), "", 0, what="marks", runs=[GAPS], kind="count",
            noun="steps|marks",
        ),
    ]  # fmt: skip
    rows = [
        {"head": HEADS[name], "seed": seed, "step": step, "mean_gap_nats": found}
        for name in HEADS
        for seed, step, found in cells(f"head/{name}", "mean_abs")
    ]
    roles = ("outside", "trainer", "engine", "data")

    def draw(style: Style) -> Any:
        groups = [(role, numbers(f"head/{n}")) for role, n in zip(roles, HEADS, strict=True)]
        return dots(style, list(HEADS.values()), groups)

    return Figure(
        shape=(
            "Four rows of dots, one dot a seed and step. The row with the head on both sides lies "
            "left of all others; the two with one head overlap."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


@figure("fig-core-15-samplers")
def samplers() -> Figure:
    """The gap of top-p and top-k: as without replay, with the mismatch, and with replay."""
    settings = Measurement(GAPS).lines("gap.jsonl")[0]["settings"]
    cases = [(cut, way) for cut in ("top_p", "top_k") for way in WAYS]
    values = [gap_range(f"{cut}_{way}", f"{cut}/{way}") for cut, way in cases]
    sizes = numbers("top_p/mismatch", "kept_mean")
    largest = max(numbers("top_p/mismatch", "kept_max"))
    values += [
        measured("kept", span(sizes), "", 1, what="top_p:kept_mean:range", runs=[GAPS],
                 kind="count", noun="tokens"),
        measured("largest", largest, "", 0, what="top_p:kept_max:largest", runs=[GAPS],
                 kind="count", noun="tokens"),
    ]  # fmt: skip
    for cut in ("top_p", "top_k"):
        means = {way: statistics.fmean(numbers(f"{cut}/{way}")) for way in WAYS}
        values.append(
            measured(f"{cut}_times", means["mismatch"] / means["replay"], "times", 1,
                     what=f"{cut}:mean of mismatch over mean of replay", runs=[GAPS])
        )  # fmt: skip
    rows = [
        {"sampler": f"{cut} {settings[cut]}", "scored": WAYS[way], "seed": seed, "step": step,
         "mean_gap_nats": found}
        for cut, way in cases
        for seed, step, found in cells(f"{cut}/{way}", "mean_abs")
    ]  # fmt: skip

    def draw(style: Style) -> Any:
        short = {"full": "all / all", "mismatch": "set / all", "replay": "set / set"}
        names = {"top_p": f"top-p {settings['top_p']}", "top_k": f"top-k {settings['top_k']}"}
        labels = [f"{names[cut]}, {short[way]}" for cut, way in cases]
        roles = {"full": "outside", "mismatch": "failure", "replay": "data"}
        return dots(style, labels, [(roles[w], numbers(f"{c}/{w}")) for c, w in cases])

    return Figure(
        shape=(
            "Six rows of dots, three a sampler. In the middle row of each, where the engine scores "
            "over the set and the trainer over all tokens, the dots lie far to the right."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )


@figure("fig-core-15-exact")
def exact() -> Figure:
    """The gap of the exact setting and of the ordinary engine, and the seconds of both."""
    largest = max(numbers("exact", "max_abs"))
    if largest != 0 or min(numbers("exact", "share_equal")) != 1:
        raise EvidenceError("gap.jsonl: the exact setting has a gap")
    slow, fast = (
        numbers(case, "seconds", timing=True) for case in ("cost/exact", "cost/exact/plain")
    )
    times = [a / b for a, b in zip(slow, fast, strict=True)]
    tokens = sum(numbers("exact", "tokens"))

    def value(name: str, number: Any, unit: str, digits: int, what: str, noun: str = "") -> Value:
        kind = "count" if noun else ""
        return measured(name, number, unit, digits, what=what, runs=[GAPS], kind=kind, noun=noun)

    rates = {
        name: value(
            f"{name}_rate", span(numbers(case, "tokens_per_second", timing=True)), "tokens/s", 0,
            f"{case}:tokens_per_second:range",
        )
        for name, case in (("exact", "cost/exact"), ("plain", "cost/exact/plain"))
    }  # fmt: skip
    plain = gap_range("plain", "exact/plain")
    seconds = [
        value("exact_seconds", span(slow), "s", 1, "cost/exact:seconds:range"),
        value("plain_seconds", span(fast), "s", 2, "cost/exact/plain:seconds:range"),
    ]
    gap = value("exact", largest, "nats", 4, "exact:max_abs:largest")
    values = [
        gap,
        plain,
        *seconds,
        *rates.values(),
        value("times", span(times), "times", 0, "seconds of exact over plain:range"),
        value("tokens", tokens, "", 0, "exact:tokens:sum", "tokens|response tokens"),
    ]
    rows = [
        {"setting": "the exact setting", "gap": gap.text, "seconds": seconds[0].text,
         "rate": rates["exact"].text},
        {"setting": "the ordinary engine, same prompts", "gap": plain.text,
         "seconds": seconds[1].text, "rate": rates["plain"].text},
    ]  # fmt: skip
    return Figure(
        shape="A table with a row for each setting.",
        values=values,
        rows=rows,
        columns={
            "setting": "Engine",
            "gap": "Gap, nats",
            "seconds": "Seconds of generating",
            "rate": "Response tokens per second",
        },
    )


@figure("fig-core-15-run-gap")
def run_gap() -> Figure:
    """The gap of each step of the three seeds of the GPU example."""
    runs = seeds()
    lines = [run.column(GAP) for run in runs]
    sure = [run.column(ENGINE_LOGP) for run in runs]
    width = [max(step) - min(step) for step in zip(*lines, strict=True)]

    def value(name: str, number: Any, what: str) -> Value:
        return measured(name, number, "nats", 4, what=what, runs=SEEDS)

    def logp(name: str, number: Any, what: str) -> Value:
        return measured(name, number, "nats", 2, what=what, runs=SEEDS)

    values = [
        value("first", span([line[0] for line in lines]), f"{GAP}:first step:range"),
        value("last", span([line[-1] for line in lines]), f"{GAP}:last step:range"),
        value("width", max(width), f"{GAP}:largest width over seeds of a step"),
        logp("sure_first", span([line[0] for line in sure]), f"{ENGINE_LOGP}:first step:range"),
        logp("sure_last", span([line[-1] for line in sure]), f"{ENGINE_LOGP}:last step:range"),
    ]
    rows = [
        {"run": run.name, "step": step, "mean_gap_nats": found}
        for run, line in zip(runs, lines, strict=True)
        for step, found in enumerate(line)
    ]

    def draw(style: Style) -> Any:
        made, ax = style.axes(height=2.6)
        for which, line in enumerate(lines):
            ax.plot(range(len(line)), line, **style.line("trainer", which))
        ax.set_xlabel("step")
        ax.set_ylabel("mean gap, nats")
        ax.set_ylim(0, None)
        made.legend(handles=seed_legend(style, "trainer", runs), loc="outside upper left", ncols=3)
        return made

    return Figure(
        shape="Three lines that fall together from left to right.",
        values=values,
        rows=rows,
        draw=draw,
    )
