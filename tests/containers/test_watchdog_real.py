"""The watchdog against a real container engine.

Times are scaled by 30: a check every second instead of every 30 s, over the last 2 s instead of
60 s, and more than 3 failed requests in them instead of more than 100; the test containers burst
for 2 s and are quiet for 4 s, instead of 60 s and two minutes.  The rule is the same.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mileskit.host.containers import Engine

from tests.fakes.lab import finish, until

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "capture/gpu/testcontainers"
SCALED = ["3", "10", "--every", "1", "--window", "2"]


def shell(script: str, *words: object) -> str:
    """A container's command that runs a test container's script with arguments."""
    return f"set -- {' '.join(map(str, words))}\n" + (SCRIPTS / script).read_text()


@pytest.fixture
def watch(daemon):
    """watch(name, *options): a watchdog in the background, scaled."""
    started = []

    def start(name, *options):
        words = [sys.executable, str(ROOT / "capture/gpu/watchdog.py"), name, *SCALED, *options]
        started.append(
            subprocess.Popen(
                words, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def status(name):
    return Engine("docker").by_name(name).value.status


def test_a_dead_engine_is_stopped_and_the_hook_is_told(run_container, watch, tmp_path):
    run_container(shell("dead-engine.sh"), "wd-dead")
    told = tmp_path / "told"
    began = time.monotonic()
    hook = f'echo "$MILES_RUN $MILES_VERDICT" >{told}'
    done = finish(watch("wd-dead", "--json", "--on-stop", hook), 60)
    assert done.returncode == 1, done.stderr
    # Ten bad checks a second apart, the first of them after at most two seconds.
    assert 9 <= time.monotonic() - began < 20
    found = json.loads(done.stdout)
    assert (found["verdict"], found["stopped"]) == ("engine-dead", True)
    assert found["failed_requests"]["since_progress"].keys() == {"HTTP 503"}
    assert status("wd-dead") == "exited"
    assert told.read_text() == "wd-dead engine-dead\n"


def test_a_bursting_engine_runs_to_its_end(run_container, watch):
    run_container(shell("bursting-engine.sh", 2, 4, 3), "wd-bursts")
    done = finish(watch("wd-bursts"), 60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert Engine("docker").by_name("wd-bursts").value.exit_code == 0
    assert "the run ended" in done.stdout


def test_a_dry_run_stops_nothing(run_container, watch):
    run_container(shell("dead-engine.sh"), "wd-dead")
    done = finish(watch("wd-dead", "--dry-run"), 60)
    assert (done.returncode, status("wd-dead")) == (1, "running")
    assert "would stop the run" in done.stdout


def test_no_check_counts_while_the_container_is_paused(daemon, run_container, watch):
    run_container(shell("dead-engine.sh"), "wd-dead")
    guard = watch("wd-dead")
    time.sleep(5)
    daemon.docker("pause", "wd-dead")
    time.sleep(9)  # more than the checks that are missing
    assert guard.poll() is None
    assert status("wd-dead") == "paused"
    daemon.docker("unpause", "wd-dead")
    assert finish(guard, 60).returncode == 1
    assert status("wd-dead") == "exited"


def test_a_run_restarted_under_the_same_name_is_guarded_anew(daemon, run_container, watch):
    run_container(shell("dead-engine.sh"), "wd-again")
    guard = watch("wd-again")
    time.sleep(5)
    daemon.remove("wd-again")
    run_container(shell("bursting-engine.sh", 2, 4, 2), "wd-again")
    done = finish(guard, 60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a new life of the run" in done.stderr


def test_a_container_of_a_longer_name_is_not_meant(run_container, watch):
    run_container(shell("dead-engine.sh"), "wd-dead-2")
    done = finish(watch("wd-dead"), 30)
    assert (done.returncode, status("wd-dead-2")) == (2, "running")
    assert "no container is named wd-dead" in done.stderr


def test_a_daemon_that_disappears_ends_the_guard_with_2(daemon, run_container, watch):
    run_container("while :; do sleep 0.2; done", "wd-gone")
    guard = watch("wd-gone", "--answer-s", "2")
    until(lambda: guard.poll() is None, "the start")
    time.sleep(2)
    daemon.kill()
    done = finish(guard, 60)
    assert done.returncode == 2
    assert done.stderr.count("does not count") == 3
    assert "the run has no guard" in done.stderr


def test_a_daemon_that_hangs_for_a_check_is_said_and_forgiven(daemon, run_container, watch):
    run_container(shell("bursting-engine.sh", 2, 8, 1), "wd-hang")
    guard = watch("wd-hang", "--answer-s", "2")
    time.sleep(3)
    daemon.freeze()
    time.sleep(4)
    daemon.thaw()
    done = finish(guard, 60)
    assert done.returncode == 0, done.stderr
    assert "does not count" in done.stderr
