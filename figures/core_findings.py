"""Findings of the second manual: one figure each, drawn from the recorded JSON of its program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from figures import corelab
from figures.corelab import value
from figures.registry import Figure, figure
from figures.style import Style
from figures.values import Value

Row = tuple[str, Value]


def table(rows: Sequence[Row], *, what: str = "What", shape: str = "") -> Figure:
    """A table of recorded numbers, one a row."""
    shown = [{"what": label, "value": found.text} for label, found in rows]
    return Figure(
        shape=shape or "A table of recorded numbers, one a row.",
        values=[found for _, found in rows],
        rows=shown,
        columns={"what": what, "value": "Recorded"},
    )


def bars(
    style: Style, labels: Sequence[str], values: Sequence[Value], roles: Sequence[str], *, log: bool
) -> Any:
    """Horizontal bars with their values at the end; a log scale begins below the smallest."""
    drawing, axes = style.axes(height=0.42 * len(labels) + 0.5, left=False, grid=None)
    numbers = [float(found.low) for found in values]
    for place, (found, role) in enumerate(zip(values, roles, strict=True)):
        style.labelled_bar(axes, len(labels) - 1 - place, numbers[place], role, found.text)
    axes.set_yticks(range(len(labels)), list(reversed(labels)))
    axes.tick_params(axis="y", length=0)
    axes.spines["bottom"].set_visible(False)
    if log:
        axes.set_xscale("log")
        axes.set_xlim(min(numbers) / 10, max(numbers) * 300)
    else:
        axes.set_xlim(0, max(numbers) * 1.35)
    axes.set_xticks([])
    axes.set_xticks([], minor=True)
    return drawing


# -- chapter 1 and 4 -------------------------------------------------------------------------------


@figure("fig-core-1-hook")
def hook() -> Figure:
    """What the hook changes in a gradient: nothing, and what accumulation and bfloat16 change."""
    name = "hook_equality"
    return table(
        [
            (
                "policy gradient through Core's loop against autograd by hand, largest difference",
                value("by_hand", name, "core_against_hand", 0),
            ),
            (
                "one sample a forward against all in one pack, relative",
                value("accumulation", name, "accumulation", 1, exponent=True),
            ),
            (
                "bfloat16 against float32, relative",
                value("bfloat16", name, "bfloat16", 1, unit="percent", scale=100),
            ),
        ]
    )


@figure("fig-core-1-build")
def weights_at_build() -> Figure:
    """What is left of a model's weights after Core has built a train module around it."""
    name = "weights_at_build"
    return table(
        [
            ("all numbers", value("kept", name, "kept", 0, unit="percent", scale=100)),
            (
                "numbers of matrices alone",
                value("matrices", name, "kept_matrices", 0, unit="percent", scale=100),
            ),
        ],
        what="Share that is as before",
    )


@figure("fig-core-4-documents")
def documents() -> Figure:
    """Packed and alone, with and without the mask between documents, for three architectures."""
    families = corelab.read("document_mask", "family")
    names = ("Llama", "Qwen3", "OLMo-2")
    masked = [
        value(f"masked_{family}", "document_mask", "masked", 1, unit="nats", exponent=True, at=n)
        for n, family in enumerate(families)
    ]
    plain = [
        value(f"plain_{family}", "document_mask", "plain", 2, unit="nats", at=n)
        for n, family in enumerate(families)
    ]
    rows = [
        {"family": name, "with": one.text, "without": other.text}
        for name, one, other in zip(names, masked, plain, strict=True)
    ]
    return Figure(
        shape="A table with one row for each architecture.",
        values=[*masked, *plain],
        rows=rows,
        columns={
            "family": "Architecture",
            "with": "With the document mask",
            "without": "Without it",
        },
    )


# -- chapter 5: denominators -----------------------------------------------------------------------


@figure("fig-core-5-local")
def local_denominators() -> Figure:
    """Relative error of Core's own two-rank gradient, by the share of labels on the second rank."""
    name = "local_denominators"
    errors = [
        value(key, name, "core_error", 0, unit="percent", scale=100, at=n)
        for n, key in enumerate(("half", "quarter", "eighth"))
    ]
    equal = value("equal", name, "core_error_equal", 1, exponent=True)
    labels = ("half of them", "a quarter", "an eighth")
    rows = [
        {"labels": label, "error": found.low} for label, found in zip(labels, errors, strict=True)
    ]

    def draw(style: Style) -> Any:
        return bars(style, labels, errors, ["failure"] * 3, log=False)

    return Figure(
        shape="Three bars that grow as the second rank keeps fewer labels.",
        values=[*errors, equal],
        rows=rows,
        draw=draw,
    )


