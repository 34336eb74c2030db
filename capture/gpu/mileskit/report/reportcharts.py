"""The charts of a report over the steps: every function takes views and gives HTML of a block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from mileskit.heat.gpusample import Sample
from mileskit.judge import signals
from mileskit.judge.clockcheck import Timing
from mileskit.judge.setupdiff import Facts
from mileskit.report import svgchart
from mileskit.report.reporthtml import block, figure
from mileskit.report.reportlog import Input
from mileskit.report.svgchart import BAD, Line, Part, legend
from mileskit.report.svgscale import bounds

SHARED = "GPU shared with other work: these times are no timing result"
ABSENT = "not in this log"
_COUNT = "rollout/zero_std/count_"


class View(NamedTuple):
    """One run of the page: what was read, its name, its setup, its timing validity, its clock
    samples and why there are none; unusable: column -> reason."""

    input: Input
    name: str
    facts: Facts
    timing: Timing
    samples: Sequence[Sample]
    no_samples: str
    unusable: dict

    @property
    def run(self) -> dict:
        return self.input.loaded.run

    @property
    def shared(self) -> bool:
        return bool(self.facts.setup.get("shared"))


class Metric(NamedTuple):
    """A line chart of one signal (id of signals.SIGNALS), or of columns when there is none.

    columns: (column, label, role, dash); factor: multiplies every value; zero: the axis has 0.
    """

    title: str
    about: str
    signal: str = ""
    factor: float = 1.0
    zero: bool = False
    columns: tuple = ()


METRICS = (
    Metric("Reward", "mean of the raw reward of a step's answers", "reward"),
    Metric("Answer length, tokens", "mean of a step's answers", "length"),
    Metric("Cut answers, percent", "share of answers at the token limit", "cut", 100, True),
    Metric(
        "Log-probability gap, nats", "mean absolute difference between engine and trainer", "gap"
    ),
    Metric("Gradient norm", "before clipping", "grad_norm"),
    Metric("Entropy, nats", "of the sampled tokens", "entropy"),
    Metric(
        "Log-probability of the answers, nats",
        "means of a step, by who computed them",
        columns=(
            ("rollout/rollout_log_probs", "engine", "engine", 0),
            ("rollout/log_probs", "trainer", "trainer", 1),
            ("rollout/ref_log_probs", "reference model", "outside", 2),
        ),
    ),
    Metric("KL to the reference model", "the loss term",
           columns=(("train/kl_loss", "KL", "trainer", 0),)),
)  # fmt: skip
_ROLES = {"gap": "trainer", "grad_norm": "trainer", "entropy": "engine"}


def caption(views: Sequence[View], view: View) -> str:
    """The run's name over its panel, "" when it is the only run."""
    return view.name if len(views) > 1 else ""


def metric_blocks(views: Sequence[View]) -> list[str]:
    """One block for each metric that a run has: a panel a run, all on one scale."""
    found = []
    for metric in METRICS:
        drawn = [_metric(view, metric) for view in views]
        if any(lines or notes for lines, notes in drawn):
            panels = _panels(views, drawn, metric.title, "step", metric.zero)
            keys = {}
            if len(metric.columns) > 1:
                keys = {o.label: (o.label, o.role, f"dash {o.dash}") for ls, _ in drawn for o in ls}
            shown = legend(list(keys.values())) if keys else ""
            found.append(block(metric.title, metric.about, panels, shown))
    return found


def _panels(views, drawn, title: str, x_words: str, zero: bool = False) -> list[str]:
    """A panel a run of (lines, notes), on one scale."""
    every = [one for lines, _ in drawn for one in lines]
    scale = bounds((y for one in every for y in one.ys), zero)
    steps = [x for one in every for x in one.xs]
    span = (min(steps), max(steps)) if steps else None
    panels = []
    for view, (lines, notes) in zip(views, drawn, strict=True):
        body = ""
        if lines:
            about = f"{title} by {x_words}, {view.name}: {_range(lines)}"
            body = svgchart.lines(lines, about, x_words, scale, span)
        panels.append(figure(caption(views, view), body, notes or ([] if lines else [ABSENT])))
    return panels


