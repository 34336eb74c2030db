"""What the figures of 5.1, 5.2, 5.3, 7.2 and the reference page say, against the stored runs."""

import json
import lzma
import re
import statistics

import pytest
import yaml

from figures import evidence, health, ranges, registry, seeds, step_zero
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


def test_the_signals_cover_the_steps_that_all_seeds_have():
    figure = registry.build("fig-5-1-h200-signals")
    shortest = min(len(evidence.run(run_id).index) for run_id in health.SEEDS)
    assert len(health.STEPS) == shortest
    assert figure.strength_text == f"3 runs, 3 seeds, {shortest} steps each"


def test_each_signal_range_is_the_smallest_and_largest_row():
    figure = registry.build("fig-5-1-h200-signals")
    for name in health.SIGNALS:
        cells = [row[name] for row in figure.rows]
        assert figure.values[name].number == (min(cells), max(cells))


def test_one_clipped_token_in_one_step_is_no_zero_any_more():
    with evidence.use_overlay(changed("plain3", "steps", "train/pg_clipfrac", 7, 0.002)):
        assert registry.build("fig-5-1-h200-signals").values["clip"].number == 0.002


def test_step_zero_has_every_run_that_finished_it():
    figure = registry.build("fig-5-2-gap")
    with_steps = [
        path.parent.name
        for path in (evidence.ROOT / FOLDER).glob("*/summary.json")
        if 0 in json.loads(path.read_text())["runs"][0]["steps"]["index"]
    ]
    assert sorted(row["run"] for row in figure.rows) == sorted(with_steps)
    for row in figure.rows:
        assert row["gap"] == summary(row["run"])["runs"][0]["steps"]["columns"][GAP][0]


def test_a_kl_at_step_zero_of_one_run_shows():
    with evidence.use_overlay(changed("n4", "steps", "train/ppo_kl", 0, -3e-7)):
        assert registry.build("fig-5-2-gap").values["kl"].number == 3e-7


def test_a_run_without_a_label_is_refused(monkeypatch):
    fewer = {name: what for name, what in step_zero.DIFFERS.items() if name != "n16"}
    monkeypatch.setattr(step_zero, "DIFFERS", fewer)
    with pytest.raises(EvidenceError, match="n16"):
        registry.build("fig-5-2-gap")


def test_the_means_of_the_seeds_are_those_of_their_first_and_last_steps():
    figure = registry.build("fig-5-3-h200-seeds")
    for row in figure.rows:
        rewards = summary(row["run"])["runs"][0]["rollouts"]["columns"]["rollout/raw_reward"]
        common = rewards[: len(health.STEPS)]
        assert row["reward_first"] == pytest.approx(statistics.fmean(common[: seeds.WINDOW]))
        assert row["reward_last"] == pytest.approx(statistics.fmean(common[-seeds.WINDOW :]))
    last = [row["reward_last"] for row in figure.rows]
    assert figure.values["width"].number == pytest.approx(max(last) - min(last))


RANGED = ("fig-ranges-rollout", "fig-ranges-training", "fig-ranges-time")


def test_every_key_of_the_facts_file_is_in_one_table_of_the_page():
    from scripts import metrictables
    from scripts.tree import ROOT, Tree

    found = [row["key"] for name in RANGED for row in registry.build(name).rows]
    rest = metrictables.metrics_without_ranges(Tree(ROOT))[1:]
    found += [row[0] for row in rest]
    entries = yaml.safe_load(evidence.read(ranges.METRICS))["metrics"]
    wanted = [entry["key"] for entry in entries if entry.get("in_snapshot", True)]
    assert sorted(found) == sorted(wanted)


def test_every_logged_metric_of_a_plain_run_has_a_range_or_a_reason():
    shown = {row["key"]: row["measured"] for name in RANGED for row in registry.build(name).rows}
    run = summary("plain3")["runs"][0]
    for table in ("rollouts", "steps"):
        for key in run[table]["columns"]:
            if key.startswith("time/") or "zero_std/count_" in key:
                continue
            assert shown[key], key


def test_no_range_is_made_of_a_column_that_is_marked_unusable():
    rows = {row["key"]: row for name in RANGED for row in registry.build(name).rows}
    for key in ("rollout/ref_log_probs", "train/kl_loss"):
        assert rows[key]["measured"] == "marked unusable, section 5.2"


