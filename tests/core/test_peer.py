"""The comparison with TRL: rows and what they say, the same questions, and both sides running."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tinygguf

from capture.core import configfile, smollm2, tasks
from capture.core.cursor import RolloutCursor
from capture.core.errors import ConfigError, ContractError, RefusedError
from capture.core.peer import compare, own, rows, trl_grpo

ROOT = Path(__file__).resolve().parents[2]
FILE = str(ROOT / "capture/core/examples/gpu.toml")
TINY = {
    "model.device": "cpu", "engine.device": "cpu", "engine.batch_size": 8,
    "rollout.rollout_batch_size": 2, "rollout.n_samples_per_prompt": 4,
    "batch.global_batch_size": 8, "rollout.max_new_tokens": 4, "batch.pack_tokens": 2048,
    "task.train_prompts": 20, "task.eval_prompts": 4, "task.shots": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("peer")
    tinygguf.write(made / "tiny.gguf")
    smollm2.write((made / "tiny.gguf").read_bytes(), made / "hf")
    return made / "hf"


def changes(folder, **more):
    named = {**TINY, "model.path": str(folder), **more}
    return [f"{key}={json.dumps(value)}" for key, value in named.items()]


def step(number, seconds, *, samples=8, reward=0.5, **more):
    values = {"samples": samples, "response_tokens": samples * 10, "reward": reward}
    return {"kind": "step", "step": number, "seconds": seconds, **values, **more}


STEPS = [step(0, None), step(1, 9.0), step(2, 1.0), step(3, 2.0, reward=1.0), step(4, 3.0)]


def test_a_summary_leaves_the_warm_up_out_of_every_time():
    found = rows.summary([{"kind": "setup"}, *STEPS, {"kind": "end"}], warmup=2)
    assert found["samples_per_second"] == pytest.approx(24 / 6)
    assert found["step_seconds_median"] == 2.0
    assert (found["step_seconds_least"], found["step_seconds_most"]) == (1.0, 3.0)
    assert (found["steps"], found["timed_steps"], found["samples"]) == (5, 3, 40)
    assert found["reward_last"] == pytest.approx(0.6)
    assert found["ended"]
    assert "peak_allocated" not in found


def test_the_first_step_has_no_time_and_is_never_timed():
    assert rows.summary(STEPS, warmup=0)["timed_steps"] == 4


def test_a_peak_is_the_largest_and_a_part_needs_every_timed_step():
    more = [
        {**row, "peak_allocated": 100 + row["step"], "generation_seconds": row["seconds"]}
        for row in STEPS
    ]
    found = rows.summary(more, warmup=2)
    assert (found["peak_allocated"], found["generation_seconds_median"]) == (104, 2.0)
    more[3].pop("generation_seconds")
    assert "generation_seconds_median" not in rows.summary(more, warmup=2)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path, capsys):
    (tmp_path / "file").touch()
    out = str(tmp_path / "file" / "x")
    with pytest.raises(ConfigError, match=r"--out: .*file"):
        rows.Writer(out)
    with pytest.raises(SystemExit, match="2"):
        compare.main([FILE, "--out", out])
    assert "--out" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("wrong", [STEPS[:2], [STEPS[1], STEPS[0]], []])
def test_rows_without_a_timed_step_or_out_of_order_are_refused(wrong):
    with pytest.raises(ContractError, match="peer-rows"):
        rows.summary(wrong, warmup=2)


def test_a_line_that_is_no_row_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    writer = rows.Writer(path)
    writer.row("setup", side="core")
    writer.close()
    assert rows.read(path) == [{"kind": "setup", "side": "core"}]
    path.write_text(path.read_text() + '{"kind": "ste')
    with pytest.raises(ContractError, match=r"rows\.jsonl:2: no row"):
        rows.read(path)


def test_trl_gets_the_questions_of_our_collections_in_our_order(folder):
    config = own.settings(FILE, changes(folder), steps=3, seed=7)
    task = tasks.load(config)
    cursor = RolloutCursor(pool=20, batch=2, seed=7, shuffle=True)
    expected = [task.train[i] for _ in range(3) for i in cursor.draw().prompts]
    assert trl_grpo.questions(config, task) == expected
    assert len({prompt.text for prompt in expected}) == 6


def test_both_sides_have_no_evaluations(folder):
    config = own.settings(FILE, changes(folder), steps=2, seed=None)
    assert (config.evaluation.interval, config.evaluation.at_start) == (0, False)
    assert (config.rollout.num_rollout, config.seed) == (2, 1)


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("objective.kl_coef", 0.1, "a KL term"),
        ("objective.tis", True, "importance sampling"),
        ("batch.global_batch_size", 4, "several optimizer steps"),
        ("schedule.kind", "linear", "schedule linear"),
    ],
)
def test_settings_that_trl_has_not_are_refused(folder, key, value, what):
    given = dict(map(configfile.change, changes(folder, **{key: value})))
    with pytest.raises(RefusedError, match=what):
        trl_grpo.refuse(configfile.read(FILE, given))


def entry(name, speed, *, phase="first", status=0, **more):
    keys = ("step_seconds_median", "reward_first", "reward_last", "response_length")
    return {
        "phase": phase, "configuration": name, "status": status, "samples_per_second": speed,
        "response_tokens_per_second": 1.0, "peak_allocated": 5, "steps": 12, "timed_steps": 9,
        **dict.fromkeys(keys, 1.0), **more,
    }  # fmt: skip


def test_the_fastest_candidate_is_one_that_ended_well():
    tried = [entry("static", 9.0, status=1), entry("plain64", 2.0), entry("continuous", 3.0)]
    assert rows.fastest(tried) == "continuous"
    assert rows.fastest(tried[:1]) is None


def test_ratios_are_of_means_over_repeats_without_candidates_and_failures():
    entries = [
        entry("plain64", 50.0, phase="try"),
        entry("core", 10.0), entry("default", 2.0), entry("plain64", 4.0),
        entry("plain64", 6.0, phase="second"), entry("core", 12.0, phase="second"),
        entry("default", 99.0, phase="second", status="time is up"),
    ]  # fmt: skip
    found = rows.compared(entries, 3)
    assert found["times_as_many_samples"] == {"default": 5.5, "plain64": 2.2}
    assert found["sides"]["core"]["runs"] == 2
    assert found["sides"]["core"]["peak_allocated"] == 5


def test_a_run_whose_time_was_up_counts_where_no_whole_one_does_and_steps_are_enough():
    up = rows.TIME_IS_UP
    entries = [
        entry("core", 10.0), entry("core", 90.0, phase="second", status=up),
        entry("default", 2.0, status=up, steps=6, timed_steps=3),
        entry("plain64", 5.0, status=up, steps=5, timed_steps=2), entry("static", 5.0, status=1),
    ]  # fmt: skip
    found = rows.compared(entries, 3)
    assert found["times_as_many_samples"] == {"default": 5.0}
    assert {name: (side["steps"], side["cut"]) for name, side in found["sides"].items()} == {
        "core": (12, False),
        "default": (6, True),
    }


class Fakes:
    """Processes that write rows at once, on a clock of their own.

    A run takes START seconds and `seconds` of its configuration for each step.
    """

    START = 10.0

    def __init__(self, monkeypatch, seconds, broken=()):
        self.seconds, self.broken, self.now, self.started = seconds, broken, 0.0, []
        monkeypatch.setattr(compare.subprocess, "run", self.run)
        monkeypatch.setattr(compare.time, "monotonic", lambda: self.now)

    def run(self, command, *, stdout, timeout, **_):
        out = Path(command[command.index("--out") + 1])
        self.started.append(out.stem)
        configuration = out.stem.split("-", 1)[1]
        if configuration in self.broken:
            stdout.write(b"Traceback: no such thing\n")
            self.now += self.START
            return subprocess.CompletedProcess(command, 1)
        each, wanted = self.seconds[configuration], int(command[command.index("--steps") + 1])
        steps = min(wanted, max(int((timeout - self.START) / each), 0))
        lines = [{"kind": "setup"}, *(step(i, each if i else None) for i in range(steps))]
        lines += [{"kind": "end"}] if steps == wanted else []
        out.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.now += min(self.START + each * wanted, timeout)
        if steps < wanted:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, 0)


def compared(tmp_path, *more, candidates="plain64,static"):
    words = [FILE, "--out", str(tmp_path), "--steps", "12", "--candidates", candidates, *more]
    status = compare.main(words)
    return status, json.loads((tmp_path / "summary.json").read_text())


SPEEDS = {"core": 1.0, "default": 4.0, "plain64": 3.0, "static": 2.0}


def test_no_two_runs_overlap_and_the_second_round_is_in_the_opposite_order(tmp_path, monkeypatch):
    fakes = Fakes(monkeypatch, SPEEDS)
    status, found = compared(tmp_path)
    # static is faster, but its weights are bfloat16; plain64 is the fastest with ours
    assert fakes.started == [
        "try-plain64", "try-static", "first-core", "first-static", "first-plain64", "first-default",
        "second-default", "second-plain64", "second-static", "second-core",
    ]  # fmt: skip
    assert found["times_as_many_samples"] == {"default": 4.0, "static": 2.0, "plain64": 3.0}
    assert found["sides"]["default"]["runs"] == 2
    assert status == 0
    assert not list(tmp_path.glob("*.log"))


@pytest.mark.parametrize("slow", [10.0, 16.0, 25.0, 60.0])
@pytest.mark.parametrize("seconds", [300.0, 540.0])
def test_a_slow_default_takes_no_time_from_the_fastest(tmp_path, monkeypatch, slow, seconds):
    fakes = Fakes(monkeypatch, {**SPEEDS, "default": slow})
    status, found = compared(tmp_path, "--seconds", str(seconds))
    runs = {f"{e['phase']}-{e['configuration']}": e for e in found["runs"]}
    for name in ("first-core", "first-static", "first-plain64"):
        assert (runs[name]["status"], runs[name]["steps"]) == (0, 12)
    default = found["sides"].get("default")
    done = runs["first-default"].get("steps", 0)
    assert (default is not None) == (done >= 6)  # 3 of warm-up and 3 timed
    if default:
        assert default["cut"] == (done < 12)
        assert default["samples_per_second"] == pytest.approx(8 / slow)
    assert status == (0 if default else 1)
    assert fakes.now <= seconds


def test_a_repeated_default_leaves_the_others_their_second_run(tmp_path, monkeypatch):
    fakes = Fakes(monkeypatch, {**SPEEDS, "default": 15.0})
    _, found = compared(tmp_path)
    assert found["sides"]["default"]["runs"] == 1
    assert fakes.started[-3:] == ["second-plain64", "second-static", "second-core"]


def test_our_own_run_cannot_take_the_time_of_the_fastest(tmp_path, monkeypatch):
    Fakes(monkeypatch, {**SPEEDS, "core": 50.0})
    status, found = compared(tmp_path)
    assert found["sides"]["core"]["cut"]
    assert found["sides"]["static"]["steps"] == 12
    assert status == 1  # nothing was left for the default


def test_without_a_candidate_that_runs_ours_and_the_default_are_compared(tmp_path, monkeypatch):
    fakes = Fakes(monkeypatch, SPEEDS, broken=("plain64", "static"))
    status, found = compared(tmp_path)
    assert fakes.started[2:4] == ["first-core", "first-default"]
    assert found["times_as_many_samples"] == {"default": 4.0}
    assert status == 0
    assert found["runs"][0]["output"] == "Traceback: no such thing\n"


def test_a_run_that_fails_leaves_its_output(tmp_path, monkeypatch, capsys):
    def run(command, stdout, **_):
        stdout.write(b"Traceback: no such thing\n")
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(compare.subprocess, "run", run)
    words = [FILE, "--out", str(tmp_path), "--steps", "5", "--candidates", ""]
    assert compare.main(words) == 1
    found = json.loads((tmp_path / "summary.json").read_text())
    assert found["runs"][0]["output"] == "Traceback: no such thing\n"
    assert "core" in capsys.readouterr().out


@pytest.mark.slow
def test_both_sides_run_on_the_same_questions(folder, tmp_path):
    """Two steps of each on a CPU: rows of the same shape, and master weights in float32."""
    found = {}
    for name, module in (("core", "own"), ("trl", "trl_grpo")):
        out = tmp_path / f"{name}.jsonl"
        command = [sys.executable, "-m", f"capture.core.peer.{module}", FILE, "--out", str(out)]
        command += ["--steps", "2"]
        command += [word for change in changes(folder) for word in ("--set", change)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr[-2000:]
        found[name] = rows.read(out)
        assert rows.summary(found[name], warmup=1)["samples"] == 16
    setups = {name: lines[0] for name, lines in found.items()}
    for key in ("samples_per_step", "lr", "temperature", "max_new_tokens", "forward_dtype"):
        assert setups["core"][key] == setups["trl"][key]
    assert found["trl"][1]["master_dtypes"] == ["float32"]
