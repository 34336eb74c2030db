"""A run is stored completely or not at all, with nothing secret and nothing missing in it."""

import datetime as dt
import hashlib
import json
import lzma
import tomllib
from pathlib import Path

import kit
import pytest
from mileskit.common import tomlio
from mileskit.evidence import checksums, runinfo, scrub, store
from mileskit.summary import summarize, wrongcolumns

pytestmark = pytest.mark.slow  # each packs or unpacks a run, or reads all of them

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "capture/gpu/out-h200-miles"
RUNS = sorted(path.parent.name for path in LAB.glob("*/run.toml"))
FROM_LOG = {
    "miles_commit", "miles_date", "engine", "versions", "gpu", "gpu_memory_mib", "driver",
    "gpu_used_mib_at_start", "attention_engine", "attention_trainer", "sampling",
}  # fmt: skip


def unpacked(path: Path) -> bytes:
    with lzma.open(path) as stream:
        return stream.read()


def stored_toml(name: str) -> dict:
    return tomllib.loads((LAB / name / "run.toml").read_text())


def draft_of(name: str) -> dict:
    """The draft that a stored run was made with: what its log does not say."""
    run = stored_toml(name)
    overrides = run["run"].get("overrides", [])
    setup = {k: v for k, v in run["setup"].items() if k not in FROM_LOG}
    if "setup.shared_with" not in overrides and run["setup"]["shared"]:
        del setup["shared_with"], setup["shared"]
    del setup["image"]
    setup["clock_record"] = ""
    draft = {"override": overrides, "run": {"note": run["run"]["note"]}}
    draft["ended"] = {"verdict": run["ended"]["verdict"]}
    draft |= {"setup": setup, "unusable": run.get("unusable", []), "masked": run["masked"]}
    return draft


@pytest.fixture
def out(tmp_path):
    """A folder for labs, with the lab's lab.toml in place."""
    root = tmp_path / "out"
    (root / "out-h200-miles").mkdir(parents=True)
    (root / "out-h200-miles/lab.toml").write_bytes((LAB / "lab.toml").read_bytes())
    return root


def call(out, log, name, *more, draft=None):
    words = ["store", str(log), "--lab", "h200-miles", "--run", name, "--out", str(out)]
    if draft is not None:
        path = out.parent / "draft.toml"
        path.write_text(tomlio.dumps(draft))
        words += ["--run-toml", str(path)]
    return kit.main([*words, *map(str, more)])


def files(folder: Path) -> dict[str, str]:
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in folder.rglob("*")
        if p.is_file()
    }


def plain_log(tmp_path, name="smoke", change=lambda data: data) -> Path:
    path = tmp_path / f"{name}.log"
    path.write_bytes(change(unpacked(LAB / name / "run.log.xz")))
    return path


# -- the stored runs -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["n4", "topp", "plain_s4321"])
def test_storing_a_stored_run_again_gives_the_same_bytes(name, out, tmp_path):
    log = plain_log(tmp_path, name)
    more = ["--samples", LAB / "gpu-samples-wave4.csv"] if name == "n4" else []
    assert call(out, log, name, *more, draft=draft_of(name)) == 0
    assert files(out / "out-h200-miles" / name) == files(LAB / name)


@pytest.mark.parametrize("name", RUNS)
def test_the_fingerprint_of_every_stored_run_is_complete(name):
    document = stored_toml(name)
    assert runinfo.missing(document) == []
    assert document["schema"] == 1
    assert set(runinfo.ENDED_FIELDS) <= document["ended"].keys()
    assert document["run"]["name"] == name
    clock = document["setup"]["clock_record"]
    assert not clock or (LAB / name / clock).resolve().is_file()
    assert all((LAB / name / p).resolve().exists() for p in ["../task/word_problems.py"])


