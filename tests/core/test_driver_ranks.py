"""Two ranks through the whole driver: bitwise resume, refusals in step, and a rank that dies."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from capture.core import verify

ROOT = Path(__file__).resolve().parents[2]
LAYOUTS = ("ddp", "fsdp")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests/core'}",
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What both layouts left; each has processes of its own, as a run has."""
    where = tmp_path_factory.mktemp("ranks")
    for layout in LAYOUTS:
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone",
             "--nproc-per-node", "2", "tests/core/driver_ranks.py", str(where), layout],
            cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[:4000]
    return where


@pytest.fixture(scope="module")
def seen(folder):
    return [
        {layout: json.loads((folder / f"{layout}{rank}.json").read_text()) for layout in LAYOUTS}
        for rank in range(2)
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_stop_and_a_resume_of_two_ranks_are_bitwise(seen, layout):
    for rank in seen:
        found = rank[layout]
        assert found["completed"] == [True, False, True]
        assert found["steps"] == [4, 2, 4]
        assert found["records"]
        assert found["rewards"]
        assert found["weights"]
        assert found["published"] == [0, 2, 4, 4]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_records_of_two_ranks_pass_the_verifier(folder, seen, layout):
    for name in (f"{layout}-straight", f"{layout}-stopped"):
        files = [str(folder / name / f"training_contract_rank{rank}.jsonl") for rank in range(2)]
        assert verify.main(files) == 0


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("swap", "rank 0, 1: .*rank0.pt: holds the state of rank 1"),
        ("one for both", "rank 1: .*rank1.pt: holds the state of rank 0"),
        ("no plan", "rank 0, 1: .*model_and_optim/.metadata: missing"),
        ("width", "Core cannot load it into this run's model"),
    ],
)
def test_files_that_hashes_cannot_tell_apart_are_refused_by_both_ranks(seen, case, says):
    import re

    for rank in seen:
        assert re.search(says, rank["fsdp"][case]), rank["fsdp"][case]
        assert "\n" not in rank["fsdp"][case]


DYING = """
import os, signal, sys
from pathlib import Path
import fakes, torch.distributed as dist
from capture.core import driver
from capture.core.errors import CoreRunError

folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
config = fakes.settings(folder, parallel__world_size=2)
made = fakes.parts(config, folder)
made.engine = made.engine if rank == 0 else None

def boundary(name, index):
    if rank == 1 and (name, index) == ("trained", 2):
        os.kill(os.getpid(), signal.SIGKILL)

try:
    driver.run(config, parts=made, boundary=boundary)
except CoreRunError as error:
    print(error, flush=True)
    os._exit(error.exit_code)
"""


def test_a_rank_that_dies_ends_the_other_soon_and_in_one_line(tmp_path):
    """Without torchrun, which would kill the other one itself."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", DYING, str(tmp_path)],
            cwd=ROOT, env={**ENVIRONMENT, "RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    out, error = running[0].communicate(timeout=120)
    running[1].communicate(timeout=10)
    assert running[1].returncode == -signal.SIGKILL
    assert running[0].returncode == 1, error[-2000:]
    assert out.startswith("lost-rank: another rank died")
    assert out.count("\n") == 1
    checkpoints = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert checkpoints == ["iter_0000001", "iter_0000002"]


WAITING = """
import datetime, sys
import torch.distributed as dist
from capture.core import collective
from capture.core.errors import CoreRunError

collective.PATIENCE = datetime.timedelta(seconds=8)
collective.start(2)
try:
    if collective.rank() == 1:
        sys.stdin.read()
    else:
        collective.gather(1)
except CoreRunError as error:
    print(error, flush=True)
"""


def test_a_rank_that_hangs_is_waited_for_no_longer_than_the_patience(tmp_path):
    environment = {
        **ENVIRONMENT, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port()),
    }  # fmt: skip
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WAITING],
            cwd=ROOT, env={**environment, "RANK": str(rank)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    out, _ = running[0].communicate(timeout=120)
    assert "lost-rank" in out
    assert running[1].poll() is None  # it still waits: nothing but patience ended the wait
    running[1].communicate(timeout=60)


def port():
    """A port that nobody listens on."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
