"""Tables of the lab notes, made from lab.toml, reported.toml and the run.toml of each stored run.

They hold settings, names and ends of runs; measured and published numbers stand in figures.
"""

from __future__ import annotations

import re
from typing import Any

from scripts.tree import Tree, toml

STORE = "capture/gpu"
GB10, H200 = f"{STORE}/out-gb10", f"{STORE}/out-h200-miles"
# setting of reported.toml -> what it is called here
MACHINE = (
    ("gpu-name", "GPU, as nvidia-smi names it"),
    ("gpus", "GPUs"),
    ("gpu-capability", "compute capability"),
    ("gpu-memory", "memory, shared by CPU and GPU"),
    ("gpu-memory-smi", "memory, as nvidia-smi reports it"),
    ("image-digest", "image digest"),
    ("miles-commit", "Miles commit"),
    ("miles-date", "date of that commit"),
    ("sglang-version", "SGLang"),
    ("shm-size", "`--shm-size` of Docker"),
)
SETTINGS = (
    "model",
    "data",
    "reward-type",
    "prompts-per-step",
    "answers-per-prompt",
    "samples-per-step",
    "answer-limit",
    "memory-fraction",
    "update-buffer-bytes",
    "trainer",
    "placement",
    "default-seed",
    "default-attention-engine",
    "default-sampling",
    "default-deterministic",
    "kv-dtype",
    "launcher-flags",
)
GUARD = (
    "guard-poll",
    "guard-pause-c",
    "guard-resume-c",
    "guard-min-pause",
    "guard-max-pause",
    "first-day-pause-c",
    "first-day-resume-c",
)
# log time of reported.toml -> what it is called here; the clock's zone is not stated
CLOCK = (
    ("plain48-ended", "end of the run `plain-48`, before the guard"),
    ("first-pause", "first pause that the guard logged"),
)
INCIDENTAL = re.compile(r"--(?:num-rollout|sglang-router-port|seed|rollout-seed) \S+")


def _toml(tree: Tree, path: str) -> dict[str, Any]:
    return toml(tree.text(path))


def _settings(tree: Tree) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in _toml(tree, f"{GB10}/reported.toml")["setting"]}


def _printed(row: dict[str, Any]) -> str:
    unit = "" if row["unit"] in ("", "share", "GPUs") else f" {row['unit']}"
    text = f"{row['printed']}{unit}"
    return f"`{text}`" if re.search(r"[_\[:]|[0-9a-f]{10}|\.dev", text) else text


def _name(text: str) -> str:
    """`text` with flags and names of code in back-ticks."""
    return re.sub(r"(?<![`\w])(--[a-z][\w-]*|[A-Za-z]+_\w+(?:\(\)\.\w+\(\))?)", r"`\1`", text)


def gb10_machine(tree: Tree) -> list[list[str]]:
    """Machine and image of the GB10 lab: fact, value, section that prints it."""
    lab, known = _toml(tree, f"{GB10}/lab.toml")["lab"], _settings(tree)
    rows = [["fact", "value", "printed in"]]
    rows.append(["machine", lab["machine"], "front matter"])
    for key, what in MACHINE:
        rows.append([what, _printed(known[key]), known[key]["section"]])
    rows.append(["architecture", lab["architecture"], "1.1"])
    rows.append(["driver", lab["driver"], "nowhere"])
    rows.append(["days", f"{lab['first_date']} to {lab['last_date']}", "sources"])
    return rows


def gb10_settings(tree: Tree) -> list[list[str]]:
    """Default settings of the GB10 lab's runs: setting, value, section that prints it."""
    known = _settings(tree)
    rows = [["setting", "value", "printed in"]]
    for key in SETTINGS:
        rows.append([_name(known[key]["name"]), _printed(known[key]), known[key]["section"]])
    return rows


def gb10_runs(tree: Tree) -> list[list[str]]:
    """Runs that the source tells of: run, what differs, steps, seed, end, what is known besides."""
    rows = [["run", "what differs", "steps", "seed", "how it ended", "known besides"]]
    for run in _toml(tree, f"{GB10}/reported.toml")["run"]:
        name = f"`{run['name']}`" if run["name"] else "no name given"
        steps = str(run.get("steps", "not stated"))
        seed = run.get("seed", "not stated")
        note = _note(run.get("note", ""))
        rows.append([name, _name(run["differs"]), steps, seed, run["ended"], note])
    return rows


def _note(text: str) -> str:
    """A note without the line numbers of our working copy."""
    text = re.sub(r"; that the 12-step run .*$", ", its name follows from its clean steps", text)
    return re.sub(r"is inferred from \d+$", "follows from the text", text)


def gb10_guard(tree: Tree) -> list[list[str]]:
    """Limits and first day of the GB10 lab's heat guard: what, value, section that prints it."""
    known = _settings(tree)
    rows = [["what", "value", "printed in"]]
    rows += [[known[k]["name"], _printed(known[k]), known[k]["section"]] for k in GUARD]
    values = {row["id"]: row for row in _toml(tree, f"{GB10}/reported.toml")["value"]}
    for key, what in CLOCK:
        row = values[key]
        day = f" on {row['date']}" if "date" in row else ""
        rows.append([what, f"{row['printed']}{day}", row["section"]])
    return rows


def gb10_lost(tree: Tree) -> list[list[str]]:
    """What only a lost table or figure of the source held: section, what."""
    lost = _toml(tree, f"{GB10}/reported.toml")["lost"]
    return [["section", "lost in our copy"], *([row["section"], row["what"]] for row in lost)]


