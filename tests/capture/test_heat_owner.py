"""The owner file: who guards, across starts, crashes and two starts at once."""

import json
import os
import subprocess

import pytest
from mileskit.heat.heat_owner import Busy, Owner, Pause, lock_path, process_start

PAUSE = Pause("id", "t0", "miles-plain", "docker", 9.0, "log", "a line")


def test_a_second_owner_is_refused_before_the_first_has_written_its_pid(tmp_path):
    """Two starts at the same moment: the lock decides, whatever the file says."""
    path = tmp_path / "owner.json"
    first = Owner(path)
    first.take()
    path.unlink()
    with pytest.raises(Busy):
        Owner(path).take()
    first.release()
    Owner(path).take()


def test_what_one_owner_leaves_the_next_one_finds_and_keeps_until_it_is_repaired(tmp_path):
    path = tmp_path / "owner.json"
    first = Owner(path)
    first.take()
    first.record(PAUSE)
    first.release(keep_record=True)
    for _ in range(2):
        later = Owner(path)
        later.take()
        assert later.left == PAUSE
        later.release(keep_record=True)
    later = Owner(path)
    later.take()
    later.record(None)
    later.release()
    assert not path.exists()
    assert lock_path(path).exists()


def test_a_failed_write_keeps_the_earlier_record_and_leaves_no_part(tmp_path, monkeypatch):
    owner = Owner(tmp_path / "owner.json")
    owner.take()
    owner.record(PAUSE)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        owner.record(None)
    assert json.loads(owner.path.read_text())["pause"]["name"] == "miles-plain"
    assert not list(tmp_path.glob("*.part"))
    owner.release()


@pytest.mark.parametrize("text", ["", "[]", '{"pause": {"no": 1}}', "\xff", '{"pause": 3}'])
def test_an_unreadable_owner_file_is_moved_aside(tmp_path, text):
    path = tmp_path / "owner.json"
    path.write_text(text, encoding="latin-1")
    owner = Owner(path)
    owner.take()
    assert owner.left is None
    assert owner.damaged.read_text(encoding="latin-1") == text
    owner.release()


def test_a_process_is_known_by_its_start_and_a_dead_or_zombie_one_has_none():
    assert process_start(os.getpid()) == process_start(os.getpid()) is not None
    child = subprocess.Popen(["/bin/sh", "-c", "exit 0"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_start(child.pid) is None, "a zombie does not guard"
    child.wait()
    assert process_start(child.pid) is None
