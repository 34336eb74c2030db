"""Tables of part 4: async modes and flags, precision modes, the true on-policy contract, drafts.

Flags, defaults and limits come from the facts files. A flag that a table names and the facts do
not have is a KeyError, so that no table outlives the code it tells of.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from scripts import milesflags
from scripts.tree import Tree, yaml_document

PRECISION = "manuals/data/precision-modes.yaml"
CORRECTIONS = "manuals/data/miles-corrections.yaml"
CONTRACT = "true on-policy contract"


# mode -> (flags beside train_async.py, age of a sample, where it can run)
ASYNC_MODES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "one step ahead": (
        (),
        "at most one weight version, with the default `--update-weights-interval`",
        "trainer and engine on GPUs of their own; refused with `--colocate`",
    ),
    "fully async": (
        ("--fully-async",),
        "no bound by itself: it follows how fast the trainer empties the buffer; "
        "`--max-weight-staleness` sets one",
        "trainer and engine on GPUs of their own; with `--colocate` refused in August, "
        "and since October allowed on the Megatron trainer",
    ),
}

# flag -> (what it decides, what to know about it)
ASYNC_FLAGS: dict[str, tuple[str, str]] = {
    "--update-weights-interval": (
        "rollouts between two weight updates",
        "only `train_async.py` reads it; `train.py` updates after each rollout",
    ),
    "--max-weight-staleness": (
        "weight versions after which a sample counts as stale",
        "unset means no limit; only the fully async buffer reads it",
    ),
    "--async-unused-samples-handler": (
        "what happens to a stale or aborted group",
        "groups that the filter rejects are dropped with either value",
    ),
    "--async-max-concurrent-samples": (
        "samples that the engines write at one time",
        "at least one group; unset means one training batch",
    ),
    "--pause-generation-mode": (
        "what running requests do during a weight update",
        "fully async refuses `abort`, and since October `in_place` with `--colocate`; "
        "the FSDP trainer ignores the flag and retracts",
    ),
}

# flag -> what it is for; the values are those of the Miles documentation for MTP layers
DRAFT_FLAGS: dict[str, tuple[str, str]] = {
    "--sglang-speculative-algorithm": ("`EAGLE` or `NGRAM`", "how the draft is made"),
    "--sglang-speculative-num-steps": ("3", "draft steps before a check"),
    "--sglang-speculative-eagle-topk": ("1", "branches of the draft"),
    "--sglang-speculative-num-draft-tokens": ("4", "draft tokens in one check"),
    "--sglang-speculative-draft-model-path": ("a folder", "a draft model of its own"),
    "--mtp-num-layers": ("1", "MTP layers of the checkpoint, Megatron only"),
    "--enable-mtp-training": ("", "train those layers with the policy, Megatron only"),
}

MASSES = (0.99, 0.95, 0.9, 0.8, 0.5)

# GPU, compute capability; the engine's rule and the image's kernels are in `fa3_gates`
_GPUS = (
    ("A100", (8, 0)),
    ("L40S", (8, 9)),
    ("H100, H200", (9, 0)),
    ("B200", (10, 0)),
    ("GB10", (12, 1)),
)
_ENGINE_MAJORS = (8, 9)  # SGLang 0.5.16, attention_registry.py: major 8 without MLA, or major 9
_IMAGE_MAJOR = 9  # docker/Dockerfile:78 builds FlashAttention 3 for sm_90a


def async_modes(tree: Tree) -> list[list[str]]:
    """The two async modes: mode, what starts it, how old a sample can be, where it runs."""
    known = _flags(tree)
    rows = [["mode", "how to start it", "how old a sample can be", "where it runs"]]
    for mode, (flags, age, where) in ASYNC_MODES.items():
        starts = ["`train_async.py`", *(f"`{known[flag]['name']}`" for flag in flags)]
        rows.append([mode, " with ".join(starts), age, where])
    return rows


def async_flags(tree: Tree) -> list[list[str]]:
    """Flags that decide the age of a sample: flag, default, values, what it decides, notes."""
    known = _flags(tree)
    rows = [["flag", "default", "values", "what it decides", "what to know"]]
    for flag, (what, note) in ASYNC_FLAGS.items():
        entry = known[flag]
        default = "unset" if entry["default"] is None else f"`{entry['default']}`"
        values = ", ".join(f"`{value}`" for value in entry.get("choices", ())) or entry["type"]
        rows.append([f"`{flag}`", default, values, what, note])
    return rows


def draft_flags(tree: Tree) -> list[list[str]]:
    """Flags of speculative decoding: flag, value for a model with MTP layers, what it is for."""
    known = _flags(tree)
    rows = [["flag", "value", "what it is for"]]
    for flag, (value, what) in DRAFT_FLAGS.items():
        rows.append([f"`{known[flag]['name']}`", value, what])
    return rows


def precision_modes(tree: Tree) -> list[list[str]]:
    """The four ways to mix number formats: mode, engine, trainer, GPUs, state."""
    facts = yaml_document(tree.read(PRECISION))
    formats = {entry["name"]: entry for entry in facts["formats"]}
    rows = [["mode", "engine", "trainer", "one format on both sides", "GPUs", "state"]]
    for mode in facts["modes"]:
        same = "yes" if mode["engine"] == mode["trainer"] else "no"
        gpus = _gpus(formats[mode["gpus"]])
        rows.append(
            [
                str(mode["number"]),
                mode["engine"],
                mode["trainer"],
                same,
                gpus,
                mode["maturity"],
            ]
        )
    return rows


def precision_formats(tree: Tree) -> list[list[str]]:
    """Number formats: name, values that share a scale, format of the scale, GPUs."""
    rows = [["format", "values that share a scale", "scale", "GPUs in the documentation"]]
    for entry in yaml_document(tree.read(PRECISION))["formats"]:
        rows.append([entry["name"], entry["block"], entry["scale"], _gpus(entry)])
    return rows


def _gpus(entry: Mapping[str, Any]) -> str:
    listed = ", ".join(entry["august"])
    added = ", ".join(entry["october_adds"])
    return f"{listed}; since October also {added}" if added else listed


def kept_mass(tree: Tree) -> list[list[str]]:
    """How far a kept mass moves a log-probability, and the factor on the probability."""
    rows = [["kept mass", "minus its logarithm", "factor on each kept probability"]]
    for mass in MASSES:
        rows.append([f"{mass:g}", f"{-math.log(mass):.3f}", f"{1 / mass:.2f}"])
    return rows


def contract(tree: Tree) -> list[list[str]]:
    """The true on-policy contract of the facts: what, value."""
    (entry,) = [
        found
        for found in yaml_document(tree.read(CORRECTIONS))["corrections"]
        if found["name"] == CONTRACT
    ]
    limits = " ".join(entry["constraints"])
    name = _match(r"one contract: (\w+)", limits)
    models = _match(r"profile names: ([^(]+)", limits).strip()
    built = _match(r"built for (\w+) only", limits)
    rows = [["part of the contract", "value in the code of 2026-08-21"]]
    rows.append(["name", f"`{name}`"])
    rows.append(["models", models])
    rows += [[_PARTS[flag.split()[0]], f"`{flag}`"] for flag in entry["flags"]]
    rows.append(["kernels of FlashAttention 3 in the image", f"`{built}`: Hopper only"])
    rows.append(["number format", "BF16, with FP32 master weights on the FSDP trainer"])
    return rows


_PARTS = {
    "--true-on-policy-mode": "the mode itself",
    "--sglang-true-on-policy-contract": "engine side",
    "--sglang-attention-backend": "attention of the engine",
    "--attn-implementation": "attention of the trainer",
    "--deterministic-mode": "deterministic kernels of the trainer, read by Megatron only",
    "--recompute-logprobs-via-prefill": "optional: score again with a prefill of the engine",
}


def fa3_gates(tree: Tree) -> list[list[str]]:
    """Which gate of FlashAttention 3 a GPU passes: GPU, capability, engine check, image, mode."""
    rows = [["GPU", "compute capability", "engine's check", "kernel in the image", "the mode"]]
    for gpu, (major, minor) in _GPUS:
        check, kernel = major in _ENGINE_MAJORS, major == _IMAGE_MAJOR
        rows.append(
            [
                gpu,
                f"{major}.{minor}",
                "passes" if check else "refuses",
                "yes" if kernel else "no",
                "can start" if check and kernel else "cannot start",
            ]
        )
    return rows


def _match(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise KeyError(f"{CORRECTIONS}: nothing like {pattern!r} in {CONTRACT}")
    return found[1]


def _flags(tree: Tree) -> Mapping[str, Any]:
    return milesflags.read(tree.read(milesflags.FLAGS_FILE)).entries


TABLES = {
    "async-modes": async_modes,
    "async-flags": async_flags,
    "draft-flags": draft_flags,
    "precision-modes": precision_modes,
    "precision-formats": precision_formats,
    "kept-mass": kept_mass,
    "true-on-policy-contract": contract,
    "fa3-gates": fa3_gates,
}
