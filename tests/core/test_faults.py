"""Faults at each boundary of the driver: no step lost silently, no version ahead of its weights."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import fakes
import pytest
import torch
from safetensors.torch import load_file

from capture.core import checkpoint, driver, export, manifest
from capture.core.checkpoint import CheckpointStore
from capture.core.contract import ContractWriter, read
from capture.core.errors import CheckpointError, ContractError, CoreRunError, PublicationError
from capture.core.manifest import Shape, lock_digest

ROOT = Path(__file__).resolve().parents[2]


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(action):
    """Run `action` in a forked process; give how it ended."""
    child = os.fork()
    if not child:
        try:
            action()
        except CoreRunError as error:
            print(error, file=sys.stderr)
            os._exit(1)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def start(folder, *, boundary=None, faults=None, fail_at=None, arm=None, **changes):
    config = fakes.settings(folder, **changes)
    made = fakes.parts(config, folder, faults=faults, fail_at=fail_at)
    if arm is not None:
        arm(made)
    return driver.run(config, parts=made, boundary=boundary)


def resume(folder, **changes):
    return start(folder, miles__load=str(folder / "run"), **changes)


def weights(folder):
    return load_file(folder / "hf/model.safetensors")


def records(folder, name="training_contract_rank0.jsonl"):
    lines = list(read(folder / "run" / name))
    assert all(line.problem is None for line in lines)
    return [line.record.model_copy(update={"seconds": 0.0}) for line in lines]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The same run without a fault."""
    folder = tmp_path_factory.mktemp("straight")
    start(folder)
    return folder


def assert_whole_checkpoints(folder):
    """Every visible checkpoint is valid; gives their optimizer steps."""
    store = CheckpointStore(folder / "run")
    for count in store.collections():
        found = store.check(store.path(count), Shape(1, 1, lock_digest()))
        assert found.policy_version == found.optimizer_step == 2 * count
    return [2 * count for count in store.collections()]


def assert_as_if_nothing_happened(folder, straight):
    resume(folder)
    one, other = weights(folder), weights(straight)
    assert all(torch.equal(one[name], other[name]) for name in other)
    assert records(folder) == records(straight)
    assert assert_whole_checkpoints(folder)[-1] == 12


@pytest.mark.parametrize("name", driver.BOUNDARIES[:-1])
def test_kill_at_a_boundary_loses_no_step(tmp_path, straight, name):
    at = [(name, 3)]
    ended = in_child(
        lambda: start(tmp_path, boundary=lambda *where: die() if where == at[0] else None)
    )
    assert ended == -signal.SIGKILL
    done = assert_whole_checkpoints(tmp_path)
    assert done[-1] == (8 if name == "checkpointed" else 6)
    assert not (tmp_path / "hf").exists()
    assert_as_if_nothing_happened(tmp_path, straight)


def inside_publication(made):
    load, loads = made.engine.load, []

    def dying(named, version, **settings):
        loads.append(version)
        stream = iter(named)
        if version == 8:
            next(stream)
            die()
        return load(stream, version, **settings)

    made.engine.load = dying


def between_optimizer_steps(made):
    steps = made.actor.steps

    def dying(collection, version):
        for result in steps(collection, version):
            if result.step == 8:
                die()
            yield result

    made.actor.steps = dying


def inside_a_record(made):
    write = ContractWriter.write

    def dying(self, record):
        if record.step == 8:
            os.write(self._descriptor, record.line().encode()[:200])
            die()
        return write(self, record)

    ContractWriter.write = dying


def inside_the_native_write(made):
    def dying(folder):
        (folder / "train").mkdir(parents=True)
        (folder / "train/rank0.pt").write_text("{")
        die()

    save = made.actor.save
    made.actor.save = lambda folder: (
        dying(folder) if made.actor.optimizer_step == 8 else save(folder)
    )


def _crash(owner, name, step):
    """Die where `owner.name` is called for the checkpoint of `step`."""

    def arm(made):
        whole = getattr(owner, name)

        def dying(*given, **named):
            return die() if made.actor.optimizer_step == step else whole(*given, **named)

        setattr(owner, name, dying)

    return arm


PLACES = {
    "inside the publication": (inside_publication, 6),
    "between two optimizer steps": (between_optimizer_steps, 6),
    "inside a contract record": (inside_a_record, 6),
    "inside the native checkpoint": (inside_the_native_write, 6),
    "before the manifest": (_crash(manifest, "write", 8), 6),
    "inside the manifest": (_crash(manifest.Path, "replace", 8), 6),
    "before the checkpoint's rename": (_crash(checkpoint.Path, "rename", 8), 6),
    "after the checkpoint's rename": (_crash(CheckpointStore, "_prune", 8), 8),
    "inside the final export": (_crash(export.shutil, "copy2", 12), 12),
}


