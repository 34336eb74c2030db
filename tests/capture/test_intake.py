"""The verb `intake`: a bundle is laid down as a lab that the checks accept, or refused whole."""

import hashlib
import json
import lzma
import os
import stat
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import kit
import pytest
from mileskit.acceptance import bundle, bundlecheck
from mileskit.common import tomlio
from mileskit.evidence import checksums

from scripts import evidence_check
from tests.capture.acceptlab import DEATH, STEPS, make_bundle

pytestmark = pytest.mark.slow  # each packs or unpacks a run, or reads all of them

LAB = "reader-h200"
RUN = f"out-{LAB}/{STEPS}"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    make_bundle(folder / "lab", folder / "b.zip")
    return folder / "b.zip"


@pytest.fixture
def root(tmp_path) -> Path:
    """A repository whose stored evidence is empty."""
    (tmp_path / "repo" / "capture" / "gpu").mkdir(parents=True)
    return tmp_path / "repo" / "capture" / "gpu"


def call(path: Path, root: Path, *more: str) -> int:
    return kit.main(["intake", str(path), "--out", str(root), *more])


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def repacked(path: Path, target: Path, change) -> Path:
    """A copy whose members `change` alters, with the checksums made anew."""
    files = members(path)
    del files[bundle.SUMS]
    change(files)
    sums = "".join(f"{hashlib.sha256(d).hexdigest()}  {n}\n" for n, d in files.items())
    target.write_bytes(bundle.pack({bundle.SUMS: sums.encode(), **files}))
    return target


