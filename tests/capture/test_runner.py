"""The verb `run`: its docker line, its draft, its guards and its ends, with stand-ins."""

import hashlib
import lzma
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import miles_grpo
import pytest
from mileskit.common import tomlio
from mileskit.host import rundraft, runfacts, runlive, runner, runspec

from tests.fakes.lab import ROOT, until
from tests.fakes.runlab import DIGEST, KIT, QUICK, RunLab

pytestmark = pytest.mark.slow

PLAIN3 = ROOT / "capture" / "gpu" / "out-h200-miles" / "plain3"


def spec(lab: RunLab, name: str = "plain", **more) -> runspec.Spec:
    env = runspec.container_env(name, [], {})
    return runspec.Spec(name, env, lab.lab, lab.folder / "cache", checks=0)._replace(**more)


def start(one: runspec.Spec, asked=lambda: "", timing=QUICK) -> runlive.Outcome:
    return runner.start(one, runfacts.Asker(), asked, timing)


def watchdog(monkeypatch, script: str) -> None:
    """Put a small Python program in the watchdog's place."""
    monkeypatch.setattr(runspec, "watchdog_words", lambda spec: [sys.executable, "-c", script])


def record(lab: RunLab, name: str = "plain") -> dict:
    return tomlio.load(lab.runs / f"{name}.run.toml")


# -- the commands ----------------------------------------------------------------------------------


def test_the_docker_line_is_that_of_the_manual(tmp_path):
    page = (ROOT / "manuals" / "miles-101" / "1-1-first-step.md").read_text()
    block = next(b for b in page.split("```") if "docker run --rm --name miles-plain" in b)
    line = block[block.index("docker run") : block.index(" > runs/plain.log")]
    words = shlex.split(line.replace("\\\n", " ").replace("$HOME", "/home/me"))
    env = runspec.container_env("plain", [], {})
    one = runspec.Spec(
        "plain", env, Path("/home/me/miles-lab"), Path("/home/me/.cache/huggingface")
    )
    assert runspec.run_words(one, "radixark/miles:latest") == words


def test_a_dry_run_prints_every_command_and_needs_no_docker(lab):
    (lab.bin / "docker").unlink()
    done = lab.kit("run", "plain", "--heat-guard", "--limit-minutes", "40", "--dry-run")
    assert done.returncode == 0
    wanted = ("image inspect", "--entrypoint git", "-m", "heat-guard", "docker run --rm --name")
    lines = done.stdout.replace("\\\n", "")
    for words in (*wanted[:2], *wanted[3:], "watchdog miles-plain 100 10", "docker stop miles-pl"):
        assert words in lines
    assert lines.index("heat-guard") < lines.index("--ipc=host") < lines.index("watchdog miles")
    assert not lab.lab.exists()
    assert not lab.calls()


def test_the_dry_run_is_a_script_that_a_shell_can_read(lab):
    done = lab.kit("run", "plain", "--env", "A=it's $5", "--dry-run")
    assert subprocess.run(["sh", "-n"], input=done.stdout, text=True).returncode == 0
    assert """'A=it'"'"'s $5'""" in done.stdout


def test_the_environment_reaches_the_container_and_options_win(lab):
    inherited = {"MILES_SEED": "3", "MILES_NUM_ROLLOUT": "5", "HOME": "/x", "MILES_RUN": "other"}
    env = runspec.container_env("plain", [("MILES_SEED", "4")], inherited, "6", "--lr 1e-5")
    assert env == {
        "MILES_NUM_ROLLOUT": "6",
        "MILES_RUN": "plain",
        "MILES_SEED": "4",
        "MILES_EXTRA_ARGS": "--lr 1e-5",
    }


@pytest.mark.parametrize(
    "pair",
    [
        ("WANDB_API_KEY", "0123456789"),
        ("MILES_EXTRA_ARGS", "--wandb-key 0123456789abcdef"),
        ("ANY", "hf_abcdefghijklmnopqrstuv"),
    ],
)
def test_a_secret_is_refused_and_not_repeated(lab, pair):
    done = lab.kit("run", "plain", "--env", "=".join(pair))
    assert done.returncode == 2
    assert "--env-file" in done.stderr
    assert pair[1] not in done.stderr + done.stdout
    assert pair[1].split()[-1] not in done.stderr + done.stdout
    assert not lab.calls()


