"""The heat guard against a real engine, with a stand-in for nvidia-smi only."""

import signal
import time

import pytest
from mileskit.host.containers import Engine

from tests.fakes.lab import finish, row, until

NAME = "miles-plain"
LONG = {"min_pause_s": 30, "max_pause_s": 60, "answer_s": 10}


@pytest.fixture
def lab(stand_in_gpu, tick):
    tick(NAME)
    yield stand_in_gpu
    stand_in_gpu.close()


@pytest.fixture
def status(daemon):
    return lambda: Engine("docker").by_name(NAME).value.status


def paused_guard(lab, status, **changed):
    lab.gpu(row(85))
    guard = lab.start(**{**LONG, **changed})
    until(lambda: lab.kinds()[-1:] == [("pause", "hot")], "the pause")
    assert status() == "paused"
    return guard


def stopped(guard):
    guard.terminate()
    return finish(guard)


@pytest.mark.parametrize("target", ["name", "image"])
def test_the_guard_pauses_a_hot_run_and_resumes_it_when_cool(lab, status, image, target):
    chosen = {"name": NAME} if target == "name" else {"name": None, "image": image}
    guard = paused_guard(lab, status, min_pause_s=0.3, **chosen)
    lab.gpu(row(60))
    until(lambda: len(lab.kinds()) == 2, "the resume")
    assert status() == "running"
    assert stopped(guard).returncode == 1
    assert lab.kinds() == [("pause", "hot"), ("resume", "cool")]


def test_a_terminated_guard_resumes_first(lab, status):
    assert stopped(paused_guard(lab, status)).returncode == 1
    assert status() == "running"


def test_a_pause_ends_at_the_longest_time_though_the_gpu_stays_hot(lab, status):
    guard = paused_guard(lab, status, min_pause_s=0.1, max_pause_s=0.5)
    until(lambda: ("resume", "max-time") in lab.kinds(), "the resume")
    stopped(guard)
    assert status() == "running"
    assert 0.5 <= float(lab.actions()[1]["paused_s"]) < 2


def test_a_guard_killed_in_a_pause_is_repaired_by_the_next_start(lab, status):
    guard = paused_guard(lab, status)
    guard.kill()
    assert finish(guard).returncode == -signal.SIGKILL
    assert status() == "paused"
    lab.gpu(row(60))
    second = lab.start(**LONG)
    until(lambda: len(lab.kinds()) == 2, "the repair")
    assert status() == "running"
    assert stopped(second).returncode == 1
    assert lab.kinds() == [("pause", "hot"), ("resume", "repair")]


@pytest.mark.parametrize("delay_steps", range(8))
def test_a_guard_killed_at_any_moment_is_repaired(lab, status, delay_steps):
    """Kill points spread over the whole cycle of pause, hold and resume."""
    lab.gpu(*[row(85), row(60)] * 50)
    guard = lab.start(**{**LONG, "min_pause_s": 0.05, "max_pause_s": 0.2})
    until(lambda: lab.samples.exists(), "the first reading")
    time.sleep(0.04 * delay_steps)
    guard.kill()
    finish(guard)
    assert lab.run("--repair", **LONG).returncode in (0, 1)
    assert status() == "running"
    kinds = [kind for kind, _ in lab.kinds()]
    assert kinds == ["pause", "resume"] * (len(kinds) // 2)


def test_a_container_restarted_in_a_pause_is_told_from_the_paused_one(lab, status, daemon):
    guard = paused_guard(lab, status, min_pause_s=0.5)
    daemon.docker("restart", "-t", "1", NAME)
    until(lambda: len(lab.kinds()) == 3, "a pause of the restarted container")
    stopped(guard)
    # The engine thaws, stops and starts it, and the guard may see any of these first.
    assert lab.kinds()[1][1] in ("restarted", "ended", "unpaused")
    assert lab.kinds()[2] == ("pause", "hot")
    assert status() == "running"


def test_a_new_container_under_the_same_name_is_guarded_again(lab, status, daemon, tick):
    guard = paused_guard(lab, status, min_pause_s=0.5)
    daemon.docker("rm", "-f", NAME)
    until(lambda: len(lab.kinds()) == 2, "the end of the pause")
    # The engine thaws the container in order to kill it, and the guard may see either.
    assert lab.kinds()[1][1] in ("gone", "ended", "unpaused")
    tick(NAME)
    until(lambda: len(lab.kinds()) == 3, "a pause of the new container")
    assert status() == "paused"
    stopped(guard)
    assert status() == "running"


def test_a_watchdog_stop_during_a_pause_ends_the_run(lab, status):
    guard = paused_guard(lab, status)
    assert Engine("docker").stop(NAME, grace_s=5).yes
    until(lambda: len(lab.kinds()) == 2, "the end of the pause")
    stopped(guard)
    assert status() == "exited"
    assert lab.kinds()[-1][1] in ("ended", "unpaused")


def test_a_daemon_that_disappears_during_a_pause_is_said_and_the_run_resumed_when_it_is_back(
    lab, status, daemon
):
    guard = paused_guard(lab, status, min_pause_s=0.1, max_pause_s=0.5, interval_s=0.2)
    daemon.freeze()
    try:
        guard.send_signal(signal.SIGTERM)
        time.sleep(1.5)
        assert guard.poll() is None, "it left the run paused"
    finally:
        daemon.thaw()
    assert finish(guard, 40).returncode == 1
    assert status() == "running"


def test_a_daemon_that_dies_during_a_pause_leaves_the_record_for_a_repair(lab, status, daemon):
    guard = paused_guard(lab, status)
    daemon.kill()
    ended = stopped(guard)
    assert ended.returncode == 2
    assert f"docker unpause {NAME}" in ended.stderr
    daemon.start()
    before = status()
    repaired = lab.run("--repair", **LONG)
    assert repaired.returncode in (0, 1), repaired.stderr
    assert before != "paused" or status() == "running"
    assert not lab.owner.exists()