def left(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


# -- a bundle as it should be ----------------------------------------------------------------------


def test_the_lab_that_is_laid_down_passes_the_check_of_the_evidence(whole, root, capsys):
    assert call(whole, root) == 0
    report = evidence_check.check(root.parents[1])
    assert [problem.text for problem in report.problems] == []
    assert report.counts["records"] == 2
    said = capsys.readouterr().out
    assert "make check" in said
    assert "scripts.evidence_check" in said
    assert f"{DEATH}: 3 steps" in said


@pytest.mark.slow
def test_the_records_name_the_lab_and_keep_the_marks(whole, root):
    assert call(whole, root, "--lab", "gb10-two") == 0
    lab = tomllib.loads((root / "out-gb10-two" / "lab.toml").read_text())
    assert (lab["lab"]["name"], lab["lab"]["tier"]) == ("gb10-two", "measured")
    run = tomllib.loads((root / "out-gb10-two" / DEATH / "run.toml").read_text())
    assert (run["run"]["lab"], run["run"]["name"]) == ("gb10-two", DEATH)
    assert (run["ended"]["verdict"], run["ended"]["partial"]) == ("engine-dead", True)
    assert evidence_check.check(root.parents[1]).problems == []


@pytest.mark.slow
def test_the_logs_are_those_of_the_bundle_and_the_guards_logs_lie_beside_them(whole, root):
    call(whole, root)
    for run in (STEPS, DEATH):
        theirs = lzma.decompress(members(whole)[f"out-{LAB}/{run}/run.log.xz"])
        assert lzma.decompress((root / f"out-{LAB}" / run / "run.log.xz").read_bytes()) == theirs
    assert "stopped the run" in (root / f"out-{LAB}" / DEATH / "watchdog.log").read_text()
    assert (
        json.loads((root / f"out-{LAB}" / DEATH / "engine-kill.json").read_text())["rollout"] == 3
    )
    assert (root / f"out-{LAB}" / "acceptance.json").exists()


@pytest.mark.slow
def test_every_file_that_is_laid_down_is_listed(whole, root):
    call(whole, root)
    listed = checksums.read(root)
    there = {
        path.relative_to(root).as_posix()
        for path in (root / f"out-{LAB}").rglob("*")
        if path.is_file() and path.name != "summary.json"
    }
    assert set(listed) == there


@pytest.mark.slow
def test_a_dry_run_lays_nothing_down(whole, root, capsys):
    assert call(whole, root, "--dry-run") == 0
    assert left(root) == []
    assert "would be laid down" in capsys.readouterr().out


@pytest.mark.slow
def test_json_tells_the_same(whole, root, capsys):
    assert call(whole, root, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in report["runs"]] == [DEATH, STEPS]
    assert all(row["same_summary"] for row in report["runs"])
    assert report["masks"] == 0


@pytest.mark.slow
def test_a_lab_that_is_there_is_never_changed(whole, root, capsys):
    assert call(whole, root) == 0
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    assert call(whole, root) == 2
    assert "never overwritten" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == before


def test_a_link_in_the_labs_place_is_not_followed(whole, root, tmp_path):
    (root / f"out-{LAB}").symlink_to(tmp_path / "elsewhere")
    assert call(whole, root) == 2
    assert not (tmp_path / "elsewhere").exists()


def test_without_out_the_kits_own_folder_is_meant(whole, capsys):
    from mileskit.evidence import store

    assert store.default_root() == Path(kit.__file__).parent


# -- scrubbing again -------------------------------------------------------------------------------

SECRET = "hf_" + "a1B2" * 9


def with_secret(files: dict[str, bytes]) -> None:
    log = lzma.decompress(files[f"{RUN}/run.log.xz"])
    files[f"{RUN}/run.log.xz"] = lzma.compress(log + f"(pid=1) token {SECRET}\n".encode())
    files["doctor.txt"] += f"HF_TOKEN={SECRET}\n".encode()
    record = tomlio.loads(files[f"{RUN}/run.toml"].decode())
    record["run"]["note"] = f"with {SECRET}"
    files[f"{RUN}/run.toml"] = tomlio.dumps(record).encode()


@pytest.mark.slow
def test_a_secret_that_the_reader_left_in_is_masked_and_counted(whole, root, tmp_path, capsys):
    assert call(repacked(whole, tmp_path / "c.zip", with_secret), root, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["masks"] >= 2
    assert [row["same_summary"] for row in report["runs"]].count(True) >= 1
    for path in (root / f"out-{LAB}").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            data = lzma.decompress(data) if path.suffix == ".xz" else data
            assert SECRET.encode() not in data, path.name
    assert evidence_check.check(root.parents[1]).problems == []


@pytest.mark.slow
def test_a_word_of_the_author_is_masked_too(whole, root):
    assert call(whole, root, "--word", "rollout_manager") == 0
    log = lzma.decompress((root / f"out-{LAB}" / STEPS / "run.log.xz").read_bytes())
    assert b"rollout_manager" not in log


# -- hostile bundles -------------------------------------------------------------------------------


def entry(name: str, mode: int = stat.S_IFREG | 0o644) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo("x", bundle.DATE)
    made.filename, made.external_attr, made.create_system = name, mode << 16, 3
    return made


def added(whole: Path, target: Path, made: zipfile.ZipInfo, data: bytes) -> Path:
    """The bundle with one more member, listed in the checksums."""
    files = members(whole)
    files[bundle.SUMS] += f"{hashlib.sha256(data).hexdigest()}  {made.filename}\n".encode()
    target.write_bytes(bundle.pack(files))
    with zipfile.ZipFile(target, "a") as packed:
        packed.writestr(made, data)
    return target


@pytest.mark.parametrize(
    "name",
    [
        "../evil.txt",
        "/etc/cron.d/evil",
        f"out-{LAB}/../../evil/run.toml",
        f"out-{LAB}/../run.log.xz",
        f"out-../{STEPS}/run.toml",
        f"{RUN}/../run.toml",
        f"{RUN}/evil.py",
        f"{RUN}/.git/config",
        "out-x\\..\\..\\evil/a/run.toml",
        f"out-{LAB}/lab.toml",
        "capture/gpu/kit.py",
        f"{RUN}/run.toml/",
        f"{RUN}\u2215run.toml",
        "C:/evil.txt",
        f"out-{LAB}/{'a' * 300}/run.toml",
    ],
)
def test_a_name_that_no_bundle_has_is_refused(whole, root, tmp_path, capsys, name):
    bad = added(whole, tmp_path / "bad.zip", entry(name), b"x = 1\n")
    assert call(bad, root) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "bad.zip: member " in err
    assert left(root) == []
    assert not (tmp_path / "evil.txt").exists()


@pytest.mark.parametrize("mode", [stat.S_IFLNK | 0o777, stat.S_IFDIR | 0o755, stat.S_IFIFO | 0o644,
                                  stat.S_IFCHR | 0o644])  # fmt: skip
def test_a_link_or_another_thing_than_a_file_is_refused(whole, root, tmp_path, capsys, mode):
    made = entry(f"out-{LAB}/{DEATH}/heat-guard.log", mode)
    assert call(added(whole, tmp_path / "bad.zip", made, b"/etc/passwd"), root) == 2
    assert "is a link or no plain file" in capsys.readouterr().err
    assert left(root) == []


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", [f"{RUN}/run.toml", f"{RUN}/RUN.TOML"[:-8] + "run.toml"])
def test_a_member_that_is_there_twice_is_refused(whole, root, tmp_path, capsys, name):
    assert call(added(whole, tmp_path / "bad.zip", entry(name), b"x = 1\n"), root) == 2
    assert "is there twice" in capsys.readouterr().err


def test_a_zip_bomb_is_refused_before_it_is_unpacked(whole, root, tmp_path, capsys):
    made = entry(f"out-{LAB}/{DEATH}/heat-guard.log")
    made.compress_type = zipfile.ZIP_DEFLATED
    bad = added(whole, tmp_path / "bad.zip", made, bytes(15 << 20))
    assert bad.stat().st_size < 1 << 20
    assert call(bad, root) == 2
    assert "times its size" in capsys.readouterr().err


def test_a_member_over_its_limit_is_refused(whole, root, tmp_path, capsys):
    made = entry(f"out-{LAB}/{DEATH}/heat-guard.log")
    bad = added(whole, tmp_path / "bad.zip", made, os.urandom(1 << 20) * 17)
    assert call(bad, root) == 2
    assert "bytes are more than" in capsys.readouterr().err


def test_too_many_members_are_refused(whole, root, tmp_path, capsys):
    def change(files):
        files |= {f"unstored/r{n}/run.toml": b"" for n in range(201)}

    assert call(repacked(whole, tmp_path / "bad.zip", change), root) == 2
    assert "members are more than" in capsys.readouterr().err


def test_a_bomb_inside_a_packed_log_is_refused(whole, root, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bundlecheck, "LOG_BYTES", 8 << 20)

    def change(files):
        files[f"{RUN}/run.log.xz"] = lzma.compress(bytes(64 << 20))

    assert call(repacked(whole, tmp_path / "bad.zip", change), root) == 2
    assert "unpacks to more than" in capsys.readouterr().err


def test_a_log_whose_decoder_wants_much_memory_is_refused(whole, root, tmp_path, capsys):
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 512 << 20}]

    def change(files):
        files[f"{RUN}/run.log.xz"] = lzma.compress(b"x" * 100, filters=filters)

    bad = repacked(whole, tmp_path / "bad.zip", change)
    data = members(bad)[f"{RUN}/run.log.xz"]
    assert len(data) < 200
    assert call(bad, root) == 2
    assert "cannot be unpacked" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (lambda data: data[:-40], "stops inside|cannot be unpacked"),
        (lambda data: data + b"more", "bytes behind"),
        (lambda data: b"plain text" * 9, "cannot be unpacked"),
        (lambda data: b"", "stops inside"),
    ],
)
def test_a_damaged_log_is_refused(whole, root, tmp_path, capsys, cut, words):
    def change(files):
        files[f"{RUN}/run.log.xz"] = cut(files[f"{RUN}/run.log.xz"])

    assert call(repacked(whole, tmp_path / "bad.zip", change), root) == 2
    err = capsys.readouterr().err
    assert any(word in err for word in words.split("|"))
    assert left(root) == []


