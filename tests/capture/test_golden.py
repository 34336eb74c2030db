"""What health and compare print on the stored runs, and health on every failure case."""

from __future__ import annotations

import json
from pathlib import Path

import kit
import pytest

FIXTURES = Path(__file__).parent.parent / "fixtures"
GOLDEN = FIXTURES / "golden"
CASES = FIXTURES / "synthetic-cases"


def commands() -> dict[str, list[str]]:
    lines = (GOLDEN / "SOURCE").read_text().splitlines()
    pairs = [line.split(": ", 1) for line in lines if line and not line.startswith("#")]
    return {name: args.split() for name, args in pairs}


def test_every_golden_file_has_its_command():
    assert {p.name for p in GOLDEN.iterdir()} == {*commands(), "SOURCE"}


@pytest.mark.parametrize("name", sorted(commands()))
def test_the_output_on_stored_runs_is_the_stored_one(name, capsys):
    rc = kit.main(commands()[name])
    assert rc in (0, 1)
    assert capsys.readouterr().out == (GOLDEN / name).read_text()


# Cases with steps whose numbers are wrong, and the findings that must name it.
OUTSIDE = {"gap-high-after-resume": ["gap-high"], "nan-from-first-step": ["nonfinite"]}
# Cases in which no step ended: health has nothing to judge; diagnose has.
NO_STEP = {
    "cuda-graph-capture-not-oom",
    "cuda-graph-capture-oom",
    "fa3-on-blackwell",
    "first-step-slow-but-alive",
    "proxy-403",
    "ray-memory-kill-new",
    "reward-module-missing",
    "reward-not-awaitable",
    "silent-after-engine-ready",
}


@pytest.mark.parametrize("name", sorted(json.loads((CASES / "expected.json").read_text())))
def test_health_on_a_failure_case_finds_what_the_numbers_show(name, capsys):
    path = next(p for p in CASES.iterdir() if p.name in (f"{name}.log", f"{name}.log.xz"))
    rc = kit.main(["health", "--json", str(path)])
    out = capsys.readouterr()
    if name in NO_STEP:
        assert rc == 3
        assert out.err.count("\n") == 1
        return
    report = json.loads(out.out)
    assert [f["id"] for f in report["findings"]] == OUTSIDE.get(name, [])
    assert rc == (1 if name in OUTSIDE else 0)
    outside = [r["id"] for r in report["signals"] if r["verdict"] == "outside"]
    assert bool(outside) == (name in OUTSIDE)
