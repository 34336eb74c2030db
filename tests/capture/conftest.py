"""Fixtures of more than one test file of the kit."""

import os
import signal

import pytest

from tests.fakes.runlab import RunLab


@pytest.fixture(autouse=True, scope="session")
def a_closed_terminal_is_heard():
    """Programs inherit an ignored SIGHUP, and under nohup this process has one."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A lab with stand-ins for docker and nvidia-smi, also on this process's own PATH."""
    lab = RunLab(tmp_path)
    for name in list(os.environ):
        if name.startswith("MILES_"):
            monkeypatch.delenv(name)
    for name in ("PATH", "FAKE_LAB", "HOME"):
        monkeypatch.setenv(name, lab.env[name])
    return lab
