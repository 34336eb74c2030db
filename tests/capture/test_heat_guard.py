"""The heat guard as a program, against stand-ins for docker and nvidia-smi."""

import json
import os
import re
import signal

import pytest
from mileskit.heat.heat_owner import process_start

from tests.fakes.lab import FakeLab, finish, row, until

pytestmark = pytest.mark.slow

ACTION = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z "
    r"(pause container=miles-plain temp_c=85 reason=hot"
    r"|resume container=miles-plain temp_c=60 reason=cool paused_s=\d+\.\d)"
)
LONG = {"min_pause_s": 20, "max_pause_s": 40}


@pytest.fixture
def lab(tmp_path):
    lab = FakeLab(tmp_path)
    lab.container("miles-plain")
    lab.gpu("follow")
    yield lab
    lab.close()


def paused_guard(lab, **changed):
    """A guard that has just paused the run and would keep it so for long."""
    guard = lab.start(**{**LONG, **changed})
    until(lambda: lab.kinds() == [("pause", "hot")], "the pause")
    assert lab.status("miles-plain") == "paused"
    return guard


def stopped(guard):
    guard.terminate()
    return finish(guard)


def test_a_hot_run_is_paused_and_resumed_when_cool_with_exact_log_lines(lab):
    guard = lab.start()
    until(lambda: len(lab.kinds()) >= 4, "two pause cycles")
    ended = stopped(guard)
    assert ended.returncode == 1
    lines = [line for line in lab.log.read_text().splitlines() if not line.startswith("#")]
    assert all(ACTION.fullmatch(line) for line in lines[:4]), lines
    assert lab.status("miles-plain") == "running"


def test_a_cool_run_is_never_touched_and_the_guard_ends_with_0(lab):
    lab.gpu(row(60))
    guard = lab.start()
    until(lambda: lab.samples.exists() and len(lab.stored()) > 5, "some readings")
    assert stopped(guard).returncode == 0
    assert [call.split()[0] for call in lab.calls()] == ["ps", "inspect"]  # at the start
    assert lab.kinds() == []


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_a_signal_during_a_pause_resumes_the_run_first(lab, name):
    guard = paused_guard(lab)
    guard.send_signal(getattr(signal, name))
    assert finish(guard).returncode == 1
    assert lab.status("miles-plain") == "running"
    assert lab.kinds()[-1] == ("resume", name)
    assert not lab.owner.exists()


def test_the_stop_file_resumes_the_run_first(lab):
    guard = paused_guard(lab)
    lab.stop_file.touch()
    assert finish(guard).returncode == 1
    assert lab.status("miles-plain") == "running"
    assert lab.kinds()[-1] == ("resume", "stop-file")


def test_a_signal_while_docker_is_asked_to_pause_still_ends_resumed(lab):
    lab.fault("pause.1", "act-then-hang")
    guard = lab.start(answer_s=1)
    until(lambda: lab.calls("pause"), "the request")
    guard.send_signal(signal.SIGINT)
    finish(guard)
    assert lab.status("miles-plain") == "running"
    assert lab.kinds() == [("pause", "hot"), ("resume", "SIGINT")]


def test_ctrl_c_on_the_terminal_does_not_cut_a_request_to_docker(lab):
    """A terminal sends SIGINT to every program of its foreground group."""
    lab.fault("pause.1", "slow")
    guard = lab.start()
    until(lambda: lab.calls("pause"), "the request")
    os.killpg(guard.pid, signal.SIGINT)
    finish(guard)
    assert lab.kinds() == [("pause", "hot"), ("resume", "SIGINT")]
    assert "0 calls of docker without an answer" in lab.comments()
    assert lab.status("miles-plain") == "running"


def test_a_stop_file_from_before_the_start_inspects_nothing(lab):
    lab.stop_file.touch()
    ended = lab.run()
    assert ended.returncode == 3
    assert str(lab.stop_file) in ended.stderr


def test_two_guards_refuse_each_other(lab):
    first = paused_guard(lab)
    second = lab.run()
    assert second.returncode == 2
    assert second.stderr.count("\n") == 1
    assert f"pid {first.pid}" in second.stderr
    assert lab.status("miles-plain") == "paused"
    assert stopped(first).returncode == 1


