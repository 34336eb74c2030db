"""The verb `run` against a real engine: to its end, Ctrl+C, the time limit of a paused run."""

import signal
import subprocess

import pytest
import rig
from mileskit.common import tomlio
from realruns import build_image, real_lab

from tests.fakes.lab import until
from tests.fakes.runlab import RunLab

IMAGE = "miles-101-test/miles:1"
# The launcher's place in the image: prints a log, and runs on while /root/lab/hang is there.
PYTHON = """\
#!/bin/sh
trap 'echo "# end 2026-11-29T14:00:00Z rc=143 seconds=1"; exit 143' TERM
echo "# run $MILES_RUN"
echo "# date 2026-11-29T13:27:19Z"
while [ -f /root/lab/hang ]; do sleep 0.1; done
echo "# end 2026-11-29T14:00:00Z rc=0 seconds=1"
"""


@pytest.fixture(scope="session")
def miles_image(private_daemon):
    """An image with stand-ins for python, git and SGLang's python3."""
    return build_image(private_daemon, private_daemon.folder / "miles-image", IMAGE, PYTHON)


@pytest.fixture
def real(tmp_path, daemon, miles_image):
    """A lab whose docker is the real client; nvidia-smi is a stand-in."""
    lab = real_lab(tmp_path, daemon)
    yield lab
    daemon.remove(*daemon.docker("ps", "-aq").stdout.split())


def words(lab: RunLab, *more: str) -> list[str]:
    return lab.words("run", "plain", "--image", IMAGE, "--gpus", "none", *more)


def begin(lab: RunLab, *more: str) -> subprocess.Popen:
    (lab.lab / "hang").touch()
    run = subprocess.Popen(words(lab, *more), env=lab.env, stderr=subprocess.PIPE, text=True)
    until((lab.runs / "plain.log").exists, "the run started", 30)
    until(lambda: "# date" in (lab.runs / "plain.log").read_text(), "it printed", 30)
    return run


def record(lab: RunLab) -> dict:
    return tomlio.load(lab.runs / "plain.run.toml")


def test_a_run_ends_by_itself_and_its_record_names_the_image(real, daemon):
    done = subprocess.run(words(real), env=real.env, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert (real.runs / "plain.log").read_text().endswith("rc=0 seconds=1\n")
    setup = record(real)["setup"]
    wanted = daemon.docker("image", "inspect", "--format", "{{.Id}}", IMAGE).stdout.strip()
    assert setup["image"].startswith(wanted)
    assert (setup["miles_commit"], setup["engine"]) == ("31f1ca961", "SGLang 0.5.16 of the image")
    assert record(real)["ended"]["how"] == "finished"
    assert daemon.docker("ps", "-aq").stdout == ""


def test_ctrl_c_stops_the_container_and_its_watchdog(real, daemon):
    run = begin(real)
    until((real.runs / "plain.watchdog.log").exists, "the watchdog started", 30)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=90)
    assert run.returncode == 1, err
    assert "rc=143" in (real.runs / "plain.log").read_text()
    assert record(real)["ended"]["by"] == "user"
    assert daemon.docker("ps", "-aq").stdout == ""


def test_a_run_that_the_heat_guard_has_paused_ends_at_its_limit(real, daemon):
    real.gpu("0, 85, 1980, 600.5, 70211, 100, 0x0000000000000004")
    run = begin(real, "--heat-guard", "--limit-minutes", "0.15")
    paused = "status=paused"
    until(lambda: daemon.docker("ps", "-q", "--filter", paused).stdout, "it was paused", 30)
    _, err = run.communicate(timeout=90)
    assert run.returncode == 1, err
    ended = record(real)["ended"]
    assert (ended["how"], ended["partial"]) == ("time-limit", True)
    assert "resume container=miles-plain" in (real.runs / "plain.heat-guard.log").read_text()
    assert daemon.docker("ps", "-aq").stdout == ""


def test_a_gpu_that_docker_cannot_give_leaves_nothing_behind(real, daemon):
    asked = real.lab, words(real)
    with_gpu = [word for word in asked[1] if word not in ("--gpus", "none")]
    done = subprocess.run(with_gpu, env=real.env, capture_output=True, text=True, timeout=90)
    assert done.returncode == 2
    assert "container toolkit" in done.stderr
    assert list(real.runs.iterdir()) == []
    assert daemon.docker("ps", "-aq").stdout == ""


def test_a_container_of_the_same_name_is_refused(real, daemon):
    daemon.run("while :; do sleep 0.1; done", "miles-plain", rig.IMAGE)
    done = subprocess.run(words(real), env=real.env, capture_output=True, text=True, timeout=90)
    assert done.returncode == 2
    assert "a container miles-plain exists (running)" in done.stderr
