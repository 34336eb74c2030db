"""The live guard in one process, with an engine, a GPU and clocks in memory."""

from pathlib import Path

import pytest
from mileskit.heat import gpusample, heat_live
from mileskit.heat.heat_log import Journal
from mileskit.heat.heat_policy import Limits
from mileskit.host import containers


class _Engine(containers.Engine):
    """An engine in memory whose container does what it is told."""

    def __init__(self):
        super().__init__("docker")
        self.silent_pauses = 0
        self.box = containers.Container("id", "miles-plain", "", "", "running", "t0")

    def by_id(self, container_id):
        return containers.Answer("yes", self.box)

    def pause(self, container):
        if self.silent_pauses:
            self.silent_pauses -= 1
            return containers.Answer("nothing", why="docker did not answer within 10 s")
        self.box = self.box._replace(status="paused")
        return containers.Answer("yes", "")

    def unpause(self, container):
        self.box = self.box._replace(status="running")
        return containers.Answer("yes", "")


class _Gpu:
    temp_c = 90.0

    def read(self, when, timeout_s):
        sample = gpusample.Sample(when, gpu=0, temp_c=self.temp_c)
        return gpusample.Reading(when, (sample,))


class _Owner:
    path, left, damaged, pause = Path("owner.json"), None, None, None

    def record(self, pause):
        self.pause = pause


class _Bench:
    """A guard with its parts; `pass_s` moves both clocks and runs one check."""

    def __init__(self, folder, monkeypatch):
        self.wall, self.steady = 1_795_958_839.0, 1000.0
        monkeypatch.setattr(heat_live.time, "time", lambda: self.wall)
        monkeypatch.setattr(heat_live.time, "monotonic", lambda: self.steady)
        monkeypatch.setattr(heat_live.time, "sleep", lambda seconds: None)
        self.engine, self.gpu, self.owner, self.log = _Engine(), _Gpu(), _Owner(), folder / "log"
        journals = Journal(self.log, print), Journal(None, print)
        find = lambda: self.engine.by_id("id")  # noqa: E731
        self.guard = heat_live.Guard(Limits(), self.engine, find, self.gpu, *journals, self.owner)

    def pass_s(self, seconds, wall_s=None):
        self.steady += seconds
        self.wall += seconds if wall_s is None else wall_s
        self.guard.check()

    def lines(self):
        return [line for line in self.log.read_text().splitlines() if not line.startswith("#")]

    def late_effect(self):
        self.engine.box = self.engine.box._replace(status="paused")


@pytest.fixture
def bench(tmp_path, monkeypatch):
    return _Bench(tmp_path, monkeypatch)


def test_a_wall_clock_that_steps_back_changes_no_duration(bench):
    """Only the monotonic clock decides; the wall clock is for the log."""
    bench.pass_s(5)
    assert bench.engine.box.paused
    bench.gpu.temp_c = 60.0
    for passed_s, paused in ((40, True), (4, True), (1, False)):
        bench.pass_s(passed_s, wall_s=-3600)
        assert bench.engine.box.paused is paused
    assert bench.lines()[-1].endswith("reason=cool paused_s=45.0")


def test_a_request_that_lands_after_a_later_cycle_is_undone_and_logged_in_order(bench):
    bench.engine.silent_pauses = 1
    bench.pass_s(5)
    bench.pass_s(5)
    assert bench.engine.box.paused
    bench.gpu.temp_c = 60.0
    bench.pass_s(46)
    assert bench.engine.box.running
    assert bench.owner.pause is not None, "the open request must outlive the guard"
    bench.late_effect()
    bench.pass_s(5)
    bench.pass_s(46)
    assert bench.engine.box.running
    assert [line.split()[1] for line in bench.lines()] == ["pause", "resume"] * 2
    assert "reason=late" in bench.lines()[2]
    assert bench.lines() == sorted(bench.lines())


def test_a_request_that_lands_in_the_last_moment_is_undone_at_the_end(bench):
    bench.engine.silent_pauses = 1
    bench.pass_s(5)
    bench.late_effect()
    assert bench.guard.finish("SIGTERM")
    assert bench.engine.box.running
    assert bench.owner.pause is None
    assert [line.split()[1] for line in bench.lines()] == ["pause", "resume"]


def test_a_request_that_never_took_effect_is_forgotten_after_its_time(bench):
    bench.engine.silent_pauses = 1
    bench.pass_s(5)
    bench.gpu.temp_c = 60.0
    bench.pass_s(heat_live.DOUBT_S)
    assert bench.owner.pause is not None
    bench.pass_s(1)
    assert bench.owner.pause is None
    bench.late_effect()
    bench.pass_s(5)
    assert bench.engine.box.paused, "somebody else paused it"


def test_a_pause_that_cannot_be_written_down_is_not_made(bench, capsys):
    def full(pause):
        raise OSError(28, "No space left on device")

    bench.owner.record = full
    bench.pass_s(5)
    bench.pass_s(5)
    assert bench.engine.box.running
    assert capsys.readouterr().err.count("not pausing") == 1
