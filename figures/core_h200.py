"""The trainer on one GPU: what three seeds of the example learned, and what a step takes there."""

from __future__ import annotations

import json
import lzma
import statistics
from collections.abc import Sequence
from typing import Any

from figures import evidence
from figures.corerecords import Measurement
from figures.registry import Figure, figure
from figures.sources import measured
from figures.style import Style
from figures.values import Value

LAB = "h200-core"
SEEDS = tuple(f"{LAB}/gpu_s{seed}" for seed in (1, 2, 3))
PACKING = f"{LAB}/packing"
DECODING = f"{LAB}/decode_speed"
ENDS = 5  # collections whose mean stands for the start and for the end
GB = 1e9
HELD_OUT = "eval/wordproblems"
TRAINED = "rollout/raw_reward"
GAP = "train/train_rollout_logprob_abs_diff"
STEP = {  # what a step is made of -> column
    "step": "perf/step_time",
    "rollout": "perf/rollout_time",
    "train": "perf/train_time",
    "publish": "perf/update_weights_time",
}


def span(cells: Sequence[float]) -> tuple[float, float]:
    """Smallest and largest."""
    return min(cells), max(cells)


def seeds() -> list[evidence.Run]:
    """The three runs."""
    return [evidence.run(run) for run in SEEDS]


def seed_legend(style: Style, role: str, runs: Sequence[evidence.Run]) -> list[Any]:
    """Legend entries that name the seed."""
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], label=f"seed {run.seed}", **style.line(role, which))
        for which, run in enumerate(runs)
    ]


# -- chapter 2: the example on a GPU ---------------------------------------------------------------


@figure("fig-core-2-gpu")
def learning() -> Figure:
    """Reward of each collection, and held-out reward now and then, of three seeds."""
    runs = seeds()
    trained = [run.column(TRAINED) for run in runs]
    held = [run.fact("evals", "columns", HELD_OUT) for run in runs]
    after = [index + 1 for index in runs[0].fact("evals", "index")]
    after[0] = 0  # the evaluation before any training
    steps = len(trained[0])
    starts = [statistics.fmean(line[:ENDS]) for line in trained]
    ends = [statistics.fmean(line[-ENDS:]) for line in trained]
    first, last = [line[0] for line in held], [line[-1] for line in held]
    gains = [b - a for a, b in zip(first, last, strict=True)]

    def value(name: str, number: Any, what: str) -> Value:
        return measured(name, number, "", 3, what=what, runs=SEEDS, kind="metric")

    values = [
        value("held_first", span(first), f"{HELD_OUT}:before training:range"),
        value("held_last", span(last), f"{HELD_OUT}:last:range"),
        value("first_mean", statistics.fmean(first), f"{HELD_OUT}:before training:mean"),
        value("last_mean", statistics.fmean(last), f"{HELD_OUT}:last:mean"),
        value("width", max(last) - min(last), f"{HELD_OUT}:last:width of the range"),
        value("gain", span(gains), f"{HELD_OUT}:last less first:range"),
        value("trained_first", span(starts), f"{TRAINED}:first {ENDS}:range"),
        value("trained_last", span(ends), f"{TRAINED}:last {ENDS}:range"),
        measured(
            "collections", steps, "", 0, what="collections", runs=SEEDS, kind="count",
            noun="collections",
        ),
    ]  # fmt: skip
    marks = {step: which for which, step in enumerate(after)}
    rows = [
        {
            "run": run.name,
            "collections trained on": step,
            "reward of the next collection": line[step] if step < steps else "",
            "held-out reward": own[marks[step]] if step in marks else "",
        }
        for run, line, own in zip(runs, trained, held, strict=True)
        for step in range(steps + 1)
    ]

    def draw(style: Style) -> Any:
        made = style.canvas(4.6 if style.narrow else 2.6)
        axes = made.subplots(2, 1) if style.narrow else made.subplots(1, 2, sharey=True)
        for which in range(len(runs)):
            axes[0].plot(
                range(steps), trained[which], **{**style.line("data", which), "marker": ""}
            )
            axes[1].plot(after, held[which], **style.line("data", which))
        for ax, title in zip(axes, ("collections", "held-out questions"), strict=True):
            style.plain(ax)
            ax.set_title(title)
            ax.set_ylim(0, 1)
            ax.set_xlabel("collections trained on")
        axes[0].set_ylabel("mean reward")
        if style.narrow:
            axes[1].set_ylabel("mean reward")
        made.legend(handles=seed_legend(style, "data", runs), loc="outside upper left", ncols=3)
        return made

    return Figure(
        shape="Two line charts with one line a seed. All lines rise from left to right.",
        values=values,
        rows=rows,
        draw=draw,
    )


