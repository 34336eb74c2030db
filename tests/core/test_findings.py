"""Findings: every program still gives its record, and records are read without torch."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from capture.core.findings import __main__ as findings
from capture.core.findings import record
from capture.core.findings.record import Finding, RecordError, Value

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", findings.programs())
def test_a_program_still_gives_its_record(name):
    assert record.read(name).differences(findings.measure(name)) == []


def test_every_program_has_a_record_and_every_record_a_program():
    assert record.stored() == findings.programs()


@pytest.mark.parametrize("name", findings.programs())
def test_a_record_says_what_a_page_needs(name):
    found = record.read(name)
    assert found.environment["device"] == "cpu"
    assert {"core", "torch", "transformers"} <= found.environment.keys()
    words = found.claim.format(**dict.fromkeys(found.values, ""))
    assert words.endswith(".")
    assert (ROOT / found.program).is_file()
    if found.environment["stand_ins"]:
        count = found.environment["stand_ins"]
        assert found.environment["label"] == f"Core code with CPU stand-ins for {count} functions"
    for value in found.values.values():
        assert value.unit
        assert value.what
        # whoever publishes seconds of a processor says so
        if value.rule == "time":
            assert any("rocessor" in note for note in found.notes)


def test_records_are_read_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['olmo_core'] = None\n"
        "from capture.core.findings import record\n"
        "print(len([record.read(name) for name in record.stored()]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == len(findings.programs())


def one(**changes) -> Finding:
    own = {
        "share": Value(0.5, "1", "a share"),
        "gap": Value(1e-7, "nats", "rounding", "rounding", 1e-6),
        "seen": Value([True, "x", 3], "1", "facts", "exact"),
        "seconds": Value(2.0, "s", "time", "time"),
    }
    return Finding("one", "It is {share}.", "new", {**own, **changes})


def test_a_record_comes_back_as_it_was_written(tmp_path):
    record.write(one(), tmp_path)
    found = record.read("one", tmp_path)
    assert found.differences(one()) == []
    assert record.text(found) == record.text(one())
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".json"]


@pytest.mark.parametrize(
    ("name", "value", "differs"),
    [
        ("share", Value(0.5004, "1", "a share"), False),
        ("share", Value(0.5006, "1", "a share"), True),
        ("share", Value(0.5, "nats", "a share"), True),
        ("gap", Value(-9e-7, "nats", "rounding", "rounding", 1e-6), False),
        ("gap", Value(2e-6, "nats", "rounding", "rounding", 1e-6), True),
        ("seen", Value([True, "x", 4], "1", "facts", "exact"), True),
        ("seen", Value([1, "x", 3], "1", "facts", "exact"), True),
        ("seen", Value([True, "x"], "1", "facts", "exact"), True),
        ("seconds", Value(9.0, "s", "time", "time"), False),
    ],
)
def test_a_rerun_is_judged_by_the_rule_of_its_record(name, value, differs):
    assert bool(one().differences(one(**{name: value}))) == differs


def test_a_rerun_that_lacks_a_value_or_turned_out_otherwise_differs():
    fewer = dataclasses.replace(one(), values={"share": Value(0.5, "1", "a share")})
    assert len(one().differences(fewer)) == 3
    other = dataclasses.replace(one(), outcome="not reproduced")
    assert one().differences(other) == ["one: outcome: recorded new, found not reproduced"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Value(float("nan"), "1", "x"),
        lambda: Value([1.0, float("inf")], "1", "x"),
        lambda: Value(True, "1", "x"),
        lambda: Value(1.0, "1", "x", "about"),
        lambda: Finding("x", "y", "perhaps", {"a": Value(1.0, "1", "x")}),
        lambda: Finding("x", "y", "new", {}),
    ],
)
def test_what_cannot_be_compared_is_no_record(make):
    with pytest.raises(RecordError):
        make()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"schema": 1}', '{"schema": 2, "name": "one"}'])
def test_a_damaged_record_is_one_line_that_names_it(tmp_path, damage):
    (tmp_path / "one.json").write_text(damage)
    with pytest.raises(RecordError, match=r"^one\.json: ") as caught:
        record.read("one", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_record_and_an_unknown_finding_are_one_line(tmp_path, capsys):
    with pytest.raises(RecordError, match=r"^one\.json: No such file"):
        record.read("one", tmp_path)
    with pytest.raises(SystemExit) as caught:
        findings.main(["nothing_of_the_kind"])
    assert caught.value.code == 2
    assert "no such finding" in capsys.readouterr().err


def test_the_command_writes_compares_and_fails(tmp_path, capsys):
    given = ["worked_example", "--folder", str(tmp_path)]
    assert findings.main([*given, "--check"]) == 1
    assert findings.main([*given, "--write"]) == 0
    assert findings.main([*given, "--check"]) == 0
    path = tmp_path / "worked_example.json"
    raw = json.loads(path.read_text())
    raw["values"]["token"]["value"] = 2.4
    path.write_text(json.dumps(raw))
    capsys.readouterr()
    assert findings.main([*given, "--check"]) == 1
    assert "worked_example: token: recorded 2.4" in capsys.readouterr().out
