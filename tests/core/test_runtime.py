"""The lock of the runtime: a changed version, file or private signature is named before a run."""

import ast
import base64
import copy
import hashlib
import importlib
import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from capture.core import runtime
from capture.core.errors import RuntimeLockError

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "capture/core"
MODULE = "olmo_core.train.train_module.transformer.train_module:TransformerTrainModule"


@pytest.fixture
def lock():
    return copy.deepcopy(runtime.read())


def core_imports():
    """`module:name` of everything that a module here takes from olmo_core, with who takes it."""
    found = {}
    for path in sorted(CORE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("olmo_core"):
                for name in node.names:
                    found[f"{node.module}:{name.name}"] = path.name
            elif isinstance(node, ast.Import):
                for name in node.names:
                    if name.name.startswith("olmo_core"):
                        found[f"{name.name}:"] = path.name
    return found


def overridden():
    """`module:Class.method` of each Core method that a subclass here overrides."""
    found = set()
    for name in ("hook", "docmask", "router"):
        module = importlib.import_module(f"capture.core.{name}")
        for kind in vars(module).values():
            if isinstance(kind, type) and kind.__module__ == module.__name__:
                core = [base for base in kind.__mro__ if base.__module__.startswith("olmo_core.")]
                for name, value in vars(kind).items():
                    owner = next((base for base in core if name in vars(base)), None)
                    if owner and callable(value):
                        found.add(f"{owner.__module__}:{owner.__name__}.{name}")
    return found


def test_what_is_installed_is_what_the_lock_says():
    runtime.check(again=True)


def test_every_name_taken_from_core_is_in_the_lock(lock):
    imports = core_imports()
    assert len(imports) > 20
    missing = {name: who for name, who in imports.items() if name not in lock["signatures"]}
    assert not missing


def test_every_core_method_that_is_overridden_is_in_the_lock(lock):
    found = overridden()
    assert f"{MODULE}.model_forward" in found
    assert not found - lock["signatures"].keys()


@pytest.mark.parametrize("name", ["ai2-olmo-core", "torch", "transformers"])
def test_an_older_version_is_named(lock, name):
    lock["packages"][name]["version"] = "0.0.1"
    (problem,) = runtime.versions(lock)
    assert problem.startswith(f"{name}: version ")
    assert problem.endswith("the lock has 0.0.1")


def test_a_package_that_is_not_there_is_named(lock):
    lock["packages"]["no-such-package-here"] = {"version": "1.0"}
    assert "no-such-package-here: not installed; the lock has 1.0" in runtime.versions(lock)


def test_a_build_suffix_is_no_other_version(lock, monkeypatch):
    real = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: real(name) if name != "torch" else "2.13.0+cu130"
    )
    assert runtime.versions(lock) == []


def test_another_wheel_of_the_same_version_is_named(lock):
    lock["packages"]["ai2-olmo-core"]["record"] = "0" * 64
    (problem,) = runtime.versions(lock)
    assert problem.startswith("ai2-olmo-core: other files than")


def test_an_edited_core_file_is_named(lock, monkeypatch):
    """The file on the disk is compared with the hash that pip recorded for it."""
    real = metadata.PackagePath.read_binary

    def edited(self):
        data = real(self)
        return data + b"# patched\n" if self.name == "train_module.py" else data

    monkeypatch.setattr(metadata.PackagePath, "read_binary", edited)
    problems = runtime.versions(lock)
    assert problems
    assert all(re.match(r"ai2-olmo-core: .*train_module\.py: edited after", p) for p in problems)


def test_a_recorded_hash_is_of_the_files_content():
    """So that the comparison above compares what it says."""
    files = metadata.distribution("ai2-olmo-core").files
    file = next(f for f in files if str(f) == "olmo_core/train/checkpoint.py")
    digest = hashlib.new(file.hash.mode, file.read_binary()).digest()
    assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == file.hash.value


def test_a_changed_signature_names_both(lock):
    lock["signatures"][f"{MODULE}.model_forward"] = "(self, ids)"
    (problem,) = runtime.signatures(lock)
    assert problem == (
        f"{MODULE}.model_forward: is (self, input_ids, labels=None, **kwargs);"
        " the lock has (self, ids)"
    )


def test_a_private_name_that_is_gone_is_named(lock):
    lock["signatures"][f"{MODULE}._not_there"] = "(self)"
    lock["signatures"]["olmo_core.no_such_module:x"] = "(self)"
    problems = runtime.signatures(lock)
    assert f"{MODULE}._not_there: is gone" in problems
    assert "olmo_core.no_such_module:x: is gone" in problems


def test_an_older_core_without_a_control_fails_with_its_name(lock, monkeypatch):
    """A Core in which the hook's context does not exist: the start says so, not the first step."""
    from olmo_core.train.train_module import TransformerTrainModule

    monkeypatch.delattr(TransformerTrainModule, "_train_microbatch_context")
    with pytest.raises(RuntimeLockError, match="_train_microbatch_context: is gone"):
        runtime.check(again=True)