def test_keys_of_an_env_file_reach_docker_as_a_file_only(lab):
    lab.set("keys.env", "WANDB_API_KEY=0123456789\n")
    done = lab.kit("run", "plain", "--checks", "0", "--env-file", str(lab.folder / "keys.env"))
    assert done.returncode == 0, done.stderr
    assert "--env-file" in next(c for c in lab.calls("run") if "--ipc" in c)
    everything = done.stdout + done.stderr + (lab.runs / "plain.run.toml").read_text()
    assert "0123456789" not in everything
    assert str(lab.folder) not in (lab.runs / "plain.run.toml").read_text()


def test_a_setting_in_an_env_file_is_refused_because_it_would_not_be_recorded(lab):
    lab.set("keys.env", "# keys\nMILES_SEED=3\n")
    done = lab.kit("run", "plain", "--env-file", str(lab.folder / "keys.env"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "line 2 sets MILES_SEED" in done.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["a/b"], "'a/b'"),
        (["--num-rollout", "x"], "MILES_NUM_ROLLOUT='x'"),
        (["--limit", "ten"], "--limit 'ten'"),
        (["--limit-minutes", "0"], "--limit-minutes '0'"),
        (["--limit-minutes", "nan"], "--limit-minutes 'nan'"),
        (["--env", "X"], "--env wants"),
        (["--env", "MILES_RUN=b"], "MILES_RUN=b"),
        (["--image", "a b"], "--image 'a b'"),
        (["--env-file", "/no/such"], "/no/such"),
    ],
)
def test_bad_usage_is_one_line_with_the_value(lab, args, words):
    done = lab.kit("run", *args)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    assert not lab.lab.exists()


def test_a_refused_trap_starts_nothing(lab):
    done = lab.kit("run", "plain", "--extra-args=--use-wandb")
    assert done.returncode == 2
    assert "refused wandb-without-group" in done.stderr
    assert not [call for call in lab.calls("run") if "--ipc" in call]


# -- the draft -------------------------------------------------------------------------------------


def test_the_image_runs_by_its_digest_and_is_recorded_by_it(lab):
    assert start(spec(lab)).how == "finished"
    call = next(call for call in lab.calls("run") if "--ipc" in call)
    assert DIGEST in call
    assert "radixark/miles:latest" not in call
    setup = record(lab)["setup"]
    assert setup["image"] == DIGEST
    assert setup["miles_commit"] == "31f1ca961"
    assert setup["engine"] == "SGLang 0.5.16 of the image"
    assert (setup["gpu"], setup["driver"], setup["gpu_memory_mib"]) == (
        *("NVIDIA H200", "580.159.04"),
        143771,
    )


def test_the_draft_is_there_before_the_run_ends(lab):
    lab.set("hang")
    seen = []

    def asked() -> str:
        if (lab.runs / "plain.log").exists():
            seen.append(record(lab))
        return "test" if seen else ""

    start(spec(lab), asked)
    assert "ended" not in seen[0]
    assert seen[0]["setup"]["image"] == DIGEST


def test_the_recorded_settings_are_the_launchers_own_command(lab):
    env = runspec.container_env("plain", [], {}, "7", "--lr 1e-5")
    start(spec(lab, env=env))
    run = record(lab)["run"]
    assert run["planned_command"] == shlex.join(miles_grpo.default_command(env))
    assert run["settings"] == env
    assert run["num_rollout"] == 7
    assert run["changed"] == ["--lr 1e-05", "--num-rollout 7"]


def test_a_changed_launcher_is_used_and_recorded(lab):
    lab.lab.mkdir()
    (lab.lab / "miles_grpo.py").write_text("print(1)\n")
    start(spec(lab))
    setup = record(lab)["setup"]
    assert (lab.lab / "miles_grpo.py").read_text() == "print(1)\n"
    assert setup["launcher_sha256"] == hashlib.sha256(b"print(1)\n").hexdigest()
    assert "launcher changed" in setup["not_stock"]


def test_a_missing_launcher_is_put_into_the_lab(lab):
    start(spec(lab))
    ours = (KIT.parent / "miles_grpo.py").read_bytes()
    assert (lab.lab / "miles_grpo.py").read_bytes() == ours