@pytest.mark.parametrize("place", PLACES)
def test_kill_between_boundaries_loses_no_step(tmp_path, straight, place):
    arm, last = PLACES[place]
    assert in_child(lambda: start(tmp_path, arm=arm)) == -signal.SIGKILL
    assert assert_whole_checkpoints(tmp_path)[-1] == last
    assert not (tmp_path / "hf").exists()
    assert_as_if_nothing_happened(tmp_path, straight)


def test_steps_after_the_checkpoint_are_set_aside_not_lost(tmp_path, straight):
    where = ("trained", 3)
    in_child(lambda: start(tmp_path, boundary=lambda *at: die() if at == where else None,
                           miles__save_interval=2))  # fmt: skip
    assert len(records(tmp_path)) == 8
    assert assert_whole_checkpoints(tmp_path)[-1] == 4
    resume(tmp_path)
    aside = records(tmp_path, "training_contract_rank0.jsonl.superseded")
    assert [record.step for record in aside] == [5, 6, 7, 8]
    assert records(tmp_path) == records(straight)


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("nan", "non-finite-loss"),
        ("skip", "optimizer-skip"),
        ("wrong step", "clock-step"),
        ("wrong lr", "clock-lr"),
    ],
)
@pytest.mark.parametrize("step", [7, 8])
def test_bad_step_ends_the_run_before_the_clock_moves(tmp_path, straight, fault, check, step):
    seen = {}

    def arm(made):
        seen["made"] = made

    with pytest.raises(ContractError) as error:
        start(tmp_path, faults={step: fault}, arm=arm)
    assert error.value.check == check
    assert [record.step for record in records(tmp_path)] == list(range(1, step))
    assert seen["made"].engine.version == 6
    assert assert_whole_checkpoints(tmp_path)[-1] == 6
    assert "rc=1" in (tmp_path / "run/run.log").read_text()
    assert_as_if_nothing_happened(tmp_path, straight)


@pytest.mark.parametrize("load", [1, 4])
def test_engine_that_dies_in_a_transfer_never_serves_the_new_version(tmp_path, straight, load):
    seen = {}
    with pytest.raises(PublicationError, match="the engine went away"):
        start(tmp_path, fail_at=load, arm=lambda made: seen.update(made=made))
    engine, actor = seen["made"].engine, seen["made"].actor
    assert engine.version is None
    assert actor.optimizer_step == 2 * (load - 1)
    if load == 1:
        assert assert_whole_checkpoints(tmp_path) == []
        return
    assert assert_whole_checkpoints(tmp_path)[-1] == 4
    assert_as_if_nothing_happened(tmp_path, straight)


def test_engine_that_dies_while_generating_ends_the_run(tmp_path, straight):
    def arm(made):
        calls = []

        def during():
            calls.append(1)
            if len(calls) == 4:
                raise ConnectionError("no route")

        made.engine.during = during

    with pytest.raises(ContractError, match="rollout: ConnectionError: no route"):
        start(tmp_path, arm=arm)
    assert assert_whole_checkpoints(tmp_path)[-1] == 6
    assert_as_if_nothing_happened(tmp_path, straight)


def test_engine_that_was_restarted_behind_our_back_is_not_used(tmp_path):
    seen = {}

    def arm(made):
        seen["made"] = made

    def boundary(name, index):
        if (name, index) == ("published", 2):
            seen["made"].engine.version = 0  # back with the HF weights

    with pytest.raises(CoreRunError, match="holds version 0, version 6 was published"):
        start(tmp_path, arm=arm, boundary=boundary)
    assert len(records(tmp_path)) == 6


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_reward_that_is_not_finite_never_reaches_the_trainer(tmp_path, value):
    def arm(made):
        made.task.reward = lambda prompt, response: value

    with pytest.raises(ContractError, match="non-finite-reward"):
        start(tmp_path, arm=arm)
    assert records(tmp_path) == []


def test_disk_full_in_a_checkpoint_leaves_the_last_one(tmp_path, straight):
    def fill():
        def boundary(name, index):
            if (name, index) == ("evaluated", 3):
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))

        start(tmp_path, boundary=boundary)

    assert in_child(fill) == 1
    assert assert_whole_checkpoints(tmp_path)[-1] == 6
    assert list((tmp_path / "run/checkpoints").glob(".*")) == []
    assert_as_if_nothing_happened(tmp_path, straight)