def test_the_first_problem_is_raised_and_the_others_are_counted(lock, monkeypatch):
    lock["packages"]["torch"]["version"] = "1.0"
    lock["packages"]["transformers"]["version"] = "1.0"
    monkeypatch.setattr(runtime, "read", lambda: lock)
    with pytest.raises(RuntimeLockError, match=r"runtime\.lock\.json: .* \(and 1 more\)"):
        runtime.check(again=True)


def test_the_hash_depends_on_content_and_not_on_layout(lock):
    shuffled = json.loads(json.dumps(lock, sort_keys=True, indent=7))
    assert runtime.lock_hash(shuffled) == runtime.lock_hash(lock) == runtime.lock_hash()
    lock["packages"]["torch"]["version"] = "2.13.1"
    assert runtime.lock_hash(lock) != runtime.lock_hash()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 2}'])
def test_a_damaged_lock_is_named(tmp_path, text):
    path = tmp_path / "runtime.lock.json"
    path.write_text(text)
    with pytest.raises(RuntimeLockError, match=r"runtime\.lock\.json"):
        runtime.read(path)


def test_the_locks_agree_with_each_other(lock):
    """Versions and wheel hashes of the runtime lock stand in the requirements."""
    requirements = (CORE / "requirements.lock").read_text()
    wanted = (CORE / "requirements.in").read_text()
    for name, entry in lock["packages"].items():
        assert f"{name}=={entry['version']}\n" in wanted
        if name != "torch":  # installed by version, since builds differ between machines
            assert f"{name}=={entry['version']} " in requirements
            assert all(digest in requirements for digest in entry["wheels"].values())


@pytest.fixture
def gpu_machine(monkeypatch):
    """The installed versions and files are those of the accepted set of the GPU machine."""
    other = runtime.read()["accepted"]["nvidia-h200"]["packages"]
    version, digest = metadata.version, runtime.record_digest
    names = {name: entry["version"] for name, entry in other.items()}
    monkeypatch.setattr(metadata, "version", lambda name: names.get(name) or version(name))
    monkeypatch.setattr(
        runtime, "record_digest", lambda n: other.get(n, {}).get("record") or digest(n)
    )


def test_an_accepted_set_is_as_good_as_the_tested_one(lock, gpu_machine):
    assert runtime.nearest(lock) == ("nvidia-h200", [])
    runtime.check(again=True)


def test_the_program_names_the_set_that_fits(lock, gpu_machine, capsys):
    assert runtime.main([]) == 0
    assert "as locked, set nvidia-h200\n" in capsys.readouterr().out


def test_packages_of_two_sets_are_no_set(lock, gpu_machine, monkeypatch):
    gpu = metadata.version
    monkeypatch.setattr(metadata, "version", lambda n: "2.13.0" if n == "torch" else gpu(n))
    assert len(runtime.versions(lock)) == 1
    with pytest.raises(RuntimeLockError, match="the lock has"):
        runtime.check(again=True)


def test_the_nearest_set_says_what_is_wrong(lock, gpu_machine, monkeypatch):
    monkeypatch.setattr(runtime, "record_digest", lambda name: "0" * 64)
    lock["packages"]["ai2-olmo-core"].pop("record")
    (problem,) = runtime.versions(lock)
    assert problem.startswith("transformers: other files than those of the locked 5.17.0")


def test_an_accepted_set_names_only_packages_of_the_lock(lock):
    for entry in lock["accepted"].values():
        assert entry["packages"].keys() <= lock["packages"].keys()
        assert entry["note"]


def test_refreshing_the_lock_changes_nothing(lock):
    assert runtime.refreshed(lock) == lock


def test_the_program_compares(capsys):
    assert runtime.main([]) == 0
    assert f"lock {runtime.lock_hash()}" in capsys.readouterr().out


def test_the_program_names_what_changed(lock, monkeypatch, capsys):
    lock["packages"]["torch"]["version"] = "1.0"
    monkeypatch.setattr(runtime, "read", lambda: lock)
    assert runtime.main([]) == 1
    assert "torch: version" in capsys.readouterr().err


def test_a_trainer_process_holds_nothing_of_miles_or_megatron():
    """Everything that a run may load, without one being run."""
    program = (
        "import pkgutil, sys, importlib, capture.core\n"
        "for m in pkgutil.walk_packages(capture.core.__path__, 'capture.core.'):\n"
        "    if not m.name.endswith('__main__'):\n"
        "        importlib.import_module(m.name)\n"
        "others = {'megatron', 'miles', 'sglang', 'trl', 'ray', 'open_instruct'}\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert 'olmo_core' in loaded\n"
        "sys.exit(str(others & loaded) if others & loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