def test_a_changed_byte_is_found_by_its_checksum(whole, root, tmp_path, capsys):
    files = members(whole)
    files["doctor.txt"] += b"changed\n"
    (tmp_path / "bad.zip").write_bytes(bundle.pack(files))
    assert call(tmp_path / "bad.zip", root) == 2
    assert "member doctor.txt: has another checksum" in capsys.readouterr().err


def test_a_member_that_is_not_listed_and_one_that_is_not_there_are_refused(
    whole, root, tmp_path, capsys
):
    files = members(whole)
    more = {**files, f"out-{LAB}/{STEPS}/heat-guard.log": b"# x\n"}
    (tmp_path / "more.zip").write_bytes(bundle.pack(more))
    assert call(tmp_path / "more.zip", root) == 2
    assert "is not listed" in capsys.readouterr().err
    del files["doctor.txt"]
    (tmp_path / "less.zip").write_bytes(bundle.pack(files))
    assert call(tmp_path / "less.zip", root) == 2
    assert "is listed and not there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("kind", "other", "kind is not"),
        ("schema", 2, "schema 2 is not 1"),
        ("schema", True, "schema True"),
        ("lab", "../x", "no name of a lab"),
        ("lab", 5, "lab is missing"),
        ("lab", "other", "the bundle is of the lab other"),
        ("stages", [], "stages are not"),
        ("stages", [1, 2, 3, 4], "stages are not"),
        ("unstored", [], "unstored is missing"),
    ],
)
def test_another_schema_is_refused(whole, root, tmp_path, capsys, field, value, words):
    def change(files):
        about = json.loads(files["acceptance.json"])
        about[field] = value
        files["acceptance.json"] = json.dumps(about).encode()

    assert call(repacked(whole, tmp_path / "bad.zip", change), root) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("acceptance.json", b"[" * 100_000, "no JSON"),
        ("acceptance.json", b"\xff", "no JSON"),
        ("acceptance.json", b"[1]", "kind is not"),
        (f"{RUN}/run.toml", b"a = " + b"[" * 50_000, "no TOML"),
        (f"{RUN}/run.toml", b"\xff", "no TOML"),
        (f"{RUN}/run.toml", b"schema = 1\n", "no [run] and [setup]"),
        (f"{RUN}/run.toml", b'run = "x"\n[setup]\n', "no 'run' of this form"),
        (f"out-{LAB}/{DEATH}/watchdog.log", b"", "holds nothing"),
    ],
)
def test_texts_that_are_no_records_are_one_line(whole, root, tmp_path, capsys, name, data, words):
    def change(files):
        files[name] = data

    assert call(repacked(whole, tmp_path / "bad.zip", change), root) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert words in err
    assert left(root) == []


