"""Every failure case and every stored run through the guard: verdicts, stops, seconds."""

import json
from functools import cache
from pathlib import Path

import pytest
from guardlog import OFFSETS, slowest
from mileskit.guard.guardlimits import Limits
from mileskit.guard.logdrive import drive, load
from mileskit.guard.verdicts import ABOUT, STOPS
from mileskit.log.logsource import open_log
from watchdog_replay import full_table

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests/fixtures/synthetic-cases"
EXPECTED = json.loads((CASES / "expected.json").read_text())
STORED = sorted(p.parent for p in (ROOT / "capture/gpu").glob("out-*/*/run.log.xz"))
# What the lab's notes say of each stored run; the rest ended by themselves.
TOLD = {
    "filter": "stopped",
    "kill_noft": "engine-dead",
    "smoke": "failed",
    "topp": "port-in-use",
}
# Cases whose log itself goes on long enough to show the rule (the others end at the cause).
NEVER_STOPPED = [n for n, case in EXPECTED.items() if case["verdict"] not in STOPS]


@cache
def case(name):
    """(last run, time to judge) of a case."""
    (path,) = CASES.glob(f"{name}.log*")
    with open_log(path) as stream:
        log = load(stream)
    return log.runs[-1], log.last_time + EXPECTED[name].get("now_after_s", 0)


@cache
def live(name):
    run, until = case(name)
    return [drive(run, offset=offset, until=until) for offset in OFFSETS]


@cache
def stored(folder):
    with open_log(folder / "run.log.xz") as stream:
        return load(stream)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_case_gets_its_verdict(name):
    run, until = case(name)
    decision = drive(run, until=until, act=False).decision
    assert decision.verdict == EXPECTED[name]["verdict"]
    assert decision.verdict in ABOUT


@pytest.mark.parametrize("name", [n for n in EXPECTED if "never" in EXPECTED[n]])
def test_a_case_never_raises_its_wrong_alarms(name):
    found = {outcome.decision.verdict for outcome in live(name)}
    assert not found & set(EXPECTED[name]["never"])


@pytest.mark.parametrize("name", [n for n in EXPECTED if "within_s" in EXPECTED[n]])
def test_a_live_guard_stops_a_case_in_time_at_every_offset(name):
    assert {o.decision.verdict for o in live(name)} == {EXPECTED[name]["verdict"]}
    assert all(outcome.stopped_at is not None for outcome in live(name))
    assert 0 <= slowest(live(name)) <= EXPECTED[name]["within_s"]


@pytest.mark.parametrize("name", [n for n in EXPECTED if n not in NEVER_STOPPED])
def test_a_live_guard_stops_exactly_on_the_verdicts_that_stop(name):
    assert {(o.decision.verdict, o.stopped_at is None) for o in live(name)} == {
        (EXPECTED[name]["verdict"], False)
    }


@pytest.mark.parametrize("name", NEVER_STOPPED)
def test_a_live_guard_never_stops_a_case_that_is_no_failure(name):
    assert [o.stopped_at for o in live(name)] == [None] * 30


@pytest.mark.parametrize("folder", STORED, ids=lambda folder: folder.name)
def test_a_stored_run_has_the_verdict_that_its_notes_tell(folder):
    log = stored(folder)
    decision = drive(log.runs[-1], until=log.last_time, act=False).decision
    assert decision.verdict == TOLD.get(folder.name, "finished")


@pytest.mark.parametrize("folder", STORED, ids=lambda folder: folder.name)
def test_no_stored_run_is_stopped_but_the_one_that_died_and_lived_on(folder):
    log = stored(folder)
    table = full_table(log.runs[-1], Limits(), log.last_time)
    if folder.name == "kill_noft":
        assert (table["stopped"], table["verdicts"]) == (30, {"engine-dead": 30})
        assert table["seconds"][1] <= 90
    else:
        assert table["stopped"] == 0


def test_the_killed_engine_is_told_with_the_line_above_its_cascade():
    run = stored(next(f for f in STORED if f.name == "kill_noft")).runs[-1]
    outcome = drive(run)
    assert outcome.decision.root.text.startswith("Subprocess scheduler_0 (pid=5107) crashed")
    assert outcome.decision.root.line < outcome.guard.outage.first.line
    assert set(outcome.guard.outage.statuses) == {503}
