"""Measurements and runs of the OLMo-core trainer: stored, checked, and each corruption found.

Everything here is made up, in labs named synthetic-core; no stored evidence is touched.
"""

import argparse
import json
import lzma
import tomllib

import pytest

from capture.core.peer import rows
from capture.core.runlog import RunLog
from figures import corerecords, evidence, registry
from figures.sources import measured
from scripts import core_records, evidence_records
from scripts.tree import Tree

LAB = "synthetic-core"
FOLDER = f"capture/gpu/out-{LAB}"
GPU = {"gpu": "NVIDIA H200", "gpus": 1, "gpu_memory_mib": 143771, "driver": "580.1"}
VERSIONS = {"ai2-olmo-core": "3.0.0", "torch": "2.11.0", "transformers": "5.17.0"}
SETUP = {
    **GPU, "model": "none", "versions": {**VERSIONS, "torch": "2.11.0+cu130"}, "shared": False,
    "clock_record": "", "not_stock": ["made up"],
}  # fmt: skip
ENVIRONMENT = {
    "core": "3.0.0", "torch": "2.11.0+cu130", "transformers": "5.17.0", "device": "NVIDIA H200",
}  # fmt: skip
EXPERIMENT = [
    {"schema": 1, "experiment": "gap", "settings": {}, "environment": ENVIRONMENT},
    {"key": {"case": "a", "seed": 0}, "values": {"mean_abs": 0.5}},
    {"key": {"case": "b", "seed": 0}, "values": {"mean_abs": 0.25}},
]
LAB_TOML = """\
schema = 1
[lab]
name = "synthetic-core"
[machine]
gpu = "NVIDIA H200"
gpus = 1
gpu_memory_mib = 143771
driver = "580.1"
container = false
[software]
miles_commit = "none"
miles_date = 2026-08-21
versions = { ai2-olmo-core = "3.0.0", torch = "2.11.0", transformers = "5.17.0", trl = "1.16.0" }
[recipe]
run = "gpu_s3"
command = "python -m capture.core run gpu.toml --seed 1"
[setup]
model = "none"
data = "made up"
reward = "made up"
miles_commit = "none"
miles_date = 2026-08-21
engine = "transformers, in the trainer's process"
container = false
image = ""
launcher = "capture/core/h200.sh"
gpus = 1
shared = false
shared_with = []
clock_record = ""
attention_engine = "sdpa"
attention_trainer = "varlen"
sampling = "own"
not_stock = ["made up"]
"""


def dumped(lines):
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def draft(kind, **setup):
    record = {"kind": kind, "started": "2026-11-29T20:00:00Z", "command": "x", "note": "made up"}
    return {"record": record, "setup": {**SETUP, **setup}}


@pytest.fixture
def root(tmp_path):
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / FOLDER / "lab.toml").write_text(LAB_TOML)
    return tmp_path


def put(root, name, files, given):
    """Store files (name -> bytes) as a record."""
    source = root / "source"
    source.mkdir(exist_ok=True)
    paths = []
    for file, data in files.items():
        (source / file).write_bytes(data)
        paths.append(source / file)
    return core_records.store(paths, root / FOLDER, name, given)


def peer_files():
    """Rows of ours and of TRL's, and the summary that follows from them."""
    files, entries = {}, []
    for phase, name, seconds in (("try", "static", 3.0), ("first", "core", 1.0),
                                 ("first", "default", 4.0)):  # fmt: skip
        file = f"{phase}-{name}.jsonl"
        side = {"side": "core"} if name == "core" else {"side": "trl", "trl": "1.16.0"}
        lines = [{"kind": "setup", **side, "configuration": name, "torch": "2.11.0+cu130",
                  "gpu": "NVIDIA H200"}]  # fmt: skip
        for step in range(4):
            lines.append({"kind": "step", "step": step, "seconds": seconds if step else None,
                          "samples": 8, "response_tokens": 80, "reward": 0.5})  # fmt: skip
        lines.append({"kind": "end"})
        files[file] = dumped(lines)
        warmup = 1 if phase == "try" else 2
        entries.append({"phase": phase, "configuration": name, "file": file, "status": 0,
                        **rows.summary(lines, warmup)})  # fmt: skip
    return files | {"summary.json": json.dumps(rows.compared(entries, 2)).encode()}


