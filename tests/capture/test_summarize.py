"""Summaries: the same log gives the same bytes, and every number can be counted another way."""

from __future__ import annotations

import io
import json
import lzma
import re
import statistics
from pathlib import Path

import kit
import pytest
from mileskit.summary import summarize
from mileskit.summary.summarize import build, diff_summaries, to_bytes

from tests.capture.minilog import retry, rollout, sourced, step, summary, text

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "capture/gpu/out-h200-miles"
CASES = ROOT / "tests/fixtures/synthetic-cases"
# Steps and how it ended, from the record of the capture.
RUNS = {
    "plain_s1234": (20, "finished", 0),
    "plain_s4321": (16, "finished", 0),
    "plain3": (12, "finished", 0),
    "n4": (12, "finished", 0),
    "n16": (12, "finished", 0),
    "determ": (12, "finished", 0),
    "determ2": (12, "finished", 0),
    "topp2": (12, "finished", 0),
    "filter": (8, "time-limit", 124),
    "kill_noft": (3, "time-limit", 124),
    "smoke": (0, "failed", 1),
    "topp": (0, "failed", 1),
}


def unpacked(path: Path) -> bytes:
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


@pytest.fixture(scope="module")
def raw():
    """The uncompressed stored logs, read once."""
    return {name: unpacked(LAB / name / "run.log.xz") for name in RUNS}


@pytest.fixture(scope="module")
def built(raw):
    return {name: build(io.BytesIO(data)) for name, data in raw.items()}


@pytest.mark.parametrize("name", RUNS)
def test_a_stored_run_is_one_run_with_its_steps_and_end(built, name):
    (run,) = built[name]["runs"]
    steps, how, status = RUNS[name]
    assert run["steps"]["index"] == list(range(steps))
    assert (run["ended"]["how"], run["ended"]["status"]) == (how, status)
    assert run["markers"]["run"] == name


@pytest.mark.parametrize("name", RUNS)
def test_metric_values_are_those_of_a_plain_text_search(raw, built, name):
    """Every number of every printed dict, found by a pattern, is in its column."""
    (run,) = built[name]["runs"]
    tables = {"step": run["steps"], "rollout": run["rollouts"], "perf": run["rollouts"]}
    seen = 0
    for kind, n, body in re.findall(rb" - (step|rollout|perf) (\d+): \{(.*)\}\n", raw[name]):
        table = tables[kind.decode()]
        row = table["index"].index(int(n))
        for key, value in re.findall(rb"'([^']+)': ([-\d.e+]+)", body):
            stored = table["columns"][key.decode()][row]
            assert repr(stored) == repr(type(stored)(value))
            seen += 1
    columns = [*run["steps"]["columns"].items(), *run["rollouts"]["columns"].items()]
    cells = [v for key, column in columns if not key.startswith("time/") for v in column]
    assert seen == sum(v is not None for v in cells)


@pytest.mark.parametrize("name", RUNS)
def test_retries_are_those_that_a_text_search_counts(raw, built, name):
    (run,) = built[name]["runs"]
    retries = run["retries"]
    first_halves = re.findall(rb"Error: Server error '(\d+)", raw[name])
    assert retries["total"] == len(first_halves)
    assert sum(count * seconds for count, seconds in retries["per_second"]["runs"]) == len(
        first_halves
    )
    attempts = [int(a) for a in re.findall(rb"retrying\.\.\. \(attempt (\d+)/60", raw[name])]
    assert retries["max_attempt"] == max(attempts, default=0)


def test_the_killed_engine_gave_10082_retries_of_one_kind(built):
    (run,) = built["kill_noft"]["runs"]
    assert run["retries"]["by_status"] == {"503": 10082}
    assert run["retries"]["by_code"] == {"no_available_workers": 10082}
    assert run["errors"][0]["kind"] == "engine-died"


def test_medians_are_those_of_the_columns(built):
    (run,) = built["plain_s1234"]["runs"]
    for name, column in {**run["rollouts"]["columns"], **run["steps"]["columns"]}.items():
        values = [v for v in column if v is not None]
        if name.startswith("time/") or name == "train/step":
            assert name not in run["medians"]
        else:
            assert run["medians"][name]["all"] == statistics.median(values)
            assert run["medians"][name]["n_all"] == len(values)


