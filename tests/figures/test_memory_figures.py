"""What the figures of part 2 say: memory, offload, the memory kill and the weight update."""

import json
import lzma
import statistics

import pytest

from figures import evidence, loglines, registry, reported
from figures.evidence import EvidenceError

FOLDER = "capture/gpu/out-h200-miles/plain_s1234"
RUN = "h200-miles/plain_s1234"


def columns():
    return json.loads(evidence.read(f"{FOLDER}/summary.json"))["runs"][0]["rollouts"]["columns"]


def log():
    return lzma.decompress(evidence.read(f"{FOLDER}/run.log.xz"))


def with_log(text):
    return evidence.use_overlay({f"{FOLDER}/run.log.xz": lzma.compress(text, preset=0)})


def gb10(value_id):
    return reported.reported("gb10", value_id).number


@pytest.mark.parametrize(
    "figure_id",
    [
        "fig-2-1-memory",
        "fig-2-2-pair",
        "fig-2-2-common",
        "fig-2-2-first-pair",
        "fig-2-3-kills",
        "fig-2-4-gb10",
    ],
)
def test_reported_figures_show_only_published_values(figure_id):
    figure = registry.build(figure_id)
    assert figure.tier == "reported"
    for value in figure.values.values():
        assert value.number == gb10(value.quantity.partition(":")[2])


def test_each_estimate_is_sixteen_bytes_for_each_parameter():
    figure = registry.build("fig-2-1-memory")
    sizes = [float(row["state"].removesuffix(" GB")) for row in figure.rows]
    assert sizes == [9.6, 27.2, 64.0, 64.0]
    assert round(sizes[1]) == figure.values["fit_gb"].number
    assert sizes[2] == figure.values["killed_gb"].number


def test_half_of_the_memory_is_the_estimate_of_the_killed_model():
    values = registry.build("fig-2-1-memory").values
    assert values["memory"].number * gb10("first-guess-share") == values["killed_gb"].number
    assert values["killed_gb"].note == "contradiction: half-memory-rule"


def test_lost_cells_of_a_table_say_so():
    rows = registry.build("fig-2-1-memory").rows
    assert [row["node"] for row in rows if "killed" not in row["outcome"]] == ["lost", "lost"]
    assert all(row["clean"] == "lost" for row in registry.build("fig-2-2-pair").rows)


def test_the_trainer_state_is_what_moved_out_between_two_memory_lines():
    values = registry.build("fig-2-1-rules").values
    moments = loglines.memory_lines(evidence.run(RUN))
    loaded = [m.allocated for m in moments if m.when == "before offload model"][1:]
    left = [m.allocated for m in moments if m.when == "after offload model"][1:]
    assert values["state"].number == pytest.approx(max(loaded) - min(left))
    assert values["per_parameter"].number == pytest.approx(16, rel=0.02)


def test_every_memory_line_of_the_log_is_read():
    moments = loglines.memory_lines(evidence.run(RUN))
    assert len(moments) == log().count(b"Memory-Usage ")
    assert all(m.allocated <= m.reserved <= m.used <= m.total for m in moments)


def test_a_memory_line_that_cannot_be_read_is_refused():
    broken = log().replace(b"'used_GB': 8.8,", b"'used_GB': ?,", 1)
    with with_log(broken), pytest.raises(EvidenceError, match="cannot be read"):
        registry.build("fig-2-1-rules")


def test_memory_in_use_falls_from_the_end_of_training_to_the_offload():
    values = registry.build("fig-2-2-turns").values
    assert values["offloaded"].number < values["begins"].number < values["ends"].number
    assert values["ends"].number < values["engine"].number


def test_the_parts_of_the_waiting_time_sum_to_it():
    rows = registry.build("fig-2-2-wait").rows
    for row, wait in zip(rows, columns()["perf/train_wait_time"], strict=True):
        parts = [number for key, number in row.items() if key != "step"]
        assert sum(parts) == pytest.approx(wait)
        assert min(parts) > 0


def test_timers_that_exceed_the_waiting_time_are_refused():
    stored = json.loads(evidence.read(f"{FOLDER}/summary.json"))
    stored["runs"][0]["rollouts"]["columns"]["perf/sleep_time"][4] = 100.0
    overlay = {f"{FOLDER}/summary.json": json.dumps(stored).encode()}
    with evidence.use_overlay(overlay), pytest.raises(EvidenceError, match="exceed"):
        registry.build("fig-2-2-wait")


def test_the_differences_of_the_common_steps_span_the_printed_range():
    figure = registry.build("fig-2-2-common")
    less = [float(row["less"].removesuffix(" s")) for row in figure.rows[:3]]
    assert less == [1.4, 1.8, 0.6]
    assert figure.values["gain"].number == (min(less), max(less))


def test_the_listed_processes_leave_most_of_the_killed_node_unexplained():
    figure = registry.build("fig-2-3-kills")
    cells = {row["what"]: row["a"] for row in figure.rows}
    listed = sum(gb10(f"kill-1-{name}-gb") for name in ("trainer", "engine", "rollout"))
    assert cells["sum of these three"] == f"{listed:.2f} GB"
    assert cells["used and not of them"] == f"{gb10('kill-1-gb') - listed:.2f} GB"
    assert listed < gb10("kill-1-gb") / 2


def test_the_printed_share_of_the_kill_is_possible_inside_the_rounding():
    values = registry.build("fig-2-3-kills").values
    used, node = values["used_1"].number, values["node"].number
    share = values["share"].number
    assert values["share"].note == "contradiction: ray-fraction"
    assert round(used / node, 6) != share
    assert (used - 0.005) / (node + 0.005) < share < (used + 0.005) / (node - 0.005)


def test_half_a_percent_is_not_shown_as_a_whole_one():
    assert registry.build("fig-2-4-gb10").values["share_48"].text == "0.5 percent"


def test_the_update_of_our_run_leaves_step_0_out():
    values = registry.build("fig-2-4-h200").values
    update = columns()["perf/update_weights_time"]
    assert values["update"].number == statistics.median(update[1:])
    assert values["first"].number == update[0]


def test_each_update_took_the_requests_that_fp32_bytes_ask_for():
    values = registry.build("fig-2-4-h200").values
    assert values["buckets_bf16"].number < 1 < values["buckets_fp32"].number < 2
    assert values["requests"].number == 2
    assert values["updates"].number == len(columns()["perf/update_weights_time"]) + 1


def test_an_update_without_an_end_is_refused():
    cut = log().rpartition(b"POST /end_weight_update")[0]
    with with_log(cut), pytest.raises(EvidenceError, match="without an end"):
        registry.build("fig-2-4-h200")
