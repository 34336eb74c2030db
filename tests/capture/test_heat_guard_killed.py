"""Kill the guard with SIGKILL at every point of its pause cycle: the next start resumes the run."""

import signal

import pytest

from tests.fakes.lab import HERE, FakeLab, finish, row, until

pytestmark = pytest.mark.slow


@pytest.fixture
def lab(tmp_path):
    lab = FakeLab(tmp_path)
    lab.container("miles-plain")
    lab.gpu("follow")
    yield lab
    lab.close()


def assert_next_start_resumes(lab, point):
    """Start again on a cool GPU: the run goes on and the log closes every pause."""
    lab.heal()
    lab.gpu(row(60))
    (lab.folder / "smi-calls").unlink(missing_ok=True)
    repaired = lab.run("--repair")
    assert repaired.returncode in (0, 1), (point, repaired.stderr)
    assert lab.status("miles-plain") == "running", (point, repaired.stderr)
    kinds = [kind for kind, _ in lab.kinds()]
    assert kinds == ["pause", "resume"] * (len(kinds) // 2), (point, lab.kinds())
    assert not lab.owner.exists(), point
    return repaired


@pytest.mark.parametrize("when", ["kill-before", "kill-then-act", "kill-after"])
@pytest.mark.parametrize("call", ["pause.1", "inspect.3", "unpause.1", "pause.2"])
def test_a_guard_killed_around_a_docker_call_is_repaired(lab, call, when):
    lab.fault(call, when)
    assert finish(lab.start()).returncode == -signal.SIGKILL
    assert_next_start_resumes(lab, f"{when} {call}")
    if call == "pause.1" and when != "kill-before":
        # Paused, but killed before the log had it: the repair writes both lines.
        assert lab.kinds() == [("pause", "hot"), ("resume", "repair")]


@pytest.mark.parametrize("reading", range(3, 5))
def test_a_guard_killed_while_it_reads_the_gpu_is_repaired(lab, reading):
    lab.gpu(*[row(85)] * (reading - 1), "kill")
    assert finish(lab.start(min_pause_s=5, max_pause_s=9)).returncode == -signal.SIGKILL
    assert lab.status("miles-plain") == "paused"
    assert assert_next_start_resumes(lab, reading).returncode == 1
    assert lab.kinds() == [("pause", "hot"), ("resume", "repair")]


def test_a_guard_killed_before_any_of_its_steps_is_repaired(tmp_path):
    """Every program start and file change of one whole cycle, found by an audit hook."""
    point, survived = 0, False
    while not survived:
        point += 1
        (tmp_path / str(point)).mkdir()
        lab = FakeLab(tmp_path / str(point))
        lab.container("miles-plain")
        lab.gpu("follow")
        lab.env |= {"PYTHONPATH": str(HERE / "killer"), "KILL_AT": str(point)}
        guard = lab.start()
        ended = until(
            lambda g=guard, one=lab: g.poll() is not None or len(one.kinds()) >= 3,
            f"point {point}: a kill or a whole cycle",
        )
        survived = ended and guard.poll() is None
        if survived:
            guard.kill()
        assert finish(guard).returncode == -signal.SIGKILL
        del lab.env["KILL_AT"]
        assert_next_start_resumes(lab, f"step {point}")
    assert point >= 16, "the hook saw too few steps to cover a pause cycle"


def test_a_repair_that_is_killed_is_repaired_too(lab):
    lab.fault("pause.1", "kill-after")
    finish(lab.start())
    for fault in ("kill-before", "kill-after"):
        lab.heal()
        lab.fault("unpause", fault)
        assert finish(lab.start("--repair")).returncode == -signal.SIGKILL
    assert_next_start_resumes(lab, "killed repair")


def test_an_ordinary_start_repairs_and_then_guards(lab):
    lab.fault("unpause.1", "kill-before")
    finish(lab.start())
    assert lab.status("miles-plain") == "paused"
    guard = lab.start()
    until(lambda: lab.kinds().count(("resume", "cool")) >= 1, "a pause cycle after the repair")
    guard.terminate()
    assert finish(guard).returncode == 1
    assert lab.kinds()[:2] == [("pause", "hot"), ("resume", "repair")]
    assert lab.status("miles-plain") == "running"


def test_a_repair_whose_engine_is_silent_keeps_the_record_for_the_next_start(lab):
    lab.fault("pause.1", "kill-after")
    finish(lab.start())
    lab.fault("inspect", "gone")
    refused = lab.run("--repair")
    assert refused.returncode == 2
    assert "docker unpause miles-plain" in refused.stderr
    assert lab.owner.exists()
    assert_next_start_resumes(lab, "silent engine")


def test_a_repair_leaves_a_restarted_container_that_somebody_paused_alone(lab):
    lab.fault("pause.1", "kill-after")
    finish(lab.start())
    lab.container("miles-plain", started="t1")
    (lab.folder / "containers" / "id-of-miles-plain" / "status").write_text("paused\n")
    lab.heal()
    assert lab.run("--repair").returncode == 0
    assert lab.status("miles-plain") == "paused"
    assert not lab.calls("unpause")


def test_a_pause_request_of_a_killed_guard_that_lands_late_is_found(lab):
    """The dead guard's client freezes the run after the next guard has looked."""
    lab.fault("pause.1", "kill-before")
    finish(lab.start())
    lab.gpu(row(60))
    guard = lab.start()
    until(lambda: len(lab.calls("inspect")) > 6, "a look at the doubtful container")
    (lab.folder / "containers" / "id-of-miles-plain" / "status").write_text("paused\n")
    until(lambda: lab.status("miles-plain") == "running", "the late pause undone")
    guard.terminate()
    finish(guard)
    assert lab.kinds() == [("pause", "hot"), ("resume", "cool")]
