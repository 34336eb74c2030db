"""watchdog, replay and diagnose as commands: values, exit codes, output."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import kit
import minilog as m
import pytest
import watchdog
import watchdog_replay
from guardlog import HOUR, failing, startup, steps
from mileskit.guard.guardlimits import Limits, UsageError, limits_of
from mileskit.guard.guardlive import LiveLog
from mileskit.guard.watch import Watch
from mileskit.guard.watchsource import FileRun, Lost, State
from mileskit.log.logparse import LogParser

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests/fixtures/synthetic-cases"
KILLED = ROOT / "capture/gpu/out-h200-miles/kill_noft"
BASE = [*startup(), *steps(HOUR + 250, 5)]
DEAD = [*BASE, *failing(HOUR + 1000, HOUR + 1600)]


def log_of(folder, *lines):
    path = folder / "run.log"
    path.write_bytes(m.text(*lines))
    return str(path)


@pytest.mark.parametrize(
    "words",
    [
        ["x", "y"],
        ["x", ""],
        ["x", "-1"],
        ["x", "1.5"],
        ["x", "1", "0"],
        ["x", "1", ""],
        ["x", "1", "9" * 10],
        ["x", "1", "\u0661"],
        ["a b"],
        ["-x"],
        ["x", "--every", "0"],
        ["x", "--every", "nan"],
        ["x", "--lost-after", "0"],
        ["x", "--now", "+5"],
        ["--clock", "log"],
        ["--follow", "no-such-file"],
        ["--follow", "no-such-file", "--clock", "log"],
    ],
)
def test_a_bad_value_is_exit_2_with_one_line(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        sys.exit(watchdog.main(words))
    assert left.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1


def test_a_limit_of_zero_is_a_limit():
    args = type("Args", (), {})()
    assert limits_of(args, limit="0", checks="1").limit == 0
    with pytest.raises(UsageError, match="checks must be 1 or more, not 0"):
        limits_of(args, checks="0")


def test_following_a_dead_log_on_its_clock_stops_and_runs_the_hook(tmp_path, capfd):
    told = tmp_path / "told"
    hook = f'echo "$MILES_VERDICT line $MILES_ROOT_LINE" >{told}'
    path = log_of(tmp_path, *DEAD)
    words = ["--follow", path, "--clock", "log", "--json", "--on-stop", hook]
    assert watchdog.main(words) == 1
    found = json.loads(capfd.readouterr().out)
    assert (found["verdict"], found["stopped"]) == ("engine-dead", True)
    assert 270 < found["seconds"] <= 345
    assert told.read_text() == f"engine-dead line {found['root']['line']}\n"


def test_a_failing_hook_is_said(tmp_path, capfd):
    words = ["--follow", log_of(tmp_path, *DEAD), "--clock", "log", "--on-stop", "exit 7"]
    assert watchdog.main(words) == 1
    assert "--on-stop command ended with status 7" in capfd.readouterr().err


def test_following_a_healthy_log_on_its_clock_is_exit_0(tmp_path, capsys):
    assert watchdog.main(["--follow", log_of(tmp_path, *BASE), "--clock", "log"]) == 0
    assert "healthy" in capsys.readouterr().out


def test_nothing_inspected_is_exit_3(tmp_path, capsys):
    path = log_of(tmp_path, "hello", "world")
    assert watchdog.main(["--follow", path, "--clock", "log"]) == 3
    assert kit.main(["diagnose", path]) == 3
    assert watchdog_replay.main([path]) == 3
    assert watchdog_replay.main([path, "--full"]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 4


@pytest.mark.parametrize("data", [bytes(range(256)) * 40, b"a note", b"\0" * 5000])
def test_text_without_a_newline_is_no_line_of_a_run(tmp_path, data, capsys):
    path = tmp_path / "run.log"
    path.write_bytes(data)
    for words in (["diagnose", str(path)], ["watchdog", "--follow", str(path), "--clock", "log"]):
        assert kit.main(words) == 3
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_record_of_a_miles_logger_is_a_line_of_a_run(tmp_path, capsys):
    lines = [m.sourced(HOUR + 60 * k, "waiting", "") for k in range(20)]
    assert kit.main(["diagnose", log_of(tmp_path, *lines)]) == 1
    assert capsys.readouterr().out.startswith("no-progress")


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("closed", ["full", "pipe"])
def test_output_that_nobody_reads_changes_neither_the_exit_code_nor_the_hook(
    tmp_path, closed, buffered
):
    told = tmp_path / "told"
    words = [sys.executable, str(ROOT / "capture/gpu/kit.py"), "watchdog", "--clock", "log"]
    words += ["--follow", log_of(tmp_path, *DEAD), "--on-stop", f"echo $MILES_VERDICT >{told}"]
    with unread(closed) as out:
        done = subprocess.run(
            words, stdout=out, stderr=subprocess.PIPE, text=True, env=environment(buffered)
        )
    assert done.returncode == 1
    assert told.read_text() == "engine-dead\n"
    assert len(done.stderr.splitlines()) == 1
    assert "engine-dead" in done.stderr


@contextlib.contextmanager
def unread(how):
    """A full device, or a pipe whose reader has gone."""
    if how == "full":
        with Path("/dev/full").open("wb") as out:
            yield out
    else:
        reader, writer = os.pipe()
        os.close(reader)
        yield writer
        os.close(writer)


def environment(buffered):
    env = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    return env if buffered else {**env, "PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("verb", ["diagnose", "replay", "summarize"])
def test_a_verb_that_cannot_write_its_output_says_so_in_one_line(tmp_path, verb, buffered):
    words = [sys.executable, str(ROOT / "capture/gpu/kit.py"), verb, log_of(tmp_path, *DEAD)]
    with unread("full") as out:
        done = subprocess.run(
            words, stdout=out, stderr=subprocess.PIPE, text=True, env=environment(buffered)
        )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "No space left" in done.stderr


@pytest.mark.parametrize(
    "words", [[], ["nosuch"], ["diagnose"], ["watchdog", "--bogus"], ["replay", "x", "--checks"]]
)
def test_a_bad_command_line_of_the_kit_is_one_line(words, capsys):
    with pytest.raises(SystemExit) as left:
        kit.main(words)
    assert left.value.code == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)


@pytest.mark.parametrize(
    "option", [["--utc-offset", "+99:99"], ["--utc-offset", "+02:60"], ["--every", "0.0001"]]
)
def test_a_value_beyond_reason_is_refused(option, tmp_path, capsys):
    assert kit.main(["diagnose", log_of(tmp_path, *BASE), *option]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert option[1] in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_the_watchdog_is_told(tmp_path, number):
    words = ["--follow", log_of(tmp_path, *BASE), "--every", "0.2"]
    guard = subprocess.Popen(
        [sys.executable, str(ROOT / "capture/gpu/watchdog.py"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # whatever nohup set
    )
    first = guard.stderr.readline()
    guard.send_signal(number)
    _, err = guard.communicate(timeout=20)
    assert "a check every" in first
    assert guard.returncode == 2
    assert err.splitlines()[-1].endswith(f"ended by {number.name}: the run has no guard")


def test_a_death_in_a_line_that_nobody_ends_is_seen_live():
    """A process that dies may never end its last line."""
    died = m.engine(HOUR + 960, "Received sigquit from a child process. It usually means")
    log = LiveLog(Limits(), 0.0, 0.0)
    log.feed(m.text(*BASE), 0.0)
    log.feed(b"", 0.0)
    log.feed(died.encode(), 5.0)
    decisions = [log.check(t) for t in (10.0, 40.0, 70.0)]
    assert [(d.verdict, d.stop) for d in decisions] == [
        ("healthy", False),
        ("healthy", False),
        ("engine-dead", True),
    ]
    assert decisions[-1].root.line == len(BASE) + 1
    # What ends it later is the same line, not another death.
    again = LiveLog(Limits(), 0.0, 0.0)
    again.feed(m.text(*BASE), 0.0)
    again.feed(b"", 0.0)
    again.feed(died.encode(), 5.0)
    again.check(10.0)
    back = [*startup(HOUR + 970), *steps(HOUR + 1200, 1, start=5)]
    again.feed(b" the child failed.\n" + m.text(*back), 50.0)
    assert [again.check(t).verdict for t in (70.0, 130.0)] == ["healthy", "healthy"]


def test_looking_at_an_unfinished_line_changes_nothing():
    data = m.text(*DEAD, m.engine(HOUR + 1700, "CUDA error: out of memory"))
    plain, peeked, found = LogParser(), LogParser(), [[], []]
    for at in range(0, len(data), 997):
        found[0] += plain.feed(data[at : at + 997])
        found[1] += peeked.feed(data[at : at + 997])
        peeked.peek()
    assert found[0] == found[1]
    assert plain.close() == peeked.close()


def test_a_growing_file_is_followed_to_its_end(tmp_path):
    path = tmp_path / "run.log"
    path.write_bytes(m.text(*BASE))
    words = ["--follow", str(path), "--every", "0.3", "--window", "2"]
    guard = subprocess.Popen(
        [sys.executable, str(ROOT / "capture/gpu/watchdog.py"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(1.5)
    assert guard.poll() is None
    with path.open("ab") as log:
        log.write(m.text(*steps(HOUR + 1100, 1, start=5), "# end 2026-11-29T09:20:00Z rc=0"))
    out, err = guard.communicate(timeout=20)
    assert guard.returncode == 0, err
    assert "finished" in out


def test_a_growing_file_whose_engine_dies_is_told(tmp_path):
    path = tmp_path / "run.log"
    path.write_bytes(m.text(*BASE))
    words = ["x", "3", "4", "--follow", str(path), "--every", "0.3", "--window", "2", "--json"]
    guard = subprocess.Popen(
        [sys.executable, str(ROOT / "capture/gpu/watchdog.py"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with path.open("ab") as log:
        for _ in range(60):
            if guard.poll() is not None:
                break
            log.write(m.text(m.retry(HOUR + 1100, 1), m.retry(HOUR + 1100, 1)))
            log.flush()
            time.sleep(0.1)
    out, err = guard.communicate(timeout=20)
    assert guard.returncode == 1, err
    assert json.loads(out)["verdict"] == "engine-dead"


class Script:
    """A source whose looks are given and whose output is empty."""

    name, stoppable, over = "run", True, False

    def __init__(self, *looks, stop=(True, "stopped the run")):
        self.looks, self._stop = list(looks), stop

    def look(self):
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def read(self, timeout_s):
        time.sleep(min(timeout_s, 0.01))
        return b""

    def stop(self):
        return self._stop


def watch(source, **options):
    notes = []
    limits = Limits(every=0.02, startup_stall=0.3)
    return Watch(source, limits, note=notes.append, **options), notes


def test_docker_that_does_not_answer_is_said_and_then_lost():
    guard, notes = watch(Script(State("running"), State("silent", "no answer")), lost_after=4)
    with pytest.raises(Lost, match="no guard"):
        guard.run()
    assert sum("does not count" in note for note in notes) == 4


def test_docker_that_answers_again_is_forgiven():
    looks = [State("silent", "no answer"), State("running")] * 6
    guard, notes = watch(Script(State("running"), *looks, State("ended")), lost_after=2)
    assert guard.run().acted is False
    assert any("does not count" in note for note in notes)


def test_a_pause_holds_the_deadline_back():
    source = Script(State("running"), *[State("paused")] * 30, State("running"))
    guard, _ = watch(source)
    began = time.monotonic()
    end = guard.run()
    assert (end.decision.verdict, end.stopped) == ("no-progress", True)
    assert time.monotonic() - began >= 0.8  # thirty paused checks and the deadline itself


def test_an_error_of_the_watchdog_itself_is_exit_2(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(watchdog, "drive", lambda *a, **k: 1 / 0)
    words = ["--follow", log_of(tmp_path, *BASE), "--clock", "log"]
    assert watchdog.main(words) == 2
    assert "the run has no guard" in capsys.readouterr().err


def test_a_file_that_is_replaced_is_a_new_life(tmp_path):
    path = tmp_path / "run.log"
    path.write_bytes(b"one\n")
    with FileRun(str(path)) as source:
        assert source.look() == State("running")
        assert source.read(0) == b"one\n"
        path.write_bytes(b"")
        assert source.look() == State("running", new=True)
        other = tmp_path / "other"
        other.write_bytes(b"two\n")
        other.replace(path)
        assert source.look().new
        assert source.read(0) == b"two\n"


def test_diagnose_names_the_root_cause_above_the_cascade(capsys):
    assert kit.main(["diagnose", str(CASES / "fa3-on-blackwell.log.xz")]) == 1
    out = capsys.readouterr().out
    assert out.startswith("kernel-missing: AssertionError: FlashAttention v3")
    assert "root cause: line 2," in out
    assert "1500 x HTTP 503; deepest attempt 60 of 60" in out


def test_diagnose_judges_at_the_time_that_is_asked_for(tmp_path, capsys):
    path = log_of(tmp_path, *BASE)
    last = 9 * 3600 + 250 + 4 * 170
    later = f"2026-11-29T{(last + 900) // 3600:02d}:{(last + 900) // 60 % 60:02d}:00"
    for words, code in (([], 0), (["--now", "+900"], 1), (["--now", later], 1)):
        assert kit.main(["diagnose", path, *words]) == code
    assert kit.main(["diagnose", path, "--now", "2026-11-29T09:00:00"]) == 2
    assert kit.main(["diagnose", path, "--now", "soon"]) == 2
    assert kit.main(["diagnose", path, "--utc-offset", "2"]) == 2
    assert "before the log's last line" in capsys.readouterr().err


def test_diagnose_gives_the_same_as_json(capsys):
    assert kit.main(["diagnose", str(KILLED / "run.log.xz"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["root"]["line"], found["steps"]) == ("engine-dead", 1148, 3)
    assert found["failed_requests"]["total"] == 10082


def test_diagnose_takes_the_pauses_of_the_heat_guard(tmp_path, capsys):
    path = log_of(tmp_path, *BASE)
    pauses = tmp_path / "heat-guard.log"
    pauses.write_text("2026-11-29T09:16:00.000Z pause container=x temp_c=84 reason=hot\n")
    assert kit.main(["diagnose", path, "--now", "+900", "--pauses", str(pauses)]) == 0
    pauses.write_text("nonsense\n")
    assert kit.main(["diagnose", path, "--pauses", str(pauses)]) == 2
    assert "heat-guard.log:1:" in capsys.readouterr().err


def test_the_replay_prints_the_table_of_the_manual(capsys):
    assert watchdog_replay.main([str(CASES / "bursts-45-s-apart.log.xz")]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:5] for row in rows] == [
        ["6", "16", "of", "30", "6"],
        ["8", "0", "of", "30", "6"],
        ["10", "0", "of", "30", "6"],
    ]
    # The reference manual printed these seconds for its dead engine.
    assert [row[5:8] for row in rows] == [
        ["153", "to", "182"],
        ["213", "to", "242"],
        ["273", "to", "302"],
    ]


def test_a_log_its_summary_and_its_seconds_replay_alike(tmp_path, capsys):
    summary = json.loads((KILLED / "summary.json").read_text())
    told = summary["runs"][0]["retries"]["per_second"]
    counts = [count for count, length in told["runs"] for _ in range(length)]
    file = tmp_path / "seconds.txt"
    file.write_text("# second count\n" + "".join(f"{k} {n}\n" for k, n in enumerate(counts)))
    found = []
    for path in (KILLED / "run.log.xz", KILLED / "summary.json", file):
        watchdog_replay.main([str(path), "--json"])
        found.append(json.loads(capsys.readouterr().out))
    assert {one["failed"] for one in found} == {10082}
    assert [row["longest"] for row in found[0]["rows"]] == [9, 9, 9]
    assert all(one["rows"] == found[1]["rows"] for one in found[1:])


@pytest.mark.parametrize("line", ["12 x", "11 5", "1 2 3", "2026-13-01 00:00:00 4"])
def test_a_bad_line_of_a_per_second_file_is_named(tmp_path, capsys, line):
    path = tmp_path / "seconds.txt"
    path.write_text(f"# comment\n11 4\n{line}\n")
    assert watchdog_replay.main([str(path)]) == 2
    assert f"{path}:3: " in capsys.readouterr().err


def test_the_full_replay_tells_offsets_and_seconds(capsys):
    assert watchdog_replay.main([str(KILLED / "run.log.xz"), "--full"]) == 1
    out = capsys.readouterr().out
    assert "30 offsets: engine-dead at 30" in out
    assert "stopped at 30 of 30 offsets, 60 to 89 s after its first sign" in out


def test_the_kit_knows_the_three_verbs():
    for verb in ("watchdog", "replay", "diagnose"):
        done = subprocess.run(
            [sys.executable, kit.__file__, verb, "--help"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": "100"},
        )
        assert all(f"\n  {code}  " in done.stdout for code in "0123")
