"""What a bundle claims of its runs and stages, computed again from the logs that came with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from mileskit.acceptance import stages
from mileskit.acceptance.stages import DEATH, DOCTOR, FAILED, HEAT, NOT_RUN, PASSED, STEPS, Stage
from mileskit.guard import diagnose, guardlimits, logdrive, verdicts
from mileskit.host import doctor_checks
from mileskit.log import logsource
from mileskit.summary import pauses

CLAIMED = "not in the bundle, so nothing was checked; the bundle says"


class Stored(NamedTuple):
    """A stored run, with the names that the stages know its files by."""

    lab: Path
    name: str

    def file(self, kind: str) -> Path:
        return self.lab / self.name / {"log": "run.log.xz"}.get(kind, kind)

    @property
    def container(self) -> str:
        return f"miles-{self.name}"


def verdict(run: Stored, how: str) -> str:
    """The word of `diagnose` for a stored log; where nothing is wrong, what its end says."""
    heat = run.file("heat-guard.log")
    paused = None
    if heat.exists():
        paused = pauses.PauseSet(pauses.read_pauses(heat.read_bytes(), heat.name))
    with logsource.open_log(run.file("log")) as stream:
        log = logdrive.load(stream)
    word = ""
    if log.of_miles:
        now = log.last_time or 0.0
        word = diagnose.diagnose(log, guardlimits.Limits(), now, paused).decision.verdict
    if word in verdicts.ABOUT and word not in verdicts.FINE:
        return word
    return {"finished": "finished", "failed": "failed"}.get(how, "stopped")


def rows(claimed: list[dict], lab: Path, runs: list[str], doctor: bytes) -> list[Stage]:
    """The stages anew, in their order. claimed: the rows of acceptance.json."""
    by_name = {row["name"]: row for row in claimed}
    return [
        of_doctor(by_name[DOCTOR], doctor),
        of_run(by_name[STEPS], lab, runs, "-steps"),
        of_run(by_name[DEATH], lab, runs, "-death"),
        of_heat(by_name[HEAT], lab, runs),
    ]


def differ(claimed: list[dict], found: list[Stage]) -> list[str]:
    """A line for each stage whose verdict is not what the bundle says."""
    return [
        f"stage {row['name']}: the bundle says {row['verdict']}, its files say {stage.verdict}"
        for row, stage in zip(claimed, found, strict=True)
        if row["verdict"] != stage.verdict
    ]


def unchecked(row: dict) -> Stage:
    """A stage of which the bundle holds nothing to check; it cannot have passed."""
    if row["verdict"] == PASSED:
        return Stage(row["name"], NOT_RUN, f"{CLAIMED} passed: {row['reason'][:200]}")
    return Stage(row["name"], row["verdict"], row["reason"][:400])


def of_doctor(row: dict, data: bytes) -> Stage:
    """The host by its lines; by the reader's word when the bundle lists none."""
    try:
        lines = [doctor_checks.Line(*(str(line[key]) for key in doctor_checks.Line._fields))
                 for line in json.loads(data)["lines"]]  # fmt: skip
    except (ValueError, TypeError, KeyError, RecursionError):
        lines = []
    if not lines:
        return Stage(DOCTOR, row["verdict"], row["reason"][:400])
    return stages.of_doctor(lines, None)


def of_run(row: dict, lab: Path, runs: list[str], ending: str) -> Stage:
    """Steps or death from the stored run. A worse verdict of the reader's kit stays, as it saw
    more: a guard that was lost, or who stopped the run."""
    names = [name for name in runs if name.endswith(ending)]
    if len(names) != 1:
        return unchecked(row)
    run = Stored(lab, names[0])
    if ending == "-steps":
        of = row.get("of")
        asked = stages.record(run)["run"]["num_rollout"]
        found = stages.of_steps(run, max(of, asked) if type(of) is int else asked, "")
    else:
        found = stages.of_death(run, "", stored=True)
    found = found._replace(seconds=None)
    if row["verdict"] == FAILED and found.verdict == PASSED:
        return found._replace(verdict=FAILED, reason=row["reason"][:400])
    return found


def of_heat(row: dict, lab: Path, runs: list[str]) -> Stage:
    """The pauses in the logs of the heat guard."""
    found = stages.of_heat([Stored(lab, name) for name in runs], True)
    if found.verdict == NOT_RUN and row["verdict"] == NOT_RUN:
        return found._replace(reason=row["reason"][:400])
    return found