@pytest.mark.parametrize("name", RUNS)
def test_the_same_log_gives_the_same_bytes_however_it_is_cut(raw, name):
    class Pieces(io.BytesIO):
        def read(self, size=-1):
            return super().read(977)

    assert to_bytes(build(io.BytesIO(raw[name]))) == to_bytes(build(Pieces(raw[name])))


@pytest.mark.parametrize("path", sorted(CASES.glob("*.log*")), ids=lambda p: p.name)
def test_every_case_gives_valid_json_and_at_least_one_run(path):
    data = unpacked(path)
    made = build(io.BytesIO(data))
    assert json.loads(to_bytes(made))["source"]["bytes"] == len(data)
    assert made["source"]["lines"] == data.count(b"\n") + (not data.endswith(b"\n"))
    runs = made["runs"]
    assert len(runs) == (2 if path.name.startswith("two-runs") else 1)
    steps = len(set(re.findall(rb" - step (\d+): \{[^\n]*\}\n", data)))
    assert len(runs[0]["steps"]["index"]) == steps


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        ("ray-memory-kill-new.log", "ray-memory-kill"),
        ("ray-memory-kill-task.log", "ray-memory-kill"),
        ("ray-memory-kill-wrapped.log", "ray-memory-kill"),
        ("cuda-graph-capture-oom.log", "cuda-oom"),
        ("cuda-graph-capture-not-oom.log", "capture-failed"),
        ("reward-module-missing.log", "task-reward-import"),
        ("reward-not-awaitable.log", "task-reward-await"),
        ("reward-raises-once.log", "task-other"),
        ("fa3-on-blackwell.log.xz", "kernel-missing"),
        ("engine-process-killed.log.xz", "engine-died"),
        ("error-words-in-arguments.log", None),
        ("loss-zero-is-healthy.log", None),
    ],
)
def test_the_first_error_of_a_case_is_its_root_cause(case, kind):
    path = CASES / case
    data = unpacked(path)
    errors = build(io.BytesIO(data))["runs"][0]["errors"]
    assert (errors[0]["kind"] if errors else None) == kind


def test_two_runs_never_mix():
    made = summary((CASES / "two-runs-in-one-file.log").read_bytes())
    first, second = made["runs"]
    assert first["steps"]["index"] == [0, 1, 2, 3]
    assert second["steps"]["index"] == [0, 1, 2]
    assert second["started_by"] == "number-down"
    assert second["startup"]["weights_loaded"]["time"] == "2026-10-20T09:33:20.000Z"
    assert first["ended"]["how"] == "cut"


def test_an_engine_that_starts_again_inside_a_run_is_no_second_run():
    load = "(E pid=1) [2026-11-29 00:00:50] Load weight end. elapsed=1 s, type=X, avail mem=9 GB"
    made = summary(
        text(rollout(10, 0), step(20, 0), load, retry(55, 1), rollout(60, 1), step(70, 1))
    )
    (run,) = made["runs"]
    assert run["steps"]["index"] == [0, 1]
    assert run["retries"]["total"] == 1


def test_retries_per_second_are_run_length_coded():
    log = text(*[retry(s + i / 10, 1) for s in (10, 11, 14) for i in range(3)], retry(15, 2))
    assert summary(log)["runs"][0]["retries"]["per_second"] == {
        "start": "2026-11-29T00:00:10.000Z",
        "runs": [[3, 2], [0, 2], [3, 1], [1, 1]],
    }


def test_a_repeated_retry_counts_k_times_in_its_second_too():
    first, second = retry(10, 1)
    got = summary(text(first, second + " [repeated 4x across cluster]"))["runs"][0]["retries"]
    assert (got["total"], got["by_status"], got["per_second"]["runs"]) == (4, {"503": 4}, [[4, 1]])


def test_a_step_belongs_to_the_newest_rollout_line():
    log = text(rollout(10, 0), step(20, 0), step(21, 1), rollout(30, 1), step(40, 2), step(41, 3))
    assert summary(log)["runs"][0]["steps"]["rollout"] == [0, 0, 1, 1]


