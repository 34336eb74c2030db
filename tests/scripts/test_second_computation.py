"""The second computation agrees with the kit, shares nothing with it, and sees every change."""

import ast
import copy
import io
import json
import lzma
import re
import shutil
from pathlib import Path

import pytest
from mileskit.summary import summarize

from scripts import second_computation as second

ROOT = second.ROOT
KIT = ROOT / "capture/gpu"
RUNS = second.run_folders(ROOT)


def log_of(name: str) -> bytes:
    with lzma.open(KIT / "out-h200-miles" / name / "run.log.xz") as stream:
        return stream.read()


def of_kit(log: bytes, guard: bytes | None = None) -> dict:
    """The kit's summary as JSON gives it back."""
    return json.loads(summarize.to_bytes(summarize.build(io.BytesIO(log), guard)))


@pytest.fixture
def small(tmp_path):
    """A root with one run, n4."""
    target = tmp_path / "capture/gpu/out-h200-miles/n4"
    target.parent.mkdir(parents=True)
    shutil.copytree(KIT / "out-h200-miles/n4", target)
    return tmp_path, target


@pytest.mark.slow  # `make check` runs this check itself
def test_every_stored_run_agrees():
    compared, errors = second.compare(ROOT)
    assert errors == []
    assert len(RUNS) >= 12
    assert compared >= 70 * sum(1 for r in RUNS if r.name not in ("smoke", "topp"))


def test_it_imports_nothing_of_the_kit_and_nothing_of_the_checks():
    tree = ast.parse(Path(second.__file__).read_text())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.split(".")[0])
    assert "pandas" in names
    assert not names & ({p.stem for p in KIT.glob("*.py")} | {"scripts", "capture", "importlib"})


@pytest.mark.parametrize("folder", RUNS, ids=[f.name for f in RUNS])
def test_any_other_stored_value_is_a_difference(folder):
    stored = second.stored_values(json.loads((folder / "summary.json").read_text()))
    for quantity, value in stored.items():
        changed = copy.copy(stored)
        if isinstance(value, float):
            changed[quantity] = value + 10**-9 * max(abs(value), 1e-6)
        else:
            changed[quantity] = value + 1 if isinstance(value, int) else f"{value}0"
        assert [d[0] for d in second.differences(stored, changed)] == [quantity]
        del changed[quantity]
        assert second.differences(stored, changed) == [(quantity, value, "nothing")]


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        (r'("perf/step_time": \{"all": )', r"\g<1>1", "perf/step_time median all"),
        (r'"total": 0', '"total": 7', "retries total"),
        (r'"n_clean": 12\}', '"n_clean": 11}', "n_clean"),
        (r'"sha256": "[0-9a-f]{4}', '"sha256": "abcd', "source sha256"),
    ],
)  # fmt: skip
def test_a_changed_summary_is_named_with_run_quantity_values_and_line(small, before, after, named):
    root, folder = small
    path = folder / "summary.json"
    text = path.read_text()
    path.write_text(re.sub(before, after, text))
    assert path.read_text() != text
    errors = second.check(root)
    assert errors
    start = r"capture/gpu/out-h200-miles/n4/summary\.json:\d+: run h200-miles/n4, "
    assert all(re.match(start, e) for e in errors)
    assert any(named in e for e in errors)
    assert all(", computed " in e and "stored " in e for e in errors)


def test_a_changed_metric_digit_of_the_log_is_a_difference(small):
    root, folder = small
    log = log_of("n4")
    found = re.search(rb"'train/grad_norm': 0\.(\d)", log)
    other = b"%d" % ((int(found[1]) + 1) % 10)
    with lzma.open(folder / "run.log.xz", "wb") as stream:
        stream.write(log[: found.start(1)] + other + log[found.end(1) :])
    errors = second.check(root)
    assert any("source sha256" in e for e in errors)


def test_wrong_ended_fields_of_run_toml_are_named(small):
    root, folder = small
    path = folder / "run.toml"
    path.write_text(path.read_text().replace("steps = 12", "steps = 11"))
    assert second.check(root) == [
        "capture/gpu/out-h200-miles/n4/run.toml:1: run h200-miles/n4, [ended] steps: "
        "stored 11, computed 12"
    ]
    assert second.count(root)["runs"] == 1


@pytest.mark.parametrize("name", ["summary.json", "run.log.xz", "run.toml"])
def test_a_run_that_cannot_be_read_is_an_error_not_a_pass(small, name):
    root, folder = small
    (folder / name).write_bytes(b"{")
    total, errors = second.compare(root)
    assert total == 0
    assert len(errors) == 1
    assert "run h200-miles/n4 cannot be compared" in errors[0]


