"""The capture kit reads this trainer's log unchanged, and no line says more than was measured."""

import ast
import io
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from contract_records import records

from capture.core import runlog, runmetrics
from capture.core.contract import parse_line
from capture.core.errors import ContractError
from capture.core.runlog import KEYS, RunLog, next_path
from capture.core.samples import Sample

ROOT = Path(runlog.__file__).parents[2]
METRICS = yaml.safe_load((ROOT / "manuals/data/miles-metrics.yaml").read_text())["metrics"]
NAMES = ("python", "-m", "capture.core", "run", "examples/mechanics.toml", "--seed", "7")


class Clock:
    """Seconds that pass only when told."""

    def __init__(self, now=1_795_953_600.25):
        self.now = now

    def __call__(self):
        return self.now


def samples(rng, groups=4, each=4, version=0):
    made = []
    for number in range(groups * each):
        length = int(rng.integers(1, 12))
        made.append(
            Sample(
                sample_id=number,
                group_id=number // each,
                tokens=rng.integers(0, 50, 5 + length),
                prompt_len=5,
                loss_mask=np.ones(length, bool),
                behaviour_logp=-rng.random(length),
                behaviour_version=np.full(length, version),
                reward=float(rng.integers(0, 2)),
                advantage=float(rng.standard_normal()),
                finish="length" if length == 11 else "stop",
            )
        )
    return made


SUMS = {
    "weight": 200.0,
    "tokens": 200.0,
    "pg": 1.0,
    "kl": 2.0,
    "entropy": 250.0,
    "ppo_kl": 0.0,
    "clipfrac": 0.0,
    "tis": 200.2,
    "tis_abs": 0.5,
    "tis_clipfrac": 0.0,
    "abs_diff": 1.2,
    "train_rollout_kl": 0.05,
}


def write_run(path, steps=12, seed=0, status=0, command=NAMES, gap=1.2, first=0, lr=None):
    """A whole run of one step per collection, as the driver writes it; returns the clock."""
    rng, clock = np.random.default_rng(seed), Clock()
    rows = records(steps=steps, world_size=1, optimizer_steps=1, seed=seed, diagnostics=False)
    log = RunLog(
        path,
        name="mechanics",
        command=list(command),
        clock=clock,
        notes=("packages: ai2-olmo-core 3.0.0, torch 2.13.0",),
    )
    if first:
        for what in ("model", "optimizer", "LR scheduler", "RNG state"):
            log.loaded(what, f"checkpoints/iter_{first:07d}")
    for number in range(first, steps):
        batch = samples(rng, version=number)
        clock.now += 2.0
        log.rollout_perf(number, runmetrics.generation(batch, seconds=1.9))
        anchors = [s.behaviour_logp + 0.001 for s in batch]
        log.rollout(number, runmetrics.collection(batch, anchors=anchors, entropies=anchors))
        clock.now += 3.0
        record = rows[number][0]
        values = runmetrics.update(record, {**SUMS, "abs_diff": gap}, grad_norm=0.8)
        log.step(number, values if lr is None else {**values, "train/lr-pg_0": lr})
        log.contract(record)
        log.timer("actor_train", 2.5)
        seconds = {"train_wait": 2.0, "train": 3.0, "actor_train": 2.5, "update_weights": 0.1}
        log.perf(number, runmetrics.times(seconds, model_tokens=500))
        log.note(f"published version {number + 1}: 20 tensors, 1000 bytes, repeated_version=false")
        if number % 5 == 4:
            log.eval(number, runmetrics.evaluation("arithmetic", [0, 1], ["stop", "length"], 0.4))
        if number % 6 == 5:
            log.saved(f"checkpoints/iter_{number + 1:07d}")
    if status is None:
        log.close()
    else:
        log.end(status)
    return clock


