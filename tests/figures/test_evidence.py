"""What evidence may be read, and that each read is written down."""

import json
import math

import pytest

from figures import evidence, reported
from figures.evidence import EvidenceError


def test_a_column_is_read_at_the_named_steps(lab):
    run = evidence.run(lab("a"))
    assert run.column("train/loss", [2, 0]) == [0.2, 0.0]
    assert math.isnan(run.column("rollout/raw_reward")[2])


def test_a_column_marked_unusable_is_refused(lab):
    run = evidence.run(lab("a"))
    with pytest.raises(EvidenceError, match=r"run\.toml: column rollout/ref_log_probs .*attends"):
        run.column("rollout/ref_log_probs")


@pytest.mark.parametrize("column", ["perf/step_time", "perf/anything", "time/step_line"])
def test_a_time_of_a_shared_gpu_is_refused(lab, column):
    run = evidence.run(lab("a", shared=True))
    with pytest.raises(EvidenceError, match="shared"):
        run.column(column)


def test_a_start_up_duration_of_a_shared_gpu_is_refused_but_its_size_is_not(lab):
    run = evidence.run(lab("a", shared=True))
    assert run.startup("kv_cache", "tokens") == 1000
    with pytest.raises(EvidenceError, match="shared"):
        run.startup("kv_cache", "seconds")


def test_no_keyword_lets_a_time_of_a_shared_gpu_through(lab):
    run = evidence.run(lab("a", shared=True))
    with pytest.raises(TypeError):
        run.column("perf/step_time", timing_is_not_a_result=True)
    assert not hasattr(run, "summary")


@pytest.mark.parametrize(
    "keys",
    [
        ("medians", "perf/step_time", "all"),
        ("timers", "train", "total_s"),
        ("timers", "train"),
        ("timers",),
        ("first_time",),
        ("errors",),
        ("timing", "step_clean"),
    ],
)
def test_a_fact_that_is_or_holds_a_time_is_refused_on_a_shared_gpu_only(lab, keys):
    assert evidence.run(lab("alone")).fact(*keys) is not None
    with pytest.raises(EvidenceError, match="shared"):
        evidence.run(lab("a", shared=True)).fact(*keys)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (("medians", "rollout/ref_log_probs", "all"), "may not be used"),
        (("rollouts", "columns", "rollout/ref_log_probs"), "may not be used"),
        (("medians", "perf/step_time"), "median"),
        (("medians",), "median"),
        (("rollouts",), "column"),
        (("rollouts", "columns", "train/loss"), "no rollouts:columns:train/loss"),
        (("rollouts", "columns", "rollout/raw_reward"), "column"),
        (("steps", "columns"), "column"),
        (("startup", "kv_cache", "tokens"), "startup"),
    ],
)
def test_a_fact_is_no_way_round_the_rules_of_columns_and_medians(lab, keys, said, shared):
    with pytest.raises(EvidenceError, match=said):
        evidence.run(lab("a", shared=shared)).fact(*keys)


def test_facts_without_times_are_read_on_a_shared_gpu(lab):
    run = evidence.run(lab("a", shared=True))
    assert run.fact("retries", "total") == 4
    assert run.fact("ended", "how") == "finished"
    assert run.fact("steps", "index") == [0, 1, 2]
    assert run.fact("medians", "rollout/raw_reward", "all") == 0.375


def test_times_of_log_lines_are_read_as_such_and_nothing_else_is(lab):
    run = evidence.run(lab("a", shared=True))
    with evidence.recording() as accesses:
        assert run.log_fact("errors")[0]["first_time"].startswith("2026")
        assert run.index == [0, 1, 2]
    assert [(a.what, a.log, a.timing) for a in accesses] == [
        ("errors", True, False),
        ("index", False, False),
    ]
    for keys in (("medians", "perf/step_time", "all"), ("timers",), ("startup",), ("rollouts",)):
        with pytest.raises(EvidenceError, match="more than times of log lines"):
            run.log_fact(*keys)


def test_a_run_that_does_not_say_whether_it_was_alone_counts_as_shared(lab):
    run_id = lab("a")
    path = f"{evidence.run(run_id).folder}/run.toml"
    with evidence.use_overlay({path: b"[run]\nseed = 1\n"}):
        assert evidence.run(run_id).shared


