"""The verb `intake` believes nothing: lies of a bundle are found by its own logs, or refused."""

import datetime as dt
import json
import lzma
from pathlib import Path

import pytest
from mileskit.acceptance import bundlecheck, recordcheck
from mileskit.common import tomlio

from tests.capture.acceptlab import DEATH, STEPS, make_bundle
from tests.capture.test_intake import LAB, RUN, call, left, repacked

pytestmark = pytest.mark.slow  # each packs or unpacks a run, or reads all of them

END = f"out-{LAB}/{DEATH}"
SECRET = "a1B2" * 9  # behind hf_


@pytest.fixture(scope="module")
def bundle_file(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    make_bundle(folder / "lab", folder / "b.zip")
    return folder / "b.zip"


@pytest.fixture
def place(tmp_path) -> Path:
    (tmp_path / "repo" / "capture" / "gpu").mkdir(parents=True)
    return tmp_path / "repo" / "capture" / "gpu"


@pytest.fixture
def refused(bundle_file, place, tmp_path, capsys):
    """Takes a changed bundle in; the one line of its refusal."""

    def take(change) -> str:
        assert call(repacked(bundle_file, tmp_path / "bad.zip", change), place) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert "Traceback" not in err
        assert "\x1b" not in err
        assert left(place) == []
        return err

    return take


def record(folder: str, **tables):
    """A change of a run's record: fields of a table, or a whole table."""

    def change(files):
        document = tomlio.loads(files[f"{folder}/run.toml"].decode())
        for name, value in tables.items():
            if isinstance(value, dict) and isinstance(document.get(name), dict):
                document[name] |= value
            else:
                document[name] = value
        files[f"{folder}/run.toml"] = tomlio.dumps(document).encode()

    return change


def about(edit):
    def change(files):
        said = json.loads(files["acceptance.json"])
        edit(said)
        files["acceptance.json"] = json.dumps(said).encode()

    return change


def put(name: str, data: bytes):
    return lambda files: files.update({name: data})


# -- records ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"masked": 5}, "no 'masked'"),
        ({"masked": [1]}, "a row of [[masked]]"),
        ({"masked": [{"what": "x"}]}, "a row of [[masked]]"),
        ({"masked": [{"what": "x", "replacement": "y", "by": "store", "count": "9"}]}, "count"),
        ({"unusable": [1]}, "a row of [[unusable]]"),
        ({"unusable": [{"column": [1], "reason": "x"}]}, "unusable.column"),
        ({"ended": "x"}, "no 'ended'"),
        ({"ended": {"verdict": 5}}, "ended.verdict = 5"),
        ({"ended": {"how": "won"}}, "ended.how 'won'"),
        ({"run": {"command": 5}}, "run.command = 5"),
        ({"run": {"command": ["a"]}}, "run.command"),
        ({"run": {"note": 5}}, "run.note = 5"),
        ({"run": {"more": {"a": 1}}}, "run.more"),
        ({"run": {"settings": {"a": [1]}}}, "run.settings"),
        ({"setup": {"versions": "x"}}, "setup.versions"),
        ({"setup": {"versions": {"torch": {"a": 1}}}}, "setup.versions"),
        ({"setup": {"shared": "no"}}, "setup.shared = 'no'"),
        ({"setup": {"gpus": True}}, "setup.gpus = True"),
        ({"setup": {"model": [1]}}, "setup.model"),
        ({"setup": {"not_stock": "x"}}, "setup.not_stock"),
        ({"setup": {"miles_date": dt.datetime(2026, 8, 21)}}, "setup.miles_date"),
        ({"setup": {"clock_record": "/etc/passwd"}}, "no file of the bundle"),
        ({"setup": {"clock_record": "../../x.gpu-samples.jsonl"}}, "no file of the bundle"),
        ({"evil": {"x": 1}}, "no 'evil'"),
    ],
)
def test_a_record_of_another_form_is_one_line(refused, tables, words):
    assert words in refused(record(RUN, **tables))


def test_a_record_cannot_grant_itself_an_override(refused):
    """`override` is the word by which an author lets a draft contradict its log."""

    def change(files):
        for run in (RUN, END):
            record(run, override=["setup.gpu"], setup={"gpu": "NVIDIA GB10"})(files)

    assert "no 'override'" in refused(change)


