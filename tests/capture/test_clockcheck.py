"""Timing validity: pauses, clock, temperature, and what a time without them must carry."""

from __future__ import annotations

import json

import judgelog as j
import kit
import pytest
from mileskit.summary.pauses import iso

DAY = 1795910400.0  # 2026-11-29T00:00:00Z


def record(tmp_path, clock, util=90.0, temp=60.0, steps: int = 12) -> str:
    """Samples every 5 s over the steps; clock: MHz, or a function of the step."""
    lines = []
    for k in range(int(steps * j.EVERY / 5)):
        at = DAY + j.NINE + 5 * k
        step = int(5 * k // j.EVERY)
        mhz = clock(step) if callable(clock) else clock
        sample = {"time": iso(at), "gpu": 0, "temp_c": temp, "sm_mhz": mhz, "util_pct": util}
        lines.append(json.dumps({k: v for k, v in sample.items() if v is not None}))
    path = tmp_path / "samples.jsonl"
    path.write_text("\n".join([*lines, ""]))
    return str(path)


def timing(tmp_path, capsys, *args: str, **series) -> tuple[int, dict, list[str]]:
    path = j.store(tmp_path, "made", j.log(**series))
    rc = kit.main(["health", "--json", path, *args])
    report = json.loads(capsys.readouterr().out)
    return rc, report["timing"], [f["id"] for f in report["findings"]]


def test_without_a_record_the_clock_is_unknown(tmp_path, capsys):
    _, found, _ = timing(tmp_path, capsys)
    assert "clock unknown" in found["badge"]
    assert found["steps"][0]["clock_mhz"] is None


def test_every_step_gets_the_median_of_its_own_samples(tmp_path, capsys):
    samples = record(tmp_path, lambda step: 1900.0 - 10 * step, temp=71.0)
    _, found, _ = timing(tmp_path, capsys, "--samples", samples)
    clocks = [s["clock_mhz"] for s in found["steps"]]
    assert clocks[0] > clocks[5] > clocks[11]
    assert found["steps"][3]["temp_c"] == 71.0
    assert not any("unknown" in word for word in found["badge"] if "clock" in word)


@pytest.mark.parametrize(
    ("clock", "util", "found"),
    [
        (208.0, 90.0, True),
        (208.0, None, True),
        (lambda step: 400.0 if step == 4 else 1980.0, 90.0, True),
        (lambda step: 900.0 if step == 4 else 1980.0, 90.0, True),
        (1980.0, 90.0, False),
        (208.0, 0.0, False),  # an idle GPU may be slow
        (lambda step: 1500.0 if step == 4 else 1980.0, 90.0, False),
    ],
)
def test_a_low_clock_under_load_is_a_stuck_clock(tmp_path, capsys, clock, util, found):
    samples = record(tmp_path, clock, util)
    rc, _, findings = timing(tmp_path, capsys, "--samples", samples)
    assert ("stuck-clock" in findings, rc) == (found, int(found))


@pytest.mark.parametrize("clock", [345.0, 750.0, 900.0])
@pytest.mark.parametrize("util", [95.0, 30.0, None])
def test_a_clock_that_never_left_a_low_state_is_stuck_and_no_step_is_clean(
    tmp_path, capsys, clock, util
):
    head = ("# gpu NVIDIA H200, 580.159.04, 143771 MiB, 0 MiB",)
    samples = record(tmp_path, clock, util)
    rc, found, findings = timing(tmp_path, capsys, "--samples", samples, head=head)
    assert (rc, findings) == (1, ["stuck-clock"])
    assert (found["clean_steps"], found["step_s"]) == ([], None)


def test_without_the_gpus_name_its_top_clock_is_said_to_be_unknown(tmp_path, capsys):
    rc, found, _ = timing(tmp_path, capsys, "--samples", record(tmp_path, 900.0))
    assert rc == 0
    assert "top clock is not known" in found["badge"][-1]


def test_a_step_at_a_stuck_clock_is_not_clean(tmp_path, capsys):
    samples = record(tmp_path, lambda step: 400.0 if step == 4 else 1980.0)
    _, found, _ = timing(tmp_path, capsys, "--samples", samples)
    assert found["clean_steps"] == [1, 2, 3, *range(5, 12)]


def test_the_first_step_is_in_no_median_time(tmp_path, capsys):
    for slow in (30.0, 9000.0):
        series = {"step_s": [slow] + [30.0] * 5 + [31.0] * 6}
        _, found, _ = timing(tmp_path, capsys, **series)
        assert (found["step_s"], found["left_out"]) == (31.0, 0)


@pytest.mark.parametrize(
    ("minute", "inside"),
    [("17:01", False), ("09:00", False), ("09:01", True)],  # 09:00: before the first step
)
def test_a_guards_log_without_a_pause_in_the_steps_is_not_called_clean(
    tmp_path, capsys, minute, inside
):
    guard = tmp_path / "guard.log"
    guard.write_text(
        f"2026-11-29T{minute}:10.000Z pause container=x temp_c=84 reason=hot\n"
        f"2026-11-29T{minute}:20.000Z resume container=x temp_c=70 reason=cool paused_s=10.0\n"
    )
    _, found, _ = timing(tmp_path, capsys, "--heat-guard", str(guard))
    badge = " ".join(found["badge"])
    assert ("whole steps clean of pauses" in badge) is inside
    assert ("check --utc-offset" in badge) is not inside


def test_nothing_says_that_a_log_without_a_word_on_it_was_alone(tmp_path, capsys):
    _, found, _ = timing(tmp_path, capsys)
    assert "unknown" in found["badge"][0]
    head = ("# gpu NVIDIA H200, 580.159.04, 143771 MiB, 512 MiB",)
    _, found, _ = timing(tmp_path, capsys, head=head)
    assert "maybe shared" in found["badge"][0]


def test_a_record_of_another_time_leaves_the_clock_unknown(tmp_path, capsys):
    samples = tmp_path / "samples.jsonl"
    samples.write_text('{"time": "2026-10-01T00:00:00.000Z", "sm_mhz": 1980.0, "temp_c": 50}\n')
    _, found, _ = timing(tmp_path, capsys, "--samples", str(samples))
    assert any("clock unknown" in word for word in found["badge"])


def test_pause_overlap_and_time_since_the_pause_are_per_step(tmp_path, capsys):
    guard = tmp_path / "guard.log"
    guard.write_text(
        "2026-11-29T09:01:40.000Z pause container=x temp_c=84 reason=hot\n"
        "2026-11-29T09:01:50.000Z resume container=x temp_c=70 reason=cool paused_s=10.0\n"
    )
    _, found, _ = timing(tmp_path, capsys, "--heat-guard", str(guard))
    one = found["steps"][1]
    assert (one["step_clean"], one["pause_s"]) == (False, 10.0)
    assert found["steps"][2]["since_pause_s"] == pytest.approx(45.0)
    assert found["clean_steps"] == list(range(2, 12))  # without the first step and the paused one
    assert "11 of 12 whole steps clean of pauses" in found["badge"]


def test_a_shared_gpu_gives_no_median_time(capsys):
    kit.main(["health", "--json", "h200-miles/plain3"])
    found = json.loads(capsys.readouterr().out)["timing"]
    assert (found["step_s"], found["rollout_s"]) == (None, None)
    assert "no timing result" in found["badge"][0]
    assert "(12 of 12 steps have samples)" in found["badge"][1]


def test_a_sample_file_that_is_none_is_named(tmp_path, capsys):
    path = j.store(tmp_path, "made", j.log())
    bad = tmp_path / "bad.csv"
    bad.write_text("time,clock\n")
    assert kit.main(["health", path, "--samples", str(bad)]) == 2
    assert "bad.csv:1" in capsys.readouterr().err


def test_the_medians_of_a_report_leave_the_first_step_out(tmp_path, capsys):
    path = j.store(tmp_path, "made", j.log(step_s=[9000.0] + [30.0] * 5 + [31.0] * 6))
    out = tmp_path / "report.html"
    assert kit.main(["report", path, "-o", str(out)]) == 0
    page = out.read_text()
    assert "without step 0, which holds work of the start" in page
    assert "31.00 s (11)" in page
