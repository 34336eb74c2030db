"""The sides of a comparison: runs of one setting stand on one side, and what differs between."""

from __future__ import annotations

import re
from typing import NamedTuple

from mileskit.judge import setupdiff
from mileskit.judge.runload import Loaded
from mileskit.judge.setupdiff import Difference, Facts

_SPLIT = frozenset({"setting", "coupled", "cost", "setup"})
# Idle for the samples, and yet work or room that a time can follow.
_TIMED = re.compile(
    r"use-kl-loss|ref-load|sglang-max-total-tokens|save-interval|eval-.*"
    r"|n-samples-per-eval-prompt|skip-eval-before-train"
)
# Where something is written: work when one run writes it and the other does not.
_WRITES = re.compile(r"save|save-hf|save-debug-.*|dump-details")


class Member(NamedTuple):
    """A run of a side."""

    one: Loaded
    facts: Facts


class Side(NamedTuple):
    """Runs of one setting; name: A, B, ..."""

    name: str
    members: tuple[Member, ...]

    @property
    def seeds(self) -> int:
        """Distinct seeds (unknown ones do not count)."""
        return len({m.facts.seeds for m in self.members if m.facts.seed != "unknown"})


class Between(NamedTuple):
    """What differs from one side to another, and inside them.

    known: False when the flags of a run are unknown; samples: what can change samples and
    updates; time: what can change a time besides; shared: runs that shared their GPU; unsaid: runs
    of which nothing says whether they did; inner, inner_time: differences inside a side; other:
    seeds, lengths and idle flags.
    """

    known: bool
    samples: tuple[Difference, ...]
    time: tuple[Difference, ...]
    shared: tuple[str, ...]
    inner: tuple[Difference, ...]
    inner_time: tuple[Difference, ...]
    other: tuple[Difference, ...]
    unsaid: tuple[str, ...] = ()


def group(members: list[list[Member]]) -> list[Side]:
    """Sides of the runs: a list of several is a side that the caller made; single runs join the
    first side whose setting they have."""
    made: list[list[Member]] = []
    for given in members:
        home = None
        if len(given) == 1:
            home = next((side for side in made if _joins(side, given[0])), None)
        if home is None:
            made.append(list(given))
        else:
            home += given
    return [Side(_letter(i), tuple(side)) for i, side in enumerate(made)]


def _letter(i: int) -> str:
    return chr(ord("A") + i) if i < 26 else f"S{i + 1}"


def _joins(side: list[Member], one: Member) -> bool:
    return all(_same_run(m, one) or _equal(m, one) for m in side)


def _same_run(a: Member, b: Member) -> bool:
    if a.one.sha256 is not None:
        return a.one.sha256 == b.one.sha256
    return a.one.path == b.one.path


def _equal(a: Member, b: Member) -> bool:
    found = differences(a, b)
    return found is not None and not any(d.kind in _SPLIT for d in found)


def differences(a: Member, b: Member) -> list[Difference] | None:
    """Those of the setups, and whether one run began from a checkpoint; None when unknown."""
    found = setupdiff.differences(a.facts, b.facts)
    starts = [_start(m.one.run) for m in (a, b)]
    if found is not None and starts[0] != starts[1]:
        found.append(Difference("setup", "start", *starts))
    return found


def _start(run: dict) -> str:
    paths = [item["path"] for item in run.get("loads") or [] if item["what"] == "model"]
    return "checkpoint" if paths else "fresh"


def _is_timed(d: Difference) -> bool:
    if _WRITES.fullmatch(d.name):
        return setupdiff.NOT_SET in (d.a, d.b)
    return bool(_TIMED.fullmatch(d.name))


def inside(side: Side) -> tuple[dict, dict]:
    """Differences between the runs of one side by name: of samples, and of times besides."""
    samples, time = {}, {}
    for i, x in enumerate(side.members):
        for y in side.members[i + 1 :]:
            for d in differences(x, y) or []:
                if d.kind in _SPLIT:
                    samples.setdefault(d.name, d)
                elif _is_timed(d):
                    time.setdefault(d.name, d)
    return samples, time


def between(a: Side, b: Side) -> Between:
    """Everything that differs between two sides, each difference once by its name."""
    samples, time, other, known = {}, {}, {}, True
    for x in a.members:
        for y in b.members:
            found = differences(x, y)
            if found is None:
                known = False
                continue
            for d in found:
                if d.kind in _SPLIT:
                    samples.setdefault(d.name, d)
                elif _is_timed(d):
                    time.setdefault(d.name, d)
                elif d.kind != "sharing":
                    other.setdefault(d.name, d)
    inner, inner_time = {}, {}
    for side in (a, b):
        for mine, all_ in zip(inside(side), (inner, inner_time), strict=True):
            for name, d in mine.items():
                all_.setdefault(name, d)
    every = (*a.members, *b.members)
    return Between(
        known,
        tuple(samples.values()),
        tuple(time.values()),
        tuple(dict.fromkeys(m.one.name for m in every if m.facts.setup.get("shared"))),
        tuple(inner.values()),
        tuple(inner_time.values()),
        tuple(other.values()),
        tuple(dict.fromkeys(_unsaid(m) for m in every if m.facts.setup.get("shared") is None)),
    )


def _unsaid(m: Member) -> str:
    used = m.facts.setup.get("gpu_used_mib_at_start")
    return f"{m.one.name} ({used:,} MiB in use at its start: maybe shared)" if used else m.one.name


def pairs(a: Side, b: Side) -> tuple[list[tuple[Member, Member]], bool]:
    """Pairs of runs and whether they are matched by seed: every pair of one seed, else by order."""
    found = [
        (x, y)
        for x in a.members
        for y in b.members
        if x.facts.seeds == y.facts.seeds and x.facts.seed != "unknown"
    ]
    if found:
        return found, True
    return list(zip(a.members, b.members, strict=False)), False
