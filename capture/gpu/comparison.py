"""One comparison as plain data: the sides, what differs, and every quantity over the same steps."""

from __future__ import annotations

import itertools
from pathlib import Path

import claims
import clockcheck
import quantities
import ranges
import runload
import setupdiff
import sides
import signals
from quantities import Quantity
from sides import Member, Side


class Inputs:
    """Loaded runs with what is computed once for all quantities."""

    def __init__(self, made: list[Side]):
        self.sides = made
        self.members: list[tuple[Side, Member]] = [(s, m) for s in made for m in s.members]
        self.timings = {}
        for _, m in self.members:
            record = runload.samples(m.one)
            self.timings[id(m)] = clockcheck.check(m.one, m.facts, record)
        self.length = {id(m): quantities.cells(m.one, m.facts, quantities.LENGTH)
                       for _, m in self.members}  # fmt: skip
        self.baseline = _baseline(made[0], self.members)


def _baseline(side: Side, members) -> list[Member]:
    """Stored runs of the first side's setup with other seeds, when that side has one seed."""
    if (
        side.seeds >= claims.MIN_SEEDS
        or not side.members
        or side.members[0].facts.seed == "unknown"
    ):
        return []
    first = side.members[0]
    reference = ranges.choose(first.one, first.facts, [])
    named = {m.one.sha256 for _, m in members}
    return [
        Member(other, theirs)
        for other, theirs in reference.runs
        if other.sha256 not in named and theirs.seeds != first.facts.seeds
    ]


def compare(made: list[Side], wanted: list[Quantity]) -> dict:
    """The comparison of the first side with each other one."""
    inputs = Inputs(made)
    steps = [set(signals.numbers(m.one.run)) for _, m in inputs.members]
    common = sorted(set.intersection(*steps)) if steps else []
    betweens = {side.name: sides.between(made[0], side) for side in made[1:]}
    return {
        "sides": [_side(side, inputs) for side in made],
        "notes": [f"{m.one.name}: {note}" for _, m in inputs.members for note in m.one.notes],
        "common_steps": common,
        "differs": {name: _differs(b) for name, b in betweens.items()},
        "quantities": [_quantity(q, inputs, betweens) for q in wanted],
        "sampling": _sampling(made),
        "baseline": [f"{m.one.name}, {m.facts.seeds}" for m in inputs.baseline],
    }