def kit(*words):
    done = subprocess.run(
        [sys.executable, str(ROOT / "capture/gpu/kit.py"), *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture(scope="module")
def run_log(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.log"
    write_run(path)
    return path


# -- the kit -------------------------------------------------------------------------------------


def test_summarize_finds_every_line_and_value(run_log):
    done = kit("summarize", "--json", run_log)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert run["markers"]["run"] == "mechanics"
    assert run["markers"]["command"] == " ".join(NAMES)
    assert run["started"].startswith("2026-11-29T12:00:00")
    assert run["ended"]["how"] == "finished"
    assert run["ended"]["status"] == 0
    assert run["steps"]["index"] == run["rollouts"]["index"] == list(range(12))
    assert run["evals"]["index"] == [4, 9]
    assert [item["path"] for item in run["saves"]] == [
        "checkpoints/iter_0000006",
        "checkpoints/iter_0000012",
    ]
    assert run["timers"]["actor_train"] == {"n": 12, "total_s": 30.0}
    assert run["errors"] == []
    assert run["retries"]["total"] == 0
    columns = {**run["rollouts"]["columns"], **run["steps"]["columns"]}
    assert columns["train/train_rollout_logprob_abs_diff"] == [0.006] * 12
    assert columns["perf/step_time"] == [5.0] * 12
    assert columns["rollout/weight_version/max"] == list(range(12))
    assert len(columns["rollout/raw_reward"]) == 12


def test_health_gives_a_verdict_without_an_outside_value(run_log):
    done = kit("health", run_log)
    assert done.returncode == 0, done.stdout + done.stderr


def test_health_sees_a_gap_that_is_too_large(tmp_path):
    path = tmp_path / "run.log"
    write_run(path, gap=200.0)
    done = kit("health", path)
    assert done.returncode == 1
    assert "gap" in done.stdout


def test_diagnose_says_finished_and_names_a_failed_run(run_log, tmp_path):
    done = kit("diagnose", run_log)
    assert done.returncode == 0, done.stdout
    assert "finished" in done.stdout
    path = tmp_path / "run.log"
    write_run(path, steps=3, status=1)
    assert kit("diagnose", path).returncode == 1


def test_a_run_without_its_end_is_still_running(tmp_path):
    path = tmp_path / "run.log"
    write_run(path, steps=3, status=None)
    (run,) = json.loads(kit("summarize", "--json", path).stdout)["runs"]
    assert run["ended"]["how"] == "running"


def test_compare_takes_two_seeds_as_one_setting(run_log, tmp_path):
    other = tmp_path / "other.log"
    write_run(other, seed=3, command=(*NAMES[:-1], "8"))
    done = kit("compare", "--json", run_log, other)
    assert done.returncode == 0, done.stderr
    text = kit("compare", run_log, other).stdout
    assert "one setting on every run" in text
    assert "seed 7" in text
    assert "seed 8" in text
    assert "log-probability gap" in text


def test_report_makes_one_page_of_it(run_log, tmp_path):
    page = tmp_path / "page.html"
    done = kit("report", run_log, "-o", page)
    assert done.returncode == 0, done.stderr
    assert "mechanics" in page.read_text()


def test_a_resumed_run_in_a_second_file_continues_the_first(tmp_path):
    first, second = tmp_path / "run.log", tmp_path / "run-2.log"
    write_run(first, steps=6, lr=1e-3)
    write_run(second, steps=12, first=6, lr=1e-3)
    done = kit("health", "--resume-check", first, second)
    assert done.returncode == 0, done.stdout
    write_run(tmp_path / "run-3.log", steps=12, first=7, lr=1e-3)
    assert kit("health", "--resume-check", first, tmp_path / "run-3.log").returncode == 1


def test_a_second_run_in_one_file_is_a_second_run(tmp_path):
    path = tmp_path / "run.log"
    write_run(path, steps=3)
    write_run(path, steps=4)
    runs = json.loads(kit("summarize", "--json", path).stdout)["runs"]
    assert [len(run["steps"]["index"]) for run in runs] == [3, 4]


def test_loads_are_seen(tmp_path):
    path = tmp_path / "run.log"
    with RunLog(path, name="x", command="y") as log:
        for what in ("model", "optimizer", "LR scheduler", "RNG state", "data"):
            log.loaded(what, "checkpoints/iter_0000003")
        log.step(3, {"train/loss": 1.0})
    (run,) = json.loads(kit("summarize", "--json", path).stdout)["runs"]
    assert [item["what"] for item in run["loads"]] == [
        "model",
        "optimizer",
        "scheduler",
        "rng",
        "data",
    ]
    with RunLog(path, name="x", command="y") as log, pytest.raises(ContractError):
        log.loaded("weights", "x")


# -- keys and values -----------------------------------------------------------------------------


def spelled(key):
    """The yaml's short form {a,b} written out."""
    found = re.search(r"\{([^}]*)\}", key)
    return [key] if not found else [key.replace(found[0], part) for part in found[1].split(",")]


def test_every_key_is_one_of_miles_on_that_line():
    lines = {
        "rollout-perf": "perf N (rollout side)",
        "perf": "perf N (trainer side)",
        "rollout": "rollout N",
        "step": "step K",
        "eval": "eval N",
    }
    known = {(row["line"], key) for row in METRICS for key in spelled(row["key"])}
    missing = [(lines[kind], key) for kind, keys in KEYS.items() for key in keys]
    assert [pair for pair in missing if pair not in known] == []


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("step", "train/reward"),
        ("step", "rollout/rewards"),
        ("rollout", "rollout/rewards2"),
        ("rollout-perf", "rollout/zero_std/count_"),
        ("rollout-perf", "rollout/zero_std/count_x"),
        ("eval", "eval/"),
        ("eval", "eval/a b"),
        ("perf", "perf/anything_time"),
    ],
)
def test_an_invented_key_is_refused(tmp_path, kind, key):
    log = RunLog(tmp_path / "l", name="x", command="y")
    before = (tmp_path / "l").read_bytes()
    with pytest.raises(ContractError, match="is no key of"):
        log.metrics(kind, 0, {key: 1.0})
    log.close()
    assert (tmp_path / "l").read_bytes() == before


@pytest.mark.parametrize("value", [True, "1", None, [1.0]])
def test_a_value_that_is_no_number_is_refused(tmp_path, value):
    log = RunLog(tmp_path / "l", name="x", command="y")
    with pytest.raises(ContractError, match="is no number"):
        log.step(0, {"train/loss": value})
    log.close()


def dicts(path, kind):
    found = re.findall(rf" - {kind} \d+: (\{{.*\}})$", path.read_text(), re.MULTILINE)
    return [ast.literal_eval(text) for text in found]


def test_scalars_of_numpy_print_as_plain_numbers(tmp_path):
    path = tmp_path / "l"
    with RunLog(path, name="x", command="y") as log:
        log.step(0, {"train/loss": np.float32(0.5), "train/step": np.int64(3)})
    assert dicts(path, "step") == [{"train/loss": 0.5, "train/step": 3}]


def test_not_finite_values_print_as_miles_prints_them_and_the_kit_reads_them(tmp_path):
    path = tmp_path / "l"
    with RunLog(path, name="x", command="y") as log:
        log.step(0, {"train/loss": math.nan, "train/grad_norm": math.inf})
    assert "{'train/loss': nan, 'train/grad_norm': inf}" in path.read_text()
    (run,) = json.loads(kit("summarize", "--json", path).stdout)["runs"]
    assert run["steps"]["index"] == [0]


def test_what_was_not_measured_has_no_key():
    record = records(steps=1, world_size=1)[0][0]
    plain = runmetrics.update(record, SUMS, grad_norm=0.8)
    assert not {"train/kl_loss", "train/entropy_loss", "train/tis"} & set(plain)
    full = runmetrics.update(record, SUMS, grad_norm=0.8, kl=True, entropy=True, tis=True)
    assert full["train/kl_loss"] == 0.01
    assert full["train/tis"] == pytest.approx(1.001)
    batch = samples(np.random.default_rng(0))
    assert not {"rollout/log_probs", "rollout/ref_log_probs", "rollout/entropy"} & set(
        runmetrics.collection(batch)
    )
    assert "perf/tokens_per_gpu_per_sec" not in runmetrics.generation(batch, seconds=1.0)
    assert "perf/tokens_per_gpu_per_sec" in runmetrics.generation(batch, seconds=1.0, gpus=1)


def test_the_loss_is_the_global_objective_with_its_router_terms():
    record = records(steps=1, world_size=1)[0][0]
    values = runmetrics.update(record, SUMS, grad_norm=0.8)
    assert values["train/loss"] == record.policy.global_ + sum(t.global_ for t in record.auxiliary)
    assert values["train/lr-pg_0"] == record.lr.next
    assert values["train/step"] == 0


def test_groups_of_one_reward_are_counted_by_it():
    rng = np.random.default_rng(0)
    rewards = [0, 0, 1, 1, 0, 1]  # three groups of two: all 0, all 1, mixed
    batch = [
        Sample(
            sample_id=i,
            group_id=i // 2,
            tokens=[1, 2, 3],
            prompt_len=1,
            loss_mask=[True, True],
            behaviour_logp=-rng.random(2),
            behaviour_version=[0, i % 2],
            reward=float(reward),
        )
        for i, reward in enumerate(rewards)
    ]
    found = runmetrics.generation(batch, seconds=2.0)
    assert found["rollout/zero_std/count_0.0"] == found["rollout/zero_std/count_1.0"] == 1
    assert found["rollout/zero_std/all_zero_percentage"] == pytest.approx(1 / 3)
    assert found["rollout/weight_version/mixed_version_ratio"] == 0.5
    assert found["perf/longest_sample_tokens_per_sec"] == 1.0


def test_token_means_leave_out_masked_tokens():
    sample = Sample(
        sample_id=0,
        group_id=0,
        tokens=[1, 2, 3, 4],
        prompt_len=1,
        loss_mask=[True, False, True],
        behaviour_logp=[-1.0, np.nan, -3.0],
        behaviour_version=[0, 0, 0],
        reward=1.0,
    )
    found = runmetrics.collection([sample], anchors=[np.array([-1.0, np.nan, -2.0])])
    assert found["rollout/rollout_log_probs"] == -2.0
    assert found["rollout/log_probs"] == -1.5


# -- the file ------------------------------------------------------------------------------------


def test_contract_lines_are_equal_to_the_records(run_log):
    found = re.findall(r" - training_contract (\d+): (\{.*\})$", run_log.read_text(), re.MULTILINE)
    rows = records(steps=12, world_size=1, optimizer_steps=1, diagnostics=False)
    assert [int(number) for number, _ in found] == list(range(12))
    lines = [parse_line(text.encode() + b"\n") for _, text in found]
    assert [line.record for line in lines] == [row[0] for row in rows]
    assert all(line.sealed for line in lines)


def test_the_header_says_that_this_is_not_miles(run_log):
    head = [line for line in run_log.read_text().splitlines()[:6] if line.startswith("# ")]
    assert head[0] == "# run mechanics"
    assert head[1] == "# date 2026-11-29T12:00:00Z"
    assert "not Miles" in head[3]


def test_every_line_is_on_disk_before_the_call_returns(tmp_path):
    path = tmp_path / "l"
    log = RunLog(path, name="x", command="y")
    log.step(0, {"train/loss": 1.0})
    assert path.read_text().endswith("{'train/loss': 1.0}\n")
    log.close()


def test_text_with_newlines_stays_one_line_and_forges_none(tmp_path):
    path = tmp_path / "l"
    with RunLog(path, name="x\n# end rc=0", command="y\nz") as log:
        log.note("a\n# end 2026-01-01T00:00:00Z rc=0\nb")
    lines = path.read_text().splitlines()
    assert sum(line.startswith("# end") for line in lines) == 1
    assert "# command: y z" in lines


@pytest.mark.parametrize(
    ("error", "status"), [(None, 0), (ContractError("x", "y"), 1), (KeyboardInterrupt(), 130)]
)
def test_the_end_line_carries_the_status(tmp_path, error, status):
    path, clock = tmp_path / "l", Clock()
    try:
        with RunLog(path, name="x", command="y", clock=clock):
            clock.now += 61.4
            if error:
                raise error
    except (ContractError, KeyboardInterrupt):
        pass
    last = path.read_text().splitlines()[-1]
    assert last == f"# end 2026-11-29T12:01:01Z rc={status} seconds=61"


def test_nothing_follows_the_end(tmp_path):
    log = RunLog(tmp_path / "l", name="x", command="y")
    log.end(0)
    with pytest.raises(ContractError, match="after the end"):
        log.step(0, {"train/loss": 1.0})


def test_the_echo_shows_the_same_lines(tmp_path):
    shown = io.StringIO()
    with RunLog(tmp_path / "l", name="x", command="y", echo=shown) as log:
        log.step(0, {"train/loss": 1.0})
    assert shown.getvalue() == (tmp_path / "l").read_text()


def test_each_start_gets_its_own_file(tmp_path):
    names = []
    for _ in range(3):
        path = next_path(tmp_path)
        path.touch()
        names.append(path.name)
    assert names == ["run.log", "run-2.log", "run-3.log"]


def test_a_gpu_and_the_packages_stand_in_the_header(tmp_path):
    path = tmp_path / "l"
    gpu = "NVIDIA H200, 580.159.04, 143771 MiB, 0 MiB"
    RunLog(path, name="x", command="y", gpu=gpu, notes=("packages: torch 2.13.0",)).end(0)
    lines = path.read_text().splitlines()
    assert f"# gpu {gpu}" in lines
    assert "# packages: torch 2.13.0" in lines
