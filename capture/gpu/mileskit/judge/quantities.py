"""What two runs are compared by: a column, its unit, which steps are clean for it, its middle."""

from __future__ import annotations

import math
from typing import NamedTuple

from mileskit.judge import signals
from mileskit.judge.runload import Loaded
from mileskit.judge.setupdiff import Facts


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

    @property
    def is_rate(self) -> bool:
        """Whether it is a rate or a share of a time, and no duration."""
        return self.is_time and not self.column.endswith("_time")


_MORE_LESS = ("higher", "lower")
LENGTH = Quantity(
    "length", "answer length", signals.LENGTH, "tokens", 1, "mean", "rollout", ("longer", "shorter")
)
TOTAL = Quantity(
    "total", "prompt and answer length", "rollout/total_lengths", "tokens", 1, "mean", "rollout",
    ("longer", "shorter"),
)  # fmt: skip
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


def lengths_of(quantity: Quantity) -> tuple[Quantity, ...]:
    """The lengths that a time follows: the rollout generates answers; the trainer's passes, and
    so a whole step, read prompts and answers."""
    if quantity.column == "perf/rollout_time" or quantity.is_rate:
        return (LENGTH,)
    return (LENGTH, TOTAL)


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
    """Values by rollout number, NaN and infinities too; empty when the run cannot show it."""
    if quantity.column == signals.GROUPS:
        seen = signals.see(one.run, signals.BY_ID["groups"], mine.settings)
        return {} if seen.hidden else dict(seen.series)
    return dict(signals.column(one.run, quantity.column))


_FINITE_IN_A_SOUND_RUN = (
    signals.REWARD, signals.LENGTH, signals.CUT, signals.GAP, signals.KL, signals.GRAD,
)  # fmt: skip


def broken(one: Loaded) -> list[int]:
    """Rollout numbers in which a number that every sound run has is NaN or infinite.

    Such a run diverged: Miles sets some non-finite differences to 0, so its other columns can
    look better than those of a sound run.
    """
    bad = set(signals.broken_steps(one.run))
    for name in _FINITE_IN_A_SOUND_RUN:
        bad |= {n for n, v in signals.column(one.run, name).items() if not math.isfinite(v)}
    return sorted(bad)


def unusable(one: Loaded, quantity: Quantity) -> str | None:
    """Why run.toml says that the column may not be used, None when it may."""
    for item in (one.toml or {}).get("unusable") or []:
        if item.get("column") == quantity.column:
            return str(item.get("reason") or "marked unusable")
    return None


def clean(one: Loaded, quantity: Quantity) -> dict:
    """Whether the step is clean for the quantity.

    For a time: no pause touched its window (an unknown window is not clean), and it is not the
    first step of a start, whose `perf` line holds the initial offload and the initial weight
    update besides.  For any other quantity an unknown window counts as clean.
    """
    run = one.run
    flags = run["timing"][f"{quantity.clean}_clean"]
    pairs = zip(run["rollouts"]["index"], flags, strict=True)
    known = {n: f for n, f in pairs if f is not None}
    every = signals.numbers(run)
    found = {n: known.get(n, not quantity.is_time) for n in every}
    if quantity.is_time and every:
        for n in (0, every[0] if run.get("loads") else 0):
            if n in found:
                found[n] = False
    return found


def middle(values: list[float], quantity: Quantity) -> float:
    """The mean or the median of at least one value; NaN when one of them is not finite."""
    if not all(map(math.isfinite, values)):
        return math.nan
    if quantity.middle == "mean":
        return math.fsum(values) / len(values)
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return ordered[half - 1] / 2 + ordered[half] / 2


def steps_text(steps: list[int]) -> str:
    """Every step of a sorted list in words: ``step 3``, ``steps 0 to 4, 6 and 8 to 11``."""
    if len(steps) == 1:
        return f"step {steps[0]}"
    spans: list[list[int]] = []
    for n in steps:
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    words = []
    for low, high in spans:
        between = " to " if high > low + 1 else ", "
        words.append(str(low) if low == high else f"{low}{between}{high}")
    text = ", ".join(words)
    head, comma, last = text.rpartition(", ")
    return f"steps {head} and {last}" if comma else f"steps {text}"