def iso(at: float) -> str:
    return f"{second.pd.Timestamp(at, unit='s').isoformat(timespec='milliseconds')}Z"


def windows(log: bytes) -> list[tuple[float, float]]:
    """Start and end of each whole step of a log."""
    found = second.records(second.lines_of(log))
    rows = found[found["values"].map(lambda v: "perf/step_time" in v)]
    return [(a - v["perf/step_time"], a) for a, v in zip(rows["at"], rows["values"], strict=True)]


PAUSES = {
    "in the middle of one step": lambda w: [(w[3][0] + 2, w[3][0] + 3)],
    "over three steps": lambda w: [(w[2][1] - 1, w[5][0] + 1)],
    "touching the end of a step": lambda w: [(w[4][1], w[4][1] + 0.5)],
    "before everything": lambda w: [(w[0][0] - 90, w[0][0] - 80)],
    "two in one step, one open at the end": lambda w: [
        (w[1][0] + 1, w[1][0] + 2), (w[1][0] + 3, w[1][0] + 4), (w[9][1] - 1, None),
    ],
}  # fmt: skip


@pytest.mark.parametrize("case", PAUSES)
def test_clean_medians_agree_with_the_kit_when_there_are_pauses(case):
    log = log_of("n4")
    lines = ["# synthetic"]
    for start, stop in PAUSES[case](windows(log)):
        lines.append(f"{iso(start)} pause container=x temp_c=84 reason=hot")
        if stop is not None:
            lines.append(f"{iso(stop)} resume container=x temp_c=74 reason=cool paused_s=1.0")
    guard = ("\n".join(lines) + "\n").encode()
    mine = second.recompute(log, guard)
    stored = second.stored_values(of_kit(log, guard))
    assert second.differences(mine, stored) == []
    changed = mine["perf/step_time n_clean"] < mine["perf/step_time n_all"]
    assert changed == (case != "before everything")


MDN = "For more information check: https://developer.mozilla.org/en-US/docs/Web/HTTP/Status"
P = "(RolloutManager pid=1) [2026-11-29 12:59:5{}.479 rollout_manager] http_utils.py:226 - Error: "


def test_retries_of_every_kind_agree_with_the_kit():
    tail = "(attempt {}/60, url=http://127.0.0.1:1/generate, response={})"
    retries = [
        P.format(1) + "Server error '503 Service Unavailable' for url 'http://127.0.0.1:1/generate'",
        f"(RolloutManager pid=1) {MDN}/503, retrying... " + tail.format(1, "{}"),
        P.format(2) + "Client error '403 Forbidden' for url 'http://127.0.0.1:1/generate'",
        f"(RolloutManager pid=1) {MDN}/403, retrying... " + tail.format(7, "Forbidden")
        + " [repeated 5x across cluster]",
        P.format(3) + "All connection attempts failed, retrying... " + tail.format(9, "None"),
    ]  # fmt: skip
    log = log_of("n4") + "".join(f"{line}\n" for line in retries).encode()
    mine = second.recompute(log, None)
    assert mine["retries total"] == 7
    assert mine["retries with status 403"] == 5
    assert mine["retries max_attempt"] == 9
    assert second.differences(mine, second.stored_values(of_kit(log))) == []


def test_nan_and_infinite_values_are_left_out_of_both_medians():
    log = log_of("n4")
    for i, value in enumerate((b"nan", b"inf", b"-inf", b"np.float64(0.5)")):
        name = b"'train/grad_norm': " if i % 2 else b"'rollout/raw_reward': "
        places = list(re.finditer(re.escape(name) + rb"[-+.e0-9]+", log))
        log = log[: places[i + 1].start()] + name + value + log[places[i + 1].end() :]
    mine = second.recompute(log, None)
    assert mine["train/grad_norm n_all"] == 11
    assert mine["rollout/raw_reward n_all"] == 10
    assert second.differences(mine, second.stored_values(of_kit(log))) == []


def test_the_program_ends_with_0_here_1_on_a_difference_and_3_on_nothing(
    small, monkeypatch, capsys
):
    root, folder = small
    monkeypatch.setattr(second, "ROOT", root)
    assert second.main([]) == 0
    (folder / "summary.json").write_text("{}")
    assert second.main([]) == 1
    shutil.rmtree(folder)
    assert second.main([]) == 3
    assert "0 quantities of 0 runs" in capsys.readouterr().out