@figure("fig-core-2-gpu-step")
def step_parts() -> Figure:
    """Medians of a whole step and of its parts, as a range over the seeds."""
    runs = seeds()
    medians = {name: [run.median(column) for run in runs] for name, column in STEP.items()}
    samples = {int(run.setting("batch.global_batch_size")) for run in runs}
    (batch,) = samples
    labels = {
        "step": "whole step",
        "rollout": "generating the collection",
        "train": "training on it, with packing and checks",
        "publish": "publishing the new weights",
    }
    values = [
        measured(
            name, span(cells), "s", 3 if name == "publish" else 2,
            what=f"{STEP[name]}:median:range over seeds", runs=SEEDS,
        )
        for name, cells in medians.items()
    ]  # fmt: skip
    rates = [batch / cell for cell in medians["step"]]
    values.append(
        measured(
            "rate", span(rates), "samples/s", 0, what="samples over median step:range", runs=SEEDS
        )
    )
    shown = [labels[name] for name in STEP] + ["samples of a step, by the median step"]
    rows = [
        {"what": label, "value": found.text} for label, found in zip(shown, values, strict=True)
    ]
    return Figure(
        shape="A table of medians, each as a range over three seeds.",
        values=values,
        rows=rows,
        columns={"what": "Median of all steps", "value": "Three seeds"},
    )


# -- chapter 4: packs, and the scoring pass --------------------------------------------------------

STATED = (  # numbers of the chart that the page says; the others are in its data
    "alone_skipped", "alone_memory", "pack2048_skipped", "pack2048_extra", "pack8192_skipped",
    "pack8192_extra", "pack16384_skipped", "pack16384_skipped_range", "pack16384_kept_range",
    "pack16384_memory",
)  # fmt: skip


@figure("fig-core-4-packing")
def packing() -> Figure:
    """Seconds of a training step by the size of the packs, with and without the scoring pass."""
    lines = Measurement(PACKING).lines("packing.jsonl", timing=True)
    settings = lines[0]["settings"]
    found = {(line["key"]["pack"], line["key"]["scoring"]): line["values"] for line in lines[1:]}
    sizes = settings["packs"]
    if found.keys() != {(size, way) for size in sizes for way in ("skipped", "kept")}:
        raise evidence.EvidenceError("packing.jsonl: a size or a way is missing")
    one = found[sizes[0], "skipped"]
    runs = [PACKING]

    def value(name: str, number: Any, unit: str, digits: int, what: str, noun: str = "") -> Value:
        kind = "count" if noun else ""
        return measured(name, number, unit, digits, what=what, runs=runs, kind=kind, noun=noun)

    values = [
        value("samples", settings["rows"], "", 0, "samples", "samples"),
        value("tokens", one["model_tokens"], "", 0, "model tokens", "model tokens|tokens"),
        value("repeats", settings["repeats"], "", 0, "steps timed", "steps|times"),
    ]
    rows = []
    for size in sizes:
        name = f"pack{size}" if size else "alone"
        row: dict[str, Any] = {"pack_tokens": size or "one sample"}
        for way in ("skipped", "kept"):
            cell = found[size, way]
            seconds = value(f"{name}_{way}", cell["seconds"], "s", 2, f"seconds:{size}:{way}")
            low_high = (cell["seconds_low"], cell["seconds_high"])
            what = f"seconds:{size}:{way}:range"
            values += [seconds, value(f"{name}_{way}_range", low_high, "s", 2, what)]
            row |= {
                f"{way}_s": cell["seconds"],
                f"{way}_least": cell["seconds_low"],
                f"{way}_most": cell["seconds_high"],
            }
        memory = found[size, "skipped"]["peak_bytes"] / GB
        values.append(value(f"{name}_memory", memory, "GB", 1, f"peak:{size}"))
        extra = found[size, "kept"]["seconds"] - found[size, "skipped"]["seconds"]
        values.append(value(f"{name}_extra", extra, "s", 2, f"kept less skipped:{size}"))
        rows.append(row | {"peak_gb": memory, "forwards": found[size, "skipped"]["forwards"]})
    largest = found[sizes[-1], "skipped"]
    ratio = one["seconds"] / largest["seconds"]
    values.append(value("ratio", ratio, "times", 0, "one sample a forward over the largest pack"))

    def draw(style: Style) -> Any:
        labels = [f"{size:,} tokens" if size else "one sample" for size in sizes]
        drawing, ax = style.axes(height=3.4, left=False, grid=None)
        by_name = {found.name: found for found in values}
        for place, size in enumerate(sizes):
            name = f"pack{size}" if size else "alone"
            for shift, way, role in ((0.2, "skipped", "trainer"), (-0.2, "kept", "lifecycle")):
                seconds = found[size, way]["seconds"]
                where = len(sizes) - 1 - place + shift
                ax.barh(where, seconds, height=0.36, **style.bar(role))
                ax.annotate(
                    by_name[f"{name}_{way}"].text,
                    (seconds, where),
                    xytext=(4, 0),
                    textcoords="offset points",
                    va="center",
                )
        ax.set_xscale("log")
        ax.set_xlim(0.1, 60)
        ax.set_xticks([])
        ax.set_xticks([], minor=True)
        ax.spines["bottom"].set_visible(False)
        ax.set_yticks(range(len(sizes)), list(reversed(labels)))
        ax.tick_params(axis="y", length=0)
        handles = [
            style.swatch("trainer", "scoring pass skipped"),
            style.swatch("lifecycle", "scoring pass kept"),
        ]
        drawing.legend(handles=handles, loc="outside upper left", ncols=1 if style.narrow else 2)
        return drawing

    stated = ("samples", "tokens", "repeats", "ratio", *STATED)
    return Figure(
        shape=(
            "Four pairs of bars on a logarithmic scale, one pair a pack size. They shrink as packs "
            "grow; within a pair the bar with the scoring pass is the longer one, but for the "
            "largest pack."
        ),
        values=[found for found in values if found.name in stated],
        rows=rows,
        draw=draw,
    )


