"""Sections 8.3, 8.4, 8.6 and 8.7: gaps of other teams, memory turns, router, commits."""

from __future__ import annotations

from typing import Any

from figures import evidence
from figures.citations import cited
from figures.inside_gap import table_of
from figures.registry import Figure, figure
from figures.sources import measured, published
from figures.style import Style
from figures.values import Value

LAB = "h200-miles"
ALONE = f"{LAB}/plain_s1234"  # the only run whose times may be shown
MANY = f"{LAB}/n16"
KILLED = f"{LAB}/kill_noft"
LOST = "lost"

# team, model and hardware, id of the value or LOST, name of the value
_OTHERS = (
    ("the Miles team", "GLM-5.3-Flash", "16 nodes of 4 GB300 GPUs", "miles-docs-glm.gap", "glm"),
    ("the Miles team", f"mixture of experts, names {LOST}", "8 nodes of 4 GB300 GPUs", LOST, ""),
    ("authors of an SGLang pull request", "DeepSeek-V4.1", "GB300", LOST, ""),
    ("the vLLM team, vime", LOST, LOST, LOST, ""),
)

# what, name of the value, id in reported.toml, kind, noun
_GB10_TURNS = (
    ("trainer offload, median of 48 steps", "sleep", "offload-median", "time", ""),
    ("trainer onload, median of 48 steps", "wake", "onload-median", "time", ""),
    ("a step takes more than", "step", "step-over", "time", ""),
    ("weight update, Qwen3-0.6B", "update", "update-0-6b", "time", ""),
    ("weight update, Qwen3-1.7B", "update_large", "update-1-7b", "time", ""),
    ("weight update, share of a step, under", "share", "update-share", "share", ""),
    ("rollout time saved with the engine kept loaded", "kept", "pair-gain-s", "time", ""),
    ("of a rollout of about", "rollout", "pair-rollout-minute", "time", ""),
    ("the same saving as a share", "kept_share", "pair-gain-percent", "share", ""),
)
_GB10_ROUTER = (
    ("failed requests of the run with 16 answers", "errors", "n16-errors", "count", "requests"),
    ("longest burst of them", "burst", "n16-burst", "time", ""),
    ("open requests of that run", "open", "n16-open-requests", "count", "requests"),
)


@figure("fig-8-3-others")
def other_gaps() -> Figure:
    """Healthy gaps that other teams published, as far as their values are left."""
    values: list[Value] = []
    rows = []
    for team, model, hardware, value_id, name in _OTHERS:
        gap = LOST
        if value_id != LOST:
            values.append(cited(name, value_id, kind="metric"))
            gap = values[-1].text
        rows.append({"team": team, "model": model, "hardware": hardware, "gap": gap})
    values.append(cited("glm_steps", "miles-docs-glm.steps", kind="count"))
    return Figure(
        shape="A table with one row for each team; a cell that only a lost table held says so.",
        values=values,
        rows=rows,
        columns={"team": "Team", "model": "Model", "hardware": "Hardware", "gap": "Gap"},
    )


@figure("fig-8-3-cost")
def bitwise_cost() -> Figure:
    """What the kernels with one fixed order cost in the paper that proposed them."""
    cost = cited("cost", "tp-invariant.inference-cost")
    return Figure(
        shape="A table of one published value.",
        values=[cost],
        rows=[{"what": "inference time added, Qwen3-8B", "published": cost.text}],
        columns={"what": "Number", "published": "Published"},
    )


@figure("fig-8-4-gb10")
def gb10_turns() -> Figure:
    """What the GB10 manual prints of offload, onload and the weight update."""
    return table_of(_GB10_TURNS)


