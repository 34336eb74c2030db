"""The verb `acceptance`: each stage that passes or fails, and a bundle whatever happens."""

import hashlib
import io
import json
import lzma
import shlex
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import kit
import pytest
from mileskit.acceptance import acceptance, bundle, bundlecheck, enginekill, stages
from mileskit.common import tomlio
from mileskit.host import runqueue

from tests.capture.acceptlab import (
    DEATH,
    STEPS,
    bundle_of,
    fill,
    plan,
    protocol,
    reason,
    stored_log,
    verdicts,
    watchdogs,
)
from tests.fakes.lab import until

pytestmark = pytest.mark.slow

ALL = ("doctor", "steps", "engine-death", "heat-pause")


@pytest.fixture
def ready(lab, monkeypatch):
    """A lab in which every stage can pass."""
    fill(lab)
    watchdogs(monkeypatch)
    return lab


def names(about: dict) -> list[str]:
    with zipfile.ZipFile(bundle_of(about)) as packed:
        return packed.namelist()


# -- the whole protocol ----------------------------------------------------------------------------


def test_every_stage_passes_and_one_bundle_holds_the_runs_as_store_makes_them(ready):
    about, code = protocol(ready)
    wanted = {"doctor": "passed", "steps": "passed", "engine-death": "passed",
              "heat-pause": "not-run"}  # fmt: skip
    assert (verdicts(about), code) == (wanted, 0)
    assert about["runs"] == [DEATH, STEPS]
    assert about["unstored"] == {}
    found = bundlecheck.read(bundle_of(about))
    assert found.runs() == [DEATH, STEPS]
    for run in found.runs():
        for name in ("run.log.xz", "run.toml", "summary.json"):
            assert f"out-{about['lab']}/{run}/{name}" in found.files
    document = tomlio.loads(found.files[f"out-{about['lab']}/{DEATH}/run.toml"].decode())
    assert document["ended"]["verdict"] == "engine-dead"
    assert document["ended"]["how"] == "killed"


def test_the_engine_is_killed_once_and_only_after_the_rollout_began(ready):
    protocol(ready)
    kills = ready.calls("exec")
    assert len([line for line in kills if line.startswith(f"exec miles-{DEATH} python -c ")]) == 1
    log = (ready.runs / f"{DEATH}.log").read_bytes()
    before = log[: log.index(b"crashed with exit code -9")]
    assert before.count(b"rollout 2: {") == 1
    assert before.count(b"rollout 3: {") == 0


def test_the_seconds_from_the_kill_to_the_stop_are_recorded(ready):
    at = 1_795_957_185.2
    about, _ = protocol(ready)
    row = next(row for row in about["stages"] if row["name"] == "engine-death")
    stopped, word = stages.watchdog_stop(plan(ready).death)
    assert word == row["watchdog_verdict"] == "engine-dead"
    assert row["seconds_to_stop"] == round(stopped - at, 1)
    assert row["rollout"] == 3


def test_a_finished_protocol_that_is_started_again_runs_nothing_and_gives_the_same_members(ready):
    first, _ = protocol(ready)
    one = {n: zipfile.ZipFile(bundle_of(first)).read(n) for n in names(first)}
    started = len([c for c in ready.calls("run") if "--ipc" in c])
    second, code = protocol(ready)
    assert len([c for c in ready.calls("run") if "--ipc" in c]) == started
    two = {n: zipfile.ZipFile(bundle_of(second)).read(n) for n in names(second)}
    assert code == 0
    assert list(one) == list(two)
    changing = ("acceptance.json", "SHA256SUMS", "doctor.json", "doctor.txt")
    assert {n: d for n, d in one.items() if n not in changing} == {
        n: d for n, d in two.items() if n not in changing
    }


def test_a_stage_is_run_anew_when_that_is_asked(ready):
    protocol(ready)
    protocol(ready, "--again", "steps")
    started = [c for c in ready.calls("run") if "--ipc" in c]
    assert [f"miles-{STEPS}" in c for c in started] == [True, False, True]
    assert (ready.runs / f"{STEPS}.aside-1.log").exists()