@figure("fig-core-4-attention")
def attention() -> Figure:
    """A training step with PyTorch's attention for variable lengths and with a mask."""
    lines = [
        line
        for line in Measurement(DECODING).lines("decode_speed.jsonl", timing=True)
        if line["what"] == "train"
    ]
    runs = [DECODING]
    both = [line["pack_tokens"] for line in lines if line["attention"] == "mask"]
    (document,) = {line["document_tokens"] for line in lines}
    values = [
        measured(name, size, "tokens", 0, what=name, runs=runs, kind="count")
        for name, size in (("pack", max(both)), ("document", document))
    ]
    rows = []
    for line in lines:
        name = f"{line['attention']}_{line['pack_tokens']}"
        seconds = measured(
            f"{name}_seconds", span(line["seconds"]), "s", 2, what=f"train:{name}", runs=runs
        )
        memory = measured(
            f"{name}_memory", line["peak_bytes"] / GB, "GB", 1, what=f"peak:{name}", runs=runs
        )
        values += [seconds, memory]
        rows.append(
            {
                "pack": f"{line['pack_tokens']:,} tokens",
                "way": "variable lengths" if line["attention"] == "varlen" else "mask",
                "seconds": seconds.text,
                "memory": memory.text,
            }
        )
    return Figure(
        shape="A table with one row for each size of packs and way of attention.",
        values=values,
        rows=rows,
        columns={
            "pack": "Pack",
            "way": "Attention",
            "seconds": "A step, two times",
            "memory": "Peak memory",
        },
    )


# -- chapter 12: records of the runs on a GPU ------------------------------------------------------

THIRDS = ("first", "middle", "last")


def records(run: evidence.Run) -> list[dict[str, Any]]:
    """The contract records of a run, one a step."""
    text = lzma.decompress(evidence.read(run.folder / "training_contract_rank0.jsonl.xz"))
    found = [json.loads(line) for line in text.decode("utf-8").splitlines()]
    evidence.record(evidence.Access(run.id, "training_contract_rank0", steps=len(found)))
    return found


@figure("fig-core-12-gpu")
def thirds() -> Figure:
    """Probability error by thirds of the responses, in the first and in the last record."""
    runs = seeds()
    stored = [records(run) for run in runs]
    values, rows = [], []
    for end, at in (("start", 0), ("end", -1)):
        row = {"record": "first of each run" if end == "start" else "last of each run"}
        for part in THIRDS:
            cells = [own[at]["probability_error"]["thirds"][part]["mean"] for own in stored]
            what = f"probability_error:{part} third:mean:{end}:range"
            found = measured(f"{end}_{part}", span(cells), "nats", 4, what=what, runs=SEEDS)
            values.append(found)
            row[part] = found.text
        rows.append(row)
    largest = max(line["probability_error"]["all"]["max"] for own in stored for line in own)
    over = sum(line["probability_error"]["all"]["counts"][-1] for own in stored for line in own)
    values += [
        measured("largest", largest, "nats", 2, what="probability_error:max:largest", runs=SEEDS),
        measured(
            "overflow", over, "", 0, what="probability_error:overflow bin:sum", runs=SEEDS,
            kind="count", noun="tokens",
        ),
    ]  # fmt: skip
    return Figure(
        shape="A table with one row for the first and one for the last record.",
        values=values,
        rows=rows,
        columns={
            "record": "Record",
            "first": "First third",
            "middle": "Middle third",
            "last": "Last third",
        },
    )
