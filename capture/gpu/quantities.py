"""What two runs are compared by: a column, its unit, which steps are clean for it, its middle."""

from __future__ import annotations

import math
from typing import NamedTuple

import signals
from runload import Loaded
from setupdiff import Facts


class Quantity(NamedTuple):
    """One compared number.

    middle: "median" for times (one slow step must not move it), "mean" for the others; clean:
    "rollout" or "step", the window that no pause may touch; words: what B is called when it is
    higher and lower than A.
    """

    id: str
    name: str
    column: str
    unit: str
    digits: int
    middle: str
    clean: str
    words: tuple[str, str]

    @property
    def is_time(self) -> bool:
        """Whether it is a duration or a rate."""
        return self.column.startswith("perf/")


_MORE_LESS = ("higher", "lower")
LENGTH = Quantity(
    "length", "answer length", signals.LENGTH, "tokens", 1, "mean", "rollout", ("longer", "shorter")
)
DEFAULT = (
    Quantity("reward", "reward", signals.REWARD, "", 4, "mean", "rollout", ("better", "worse")),
    LENGTH,
    Quantity("cut", "cut share", signals.CUT, "share", 4, "mean", "rollout", _MORE_LESS),
    Quantity("gap", "log-probability gap", signals.GAP, "nats", 5, "mean", "step", _MORE_LESS),
    Quantity("entropy", "entropy", signals.ENTROPY, "nats", 4, "mean", "rollout", _MORE_LESS),
    Quantity("grad_norm", "gradient norm", signals.GRAD, "", 4, "mean", "step", _MORE_LESS),
    Quantity("groups", "groups with one reward", signals.GROUPS, "share", 3, "mean", "rollout",
             _MORE_LESS),
    Quantity("rollout_time", "rollout time", "perf/rollout_time", "s", 3, "median", "rollout",
             ("slower", "faster")),
    Quantity("train_time", "training time", "perf/train_time", "s", 3, "median", "step",
             ("slower", "faster")),
    Quantity("step_time", "whole step", "perf/step_time", "s", 3, "median", "step",
             ("slower", "faster")),
)  # fmt: skip


def named(name: str) -> Quantity:
    """A quantity by its id, or one for any key of the log."""
    for one in DEFAULT:
        if name in (one.id, one.column):
            return one
    time = name.startswith("perf/")
    duration = time and name.endswith("_time")
    return Quantity(
        name,
        name,
        name,
        "s" if duration else "",
        4,
        "median" if time else "mean",
        "rollout" if name.startswith("rollout/") else "step",
        ("slower", "faster") if duration else _MORE_LESS,
    )


def cells(one: Loaded, mine: Facts, quantity: Quantity) -> dict:
    """Finite values by rollout number; empty when the run cannot show the quantity."""
    if quantity.column == signals.GROUPS:
        seen = signals.see(one.run, signals.BY_ID["groups"], mine.settings)
        series = {} if seen.hidden else seen.series
    else:
        series = signals.column(one.run, quantity.column)
    return {n: v for n, v in series.items() if math.isfinite(v)}


def unusable(one: Loaded, quantity: Quantity) -> str | None:
    """Why run.toml says that the column may not be used, None when it may."""
    for item in (one.toml or {}).get("unusable") or []:
        if item.get("column") == quantity.column:
            return str(item.get("reason") or "marked unusable")
    return None


def clean(one: Loaded, quantity: Quantity) -> dict:
    """Whether the step is clean for the quantity; an unknown window counts as clean except for
    a time."""
    run = one.run
    flags = run["timing"][f"{quantity.clean}_clean"]
    pairs = zip(run["rollouts"]["index"], flags, strict=True)
    known = {n: f for n, f in pairs if f is not None}
    unknown = not quantity.is_time
    return {n: known.get(n, unknown) for n in signals.numbers(run)}


def middle(values: list[float], quantity: Quantity) -> float:
    """The mean or the median of at least one value."""
    if quantity.middle == "mean":
        return math.fsum(values) / len(values)
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return ordered[half - 1] / 2 + ordered[half] / 2