@pytest.mark.parametrize("name", RUNS)
def test_the_settings_of_every_stored_run_are_those_of_its_log(name):
    document, header = stored_toml(name), runinfo.header(
        unpacked(LAB / name / "run.log.xz").decode().splitlines()
    )  # fmt: skip
    assert document["run"]["command"] == header["run"]["command"]
    assert document["run"]["started"] == header["run"]["started"]
    options, environment = runinfo.settings(header["run"]["command"])
    assert document["settings"] == options
    assert document.get("environment", {}) == environment
    assert document["setup"]["driver"] == "580.159.04"


def test_the_twelve_runs_are_here_and_one_had_the_gpu_alone_to_its_end():
    assert len(RUNS) == 12
    alone = [n for n in RUNS if not stored_toml(n)["setup"]["shared"]]
    assert [n for n in alone if stored_toml(n)["ended"]["steps"]] == ["plain_s1234"]


@pytest.mark.parametrize("name", RUNS)
def test_columns_of_a_reference_model_are_unusable_where_they_were_logged(name):
    summary = json.loads((LAB / name / "summary.json").read_text())["runs"][0]
    logged = summary["rollouts"]["columns"].keys() | summary["steps"]["columns"].keys()
    wrong = {"rollout/ref_log_probs", "train/kl_loss"} & logged
    assert {row["column"] for row in stored_toml(name).get("unusable", [])} == wrong


def test_the_recipe_of_the_lab_is_the_command_of_its_plain_run():
    recipe = tomllib.loads((LAB / "lab.toml").read_text())["recipe"]
    assert recipe["command"] == stored_toml(recipe["run"])["run"]["command"]
    assert stored_toml(recipe["run"])["run"]["changed"] == []
    for name in RUNS:
        command = stored_toml(name)["run"]["command"]
        assert stored_toml(name)["run"]["changed"] == runinfo.changed(command, recipe["command"])


@pytest.mark.parametrize(
    "path", sorted(LAB.glob("**/*.xz")), ids=lambda p: f"{p.parent.name}-{p.name}"
)
def test_a_stored_file_is_unpacked_in_little_memory(path):
    decoder = lzma.LZMADecompressor(memlimit=24 << 20)
    assert decoder.decompress(path.read_bytes())


# -- refusals ------------------------------------------------------------------------------------


def test_an_existing_run_is_never_changed(out, tmp_path, capsys):
    log = plain_log(tmp_path)
    assert call(out, log, "smoke", draft=draft_of("smoke")) == 0
    before = files(out)
    capsys.readouterr()
    assert call(out, log, "smoke", draft=draft_of("smoke")) == 2
    err = capsys.readouterr().err
    assert "exists already" in err
    assert err.count("\n") == 1
    assert files(out) == before


def test_each_missing_field_is_one_line_and_nothing_is_left(out, tmp_path, capsys):
    before = files(out)
    draft = draft_of("smoke")
    for field in ("model", "reward", "container"):
        del draft["setup"][field]
    del draft["ended"]
    assert call(out, plain_log(tmp_path), "smoke", draft=draft) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[2].split(" ")[0] for line in lines] == [
        "setup.model", "setup.reward", "setup.container", "setup.image", "ended.verdict",
    ]  # fmt: skip
    assert files(out) == before
    assert sorted(p.name for p in (out / "out-h200-miles").iterdir()) == ["lab.toml"]


def test_a_gpu_that_the_log_does_not_call_shared_is_not_taken_for_alone(out, tmp_path, capsys):
    draft = draft_of("smoke")
    del draft["setup"]["shared"]
    del draft["setup"]["shared_with"]
    assert call(out, plain_log(tmp_path, "smoke"), "x", draft=draft) == 2
    assert "setup.shared is missing" in capsys.readouterr().err


