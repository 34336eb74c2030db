"""Fixtures for tests against a real container engine: `daemon`, `image`, `run_container`.

These tests need root and packages, so they run only when asked for by path
(`make check-containers`), never in the plain test run.
"""

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import rig  # noqa: E402


def pytest_ignore_collect(collection_path, config):
    """Ignore this folder unless the command line names it or something in it."""
    named = (Path(str(arg).split("::")[0]).resolve() for arg in config.args)
    asked = any(path == HERE or HERE in path.parents for path in named)
    return None if asked else True


@pytest.fixture(scope="session")
def private_daemon():
    """The session's dockerd, built once; use `daemon`, which makes sure that it runs."""
    rig.install_packages()
    daemon = rig.Daemon()
    try:
        daemon.start()
        daemon.build()
        yield daemon
    finally:
        daemon.close()


@pytest.fixture
def daemon(private_daemon, monkeypatch):
    """A running private daemon; DOCKER_HOST points to it for this test's own calls too."""
    monkeypatch.setenv("DOCKER_HOST", private_daemon.env["DOCKER_HOST"])
    yield private_daemon
    if private_daemon.docker("version", check=False).returncode:
        private_daemon.start()


@pytest.fixture
def image(daemon):
    """The name of the test image: FROM scratch, busybox, its command is one shell text."""
    return rig.IMAGE


@pytest.fixture
def run_container(daemon, image):
    """run_container(command, name): start a container of the test image and return its id.

    `command` is a shell text of busybox. The containers are removed after the test.
    """
    names = []

    def run(command: str, name: str) -> str:
        names.append(name)
        return daemon.run(command, name, image)

    yield run
    if daemon.docker("version", check=False).returncode:
        daemon.start()
    daemon.remove(*names)


@pytest.fixture
def tick(run_container):
    """tick(name): a container that prints a line every tenth of a second."""
    return lambda name: run_container("n=0; while :; do n=$((n+1)); echo $n; sleep 0.1; done", name)


@pytest.fixture
def stand_in_gpu(tmp_path, daemon):
    """A lab folder with a stand-in for nvidia-smi only: docker is the real client."""
    from tests.fakes.lab import FakeLab

    lab = FakeLab(tmp_path, programs=("nvidia-smi",))
    lab.env["PATH"] = f"{lab.bin}:{os.environ['PATH']}"
    lab.env["DOCKER_HOST"] = daemon.env["DOCKER_HOST"]
    return lab