def test_what_cannot_be_found_out_is_absent_and_said(lab, capsys):
    lab.unset("commit")
    lab.unset("sglang")
    start(spec(lab))
    setup = record(lab)["setup"]
    assert "miles_commit" not in setup
    assert "engine" not in setup
    assert "did not say its Miles commit" in capsys.readouterr().err


def test_unified_memory_is_recorded_as_such():
    gpu = runfacts.parse_gpu("NVIDIA GB10, 580.95.05, [N/A], [N/A]\n", 124_000)
    assert gpu == runfacts.Gpu("NVIDIA GB10", "580.95.05", 124_000, True, None)


def test_other_work_on_the_gpu_makes_the_setup_shared(lab):
    lab.set("apps", "451, /lab/bin/python3, 8710 MiB\n")
    start(spec(lab))
    assert record(lab)["setup"]["shared"] is True
    assert record(lab)["setup"]["shared_with"] == ["python3"]


# -- store takes it --------------------------------------------------------------------------------


def test_a_stored_log_run_through_the_runner_gives_the_stored_summary(lab):
    log = lzma.decompress((PLAIN3 / "run.log.xz").read_bytes())
    lab.set("output", log)
    done = lab.kit("run", "plain")
    assert done.returncode == 0, done.stderr
    assert (lab.runs / "plain.log").read_bytes() == log
    ended = record(lab)["ended"]
    assert ended == {
        **{"how": "finished", "status": 0, "steps": 12},
        **{"partial": False, "verdict": "finished"},
    }
    kept = tomlio.load(PLAIN3 / "run.toml")
    # What this log says and the plan of the fake lab does not.
    setup = ("engine", "shared", "shared_with", "attention_engine", "attention_trainer", "sampling")
    run = ("seed", "rollout_seed", "num_rollout")
    said = {
        "run": {name: kept["run"][name] for name in run},
        "setup": {name: kept["setup"][name] for name in setup},
    }
    (lab.folder / "said.toml").write_text(tomlio.dumps(said))
    words = ["--lab", "test", "--run", "plain", "--out", str(lab.folder)]
    drafts = ["--run-toml", str(lab.runs / "plain.run.toml")]
    log_file = str(lab.runs / "plain.log")
    alone = lab.kit("store", log_file, *words, *drafts, place=False)
    assert alone.returncode == 2
    assert "run.seed: the log says 7, the draft 1234" in alone.stderr
    both = [*drafts, "--run-toml", str(lab.folder / "said.toml")]
    stored = lab.kit("store", log_file, *words, *both, place=False)
    assert stored.returncode == 0, stored.stderr
    place = lab.folder / "out-test" / "plain"
    assert (place / "summary.json").read_bytes() == (PLAIN3 / "summary.json").read_bytes()
    document = tomlio.load(place / "run.toml")
    assert document["setup"]["image"] == DIGEST
    assert document["setup"]["launcher_sha256"] == record(lab)["setup"]["launcher_sha256"]
    assert document["run"]["seed"] == document["settings"]["seed"] == 7


def test_store_takes_the_draft_alone_when_the_launcher_wrote_the_log(lab):
    """The header is the launcher's own, the rest is the log of plain3."""
    body = lzma.decompress((PLAIN3 / "run.log.xz").read_bytes()).split(b"\n")
    body = [line for line in body if not line.startswith(b"# ") or line.startswith(b"# end")]
    command = shlex.join(miles_grpo.default_command({"MILES_RUN": "plain"}))
    head = f"""# run plain
# date 2026-11-29T13:27:19Z
# command: {command}
# miles commit 31f1ca961 (2026-08-21); torch 2.11.0, transformers 5.12.1, ray 2.56.0
# gpu NVIDIA H200, 580.159.04, 143771 MiB, 4 MiB
"""
    lab.set("output", head.encode() + b"\n".join(body))
    assert lab.kit("run", "plain", "--checks", "0").returncode == 0
    words = ["--lab", "test", "--run", "plain", "--out", str(lab.folder)]
    draft = ["--run-toml", str(lab.runs / "plain.run.toml")]
    done = lab.kit("store", str(lab.runs / "plain.log"), *words, *draft, place=False)
    assert done.returncode == 0, done.stderr
    document = tomlio.load(lab.folder / "out-test" / "plain" / "run.toml")
    assert document["ended"]["steps"] == 12
    assert document["setup"]["miles_date"].isoformat() == "2026-08-21"
    assert document["setup"]["versions"]["torch"] == "2.11.0"
    assert document["run"]["command"] == command