def test_a_draft_that_contradicts_the_log_is_refused_unless_it_says_so(out, tmp_path, capsys):
    draft = draft_of("smoke")
    draft["setup"]["driver"] = "1.2.3"
    assert call(out, plain_log(tmp_path), "smoke", draft=draft) == 2
    assert "setup.driver: the log says '580.159.04', the draft '1.2.3'" in capsys.readouterr().err
    draft["override"] = ["setup.driver"]
    assert call(out, plain_log(tmp_path), "smoke", draft=draft) == 0
    document = tomlio.load(out / "out-h200-miles/smoke/run.toml")
    assert document["setup"]["driver"] == "1.2.3"
    assert document["run"]["overrides"] == ["setup.driver"]


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        ({"setpu": {"model": "x"}}, "'setpu'"),
        ({"setup": 3}, "'setup'"),
        ({"override": ["setup.model"]}, "override setup.model"),
    ],
)
def test_a_draft_with_a_misspelt_table_is_refused(draft, said, out, tmp_path, capsys):
    assert call(out, plain_log(tmp_path), "smoke", draft={**draft_of("smoke"), **draft}) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("bad", ["../x", "a/b", "", ".hidden", "a b"])
def test_a_name_that_leaves_the_lab_is_refused(bad, out, tmp_path):
    assert call(out, plain_log(tmp_path), bad, draft=draft_of("smoke")) == 2
    assert list(out.parent.glob("x")) == []


def test_an_unreadable_input_is_one_line_and_no_traceback(out, tmp_path, capsys):
    broken = tmp_path / "broken.xz"
    broken.write_bytes(b"\xfd7zXZ\x00 no xz at all")
    bad = tmp_path / "bad.toml"
    bad.write_text("a = \n")
    log = plain_log(tmp_path)
    for words in (
        [tmp_path / "absent.log"],
        [broken],
        [tmp_path],
        [log, "--run-toml", bad],
        [log, "--run-toml", tmp_path / "absent.toml"],
        [log, "--heat-guard", log],
        [log, "--extra", tmp_path / "absent"],
        [log, "--samples", tmp_path / "absent"],
        [log, "--word", "x"],
    ):
        assert call(out, words[0], "smoke", *words[1:], draft=draft_of("smoke")) == 2, words
        assert capsys.readouterr().err.count("\n") == 1, words
        assert sorted(p.name for p in (out / "out-h200-miles").iterdir()) == ["lab.toml"]


def test_an_empty_log_is_nothing_to_store(out, tmp_path):
    empty = tmp_path / "empty.log"
    empty.write_bytes(b"")
    assert call(out, empty, "smoke", draft=draft_of("smoke")) == 3


def test_two_runs_in_one_file_are_refused(out, tmp_path, capsys):
    log = plain_log(tmp_path, change=lambda data: data + data)
    assert call(out, log, "smoke", draft=draft_of("smoke")) == 2
    assert "holds 2 runs" in capsys.readouterr().err


def test_an_interrupt_leaves_nothing_behind(out, tmp_path, monkeypatch):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(summarize, "build", stop)
    before = files(out)
    assert call(out, plain_log(tmp_path), "smoke", draft=draft_of("smoke")) == 130
    assert files(out) == before
    assert sorted(p.name for p in (out / "out-h200-miles").iterdir()) == ["lab.toml"]


def test_a_dry_run_prints_run_toml_and_stores_nothing(out, tmp_path, capsys):
    before = files(out)
    assert call(out, plain_log(tmp_path), "smoke", "--dry-run", draft=draft_of("smoke")) == 0
    assert tomllib.loads(capsys.readouterr().out)["run"]["name"] == "smoke"
    assert files(out) == before


# -- secrets and other files ---------------------------------------------------------------------