def _range(lines: Sequence[Line]) -> str:
    values = [y for one in lines for y in one.ys if y is not None and math.isfinite(y)]
    if not values:
        return "no finite value"
    return f"{len(lines[0].xs)} values, {min(values):.4g} to {max(values):.4g}"


def _metric(view: View, metric: Metric) -> tuple[list[Line], list[str]]:
    if metric.signal:
        return _signal(view, metric)
    lines, notes = [], []
    for column, words, role, dash in metric.columns:
        series = signals.column(view.run, column)
        if column in view.unusable:
            notes.append(_not_drawn(words, column))
        elif any(series.values()):
            xs = sorted(series)
            lines.append(Line(words, xs, [series[x] for x in xs], role, dash, len(xs) <= 60))
    return lines, notes + _not_finite(lines)


def _signal(view: View, metric: Metric) -> tuple[list[Line], list[str]]:
    signal = signals.BY_ID[metric.signal]
    if signal.column in view.unusable:
        return [], [_not_drawn(signal.name, signal.column)]
    series = signals.column(view.run, signal.column)
    if not series:
        return [], []
    seen = signals.see(view.run, signal, view.facts.settings)
    xs = sorted(series)
    ys = [series[x] * metric.factor for x in xs]
    lines = [Line(signal.name, xs, ys, _ROLES.get(signal.id, "data"), 0, len(xs) <= 60)]
    return lines, [*([seen.hidden] if seen.hidden else []), *seen.notes, *_not_finite(lines)]


def _not_drawn(words: str, column: str) -> str:
    return f"{words} ({column}) is not drawn: marked unusable in run.toml"


def _not_finite(lines: Sequence[Line]) -> list[str]:
    notes = []
    for one in lines:
        bad = [x for x, y in zip(one.xs, one.ys, strict=True) if not math.isfinite(y)]
        if bad:
            notes.append(f"{one.label}: not finite in {signals.steps_text(bad)} (marked {BAD})")
    return notes


def groups_block(views: Sequence[View]) -> str:
    """Groups whose answers all got one reward, by that reward."""
    drawn = [_groups(view) for view in views]
    if not any(xs for xs, _, _ in drawn):
        return ""
    asked = [(view.facts.settings or {}).get("rollout-batch-size") for view in views]
    asked = [n if isinstance(n, int) and n > 0 else None for n in asked]
    top = max([*(n for n in asked if n), *_sums(parts for _, parts, _ in drawn)], default=1)
    span = _span(xs for xs, _, _ in drawn)
    panels = []
    for view, groups, (xs, parts, notes) in zip(views, asked, drawn, strict=True):
        body = ""
        if xs:
            of = f" of {groups}" if groups else ""
            about = f"groups{of} with one reward by step, {view.name}"
            body = svgchart.stacked(xs, parts, about, top=top, x_range=span)
            body += legend([(p.label, p.role, p.hatch) for p in parts])
        panels.append(figure(caption(views, view), body, notes or ([] if xs else [ABSENT])))
    about = (
        "zero-variance groups: all answers of such a group have one reward, so it teaches nothing"
    )
    return block("Groups with one reward", about, panels)


def _sums(all_parts) -> list[float]:
    rows = [zip(*(p.ys for p in parts), strict=True) for parts in all_parts]
    return [sum(v or 0.0 for v in row) for one in rows for row in one]


def _span(all_xs) -> tuple[int, int] | None:
    known = [x for xs in all_xs for x in xs]
    return (min(known), max(known)) if known else None


_LOOKS = (("outside", "h-failure"), ("data", "h-trainer"), ("data", ""), ("engine", "h-data"))


