"""The detection rows: real and synthetic logs through the guard at every offset."""

from functools import lru_cache
from pathlib import Path

import pytest

from scripts import detection

ROOT = Path(__file__).resolve().parents[2]


@lru_cache(maxsize=1)
def found():
    return detection.rows(ROOT)


def test_every_stored_run_and_every_case_has_a_row():
    logs = {row["log"] for row in found()}
    stored = {str(p.relative_to(ROOT)) for p in ROOT.glob("capture/gpu/out-*/*/run.log.xz")}
    assert stored <= logs
    assert {row["kind"] for row in found() if row["log"] in stored} == {"real"}
    assert len(logs) == len(found()) > len(stored)


def test_the_killed_engine_is_stopped_within_ninety_seconds_at_every_offset():
    (row,) = [row for row in found() if "kill_noft" in row["log"]]
    assert (row["verdict"], row["stopped"], row["offsets"]) == ("engine-dead", 30, 30)
    assert row["seconds_max"] <= 90


def test_no_healthy_run_is_stopped_and_the_bound_says_how_little_that_is():
    told = detection.false_stops(found())
    assert told["stopped"] == 0
    assert told["at_most"] == pytest.approx(3 / told["logs"])
    assert told["at_most_per_hour"] == pytest.approx(3 / told["hours"])


def test_a_stopped_healthy_run_leaves_no_bound():
    row = {"kind": "real", "verdict": "finished", "hours": 1.0, "stopped": 2}
    told = detection.false_stops([row])
    assert (told["stopped"], told["at_most"], told["at_most_per_hour"]) == (1, None, None)


def test_synthetic_logs_count_in_no_bound():
    row = {"kind": "synthetic", "verdict": "finished", "hours": 9.0, "stopped": 0}
    assert detection.false_stops([row])["logs"] == 0