@figure("fig-core-5-own")
def own_denominators() -> Figure:
    """The policy objective of this trainer with local and with global denominators."""
    name = "local_denominators"
    return table(
        [
            ("active tokens of the first rank", _tokens("first", name, 0)),
            ("active tokens of the second rank", _tokens("second", name, 1)),
            ("each rank's own count, DDP", _percent("local_ddp", name, "own_local_ddp")),
            ("each rank's own count, FSDP", _percent("local_fsdp", name, "own_local_fsdp")),
            (
                "counts over all ranks, DDP",
                value("global_ddp", name, "own_global_ddp", 1, exponent=True),
            ),
            (
                "counts over all ranks, FSDP",
                value("global_fsdp", name, "own_global_fsdp", 1, exponent=True),
            ),
        ],
        what="Relative distance from the gradient of one process, and what it was measured on",
    )


def _tokens(name: str, source: str, at: int) -> Value:
    return value(name, source, "active", 0, unit="tokens", kind="count", at=at)


def _percent(name: str, source: str, key: str) -> Value:
    return value(name, source, key, 0, unit="percent", scale=100)


# -- chapter 6: replay -----------------------------------------------------------------------------


@figure("fig-core-6-cache")
def recompute_cache() -> Figure:
    """Why Core's recompute cache is no replay: ids and weights of different choices."""
    name = "recompute_cache"
    return table(
        [
            (
                "tokens whose experts live routing would have changed",
                value("moved", name, "moved", 0, unit="percent", scale=100),
            ),
            (
                "of those, tokens that ran with weights of other experts",
                value("wrong", name, "moved_wrong", 0, unit="percent", scale=100),
            ),
            ("largest difference of an expert weight", value("largest", name, "largest", 2)),
            ("the same in the replay of this trainer", value("own", name, "own_gap", 0)),
        ]
    )


@figure("fig-core-6-import")
def moe_import() -> Figure:
    """A mixture of experts between transformers and Core, and its gradient packed and alone."""
    name = "moe_import"
    return table(
        [
            (
                "transformers against Core, largest difference of a log-probability",
                value("gap", name, "gap", 1, unit="nats", exponent=True),
            ),
            (
                "gradient packed against one by one, sequence grouping, relative",
                value("sequence", name, "sequence_grouping", 1, exponent=True),
            ),
            (
                "the same with pack grouping",
                value("pack", name, "pack_grouping", 0, unit="percent", scale=100),
            ),
            ("recomputation on against off", value("recompute", name, "recompute", 0)),
        ]
    )


# -- chapter 7: router objectives ------------------------------------------------------------------


@figure("fig-core-7-masked")
def masked_prompts() -> Figure:
    """Core's balancing loss, by the share of labels that the mask keeps."""
    name = "masked_prompts"
    factors = [
        value(key, name, "factors", 1, unit="" if key == "all" else "times", at=n)
        for n, key in enumerate(("all", "half", "quarter", "eighth"))
    ]
    own = [
        value("own_all", name, "own_all", 3),
        value("own_few", name, "own_few", 3),
    ]
    labels = ("all of them", "half of them", "a quarter", "an eighth")
    rows = [
        {"labels kept": label, "factor": found.low}
        for label, found in zip(labels, factors, strict=True)
    ]

    def draw(style: Style) -> Any:
        return bars(style, labels, factors, ["trainer", *["failure"] * 3], log=False)

    return Figure(
        shape="Four bars: each is twice as long as the one above it.",
        values=[*factors, *own],
        rows=rows,
        draw=draw,
    )


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


GROUPED = (("pack", "token"), ("pack", "response"), ("sequence", "token"), ("sequence", "response"))


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