@figure("fig-8-4-h200")
def h200_turns() -> Figure:
    """Trainer offload, onload and weight update of each step after the first."""
    run = evidence.run(ALONE)
    later = run.index[1:]
    parts = {
        "sleep": ("perf/sleep_time", "trainer offload (sleep)", "trainer"),
        "wake": ("perf/wake_up_time", "trainer onload (wake up)", "trainer"),
        "update": ("perf/update_weights_time", "weight update", "lifecycle"),
    }
    data = {name: run.column(column, later) for name, (column, _, _) in parts.items()}
    whole = run.column("perf/step_time", later)
    shares = [100 * sum(cells) / step for *cells, step in zip(*data.values(), whole, strict=True)]

    def seconds(name: str, number: float, what: str) -> Value:
        return measured(name, number, "s", 2, what=what, runs=[ALONE])

    values = [
        *(
            seconds(name, run.median(column, later), f"{column}:median:from step 1")
            for name, (column, _, _) in parts.items()
        ),
        seconds("step", run.median("perf/step_time", later), "perf/step_time:median:from step 1"),
        seconds("sleep_most", max(data["sleep"]), "perf/sleep_time:maximum:from step 1"),
        measured(
            "share",
            (min(shares), max(shares)),
            "percent",
            0,
            what="offload, onload and update over step_time:range:from step 1",
            runs=[ALONE],
        ),
        measured(
            "steps",
            len(later),
            "",
            0,
            what="steps:from 1",
            runs=[ALONE],
            kind="count",
            noun="steps",
        ),
    ]
    rows = [
        {"step": step, **{f"{name}_s": data[name][at] for name in parts}, "step_s": whole[at]}
        for at, step in enumerate(later)
    ]

    def draw(style: Style) -> Any:
        made, ax = style.axes(3.4 if style.narrow else 2.8)
        for which, (name, (_, label, role)) in enumerate(parts.items()):
            ax.plot(later, data[name], label=label, **style.line(role, which))
        ax.set_ylim(0, max(data["sleep"]) * 1.12)
        ax.set_xticks(later[:: 6 if style.narrow else 3])
        ax.set_xlabel("step")
        ax.set_ylabel("seconds")
        made.legend(loc="outside upper left", ncols=1 if style.narrow else 3, handlelength=3.2)
        return made

    return Figure(
        shape=f"Three lines over {len(later)} steps: trainer offload, onload and weight update.",
        values=values,
        rows=rows,
        draw=draw,
    )


@figure("fig-8-6-gb10")
def gb10_router() -> Figure:
    """The burst that the GB10 lab saw, and the two ports of its router."""
    made = table_of(_GB10_ROUTER)
    ports = [
        published("port_launch", "gb10", "router-port-launch", kind="metric", unit=""),
        published("port_503", "gb10", "router-port-503", kind="metric", unit=""),
    ]
    what = ("port in the launch line of the router", "port in a failed request")
    rows = [
        *made.rows,
        *(
            {"what": text, "published": str(port.number)}
            for text, port in zip(what, ports, strict=True)
        ),
    ]
    return Figure(shape=made.shape, values=[*made.values, *ports], rows=rows, columns=made.columns)


@figure("fig-8-6-h200")
def h200_router() -> Figure:
    """Failed requests of the run with the most open requests and of the run with a dead engine."""
    rows = []
    values: list[Value] = []
    for name, run_id in (("many", MANY), ("killed", KILLED)):
        run = evidence.run(run_id)
        samples = int(run.setting("rollout-batch-size")) * int(run.setting("n-samples-per-prompt"))
        retries = run.fact("retries", "total")
        values += [
            measured(
                f"{name}_answers",
                samples,
                "",
                0,
                what="answers per step",
                runs=[run_id],
                kind="count",
                noun="answers|requests",
            ),
            measured(
                f"{name}_failed",
                retries,
                "failed requests",
                0,
                what="retries:total",
                runs=[run_id],
                kind="count",
            ),
        ]
        rows.append(
            {
                "run": run.name,
                "engine": "alive" if name == "many" else "killed in rollout 3",
                "answers": samples,
                "failed": retries,
            }
        )
    return Figure(
        shape="A table with one row for each of two runs.",
        values=values,
        rows=rows,
        columns={
            "run": "Run",
            "engine": "Engine",
            "answers": "Answers in a step",
            "failed": "Failed requests",
        },
    )


@figure("fig-8-7-commits")
def commits() -> Figure:
    """Commits that Miles and slime share and have for themselves, at two dates."""
    shared = cited("shared", "commit-counts.shared-commits", unit="", noun="commits")
    cells = {
        "2026-08-21": (
            cited("miles_august", "commit-counts.own-commits", unit="", noun="commits"),
            cited("slime_august", "commit-counts.slime-own-commits", unit="", noun="commits"),
        ),
        "2026-10-20": (
            cited("miles_october", "commit-counts.miles-ahead", unit="", noun="commits"),
            cited("slime_october", "commit-counts.slime-ahead", unit="", noun="commits"),
        ),
    }
    about = {"2026-08-21": "", "2026-10-20": "about "}
    rows = [
        {
            "date": date,
            "shared": shared.text if date == "2026-08-21" else "not said",
            "miles": f"{about[date]}{miles.text}",
            "slime": f"{about[date]}{slime.text}",
        }
        for date, (miles, slime) in cells.items()
    ]
    return Figure(
        shape="A table with one row for each of two dates.",
        values=[shared, *(value for pair in cells.values() for value in pair)],
        rows=rows,
        columns={
            "date": "Date",
            "shared": "Shared",
            "miles": "Only in Miles",
            "slime": "Only in slime",
        },
    )