def _side(side: Side, inputs: Inputs) -> dict:
    return {
        "side": side.name,
        "seeds": side.seeds,
        "runs": [
            {
                "run": m.one.name,
                "seeds": m.facts.seeds,
                "steps": len(m.one.run["steps"]["index"]),
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
    out = {**base, "steps": steps, "same_steps": len(common), "shared": []}
    if quantity.is_time:
        out["shared"] = [m.one.name for _, m in inputs.members if m.facts.setup.get("shared")]
    if not steps:
        why = "no common clean step" if common else "no common step"
        return {**base, "skipped": f"{why} ({len(common)} common)"}
    middles = {key: quantities.middle([c[n] for n in steps], quantity) for key, c in cells.items()}
    lengths = {
        id(m): _length(inputs.length[id(m)], steps) if quantity.is_time else None
        for _, m in inputs.members
    }
    out["runs"] = [
        {
            "side": side.name,
            "run": m.one.name,
            "seeds": m.facts.seeds,
            "middle": middles[id(m)],
            "values": [cells[id(m)][n] for n in steps],
            "length": lengths[id(m)],
        }
        for side, m in inputs.members
    ]
    out["sides"] = [_range(side, middles) for side in inputs.sides]
    out["baseline"] = _base_range(quantity, inputs.baseline, middles, inputs, steps)
    if len(inputs.sides) == 1:
        out["pairs"] = _pairs_inside(inputs.sides[0], cells, steps, quantity)
        out["claims"] = []
        return out
    out["pairs"], out["claims"] = [], []
    for side in inputs.sides[1:]:
        matched, by_seed = sides.pairs(inputs.sides[0], side)
        rows = [_pair(x, y, cells, steps, quantity, by_seed) for x, y in matched]
        out["pairs"] += rows
        out["claims"].append(
            _claim(quantity, inputs, side, betweens[side.name], middles, lengths, steps, rows, out)
        )
    return out


def _length(series: dict, steps: list[int]) -> float | None:
    values = [series[n] for n in steps if n in series]
    return sum(values) / len(values) if values else None


def _range(side: Side, middles: dict) -> dict:
    values = [middles[id(m)] for m in side.members]
    low, high = min(values), max(values)
    return {"side": side.name, "runs": len(values), "low": low, "high": high, "spread": high - low}


def _base_range(quantity, baseline, middles, inputs: Inputs, steps) -> dict | None:
    """The range of the first side with the stored seeds of its setup, over the same steps."""
    if not baseline:
        return None
    values = [middles[id(m)] for m in inputs.sides[0].members]
    names = []
    for m in baseline:
        cells = quantities.cells(m.one, m.facts, quantity)
        if quantity.is_time or quantities.unusable(m.one, quantity):
            continue
        if all(n in cells for n in steps):
            values.append(quantities.middle([cells[n] for n in steps], quantity))
            names.append(m.one.name)
    if not names:
        return None
    return {"runs": names, "low": min(values), "high": max(values)}


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


def _claim(quantity, inputs, side, what, middles, lengths, steps, rows, out) -> dict:
    a = inputs.sides[0]
    lefts = [middles[id(m)] for m in a.members]
    rights = [middles[id(m)] for m in side.members]
    per_token = None
    every = [lengths[id(m)] for m in (*a.members, *side.members)]
    if quantity.is_time and all(every):
        per_token = tuple(
            [middles[id(m)] / lengths[id(m)] for m in one.members] for one in (a, side)
        )
    stuck = [
        m.one.name
        for m in (*a.members, *side.members)
        if any(s.stuck and s.step in steps for s in inputs.timings[id(m)].steps)
    ]
    made = claims.decide(quantity, a, side, lefts, rights, len(steps), what, per_token, stuck)
    reasons = list(made.reasons)
    base = out["baseline"]
    if base and all(base["low"] <= v <= base["high"] for v in rights):
        reasons.append(f"{side.name} lies inside the range of the stored seeds of {a.name}'s setup")
    unknown = quantity.is_time and any(
        "clock unknown" in word
        for m in (*a.members, *side.members)
        for word in inputs.timings[id(m)].badge
    )
    flip = None
    single = len(rows) == len({m.facts.seeds for m in side.members})  # one pair a seed
    if single and len(rows) >= claims.FLIP_PAIRS and all(r["matched_by_seed"] for r in rows):
        flip = claims.sign_flip([r["middle"] for r in rows])
    return {
        "side": side.name,
        "against": a.name,
        "word": made.word if not reasons else None,
        "reasons": reasons,
        "settle": list(made.settle),
        "chance": made.chance,
        "clock_unknown": unknown,
        "sign_flip_p": flip,
    }


def _sampling(made: list[Side]) -> list[str]:
    """What so few seeds can and cannot show."""
    most = max(len(s.members) for s in made)
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


def csv_rows(found: dict) -> list[list]:
    """Long rows: kind, quantity, column, unit, step, side, run, other run, value."""
    rows: list[list] = [
        ["kind", "quantity", "column", "unit", "step", "side", "run", "minus_run", "value"]
    ]
    for q in found["quantities"]:
        if "skipped" in q:
            continue
        head = [q["id"], q["column"], q["unit"]]
        for run in q["runs"]:
            pairs = zip(q["steps"], run["values"], strict=True)
            rows += [["value", *head, n, run["side"], run["run"], "", repr(v)] for n, v in pairs]
        for pair in q["pairs"]:
            steps = zip(q["steps"], pair["differences"], strict=True)
            rows += [
                ["difference", *head, n, "", pair["second"], pair["first"], repr(d)]
                for n, d in steps
            ]
    return rows


def members(args: list[str], loader) -> list[list[Member]]:
    """Arguments to members; runs joined by commas stand on one side.

    loader: from a run's name to a Loaded.
    """
    made = []
    for text in args:
        whole = "," not in text or Path(text).exists()
        names = [text] if whole else [name for name in text.split(",") if name]
        ones = [loader(name) for name in names]
        made.append([Member(one, setupdiff.facts(one)) for one in ones])
    return made
