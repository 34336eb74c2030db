"""The detection matrix: which check finds which fault of a transfer, with the real engine."""

import json
import subprocess
import sys
from pathlib import Path

import fakes
import pytest
import torch

from capture.core import detect
from capture.core.detect import CHECKS, FAULTS, Fault, FaultyTransport

ROOT = Path(__file__).resolve().parents[2]

LOAD, HF, TRIP, LOGP = CHECKS
#: checks that find the fault
EXPECTED = {
    "no fault": set(),
    "dropped tensor, one transfer": {LOAD, HF, TRIP, LOGP},
    "dropped tensor, every transfer": {LOAD, HF, TRIP, LOGP},
    "swapped mapping, one transfer": {HF, TRIP, LOGP},
    "swapped mapping, every transfer": {HF, LOGP},  # the round trip is wrong twice, and equal
    "stale weights, one transfer": {TRIP, LOGP},  # a first publication has nothing stale
    "stale weights, every transfer": {LOGP},
    "lost transfer, one transfer": {LOAD, HF, TRIP, LOGP},
    "lost transfer, every transfer": {LOAD, HF, TRIP, LOGP},
}


@pytest.fixture(scope="module")
def cells():
    """The matrix of the tiny model under OLMo-core and the transformers engine."""
    done = subprocess.run(
        [sys.executable, "-m", "capture.core.detect", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout[done.stdout.index("[\n") :])


def test_every_fault_meets_every_check(cells):
    pairs = [(cell["fault"], cell["check"]) for cell in cells]
    assert pairs == [(fault.name, check) for fault in FAULTS for check in CHECKS]


@pytest.mark.parametrize("fault", EXPECTED)
def test_checks_find_what_they_can_and_no_more(cells, fault):
    assert {cell["check"] for cell in cells if cell["fault"] == fault and cell["caught"]} == (
        EXPECTED[fault]
    )


def test_log_probability_gap_is_measured(cells):
    values = {c["fault"]: c["value"] for c in cells if c["check"] == LOGP}
    assert values["no fault"] < 1e-6
    assert min(v for name, v in values.items() if name != "no fault") > 1e-4


def test_every_find_says_what_it_found(cells):
    for cell in cells:
        if cell["caught"]:
            assert cell["detail"]
    swapped = next(c for c in cells if c["check"] == HF and c["fault"].startswith("swapped"))
    assert "gate_proj" in swapped["detail"]
    assert "up_proj" in swapped["detail"]


def through(kind, always, loads):
    engine = fakes.Engine()
    old = {name: tensor - 1 for name, tensor in fakes.first_weights().items()}
    transport = FaultyTransport(engine, Fault(kind, always), fakes.NAMES, old, strict=False)
    for version in range(loads):
        transport.load(
            [(name, tensor + 10) for name, tensor in fakes.first_weights().items()], version
        )
    return engine.weights, fakes.first_weights()


def test_faults_do_what_their_names_say():
    one, two = fakes.NAMES
    got, first = through("dropped tensor", True, 1)
    assert torch.equal(got[one], first[one])
    assert torch.equal(got[two], first[two] + 10)
    got, first = through("swapped mapping", True, 1)
    assert torch.equal(got[one], first[two] + 10)
    assert torch.equal(got[two], first[one] + 10)
    got, first = through("stale weights", True, 1)
    assert torch.equal(got[one], first[one] - 1)
    got, first = through("lost transfer", True, 1)
    assert torch.equal(got[one], first[one])
    got, first = through("none", True, 1)
    assert torch.equal(got[one], first[one] + 10)


def test_fault_of_one_transfer_leaves_the_next_alone():
    got, first = through("swapped mapping", False, 2)
    assert torch.equal(got[fakes.NAMES[0]], first[fakes.NAMES[0]] + 10)


def test_table_has_a_row_a_fault(cells):
    table = detect.markdown([detect.Cell(**cell) for cell in cells])
    assert table.count("\n") == len(FAULTS) + 2
    assert "| no fault | passes | passes | passes | passes |" in table
    assert "| swapped mapping, every transfer | missed | caught | missed | caught |" in table