def trl_setup():
    return {"versions": {**SETUP["versions"], "trl": "1.16.0"}}


@pytest.fixture
def stored(root):
    put(root, "gap", {"gap.jsonl": dumped(EXPERIMENT)}, draft("experiment"))
    put(root, "peer", peer_files(), draft("peer", **trl_setup()))
    put(root, "speed", {"speed.jsonl": dumped([{"tokens": 1}])}, draft("plain"))
    return root


def problems(root, overlay=None):
    return [str(p) for p in core_records.check(Tree(root, overlay or {})).problems]


def test_what_is_stored_holds_and_is_listed(stored):
    report = core_records.check(Tree(stored))
    assert report.problems == []
    assert (report.counts["measurements"], report.counts["lines of records"]) == (3, 22)
    listed = (stored / "capture/gpu/EVIDENCE.sha256").read_text()
    assert f"out-{LAB}/gap/gap.jsonl.xz" in listed
    assert f"out-{LAB}/peer/summary.json.xz" in listed


def edited(root, path, old, new):
    """The overlay in which a stored file has another text."""
    name = f"{FOLDER}/{path}"
    data = (root / name).read_bytes()
    text = (lzma.decompress(data) if path.endswith(".xz") else data).decode()
    assert old in text, (path, old)
    changed = text.replace(old, new, 1).encode()
    return {name: lzma.compress(changed) if path.endswith(".xz") else changed}


EDITS = [
    ("gap/gap.jsonl.xz", "NVIDIA H200", "NVIDIA B200", "gap.jsonl: gpu 'NVIDIA B200'"),
    ("gap/gap.jsonl.xz", "5.17.0", "5.24.0", "transformers '5.24.0'"),
    ("gap/gap.jsonl.xz", '"key"', '"kex"', "gap.jsonl:2: no key with values"),
    ("gap/gap.jsonl.xz", '{"key"', '{key"', "gap.jsonl:2: not JSON"),
    ("gap/record.toml", '"gap.jsonl" = 3', '"gap.jsonl" = 4', "lines.gap.jsonl: 4"),
    ("gap/record.toml", 'name = "gap"', 'name = "gip"', "record.name: 'gip'"),
    ("gap/record.toml", 'driver = "580.1"', 'driver = "1"', "setup.driver: '1'"),
    ("gap/record.toml", 'model = "none"\n', "", "setup.model: missing"),
    ("gap/record.toml", 'kind = "experiment"', 'kind = "other"', "record.kind: 'other'"),
    (
        "peer/first-core.jsonl.xz",
        '"step": 2, "seconds": 1.0',
        '"step": 2, "seconds": 0.9',
        "first-core.jsonl: ",
    ),
    ("peer/first-core.jsonl.xz", '"reward": 0.5', '"reward": 0.6', "reward_first 0.5"),
    ("peer/first-default.jsonl.xz", '"trl": "1.16.0"', '"trl": "1.15.0"', "trl '1.15.0'"),
    ("peer/summary.json.xz", '"default": 4.0', '"default": 5.0', "does not follow from its runs"),
]


@pytest.mark.parametrize(("path", "old", "new", "text"), EDITS)
def test_each_corruption_is_found(stored, path, old, new, text):
    (problem,) = problems(stored, edited(stored, path, old, new))
    assert f"{path.split('/')[0]}/record.toml" in problem
    assert text in problem


def test_other_versions_than_the_labs_are_found(stored):
    overlay = {f"{FOLDER}/lab.toml": LAB_TOML.replace("5.17.0", "5.16.0").encode()}
    assert len(problems(stored, overlay)) == 3


def test_a_missing_file_and_a_missing_lab_are_found(stored):
    (stored / FOLDER / "gap/gap.jsonl.xz").unlink()
    (problem,) = problems(stored)
    assert "cannot be read" in problem
    (stored / FOLDER / "lab.toml").unlink()
    assert len(problems(stored)) == 3