def test_a_secret_reaches_no_stored_file_and_its_mask_is_recorded(out, tmp_path):
    key = "a1" * 20

    def leak(data):
        head, _, rest = data.partition(b"# command: ")
        more = f"(x pid=1) reading /home/joedoe/x\nWANDB_API_KEY={key}\n".encode()
        return head + b"# command: WANDB_API_KEY=" + key.encode() + b" " + rest + more

    log = plain_log(tmp_path, change=leak)
    extra = tmp_path / "smoke.notes.txt"
    extra.write_text(f"on gpubox7 with wandb login {key}\n")
    more = ["--extra", extra, "--word", "gpubox7"]
    assert call(out, log, "smoke", *more, draft=draft_of("smoke")) == 0
    folder = out / "out-h200-miles/smoke"
    stored = [unpacked(p) if p.suffix == ".xz" else p.read_bytes() for p in folder.iterdir()]
    assert not any(s in data for data in stored for s in (key.encode(), b"joedoe", b"gpubox7"))
    document = tomlio.load(folder / "run.toml")
    assert document["environment"]["WANDB_API_KEY"] == "[masked:secret]"
    masks = [(m["what"], m["count"], m["file"]) for m in document["masked"] if m["by"] == "store"]
    assert masks == [
        ("secret value", 2, "run.log.xz"),
        ("user name", 1, "run.log.xz"),
        ("token", 1, "notes.txt"),
        ("word", 1, "notes.txt"),
    ]
    assert {m["by"] for m in document["masked"]} == {"capture", "store"}


def test_the_pauses_of_the_heat_guard_are_stored_and_counted(out, tmp_path):
    guard = tmp_path / "guard.log"
    guard.write_text(
        "2026-11-29T13:31:00.000Z pause container=x temp_c=84 reason=hot\n"
        "2026-11-29T13:31:30.000Z resume container=x temp_c=74 reason=cool paused_s=30.0\n"
    )
    assert (
        call(out, plain_log(tmp_path, "n4"), "n4", "--heat-guard", guard, draft=draft_of("n4")) == 0
    )
    folder = out / "out-h200-miles/n4"
    assert (folder / "heat-guard.log").read_bytes() == guard.read_bytes()
    assert len(json.loads((folder / "summary.json").read_text())["runs"][0]["pauses"]) == 1
    assert kit.main(["summarize", "--check", str(folder)]) == 0


def test_samples_are_kept_once_for_the_lab_and_never_replaced(out, tmp_path, capsys):
    samples = tmp_path / "gpu-samples-wave4.csv"
    samples.write_bytes((LAB / "gpu-samples-wave4.csv").read_bytes())
    log = plain_log(tmp_path)
    assert call(out, log, "smoke", "--samples", samples, draft=draft_of("smoke")) == 0
    document = tomlio.load(out / "out-h200-miles/smoke/run.toml")
    clock = out / "out-h200-miles/smoke" / document["setup"]["clock_record"]
    assert clock.read_bytes() == samples.read_bytes()
    assert call(out, log, "again", "--samples", samples, draft=draft_of("smoke")) == 0
    samples.write_text("other\n")
    capsys.readouterr()
    assert call(out, log, "third", "--samples", samples, draft=draft_of("smoke")) == 2
    assert "other content" in capsys.readouterr().err
    assert not (out / "out-h200-miles/third").exists()


def test_the_checksum_of_each_stored_file_is_listed_and_no_other_line_changes(out, tmp_path):
    (out / checksums.NAME).write_text(f"{'0' * 64}  out-other/x/run.toml\n")
    samples = LAB / "gpu-samples-wave4.csv"
    assert (
        call(out, plain_log(tmp_path), "smoke", "--samples", samples, draft=draft_of("smoke")) == 0
    )
    listed = checksums.parse((out / checksums.NAME).read_text())
    lab = "out-h200-miles"
    assert set(listed) == {
        "out-other/x/run.toml", f"{lab}/gpu-samples-wave4.csv",
        f"{lab}/smoke/run.log.xz", f"{lab}/smoke/run.toml",
    }  # fmt: skip
    for path in set(listed) - {"out-other/x/run.toml"}:
        assert listed[path] == hashlib.sha256((out / path).read_bytes()).hexdigest()