# -- nothing is overwritten ------------------------------------------------------------------------


def test_an_existing_log_is_never_overwritten(lab):
    lab.runs.mkdir(parents=True)
    (lab.runs / "plain.log").write_text("old\n")
    done = lab.kit("run", "plain")
    assert done.returncode == 2
    assert done.stderr.count("\n") <= 2
    assert "plain.log exists" in done.stderr
    assert (lab.runs / "plain.log").read_text() == "old\n"
    assert [path.name for path in lab.runs.iterdir()] == ["plain.log"]


def test_a_container_of_the_same_name_is_left_alone(lab):
    lab.container("miles-plain")
    done = lab.kit("run", "plain")
    assert done.returncode == 2
    assert "docker stop miles-plain" in done.stderr
    assert lab.status("miles-plain") == "running"


def test_without_the_image_one_line_says_how_to_pull_it(lab):
    lab.unset("image")
    done = lab.kit("run", "plain")
    assert done.returncode == 2
    assert "docker pull radixark/miles:latest" in done.stderr
    assert not lab.lab.exists()


def test_a_run_that_docker_refuses_leaves_nothing_and_can_be_tried_again(lab):
    lab.set("refuse", 'docker: Error response from daemon: could not select device driver ""\n')
    done = lab.kit("run", "plain")
    assert done.returncode == 2
    assert "container toolkit" in done.stderr
    assert list(lab.runs.iterdir()) == []
    lab.unset("refuse")
    assert lab.kit("run", "plain", "--checks", "0").returncode == 0


# -- how it ends -----------------------------------------------------------------------------------


def test_ctrl_c_stops_the_container_and_says_what_is_where(lab):
    lab.set("hang")
    run = subprocess.Popen(
        lab.words("run", "plain"), env=lab.env, stderr=subprocess.PIPE, text=True
    )
    until((lab.runs / "plain.watchdog.log").exists, "the watchdog started")
    time.sleep(0.5)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=40)
    assert run.returncode == 1
    assert lab.calls("stop") == ["stop -t 10 id-of-miles-plain"]
    assert not list((lab.folder / "containers").iterdir())
    assert str(lab.runs / "plain.log") in err
    assert str(lab.runs / "plain.watchdog.log") in err
    ended = record(lab)["ended"]
    assert (ended["how"], ended["by"], ended["partial"]) == ("killed", "user", True)
    assert "Traceback" not in err + (lab.runs / "plain.watchdog.log").read_text()


def test_a_closed_terminal_does_not_end_the_run(lab):
    lab.set("hang")
    run = subprocess.Popen(lab.words("run", "plain", "--checks", "0"), env=lab.env,
                           stderr=subprocess.PIPE, text=True)  # fmt: skip
    until((lab.runs / "plain.log").exists, "the run started")
    run.stderr.close()
    run.send_signal(signal.SIGHUP)
    time.sleep(0.4)
    assert run.poll() is None
    lab.unset("hang")
    assert run.wait(timeout=20) == 0


def test_the_watchdogs_stop_is_exit_code_1_and_recorded(lab, monkeypatch):
    lab.set("hang")
    stop = "import subprocess,sys;subprocess.run(['docker','stop','id-of-miles-plain']);sys.exit(1)"
    watchdog(monkeypatch, stop)
    outcome = start(spec(lab, checks=10))
    assert (outcome.how, outcome.by, runner.exit_code(outcome)) == ("killed", "watchdog", 1)
    assert record(lab)["ended"]["by"] == "watchdog"


def test_a_watchdog_that_lost_sight_is_said_at_once_and_ends_with_2(lab, monkeypatch, capsys):
    lab.set("hang")
    watchdog(monkeypatch, "import sys;print('Docker is gone');sys.exit(2)")
    seen = []

    def asked() -> str:
        err = capsys.readouterr().err
        seen.append(err)
        if "goes on, now without a guard" in err and (lab.folder / "hang").exists():
            lab.unset("hang")
        return ""

    outcome = start(spec(lab, checks=10, limit_s=20), asked)
    assert any("Docker is gone" in err for err in seen)
    assert (outcome.how, runner.exit_code(outcome)) == ("finished", 2)
    assert record(lab)["ended"]["unguarded"] is True


