"""What the figures of part 8 say, against the stored runs and the published values."""

import json
import statistics

import pytest

from figures import evidence, inside_gap, inside_run, registry
from figures.evidence import EvidenceError

FOLDER = "capture/gpu/out-h200-miles"
GAP = "train/train_rollout_logprob_abs_diff"


def summary(run):
    return json.loads(evidence.read(f"{FOLDER}/{run}/summary.json"))


def changed(run, table, key, place, cell):
    """An overlay in which one cell of a stored summary is another."""
    stored = summary(run)
    stored["runs"][0][table]["columns"][key][place] = cell
    return {f"{FOLDER}/{run}/summary.json": json.dumps(stored).encode()}


def test_the_floor_of_each_run_is_its_lowest_median_and_highest_gap():
    figure = registry.build("fig-8-3-floor")
    assert [row["run"] for row in figure.rows] == [
        *("plain_s1234", "plain_s4321", "plain3", "n4", "n16", "determ", "determ2")
    ]
    for row in figure.rows:
        cells = summary(row["run"])["runs"][0]["steps"]["columns"][GAP]
        assert row["lowest"] == min(cells)
        assert row["median"] == pytest.approx(statistics.median(cells))
        assert row["highest"] == max(cells)


def test_one_high_gap_moves_the_range_of_the_floor():
    with evidence.use_overlay(changed("n16", "steps", GAP, 4, 0.5)):
        assert registry.build("fig-8-3-floor").values["all"].high == 0.5


def test_the_ratio_is_the_gap_over_the_entropy_of_the_same_step():
    figure = registry.build("fig-8-3-entropy")
    for row in figure.rows:
        stored = summary(row["run"])["runs"][0]
        at = stored["rollouts"]["index"].index(row["step"])
        entropy = stored["rollouts"]["columns"]["rollout/entropy"][at]
        assert row["ratio"] == pytest.approx(stored["steps"]["columns"][GAP][at] / entropy)
    ratios = [row["ratio"] for row in figure.rows]
    assert figure.values["ratio_all"].number == (min(ratios), max(ratios))
    plain = [row["ratio"] for row in figure.rows if row["family"] == "plain"]
    assert figure.values["ratio"].number == (min(plain), max(plain))


def test_the_entropy_has_every_run_with_a_step():
    runs = {row["run"] for row in registry.build("fig-8-3-entropy").rows}
    stored = {run_id.partition("/")[2] for run_id in evidence.run_ids("h200-miles")}
    assert runs == {name for name in stored if evidence.run(f"h200-miles/{name}").has_step(0)}


def test_the_first_and_last_step_are_those_of_the_run_with_the_most_steps():
    figure = registry.build("fig-8-3-entropy")
    gaps = summary("plain_s1234")["runs"][0]["steps"]["columns"][GAP]
    assert figure.values["gap_first"].number == gaps[0]
    assert figure.values["gap_last"].number == gaps[-1]


def test_more_answers_to_a_prompt_have_a_row_of_their_own_cache_share():
    figure = registry.build("fig-8-1-h200")
    groups = {row["run"]: row["group"] for row in figure.rows}
    assert groups == {"plain_s1234": 8, "plain_s4321": 8, "plain3": 8, "n4": 4, "n16": 16}
    hits = summary("n4")["runs"][0]["rollouts"]["columns"]["rollout/prefix_cache_hit_rate"]
    assert figure.values["cached_four"].low == pytest.approx(100 * min(hits))


def test_three_seeds_with_different_batches_are_refused(monkeypatch):
    monkeypatch.setattr(inside_gap, "SEEDS", (*inside_gap.SEEDS[:2], "h200-miles/n4"))
    with pytest.raises(EvidenceError, match="different batches"):
        registry.build("fig-8-1-h200")


def test_the_turns_of_a_step_are_read_from_the_only_run_that_was_alone(monkeypatch):
    figure = registry.build("fig-8-4-h200")
    assert figure.runs == ("h200-miles/plain_s1234",)
    for row in figure.rows:
        assert 0 < row["sleep_s"] + row["wake_s"] + row["update_s"] < row["step_s"]
    monkeypatch.setattr(inside_run, "ALONE", "h200-miles/plain3")
    with pytest.raises(EvidenceError, match="shared"):
        registry.build("fig-8-4-h200")


def test_failed_requests_follow_the_summary():
    figure = registry.build("fig-8-6-h200")
    failed = {row["run"]: row["failed"] for row in figure.rows}
    for run, count in failed.items():
        assert count == summary(run)["runs"][0]["retries"]["total"]
    assert failed["n16"] == 0


def test_lost_cells_of_other_teams_stay_lost():
    figure = registry.build("fig-8-3-others")
    lost = [row["gap"] for row in figure.rows if row["gap"] == inside_run.LOST]
    assert len(lost) == len(figure.rows) - 1


def test_the_commits_of_two_dates_are_the_cited_ones():
    figure = registry.build("fig-8-7-commits")
    assert [row["date"] for row in figure.rows] == ["2026-08-21", "2026-10-20"]
    assert figure.rows[1]["miles"] == f"about {figure.values['miles_october'].text}"
