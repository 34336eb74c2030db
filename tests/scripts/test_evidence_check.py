"""Each way to change stored evidence is found and named with file and line."""

import lzma
import re
import shutil

import pytest

from scripts import evidence_check
from scripts.tree import ROOT

pytestmark = pytest.mark.slow  # each packs or unpacks a run, or reads all of them

LAB = "capture/gpu/out-h200-miles"
LIST = "capture/gpu/EVIDENCE.sha256"
RUNS = sorted(path.parent.name for path in (ROOT / LAB).glob("*/run.toml"))


def found(overlay=None, listed=True):
    """Problems with these files in place; listed: their checksums are changed along."""
    overlay = {path: data.encode() if isinstance(data, str) else data
               for path, data in (overlay or {}).items()}  # fmt: skip
    if listed:
        from mileskit.evidence import checksums

        text = (ROOT / LIST).read_text()
        lines = checksums.parse(text)
        for path, data in overlay.items():
            lines[path.removeprefix("capture/gpu/")] = checksums.checksum(data)
        overlay[LIST] = checksums.render(lines).encode()
    return [str(problem) for problem in evidence_check.check(ROOT, overlay).problems]


def text(path):
    return (ROOT / LAB / path).read_text()


def replaced(path, old, new):
    """The file with the first line that matches replaced, and its 1-based number."""
    whole = text(path)
    match = re.search(old, whole, re.MULTILINE)
    assert match, (path, old)
    changed = whole[: match.start()] + match.expand(new) + whole[match.end() :]
    assert changed != whole
    return {f"{LAB}/{path}": changed}, whole.count("\n", 0, match.start()) + 1


def test_the_stored_evidence_holds():
    assert found({}, listed=False) == []
    counts = evidence_check.check(ROOT).counts
    assert counts["records"] == len(list(ROOT.glob("capture/gpu/out-*/*/run.toml")))
    assert counts["checksums"] >= 30


EDITS = [
    (r'^seed = .*', 'seed = 99', "run.seed"),
    (r'^rollout_seed = .*', 'rollout_seed = 99', "run.rollout_seed"),
    (r'^num_rollout = .*', 'num_rollout = 99', "run.num_rollout"),
    (r'^(started = .*)T1', r'\1T0', "run.started"),
    (r'^(command = ".*--lr )1e-5', r'\g<1>1e-6', "run.command"),
    (r'^lr = .*', 'lr = 1e-06', "settings.lr"),
    (r'^colocate = true\n', '', "settings.colocate"),
    (r'^(\[settings\]\n)', r'\1use-kl-lozz = true\n', "settings.use-kl-lozz"),
    (r'^how = .*', 'how = "cut"', "ended.how"),
    (r'^status = .*', 'status = 7', "ended.status"),
    (r'^steps = .*', 'steps = 99', "ended.steps"),
    (r'^partial = true|^partial = false', 'partial = 3', "ended.partial"),
    (r'^gpu = .*', 'gpu = "NVIDIA B200"', "setup.gpu"),
    (r'^driver = .*', 'driver = "1.2"', "setup.driver"),
    (r'^gpu_memory_mib = .*', 'gpu_memory_mib = 1', "setup.gpu_memory_mib"),
    (r'^gpu_used_mib_at_start = .*', 'gpu_used_mib_at_start = 77', "setup.gpu_used_mib_at_start"),
    (r'^miles_commit = .*', 'miles_commit = "0"', "setup.miles_commit"),
    (r'^miles_date = .*', 'miles_date = 2026-10-15', "setup.miles_date"),
    (r'^engine = .*', 'engine = "vLLM"', "setup.engine"),
    (r'^(versions = .*torch = ")2', r'\g<1>3', "setup.versions"),
    (r'^attention_trainer = .*', 'attention_trainer = "flash"', "setup.attention_trainer"),
    (r'^model = .*', 'model = "Qwen3-0.6B"', "setup.model"),
    (r'^data = .*', 'data = "GSM8K"', "setup.data"),
    (r'^reward = .*', 'reward = "math"', "setup.reward"),
    (r'^container = .*', 'container = true', "setup.container"),
    (r'^gpus = .*', 'gpus = 8', "setup.gpus"),
    (r'^not_stock = \[\n(.*\n)*?\]', 'not_stock = []', "setup.not_stock"),
    (r'^(    "no container and no manual image",\n)', '', "setup.not_stock"),
    (r'^(model_source)', r'colour = "red"\n\1', "setup.colour"),
    (r'\[\[masked\]\]\n(.*\n)+?\n', '', "masked.what"),
    (r'^name = .*', 'name = "other"', "run.name"),
    (r'^lab = .*', 'lab = "other"', "run.lab"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "place"), EDITS, ids=[edit[2] for edit in EDITS])