def test_a_watchdog_that_says_stopped_while_the_run_goes_on_counts_as_lost(lab, monkeypatch):
    """A crash of Python ends with 1 as well."""
    lab.set("hang")
    watchdog(monkeypatch, "raise SystemError('crash')")
    began = time.monotonic()
    outcome = start(spec(lab, checks=10, limit_s=2.5))
    assert (outcome.by, outcome.lost) == ("limit", True)
    assert runner.exit_code(outcome) == 2
    assert time.monotonic() - began < 15


def test_the_time_limit_stops_the_run_and_marks_it_partial(lab):
    lab.set("hang")
    outcome = start(spec(lab, limit_s=0.5))
    assert (outcome.how, runner.exit_code(outcome)) == ("time-limit", 1)
    ended = record(lab)["ended"]
    assert (ended["how"], ended["partial"], ended["status"]) == ("time-limit", True, 143)
    assert ended["verdict"] == "stopped"


def test_a_run_that_fails_is_recorded_as_failed(lab):
    lab.set("exit", "3")
    outcome = start(spec(lab))
    assert (outcome.how, outcome.status, runner.exit_code(outcome)) == ("failed", 3, 1)
    assert record(lab)["ended"]["verdict"] == "failed"


def test_docker_that_goes_away_is_lost_sight(lab):
    lab.set("hang")
    calls = []

    def asked() -> str:
        calls.append(1)
        if len(calls) == 3:
            lab.fault("stop", "gone")
            lab.unset("hang")
        return "test" if len(calls) > 3 else ""

    outcome = start(spec(lab), asked)
    assert outcome.alive
    assert len(lab.calls("stop")) == runlive.STOPS
    assert runner.exit_code(outcome) == 2


# -- heat guard ------------------------------------------------------------------------------------


def test_the_heat_guard_starts_first_and_ends_with_the_run(lab):
    done = lab.kit("run", "plain", "--checks", "0", "--heat-guard")
    assert done.returncode == 0, done.stderr
    assert (lab.runs / "plain.gpu-samples.jsonl").read_text().count("temp_c") >= 1
    assert "stopped (SIGTERM)" in (lab.runs / "plain.heat-guard.log").read_text()
    assert not (lab.lab / "heat-guard.owner.json").exists()
    assert "--samples" in done.stderr.splitlines()[-1]


def test_a_heat_guard_that_cannot_start_starts_no_run(lab):
    lab.gpu("fail")
    done = lab.kit("run", "plain", "--heat-guard")
    assert done.returncode == 2
    assert "the heat guard did not start (exit code 2)" in done.stderr
    assert not [call for call in lab.calls("run") if "--ipc" in call]
    assert not (lab.runs / "plain.log").exists()


def test_a_heat_guard_that_dies_is_started_again(lab, monkeypatch, capsys):
    lab.set("hang")
    script = (
        "import os,sys,time\n"
        f"first = not os.path.exists({str(lab.folder / 'seen')!r})\n"
        f"open({str(lab.folder / 'seen')!r}, 'a').write('x')\n"
        "time.sleep(1.0 if first else 60)\n"
        "sys.exit(2)\n"
    )
    words = [sys.executable, "-c", script]
    monkeypatch.setattr(runspec, "heat_words", lambda spec, stop_file: words)
    start(spec(lab, heat_guard=True, limit_s=2.5))
    assert (lab.folder / "seen").read_text() == "xx"
    assert "starting the heat guard again" in capsys.readouterr().err


def test_a_draft_is_valid_when_nothing_at_all_is_known(lab):
    image = runfacts.Image("sha256:1", "", "amd64", "sha256:1")
    document = rundraft.draft(spec(lab), runfacts.Facts(image), "2026-11-29T13:27:19Z")
    assert tomlio.loads(tomlio.dumps(document)) == document
    assert "local image without a registry digest" in document["setup"]["not_stock"]


def test_the_watchdog_is_told_that_miles_replaces_dead_engines(lab):
    plain = spec(lab)
    tolerant = plain._replace(env={**plain.env, "MILES_EXTRA_ARGS": "--use-fault-tolerance"})
    assert "--fault-tolerance" not in runspec.watchdog_words(plain)
    assert "--fault-tolerance" in runspec.watchdog_words(tolerant)
