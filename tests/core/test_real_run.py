"""Whole runs of OLMo-core with the transformers engine: resume is bitwise, also after a kill."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def program(folder, part):
    return subprocess.run(
        [sys.executable, "tests/core/real_run.py", str(folder), part],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    assert program(folder, "kill").returncode == -signal.SIGKILL
    done = program(folder, "rest")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "what",
    ["weights moved", "stop and resume", "kill and resume", "records", "rewards",
     "one step a collection"],
)  # fmt: skip
def test_resume_is_bitwise(found, what):
    assert found[what] is True


def test_export_comes_at_the_horizon_only(found):
    assert found["completed"] == [True, False, True, True]
    assert found["export before the horizon"] is False


def test_records_pass_the_verifier(found):
    assert found["verified"] == 0


def test_diagnostics_and_audits_come_at_their_interval(found):
    assert found["diagnostics"] == [2, 4, 6, 8]
    assert found["repeated"] == [4, 8]