@figure("fig-core-7-ranks")
def router_ranks() -> Figure:
    """Balancing loss of six documents on one process and on two ranks, for three ways to divide."""
    name = "router_ranks"
    combinations = corelab.read(name, "every")
    ways = {
        "alone": "One process, one pack",
        "ranks": "Two ranks, counts of the step",
        "naive": "Two ranks, own counts",
    }
    values, rows = [], []
    for grouping in ("sequence", "pack"):
        at = combinations.index([grouping, "token"])
        row = {"grouping": f"`{grouping}`, over tokens"}
        for way in ways:
            found = value(f"{way}_{grouping}", name, way, 4, at=at)
            values.append(found)
            row[way] = found.text
        rows.append(row)
    values.append(value("gap", name, "gap", 1, exponent=True))
    for key in ("pack_gap", "naive_gap"):
        values.append(value(key, name, key, 1, unit="percent", scale=100))
    return Figure(
        shape="A table with one row for each grouping and one column for each way to divide.",
        values=values,
        rows=rows,
        columns={"grouping": "Grouping", **ways},
    )


@figure("fig-core-7-others")
def others() -> Figure:
    """One router, the balancing loss of three code bases."""
    name = "router_losses"
    return table(
        [
            ("Core, first layer", value("core", name, "core", 4, at=0)),
            ("transformers, the same layer", value("hf", name, "hf", 4, at=0)),
            (
                "transformers over Core",
                value("factor", name, "factor", 1, unit="times", at=0),
            ),
            ("Core, both layers added", value("core_sum", name, "core_sum", 4)),
            (
                "transformers, both layers in one histogram",
                value("hf_pooled", name, "hf_pooled", 4),
            ),
            (
                "Megatron against Core, largest difference",
                value("megatron", name, "megatron_gap", 1, exponent=True),
            ),
            ("z loss, Megatron against Core", value("z", name, "z_gap", 0)),
        ]
    )


# -- chapter 8: the FP32 head ----------------------------------------------------------------------


@figure("fig-core-8-rounding")
def fp32_head() -> Figure:
    """Mean error of a log-probability by the spread of the logits, with both heads."""
    name = "fp32_head"
    spreads = [int(item) for item in corelab.read(name, "spread")]
    low = [
        value(f"bf16_{s}", name, "bf16_mean", 4, unit="nats", at=n) for n, s in enumerate(spreads)
    ]
    high = [
        value(f"fp32_{s}", name, "fp32_mean", 1, unit="nats", exponent=True, at=n)
        for n, s in enumerate(spreads)
    ]
    ratio = value("bytes", name, "bytes_ratio", 0, unit="times")
    labels = [f"spread {s}, {head}" for s in spreads for head in ("BF16 logits", "FP32 logits")]
    shown = [found for pair in zip(low, high, strict=True) for found in pair]
    rows = [{"case": label, "nats": found.low} for label, found in zip(labels, shown, strict=True)]

    def draw(style: Style) -> Any:
        return bars(style, labels, shown, ["failure", "trainer"] * len(spreads), log=True)

    return Figure(
        shape="Pairs of bars on a logarithmic scale, one pair for each spread of the logits.",
        values=[*low, *high, ratio],
        rows=rows,
        draw=draw,
    )


# -- chapters 9, 10 and 13 -------------------------------------------------------------------------


@figure("fig-core-9-ranks")
def checkpoint_ranks() -> Figure:
    """What Core and the manifest say when a checkpoint of two ranks is loaded by one."""
    name = "checkpoint_ranks"
    saved = value("saved", name, "saved_ranks", 0, kind="count", noun="ranks")
    answers = (
        ("Core, both files there", "complained", "raises", "loads it without a word"),
        ("Core, the file of the second rank missing", "complained_of_half", "raises",
         "loads it without a word"),
        ("the manifest", "refused", "refuses before anything is loaded", "lets it pass"),
    )  # fmt: skip
    rows = [
        {"who": who, "ranks": saved.text, "does": yes if corelab.read(name, key) else no}
        for who, key, yes, no in answers
    ]
    return Figure(
        shape="A table of what each of three does.",
        values=[saved],
        rows=rows,
        columns={"who": "Who is asked", "ranks": "Saved by ranks", "does": "What it does"},
    )


@figure("fig-core-9-resume")
def resume() -> Figure:
    """A resumed run against an unbroken one, with all state and with weights alone."""
    name = "resume"
    return table(
        [
            ("resumed from a checkpoint", value("resumed", name, "resumed", 0)),
            (
                "weights and step number alone",
                value("without", name, "without", 1, exponent=True),
            ),
            (
                "what the unbroken run moved in these two steps",
                value("moved", name, "moved", 1, exponent=True),
            ),
        ],
        what="Largest difference of a weight",
    )


