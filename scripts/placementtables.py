"""Tables of part 6: placements, weight transfer, trainers, evaluation, resume, fault tolerance.

What Miles does comes from the facts file. When to take what is our advice, in the dictionaries
here: an entry of the facts without one, or one without an entry, is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from scripts.tree import Tree, yaml_document

FACTS = "manuals/data/miles-placement.yaml"

# name in the facts file -> (name on the page, when to take it)
PLACEMENTS = {
    "colocated": ("colocated", "first, and always on one GPU"),
    "split (default)": (
        "split",
        "rollout is most of the step, and you have more GPUs to give to it",
    ),
    "external engines": ("external engines", "something else already starts your engines"),
    "dedicated evaluation fleet": (
        "split with an evaluation fleet",
        "evaluation holds up training, see [section 6.2](6-2-evaluation.md)",
    ),
}
PLACEMENT_NOTES = ("ray resources on one GPU",)  # told in words on the page

TRANSFERS = {
    "colocated handles": ("copy inside the GPU", "always, with `--colocate`"),
    "broadcast": ("`broadcast`", "a split layout, to begin with"),
    "p2p": ("`p2p`", "a network with RDMA, and an update that takes much of the step"),
    "disk-delta": (
        "`disk-delta`",
        "trainer and engines share a folder, and the network between them is slow",
    ),
}

TRAINERS = {
    "fsdp": "models for which splitting the data is enough, as in this manual",
    "megatron": "large models and jobs on many nodes, as the Miles documentation advises",
    "torchtitan": "unknown here: the row of the source is lost",
}

EVALUATIONS = {
    "shared engines": ("the training engines", "one GPU, and small evaluation sets"),
    "dedicated fleet": ("a dedicated fleet", "the pause is much of a step, and GPUs are free"),
    "checkpoint evaluation class": (
        "a service of your own",
        "you already have a service that grades a checkpoint",
    ),
}

TOLERANCE = {
    "rollout": "`--ft-components rollout`",
    "train": "`--ft-components train`",
    "weight_update": "`--ft-components weight_update`",
    "control server": "`--control-server-port`",
    "mini controller": "`--mini-ft-controller-enable`",
    "fault injection for tests": "`--ci-ft-test-actions`",
}


_PARTS = re.compile(r"(?P<before>[(\"']*)(?P<core>.*?)(?P<after>[.,:;)\"']*)")
_NAME = re.compile(r"^--\w|\w_\w|/\w+[./]|^/\w|\.(?:py|pt|json|txt|yaml)\b")


def facts(tree: Tree, part: str) -> Any:
    """One part of the facts file, such as 'placements'."""
    return yaml_document(tree.read(FACTS))[part]


def code(text: str) -> str:
    """Text of the facts with flags, files and names of code as inline code."""
    return " ".join(map(_word, text.split(" ")))


def _word(word: str) -> str:
    match = _PARTS.fullmatch(word)
    if match is None or "`" in word or not _NAME.search(match["core"]):
        return word
    return f"{match['before']}`{match['core']}`{match['after']}"


def sentences(*parts: Any) -> str:
    """Facts as sentences of one cell: each begins with a capital and ends with a full stop."""
    flat: list[str] = []
    for part in parts:
        flat += part if isinstance(part, list) else [part] if part else []
    whole = []
    for piece in (half for text in flat for half in str(text).split("; ")):
        piece = code(piece.strip().rstrip("."))
        whole.append((piece if piece[:1] == "`" else piece[:1].upper() + piece[1:]) + ".")
    return " ".join(whole)


def paired(
    entries: list[Mapping[str, Any]], key: str, ours: Mapping[str, Any], left_out: tuple = ()
) -> list[tuple[Mapping[str, Any], Any]]:
    """Facts with our words for them, in our order. ValueError when one has no partner."""
    by_name = {entry[key]: entry for entry in entries}
    if by_name.keys() - set(left_out) != ours.keys():
        odd = (by_name.keys() - set(left_out)) ^ ours.keys()
        raise ValueError(f"{FACTS}: no words, or no facts, for {', '.join(sorted(odd))}")
    return [(by_name[name], words) for name, words in ours.items()]


def _flags(entry: Mapping[str, Any]) -> str:
    return ", ".join(f"`{flag}`" for flag in entry.get("flags") or [])


def placement(tree: Tree) -> list[list[str]]:
    """Placements: name, when, flags, how, limits."""
    rows = [["Placement", "Take it when", "Flags", "How", "Limits and defaults"]]
    entries = facts(tree, "placements")
    for entry, (name, when) in paired(entries, "name", PLACEMENTS, PLACEMENT_NOTES):
        limits = sentences(entry.get("constraints"), entry.get("facts"))
        rows.append([name, when, _flags(entry), sentences(entry["how"]), limits])
    return rows


def weight_transfer(tree: Tree) -> list[list[str]]:
    """Ways in which weights reach the engines: name, when, how, trainers, limits."""
    rows = [["Method", "Take it when", "How the weights move", "Trainer", "Limits and defaults"]]
    for entry, (name, when) in paired(facts(tree, "weight_transfer"), "mode", TRANSFERS):
        told = [entry.get("constraints"), entry.get("defaults"), entry.get("facts")]
        limits = sentences(*told) or "-"
        bucket = f"bucket {entry['bucket']}" if entry.get("bucket") else ""
        trainer = entry.get("backends", "any")
        how = sentences(entry["how"], bucket)
        rows.append([name, when, how, trainer, limits])
    return rows


def trainers(tree: Tree) -> list[list[str]]:
    """Trainers: name, when, input, parallelism, checkpoint, limits."""
    rows = [["Trainer", "Take it when", "Reads", "Splits the work by", "Writes", "Limits"]]
    for entry, when in paired(facts(tree, "trainers"), "value", TRAINERS):
        name = f"`{entry['value']}`" + (" (default)" if entry.get("default") is True else "")
        if entry["in_snapshot"]:
            lora = "LoRA works" if entry["lora"] else "no LoRA"
            fp8 = "FP8 works" if entry["fp8"] is True else "FP8 is refused"
            limits = sentences(lora, fp8, entry.get("limits"), entry.get("extra"))
            told = [entry["model_input"], entry["parallelism"], entry["checkpoint"]]
            rows.append([name, when, *map(sentences, told), limits])
        else:
            missing = "Not in the code of 2026-08-21. The GB10 manual names it for October."
            rows.append([name, when, "lost", "lost", "lost", missing])
    return rows


def evaluation_places(tree: Tree) -> list[list[str]]:
    """Where evaluation runs: place, when, flag, whether training waits, needs, what to know."""
    rows = [["Place", "Take it when", "Chosen by", "Does training wait", "Needs", "Know before"]]
    for entry, (name, when) in paired(facts(tree, "evaluation_modes"), "name", EVALUATIONS):
        chosen = entry["selected_by"]
        chosen = code(chosen) if chosen.startswith("--") else f"the {chosen}"
        needs = sentences(entry.get("constraints")) or "`--eval-interval` and a data set."
        known = sentences(entry.get("facts")) or "-"
        rows.append([name, when, chosen, sentences(entry["waits"]), needs, known])
    return rows


def resume_parts(tree: Tree) -> list[list[str]]:
    """What a checkpoint of the FSDP trainer holds, and what it does not."""
    found = facts(tree, "checkpoint_resume_fsdp")
    rows = [["Part of the run", "In the checkpoint"]]
    rows += [[sentences(part), "yes"] for part in found["saved"]]
    return rows + [[sentences(part), "no"] for part in found["not_saved"]]


def fault_tolerance(tree: Tree) -> list[list[str]]:
    """Parts of fault tolerance: how to switch on, default, how it works, limits."""
    rows = [["Part", "Switch", "Default", "What it does", "Limits and settings"]]
    for entry, switch in paired(facts(tree, "fault_tolerance"), "component", TOLERANCE):
        name = entry["component"]
        if not entry.get("in_snapshot", True):
            newer = "Not in the code of 2026-08-21. The GB10 manual dates it to 2026-10-20."
            rows.append([code(name), switch, "unknown", "unknown", newer])
            continue
        settings = [
            f"{key.replace('_s', '').replace('_', ' ')} {value:g} s"
            for key, value in (entry.get("defaults") or {}).items()
        ]
        limits = sentences(settings, entry.get("constraints"), entry.get("facts")) or "-"
        rows.append([name, switch, code(entry["default"]), sentences(entry["how"]), limits])
    return rows


TABLES: dict[str, Callable[[Tree], list[list[str]]]] = {
    "placement": placement,
    "weight-transfer": weight_transfer,
    "trainers": trainers,
    "evaluation-places": evaluation_places,
    "resume-parts": resume_parts,
    "fault-tolerance": fault_tolerance,
}
