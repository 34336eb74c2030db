"""One comparison as plain data: the sides, what differs, and every quantity over the same steps."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

from mileskit.judge import (
    claims,
    clockcheck,
    quantities,
    runload,
    setupdiff,
    sides,
    signals,
    storedseeds,
)
from mileskit.judge.claims import Circumstances, Values
from mileskit.judge.quantities import Quantity
from mileskit.judge.sides import Member, Side


class Inputs:
    """Loaded runs with what is computed once for all quantities."""

    def __init__(self, made: list[Side]):
        self.sides = made
        self.members: list[tuple[Side, Member]] = [(s, m) for s in made for m in s.members]
        self.timings, self.broken = {}, {}
        for _, m in self.members:
            record = runload.samples(m.one)
            self.timings[id(m)] = clockcheck.check(m.one, m.facts, record)
            self.broken[id(m)] = quantities.broken(m.one)
        self.lengths = {
            q.id: {id(m): quantities.cells(m.one, m.facts, q) for _, m in self.members}
            for q in (quantities.LENGTH, quantities.TOTAL)
        }
        self.stored = storedseeds.of_sides(made)


def compare(made: list[Side], wanted: list[Quantity]) -> dict:
    """The comparison of the first side with each other one."""
    inputs = Inputs(made)
    steps = [set(signals.numbers(m.one.run)) for _, m in inputs.members]
    common = sorted(set.intersection(*steps)) if steps else []
    betweens = {side.name: sides.between(made[0], side) for side in made[1:]}
    found = [_quantity(q, inputs, betweens) for q in wanted]
    return {
        "sides": [_side(side, inputs) for side in made],
        "notes": [f"{m.one.name}: {note}" for _, m in inputs.members for note in m.one.notes],
        "common_steps": common,
        "differs": {name: _differs(b) for name, b in betweens.items()},
        "quantities": found,
        "sampling": _sampling(made),
        "stored_runs": {
            name: [f"{m.one.name}, {m.facts.seeds}" for m in others]
            for name, others in inputs.stored.items()
        },
        "claimed": _claimed(found),
    }


def _claimed(found: list[dict]) -> dict:
    """How many of the judged quantities are called different, and how many chance alone gives."""
    judged = [c for q in found for c in q.get("claims", [])]
    made = [c for c in judged if c["word"]]
    most = max((c["chance"] for c in made), default=None)
    return {
        "made": len(made),
        "judged": len(judged),
        "chance": most,
        "by_chance_up_to": None if most is None else most * len(judged),
    }


def _side(side: Side, inputs: Inputs) -> dict:
    inner = [d for found in sides.inside(side) for d in found.values()]
    return {
        "side": side.name,
        "seeds": side.seeds,
        "inside": [str(d) for d in inner],
        "runs": [
            {
                "run": m.one.name,
                "seeds": m.facts.seeds,
                "steps": len(m.one.run["steps"]["index"]),
                "not_finite": inputs.broken[id(m)],
                "badge": list(inputs.timings[id(m)].badge),
            }
            for m in side.members
        ],
    }


def _differs(b: sides.Between) -> dict:
    return {
        "known": b.known,
        "settings": [str(d) for d in b.samples],
        "time_only": [str(d) for d in b.time],
        "inside_a_side": [str(d) for d in (*b.inner, *b.inner_time)],
        "without_effect": [str(d) for d in b.other],
        "gpu_shared": list(b.shared),
        "gpu_shared_unknown": list(b.unsaid),
    }


def _quantity(quantity: Quantity, inputs: Inputs, betweens: dict) -> dict:
    """Every run over the common clean steps, the pairs, the sides' ranges and the claims."""
    base = {
        "id": quantity.id,
        "name": quantity.name,
        "column": quantity.column,
        "unit": quantity.unit,
        "digits": quantity.digits,
        "middle": quantity.middle,
    }
    for _, m in inputs.members:
        why = quantities.unusable(m.one, quantity)
        if why:
            return {**base, "skipped": f"{m.one.name} marks it unusable: {why}"}
    cells = {id(m): quantities.cells(m.one, m.facts, quantity) for _, m in inputs.members}
    absent = [m.one.name for _, m in inputs.members if not cells[id(m)]]
    if absent:
        return {**base, "skipped": f"not in {', '.join(absent)}"}
    common = sorted(set.intersection(*(set(c) for c in cells.values())))
    clean = [quantities.clean(m.one, quantity) for _, m in inputs.members]
    steps = [n for n in common if all(c.get(n) for c in clean)]
    bad = {
        m.one.name: [n for n in common if not math.isfinite(cells[id(m)][n])]
        for _, m in inputs.members
    }
    out = {**base, "steps": steps, "same_steps": len(common), "shared": []}
    out["not_finite"] = {name: at for name, at in bad.items() if at}
    if quantity.is_time:
        steps = out["steps"] = [n for n in steps if not any(n in at for at in bad.values())]
        out["shared"] = [m.one.name for _, m in inputs.members if m.facts.setup.get("shared")]
    if not steps:
        why = "no common clean step" if common else "no common step"
        return {**base, "skipped": f"{why} ({len(common)} common)"}
    middles = {key: quantities.middle([c[n] for n in steps], quantity) for key, c in cells.items()}
    lengths = {
        q.id: {id(m): _length(inputs.lengths[q.id][id(m)], steps) for _, m in inputs.members}
        for q in (quantities.LENGTH, quantities.TOTAL)
    }
    answers = lengths[quantities.LENGTH.id]
    out["runs"] = [
        {
            "side": side.name,
            "run": m.one.name,
            "seeds": m.facts.seeds,
            "middle": middles[id(m)],
            "values": [cells[id(m)][n] for n in steps],
            "length": answers[id(m)] if quantity.is_time else None,
        }
        for side, m in inputs.members
    ]
    out["sides"] = [_range(side, middles) for side in inputs.sides]
    spreads = [
        one
        for side in inputs.sides
        for one in storedseeds.spreads(quantity, side, cells, inputs.stored[side.name], steps)
    ]
    out["stored_runs"] = [{**one._asdict(), "spread": one.width} for one in spreads]
    if len(inputs.sides) == 1:
        out["pairs"] = _pairs_inside(inputs.sides[0], cells, steps, quantity)
        out["claims"] = []
        return out
    out["pairs"], out["claims"] = [], []
    for side in inputs.sides[1:]:
        matched, by_seed = sides.pairs(inputs.sides[0], side)
        rows = [_pair(x, y, cells, steps, quantity, by_seed) for x, y in matched]
        out["pairs"] += rows
        given = _given(quantity, inputs, side, betweens[side.name], lengths, spreads, out)
        out["claims"].append(_claim(quantity, inputs, side, given, middles, rows, out))
    return out


