"""One of two ranks of whole runs: `driver_ranks.py FOLDER LAYOUT`, under torchrun.

The real trainer and engine on a tiny model. Each rank writes what it saw.
"""

import hashlib
import json
import shutil
import sys
from datetime import timedelta
from pathlib import Path

import olmo_core.distributed.parallel as parallel
import real_run

from capture.core import collective, driver, manifest
from capture.core.checkpoint import CheckpointStore
from capture.core.errors import CoreRunError

ROOT = Path(sys.argv[1])


def run(name, layout, **changes):
    parallel._WORLD_MESH = None  # Core builds one mesh a process, and a run has one actor
    config = real_run.config(
        name,
        rollout__num_rollout=2,
        parallel__world_size=2,
        parallel__data_parallel=layout,
        **changes,
    )
    return driver.run(config)


def records(name):
    found = []
    path = ROOT / name / f"training_contract_rank{collective.rank()}.jsonl"
    for line in path.read_text().splitlines():
        document = json.loads(line)
        found.append({k: v for k, v in document.items() if k not in ("seconds", "digest")})
    return found


def refusal(name, layout, **changes):
    """What a resume says that must not go on."""
    try:
        run(name, layout, miles__load=str(ROOT / name), **changes)
    except CoreRunError as error:
        return str(error)
    return None


def copied(name, other, spoil):
    """A copy of a run in which rank 0 spoiled the newest checkpoint and made its hashes right."""
    with collective.guard("copy"):
        if collective.rank() == 0:
            shutil.copytree(ROOT / name, ROOT / other)
            folder = CheckpointStore(ROOT / other).latest()
            spoil(folder)
            sign(folder)
    return other


def swap(folder):
    one, two = folder / "train/rank0.pt", folder / "train/rank1.pt"
    kept = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(kept)


def one_for_both(folder):
    shutil.copy(folder / "train/rank0.pt", folder / "train/rank1.pt")


def without_plan(folder):
    (folder / "model_and_optim/.metadata").unlink()


def sign(folder):
    """Sizes, hashes and digest of a manifest as an attacker would fix them."""
    path = folder / manifest.NAME
    data = json.loads(path.read_text())
    del data["digest"]
    data["files"] = [
        {"path": entry.path, "bytes": entry.bytes, "sha256": entry.sha256}
        for entry in manifest.file_entries(folder)
    ]
    plain = json.dumps(data, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({**data, "digest": hashlib.sha256(plain.encode()).hexdigest()}))


def scenario(layout):
    straight = run(f"{layout}-straight", layout)
    stopped = f"{layout}-stopped"
    first = run(stopped, layout, miles__debug_exit_after_rollout=1)
    found = {}
    if layout == "fsdp":
        for name, spoil in (
            ("swap", swap),
            ("one for both", one_for_both),
            ("no plan", without_plan),
        ):
            found[name] = refusal(copied(stopped, name.replace(" ", "-"), spoil), layout)
        found["width"] = refusal(
            copied(stopped, "width", lambda folder: None), layout, model__d_model=32
        )
    resumed = run(stopped, layout, miles__load=str(ROOT / stopped))
    found |= {
        "completed": [straight.completed, first.completed, resumed.completed],
        "steps": [straight.optimizer_step, first.optimizer_step, resumed.optimizer_step],
        "published": [record.version for record in straight.publications],
        "records": records(f"{layout}-straight") == records(stopped),
        "rewards": straight.rewards == first.rewards + resumed.rewards,
        "weights": real_run.equal(
            real_run.weights(f"{layout}-straight"), real_run.weights(stopped)
        ),
    }
    return found


if __name__ == "__main__":
    collective.PATIENCE = timedelta(minutes=3)  # a mistake ends in an error, not in half an hour
    collective.start(2)
    own = sys.argv[2]
    (ROOT / f"{own}{collective.rank()}.json").write_text(json.dumps(scenario(own)))
    collective.stop()
