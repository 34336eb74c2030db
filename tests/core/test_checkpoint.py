"""Checkpoints on disk: the last finished one survives whatever happens to the next."""

import json
import os
import resource
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from capture.core import checkpoint, manifest
from capture.core.checkpoint import CheckpointStore
from capture.core.errors import CheckpointError
from capture.core.manifest import Manifest, Shape

LOCK = "a" * 64
SHAPE = Shape(1, 1, LOCK)


def describe(step):
    cursor = {"pool": 4, "batch": 2, "seed": 0, "shuffle": False, "pending": []}
    own = Manifest(
        world_size=1,
        ep_degree=1,
        optimizer_step=step,
        policy_version=step,
        collection=step,
        lr=0.1,
        consumed=None,
        cursor={**cursor, "collection": step, "drawn": 2 * step},
        lock_sha256=LOCK,
    )
    return lambda files: replace(own, files=files)


def native(content=b"weights"):
    def write(folder):
        (folder / "train").mkdir(parents=True)
        (folder / "model_and_optim").mkdir()
        (folder / "train/rank0.pt").write_bytes(b"state")
        (folder / "model_and_optim/__0_0.distcp").write_bytes(content)

    return write


def save(store, *steps):
    for step in steps:
        store.save(step, native(), describe(step))


def test_latest_is_the_newest_finished_one(tmp_path):
    store = CheckpointStore(tmp_path)
    assert store.latest() is None
    save(store, 9, 10, 100)
    assert store.collections() == [9, 10, 100]
    assert store.latest() == tmp_path / "checkpoints/iter_0000100"
    assert store.check(store.latest(), SHAPE).optimizer_step == 100


@pytest.mark.parametrize(
    ("keep", "left"), [(0, [1, 2, 3, 4]), (1, [4]), (2, [3, 4]), (9, [1, 2, 3, 4])]
)
def test_newest_are_kept(tmp_path, keep, left):
    store = CheckpointStore(tmp_path, keep=keep)
    save(store, 1, 2, 3, 4)
    assert store.collections() == left
    assert sorted(path.name for path in store.root.iterdir()) == [store.path(s).name for s in left]


def test_no_checkpoint_is_written_over(tmp_path):
    store = CheckpointStore(tmp_path)
    save(store, 1)
    with pytest.raises(CheckpointError, match="already"):
        save(store, 1)
    store.check(store.latest(), SHAPE)


def test_what_an_interrupted_write_left_is_swept(tmp_path):
    store = CheckpointStore(tmp_path)
    save(store, 1)
    for name in (".iter_0000002.partial", ".iter_0000002.partial-tmp"):
        (store.root / name / "train").mkdir(parents=True)
    (store.root / "notes").mkdir()
    assert store.collections() == [1]
    save(store, 2)
    assert sorted(path.name for path in store.root.iterdir()) == [
        "iter_0000001",
        "iter_0000002",
        "notes",
    ]


def in_child(action):
    """Run `action` in a forked process; give how it ended."""
    child = os.fork()
    if not child:
        try:
            action()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


CRASHES = {
    "before the native write": (manifest.Path, "mkdir"),
    "after the native write": (manifest, "file_entries"),
    "before the manifest": (manifest, "write"),
    "inside the manifest": (manifest.Path, "replace"),
    "before the rename": (checkpoint.Path, "rename"),
    "after the rename": (CheckpointStore, "_prune"),
}


@pytest.mark.parametrize("place", CRASHES)
def test_kill_between_any_two_writes_leaves_a_valid_latest(tmp_path, monkeypatch, place):
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 1)
    owner, name = CRASHES[place]

    def crash():
        setattr(owner, name, die)
        save(store, 2)

    assert in_child(crash) == -signal.SIGKILL
    last = 2 if place == "after the rename" else 1
    assert store.latest() == store.path(last)
    for step in store.collections():
        assert store.check(store.path(step), SHAPE).optimizer_step == step
    save(store, 3)
    assert store.collections() == [3]
    assert [path.name for path in store.root.iterdir()] == ["iter_0000003"]


