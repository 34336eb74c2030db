"""The one-file kit: the same bytes every time, nothing else in it, and it works anywhere."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import kit
import pytest

from scripts import make_kit

ROOT = make_kit.ROOT
FOLDER = ROOT / make_kit.KIT
LOG = FOLDER / "out-h200-miles" / "plain3" / "run.log.xz"


@pytest.fixture(scope="module")
def pyz(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("kit") / "miles-kit.pyz"
    make_kit.build(ROOT, out)
    return out


def run(pyz: Path, cwd: Path, *args: str, python: str = sys.executable):
    """Run the kit alone: isolated, without an environment, in another folder."""
    return subprocess.run(
        [python, "-I", str(pyz), *args], cwd=cwd, env={}, capture_output=True, timeout=120
    )


def test_two_builds_of_copies_made_at_different_times_are_byte_identical(tmp_path):
    for name, when in (("a", 1_000_000_000), ("b", 1_700_000_000)):
        copy = tmp_path / name / make_kit.KIT
        shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__", "*.xz"))
        for path in copy.rglob("*"):
            os.utime(path, (when, when))
            path.chmod(0o755 if path.is_dir() or name == "b" else 0o600)
    digests = [make_kit.build(tmp_path / name, tmp_path / f"{name}.pyz") for name in ("a", "b")]
    assert (tmp_path / "a.pyz").read_bytes() == (tmp_path / "b.pyz").read_bytes()
    assert digests[0] == digests[1] == hashlib.sha256((tmp_path / "a.pyz").read_bytes()).hexdigest()


def test_a_changed_file_changes_the_digest(tmp_path, pyz):
    copy = tmp_path / make_kit.KIT
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__", "*.xz"))
    (copy / "kit.py").write_text((copy / "kit.py").read_text() + "\n")
    assert (
        make_kit.build(tmp_path, tmp_path / "c.pyz") != hashlib.sha256(pyz.read_bytes()).hexdigest()
    )


def test_it_holds_what_the_list_names_and_nothing_else(pyz):
    with zipfile.ZipFile(pyz) as packed:
        assert packed.testzip() is None
        names = packed.namelist()
    assert names == sorted(names)
    for name in names:
        path = Path(name)
        fine = (
            (len(path.parts) == 1 and path.suffix == ".py")
            or (path.parts[0] == "mileskit" and path.suffix == ".py")
            or path.name in ("summary.json", "run.toml", "lab.toml", "reported.toml")
            or path.parts[0] == "testcontainers"
            or (len(path.parts) == 2 and path.suffix == ".csv")
        )
        assert fine, name
    runs = {path.parent.name for path in FOLDER.glob("out-*/*/summary.json")}
    assert runs == {Path(name).parts[1] for name in names if name.endswith("summary.json")}
    assert "out-gb10/reported.toml" in names
    assert "out-h200-miles/gpu-samples-wave4.csv" in names
    assert {path.name for path in FOLDER.glob("*.py")} <= set(names)


def test_nothing_of_the_building_machine_is_in_it(pyz):
    assert str(ROOT).encode() not in pyz.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("verb", [*kit.VERBS, ""])
def test_every_verb_helps_in_an_empty_folder_with_an_empty_environment(pyz, tmp_path, verb):
    done = run(pyz, tmp_path, *filter(None, [verb]), "--help")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"usage: miles-kit.pyz")
    assert b"exit codes" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_help_lists_every_verb(pyz, tmp_path):
    text = run(pyz, tmp_path, "--help").stdout.decode()
    for verb in ("run", "queue", "watchdog", "heat-guard", "replay", "diagnose", "doctor",
                 "summarize", "store"):  # fmt: skip
        assert f"    {verb}" in text


def test_summarize_gives_the_stored_bytes(pyz, tmp_path):
    done = run(pyz, tmp_path, "summarize", str(LOG), "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout == LOG.with_name("summary.json").read_bytes()


def test_diagnose_gives_what_the_tree_gives(pyz, tmp_path):
    packed = run(pyz, tmp_path, "diagnose", str(LOG), "--json")
    words = [sys.executable, str(FOLDER / "kit.py"), "diagnose", str(LOG), "--json"]
    tree = subprocess.run(words, capture_output=True, timeout=120)
    assert (packed.stdout, packed.returncode) == (tree.stdout, tree.returncode)
    assert json.loads(packed.stdout)["verdict"] == "finished"


def test_a_dry_run_starts_the_same_file_for_its_guards(pyz, tmp_path):
    done = run(pyz, tmp_path, "run", "plain", "--lab", str(tmp_path / "lab"), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"-I {pyz} watchdog miles-plain 100 10".encode() in done.stdout.replace(b" \\\n ", b"")
    assert list(tmp_path.iterdir()) == []


def test_the_launcher_comes_out_of_the_file_as_it_is_in_the_tree(pyz, tmp_path):
    script = (
        f"import sys; sys.path.insert(0, {str(pyz)!r}); import pathlib;"
        "from mileskit.host import runfacts;"
        "print(runfacts.place_launcher(pathlib.Path('.')))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", script], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    content = (tmp_path / "miles_grpo.py").read_bytes()
    assert content == (FOLDER / "miles_grpo.py").read_bytes()
    assert hashlib.sha256(content).hexdigest().encode() in done.stdout


def test_the_kit_knows_its_own_files_in_both_forms(pyz):
    script = (
        "from mileskit.common import kitfiles; import json;"
        "print(json.dumps(kitfiles.names('out-gb10/')))"
    )
    outs = []
    for place in (FOLDER, pyz):
        words = [
            sys.executable,
            "-I",
            "-c",
            f"import sys; sys.path.insert(0, {str(place)!r}); {script}",
        ]
        outs.append(set(json.loads(subprocess.check_output(words))))
    assert outs[1] == {"out-gb10/lab.toml", "out-gb10/reported.toml"}
    assert outs[1] <= outs[0]


def test_a_tree_without_the_kit_is_one_line_and_leaves_the_old_file(tmp_path):
    out = tmp_path / "kit.pyz"
    out.write_bytes(b"old")
    with pytest.raises(make_kit.KitError, match="nothing matches"):
        make_kit.build(tmp_path, out)
    assert out.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["kit.pyz"]


def test_the_command_prints_a_line_that_sha256sum_checks(tmp_path):
    out = tmp_path / "miles-kit.pyz"
    words = [sys.executable, "-m", "scripts.make_kit", "--out", str(out)]
    line = subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout
    done = subprocess.run(["sha256sum", "-c"], input=line, cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stdout