def test_times_come_only_from_the_run_alone_on_its_gpu_without_its_first_step():
    figure = registry.build("fig-ranges-time")
    stored = summary("plain_s1234")["runs"][0]["rollouts"]["columns"]["perf/step_time"][1:]
    assert figure.values["perf_step_time"].number == (min(stored), max(stored))
    for value in figure.values.values():
        assert value.runs == ranges.ALONE or value.quantity.startswith("gb10:")


def test_a_range_shows_three_digits_of_its_largest_number():
    assert [ranges.digits_for([x]) for x in (0.01985, 0.55, 37.5, 316.4, 12, 0.5)] == [
        4,
        3,
        1,
        0,
        0,
        3,
    ]


def test_numbers_within_rounding_of_zero_are_said_to_be_so():
    rows = {row["key"]: row for row in registry.build("fig-ranges-training").rows}
    assert rows["train/loss"]["measured"] == "0 but for rounding"
    assert rows["train/pg_clipfrac"]["measured"] == "0"


def test_reported_cells_of_the_reference_page_are_published_values():
    from figures import reported

    for name in RANGED:
        figure = registry.build(name)
        for value in figure.values.values():
            lab, _, value_id = value.quantity.partition(":")
            if lab == "gb10":
                assert value.number == reported.reported(lab, value_id).number


def test_the_record_table_has_each_field_that_store_asks_for():
    from mileskit.evidence import runinfo

    from scripts import metrictables
    from scripts.tree import ROOT, Tree

    rows = [row[0].strip("`") for row in metrictables.run_record(Tree(ROOT))[1:]]
    assert {f"setup.{name}" for name in runinfo.SETUP_FIELDS} <= set(rows)
    assert {f"run.{name}" for name in runinfo.RUN_FIELDS} <= set(rows)


def raw_with(run, old, new):
    """An overlay in which one text of a raw log is another."""
    path = f"{FOLDER}/{run}/run.log.xz"
    text = lzma.decompress(evidence.read(path))
    assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {path}"
    return {path: lzma.compress(text.replace(old, new))}


def test_the_reference_figure_has_every_run_whose_record_marks_the_column():
    figure = registry.build("fig-5-2-reference")
    marked = [
        path.parent.name
        for path in (evidence.ROOT / FOLDER).glob("*/run.toml")
        if 'column = "rollout/ref_log_probs"' in path.read_text()
    ]
    assert sorted(row["run"] for row in figure.rows) == sorted(marked)
    for row in figure.rows:
        columns = summary(row["run"])["runs"][0]["rollouts"]["columns"]
        assert row["reference"] == columns["rollout/ref_log_probs"][0]
        assert row["actor"] == columns["rollout/log_probs"][0]


def test_a_reference_that_agrees_would_show_in_the_figure():
    right = raw_with(
        "plain_s1234",
        b"'rollout/ref_log_probs': -2.464724063873291",
        b"'rollout/ref_log_probs': -0.3725418448448181",
    )
    with evidence.use_overlay(right):
        assert registry.build("fig-5-2-reference").values["away"].number[0] == 0


def test_a_log_without_the_reference_is_refused():
    gone = raw_with("plain_s1234", b"'rollout/ref_log_probs': -2.464724063873291, ", b"")
    with (
        evidence.use_overlay(gone),
        pytest.raises(EvidenceError, match=r"no rollout/ref_log_probs"),
    ):
        registry.build("fig-5-2-reference")


def recorded_rows():
    """Case -> largest difference of the sequences after the first, by version of transformers."""
    found, version = {}, ""
    for line in (evidence.ROOT / "capture/core/packed_rows.recorded.txt").read_text().splitlines():
        if match := re.fullmatch(r"transformers (\S+)", line):
            version = match[1]
        elif match := re.fullmatch(r"(\w+, .*?) +((?:\d\S+ *){4})", line):
            found[version, match[1]] = max(map(float, match[2].split()[1:]))
    return found


def test_only_a_pass_without_a_cache_keeps_recorded_sequences_apart():
    rows = recorded_rows()
    assert {version for version, _ in rows} == {"5.12.1", "5.24.0"}
    for (version, case), worst in rows.items():
        escapes = "checkpointing" in case and (version == "5.12.1" or ", gradients" in case)
        apart = escapes or "use_cache=False" in case
        assert (worst < 1e-4) is apart, (version, case, worst)
        assert apart or worst > 1
