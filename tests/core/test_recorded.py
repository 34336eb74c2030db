"""The outputs that the manual prints: the programs still give them."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "capture" / "core"
FAULT = 1e-3  # far above rounding, far below what mixed sequences give


def output(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, FOLDER / program], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def recorded(name: str) -> list[str]:
    text = (FOLDER / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_the_order_of_a_sum_still_decides_about_equal_rewards():
    assert output("group_sum.py") == recorded("group_sum.recorded.txt")


def test_sequences_in_one_row_still_mix_in_the_recorded_cases():
    lines = output("packed_rows.py")
    known = recorded("packed_rows.recorded.txt")
    start = next(n for n, line in enumerate(known) if line == lines[0])
    pairs = list(zip(lines[1:], known[start + 1 :], strict=False))
    assert len(pairs) == 7
    for line, before in pairs:
        name, found = line[:43], [float(x) > FAULT for x in line[43:].split()]
        assert name == before[:43]
        assert found == [float(x) > FAULT for x in before[43:].split()]


@pytest.mark.parametrize("lanes", [4, 16])
def test_only_eight_lanes_give_the_sum_of_torch(lanes):
    import numpy
    import torch

    sys.path.insert(0, str(FOLDER.parents[1]))
    from capture.core.group_sum import lane_sum

    numbers = torch.full((16,), 0.3)
    assert lane_sum(numbers.numpy()) == numpy.float32(numbers.sum().item())
    assert lane_sum(numbers.numpy(), lanes) != numpy.float32(numbers.sum().item())