@pytest.mark.parametrize("text", ["\x1b[2J", "a\nb", "\u202egnp.exe", "\x00", "\x9b1m", "\u2028"])
def test_a_text_that_moves_the_terminal_is_refused(refused, text):
    assert "no plain line of text" in refused(record(RUN, run={"note": text}))
    assert "no plain line of text" in refused(about(lambda said: said["stages"][0].update(
        reason=text)))  # fmt: skip


def test_the_name_of_a_field_cannot_move_the_terminal_either(refused):
    change = record(RUN, run={"\x1b[2J": {"a": 1}})
    assert "no plain line of text" in refused(change)


def test_half_of_a_pair_is_refused_before_anything_is_laid_down(refused):
    assert "no plain line" in refused(about(lambda said: said.update(note="\ud800")))


def test_texts_of_one_line_are_plain():
    assert recordcheck.plain("Größe 60 °C, a\tb")
    assert recordcheck.one_line("a\x1b[2J\n b") == "a [2J b"


# -- secrets ---------------------------------------------------------------------------------------


def test_a_key_in_the_name_of_a_field_is_refused(refused):
    change = record(RUN, setup={f"hf_{SECRET}": "x"})
    assert "a secret in the name of a field" in refused(change)


def escaped(name: str):
    """Put a key, whose first letter is an escape, into a JSON member."""

    def change(files):
        text = files.get(name, b"{}").decode().rstrip()
        more = f'"note": "\\u0068f_{SECRET}"'
        files[name] = (text[:-1].rstrip() + ("," if text != "{}" else "") + more + "}\n").encode()

    return change


@pytest.mark.parametrize(
    "name",
    ["acceptance.json", "doctor.json", f"{END}/engine-kill.json",
     f"out-{LAB}/{STEPS}.gpu-samples.jsonl"],
)  # fmt: skip
def test_a_key_that_is_spelled_with_an_escape_does_not_pass_the_scrubber(refused, name):
    assert "spells a plain character as an escape" in refused(escaped(name))


# -- bytes and forms -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("doctor.txt", b"caf\xe9\n", "no UTF-8 text"),
        (f"{END}/engine-kill.json", b"\xff", "no JSON"),
        (f"{END}/engine-kill.json", b"{}", "no record of a kill"),
        (f"{END}/engine-kill.json", b'{"at": 1e999, "rollout": 3, "pids": [1]}', "no record"),
        (f"{END}/engine-kill.json", b'{"at": 1, "rollout": 3, "pids": [1], "x": 1}', "no record"),
        (f"out-{LAB}/{STEPS}.gpu-samples.jsonl", b"{}\njunk\n", "line 2 is no JSON object"),
        (f"{END}/heat-guard.log", b"\xff\n", "no UTF-8 text"),
    ],
)
def test_a_member_that_is_not_what_its_name_says_is_refused(refused, name, data, words):
    assert words in refused(put(name, data))


@pytest.mark.parametrize("name", ["lab.toml", "acceptance.json", "doctor.txt"])
def test_a_run_cannot_take_the_name_of_a_file_of_the_lab(refused, name):
    def change(files):
        for member in [n for n in files if n.startswith(f"{RUN}/")]:
            files[member.replace(STEPS, name)] = files[member]

    assert "is the name of a file" in refused(change)


def test_logs_that_unpack_to_too_much_together_are_refused(refused, monkeypatch):
    monkeypatch.setattr(bundlecheck, "LOGS_BYTES", 1 << 16)
    assert "bytes together" in refused(lambda files: None)


@pytest.mark.parametrize("lab", ["..", "a/b", "-x", "a" * 101, "x\n"])
def test_a_name_that_no_lab_can_have_is_refused(bundle_file, place, capsys, lab):
    assert call(bundle_file, place, f"--lab={lab}") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert left(place) == []


def test_a_lab_that_differs_in_capitals_alone_is_refused(bundle_file, place, capsys):
    (place / "out-h200-miles").mkdir()
    assert call(bundle_file, place, "--lab", "H200-Miles") == 2
    assert "differs from H200-Miles in capitals alone" in capsys.readouterr().err
    assert left(place) == ["out-h200-miles"]