@figure("fig-core-9-names")
def norm_mapping() -> Figure:
    """Core's conversion of HF weights with and without the model type."""
    name = "norm_mapping"
    return table(
        [
            (
                "with the model type, largest difference of a logit",
                value("named", name, "named", 0),
            ),
            (
                "without it, weights that got no value",
                value("unloaded", name, "unloaded", 0, kind="count", noun="norms|weights"),
            ),
            ("without it, largest difference of a logit", value("off", name, "unnamed", 1)),
            ("largest logit of the model", value("largest", name, "largest", 1)),
        ]
    )


@figure("fig-core-10-matrix")
def detection() -> Figure:
    """Every fault of a transfer against every check."""
    name = "detection_matrix"
    faults, checks, caught = (corelab.read(name, key) for key in ("faults", "checks", "caught"))
    places = {fault: n for n, fault in enumerate(faults)}
    swapped = value(
        "swapped", name, "gaps", 1, unit="nats", exponent=True,
        at=places["swapped mapping, every transfer"] - 1,
    )  # fmt: skip
    stale = value(
        "stale", name, "gaps", 3, unit="nats", at=places["stale weights, every transfer"] - 1
    )
    words = {True: "caught", False: "missed"}
    rows = []
    for fault, found in zip(faults, caught, strict=True):
        answer = {True: "alarm", False: "passes"} if fault == "no fault" else words
        rows.append({"fault": fault, **{c: answer[x] for c, x in zip(checks, found, strict=True)}})

    def draw(style: Style) -> Any:
        drawing, axes = style.axes(height=0.33 * len(faults) + 0.7, left=False, grid=None)
        for y, row in enumerate(reversed(rows)):
            for x, check in enumerate(checks):
                role = "data" if row[check] in ("caught", "passes") else "failure"
                axes.text(
                    x, y, row[check], ha="center", va="center", color=style.colour(role),
fontweight="bold" if role == "failure" and not style.narrow else "normal",
                )  # fmt: skip
        axes.set_xlim(-0.6, len(checks) - 0.4)
        axes.set_ylim(-0.6, len(faults) - 0.4)
        heads = ["load", "HF", "round\ntrip", "log-\nprob."]
        axes.set_xticks(range(len(checks)), heads if style.narrow else checks)
        texts = [f.replace(", ", ",\n") if style.narrow else f for f in reversed(faults)]
        axes.set_yticks(range(len(faults)), texts)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.spines["bottom"].set_visible(False)
        return drawing

    return Figure(
        shape="A grid of words: one row a fault, one column a check.",
        values=[swapped, stale],
        rows=rows,
        draw=draw,
    )


@figure("fig-core-13-skipped")
def skipped() -> Figure:
    """What a skip-step optimizer reports, and what it left of the weights."""
    name = "skipped_nan"
    cases = (
        ("loss is no number, AdamW", "none", "plain_bad"),
        ("loss is no number, SkipStepAdamW", "skipped", "nan_bad"),
        ("loss 1000 times as large, SkipStepAdamW", "skipped", "large_bad"),
        ("loss times -1000, SkipStepAdamW without a norm", "none", "alone_low_bad"),
    )
    expected = {"nan_skipped": 1.0, "large_skipped": 1.0, "low_skipped": 1.0}
    expected |= {"alone_large_skipped": 1.0, "alone_low_skipped": 0.0}
    for key, flag in expected.items():
        if corelab.read(name, key) != flag:
            raise ValueError(f"{name}.json: {key} is not {flag:g}")
    values = [value(key, name, key, 0, unit="percent", scale=100) for _, _, key in cases]
    moved = value("moved", name, "alone_low_moved", 4)
    rows = [
        {"case": case, "says": says, "bad": found.text}
        for (case, says, _), found in zip(cases, values, strict=True)
    ]
    return Figure(
        shape="A table of four cases.",
        values=[*values, moved],
        rows=rows,
        columns={"case": "Case", "says": "It reports", "bad": "Weights that are no numbers"},
    )


# -- chapter 14 ------------------------------------------------------------------------------------


