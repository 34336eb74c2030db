"""Step 0: what must hold before anything was trained (section 5.2).

Each check is a Check with one of the verdicts of `rangejudge`.  None of them applies to a run
that begins at another step, such as a resumed one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from mileskit.judge import ranges, signals
from mileskit.judge.rangejudge import FEW, HIDDEN, INSIDE, NONE, OUTSIDE, ROUNDING
from mileskit.judge.ranges import Range, Reference
from mileskit.judge.runload import Loaded
from mileskit.judge.setupdiff import Facts

REF = "rollout/ref_log_probs"
ACTOR = "rollout/log_probs"
SPARE = 0.5
"""Of the highest reference value: two or three values say little about their own range, and a
setup fault gives a gap several times as large."""
REF_TOLERANCE = 0.01  # nats per token, when the log has no gap to take as the scale


class Check(NamedTuple):
    """One check of step 0: name, key of the log, value (None when absent), limit, verdict, why."""

    name: str
    column: str
    value: float | None
    limit: str
    verdict: str
    why: str
    range: Range | None = None


def checks(one: Loaded, mine: Facts, reference: Reference) -> list[Check]:
    """The four checks of step 0; an empty list when the run has no step 0."""
    run = one.run
    if 0 not in run["steps"]["index"] and 0 not in run["rollouts"]["index"]:
        return []
    broken = 0 in signals.broken_steps(run)
    return [
        _zero(run, "KL", signals.KL, broken),
        _zero(run, "clip fraction", signals.CLIP, broken),
        _gap(run, mine, reference, broken),
        _reference_model(one, mine),
    ]


def first_update(run: dict, column: str) -> float | None:
    """The cell of step 0 itself (not the mean over the updates of rollout 0)."""
    table = run["steps"]
    if 0 not in table["index"]:
        return None
    cells = table["columns"].get(column)
    cell = cells[table["index"].index(0)] if cells else None
    return None if cell is None else signals.float_of(cell)


def _zero(run: dict, name: str, column: str, broken: bool) -> Check:
    limit = f"below {ROUNDING[column]:g}, the bound of Miles' own tests"
    value = first_update(run, column)
    if value is None:
        return _absent(run, name, column, limit)
    if broken and value == 0:
        why = "loss, gradient norm or a log-probability is not finite at step 0, and Miles sets"
        return Check(name, column, value, limit, HIDDEN, f"{why} non-finite differences to 0")
    if not math.isfinite(value) or abs(value) >= ROUNDING[column]:
        why = "the trainer's two passes over the same weights disagree"
        return Check(name, column, value, limit, OUTSIDE, why)
    return Check(name, column, value, limit, INSIDE, "")


def _absent(run: dict, name: str, column: str, limit: str) -> Check:
    """No value: the key is not logged, or step 0 has not ended."""
    verdict = HIDDEN if 0 in run["steps"]["index"] else FEW
    why = f"no {column} at step 0" if verdict == HIDDEN else "step 0 has not ended"
    return Check(name, column, None, limit, verdict, why)


def _gap(run: dict, mine: Facts, reference: Reference, broken: bool) -> Check:
    signal = signals.BY_ID["gap"]
    seen = signals.see(run, signal, mine.settings)
    name, column = "gap", signals.GAP
    value = first_update(run, column)
    if value is None:
        return _absent(run, name, column, "")
    if broken or seen.hidden:
        why = seen.hidden or "a non-finite value at step 0: the gap hides NaN"
        return Check(name, column, value, "", HIDDEN, why)
    range_ = ranges.of(reference, signal, [0], "step 0")
    if range_ is None:
        return Check(name, column, value, "", NONE, "")
    slack = max(range_.width, SPARE * abs(range_.high))
    limit = f"{range_.low - slack:.4f} to {range_.high + slack:.4f}"
    limit += " (the reference's step 0, widened by its width or by half)"
    if range_.low - slack <= value <= range_.high + slack:
        return Check(name, column, value, limit, INSIDE, "", range_)
    why = "engine and trainer do not compute the same model: compare checkpoint paths and formats"
    if value < range_.low:
        why = "smaller than any healthy step 0 of the reference: look for a mask"
    return Check(name, column, value, limit, OUTSIDE, why, range_)


def _reference_model(one: Loaded, mine: Facts) -> Check:
    """The reference model must give the actor's log-probabilities before the first update.

    Two passes of one program over the same weights differ less than engine and trainer do, so
    the gap of step 0 is the tolerance.
    """
    run, name = one.run, "reference model"
    theirs = signals.column(run, REF).get(0)
    ours = signals.column(run, ACTOR).get(0)
    if theirs is None:
        return Check(name, REF, None, "", HIDDEN, "no reference model in this run")
    if ours is None:
        return Check(name, REF, theirs, "", HIDDEN, f"no {ACTOR} at step 0 to compare with")
    settings = mine.settings or {}
    actor, ref = settings.get("hf-checkpoint"), settings.get("ref-load")
    if run.get("loads"):
        return Check(name, REF, theirs, "", HIDDEN, "the actor was loaded from a checkpoint")
    if actor and ref and actor != ref:
        why = f"actor and reference are loaded from two paths: {actor} and {ref}"
        return Check(name, REF, theirs, "", HIDDEN, why)
    gap = first_update(run, signals.GAP)
    tolerance = gap if gap and math.isfinite(gap) else REF_TOLERANCE
    limit = f"{ours:.4f} (the actor's {ACTOR}) within {tolerance:.4f}"
    if math.isfinite(theirs) and math.isfinite(ours) and abs(theirs - ours) <= tolerance:
        return Check(name, REF, theirs, limit, INSIDE, "")
    why = (
        "before any update the actor is the reference, so one of the two passes is wrong:"
        f" do not use {REF} and train/kl_loss of this run"
    )
    coefficient = settings.get("kl-loss-coef")
    if coefficient is not None and float(coefficient) == 0.0:
        why += "; its KL coefficient is 0, so training did not use them"
    return Check(name, REF, theirs, limit, OUTSIDE, why)
