"""Stored runs of a side's setup: how far its seeds differ without any change."""

from __future__ import annotations

import math

from mileskit.judge import quantities, ranges, runload, setupdiff
from mileskit.judge.claims import Stored
from mileskit.judge.quantities import Quantity
from mileskit.judge.ranges import MIN_STEPS
from mileskit.judge.sides import Member, Side


def of_sides(made: list[Side]) -> dict[str, list[Member]]:
    """Side name -> stored runs whose setup is that of every run of the side, without its own."""
    stored = [_member(name) for name in runload.stored_runs()] if made else []
    found = {}
    for side in made:
        own = {m.one.sha256 for m in side.members}
        found[side.name] = [
            other
            for other in stored
            if other.one.sha256 not in own
            and ranges.usable(other.one)
            and not quantities.broken(other.one)
            and all(_equal(m, other) for m in side.members)
        ]
    return found


def _member(name: str) -> Member:
    one = runload.load(name)
    return Member(one, setupdiff.facts(one))


def _equal(mine: Member, other: Member) -> bool:
    found = setupdiff.differences(mine.facts, other.facts)
    return found is not None and not setupdiff.metric_differences(found)


def spreads(
    quantity: Quantity, side: Side, cells: dict, others: list[Member], steps: list[int]
) -> list[Stored]:
    """Ranges of the side's runs together with the stored ones, over the same steps.

    cells: id of a member -> its values by rollout number.  One range of the stored runs that have
    every step; when some have fewer (five at least), another one of all over the steps they share.
    Times get none: the stored runs of a setup had other GPUs, or shared theirs.
    """
    if quantity.is_time:
        return []
    have = {}
    for m in others:
        if quantities.unusable(m.one, quantity):
            continue
        mine = quantities.cells(m.one, m.facts, quantity)
        if len(set(steps) & set(mine)) >= MIN_STEPS:
            have[m.one.name] = mine
    whole = {name: mine for name, mine in have.items() if set(steps) <= set(mine)}
    found = [_range(quantity, side, cells, whole, steps)]
    if len(whole) < len(have):
        over = [n for n in steps if all(n in mine for mine in have.values())]
        found.append(_range(quantity, side, cells, have, over, full=False))
    return [one for one in found if one is not None]


def _range(quantity, side: Side, cells, have: dict, over: list[int], full=True) -> Stored | None:
    if not have or len(over) < MIN_STEPS:
        return None
    every = [*have.values(), *(cells[id(m)] for m in side.members)]
    values = [quantities.middle([mine[n] for n in over], quantity) for mine in every]
    if not all(map(math.isfinite, values)):
        return None
    return Stored(side.name, min(values), max(values), tuple(over), full, tuple(have))