def test_an_owner_file_of_a_dead_or_reused_pid_is_taken_over(lab):
    lab.gpu(row(60))
    dead = {"schema": 1, "pid": 2**22 + 1, "process_start": "boot:1", "pause": None}
    reused = {**dead, "pid": os.getpid()}
    for content in (dead, reused):
        lab.owner.write_text(json.dumps(content))
        guard = lab.start()
        until(lambda: lab.samples.exists() and lab.stored(), "a reading")
        assert stopped(guard).returncode == 0
        lab.samples.unlink()


def test_an_owner_that_lives_is_respected_even_without_the_lock(lab):
    start = process_start(os.getpid())
    content = {"schema": 1, "pid": os.getpid(), "process_start": start, "pause": None}
    lab.owner.write_text(json.dumps(content))
    assert lab.run().returncode == 2
    assert json.loads(lab.owner.read_text()) == content


def test_a_damaged_owner_file_is_kept_aside_and_said(lab):
    lab.owner.write_text('{"pid": 1, "pause": {"contai')
    ended = lab.run("--repair")
    assert "owner file was unreadable" in ended.stderr
    assert lab.owner.with_name("owner.json.damaged").exists()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("fail", "nvidia-smi failed with status 9: NVIDIA-SMI has failed"),
        ("hang", "nvidia-smi did not answer in time"),
        (row("[N/A]"), "nvidia-smi gave no temperature of GPU 0"),
        (row("[Unknown Error]"), "nvidia-smi gave no temperature of GPU 0"),
    ],
)
def test_an_unreadable_gpu_is_said_once_counted_and_resumes_at_the_longest_pause(lab, answer, said):
    lab.gpu(row(60), row(85), answer)
    guard = lab.start(smi_s=0.5 if answer == "hang" else 5, max_pause_s=0.4)
    until(lambda: len(lab.kinds()) == 2, "the resume")
    until(lambda: sum("gpu" not in line or "temp_c" not in line for line in lab.stored()) > 1, "2")
    stopped(guard)
    assert lab.kinds() == [("pause", "hot"), ("resume", "unreadable")]
    assert lab.comments().count(said) == 1
    assert int(re.search(r"(\d+) of them with trouble", lab.comments())[1]) > 1
    assert lab.actions()[1]["temp_c"] == "unknown"
    assert float(lab.actions()[1]["paused_s"]) < 3


def test_a_gpu_that_can_be_read_again_is_said(lab):
    lab.gpu(row(60), "fail", "fail", row(60))
    guard = lab.start()
    until(lambda: "can be read again" in lab.comments(), "the relief")
    stopped(guard)
    assert lab.comments().count("failed with status") == 1


@pytest.mark.parametrize("program", ["nvidia-smi", "docker"])
def test_a_missing_program_at_the_start_is_lost_sight(lab, program):
    (lab.bin / program).unlink()
    lab.env["PATH"] = f"{lab.bin}:{_tools(lab)}"
    ended = lab.run()
    assert ended.returncode == 2
    assert program in ended.stderr


def _tools(lab):
    """A folder with the few programs that the stand-ins call, and no real docker."""
    folder = lab.folder / "tools"
    folder.mkdir()
    for name in ("sh", "cat", "grep", "sed", "wc", "tail", "tr", "sleep"):
        (folder / name).symlink_to(f"/bin/{name}")
    return folder


def test_an_nvidia_smi_that_goes_missing_is_said_once(lab):
    lab.gpu(row(60))
    lab.env["PATH"] = f"{lab.bin}:{_tools(lab)}"
    guard = lab.start()
    until(lambda: lab.samples.exists() and lab.stored(), "a reading")
    (lab.bin / "nvidia-smi").unlink()
    until(lambda: sum("trouble" in line for line in lab.stored()) > 2, "failed readings")
    assert stopped(guard).returncode == 0
    assert lab.comments().count("not found in PATH") == 1


def test_a_gpu_that_was_never_readable_is_nothing_inspected(lab):
    lab.gpu(row("[N/A]"))
    guard = lab.start()
    until(lambda: lab.samples.exists() and lab.stored(), "a reading")
    assert stopped(guard).returncode == 3


