"""The commands of the page for authors work, one after another, in a copy of the repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mileskit.evidence import runinfo
from mileskit.host import rundraft, runspec

from scripts.chapters import parse
from scripts.tree import ROOT, tracked_files
from tests.capture import acceptlab

PAGE = "manuals/miles-101/authors.md"
BY_HAND = "# by hand: "
ALONE = "2026-11-29T12:44:19Z"  # plain_s1234 began then, and no other stored run ran beside it


def blocks(text: str) -> list[tuple[int, str]]:
    """(line, commands) of every bash block of the page."""
    return [(f.line, f.content) for f in parse(PAGE, text).fences if f.language == "bash"]


def runnable(text: str) -> list[tuple[int, str]]:
    return [(line, block) for line, block in blocks(text) if not block.startswith(BY_HAND)]


def copy_of_the_repository(target: Path) -> Path:
    """What an author has after `make env`."""
    for name in tracked_files(ROOT):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)
    (target / ".venv" / "bin").mkdir(parents=True)
    python = target / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    subprocess.run(["git", "init", "-q"], cwd=target, check=True)
    return target


def leave_third_run(lab: Path) -> None:
    """What `kit run third` leaves in the lab folder: a log and a draft."""
    (lab / "runs").mkdir(parents=True)
    log = acceptlab.stored_log("plain_s1234", "third", ALONE)
    spec = runspec.Spec("third", runspec.container_env("third", [], {}), lab, lab / "cache")
    spec.file("log").write_bytes(b"\n".join(log))
    document = rundraft.draft(spec, acceptlab.facts(), ALONE)
    ended = {"how": "finished", "status": 0, "verdict": "finished"}
    rundraft.write(spec.file("run.toml"), rundraft.ended(document, ended))
    assert runinfo.parse_time(ALONE)


@pytest.mark.slow
def test_the_commands_of_the_page_work_in_their_order(tmp_path):
    """The blocks are those of the page itself, so page and test cannot part."""
    copy = copy_of_the_repository(tmp_path / "repo")
    home = tmp_path / "home"
    leave_third_run(home / "miles-lab")
    acceptlab.make_bundle(tmp_path / "reader", copy / "acceptance-reader-h200.zip")
    env = {**os.environ, "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    found = runnable((ROOT / PAGE).read_text(encoding="utf-8"))
    assert len(found) >= 12
    for line, block in found:
        done = subprocess.run(
            ["bash", "-e", "-c", block], cwd=copy, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{PAGE}:{line}\n{block}\n{done.stdout}{done.stderr}"
    assert (copy / "capture/gpu/out-mine/third/run.toml").exists()
    assert (copy / "capture/gpu/out-SECOND/third/run.log.xz").exists()


def test_only_what_cannot_run_in_a_copy_is_left_to_the_hand():
    by_hand = [block for _, block in blocks((ROOT / PAGE).read_text()) if block.startswith(BY_HAND)]
    commands = [line for block in by_hand for line in block.splitlines()[1:] if line]
    assert all(line.startswith(("make ", "git ")) for line in commands)