def test_torn_checkpoint_is_refused_not_passed_over(tmp_path):
    start(tmp_path, miles__debug_exit_after_rollout=3)
    newest = CheckpointStore(tmp_path / "run").latest()
    path = newest / "model_and_optim/weights.pt"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"weights\.pt.*the one before it is iter_0000002"):
        resume(tmp_path)
    assert len(records(tmp_path)) == 6


def test_interrupt_of_a_person_is_logged(tmp_path):
    def boundary(name, index):
        if (name, index) == ("trained", 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, boundary=boundary)
    assert "rc=130" in (tmp_path / "run/run.log").read_text()


def test_killed_async_run_generates_its_pending_prompts_again(tmp_path):
    changes = {"rollout__mode": "async", "rollout__max_lag": 4, "engine__batch_size": 2}
    where = ("checkpointed", 2)

    def boundary(*at):
        if at == where:
            time.sleep(0.2)  # let the producer draw
            die()

    assert in_child(lambda: start(tmp_path, boundary=boundary, **changes)) == -signal.SIGKILL
    path = CheckpointStore(tmp_path / "run").latest() / "manifest.json"
    cursor = json.loads(path.read_text())["cursor"]
    assert cursor["collection"] == 3
    result = resume(tmp_path, **changes)
    assert (result.completed, len(result.rewards)) == (True, 3)
    assert [record.step for record in records(tmp_path)] == list(range(1, 13))


# -- two ranks -----------------------------------------------------------------------------------


FAULTS = {
    "wrong step": ("rank 1 completed optimizer step 6, the clock expects 5", 4),
    "wrong lr": ("rank 1 has lr_used", 4),
    "disk full": ("rank 1: OSError.*No space", 5),
    "export": ("rank 1: RuntimeError: lost a shard", 4),
    "engine": ("rank 0: version 4 was being published", 4),
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The folder of two ranks that ran TWO_RANKS with every fault, and what each saw."""
    folder = tmp_path_factory.mktemp("two")
    running = []
    for rank in range(2):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        running.append(
            subprocess.Popen(
                [sys.executable, "-c", TWO_RANKS, str(folder), "none", *FAULTS],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    found = []
    for process in running:
        out, error = process.communicate(timeout=240)
        assert process.returncode == 0, error[-2000:]
        found.append(json.loads(out.splitlines()[-1]))
    return folder, found


TWO_RANKS = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, "tests/core")
import fakes, torch.distributed as dist
from capture.core import driver
from capture.core.errors import CoreRunError

root, rank = Path(sys.argv[1]), int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{root}/meet", rank=rank, world_size=2)
write = driver.Journal.write

def full(self, record):
    if record.step == 5: raise OSError(28, "No space left on device")
    write(self, record)

def one(fault):
    folder = root / fault
    config = fakes.settings(folder, parallel__world_size=2)
    made = fakes.parts(config, folder)
    made.actor = fakes.Actor(config, {5: fault} if rank == 1 and fault.startswith("wrong") else {})
    driver.Journal.write = full if rank == 1 and fault == "disk full" else write
    if rank == 1:
        made.engine = None
        if fault == "export":
            export = made.actor.export
            def broken():
                if made.actor.optimizer_step == 4: raise RuntimeError("lost a shard")
                return export()
            made.actor.export = broken
    if rank == 0 and fault == "engine":
        made.engine = fakes.Engine(fail_at=3)
    seen = []
    try:
        result = driver.run(config, parts=made, boundary=lambda *at: seen.append(at))
        ended = "complete" if result.completed else "stopped"
    except CoreRunError as error:
        ended = str(error)
    return {"ended": ended, "step": made.actor.optimizer_step, "seen": len(seen),
            "version": made.engine.version if made.engine else None}

print(json.dumps({fault: one(fault) for fault in sys.argv[2:]}), flush=True)
dist.destroy_process_group()
"""


def test_two_ranks_agree_to_the_end(ranks):
    folder, found = ranks
    assert [one["none"]["ended"] for one in found] == ["complete"] * 2
    for rank in range(2):
        name = f"training_contract_rank{rank}.jsonl"
        assert [record.step for record in records(folder / "none", name)] == list(range(1, 13))


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_of_one_rank_ends_both_with_the_same_words(ranks, fault):
    import re

    folder, found = ranks[0] / fault, [one[fault] for one in ranks[1]]
    says, recorded = FAULTS[fault]
    assert found[0]["ended"] == found[1]["ended"]
    assert re.search(says, found[0]["ended"])
    assert found[0]["seen"] == found[1]["seen"]
    assert len(records(folder)) == recorded
    store = CheckpointStore(folder / "run")
    last = store.check(store.latest(), Shape(2, 1, lock_digest()))
    assert last.optimizer_step == (4 if recorded == 5 or fault.startswith("wrong") else 2)