def test_members_are_in_order_and_the_list_of_checksums_is_right(ready):
    about, _ = protocol(ready)
    with zipfile.ZipFile(bundle_of(about)) as packed:
        listed = packed.namelist()
        sums = packed.read("SHA256SUMS").decode().splitlines()
        assert {entry.date_time for entry in packed.infolist()} == {bundle.DATE}
        for line in sums:
            digest, name = line.split("  ")
            assert hashlib.sha256(packed.read(name)).hexdigest() == digest
    assert listed[1:] == sorted(listed[1:])
    assert [line.split("  ")[1] for line in sums] == listed[1:]
    assert about["sha256"] == hashlib.sha256(bundle_of(about).read_bytes()).hexdigest()


def test_no_member_holds_a_secret_a_user_or_a_word_of_the_reader(ready):
    secret, word = "hf_" + "a1B2" * 9, "projectzebra"
    log = b"\n".join(stored_log("plain3", STEPS, "2026-11-29T13:27:19Z"))
    more = f"\n(pid=1) HF_TOKEN={secret} /home/somebody/{word}/x.py\n".encode()
    ready.set(f"output-miles-{STEPS}", log + more)
    about, _ = protocol(ready, "--word", word, "--env", f"MILES_EXTRA_ARGS=--wandb-group {word}")
    found = bundlecheck.read(bundle_of(about))
    for name, data in found.files.items():
        if name.endswith(".xz"):
            data = lzma.decompress(data)
        for hidden in (secret, word, "somebody"):
            assert hidden.encode() not in data, name


# -- stages that fail ------------------------------------------------------------------------------


