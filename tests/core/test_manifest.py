"""The manifest: nothing is loaded from a checkpoint that it does not vouch for."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from capture.core import manifest as manifests
from capture.core.errors import CheckpointError
from capture.core.manifest import Manifest, Shape, lock_digest

CURSOR = {
    "pool": 8,
    "batch": 2,
    "seed": 1,
    "shuffle": True,
    "collection": 3,
    "drawn": 8,
    "pending": [{"collection": 3, "prompts": [4, 5]}],
}


def described(world=1, **changes):
    own = Manifest(
        world_size=world,
        ep_degree=1,
        optimizer_step=6,
        policy_version=6,
        collection=3,
        lr=0.5,
        consumed=4,
        cursor=CURSOR,
        lock_sha256=lock_digest(),
    )
    return replace(own, **changes)


def checkpoint(folder, world=1, **changes):
    """A finished checkpoint of `world` ranks, with small files."""
    (folder / "train").mkdir(parents=True)
    (folder / "model_and_optim").mkdir()
    for rank in range(world):
        (folder / f"train/rank{rank}.pt").write_bytes(bytes([rank]) * 50)
        (folder / f"model_and_optim/__{rank}_0.distcp").write_bytes(b"weights" * 20)
    (folder / "model_and_optim/.metadata").write_bytes(b"plan")
    entries = manifests.file_entries(folder)
    manifests.write(folder, described(world, files=entries, **changes))
    return folder


SHAPE = Shape(1, 1)


def test_what_was_written_is_read(tmp_path):
    folder = checkpoint(tmp_path / "c")
    found = manifests.check(folder, Shape(1, 1, lock_digest()))
    assert found == described(files=manifests.file_entries(folder))
    assert [entry.path for entry in found.files] == [
        "model_and_optim/.metadata",
        "model_and_optim/__0_0.distcp",
        "train/rank0.pt",
    ]
    keys = json.loads((folder / "manifest.json").read_text())
    assert {"schema", "world_size", "ep_degree", "cursor", "policy_version"} <= set(keys)


def test_needs_neither_torch_nor_numpy():
    code = (
        "import sys, capture.core.manifest, capture.core.clock, capture.core.checkpointcli;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'olmo_core')))"
    )
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


@pytest.mark.parametrize(
    ("made", "shape", "key"),
    [
        (2, Shape(1, 1), "world_size: 2: this run has 1"),
        (1, Shape(2, 1), "world_size: 1: this run has 2"),
        (2, Shape(2, 2), "ep_degree: 1: this run has 2"),
        (1, Shape(1, 1, "0" * 64), "lock_sha256"),
    ],
)
def test_another_topology_or_lock_is_refused(tmp_path, made, shape, key):
    folder = checkpoint(tmp_path / "c", made)
    with pytest.raises(CheckpointError, match=key):
        manifests.check(folder, shape)


def test_every_cut_of_the_manifest_is_refused(tmp_path):
    folder = checkpoint(tmp_path / "c")
    path = folder / "manifest.json"
    whole = path.read_bytes()
    for length in range(0, len(whole) - 2, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"manifest\.json: torn or damaged"):
            manifests.read(folder)
    path.write_bytes(whole.replace(b"{", b"\xff", 1))
    with pytest.raises(CheckpointError, match="cannot be read"):
        manifests.read(folder)
    path.unlink()
    with pytest.raises(CheckpointError, match="never finished"):
        manifests.read(folder)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("schema", 3, "schema: 3"),
        ("schema", "2", "schema"),
        ("schema", True, "schema"),
        ("world_size", 0, "world_size: 0"),
        ("world_size", 1.0, "world_size: 1.0"),
        ("world_size", 2, "missing for rank 1 of 2"),
        ("ep_degree", 3, "ep_degree: 3"),
        ("optimizer_step", -1, "optimizer_step"),
        ("policy_version", 7, "policy_version: 7: not the weights of 6"),
        ("policy_version", None, "policy_version"),
        ("collection", 2, "collection: 2: the cursor stands at 3"),
        ("lr", "0.5", "lr"),
        ("lr", -0.5, "lr"),
        ("consumed", 7, "consumed: 7"),
        ("cursor", None, "cursor"),
        ("cursor", {**CURSOR, "drawn": 9}, "cursor.drawn"),
        ("lock_sha256", "abc", "lock_sha256"),
        ("lock_sha256", None, "lock_sha256"),
        ("files", {}, "files"),
        ("files", [{"path": "../x", "bytes": 1, "sha256": "0" * 64}], r"files\[0\].path"),
        ("files", [{"path": "/etc/x", "bytes": 1, "sha256": "0" * 64}], r"files\[0\].path"),
        ("files", [{"path": "x", "bytes": "1", "sha256": "0" * 64}], r"files\[0\].bytes"),
        ("files", [{"path": "x", "bytes": 1, "sha256": "x"}], r"files\[0\].sha256"),
        ("files", [{"path": "x"}], r"files\[0\]"),
        ("files", [], "train/rank0.pt: missing"),
        ("extra", 1, "extra: no such key"),
        ("digest", None, "digest"),
        ("lr", 0.25, "digest"),
    ],
)
def test_every_wrong_value_is_named(tmp_path, key, value, says):
    folder = checkpoint(tmp_path / "c")
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(CheckpointError, match=says) as error:
        manifests.check(folder, SHAPE)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", sorted(Manifest.__dataclass_fields__))
def test_every_missing_key_is_named(tmp_path, key):
    folder = checkpoint(tmp_path / "c")
    path = folder / "manifest.json"
    data = json.loads(path.read_text())
    del data[key]
    path.write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match=key):
        manifests.read(folder)


@pytest.mark.parametrize("text", ["[]", "null", "3", '{"schema": 2, "schema": 2}', "[" * 100_000])
def test_hostile_json_is_one_line(tmp_path, text):
    folder = checkpoint(tmp_path / "c")
    (folder / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError) as error:
        manifests.read(folder)
    assert "\n" not in str(error.value)


def test_missing_rank_file_is_refused(tmp_path):
    folder = checkpoint(tmp_path / "c", 2)
    (folder / "train/rank1.pt").unlink()
    with pytest.raises(CheckpointError, match=r"rank1\.pt: missing"):
        manifests.check(folder, Shape(2, 1))


def test_changed_shortened_and_added_files_are_refused(tmp_path):
    folder = checkpoint(tmp_path / "c")
    path = folder / "model_and_optim/__0_0.distcp"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="139 bytes, the manifest says 140"):
        manifests.check(folder, SHAPE)
    path.write_bytes(b"W" + whole[1:])
    with pytest.raises(CheckpointError, match="sha256"):
        manifests.check(folder, SHAPE)
    path.write_bytes(whole)
    manifests.check(folder, SHAPE)
    (folder / "train/rank1.pt").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="not in the manifest"):
        manifests.check(folder, SHAPE)


def schema_1(folder, world=1):
    checkpoint(folder, world)
    data = {"schema": 1, "world_size": world, "optimizer_step": 6, "collection": 3}
    (folder / "manifest.json").write_text(json.dumps(data))
    return folder


def test_schema_1_of_several_ranks_says_what_to_do(tmp_path):
    with pytest.raises(CheckpointError, match=r"migrate it explicitly.*verify-checkpoint") as error:
        manifests.check(schema_1(tmp_path / "c", 2), Shape(2, 1))
    assert "EP degree" in str(error.value)


def test_schema_1_of_one_rank_is_taken_without_a_cursor(tmp_path):
    found = manifests.check(schema_1(tmp_path / "c"), SHAPE)
    assert (found.schema, found.collection, found.cursor, found.ep_degree) == (1, 3, None, 1)
    with pytest.raises(CheckpointError, match="world_size"):
        manifests.check(tmp_path / "c", Shape(2, 1))


def test_migration_takes_the_callers_word_and_nothing_else(tmp_path):
    folder = schema_1(tmp_path / "c", 2)
    with pytest.raises(CheckpointError, match="ep_degree"):
        manifests.migrate(folder, ep_degree=3, cursor=CURSOR, lock=lock_digest())
    with pytest.raises(CheckpointError, match="cursor"):
        manifests.migrate(folder, ep_degree=1, cursor={}, lock=lock_digest())
    manifests.migrate(folder, ep_degree=2, cursor=CURSOR, lock=lock_digest())
    found = manifests.check(folder, Shape(2, 2, lock_digest()))
    assert (found.schema, found.cursor) == (2, CURSOR)
    with pytest.raises(CheckpointError, match="only schema 1"):
        manifests.migrate(folder, ep_degree=2, cursor=CURSOR, lock=lock_digest())


@pytest.mark.parametrize("at", ["fsync", "replace"])
def test_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch, at):
    folder = checkpoint(tmp_path / "c")
    old = (folder / "manifest.json").read_bytes()

    def die(*_):
        raise OSError(28, "No space left on device")

    if at == "fsync":
        monkeypatch.setattr(manifests.os, "fsync", die)
    else:
        monkeypatch.setattr(manifests.Path, "replace", die)
    with pytest.raises(OSError, match="No space"):
        manifests.write(folder, described(optimizer_step=8, policy_version=8))
    assert (folder / "manifest.json").read_bytes() == old
    assert sorted(path.name for path in folder.iterdir()) == [
        "manifest.json",
        "model_and_optim",
        "train",
    ]


def cli(*words):
    return manifests.main([str(word) for word in words])


def test_command_line_tells_whole_from_broken(tmp_path, capsys):
    assert cli(tmp_path / "none") == 2
    assert cli(tmp_path) == 3
    run = tmp_path / "run"
    checkpoint(run / "checkpoints/iter_0000003")
    checkpoint(run / "checkpoints/iter_0000006")
    (run / "checkpoints/.iter_0000009.partial").mkdir()
    assert cli(run) == 0
    out = capsys.readouterr().out
    assert out.count(": whole: schema 2") == 2
    assert "1 pending" in out
    assert cli(run, "--world-size", 2) == 1
    assert cli(run, "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["schema"] == 2
    (run / "checkpoints/iter_0000003/train/rank0.pt").write_bytes(b"")
    assert cli(run) == 1
    error = capsys.readouterr().err
    assert "rank0.pt" in error
    assert "Traceback" not in error
    assert cli(run / "checkpoints/iter_0000006") == 0


def test_command_line_migrates(tmp_path, capsys):
    folder = schema_1(tmp_path / "c", 2)
    assert cli(folder) == 1
    assert "--migrate" in capsys.readouterr().err
    assert cli(folder, "--migrate") == 2
    (tmp_path / "cursor.json").write_text(json.dumps(CURSOR))
    assert cli(folder, "--migrate", "--ep-degree", 1, "--cursor", tmp_path / "nothing") == 2
    assert cli(folder, "--migrate", "--ep-degree", 1, "--cursor", tmp_path / "cursor.json") == 0
    assert cli(folder) == 0
    shutil.rmtree(folder / "train")
    assert cli(folder) == 1