def changed_record(files: dict[str, bytes], **tables) -> None:
    record = tomlio.loads(files[f"{RUN}/run.toml"].decode())
    for table, fields in tables.items():
        record[table] |= fields
    files[f"{RUN}/run.toml"] = tomlio.dumps(record).encode()


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"run": {"seed": 7}}, "run.seed: the log says 1234"),
        ({"setup": {"miles_commit": "abcdef1"}}, "setup.miles_commit: the log says"),
        ({"setup": {"gpu": "NVIDIA GB10"}}, "setup.gpu: the log says"),
        ({"run": {"overrides": ["setup.gpu"]}}, "overrides what its log says"),
        ({"setup": {"image": ""}}, "setup.image is missing"),
    ],
)
def test_a_record_that_contradicts_its_log_is_refused(whole, root, tmp_path, capsys, tables, words):
    bad = repacked(whole, tmp_path / "bad.zip", lambda files: changed_record(files, **tables))
    assert call(bad, root) == 2
    assert words in capsys.readouterr().err
    assert left(root) == []


@pytest.mark.slow
def test_a_summary_of_the_bundle_is_not_believed(whole, root, tmp_path, capsys):
    def change(files):
        files[f"{RUN}/summary.json"] = b'{"reward": 1.0}\n'

    assert call(repacked(whole, tmp_path / "bad.zip", change), root) == 0
    assert "summary differs from the bundle's" in capsys.readouterr().out
    assert (root / RUN / "summary.json").read_bytes() == members(whole)[f"{RUN}/summary.json"]


@pytest.mark.slow
def test_runs_of_two_machines_are_no_lab(whole, root, tmp_path, capsys):
    def change(files):
        changed_record(files, setup={"gpus": 8})

    assert call(repacked(whole, tmp_path / "bad.zip", change), root) == 2
    assert "differ in gpus: two labs" in capsys.readouterr().err


@pytest.mark.parametrize("data", [b"", b"PK", b"no zip at all" * 100, b"PK\x05\x06" + bytes(18)])
def test_what_is_no_zip_is_one_line(root, tmp_path, capsys, data):
    (tmp_path / "b.zip").write_bytes(data)
    assert call(tmp_path / "b.zip", root) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_cut_bundle_is_one_line(whole, root, tmp_path, capsys):
    data = whole.read_bytes()
    for size in (len(data) // 2, len(data) - 30):
        (tmp_path / "b.zip").write_bytes(data[:size])
        assert call(tmp_path / "b.zip", root) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_bundle_that_is_not_there_is_one_line(root, tmp_path, capsys):
    assert call(tmp_path / "none.zip", root) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_bundle_without_a_run_is_code_3_and_tells_what_the_reader_saw(
    whole, root, tmp_path, capsys
):
    def change(files):
        for name in [n for n in files if n.startswith("out-")]:
            del files[name]

    assert call(repacked(whole, tmp_path / "bad.zip", change), root) == 3
    assert "holds no stored run: doctor passed" in capsys.readouterr().err
    assert left(root) == []


@pytest.mark.slow
def test_an_interrupt_leaves_nothing_behind(whole, root, monkeypatch):
    from mileskit.acceptance import labrecord

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(labrecord, "document", stop)
    assert call(whole, root) == 130
    assert left(root) == []


@pytest.mark.slow
def test_a_list_of_checksums_that_cannot_be_written_leaves_no_lab(whole, root, monkeypatch, capsys):
    def full(root, paths):
        raise OSError(28, "No space left on device", "x")

    real = checksums.add
    monkeypatch.setattr(checksums, "add", lambda r, p: full(r, p) if r == root else real(r, p))
    assert call(whole, root) == 2
    assert "No space left" in capsys.readouterr().err
    assert left(root) == []


@pytest.mark.slow
def test_the_kit_in_one_file_takes_a_bundle_into_the_current_folder(whole, tmp_path):
    from scripts import make_kit

    make_kit.build(make_kit.ROOT, tmp_path / "kit.pyz")
    words = [sys.executable, "-I", str(tmp_path / "kit.pyz"), "intake", str(whole)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"out-{LAB}" / "lab.toml").exists()