def test_an_absent_cell_raises_unless_its_meaning_is_given(lab):
    run = evidence.run(lab("a"))
    with pytest.raises(EvidenceError, match=r"no rollout/zero_std/count_1\.0 at step 0"):
        run.column("rollout/zero_std/count_1.0")
    assert run.column("rollout/zero_std/count_1.0", missing=0) == [0, 2, 3]


def test_an_absent_step_raises_even_when_absent_cells_have_a_meaning(lab):
    with pytest.raises(EvidenceError, match="at step 7"):
        evidence.run(lab("a")).column("rollout/zero_std/count_1.0", [7], missing=0)


def test_a_stored_median_that_its_column_does_not_give_is_refused(lab):
    run_id = lab("a")
    assert evidence.run(run_id).median("perf/step_time") == 5.0
    path = f"{evidence.run(run_id).folder}/summary.json"
    summary = json.loads(evidence.read(path))
    summary["runs"][0]["medians"]["perf/step_time"]["all"] = 5.1
    with (
        evidence.use_overlay({path: json.dumps(summary).encode()}),
        pytest.raises(EvidenceError, match="median"),
    ):
        evidence.run(run_id).median("perf/step_time")


def test_an_overlay_hides_the_file_only_inside_its_block(lab):
    run_id = lab("a")
    path = f"{evidence.run(run_id).folder}/summary.json"
    changed = json.loads(evidence.read(path))
    changed["runs"][0]["steps"]["columns"]["train/loss"][0] = 7.0
    with evidence.use_overlay({path: json.dumps(changed).encode()}):
        assert evidence.run(run_id).column("train/loss")[0] == 7.0
    assert evidence.run(run_id).column("train/loss")[0] == 0.0


def test_every_read_is_written_down_once(lab):
    run = evidence.run(lab("a"))
    with evidence.recording() as accesses:
        run.column("train/loss", [0, 1])
        run.column("train/loss", [0, 1])
        run.column("perf/step_time")
        run.startup("kv_cache", "seconds")
    assert [(a.what, a.steps, a.timing) for a in accesses] == [
        ("train/loss", 2, False),
        ("perf/step_time", 3, True),
        ("startup:kv_cache.seconds", None, True),
    ]


def test_a_refused_read_is_not_written_down(lab):
    run = evidence.run(lab("a", shared=True))
    with evidence.recording() as accesses, pytest.raises(EvidenceError):
        run.column("perf/step_time")
    assert accesses == []


def test_missing_and_broken_files_are_named(lab):
    with pytest.raises(EvidenceError, match=r"out-synthetic/none/run\.toml: No such file"):
        evidence.run("synthetic/none")
    run_id = lab("a")
    path = f"{evidence.run(run_id).folder}/summary.json"
    for broken in (b"{", b'{"runs": []}', b"[]"):
        with (
            evidence.use_overlay({path: broken}),
            pytest.raises(EvidenceError, match=r"summary\.json: (not JSON|must hold)"),
        ):
            evidence.run(run_id)


@pytest.mark.parametrize("run_id", ["plain", "a/b/c", "/x", "a/"])
def test_a_run_id_names_lab_and_run(run_id):
    with pytest.raises(EvidenceError, match="LAB/RUN"):
        evidence.run(run_id)


def test_a_reported_value_keeps_its_printed_precision_and_place(lab):
    with evidence.recording() as accesses:
        first = reported.reported("paper", "first")
        both = reported.reported("paper", "range")
        reported.reported("paper", "orphan")
    assert (first.number, first.digits, first.contradiction) == (233, 0, "one-exception")
    assert (both.number, both.digits) == ((0.53, 0.7), 2)
    assert both.runs == ("paper/plain", "paper/other")
    assert [a.run for a in accesses] == ["paper/plain", "paper/plain", "paper/other", "paper/"]


def test_an_unknown_reported_id_is_refused(lab):
    with pytest.raises(EvidenceError, match="0 entries with the id 'last'"):
        reported.reported("paper", "last")
