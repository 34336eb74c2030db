"""The verb `queue`: order, exit codes between runs, partial runs, resuming, the stop file."""

import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from mileskit.common import tomlio
from mileskit.host import runlive, runqueue, runspec

from tests.fakes.lab import until
from tests.fakes.runlab import QUICK, RunLab

pytestmark = pytest.mark.slow

TWO = """\
[[run]]
name = "one"
limit_minutes = 5
[[run]]
name = "two"
settings = { MILES_SEED = 7, MILES_NUM_ROLLOUT = 3 }
extra_args = "--lr 1e-5"
limit_minutes = 5
note = "another seed"
"""


@pytest.fixture
def queue(lab):
    """queue(text, ...): work through a queue file in this process; the exit code."""
    path = lab.folder / "queue.toml"

    def work(text: str = TWO, asked=lambda: "", again=(), checks=0) -> int:
        path.write_text(text)
        args = SimpleNamespace(
            **{"file": str(path), "lab": str(lab.lab), "cache": str(lab.folder / "cache")},
            **{"image": runspec.IMAGE, "engine": "docker", "gpus": "all", "env_file": []},
            **{"limit": 100, "checks": checks, "heat_guard": False, "on_stop": ""},
            again=list(again),
        )
        specs = runqueue.read(args, {})
        return runqueue.work(specs, lab.lab / "queue.done", list(again), asked, QUICK)

    return work


def started(lab: RunLab) -> list[str]:
    """Names of the runs that were started, in order."""
    calls = [call.split() for call in lab.calls("run") if "--ipc=host" in call]
    return [call[call.index("--name") + 1].removeprefix("miles-") for call in calls]


def ended(lab: RunLab, name: str) -> dict:
    return tomlio.load(lab.runs / f"{name}.run.toml")["ended"]


def watchdog_codes(monkeypatch, **codes: int) -> None:
    """A watchdog that stops the run and ends with the code of its name (default 0)."""
    script = (
        "import subprocess,sys;name,code=sys.argv[1:];"
        "code != '0' and subprocess.run(['docker','stop','id-of-miles-'+name]);sys.exit(int(code))"
    )

    def words(spec):
        return [sys.executable, "-c", script, spec.name, str(codes.get(spec.name, 0))]

    monkeypatch.setattr(runspec, "watchdog_words", words)


def test_the_runs_go_in_turn_and_the_stop_file_comes_last(lab, queue):
    assert queue() == 0
    assert started(lab) == ["one", "two"]
    assert (lab.lab / "queue.done").exists()
    draft = tomlio.load(lab.runs / "two.run.toml")["run"]
    assert (draft["seed"], draft["num_rollout"], draft["note"]) == (7, 3, "another seed")
    assert "--lr 1e-05" in draft["changed"]


def test_a_finished_run_is_not_run_again(lab, queue, capsys):
    queue()
    before = {path.name: path.read_bytes() for path in lab.runs.glob("*.*")}
    assert queue() == 0
    assert started(lab) == ["one", "two"]
    assert {path.name: path.read_bytes() for path in lab.runs.glob("*.*")} == before
    assert "one: finished earlier, not run again" in capsys.readouterr().err


def test_after_a_run_that_the_watchdog_stopped_the_next_one_starts(lab, queue, monkeypatch):
    lab.set("hang")
    watchdog_codes(monkeypatch, one=1, two=1)
    assert queue(checks=10) == 1
    assert started(lab) == ["one", "two"]
    assert ended(lab, "one")["by"] == "watchdog"
    assert queue(checks=10) == 1
    assert started(lab) == ["one", "two"]


def test_lost_sight_stops_the_queue(lab, queue, monkeypatch):
    lab.set("hang")
    script = "import sys;sys.exit(2)"
    monkeypatch.setattr(runspec, "watchdog_words", lambda spec: [sys.executable, "-c", script])
    text = TWO.replace("limit_minutes = 5", "limit_minutes = 0.03", 1)
    assert queue(text, checks=10) == 2
    assert started(lab) == ["one"]


def test_the_stop_file_waits_while_a_container_may_still_run(lab, queue):
    lab.set("hang")
    lab.fault("stop", "gone")
    text = TWO.replace("limit_minutes = 5", "limit_minutes = 0.01", 1)

    def end_after_the_first_try() -> None:
        until(lambda: lab.calls("stop"), "Docker was asked to stop it")
        lab.unset("hang")

    helper = threading.Thread(target=end_after_the_first_try)
    helper.start()
    assert queue(text) == 2
    helper.join()
    assert started(lab) == ["one"]
    assert not (lab.lab / "queue.done").exists()


def test_a_run_that_its_limit_stopped_is_marked_partial_and_is_over(lab, queue):
    lab.set("hang")
    text = TWO.replace("limit_minutes = 5", "limit_minutes = 0.01")
    assert queue(text) == 1
    assert started(lab) == ["one", "two"]
    assert (ended(lab, "one")["how"], ended(lab, "one")["partial"]) == ("time-limit", True)
    assert queue(text) == 1
    assert started(lab) == ["one", "two"]