def test_missing_values_are_null_and_columns_as_long_as_the_index():
    log = text(
        sourced(1, "step 0: {'a': 1.5}"), sourced(2, "step 1: {'b': nan}"), sourced(3, "step 2: {}")
    )
    columns = json.loads(to_bytes(summary(log)))["runs"][0]["steps"]["columns"]
    assert columns["a"] == [1.5, None, None]
    assert columns["b"] == [None, "nan", None]


def test_the_offset_makes_times_utc():
    log = text(step(43200, 0))
    assert summary(log, utc_offset="+02:00")["runs"][0]["first_time"] == "2026-11-29T10:00:00.000Z"
    assert summary(log, utc_offset="-01:30")["runs"][0]["first_time"] == "2026-11-29T13:30:00.000Z"


# -- differences ---------------------------------------------------------------------------------


def test_differences_name_run_row_column_and_both_values():
    made = json.loads(
        to_bytes(summary(text(rollout(10, 5), step(20, 5), rollout(30, 6), step(40, 6))))
    )
    other = json.loads(json.dumps(made))
    other["runs"][0]["steps"]["columns"]["train/grad_norm"][1] = 0.75
    other["runs"][0]["medians"]["train/grad_norm"]["all"] = 0.625
    other["runs"][0]["timing"]["step_clean"][0] = False
    assert diff_summaries(made, other) == [
        "run 1, step 6, column train/grad_norm: stored 0.5, computed 0.75",
        "run 1, rollout 5, column timing/step_clean: stored true, computed false",
        "run 1, median all, column train/grad_norm: stored 0.5, computed 0.625",
    ]
    assert diff_summaries(made, made) == []


def test_a_changed_type_is_a_difference():
    made = summary(text(sourced(1, "step 0: {'a': 1}")))
    other = json.loads(to_bytes(made))
    other["runs"][0]["steps"]["columns"]["a"] = [1.0]
    assert diff_summaries(made, other) == ["run 1, step 0, column a: stored 1, computed 1.0"]


def test_any_changed_digit_of_a_metric_changes_the_bytes(raw):
    data = raw["n4"]
    before = to_bytes(build(io.BytesIO(data)))
    for m in list(re.finditer(rb" - step \d+: \{[^\n]*?(\d)[,}]", data))[::4]:
        digit = b"%d" % ((int(m[1]) + 1) % 10)
        changed = data[: m.start(1)] + digit + data[m.end(1) :]
        assert to_bytes(build(io.BytesIO(changed))) != before


# -- the verb ------------------------------------------------------------------------------------


def verb(*args: object) -> int:
    return kit.main(["summarize", *map(str, args)])


def test_the_table_on_standard_output_shows_steps_and_end(tmp_path, capsys):
    log = tmp_path / "a.log"
    log.write_bytes(
        text("# run tiny", rollout(100, 0), step(120, 0), "# end 2026-11-29T00:02:05Z rc=0")
    )
    assert verb(log) == 0
    out = capsys.readouterr().out
    assert "run 1: tiny" in out
    assert "1 steps, steps 0 to 0" in out
    assert "ended: finished, status 0" in out


def test_output_is_written_whole_and_the_same_as_json(tmp_path, capsysbinary):
    log, out = tmp_path / "a.log", tmp_path / "s.json"
    log.write_bytes(text(rollout(100, 0), step(120, 0)))
    assert verb(log, "-o", out) == 0
    assert verb(log, "--json") == 0
    assert out.read_bytes() == capsysbinary.readouterr().out == to_bytes(summary(log.read_bytes()))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.log", "s.json"]


@pytest.mark.parametrize("name", ["a.log", "a.log.gz", "a.log.xz", "misnamed.txt"])
def test_compression_is_told_by_content(tmp_path, name):
    import gzip

    data = text(step(120, 0))
    pack = {"a.log": bytes, "a.log.gz": gzip.compress}.get(name, lzma.compress)
    (tmp_path / name).write_bytes(pack(data))
    assert verb(tmp_path / name, "-o", tmp_path / "s.json") == 0
    assert (tmp_path / "s.json").read_bytes() == to_bytes(summary(data))


def test_standard_input(monkeypatch, tmp_path):
    data = text(step(120, 0))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert verb("-", "-o", tmp_path / "s.json") == 0
    assert (tmp_path / "s.json").read_bytes() == to_bytes(summary(data))


