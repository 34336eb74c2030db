"""Section 5.2: log-probabilities of step 0 that cannot be right, of runs with a reference model.

Before any update the reference model is the actor, so both must give a token the same
log-probability. The records of these runs mark `rollout/ref_log_probs` and `train/kl_loss` as
unusable, and `evidence` refuses both as a measurement of anything. Here the wrong number is itself
what is shown, so it is read from the raw log.
"""

from __future__ import annotations

import lzma
import re
from functools import lru_cache
from typing import Any, NamedTuple

from figures import evidence
from figures.evidence import Access, EvidenceError
from figures.registry import Figure, figure
from figures.sources import measured
from figures.step_zero import DIFFERS, GAP, LAB
from figures.style import Style

REF = "rollout/ref_log_probs"
ACTOR = "rollout/log_probs"
ENGINE = "rollout/rollout_log_probs"
KL_LOSS = "train/kl_loss"
PLAIN = f"{LAB}/plain_s1234"

_ROLLOUT = re.compile(rb" - rollout (\d+): \{(.*)\}")
_STEP = re.compile(rb" - step (\d+): \{(.*)\}")


class Start(NamedTuple):
    """What a log says of step 0: means over its tokens, and the KL loss of every step."""

    engine: float
    actor: float
    reference: float
    kl_loss: tuple[float, ...]


def runs_with_reference() -> list[evidence.Run]:
    """The stored runs whose record marks the reference columns, in the order of section 5.2."""
    found = [evidence.run(run_id) for run_id in evidence.run_ids(LAB)]
    marked = [r for r in found if any(e["column"] == REF for e in r.toml.get("unusable", []))]
    return sorted(marked, key=lambda run: list(DIFFERS).index(run.name))


def start(run: evidence.Run) -> Start:
    """Step 0 of a run as its raw log has it. EvidenceError when a number is not there."""
    path = run.folder / "run.log.xz"
    found = _start(str(path), evidence.read(path))
    evidence.record(Access(run.id, "run.log.xz:reference, actor and engine at step 0", steps=1))
    return found


@lru_cache(maxsize=8)
def _start(name: str, data: bytes) -> Start:
    text = lzma.decompress(data)
    rollouts, steps = (
        {int(number): line for number, line in rx.findall(text)} for rx in (_ROLLOUT, _STEP)
    )
    if 0 not in rollouts or 0 not in steps:
        raise EvidenceError(f"{name}: no step 0")

    def cell(line: bytes, key: str) -> float:
        match = re.search(rb"'" + re.escape(key.encode()) + rb"': (-?[\d.]+(?:e-?\d+)?)[,}]?", line)
        if match is None:
            raise EvidenceError(f"{name}: no {key} in a line of step 0")
        return float(match[1])

    first = rollouts[0]
    return Start(
        cell(first, ENGINE),
        cell(first, ACTOR),
        cell(first, REF),
        tuple(cell(steps[number], KL_LOSS) for number in sorted(steps)),
    )


@figure("fig-5-2-reference")
def reference_of_step_zero() -> Figure:
    """Engine, actor and reference model of one run a row: two agree, the third does not."""
    runs = runs_with_reference()
    every = [run.id for run in runs]
    seen = {run.id: start(run) for run in runs}
    away = [abs(s.reference - s.actor) for s in seen.values()]
    between = [abs(s.engine - s.actor) for s in seen.values()]
    plain = seen[PLAIN]
    gap = evidence.run(PLAIN).column(GAP, (0,))[0]

    def value(name: str, number: Any, digits: int, what: str, of: Any, unit: str = "") -> Any:
        kind = "count" if unit == "runs" else "metric"
        return measured(name, number, unit, digits, what=what, runs=of, kind=kind)

    one = [PLAIN]
    values = [
        value("engine", plain.engine, 4, f"{ENGINE}:step 0", one),
        value("actor", plain.actor, 4, f"{ACTOR}:step 0", one),
        value("reference", plain.reference, 4, f"{REF}:step 0", one),
        value("away", (min(away), max(away)), 2, "reference from actor:range:step 0", every),
        value("between", (min(between), max(between)), 4, "engine from actor:range:step 0", every),
        value(
            "times", abs(plain.reference - plain.actor) / gap, 0, "reference over gap", one, "times"
        ),
        value("kl_loss", plain.kl_loss[0], 2, f"{KL_LOSS}:step 0", one),
        value(
            "kl_loss_range", (min(plain.kl_loss), max(plain.kl_loss)), 2, f"{KL_LOSS}:range", one
        ),
        value("runs", len(runs), 0, "runs with a reference model", every, "runs"),
    ]
    rows = [
        {
            "run": run.name,
            "engine": seen[run.id].engine,
            "actor": seen[run.id].actor,
            "reference": seen[run.id].reference,
            "kl_loss": seen[run.id].kl_loss[0],
        }
        for run in runs
    ]

    def draw(style: Style) -> Any:
        made, ax = style.axes(3.6 if style.narrow else 2.7, grid="x")
        places = range(len(runs))
        marks = (
            ("engine", "engine", "s"),
            ("actor", "trainer", "o"),
            ("reference", "failure", "X"),
        )
        for key, role, marker in marks:
            ax.plot(
                [row[key] for row in rows],
                places,
                marker,
                color=style.colour(role),
                markersize=9 if key == "engine" else 6,
                fillstyle="none" if key == "engine" else "full",
                label="reference model" if key == "reference" else key,
            )
        ax.set_yticks(places, [run.name for run in runs])
        ax.set_ylim(len(runs) - 0.5, -0.5)
        ax.set_xlim(min(row["reference"] for row in rows) - 0.2, 0)
        ax.set_xlabel("mean log-probability of step 0, nats")
        made.legend(loc="outside upper left", ncols=3)
        return made

    return Figure(
        shape=(
            f"Three marks for each of {len(runs)} runs: engine and actor lie on each other, and "
            "the reference model lies far to the left of both."
        ),
        values=values,
        rows=rows,
        draw=draw,
    )
