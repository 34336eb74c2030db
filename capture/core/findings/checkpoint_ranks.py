"""Does Core load the checkpoint of two ranks in a run of one rank, and does the manifest refuse?

The load itself is right: Core gathers the shards. What is lost without a word is the second rank's
own state, random numbers among it, and with it the promise that a resume goes on as it would have.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from .. import manifest as manifests
from ..checkpoint import load_native
from ..errors import CheckpointError
from ..manifest import Manifest, Shape, lock_digest
from . import common, tworanks
from .record import Finding, Value


def measure() -> Finding:
    """Run it; see the module."""
    seen, folder = tworanks.result()
    native = folder / "native"
    complaint, equal = load(native, seen["saved"])
    half = folder / "half"
    shutil.copytree(native, half, dirs_exist_ok=True)
    (half / "train/rank1.pt").unlink(missing_ok=True)
    complaint_of_half, _ = load(half, seen["saved"])
    return Finding(
        name="",
        row=12,
        outcome="not reproduced" if complaint else "reproduced",
        noted="a 2-rank checkpoint loads at 1 rank, silently; hence the manifest",
        claim="Core loads the checkpoint of {saved_ranks} ranks in a run of 1: complaint"
        " {complained}, weights equal {weights_equal}; also without the second rank's file:"
        " complaint {complained_of_half}. The manifest refuses it before anything is loaded:"
        " {refused}.",
        values={
            "saved_ranks": Value(2, "ranks", "ranks that wrote the checkpoint", "exact"),
            "complained": Value(bool(complaint), "1", "Core raised", "exact"),
            "weights_equal": Value(equal, "1", "weights are those of the two ranks", "exact"),
            "complained_of_half": Value(
                bool(complaint_of_half), "1", "Core raised without the second rank's state",
                "exact",
            ),
            "refused": Value(
                _refusal(native), "1", "the manifest of two ranks refuses one rank", "exact"
            ),
        },
        settings={"layout": "fsdp"},
    )  # fmt: skip


def load(folder: Path, saved: dict[str, torch.Tensor]) -> tuple[str, bool]:
    """(what Core says when one rank loads the folder, its weights are then the saved ones)."""
    actor = common.actor_of()
    try:
        load_native(folder, actor.module)
        complaint = ""
    except Exception as error:  # whatever Core would say
        complaint = f"{type(error).__name__}: {error}"
    loaded = dict(actor.export())
    return complaint, all(torch.equal(loaded[name], saved[name]) for name in loaded)


def _refusal(native: Path) -> bool:
    """Whether the manifest that this trainer writes beside these files refuses one rank."""
    manifests.write(
        native,
        Manifest(
            world_size=2,
            ep_degree=1,
            optimizer_step=1,
            policy_version=1,
            collection=1,
            lr=1e-2,
            consumed=0,
            cursor={"pool": 4, "batch": 4, "seed": 1, "shuffle": True, "collection": 1,
                    "drawn": 4, "pending": []},
            lock_sha256=lock_digest(),
            files=manifests.file_entries(native),
        ),
    )  # fmt: skip
    manifests.check(native, Shape(2, 1))
    try:
        manifests.check(native, Shape(1, 1))
    except CheckpointError as error:
        return "world_size" in str(error)
    return False