def _groups(view: View) -> tuple[list[int], list[Part], list[str]]:
    """Rollout numbers, one part a reward, and notes. Miles leaves a count of no group out."""
    columns = view.run["rollouts"]["columns"]
    names = sorted((n for n in columns if n.startswith(_COUNT)), key=_reward_of)
    notes = [_not_drawn("groups", n) for n in names if n in view.unusable]
    names = [n for n in names if n not in view.unusable]
    seen = signals.see(view.run, signals.BY_ID["groups"], view.facts.settings)
    if seen.hidden:
        notes.append(seen.hidden)
    if not names:
        return [], [], notes
    shown = names if len(names) <= len(_LOOKS) else names[: len(_LOOKS) - 1]
    parts = []
    for name, (role, hatch) in zip(shown, _LOOKS, strict=False):
        cells = [signals.float_of(v or 0) for v in columns[name]]
        parts.append(Part(f"all answers {name[len(_COUNT) :]}", cells, role, hatch))
    if len(shown) < len(names):
        rest = zip(*(columns[n] for n in names[len(shown) :]), strict=True)
        cells = [signals.float_of(sum(v or 0 for v in row)) for row in rest]
        parts.append(Part("another single reward", cells, *_LOOKS[-1]))
    return list(view.run["rollouts"]["index"]), parts, notes + list(seen.notes)


def _reward_of(name: str) -> tuple[float, str]:
    try:
        return float(name[len(_COUNT) :]), name
    except ValueError:
        return math.inf, name


def time_block(views: Sequence[View]) -> str:
    """Seconds of every whole step, by phase; steps that a pause touches stand on a hatched band."""
    drawn = [_phases(view) for view in views]
    if not any(parts for _, parts in drawn):
        return ""
    top = bounds(_sums(parts for _, parts in drawn), zero=True)[1]
    span = _span(xs for xs, parts in drawn if parts)
    panels, used = [], {}
    for view, (xs, parts) in zip(views, drawn, strict=True):
        notes = list(view.timing.badge) if parts else ["no step or rollout time in this log"]
        body = ""
        if parts:
            marked = [s.step for s in view.timing.steps if s.step_clean is False]
            if marked:
                notes.append(f"a pause touches {signals.steps_text(marked)} (hatched band)")
            about = f"seconds of each step by phase, {view.name}"
            body = svgchart.stacked(
                xs, parts, about, top=top, marked=marked, unit=" s", x_range=span
            )
            used |= {p.label: (p.label, p.role, p.hatch) for p in parts}
        panels.append(figure(caption(views, view), body, notes))
    return block("Seconds of each step", "", panels, legend(list(used.values())))


def _phases(view: View) -> tuple[list[int], list[Part]]:
    columns, index = view.run["rollouts"]["columns"], list(view.run["rollouts"]["index"])

    def cells(name):
        if name in view.unusable:
            return [None] * len(index)
        return [seconds_or_none(v) for v in columns.get(name) or [None] * len(index)]

    rollout, train, step = (cells(f"perf/{n}_time") for n in ("rollout", "train", "step"))
    rest = [
        None if s is None else max(0.0, s - (r or 0.0) - (t or 0.0))
        for s, r, t in zip(step, rollout, train, strict=True)
    ]
    parts = [
        Part("rollout", rollout, "engine"),
        Part("training", train, "trainer", "h-trainer"),
        Part("rest of the step (offload, weight update, waiting)", rest, "outside"),
    ]
    return index, [p for p in parts if any(p.ys)] if index else []


def seconds_or_none(value) -> float | None:
    """The value as a duration in seconds; None for none and for what is no duration."""
    if value is None:
        return None
    value = signals.float_of(value)
    return value if math.isfinite(value) and value >= 0 else None


def eval_blocks(views: Sequence[View]) -> list[str]:
    """Evaluations of the logs, one block a metric (at most six)."""
    tables = [view.run.get("evals") or {} for view in views]
    names: dict[str, None] = {}
    for table in tables:
        for name, cells in (table.get("columns") or {}).items():
            if not name.startswith("time/") and any(_is_number(c) for c in cells):
                names[name] = None
    found = []
    for name in list(names)[:6]:
        drawn = []
        for view, table in zip(views, tables, strict=True):
            cells = (table.get("columns") or {}).get(name) or []
            if name in view.unusable:
                drawn.append(([], [_not_drawn("evaluation", name)]))
                continue
            rows = zip(table.get("index") or [], cells, strict=False)
            pairs = [(x, signals.float_of(c)) for x, c in rows if _is_number(c)]
            xs, ys = [p[0] for p in pairs], [p[1] for p in pairs]
            drawn.append(([Line(name, xs, ys, "data", 0, True)] if pairs else [], []))
        found.append(block(f"Evaluation: {name}", "", _panels(views, drawn, name, "evaluation")))
    return found


def _is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