@pytest.mark.parametrize("run", ["filter", "plain3"])
def test_an_edited_field_of_a_record_is_named_even_when_its_checksum_is_changed_along(
    run, old, new, place
):
    overlay, _ = replaced(f"{run}/run.toml", old, new)
    problems = [p for p in found(overlay) if p.startswith(f"{LAB}/{run}/run.toml:")]
    named = [p for p in problems if f": {place}: " in p]
    assert named, problems
    number = int(named[0].split(":")[1])
    there = overlay[f"{LAB}/{run}/run.toml"].split("\n")[number - 1].strip("[]")
    table, name = place.split(".")
    assert there.startswith((f"{name} = ", table)), there


@pytest.mark.parametrize("run", RUNS)
def test_the_gpu_flag_of_every_run_is_derived(run):
    new = "shared = false" if "shared = true" in text(f"{run}/run.toml") else "shared = true"
    overlay, _ = replaced(f"{run}/run.toml", r"^shared = \w+", new)
    assert any(f"{run}/run.toml:" in p and "setup.shared: " in p for p in found(overlay))


@pytest.mark.parametrize("run", ["n4", "filter"])
def test_a_run_at_the_same_time_may_not_be_left_out_even_by_an_override(run):
    overlay, _ = replaced(f"{run}/run.toml", r"^shared_with = .*", "shared_with = []")
    path, whole = next(iter(overlay.items()))
    if "overrides" not in whole:
        whole = whole.replace("[ended]", 'overrides = ["setup.shared_with"]\n\n[ended]', 1)
    problems = found({path: whole})
    assert any("setup.shared_with: " in p and "ran at the same time" in p for p in problems)


def test_a_run_that_its_record_calls_alone_may_not_overlap_another():
    overlay, _ = replaced("n4/run.toml", r"^shared = true", "shared = false")
    path, whole = next(iter(overlay.items()))
    whole = whole.replace("[ended]", 'overrides = ["setup.shared"]\n\n[ended]', 1)
    assert any("setup.shared: false, but" in p for p in found({path: whole}))


def test_an_override_must_override_something():
    overlay, _ = replaced("n4/run.toml", r"^\[ended\]", 'overrides = ["setup.gpu"]\n[ended]')
    assert any("setup.gpu: is what the log says" in p for p in found(overlay))
    overlay, _ = replaced("n4/run.toml", r"^\[ended\]", 'overrides = ["setup.model"]\n[ended]')
    assert any("setup.model: the log does not say it" in p for p in found(overlay))


def test_changed_is_computed_from_the_recipe_of_the_lab():
    overlay, _ = replaced("topp2/run.toml", r'^    "--rollout-top-p 0.95",\n', "")
    named = [p for p in found(overlay) if "run.changed: " in p]
    assert named
    where = text("topp2/run.toml").split("\n").index("changed = [") + 1
    assert named[0].startswith(f"{LAB}/topp2/run.toml:{where}: ")


WRONG = ["plain_s1234", "plain_s4321", "topp2", "filter", "kill_noft"]


@pytest.mark.parametrize("run", WRONG)
@pytest.mark.parametrize("column", ["rollout/ref_log_probs", "train/kl_loss"])
def test_a_column_that_the_log_shows_to_be_wrong_must_be_listed(run, column):
    row = rf'\[\[unusable\]\]\ncolumn = "{column}"\nreason = .*\n\n'
    overlay, _ = replaced(f"{run}/run.toml", row, "")
    assert any(f"{column} is not listed: " in p for p in found(overlay))


def test_a_row_for_a_column_that_the_log_lacks_is_named():
    row = '[[unusable]]\ncolumn = "rollout/nothing"\nreason = "x"\n\n[[masked]]'
    overlay, _ = replaced("n4/run.toml", r"^\[\[masked\]\]", row)
    assert any("rollout/nothing: the log has no such column" in p for p in found(overlay))


def test_a_clock_record_of_another_time_is_no_clock_record():
    overlay, line = replaced(
        "plain_s1234/run.toml", r'^clock_record = ""', 'clock_record = "../gpu-samples-wave4.csv"'
    )
    problems = found(overlay)
    assert any(f"run.toml:{line}: setup.clock_record: ../gpu" in p and "covers" in p
               for p in problems)  # fmt: skip
    assert any("lab.toml says ''" in p for p in problems)