def test_a_host_that_the_doctor_refuses_starts_nothing_and_still_makes_the_bundle(ready):
    (ready.bin / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    ready.set("doctor")
    (ready.folder / "image").unlink()
    about, code = protocol(ready)
    assert code == 1
    assert verdicts(about) == dict(zip(ALL, ("failed", *["not-run"] * 3), strict=True))
    assert "the doctor did not pass" in reason(about, "steps")
    assert not [c for c in ready.calls("run") if "--ipc" in c]
    assert names(about) == ["SHA256SUMS", "acceptance.json", "doctor.json", "doctor.txt"]
    assert bundlecheck.read(bundle_of(about)).runs() == []


def test_without_a_gpu_the_bundle_says_so(ready):
    (ready.bin / "nvidia-smi").unlink()
    about, code = protocol(ready)
    assert code == 1
    assert "GPU" in reason(about, "doctor") or "GPU" in reason(about, "steps")
    assert about["lab"] == "reader"
    assert "gpu" not in about["machine"]


def test_steps_that_the_container_ends_early_fail_and_the_death_is_still_tried(ready):
    lines = stored_log("plain3", STEPS, "2026-11-29T13:27:19Z")
    ready.set(f"output-miles-{STEPS}", b"\n".join(lines[: len(lines) // 2]) + b"\n")
    about, code = protocol(ready)
    assert (verdicts(about)["steps"], verdicts(about)["engine-death"], code) == (
        "failed",
        "passed",
        1,
    )
    assert "steps" in reason(about, "steps")


def test_a_watchdog_that_names_another_cause_fails_the_stage(lab, monkeypatch):
    fill(lab)
    watchdogs(monkeypatch, "no-progress")
    about, code = protocol(lab)
    assert (verdicts(about)["engine-death"], code) == ("failed", 1)
    assert "no-progress, not engine-dead" in reason(about, "engine-death")


def test_an_engine_that_cannot_be_killed_ends_its_run_and_says_why(ready):
    ready.unset("exec")
    about, code = protocol(ready)
    assert (verdicts(about)["engine-death"], code) == ("failed", 1)
    assert "could not be ended in its container (no process)" in reason(about, "engine-death")
    assert not list((ready.folder / "containers").iterdir())


def test_a_pause_of_the_heat_guard_delays_the_kill_and_fails_nothing(ready):
    ready.set("exec-paused")
    about, code = protocol(ready)
    assert (verdicts(about)["engine-death"], code) == ("passed", 0)
    assert len([c for c in ready.calls("exec") if c.startswith("exec miles")]) == 2


def test_a_run_that_ends_before_the_rollout_fails_the_stage(ready):
    ready.unset(f"hang-miles-{DEATH}")
    lines = stored_log("kill_noft", DEATH, "2026-11-29T12:55:47Z")[:600]
    ready.set(f"output-miles-{DEATH}", b"\n".join(lines) + b"\n")
    about, code = protocol(ready)
    assert (verdicts(about)["engine-death"], code) == ("failed", 1)
    assert "was not killed: finished after" in reason(about, "engine-death")


def test_a_run_that_store_refuses_is_in_the_bundle_with_its_log_and_the_reason(ready):
    ready.unset("commit")
    log = b"\n".join(stored_log("plain3", STEPS, "2026-11-29T13:27:19Z"))
    ready.set(f"output-miles-{STEPS}", log.replace(b"# miles commit 31f1ca961", b"# mils"))
    about, _ = protocol(ready)
    assert "setup.miles_commit is missing" in about["unstored"][STEPS]
    assert f"unstored/{STEPS}/run.log.xz" in names(about)
    assert about["runs"] == [DEATH]
    assert bundlecheck.read(bundle_of(about)).runs() == [DEATH]


def test_ctrl_c_stops_the_run_skips_the_rest_and_makes_the_bundle(ready):
    ready.set(f"hang-miles-{STEPS}")
    word = []

    def asked() -> str:
        if (ready.runs / f"{STEPS}.log").exists() and not word:
            word.append("SIGINT")
        return word[0] if word else ""

    about, code = protocol(ready, asked=asked)
    assert code == 1
    assert about["stopped_by"] == "SIGINT"
    assert "stopped by its user" in reason(about, "steps")
    assert reason(about, "engine-death") == "SIGINT before it began"
    assert bundle_of(about).exists()
    ready.unset(f"hang-miles-{STEPS}")
    again, code = protocol(ready)
    assert (verdicts(again)["steps"], code) == ("passed", 0)


def test_ctrl_c_on_the_command_line_ends_with_1_and_a_bundle(ready):
    ready.set(f"hang-miles-{STEPS}")
    run = subprocess.Popen(
        ready.words("acceptance", "--no-heat-guard", "--json"),
        env=ready.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until((ready.runs / f"{STEPS}.watchdog.log").exists, "the watchdog started")
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "Traceback" not in err
    about = json.loads(out)
    assert about["stopped_by"] == "SIGINT"
    assert bundlecheck.read(bundle_of(about)).about["lab"] == "reader-h200"
    left = [path.name for path in ready.lab.iterdir() if "half" in path.name]
    assert left == []


# the watchdog is left to itself on purpose, so nobody waits for it
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_docker_that_goes_away_is_exit_code_2_and_still_a_bundle(ready):
    hang = f"hang-miles-{STEPS}"
    ready.set(hang)
    # the container ends while nobody can see it, so that its client does not outlive the test
    ends = threading.Timer(0.2, lambda: ready.unset(hang))

    def asked() -> str:
        if not (ready.runs / f"{STEPS}.log").exists():
            return ""
        if (ready.folder / hang).exists() and not ends.is_alive():
            ready.fault("stop", "gone")
            ends.start()
        return "test"

    about, code = protocol(ready, asked=asked)
    ends.join()
    assert code == 2
    assert verdicts(about)["engine-death"] == "not-run"
    assert bundle_of(about).exists()


def test_a_bundle_that_cannot_be_written_leaves_nothing_half_written(ready, monkeypatch):
    def full(self, data):
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="No space left"):
        bundle.write(ready.folder / "b.zip", {"a": b"1"})
    assert not [path for path in ready.folder.iterdir() if path.suffix in (".zip", ".half")]


def test_the_kill_of_an_earlier_try_is_not_taken_for_that_of_this_run(ready):
    ready.runs.mkdir(parents=True)
    enginekill.write(ready.runs / f"{DEATH}.engine-kill.json", enginekill.Kill(1.0, 3, (7,)))
    ready.unset("exec")
    about, _ = protocol(ready)
    assert "could not be ended" in reason(about, "engine-death")


# -- heat ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "verdict", "words"),
    [
        ("", "not-run", "no pause came"),
        (
            "2026-11-29T13:27:19.120Z pause container=m temp_c=84 reason=hot\n",
            "failed",
            "no resume",
        ),
        (
            "2026-11-29T13:27:19.120Z pause container=m temp_c=84 reason=hot\n"
            "2026-11-29T13:28:19.120Z resume container=m temp_c=74 reason=cool paused_s=60.0\n",
            "passed",
            "1 pauses",
        ),
        ("nonsense\n\n", "failed", "not a pause"),
    ],
)
def test_a_heat_pause_is_judged_and_never_forced(lab, lines, verdict, words):
    one = plan(lab)
    lab.runs.mkdir(parents=True)
    one.steps.file("heat-guard.log").write_text("# guard\n" + lines)
    found = stages.of_heat(one.specs, True)
    assert (found.verdict, words in found.reason) == (verdict, True)


def test_the_heat_guard_is_on_by_default_and_its_log_and_samples_are_in_the_bundle(ready):
    ready.gpu(*["0, 60, 1980, 600.5, 70211, 100, 0x0000000000000004"] * 3)
    about, code = protocol(ready, heat=True)
    assert code == 0
    assert reason(about, "heat-pause") == "no pause came, and none is forced"
    for run in (STEPS, DEATH):
        assert f"out-{about['lab']}/{run}/heat-guard.log" in names(about)
        assert f"out-{about['lab']}/{run}.gpu-samples.jsonl" in names(about)
    document = bundlecheck.read(bundle_of(about)).files[f"out-{about['lab']}/{STEPS}/run.toml"]
    clock = tomlio.loads(document.decode())["setup"]["clock_record"]
    assert clock == f"../{STEPS}.gpu-samples.jsonl"
    root = ready.folder / "taken"
    root.mkdir()
    assert kit.main(["intake", about["bundle"], "--out", str(root)]) == 0
    assert (root / f"out-{about['lab']}" / f"{STEPS}.gpu-samples.jsonl").exists()
    lab = tomlio.load(root / f"out-{about['lab']}" / "lab.toml")
    assert lab["other_setup"][0]["set"] == {"clock_record": f"../{STEPS}.gpu-samples.jsonl"}


# -- usage -----------------------------------------------------------------------------------------


def test_a_dry_run_prints_every_docker_command_and_starts_nothing(lab):
    (lab.bin / "docker").unlink()
    done = lab.kit("acceptance", "--dry-run")
    assert done.returncode == 0
    text = done.stdout.replace("\\\n", "")
    wanted = ("docker version", "docker image inspect", "--name miles-acceptance-steps",
              "watchdog miles-acceptance-steps", "heat-guard --name miles-acceptance-steps",
              "--name miles-acceptance-death", "docker exec miles-acceptance-death python",
              "docker stop miles-acceptance-death")  # fmt: skip
    assert [words for words in wanted if words not in text] == []
    assert subprocess.run(["sh", "-n"], input=done.stdout, text=True).returncode == 0
    assert not lab.lab.exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--kill-at", "12"], "--kill-at 12"),
        (["--kill-at", "0"], "--kill-at 0"),
        (["--num-rollout", "x"], "--num-rollout 'x'"),
        (["--lab-name", "../x"], "--lab-name '../x'"),
        (["--word", "a"], "--word"),
        (["--checks", "0"], "needs the watchdog"),
        (["--prefix", "a/b"], "a/b-steps"),
        (["--limit-minutes", "0"], "--limit-minutes '0'"),
        (["--bundle", "/etc/hostname"], "exists and is no bundle"),
        (["--env", "HF_TOKEN=hf_abcdefghijklmnopqrstuv"], "--env-file"),
    ],
)
def test_bad_usage_is_one_line_and_starts_nothing(lab, args, words):
    done = lab.kit("acceptance", *args)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    assert not lab.lab.exists()


def test_two_protocols_do_not_work_in_one_lab(ready):
    with runqueue.locked(ready.lab):
        done = ready.kit("acceptance", "--no-heat-guard")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "another queue or protocol" in done.stderr


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("NVIDIA GB10", "reader-gb10"),
        ("NVIDIA RTX PRO 6000", "reader-rtx-pro-6000"),
        ("", "reader"),
    ],
)
def test_the_lab_is_named_after_the_gpu(gpu, name):
    assert bundle.lab_name(gpu) == name


