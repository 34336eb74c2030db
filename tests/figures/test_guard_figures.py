"""The figures of section 1.2 against the stored log of the killed run and against the guard."""

import json
import lzma

import pytest

from figures import evidence, guard, registry
from figures.evidence import EvidenceError

FOLDER = "capture/gpu/out-h200-miles/kill_noft"


def stored():
    return json.loads(evidence.read(f"{FOLDER}/summary.json"))


def log():
    return lzma.decompress(evidence.read(f"{FOLDER}/run.log.xz"))


def packed(text):
    return {f"{FOLDER}/run.log.xz": lzma.compress(text, preset=0)}


def test_the_seconds_of_the_kill_sum_to_all_failed_requests():
    figure = registry.build("fig-1-2-kill")
    assert sum(row["failed_requests"] for row in figure.rows) == figure.values["total"].number
    assert figure.values["total"].number == log().count(b"Error: Server error '503")
    assert figure.values["watched"].number == len(figure.rows)


def test_seconds_that_do_not_sum_to_the_total_are_refused():
    summary = stored()
    summary["runs"][0]["retries"]["total"] += 1
    with (
        evidence.use_overlay({f"{FOLDER}/summary.json": json.dumps(summary).encode()}),
        pytest.raises(EvidenceError, match="the seconds sum to"),
    ):
        registry.build("fig-1-2-kill")


def test_an_answer_after_the_kill_is_refused():
    end = log() + b'(SGLangEngine pid=1) INFO: "POST /generate HTTP/1.1" 200 OK\n'
    with (
        evidence.use_overlay(packed(end)),
        pytest.raises(EvidenceError, match="answered after the kill"),
    ):
        registry.build("fig-1-2-kill")


def test_the_kill_and_the_first_failed_request_are_read_from_the_log():
    killed, failed = guard.marks(evidence.run(guard.KILLED))
    assert killed == "2026-11-29T12:59:45.150706Z"
    assert failed == "2026-11-29T12:59:51.475Z"
    values = registry.build("fig-1-2-kill").values
    assert 6.3 < values["first_retry_after_kill_s"].number < 6.4


def test_every_window_of_the_outage_is_far_above_the_limit():
    values = registry.build("fig-1-2-kill").values
    counts = guard.per_second(evidence.run(guard.KILLED))
    windows = [sum(counts[at:][: guard.WINDOW_S]) for at in range(len(counts) - 59)]
    assert values["least_window"].number == min(windows) > 100


def test_the_killed_run_is_stopped_at_every_offset_within_90_s():
    values = registry.build("fig-1-2-detection").values
    assert values["killed_stops"].number == values["offsets"].number == 30
    assert values["killed_stop"].high < 90


def test_no_healthy_log_is_stopped_and_the_bound_is_three_over_their_number():
    figure = registry.build("fig-1-2-detection")
    values = figure.values
    healthy = [row for row in figure.rows if row["verdict"] in guard.FINE]
    assert values["false_stops"].number == 0
    assert values["healthy"].number == len(healthy) >= 9
    assert values["bound"].number == pytest.approx(100 * 3 / len(healthy))
    minutes = sum(row["minutes"] for row in healthy)
    assert values["hours"].number == pytest.approx(minutes / 60, abs=0.02)


def test_the_diagnoses_are_those_of_the_records():
    for row in registry.build("fig-1-2-detection").rows:
        recorded = evidence.run(f"h200-miles/{row['run']}").toml["ended"]["verdict"]
        assert row["verdict"] == recorded, row["run"]


def test_a_healthy_run_that_the_guard_stops_counts_as_a_false_stop():
    path = str(evidence.run("h200-miles/plain3").folder / "run.log.xz")
    head, _, _ = lzma.decompress(evidence.read(path)).rpartition(b"# end ")
    where = b"(SGLangEngine pid=1) [2026-11-29 13:33:22] "
    head += where + b"Subprocess scheduler_0 (pid=2) crashed with exit code -9.\n"
    head += b"(RolloutManager pid=2) [2026-11-29 13:39:22.000 x] a.py:1 - a later line\n"
    with evidence.use_overlay({path: lzma.compress(head, preset=0)}):
        assert registry.build("fig-1-2-detection").values["false_stops"].number == 1


def test_the_reported_replay_table_has_one_row_a_setting():
    figure = registry.build("fig-1-2-replay-gb10")
    assert [row["checks"] for row in figure.rows] == ["6", "8", "10"]
    assert figure.tier == "reported"