def test_nothing_is_stored_twice_or_by_half(root):
    put(root, "gap", {"gap.jsonl": dumped(EXPERIMENT)}, draft("experiment"))
    with pytest.raises(core_records.RecordError, match="exists already"):
        put(root, "gap", {"gap.jsonl": dumped(EXPERIMENT)}, draft("experiment"))
    with pytest.raises(core_records.RecordError, match="NVIDIA B200"):
        put(root, "b200", {"gap.jsonl": dumped(EXPERIMENT)}, draft("experiment", gpu="NVIDIA B200"))
    assert sorted(p.name for p in (root / FOLDER).iterdir()) == ["gap", "lab.toml"]


def test_the_program_stores(root, capsys):
    (root / "draft.toml").write_text(
        '[record]\nkind = "experiment"\nstarted = "2026-11-29T20:00:00Z"\ncommand = "x"\n'
        'note = "made up"\n[setup]\nmodel = "none"\ngpu = "NVIDIA H200"\ngpus = 1\n'
        'gpu_memory_mib = 143771\ndriver = "580.1"\nshared = false\nclock_record = ""\n'
        'not_stock = []\nversions = { ai2-olmo-core = "3.0.0", torch = "2.11.0+cu130",'
        ' transformers = "5.17.0" }\n'
    )
    (root / "gap.jsonl").write_bytes(dumped(EXPERIMENT))
    words = ["store", str(root / "gap.jsonl"), "--lab", LAB, "--name", "gap"]
    words += ["--draft", str(root / "draft.toml"), "--root", str(root / "capture/gpu")]
    assert core_records.main(words) == 0
    assert "stored" in capsys.readouterr().out
    assert problems(root) == []
    assert core_records.main(words) == 2


def test_figures_read_it_and_the_read_is_noted(stored):
    with evidence.use_root(stored), evidence.recording() as reads:
        found = evidence.run(f"{LAB}/gap")
        assert isinstance(found, corerecords.Measurement)
        assert found.lines("gap.jsonl", timing=True)[1]["values"] == {"mean_abs": 0.5}
        assert (found.setup["gpu"], found.shared, found.clock_known) == (
            "NVIDIA H200",
            False,
            False,
        )
    assert [(r.run, r.what, r.timing) for r in reads] == [(f"{LAB}/gap", "gap.jsonl", True)]


def test_a_figure_of_lines_counts_neither_them_nor_one_seed(stored):
    """Lines are no steps, and an experiment has its seeds inside its file."""

    def make():
        evidence.run(f"{LAB}/gap").lines("gap.jsonl")
        value = measured("gap", 0.5, "nats", 1, what="gap", runs=[f"{LAB}/gap"])
        columns = {"gap": "Gap"}
        return registry.Figure(shape="", values=[value], rows=[{"gap": 0.5}], columns=columns)

    with evidence.use_root(stored):
        with evidence.recording() as reads:
            made = make()
        figure = registry.BuiltFigure("fig-x", made, reads)
        assert figure.strength_text == "1 run"
        assert figure.recompute == "make check-claims"


def test_no_time_is_read_where_the_gpu_was_shared(stored):
    overlay = edited(stored, "gap/record.toml", "shared = false", "shared = true")
    with evidence.use_root(stored), evidence.use_overlay(overlay):
        found = evidence.run(f"{LAB}/gap")
        assert found.lines("gap.jsonl")
        with pytest.raises(evidence.EvidenceError, match="shared"):
            found.lines("gap.jsonl", timing=True)
        with pytest.raises(evidence.EvidenceError, match="No such file"):
            found.lines("other.jsonl")


# -- a run of the trainer, through the kit's own store -------------------------------------------

SETTINGS = {"name": "gpu", "seed": 3, "model": {"path": "/lab/smollm2", "dropout": None},
            "rollout": {"num_rollout": 2, "temperature": 0.8}}  # fmt: skip
CONTRACT = ['{"schema":1,"step":1}', '{"schema":1,"step":2}']