@pytest.fixture
def folder(tmp_path):
    """A run folder with a log and a heat-guard log."""
    (tmp_path / "run.log.xz").write_bytes(lzma.compress(text(rollout(100, 0), step(120, 0))))
    (tmp_path / "heat-guard.log").write_text(
        "2026-11-29T00:01:38.000Z pause container=c temp_c=84 reason=hot\n"
    )
    return tmp_path


def test_a_run_folder_is_summarized_with_its_pauses_and_left_alone_when_equal(folder):
    assert verb(folder) == 0
    made = folder / "summary.json"
    assert json.loads(made.read_text())["runs"][0]["timing"]["rollout_clean"] == [False]
    before = made.stat()
    assert verb(folder) == 0
    assert made.stat().st_mtime_ns == before.st_mtime_ns
    assert made.stat().st_ino == before.st_ino


def test_check_compares_and_writes_nothing(folder, capsys):
    assert verb("--check", folder) == 1
    assert "no summary.json" in capsys.readouterr().out
    assert verb(folder) == 0
    assert verb("--check", folder) == 0
    made = folder / "summary.json"
    made.write_text(
        made.read_text().replace('"perf/step_time": [30.0]', '"perf/step_time": [30.5]')
    )
    changed = made.read_bytes()
    capsys.readouterr()
    assert verb("--check", folder) == 1
    assert (
        "run 1, rollout 0, column perf/step_time: stored 30.5, computed 30.0"
        in capsys.readouterr().out
    )
    assert made.read_bytes() == changed


@pytest.mark.parametrize(
    ("content", "args", "code", "words"),
    [
        (b"", [], 3, "no line of a Miles run"),
        (b"hello\nworld\n", [], 3, "no line of a Miles run"),
        (b"\xfd7zXZ\x00broken", [], 2, "cannot read"),
        (b"\x1f\x8bbroken", [], 2, "cannot read"),
        (b"x\n", ["--utc-offset", "5"], 2, "not an offset"),
        (b"x\n", ["--utc-offset", "+99:00"], 2, "not an offset"),
        (b"x\n", ["--check"], 2, "--check takes run folders"),
        (b"x\n", ["--heat-guard", "/nonexistent/guard"], 2, "/nonexistent/guard"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(tmp_path, capsys, content, args, code, words):
    log, out = tmp_path / "a.log", tmp_path / "s.json"
    log.write_bytes(content)
    assert verb(log, *args, *([] if "--check" in args else ["-o", out])) == code
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["a.log"]


def test_a_missing_log_is_named(tmp_path, capsys):
    assert verb(tmp_path / "none.log") == 2
    assert "none.log: cannot open: No such file" in capsys.readouterr().err


def test_a_bad_heat_guard_line_is_named_with_its_file(tmp_path, capsys):
    (tmp_path / "a.log").write_bytes(text(step(1, 0)))
    (tmp_path / "guard.log").write_text("nonsense\n#\n")
    assert verb(tmp_path / "a.log", "--heat-guard", tmp_path / "guard.log") == 2
    assert "guard.log:1: not a pause or resume line" in capsys.readouterr().err


def test_help_lists_verbs_and_exit_codes(capsys):
    for argv in (["--help"], ["summarize", "--help"]):
        with pytest.raises(SystemExit) as stop:
            kit.main(argv)
        assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "summarize" in out
    assert "store" in out
    assert out.count("exit codes:") == 2


def test_the_kits_parser_knows_every_verb():
    args = kit.build_parser().parse_args(["summarize", "x.log", "-o", "y.json"])
    assert (args.verb, args.output) == ("summarize", "y.json")
    with pytest.raises(SystemExit):
        kit.build_parser().parse_args(["summarize", "x.log", "--no-such-flag"])


def test_the_documented_schema_names_every_key(built):
    """SUMMARY.md describes each key of a run and of the file."""
    page = (ROOT / "capture/gpu/SUMMARY.md").read_text()
    made = built["kill_noft"]
    for key in {*made, *made["source"], *made["runs"][0], *made["runs"][0]["retries"]}:
        assert f"`{key}`" in page, key


def test_offsets():
    assert summarize.parse_offset("Z") == 0
    assert summarize.parse_offset("-08:00") == -28800
