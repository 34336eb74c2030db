"""Stored samples through the same rule, and the lines that the guard writes."""

import json

import heat_guard
import pytest
from mileskit.heat import gpureplay, gpusample
from mileskit.heat.heat_log import Journal, append_line, format_action, pause_in_log
from mileskit.summary import pauses

WAVE = """\
timestamp, clocks.sm [MHz], power.draw [W], temperature.gpu [C], memory.used [MiB]
2026/11/29 13:25:49.830, 345, 79.59, 34, 0
2026/11/29 13:25:54.763, 345, 79.53 W, [N/A], 0
2026/11/29 13:25:59.701, [N/A], 79.55, 84, 0
"""


def jsonl(*temps, step_s=5.0, start=1_795_958_839.0):
    lines = []
    for index, temp_c in enumerate(temps):
        fields = {"time": pauses.iso(start + index * step_s), "gpu": 0, "temp_c": temp_c}
        lines.append(json.dumps({k: v for k, v in fields.items() if v is not None}) + "\n")
    return "".join(lines)


def replayed(tmp_path, capsys, text, *options):
    path = tmp_path / "samples"
    path.write_text(text)
    code = heat_guard.main(["--replay", str(path), *options])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_the_csv_of_nvidia_smi_is_read_with_units_and_missing_fields():
    readings = list(gpureplay.read_readings(WAVE.splitlines(keepends=True), "wave.csv"))
    assert [r.hottest and r.hottest.temp_c for r in readings] == [34.0, None, 84.0]
    assert [r.samples[0].power_w for r in readings] == [79.59, 79.53, 79.55]
    assert [r.samples[0].sm_mhz for r in readings] == [345.0, 345.0, None]
    assert readings[1].time - readings[0].time == pytest.approx(4.933)
    assert readings[0].samples[0].throttle is None


def test_what_the_guard_stores_it_reads_back(tmp_path):
    cells = {"gpu": "1", "temp_c": "84", "power_w": "600.25", "throttle": "0x24"}
    sample = gpusample.make_sample(1_795_958_839.12, cells)
    stored = [
        gpusample.Reading(sample.time, (sample,)),
        gpusample.Reading(sample.time + 5, (), "x"),
    ]
    journal = Journal(tmp_path / "samples.jsonl", print)
    for reading in stored:
        journal.write_reading(reading)
    with journal.path.open() as lines:
        assert list(gpureplay.read_readings(lines, "x")) == stored


def test_lines_of_several_gpus_at_one_time_are_one_reading(tmp_path):
    header = "timestamp, index, temperature.gpu\n"
    rows = [f"2026/11/29 13:25:{s:02d}.{g}00, {g}, {40 + g + s}\n" for s in (1, 6) for g in (0, 1)]
    readings = list(gpureplay.read_readings([header, *rows], "x"))
    assert [len(reading.samples) for reading in readings] == [2, 2]
    assert [reading.hottest.temp_c for reading in readings] == [42.0, 47.0]


def test_a_replay_prints_the_log_lines_that_a_guard_would_write(tmp_path, capsys):
    code, out, _ = replayed(tmp_path, capsys, jsonl(80, 84, *[80] * 8, 74, 70), "--name", "miles-x")
    assert code == 1
    assert out.splitlines() == [
        "2026-11-29T13:27:24.000Z pause container=miles-x temp_c=84 reason=hot",
        "2026-11-29T13:28:09.000Z resume container=miles-x temp_c=74 reason=cool paused_s=45.0",
        "# 12 readings over 55 s: 1 pauses, 45 s paused, 0 readings without a temperature, "
        "hottest 84 C",
    ]


def test_a_replay_of_cool_samples_is_0_and_of_none_is_3(tmp_path, capsys):
    assert replayed(tmp_path, capsys, jsonl(50, 60))[0] == 0
    assert replayed(tmp_path, capsys, "")[0] == 3
    assert replayed(tmp_path, capsys, jsonl(None, None))[0] == 3


def test_a_clock_that_steps_back_in_the_samples_ends_no_pause_early_and_none_late(tmp_path, capsys):
    back = jsonl(84, 90) + jsonl(*[90] * 30, start=1_795_950_000.0)
    code, out, _ = replayed(tmp_path, capsys, back)
    assert code == 1
    assert "reason=max-time paused_s=120.0" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (jsonl(50) + "{oops}\n" + jsonl(50), "samples:2: not a sample: '{oops}'"),
        (jsonl(50) + '{"gpu": 0}\n', "samples:2: not a sample"),
        ("time,temp\n1,2\n", "samples:1: neither JSON lines nor"),
        (WAVE + "yesterday, 1, 2, 3, 4\n", "samples:5: not a time: 'yesterday'"),
    ],
)
def test_a_bad_line_is_named_with_file_line_and_value(tmp_path, capsys, text, said):
    code, _, err = replayed(tmp_path, capsys, text)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("torn", ['{"time": "2026-11-2', "2026/11/29 13:2"])
def test_a_torn_last_line_is_dropped(tmp_path, capsys, torn):
    whole = jsonl(50) if torn.startswith("{") else WAVE
    assert replayed(tmp_path, capsys, whole + torn)[0] in (0, 1)


def test_a_file_that_cannot_be_read_is_2(tmp_path, capsys):
    assert heat_guard.main(["--replay", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        ("0x0000000000000000", ()),
        ("0x0000000000000060", ("sw-thermal", "hw-thermal")),
        ("0x0000000000001001", ("idle", "0x1000")),
        ("[N/A]", None),
        ("", None),
    ],
)
def test_throttle_masks_are_named_and_a_missing_one_is_not_none_active(mask, names):
    assert gpusample.throttle_reasons(mask) == names


@pytest.mark.parametrize("cell", ["[N/A]", "nan", "inf", "", "999", "-273"])
def test_a_temperature_that_no_gpu_has_is_missing(cell):
    assert gpusample.make_sample(0.0, {"temp_c": cell}).temp_c is None


def test_summarize_reads_what_the_guard_writes():
    lines = [
        "# 2026-11-29T13:27:19.000Z a comment",
        format_action(9.0, "pause", "x1", 84.0, "hot"),
        format_action(129.0, "resume", "x1", None, "unreadable", 120.04),
        format_action(200.0, "pause", "x1", 84.5, "hot"),
    ]
    assert lines[2].endswith("temp_c=unknown reason=unreadable paused_s=120.0")
    data = "".join(line + "\n" for line in lines).encode()
    assert pauses.read_pauses(data) == [
        pauses.Pause(9.0, 129.0, "hot"),
        pauses.Pause(200.0, None, "hot"),
    ]


def test_an_action_after_a_torn_line_starts_on_a_line_of_its_own(tmp_path):
    path = tmp_path / "log"
    path.write_text("2026-11-29T13:2")
    append_line(path, "whole")
    assert path.read_text() == "2026-11-29T13:2\nwhole\n"


def test_the_log_tells_whether_a_pause_was_closed(tmp_path):
    path, line = tmp_path / "log", format_action(9.0, "pause", "x1", 85.0, "hot")
    assert pause_in_log(path, line, "x1") == "absent"
    append_line(path, line)
    append_line(path, format_action(10.0, "resume", "x12", 60.0, "cool", 1.0))
    assert pause_in_log(path, line, "x1") == "open"
    append_line(path, format_action(10.0, "resume", "x1", 60.0, "cool", 1.0))
    assert pause_in_log(path, line, "x1") == "closed"
