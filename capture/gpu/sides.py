"""The sides of a comparison: runs of one setting stand on one side, and what differs between."""

from __future__ import annotations

from typing import NamedTuple

import setupdiff
from runload import Loaded
from setupdiff import Difference, Facts

_SPLIT = frozenset({"setting", "coupled", "cost", "setup"})
# Idle for the samples, and yet work or room that a time can follow.
_TIMED = ("use-kl-loss", "ref-load", "sglang-max-total-tokens")


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
    updates; time: what can change a time besides; shared: runs that shared their GPU, or that do
    not say; inner: differences inside a side; other: seeds, lengths and idle flags.
    """

    known: bool
    samples: tuple[Difference, ...]
    time: tuple[Difference, ...]
    shared: tuple[str, ...]
    inner: tuple[Difference, ...]
    inner_time: tuple[Difference, ...]
    other: tuple[Difference, ...]


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
                elif d.name in _TIMED:
                    time.setdefault(d.name, d)
                elif d.kind != "sharing":
                    other.setdefault(d.name, d)
    inner, inner_time = {}, {}
    for side in (a, b):
        for i, x in enumerate(side.members):
            for y in side.members[i + 1 :]:
                for d in differences(x, y) or []:
                    if d.kind in _SPLIT:
                        inner.setdefault(d.name, d)
                    elif d.name in _TIMED:
                        inner_time.setdefault(d.name, d)
    shared = [m.one.name for m in (*a.members, *b.members) if m.facts.setup.get("shared")]
    return Between(
        known,
        tuple(samples.values()),
        tuple(time.values()),
        tuple(dict.fromkeys(shared)),
        tuple(inner.values()),
        tuple(inner_time.values()),
        tuple(other.values()),
    )


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