def _length(series: dict, steps: list[int]) -> float | None:
    values = [series[n] for n in steps if math.isfinite(series.get(n, math.nan))]
    return math.fsum(values) / len(values) if values and any(values) else None


def _range(side: Side, middles: dict) -> dict:
    values = [middles[id(m)] for m in side.members]
    finite = all(map(math.isfinite, values))
    low, high = (min(values), max(values)) if finite else (math.nan, math.nan)
    return {"side": side.name, "runs": len(values), "low": low, "high": high, "spread": high - low}


def _pairs_inside(side: Side, cells, steps, quantity) -> list[dict]:
    """Pairs of one side's runs: repeats, whose differences are noise."""
    return [
        _pair(x, y, cells, steps, quantity, x.facts.seeds == y.facts.seeds)
        for x, y in itertools.combinations(side.members, 2)
    ]


def _pair(x: Member, y: Member, cells, steps, quantity: Quantity, by_seed: bool) -> dict:
    """Second minus first, step by step."""
    found = [cells[id(y)][n] - cells[id(x)][n] for n in steps]
    return {
        "first": x.one.name,
        "second": y.one.name,
        "matched_by_seed": by_seed,
        "differences": found,
        "middle": quantities.middle(found, quantity),
        "higher": sum(d > 0 for d in found),
        "lower": sum(d < 0 for d in found),
    }