# -- claims ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_finished_by_its_record_alone_is_refused(refused):
    lie = {"how": "finished", "status": 0, "verdict": "finished", "partial": False}
    assert "says finished, its log holds 3 of 12 steps" in refused(record(END, ended=lie))

    def cut(files):
        lines = lzma.decompress(files[f"{RUN}/run.log.xz"]).split(b"\n")
        files[f"{RUN}/run.log.xz"] = lzma.compress(b"\n".join(lines[: len(lines) // 2]) + b"\n")

    assert "says finished, its log holds 5 of 12 steps" in refused(cut)


def taken(bundle_file, place, tmp_path, capsys, change) -> tuple[dict, dict[str, str]]:
    """Takes a changed bundle in: the report, and the verdicts that are stored with the lab."""
    path = repacked(bundle_file, tmp_path / "c.zip", change)
    assert call(path, place, "--json") == 0
    stored = json.loads((place / f"out-{LAB}" / "acceptance.json").read_text())
    found = {row["name"]: row["verdict"] for row in stored["stages"]}
    return json.loads(capsys.readouterr().out), found


@pytest.mark.slow
def test_an_honest_bundle_keeps_its_stages(bundle_file, place, tmp_path, capsys):
    report, found = taken(bundle_file, place, tmp_path, capsys, lambda files: None)
    assert report["differ"] == []
    assert [found[name] for name in ("doctor", "steps", "engine-death", "heat-pause")] == [
        "passed", "passed", "passed", "not-run",
    ]  # fmt: skip


@pytest.mark.slow
def test_the_verdict_of_a_run_is_that_of_its_log(bundle_file, place, tmp_path, capsys):
    change = record(END, ended={"verdict": "stopped"})
    report, _ = taken(bundle_file, place, tmp_path, capsys, change)
    row = next(row for row in report["runs"] if row["name"] == DEATH)
    assert (row["verdict"], row["said"]) == ("engine-dead", "stopped")
    stored = tomlio.load(place / END / "run.toml")
    assert stored["ended"]["verdict"] == "engine-dead"


def without(name: str):
    return lambda files: files.pop(name)


def quiet_watchdog(files):
    files[f"{END}/watchdog.log"] = b"2026-11-29T13:04:46Z miles-acceptance-death: all is well\n"


FAILING = {"lines": [{"name": "GPU", "state": "failing", "found": "none", "todo": ""}]}
OPEN = b"2026-11-29T13:27:19.120Z pause container=m temp_c=84 reason=hot\n"


def open_pause(files):
    files[f"{RUN}/heat-guard.log"] = OPEN
    about(lambda said: said["stages"][3].update(verdict="passed"))(files)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "stage", "verdict"),
    [
        (put("doctor.json", json.dumps(FAILING).encode()), "doctor", "failed"),
        (without(f"{END}/engine-kill.json"), "engine-death", "failed"),
        (without(f"{END}/watchdog.log"), "engine-death", "failed"),
        (quiet_watchdog, "engine-death", "failed"),
        (about(lambda said: said["stages"][3].update(verdict="passed")), "heat-pause", "not-run"),
        (open_pause, "heat-pause", "failed"),
        (about(lambda said: said["stages"][1].update(of=20)), "steps", "failed"),
    ],
)  # fmt: skip
def test_a_stage_that_did_not_pass_by_its_files_is_not_stored_as_passed(
    bundle_file, place, tmp_path, capsys, change, stage, verdict
):
    report, found = taken(bundle_file, place, tmp_path, capsys, change)
    assert found[stage] == verdict
    line = f"stage {stage}: the bundle says passed, its files say {verdict}"
    assert report["differ"] == [line]


@pytest.mark.slow
def test_a_stage_whose_run_is_not_there_is_not_stored_as_passed(
    bundle_file, place, tmp_path, capsys
):
    def change(files):
        for name in [n for n in files if n.startswith(f"{END}/")]:
            del files[name]

    report, found = taken(bundle_file, place, tmp_path, capsys, change)
    assert found["engine-death"] == "not-run"
    assert "nothing was checked" in next(
        row["reason"] for row in report["stages"] if row["name"] == "engine-death"
    )


@pytest.mark.slow
def test_a_worse_verdict_of_the_reader_stays(bundle_file, place, tmp_path, capsys):
    change = about(lambda said: said["stages"][1].update(verdict="failed", reason="no guard"))
    report, found = taken(bundle_file, place, tmp_path, capsys, change)
    assert (found["steps"], report["differ"]) == ("failed", [])