def test_disk_full_is_one_line_and_leaves_the_last_one(tmp_path):
    store = CheckpointStore(tmp_path)
    save(store, 1)
    problem = tmp_path / "problem"

    def fill():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            store.save(2, native(b"w" * 10_000), describe(2))
        except CheckpointError as error:
            problem.write_text(str(error))

    assert in_child(fill) == 0
    text = problem.read_text()
    assert "in the native write: OSError" in text
    assert "\n" not in text
    assert [path.name for path in store.root.iterdir()] == ["iter_0000001"]
    save(store, 2)
    assert store.latest() == store.path(2)


def test_torn_latest_is_refused_and_the_one_before_named(tmp_path):
    store = CheckpointStore(tmp_path)
    save(store, 1, 2)
    path = store.path(2) / "manifest.json"
    path.write_text(path.read_text()[:100])
    with pytest.raises(
        CheckpointError, match=r"torn or damaged.*the one before it is iter_0000001"
    ):
        store.check(store.latest(), SHAPE)


def test_folder_of_another_step_is_refused(tmp_path):
    store = CheckpointStore(tmp_path)
    save(store, 1)
    store.path(1).rename(store.path(5))
    with pytest.raises(CheckpointError, match="of 1 collections"):
        store.check(store.latest(), SHAPE)


def test_error_of_one_rank_stops_all_of_them(tmp_path):
    """Rank 1 writes nothing itself, but takes part in every agreement and hears of the error."""
    heard = []

    def agree(problem):
        heard.append(problem)
        if len(heard) == 2:
            raise CheckpointError("rank 0: disk full")

    store = CheckpointStore(tmp_path, rank=1, agree=agree)
    with pytest.raises(CheckpointError, match="rank 0: disk full"):
        store.save(1, lambda folder: None, describe(1))
    assert heard == [None, None]
    assert list(tmp_path.rglob("*")) == []


def core(tmp_path, script):
    """Run a script that needs OLMo-core in a process of its own."""
    import subprocess
    import sys

    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_native_round_trip_is_bitwise_with_random_state(tmp_path):
    found = core(tmp_path, NATIVE)
    assert found == {
        "weights": True,
        "moments": True,
        "torch rng": True,
        "numpy rng": True,
        "python rng": True,
        "step": 1,
        "missing rank": True,
    }


NATIVE = """
import json, random, sys
from pathlib import Path
import numpy as np, torch
from capture.core import checkpoint, configfile, tasks, tinymodel
from capture.core.actor import CoreActor
from capture.core.errors import CheckpointError
from capture.core.samples import Collection, Sample

root = Path(sys.argv[1])
config = configfile.parse({
    "model": {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_kv_heads": 1, "ffn": 16},
    "rollout": {"rollout_batch_size": 1, "n_samples_per_prompt": 2},
    "batch": {"global_batch_size": 2},
    "optimizer": {"lr": 1e-2}, "scoring": {"max_mean_drift": 0.0},
})
task = tasks.load(config)
folder = tinymodel.prepare(config, task, root / "model")
def actor():
    own = CoreActor(config); own.init(folder); return own
samples = tuple(Sample(i, 0, np.array([1, 4, 5, 2]), 2, np.ones(2, bool), np.zeros(2, np.float32),
                       np.zeros(2, np.int64), float(i), 1.0 - 2 * i) for i in range(2))
one = actor()
one.train(Collection(samples, 0), 0)
one.save(root / "c")
drawn = torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()
two = actor()
two.restore(root / "c")
again = torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()
def state(own):
    return {k: v for k, v in own.module.state_dict_to_save().items()}
def flat(tree, prefix=""):
    for key, value in tree.items():
        if isinstance(value, dict): yield from flat(value, prefix + key + ".")
        elif torch.is_tensor(value): yield prefix + key, value
a, b = dict(flat(state(one))), dict(flat(state(two)))
same = {k: torch.equal(a[k], b[k]) for k in a}
(root / "c/train/rank0.pt").unlink()
try:
    checkpoint.load_native(root / "c", two.module); missing = False
except CheckpointError:
    missing = True
def equal(part):
    found = [v for k, v in same.items() if part in k]
    return bool(found) and all(found)
print(json.dumps({
    "weights": equal("model."), "moments": equal("exp_avg"),
    "torch rng": drawn[0] == again[0], "numpy rng": drawn[1] == again[1],
    "python rng": drawn[2] == again[2], "step": two.optimizer_step, "missing rank": missing,
}))
"""