def _given(quantity, inputs: Inputs, side: Side, what, lengths, spreads, out) -> Circumstances:
    """What besides the values decides on a claim about the first side and this one."""
    a, steps = inputs.sides[0], out["steps"]
    every = (*a.members, *side.members)
    broken = {m.one.name: inputs.broken[id(m)] for m in every}
    if not quantity.is_time:
        for m in every:
            more = out["not_finite"].get(m.one.name, [])
            broken[m.one.name] = sorted({*broken[m.one.name], *more})
    stuck = [
        m.one.name
        for m in every
        if any(s.stuck and s.step in steps for s in inputs.timings[id(m)].steps)
    ]
    own = {m.one.sha256 or m.one.path for m in a.members}
    both = [m.one.name for m in side.members if (m.one.sha256 or m.one.path) in own]
    follows, unknown = [], []
    if quantity.is_time:
        for q in quantities.lengths_of(quantity):
            mine = lengths[q.id]
            if q is quantities.TOTAL and not all(mine[id(m)] for m in every):
                q, mine = quantities.LENGTH, lengths[quantities.LENGTH.id]
            missing = [m.one.name for m in every if not mine[id(m)]]
            unknown += missing
            if not missing:
                left, right = ([mine[id(m)] for m in s.members] for s in (a, side))
                follows.append((q.name, left, right))
    return Circumstances(
        what,
        tuple(one for one in spreads if one.side in (a.name, side.name)),
        {name: at for name, at in broken.items() if at},
        tuple(both),
        tuple(stuck),
        tuple({name: one for one in follows for name in one[:1]}.values()),
        tuple(unknown),
    )


def _values(side: Side, middles: dict) -> Values:
    by_seed: dict[str, list[float]] = {}
    for m in side.members:
        if m.facts.seed != "unknown":
            by_seed.setdefault(m.facts.seeds, []).append(middles[id(m)])
    means = (math.fsum(v) / len(v) if len(set(v)) > 1 else v[0] for v in by_seed.values())
    return Values(side, tuple(middles[id(m)] for m in side.members), tuple(means))


def _claim(quantity, inputs: Inputs, side: Side, given, middles, rows, out) -> dict:
    a = inputs.sides[0]
    left, right = (_values(s, middles) for s in (a, side))
    made = claims.decide(quantity, left, right, len(out["steps"]), given)
    every = (*a.members, *side.members)
    clocks = [
        m.one.name
        for m in every
        if any("clock unknown" in word for word in inputs.timings[id(m)].badge)
    ]
    pauses = [m.one.name for m in every if not (m.one.pause_log or m.one.run.get("pauses"))]
    flip = None
    single = len(rows) == len({m.facts.seeds for m in side.members})  # one pair a seed
    if single and len(rows) >= claims.FLIP_PAIRS and all(r["matched_by_seed"] for r in rows):
        flip = claims.sign_flip([r["middle"] for r in rows])
    return {
        "side": side.name,
        "against": a.name,
        "word": made.word,
        "reasons": list(made.reasons),
        "settle": list(made.settle),
        "chance": made.chance,
        "seeds": [len(left.seeds), len(right.seeds)],
        "clock_unknown": sorted(set(clocks)) if quantity.is_time else [],
        "pauses_unknown": sorted(set(pauses)) if quantity.is_time else [],
        "sign_flip_p": flip,
    }


def _sampling(made: list[Side]) -> list[str]:
    """What so few seeds can and cannot show."""
    most = max(s.seeds for s in made)
    notes = []
    if most <= 3:
        notes.append(
            "ranges and no intervals: a percentile bootstrap of three values or fewer gives back"
            " their smallest and largest"
        )
    if len(made) > 1 and most < claims.FLIP_PAIRS:
        notes.append(
            "no sign-flip test: below six pairs its smallest two-sided p is"
            f" {2 / 2 ** (claims.FLIP_PAIRS - 1):.4f} or more, above 0.05"
        )
    notes.append("the steps of one run follow each other: they are no repeats of it")
    return notes


def members(args: list[str], loader) -> list[list[Member]]:
    """Arguments to members; runs joined by commas stand on one side.

    loader: from a run's name to a Loaded.
    """
    groups = []
    for text in args:
        whole = "," not in text or Path(text).exists()
        groups.append([text] if whole else [name for name in text.split(",") if name])
    ones = iter(runload.distinct([loader(name) for names in groups for name in names]))
    made = [[next(ones) for _ in names] for names in groups]
    return [[Member(one, setupdiff.facts(one)) for one in group] for group in made]