def test_a_field_that_is_not_given_is_absent_from_the_sample(lab):
    lab.gpu("0, 60, [N/A], [Not Supported], [N/A], 7, [N/A]")
    guard = lab.start()
    first = until(lambda: lab.samples.exists() and lab.stored(), "a reading")[0]
    stopped(guard)
    assert set(first) == {"time", "gpu", "temp_c", "util_pct"}


def test_an_older_driver_is_asked_with_the_older_field_name(lab):
    (lab.folder / "old-driver").touch()
    lab.gpu(row(60))
    guard = lab.start()
    first = until(lambda: lab.samples.exists() and lab.stored(), "a reading")[0]
    stopped(guard)
    assert first["throttle"] == ["sw-power-cap"]


def test_the_hottest_of_several_gpus_counts(lab):
    lab.gpu(row(60), f"{row(50)};{row(85, gpu=1)};{row('[N/A]', gpu=2)}")
    guard = paused_guard(lab, gpu="0,1,2")
    stopped(guard)
    assert lab.actions()[0]["temp_c"] == "85"
    assert "--id=0,1,2" in (lab.folder / "smi-calls").read_text()


def test_docker_that_goes_away_during_a_pause_is_said_once_and_the_run_resumed_later(lab):
    guard = paused_guard(lab, min_pause_s=0.05, max_pause_s=0.2)
    for verb in ("inspect", "unpause"):
        lab.fault(verb, "gone")
    asked = len(lab.calls("unpause"))
    until(lambda: len(lab.calls("unpause")) > asked + 2, "refused resumes")
    lab.heal()
    until(lambda: "the engine answers again" in lab.comments(), "the relief")
    stopped(guard)
    assert lab.comments().count("Cannot connect to the Docker daemon") == 1
    assert lab.status("miles-plain") == "running"


def test_docker_that_never_comes_back_keeps_the_record_and_ends_with_2(lab):
    guard = paused_guard(lab)
    for verb in ("inspect", "unpause"):
        lab.fault(verb, "gone")
    ended = stopped(guard)
    assert ended.returncode == 2
    assert "docker unpause miles-plain" in ended.stderr
    assert json.loads(lab.owner.read_text())["pause"]["name"] == "miles-plain"
    lab.heal()
    assert lab.run("--repair").returncode == 1
    assert lab.status("miles-plain") == "running"


def test_a_pause_request_without_an_answer_that_takes_effect_is_ours(lab):
    lab.fault("pause.1", "act-then-hang")
    guard = lab.start(answer_s=1, max_pause_s=1)
    until(lambda: ("resume", "cool") in lab.kinds(), "the resume")
    stopped(guard)
    assert lab.kinds()[:2] == [("pause", "hot"), ("resume", "cool")]
    assert lab.status("miles-plain") == "running"