def test_a_missing_short_or_broken_clock_record_is_named():
    path = f"{LAB}/gpu-samples-wave4.csv"
    whole = (ROOT / path).read_text().splitlines(keepends=True)
    for part, said in (
        (whole[:60], "covers"),
        (whole[:1] + whole[30:], "covers"),
        (whole[:40] + whole[60:], "has no sample for"),
        (whole[:1], "holds 0 samples"),
        (["x,y\n", *whole[1:]], "cannot be read"),
    ):
        problems = found({path: "".join(part)})
        assert any(f"{LAB}/n16/run.toml:" in p and said in p for p in problems), said


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (r"^gpu = .*", 'gpu = "NVIDIA B200"', "machine.gpu"),
        (r"^driver = .*", 'driver = "1"', "machine.driver"),
        (r"^miles_commit = .*", 'miles_commit = "0"', "software.miles_commit"),
        (r"^(versions = .*torch = ).*?,", r'\1"9",', "software.versions"),
        (r"^model = .*", 'model = "Qwen3-0.6B"', "setup.model"),
        (r"^(command = .*--lr )1e-5", r"\g<1>1e-6", "run.changed"),
        (r'^runs = \["plain3", "determ", "determ2"\]', 'runs = ["plain3"]', "answers are stored"),
        (r'^runs = \["smoke"\]', 'runs = ["smoke", "smok"]', "no run 'smok'"),
        (r"^reason = .*\n", "", "no reason is given"),
    ],
)
def test_an_edit_of_the_record_of_the_lab_is_named(old, new, said):
    overlay, _ = replaced("lab.toml", old, new)
    assert any(said in p for p in found(overlay))


def test_a_record_that_cannot_be_read_is_one_line():
    problems = found({f"{LAB}/n4/run.toml": "schema = \n"})
    assert any(
        p.startswith(f"{LAB}/n4/run.toml:1: cannot be held against its log") for p in problems
    )
    problems = found({f"{LAB}/n4/run.log.xz": b"no xz"})
    assert any(
        p.startswith(f"{LAB}/n4/run.toml:1: cannot be held against its log") for p in problems
    )


def evidence_paths():
    return [line.split("  ")[1] for line in (ROOT / LIST).read_text().splitlines()]


@pytest.mark.parametrize("path", evidence_paths())
def test_any_change_of_any_listed_file_is_found_with_the_line_of_the_list(path):
    data = (ROOT / "capture/gpu" / path).read_bytes()
    if path.endswith("run.log.xz"):
        data = lzma.compress(lzma.decompress(data) + b"\n", preset=0)
    else:
        data += b"\n"
    line = evidence_paths().index(path) + 1
    problems = found({f"capture/gpu/{path}": data}, listed=False)
    assert f"{LIST}:{line}: {path} changed since it was listed" in problems


def test_every_kind_of_evidence_is_listed():
    paths = evidence_paths()
    names = ["published.txt", "reported.toml", "lab.toml", "run.toml", "run.log.xz"]
    names += ["answers-steps-0-1.jsonl.xz", "gpu-samples-wave4.csv", "task/word_rm.py"]
    for name in names:
        assert any(path.endswith(name) for path in paths), name
    assert not any(path.endswith("summary.json") for path in paths)


def test_an_extra_file_is_named():
    problems = found({f"{LAB}/n4/answers.txt": "x"}, listed=False)
    assert problems == [f"{LAB}/n4/answers.txt: is not listed in EVIDENCE.sha256"]


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(ROOT / "capture/gpu/out-gb10", tmp_path / "capture/gpu/out-gb10")
    return tmp_path


def listed_problems(root):
    from scripts.report import Report
    from scripts.tree import Tree

    report = Report()
    evidence_check.check_list(Tree(root), report)
    return [str(problem) for problem in report.problems]


def test_a_missing_file_and_a_missing_list_are_named(copy):
    assert listed_problems(copy)[0].startswith(f"{LIST}:1: cannot be read")
    assert evidence_check.write(copy) == 3
    assert listed_problems(copy) == []
    (copy / "capture/gpu/out-gb10/published.txt").unlink()
    assert listed_problems(copy) == [f"{LIST}:2: out-gb10/published.txt is listed and not there"]


def test_a_list_that_is_no_list_is_named_with_its_line(copy):
    evidence_check.write(copy)
    path = copy / LIST
    good = path.read_text()
    path.write_text(good + "abc\n")
    assert listed_problems(copy) == [
        f"{LIST}:1: cannot be read: EVIDENCE.sha256:4: not SHA256, two spaces and a path: 'abc'"
    ]
    path.write_text(good + good.splitlines()[0] + "\n")
    assert "is listed twice" in listed_problems(copy)[0]


def test_a_list_that_is_not_sorted_is_named(copy):
    evidence_check.write(copy)
    path = copy / LIST
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    assert listed_problems(copy) == [f"{LIST}:1: is not sorted by path, or lacks its last newline"]