@figure("fig-core-14-references")
def references() -> Figure:
    """How far the objective is from three other code bases, on one fixed batch."""
    name = "objective_references"

    def number(key: str) -> Value:
        return value(key, name, key, 1, exponent=True)

    rows: list[Row] = [
        ("numpy, loss", number("numpy_loss")),
        ("TRL in float64, loss", number("trl_loss")),
        ("Miles in float32, loss", number("miles_loss")),
        ("TRL in float64, gradient", number("trl_gradient")),
        ("Miles in float32, gradient", number("plain_gradient")),
        ("Miles with Megatron's fused cross entropy, gradient", number("megatron_gradient")),
    ]
    cases = [
        value("trl_cases", name, "trl_cases", 0, kind="count", noun="settings"),
        value("miles_cases", name, "miles_cases", 0, kind="count", noun="settings"),
        value("largest", name, "largest_gradient", 2),
    ]
    labels = [label for label, _ in rows]
    short = ["numpy", "TRL", "Miles", "TRL grad.", "Miles grad.", "Megatron grad."]
    found = [one for _, one in rows]

    def draw(style: Style) -> Any:
        roles = ["trainer"] * 5 + ["failure"]
        return bars(style, short if style.narrow else labels, found, roles, log=True)

    return Figure(
        shape="Six bars on a logarithmic scale; the last, of a fused kernel, is the longest.",
        values=[*found, *cases],
        rows=[{"reference": label, "difference": one.low} for label, one in rows],
        draw=draw,
    )


# -- chapter 6, measured on tiny mixtures ----------------------------------------------------------


@figure("fig-core-6-experts")
def expert_gradients() -> Figure:
    """Raw gradients under two expert-parallel ranks, against one, before and after intake."""
    name = "expert_gradients"
    return table(
        [
            (
                "gradient of an expert, two ranks over one",
                value("factor", name, "factor", 1, unit="times"),
            ),
            (
                "all other gradients, relative difference",
                value("others", name, "others", 1, exponent=True),
            ),
            (
                "global gradient norm after intake, relative difference",
                value("norm", name, "norm_gap", 0),
            ),
            (
                "all weights after the step, relative difference",
                value("weights", name, "weights", 1, exponent=True),
            ),
        ]
    )


@figure("fig-core-6-depth")
def replay_depth() -> Figure:
    """Share of tokens with another expert set by layer, and the mean gap of both ways."""
    name = "replay_depth"
    layers = len(corelab.read(name, "layers"))
    shares = [
        value(f"layer_{n}", name, "layers", 1, unit="percent", scale=100, at=n)
        for n in range(layers)
    ]
    gaps = [
        value("live", name, "live", 4, unit="nats"),
        value("replay", name, "replay", 4, unit="nats"),
    ]
    rows = [
        {"layer": n, "percent_of_tokens": found.low, "mean_gap_live": gaps[0].low}
        for n, found in enumerate(shares)
    ]

    def draw(style: Style) -> Any:
        labels = [f"layer {n}" for n in range(layers)]
        return bars(style, labels, shares, ["engine"] * layers, log=False)

    return Figure(
        shape="Bars that grow from the first layer to the last.",
        values=[*shares, *gaps],
        rows=rows,
        draw=draw,
    )


@figure("fig-core-6-stale")
def replay_stale() -> Figure:
    """The gap to an engine with the same weights, with live routing and with older recorded ids."""
    name = "replay_depth"
    steps = [int(item) for item in corelab.read(name, "stale")]
    live = [
        value(f"live_{s}", name, "stale_live", 3, unit="nats", at=n) for n, s in enumerate(steps)
    ]
    old = [
        value(f"replay_{s}", name, "stale_replay", 3, unit="nats", at=n)
        for n, s in enumerate(steps)
    ]
    moved = [
        value(f"moved_{s}", name, "stale_moved", 0, unit="percent", scale=100, at=n)
        for n, s in enumerate(steps)
    ]
    rows = [
        {"steps": step, "live": a.text, "replay": b.text, "moved": c.text}
        for step, a, b, c in zip(steps, live, old, moved, strict=True)
    ]
    return Figure(
        shape="A table with one row for each age of the recorded ids.",
        values=[*live, *old, *moved],
        rows=rows,
        columns={
            "steps": "Steps since the ids were recorded",
            "live": "Gap, live routing",
            "replay": "Gap, recorded ids",
            "moved": "Tokens that moved, last layer",
        },
    )
