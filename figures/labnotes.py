"""The lab notes: failures, heat, times with pauses, and the first offload pair, as published."""

from __future__ import annotations

from figures.registry import Figure, figure
from figures.sources import published
from figures.tablefigure import published_table
from figures.values import Value

# what, over what, name of the value, id in reported.toml, noun
# ("" for a unit of its own, "=" for a count in the unit of the source)
Row = tuple[str, str, str, str, str]

FAILURES: tuple[Row, ...] = (
    ("runs that failed", "one sentence of 7.2", "failed", "failed-runs", "="),
    ("of them, begun in the engine", "7.2", "engine", "failed-in-engine", "="),
    ("of them, begun in the trainer", "7.2", "trainer", "failed-in-trainer", "="),
    ("true on-policy, ended at start", "lab notes", "policy", "failed-true-on-policy", "="),
    ("Qwen3-4B, ended by Ray", "lab notes", "kills", "failed-4b", "="),
    ("hours that the reward import test stood", "3.5", "import_test", "import-test-hours", ""),
    ("symptoms of failed runs that 7.1 counts", "7.1", "symptoms", "symptoms", "symptoms"),
    ("runs that ended normally", "1.2", "normal", "normal-runs", "runs"),
)
HEAT: tuple[Row, ...] = (
    ("pauses, each with its resume", "up to 2026-10-22", "pauses", "pauses", "pauses|times"),
    ("days with the guard", "rounded by the source", "days", "pause-days", ""),
    ("GPU temperature", "again and again", "peak", "heat-peak", ""),
)
PAUSED: tuple[Row, ...] = (
    ("training phase, one side of the pair", "e3e or e3f, all steps", "pair_a", "pair-train-a", ""),
    ("training phase, the other side", "e3e or e3f, all steps", "pair_b", "pair-train-b", ""),
    ("rollout, 16 answers", "e2-n16, all steps", "n16", "n16-rollout", ""),
    ("rollout, pause time taken out", "e6a-base", "base_out", "e6a-rollout-no-pause", ""),
    ("whole run with the filter", "e2b-dapo-filter", "filter_total", "filter-total", ""),
    ("whole run without the filter", "e6a-base", "base_total", "e6a-total", ""),
    ("rollout, all steps", "e6a-base", "base_all", "e6a-rollout-all", ""),
)
UNPAUSED: tuple[Row, ...] = (
    ("whole step", "plain, all steps", "plain", "plain-median-step", ""),
    ("whole step", "plain-48, all steps", "plain48", "plain48-median-step", ""),
    ("rollout", "plain-48, all steps", "rollout48", "plain48-median-rollout", ""),
    ("rollout", "e6a-base, clean steps", "base", "e6a-clean-rollout", ""),
    ("clean steps of e6a-base", "of its 12", "clean", "e6a-clean", "="),
    ("rollout", "plain-48, those step numbers", "same", "plain48-rollout-same-6", ""),
)
PAIR: tuple[Row, ...] = (
    ("rollout, default", "e6a-base, clean steps", "default", "e6a-clean-rollout", ""),
    ("rollout, engine kept loaded", "e3c, clean steps", "kept", "e3c-clean-rollout", ""),
    ("gain of the first pair", "those medians", "gain", "first-pair-gain", ""),
    ("step 10, rollout, default", "e6a-base", "default_10", "e6a-step-10", ""),
    ("step 10, rollout, engine kept loaded", "e3c", "kept_10", "e3c-step-10", ""),
    ("step 10, answer length, default", "e6a-base", "length_default", "e6a-length-10", ""),
    ("step 10, answer length, kept loaded", "e3c", "length_kept", "e3c-length-10", ""),
    ("gain of the same-day pair", "e3e and e3f, clean steps", "gain_2", "pair-gain-percent", ""),
)


def table(rows: tuple[Row, ...]) -> Figure:
    """One row a published value."""
    values = [_value(*row[2:]) for row in rows]
    columns = {"what": "What", "over": "Where or over what", "published": "Published"}
    return published_table(values, rows, columns)


def _value(name: str, value_id: str, noun: str) -> Value:
    if noun == "=":
        return published(name, "gb10", value_id, kind="count")
    if noun:
        return published(name, "gb10", value_id, kind="count", unit="", noun=noun)
    kind = "count" if value_id.startswith(("e6a-length", "e3c-length")) else ""
    return published(name, "gb10", value_id, kind=kind)


@figure("fig-lab-gb10-failures")
def failures() -> Figure:
    """Every count of failed runs that the source prints."""
    return table(FAILURES)


@figure("fig-lab-gb10-heat")
def heat() -> Figure:
    """What the source prints about its heat guard."""
    return table(HEAT)


@figure("fig-lab-gb10-paused")
def paused() -> Figure:
    """Published times that come from steps with a pause: the exceptions to the timing rule."""
    return table(PAUSED)


@figure("fig-lab-gb10-unpaused")
def unpaused() -> Figure:
    """Published times without a pause, and the same step numbers beside each other."""
    return table(UNPAUSED)


@figure("fig-lab-gb10-pair")
def pair() -> Figure:
    """The first offload pair, its one common clean step, and the pair that changed one thing."""
    return table(PAIR)