# -- the H200 lab ----------------------------------------------------------------------------------


def h200_machine(tree: Tree) -> list[list[str]]:
    """Machine and software of the H200 lab: fact, value."""
    lab = _toml(tree, f"{H200}/lab.toml")
    machine, software = lab["machine"], lab["software"]
    rows = [["fact", "value"], ["GPU", machine["gpu"]], ["GPUs", str(machine["gpus"])]]
    rows.append(["memory of the GPU", f"{machine['gpu_memory_mib']:,} MiB"])
    rows.append(["driver", machine["driver"]])
    rows.append(["container", "yes" if machine["container"] else "no"])
    rows.append(["Miles", f"`{software['miles_commit']}` of {software['miles_date']}"])
    rows += [["trainer", software["trainer"]], ["engine", software["engine"]]]
    rows += [[name, f"`{version}`"] for name, version in software["versions"].items()]
    rows.append(["recorded", str(lab["lab"]["recorded"])])
    return rows


def h200_stand_ins(tree: Tree) -> list[list[str]]:
    """What is not stock in the H200 lab: what, in which runs."""
    lab = _toml(tree, f"{H200}/lab.toml")
    rows = [["what is not stock", "runs"]]
    common = lab["setup"]["not_stock"]
    dropped = {item: other["runs"] for other in lab["other_setup"]
               for item in other.get("drop", {}).get("not_stock", [])}  # fmt: skip
    for item in common:
        where = "all"
        if item in dropped:
            where = "all but " + ", ".join(f"`{name}`" for name in dropped[item])
        rows.append([_name(item), where])
    added: dict[str, list[str]] = {}
    for other in lab["other_setup"]:
        for item in other.get("add", {}).get("not_stock", []):
            added.setdefault(item, []).extend(other["runs"])
    rows += [[_name(i), ", ".join(f"`{n}`" for n in names)] for i, names in added.items()]
    return rows


def h200_settings(tree: Tree) -> list[list[str]]:
    """Settings of the plain run of the H200 lab: flag, value."""
    run = _toml(tree, f"{H200}/lab.toml")["recipe"]["run"]
    settings = _toml(tree, f"{H200}/{run}/run.toml")["settings"]
    rows = [["flag", "value"]]
    for name, value in settings.items():
        rows.append([f"`--{name}`", "on" if value is True else f"`{value}`"])
    return rows


def h200_runs(tree: Tree) -> list[list[str]]:
    """Stored runs of the H200 lab: run, seeds, what differs, asked for, end, GPU, clock, marks."""
    found = [_toml(tree, path) for path in _records(tree)]
    found.sort(key=lambda run: run["run"]["started"])
    rows = [["run", "seeds", "what differs", "steps asked for", "ended", "verdict", "GPU",
             "clock record", "unusable columns"]]  # fmt: skip
    for document in found:
        run, setup, ended = document["run"], document["setup"], document["ended"]
        differs = [_short(flag) for flag in run["changed"] if not INCIDENTAL.fullmatch(flag)]
        rows.append(
            [
                f"`{run['name']}`",
                f"{run['seed']}, {run['rollout_seed']}",
                ", ".join(differs) or "nothing",
                str(run["num_rollout"]),
                ended["how"] + (", partial" if ended["partial"] else ""),
                ended["verdict"],
                "shared" if setup["shared"] else "alone",
                "yes" if setup["clock_record"] else "no",
                ", ".join(f"`{row['column']}`" for row in document.get("unusable", [])) or "none",
            ]
        )
    return rows


def _short(flag: str) -> str:
    """A flag in back-ticks, with a dotted Python path cut to its last name."""
    cut = re.sub(r"(?<= )[A-Za-z_]+(?:\.\w+)*\.([A-Za-z_]\w*)$", r"…\1", flag)
    return f"`{cut}`"


def h200_notes(tree: Tree) -> list[list[str]]:
    """What the lab's record says of its runs: run, note of the run."""
    rows = [["run", "note of its record"]]
    for path in _records(tree):
        run = _toml(tree, path)["run"]
        if run["note"]:
            rows.append([f"`{run['name']}`", run["note"]])
    return rows


def h200_faults(tree: Tree) -> list[list[str]]:
    """What may not be taken from the H200 lab: runs, what."""
    rows = [["runs", "what to leave out"]]
    for fault in _toml(tree, f"{H200}/lab.toml")["fault"]:
        rows.append([", ".join(f"`{name}`" for name in fault["runs"]), _code(fault["what"])])
    return rows


def _code(text: str) -> str:
    return re.sub(r"\b(rollout/\w+|train/\w+|run\.toml|plain_s1234)\b", r"`\1`", text)


def _records(tree: Tree) -> list[str]:
    folder = tree.root / H200
    return sorted(p.relative_to(tree.root).as_posix() for p in folder.glob("*/run.toml"))


TABLES = {
    "lab-gb10-machine": gb10_machine,
    "lab-gb10-settings": gb10_settings,
    "lab-gb10-runs": gb10_runs,
    "lab-gb10-guard": gb10_guard,
    "lab-gb10-lost": gb10_lost,
    "lab-h200-machine": h200_machine,
    "lab-h200-stand-ins": h200_stand_ins,
    "lab-h200-settings": h200_settings,
    "lab-h200-runs": h200_runs,
    "lab-h200-notes": h200_notes,
    "lab-h200-faults": h200_faults,
}