def test_a_broken_list_of_checksums_stores_nothing(out, tmp_path, capsys):
    (out / checksums.NAME).write_text("x\n")
    assert call(out, plain_log(tmp_path), "smoke", draft=draft_of("smoke")) == 2
    assert "EVIDENCE.sha256:1: not SHA256" in capsys.readouterr().err
    assert not (out / "out-h200-miles/smoke").exists()


def test_a_draft_may_not_contradict_what_follows_from_the_command(out, tmp_path, capsys):
    draft = draft_of("smoke")
    draft["run"]["seed"] = 5
    assert call(out, plain_log(tmp_path), "smoke", draft=draft) == 2
    assert "run.seed: the log says 1234, the draft 5" in capsys.readouterr().err


def test_a_wrong_reference_column_is_marked_even_when_no_draft_says_so(out, tmp_path):
    draft = draft_of("plain_s4321")
    del draft["unusable"]
    assert call(out, plain_log(tmp_path, "plain_s4321"), "plain_s4321", draft=draft) == 0
    rows = tomlio.load(out / "out-h200-miles/plain_s4321/run.toml")["unusable"]
    assert [row["column"] for row in rows] == ["rollout/ref_log_probs", "train/kl_loss"]
    assert all("at step 0 it is 2.02 away" in row["reason"] for row in rows)


def reference_run(away, index=0):
    columns = {"rollout/ref_log_probs": [-0.3 - away], "rollout/log_probs": [-0.3]}
    return {
        "rollouts": {"index": [index], "columns": columns},
        "steps": {"index": [0], "columns": {"train/kl_loss": [0.1]}},
    }


WRONG = {
    "ref-load": "/m", "hf-checkpoint": "/m", "attn-implementation": "sdpa",
    "kl-loss-coef": 0.0, "kl-coef": 0.0,
}  # fmt: skip


def test_a_reference_is_judged_only_where_its_weights_are_those_of_the_policy():
    assert set(wrongcolumns.wrong_reference(WRONG, reference_run(0.11))) == {
        "rollout/ref_log_probs", "train/kl_loss",
    }  # fmt: skip
    assert wrongcolumns.wrong_reference(WRONG, reference_run(0.09)) == {}
    assert wrongcolumns.wrong_reference(WRONG, reference_run(2.0, index=3)) == {}
    for name, value in (
        ("ref-load", "/other"), ("attn-implementation", "flash_attention_2"), ("kl-coef", 0.1),
        ("kl-loss-coef", 0.1),
    ):  # fmt: skip
        assert wrongcolumns.wrong_reference({**WRONG, name: value}, reference_run(2.0)) == {}, name


@pytest.mark.parametrize(
    ("source", "name"),
    [("n4.answers.jsonl.xz", "answers.jsonl.xz"), ("x.csv", "x.csv"), ("n4.a.gz", "a.xz")],
)
def test_extra_files_lose_the_name_of_the_run(source, name):
    assert store.extra_name(f"/some/where/{source}", "n4") == name


@pytest.mark.parametrize("name", ["n4.run.toml", "summary.json", "run.log.gz"])
def test_an_extra_file_may_not_take_a_name_of_the_run_folder(name):
    with pytest.raises(store.StoreError, match="taken"):
        store.extra_name(name, "n4")


# -- what a log says -----------------------------------------------------------------------------


def test_a_command_becomes_typed_settings_and_its_environment():
    options, environment = runinfo.settings(
        "A=1 NAME='x y' python3 run.py --lr 1e-5 --n 8 --flag --t 0.00 --neg -1 -0.5 "
        "--path=/a=b --eval a 5 --n 16 --end"
    )
    assert environment == {"A": 1, "NAME": "x y"}
    assert options == {
        "lr": 1e-5, "flag": True, "t": 0.0, "neg": [-1, -0.5], "path": "/a=b",
        "eval": ["a", 5], "n": 16, "end": True,
    }  # fmt: skip
    assert type(options["n"]) is int