def test_a_pause_request_without_an_answer_that_takes_effect_late_is_undone(lab):
    """It lands while the next cycles of the guard go on, or after the last of them."""
    lab.fault("pause.1", "late")
    lab.gpu(row(60), row(85), row(85), row(60))
    guard = lab.start(answer_s=1, max_pause_s=1)
    until((lab.folder / "landed").exists, "the late effect")
    until(lambda: lab.status("miles-plain") == "running", "the run going on")
    stopped(guard)
    kinds = [kind for kind, _ in lab.kinds()]
    assert kinds == ["pause", "resume"] * (len(kinds) // 2)
    times = [action["time"] for action in lab.actions()]
    assert times == sorted(times)


def test_a_container_that_cannot_be_paused_is_said_and_left_running(lab):
    lab.fault("pause", "refuse")
    guard = lab.start()
    until(lambda: len(lab.calls("pause")) > 2, "refused pauses")
    assert stopped(guard).returncode == 0
    assert lab.comments().count("cannot be paused") == 1
    assert lab.kinds() == []


def test_a_run_that_somebody_paused_is_not_ours_to_resume(lab):
    (lab.folder / "containers" / "id-of-miles-plain" / "status").write_text("paused\n")
    lab.gpu(row(90))
    guard = lab.start()
    until(lambda: "nothing to pause: it is paused" in lab.comments(), "the remark")
    stopped(guard)
    assert lab.status("miles-plain") == "paused"
    assert not lab.calls("unpause")


@pytest.mark.parametrize("reason", ["gone", "restarted", "ended", "unpaused"])
def test_a_pause_that_ends_by_itself_is_logged_with_its_reason(lab, reason):
    guard = paused_guard(lab)
    folder = lab.folder / "containers" / "id-of-miles-plain"
    lab.gpu(row(60))
    if reason == "gone":
        folder.rename(lab.folder / "removed")
    elif reason == "restarted":
        lab.container("miles-plain", started="t1")
    else:
        (folder / "status").write_text("exited\n" if reason == "ended" else "running\n")
    until(lambda: len(lab.kinds()) == 2, "the end of the pause")
    stopped(guard)
    assert lab.kinds() == [("pause", "hot"), ("resume", reason)]
    assert not lab.calls("unpause")


def test_a_new_container_of_the_same_name_is_guarded_again(lab):
    guard = paused_guard(lab)
    (lab.folder / "containers" / "id-of-miles-plain").rename(lab.folder / "removed")
    lab.container("miles-plain", container_id="another")
    until(lambda: len(lab.kinds()) >= 3, "the next pause")
    stopped(guard)
    assert lab.kinds()[1:3] == [("resume", "gone"), ("pause", "hot")]
    assert any("another" in call for call in lab.calls("pause"))


def test_the_first_running_container_of_the_image_is_paused(lab):
    lab.container("not-ours", container_id="a-first", image="radixark/miles-like")
    guard = paused_guard(lab, name=None, image="docker.io/radixark/miles")
    stopped(guard)
    assert {action["container"] for action in lab.actions()} == {"miles-plain"}


def test_a_full_disk_does_not_keep_a_run_paused(lab):
    guard = lab.start(log="/dev/full", samples="/dev/full")
    until(lambda: len(lab.calls("unpause")) >= 2, "resumes")
    ended = stopped(guard)
    assert lab.status("miles-plain") == "running"
    assert ended.stderr.count("cannot write /dev/full") == 2


def test_a_closed_terminal_does_not_keep_a_run_paused(lab):
    guard = paused_guard(lab)
    guard.stderr.close()
    guard.stdout.close()
    guard.stderr = guard.stdout = None
    guard.send_signal(signal.SIGHUP)
    assert guard.wait(10) == 1
    assert lab.status("miles-plain") == "running"


def test_a_dry_run_says_what_it_would_do_and_touches_nothing(lab):
    lab.gpu(row(60), row(85), row(60))
    guard = lab.start("--dry-run")
    said = [guard.stdout.readline(), guard.stdout.readline()]
    stopped(guard)
    assert said[0] == "would pause container=dry-run temp_c=85 reason=hot\n"
    assert said[1].startswith("would resume container=dry-run temp_c=60 reason=cool paused_s=")
    assert not lab.calls("pause")
    assert not [path for path in (lab.log, lab.samples, lab.owner) if path.exists()]


@pytest.mark.parametrize(
    "options",
    [
        {"pause_c": "warm"},
        {"pause_c": "nan"},
        {"pause_c": 70},
        {"resume_c": 84},
        {"min_pause_s": 3, "max_pause_s": 2},
        {"min_pause_s": -1},
        {"max_pause_s": "1e300"},
        {"interval_s": 0},
        {"answer_s": 0},
        {"smi_s": ""},
        {"gpu": "one"},
        {"gpu": "-1"},
        {"name": "--all"},
        {"name": ""},
        {"image": "two"},
        {"name": None, "image": ""},
        {"owner_file": "/dev/null/owner.json"},
    ],
)
def test_bad_usage_is_one_line_and_2_before_anything_is_touched(lab, options):
    ended = lab.run(**options)
    assert ended.returncode == 2
    assert ended.stderr.startswith("heat-guard: ")
    assert ended.stderr.count("\n") == 1
    assert not lab.calls()
    assert not lab.owner.exists()


def test_help_lists_the_exit_codes_and_the_clock_cap(lab):
    text = lab.run("--help").stdout
    assert all(f"\n  {code}  " in text for code in range(4))
    assert "nvidia-smi -lgc" in text
