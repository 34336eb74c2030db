"""What the figures of 1.1, 1.3 and the front matter say, against the stored runs."""

import json
import math
import statistics

import pytest

from figures import evidence, registry, reported
from figures.evidence import EvidenceError

PLAIN = "capture/gpu/out-h200-miles/plain_s1234/summary.json"


def columns(path=PLAIN):
    return json.loads(evidence.read(path))["runs"][0]["rollouts"]["columns"]


def test_the_parts_of_each_step_sum_to_its_step_time():
    for row, stored in zip(
        registry.build("fig-1-1-h200-steps").rows, columns()["perf/step_time"], strict=True
    ):
        parts = row["rollout_s"] + row["training_s"] + row["rest_s"]
        assert parts == pytest.approx(stored)
        assert row["rest_s"] > 0


def test_parts_that_exceed_a_step_are_refused():
    stored = json.loads(evidence.read(PLAIN))
    stored["runs"][0]["rollouts"]["columns"]["perf/train_time"][3] = 100.0
    with (
        evidence.use_overlay({PLAIN: json.dumps(stored).encode()}),
        pytest.raises(EvidenceError, match="exceed"),
    ):
        registry.build("fig-1-1-h200-steps")


def test_the_first_step_and_the_median_are_those_of_the_log():
    values = registry.build("fig-1-1-h200-steps").values
    whole = columns()["perf/step_time"]
    assert values["first"].number == whole[0]
    assert values["median"].number == statistics.median(whole)
    assert values["steps"].number == len(whole)


def test_phases_leave_the_first_step_out():
    values = registry.build("fig-1-1-h200-phases").values
    later = columns()["perf/update_weights_time"][1:]
    assert values["update"].number == statistics.median(later)


def test_only_runs_alone_on_their_gpu_have_times():
    for figure_id in registry.load_all():
        for value in registry.build(figure_id).values.values():
            if value.kind == "time" and value.tier == "measured":
                for run in value.runs:
                    alone = run == "h200-miles/plain_s1234" or run.startswith("h200-core/")
                    assert alone, (figure_id, value.name)


def test_reported_figures_show_only_published_values():
    for figure_id in ("fig-1-1-gb10", "fig-1-1-startup", "fig-1-3-gb10-ranges"):
        for value in registry.build(figure_id).values.values():
            lab, _, value_id = value.quantity.partition(":")
            assert value.number == reported.reported(lab, value_id).number
            printed = reported.reported(lab, value_id).printed.replace(",", "")
            assert value.bare.replace(",", "") == printed


def test_every_row_of_the_reported_bars_is_one_published_value():
    figure = registry.build("fig-1-1-gb10")
    assert {row["published"] for row in figure.rows} <= {v.text for v in figure.values.values()}


def test_a_contradiction_of_the_source_is_carried_along():
    values = registry.build("fig-1-3-gb10-ranges").values
    assert values["reward"].note == "contradiction: first-ten-ranges"


def test_the_ranges_cover_three_seeds_and_ten_steps():
    figure = registry.build("fig-1-3-h200-five")
    assert figure.strength_text == "3 runs, 3 seeds, 10 steps each"
    rewards = [row["reward"] for row in figure.rows]
    assert figure.values["reward"].number == (min(rewards), max(rewards))
    moves = [
        abs(b["reward"] - a["reward"])
        for a, b in zip(figure.rows, figure.rows[1:], strict=False)
        if a["run"] == b["run"]
    ]
    assert figure.values["move"].number == max(moves)


def test_an_absent_group_count_means_zero():
    figure = registry.build("fig-1-3-h200-zero-std")
    assert columns()["rollout/zero_std/count_1.0"][0] is None
    assert figure.values["count_step0_one"].number == 0
    for row in figure.rows:
        assert row["all_wrong"] + row["all_right"] <= row["groups"]


def test_the_floor_is_the_binomial_deviation_of_the_batch():
    figure = registry.build("fig-1-3-h200-noise")
    answers = figure.values["answers"].number
    for row in figure.rows:
        assert row["floor"] == pytest.approx(math.sqrt(row["mean"] * (1 - row["mean"]) / answers))
    for name in ("floor", "spread"):
        squares = [row[name] ** 2 for row in figure.rows]
        assert figure.values[name].number ** 2 == pytest.approx(statistics.fmean(squares))


def test_the_table_of_runs_has_every_stored_run():
    figure = registry.build("fig-front-runs")
    folders = sorted(
        path.parent.name
        for path in (evidence.ROOT / "capture/gpu/out-h200-miles").glob("*/run.toml")
    )
    assert sorted(row["run"] for row in figure.rows) == folders
    assert figure.values["runs"].number == len(folders)


def test_the_claims_of_the_chapters_hold_the_wording_rules():
    steps = registry.build("fig-1-1-h200-steps")
    claim = "In one 20-step run on an H200, the first step took 23.1 s."
    assert steps.wording_errors(claim, ["steps", "first"]) == []
    assert steps.wording_errors("The first step takes 23.1 s.", ["first"])