def test_options_before_the_script_belong_to_docker():
    options, _ = runinfo.settings("docker run --gpus all -e A=1 image python3 train.py --seed 7")
    assert options == {"seed": 7}


def test_an_unclosed_quote_in_a_command_is_named():
    with pytest.raises(runinfo.RunInfoError, match="cannot be split"):
        runinfo.settings("python3 x.py --a 'b")


def test_changed_lists_what_is_added_set_and_left_out():
    recipe = "python3 x.py --seed 1 --use-kl-loss --lr 1e-5"
    command = "A=2 python3 x.py --seed 7 --lr 1e-5 --eval a 5 --flag"
    assert runinfo.changed(command, recipe) == [
        "--eval a 5", "--flag", "--seed 7", "no --use-kl-loss",
    ]  # fmt: skip
    assert runinfo.changed(recipe, recipe) == []


def test_the_header_ends_at_the_first_line_without_its_mark():
    said = runinfo.header(["# run a", "# gpu X, 1.2, 10 MiB, 0 MiB", "text", "# run b"])
    assert said["setup"]["gpu"] == "X"
    assert "command" not in said["run"]


def test_the_run_itself_is_not_among_those_that_share_the_gpu():
    said = runinfo.header(
        ["# run b", "# other runs share this GPU at the same time: a, b (2 runs)"]
    )
    assert said["setup"] == {"shared": True, "shared_with": ["a"]}


def test_a_date_is_read_as_utc_and_a_wrong_one_is_named():
    assert runinfo.parse_time("2026-11-29T13:27:19Z") == dt.datetime(
        2026, 11, 29, 13, 27, 19, tzinfo=dt.UTC
    )
    for bad in ("2026-11-29 13:27:19", "2026-13-01T00:00:00Z", ""):
        with pytest.raises(runinfo.RunInfoError):
            runinfo.parse_time(bad)


def summary_run(how, status, steps, rollouts):
    return {
        "ended": {"how": how, "status": status},
        "steps": {"index": list(range(steps))},
        "rollouts": {"index": list(range(rollouts))},
    }


def test_the_draft_says_how_a_run_ended_only_where_its_log_does_not():
    draft = {"verdict": "stopped", "how": "killed", "status": 137}
    table = runinfo.ended(summary_run("running", None, 3, 4), draft, 4)
    assert table == {
        "how": "killed", "status": 137, "steps": 3, "partial": False, "verdict": "stopped",
    }  # fmt: skip
    assert runinfo.ended(summary_run("finished", 0, 3, 3), draft, 4)["how"] == "finished"
    assert runinfo.ended(summary_run("killed", 143, 3, 3), draft, 4)["how"] == draft["how"]
    assert runinfo.ended(summary_run("finished", 0, 3, 3), draft, 4)["partial"] is True
    assert "status" not in runinfo.ended(summary_run("cut", None, 0, 0), {"verdict": "x"}, 4)


def test_a_mask_that_meets_a_name_again_leaves_run_toml_readable():
    text = tomlio.dumps({"run": {"command": scrub.scrub_bytes(b"A_KEY='q' x.py").decode()}})
    assert tomllib.loads(text)["run"]["command"] == "A_KEY='[masked:secret]' x.py"


def test_the_header_of_our_launcher_gives_commit_date_and_versions():
    said = runinfo.header(
        ["# run a", "# miles commit 08752a1283 (2026-10-15); torch 2.11.0, ray 2.56.0"]
    )
    assert said["setup"]["miles_commit"] == "08752a1283"
    assert said["setup"]["miles_date"] == dt.date(2026, 10, 15)
    assert said["setup"]["versions"] == {"torch": "2.11.0", "ray": "2.56.0"}


def test_a_launcher_that_found_no_versions_names_none():
    said = runinfo.header(["# run a", "# miles commit unknown; no versions found"])
    assert "versions" not in said["setup"]