def core_log(path):
    """A log in the trainer's own shapes, of two steps."""
    moments = iter(1_790_000_000.0 + i for i in range(1000))
    notes = (
        "packages: ai2-olmo-core 3.0.0, torch 2.11.0+cu130, transformers 5.17.0",
        f"settings: {json.dumps(SETTINGS)}",
    )
    log = RunLog(
        path, name="gpu", command="python -m capture.core run gpu.toml --seed 3", notes=notes,
        gpu="NVIDIA H200, 580.1, 143771 MiB, 4 MiB", clock=lambda: next(moments),
    )  # fmt: skip
    for number in range(2):
        log.rollout_perf(number, {"perf/rollout_time": 1.0})
        log.rollout(number, {"rollout/raw_reward": 0.5})
        log.step(number, {"train/loss": 0.1, "train/step": number})
        log._record("actor_cell0_rank0", f"training_contract {number}: {CONTRACT[number]}")
        log.perf(number, {"perf/step_time": 2.0})
    log.end(0)


@pytest.fixture
def with_run(root):
    from mileskit.evidence import store

    core_log(root / "run.log")
    setup = tomllib.loads(LAB_TOML)["setup"]
    lines = ["[run]", 'note = "made up"', "[ended]", 'verdict = "finished"', "[setup]"]
    for key, value in setup.items():
        text = json.dumps(value) if not hasattr(value, "year") else value.isoformat()
        lines.append(f"{key} = {text}")
    (root / "draft.toml").write_text("\n".join(lines) + "\n")
    (root / "training_contract_rank0.jsonl").write_text("\n".join(CONTRACT) + "\n")
    packed = root / "training_contract_rank0.jsonl.xz"
    packed.write_bytes(lzma.compress((root / "training_contract_rank0.jsonl").read_bytes()))
    store.store(
        argparse.Namespace(
            log=str(root / "run.log"), lab=LAB, run="gpu_s3", run_toml=[str(root / "draft.toml")],
            heat_guard=None, samples=None, extra=[str(packed)], word=[],
            out=str(root / "capture/gpu"), dry_run=False,
        )
    )  # fmt: skip
    return root


def test_a_run_of_the_trainer_is_stored_and_holds(with_run):
    record = tomllib.loads((with_run / FOLDER / "gpu_s3/run.toml").read_text())
    assert (record["run"]["seed"], record["run"]["rollout_seed"]) == (3, 3)
    assert record["run"]["num_rollout"] == 2
    assert record["settings"]["rollout.temperature"] == 0.8
    assert "model.dropout" not in record["settings"]
    assert record["setup"]["versions"]["torch"] == "2.11.0+cu130"
    assert record["setup"]["gpu_used_mib_at_start"] == 4
    assert (record["ended"]["how"], record["ended"]["steps"]) == ("finished", 2)
    assert [str(p) for p in evidence_records.check(Tree(with_run)).problems] == []
    report = core_records.check(Tree(with_run))
    assert (report.problems, report.counts["contract records"]) == ([], 2)


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ('"rollout.temperature" = 0.8', '"rollout.temperature" = 1.0', "rollout.temperature"),
        ("rollout_seed = 3", "rollout_seed = 42", "run.rollout_seed"),
        ("num_rollout = 2", "num_rollout = 3", "run.num_rollout"),
        ('transformers = "5.17.0"', 'transformers = "5.18.0"', "versions"),
    ],
)
def test_a_changed_record_of_a_run_is_found(with_run, old, new, place):
    overlay = edited(with_run, "gpu_s3/run.toml", old, new)
    found = [str(p) for p in evidence_records.check(Tree(with_run, overlay)).problems]
    assert any(place in problem for problem in found), found


def test_a_contract_record_that_is_not_the_logs_is_found(with_run):
    overlay = edited(with_run, f"gpu_s3/{core_records.CONTRACT}", '"step":2', '"step":3')
    (problem,) = problems(with_run, overlay)
    assert "jsonl.xz:2: is not the record that run.log holds" in problem