def test_an_interrupted_run_is_set_aside_and_run_anew(lab, queue):
    lab.runs.mkdir(parents=True)
    (lab.runs / "one.log").write_text("half a log\n")
    (lab.runs / "one").mkdir()
    assert queue() == 0
    assert (lab.runs / "one.aside-1.log").read_text() == "half a log\n"
    assert (lab.runs / "one.aside-1.files").is_dir()
    assert ended(lab, "one")["how"] == "finished"


def test_a_run_that_the_user_stopped_is_run_anew(lab, queue):
    lab.set("hang")
    assert queue(asked=lambda: "SIGINT" if (lab.runs / "one.log").exists() else "") == 1
    assert started(lab) == ["one"]
    assert ended(lab, "one")["by"] == "user"
    assert (lab.lab / "queue.done").exists()
    lab.unset("hang")
    assert queue() == 0
    assert started(lab) == ["one", "one", "two"]
    assert (lab.runs / "one.aside-1.log").exists()


def test_a_container_that_still_runs_is_neither_stopped_nor_started_twice(lab, queue):
    lab.runs.mkdir(parents=True)
    (lab.runs / "one.log").write_text("of a queue that was killed\n")
    lab.container("miles-one")
    assert queue() == 2
    assert started(lab) == []
    assert lab.status("miles-one") == "running"
    assert (lab.runs / "one.log").exists()


def test_again_runs_a_run_that_is_over(lab, queue):
    queue()
    assert queue(again=["two"]) == 0
    assert started(lab) == ["one", "two", "two"]


def test_a_refused_setting_is_said_before_the_first_run_starts(lab, queue):
    assert queue(TWO.replace("--lr 1e-5", "--use-wandb")) == 2
    assert started(lab) == []


def test_an_old_stop_file_does_not_end_the_new_heat_guard(lab, queue):
    lab.lab.mkdir()
    (lab.lab / "queue.done").write_text("old\n")
    seen = []
    queue(asked=lambda: seen.append((lab.lab / "queue.done").exists()) or "")
    assert seen
    assert not any(seen[1:])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[run]]\nname = 'a'\n", "[[run]] 1: limit_minutes is missing"),
        ("[[run]]\nname = 'a'\nlimit_minutes = 0\n", "limit_minutes 0:"),
        ("[[run]]\nname = 'a'\nlimit_minutes = 1\nseed = 3\n", "'seed' is unknown"),
        ("[[run]]\nname = 'a b'\nlimit_minutes = 1\n", "'a b'"),
        ("[[run]]\nlimit_minutes = 1\n", "''"),
        ("[[run]]\nname = 3\nlimit_minutes = 1\n", "name = 3"),
        ("[[run]]\nname = 'a'\nlimit_minutes = 1\n" * 2, "name 'a' comes twice"),
        ("[[run]]\nname = 'a'\nlimit_minutes = 1\nsettings = { MILES_SEED = 'x' }\n", "MILES_SEED"),
        ("[[run]]\nname = 'a'\nlimit_minutes = 1\nsettings = { HF_TOKEN = 'abc' }\n", "HF_TOKEN"),
        ("[[run]]\nname = 'a'\nlimit_minutes = 1\nsettings = { A = [1] }\n", "settings.A"),
        ("lab = 'x'\n", "'lab' is unknown"),
        ("[[run]\n", "queue.toml"),
        ("run = 3\n", "[[run]]"),
    ],
)
def test_a_bad_queue_file_is_one_line_and_starts_nothing(lab, text, words):
    lab.set("queue.toml", text)
    done = lab.kit("queue", str(lab.folder / "queue.toml"))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    assert "abc" not in done.stderr
    assert not lab.calls()


def test_a_file_without_runs_is_code_3(lab):
    lab.set("queue.toml", "")
    assert lab.kit("queue", str(lab.folder / "queue.toml")).returncode == 3


def test_the_dry_run_prints_every_run_and_changes_nothing(lab):
    lab.set("queue.toml", TWO)
    done = lab.kit("queue", str(lab.folder / "queue.toml"), "--dry-run")
    assert done.returncode == 0
    assert done.stdout.count("docker run --rm --name miles-") == 2
    assert "queue.done" in done.stdout
    assert subprocess.run(["sh", "-n"], input=done.stdout, text=True).returncode == 0
    assert not lab.lab.exists()
    assert not lab.calls()


def test_two_queues_in_one_lab_refuse_each_other(lab):
    lab.set("queue.toml", TWO)
    lab.set("hang")
    words = lab.words("queue", str(lab.folder / "queue.toml"), "--checks", "0")
    first = subprocess.Popen(words, env=lab.env, stderr=subprocess.PIPE, text=True)
    until((lab.runs / "one.log").exists, "the first queue runs")
    second = subprocess.run(words, env=lab.env, capture_output=True, text=True, timeout=20)
    first.send_signal(signal.SIGTERM)
    _, err = first.communicate(timeout=30)
    assert second.returncode == 2
    assert "another queue works" in second.stderr
    assert first.returncode == 1, err
    assert started(lab) == ["one"]


def test_the_default_timing_leaves_docker_stop_more_time_than_it_takes():
    assert runlive.Timing().settle > runlive.Timing().grace