# -- the kill --------------------------------------------------------------------------------------


def test_the_killing_program_ends_the_process_of_that_title_alone(tmp_path):
    """Run as the container would, with its own list of processes."""
    victim = subprocess.Popen(["/bin/bash", "-c", f"exec -a {enginekill.PROCESS}_TP0 sleep 60"])
    other = subprocess.Popen(["sleep", "60"])
    try:
        title = Path(f"/proc/{victim.pid}/cmdline")
        until(lambda: title.read_bytes().startswith(b"sglang"), "the title is set")
        script = enginekill.SCRIPT.replace("/proc/1/fd/1", str(tmp_path / "log"))
        done = subprocess.run(["python3", "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        kill = enginekill.parse(done.stdout, 3)
        assert victim.pid in kill.pids
        assert other.pid not in kill.pids
        assert victim.wait(timeout=10) == -signal.SIGKILL
        assert other.poll() is None
        assert f"killer: SIGKILL sent to {enginekill.PROCESS}" in (tmp_path / "log").read_text()
    finally:
        for process in (victim, other):
            process.kill()
            process.wait()


@pytest.mark.parametrize("text", ["", "x", "[]", '{"at": 1}', '{"at": 1, "pids": []}', "null"])
def test_an_answer_that_names_no_process_is_no_kill(text):
    assert enginekill.parse(text, 3) is None


def test_the_command_of_the_kill_can_be_shown_in_one_line():
    assert shlex.split(enginekill.shown("docker", "m"))[:4] == ["docker", "exec", "m", "python"]


def test_lost_sight_wins_over_other_codes():
    fine = [stages.Stage(name, stages.PASSED, "") for name in ALL]
    assert acceptance.code_of(fine, True) == 2
    assert acceptance.code_of(fine, False) == 0
    assert acceptance.code_of([s._replace(verdict=stages.NOT_RUN) for s in fine], False) == 3


# -- what the host of a reader can do --------------------------------------------------------------


def test_a_closed_terminal_ends_no_stage(ready, monkeypatch):
    """Every write to a terminal that is gone fails; the second run starts all the same."""

    class Gone(io.TextIOBase):
        def write(self, _text):
            raise OSError(5, "Input/output error")

        def flush(self):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(sys, "stderr", Gone())
    monkeypatch.setattr(sys, "stdout", Gone())
    about, code = protocol(ready)
    assert (verdicts(about)["engine-death"], code) == ("passed", 0)


def test_a_full_disk_is_one_line_that_names_it(ready, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(acceptance, "work", full)
    args = kit.build_parser(("acceptance",)).parse_args(["acceptance", "--lab", str(ready.lab)])
    assert acceptance.run(args) == 2
    assert capsys.readouterr().err == "acceptance: no bundle: No space left on device\n"


def test_a_run_that_store_could_not_write_leaves_no_half_of_a_folder(ready, monkeypatch):
    def full(args):
        half = Path(args.out) / f"out-{args.lab}" / args.run
        half.mkdir(parents=True)
        (half / "run.toml").write_text("x = 1\n")
        raise OSError(28, "No space left on device", str(half))

    monkeypatch.setattr(bundle.store, "store", full)
    about, _ = protocol(ready)
    assert "No space left" in about["unstored"][STEPS]
    assert about["runs"] == []
    assert bundlecheck.read(bundle_of(about)).runs() == []


def test_a_clock_that_went_back_gives_no_seconds(lab):
    one = plan(lab).death
    lab.runs.mkdir(parents=True)
    one.file("log").write_text("x\n")
    ended = {"how": "killed", "by": "watchdog", "steps": 3, "verdict": "engine-dead"}
    one.file("run.toml").write_text(tomlio.dumps({"ended": ended}))
    said = f"2026-11-29T13:04:46Z {one.container}: engine-dead: its scheduler: stopped the run\n"
    one.file("watchdog.log").write_text(said)
    stopped = stages.utc("2026-11-29T13:04:46Z")
    enginekill.write(one.file("engine-kill.json"), enginekill.Kill(stopped + 3600, 3, (7,)))
    found = stages.of_death(one, "")
    assert "seconds_to_stop" not in found.facts
    assert found.reason == "stopped by the watchdog, engine-dead"


def test_a_reason_of_several_lines_is_one_line_in_the_bundle():
    row = stages.Stage("steps", stages.NOT_RUN, "docker:\n\x1b[31merror\x1b[0m").row()
    assert row["reason"] == "docker: [31merror [0m"


def test_help_and_dry_run_say_what_is_killed_and_how_long_it_takes(lab):
    said = " ".join(lab.kit("acceptance", "--help", place=False).stdout.split())
    for words in ("Only its own two containers are stopped", "A closed terminal ends nothing",
                  "Nothing is sent anywhere", "is on here anyway"):  # fmt: skip
        assert words in said
    assert "at most 480 minutes for both runs" in lab.kit("acceptance", "--dry-run").stdout


def test_a_failed_stage_says_how_to_run_it_anew(lab):
    rows = [{"name": "steps", "verdict": "failed", "reason": "x"}]
    text = acceptance.as_text({"stages": rows, "bundle": "b.zip", "sha256": "0"})
    assert "to run steps anew: the same command with --again steps" in text
