"""The reference of flags: six tables of the Miles flags that the manual names, and three beside.

Meaning, default and limits come from the facts file; the launcher's column from the launcher; the
GB10 column from that lab's published settings; the H200 column from the commands of the stored
runs; the traps from the launcher's list; the pages from the chapters. `check` refuses a flag on a
page that has no row and belongs to no other program.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scripts import flagnames, milesflags
from scripts.chapters import ChapterError, parse
from scripts.placementtables import sentences
from scripts.report import Report
from scripts.tree import Tree, toml, yaml_document

REPORTED = "capture/gpu/out-gb10/reported.toml"
RUNS = "capture/gpu/out-h200-miles"
DASH = "-"
_PLACE = re.compile(r" \((?=[^()]*\.py)[^()]*\)")  # where the code says so
TRAP_LIST = "7-1-troubleshooting.md#what-the-launcher-catches-before-the-start"

# table -> groups of the facts file, in the order of the page
GROUPS = {
    "flags-model-and-data": ("model_and_data", "checkpoint", "lora"),
    "flags-rollout": (
        *("rollout", "dynamic_sampling", "partial_rollout", "async", "eval"),
        "session_and_agents",
    ),
    "flags-reward-and-loss": ("reward_and_loss", "corrections", "distillation"),
    "flags-placement-and-memory": ("placement_and_memory",),
    "flags-engine": ("engine", "mtp_and_speculative", "fault_tolerance"),
    "flags-checks-and-debugging": ("checks_and_debugging", "debug_data", "tracking"),
}
# settings of the GB10 lab whose published name is no flag
GB10_NAMES = {
    "placement": "--colocate",
    "default-seed": "--seed",
    "model": "--hf-checkpoint",
    "data": "--prompt-data",
}
GB10_SWITCHES = ("--colocate",)
# traps whose advice does not name the flag that they are about
TRAP_FLAGS = {
    "gpus": ("--actor-num-nodes", "--rollout-num-gpus", "--actor-num-gpus-per-node"),
    "fa3-off-hopper": ("--sglang-attention-backend", "--attn-implementation"),
    "fa3-unknown-gpu": ("--sglang-attention-backend", "--attn-implementation"),
    "model-not-in-contract": ("--true-on-policy-mode",),
    "attention-not-in-contract": ("--true-on-policy-mode",),
    "trainer-attention": ("--attn-implementation",),
    "boxed-prefix": ("--rm-type",),
    "deepscaler-short": ("--rm-type",),
    "dapo-without-key": ("--rm-type",),
    "unknown-reward": ("--rm-type",),
    "remote-without-address": ("--rm-type",),
    "no-such-module": ("--custom-rm-path", "--dynamic-sampling-filter-path"),
    "plain-reward": ("--custom-rm-path",),
    "group-of-one": ("--n-samples-per-prompt",),
    "kl-without-reference": ("--use-kl-loss", "--kl-coef"),
    "resume": ("--load",),
    "same-sampling-seeds": ("--sglang-enable-deterministic-inference",),
    "label-zero": ("--label-key",),
    "label-worked": ("--label-key",),
    "lora-on-fsdp": ("--lora-rank",),
    "fully-async": ("--fully-async",),
    "one-engine-tolerance": ("--use-fault-tolerance",),
    "prompt-file": ("--prompt-data",),
    "run-used": ("--save-debug-event-data",),
}
# traps about no flag: words, machine, environment
NO_FLAG = {"stray-word", "ray-runs", "few-cpus", "proxy", "unknown-flag", "unknown-variable"}


def _launcher(tree: Tree) -> Any:
    folder = str(tree.root / "capture" / "gpu")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module("miles_grpo")


def trap_flags(launcher: Any) -> dict[str, set[str]]:
    """Trap id -> the flags that it is about. ValueError for a trap that is about none."""
    found = {}
    for trap in launcher.TRAPS:
        flags = {flag for _, flag in flagnames.flags_in(trap.advice)}
        flags |= set(TRAP_FLAGS.get(trap.id, ()))
        if trap.id == "fsdp-ignores":
            flags |= set(launcher.FSDP_IGNORES)
        if trap.id in NO_FLAG:
            flags = set()
        elif not flags:
            raise ValueError(f"scripts/flagtables.py: the trap {trap.id} is about no flag")
        found[trap.id] = flags
    return found


def launcher_values(launcher: Any) -> dict[str, str]:
    """Flag -> what the default recipe gives it, and what true on-policy mode adds."""
    settings = launcher.read_settings({})
    found = {}
    for recipe, note in ((launcher.RECIPE, ""), (launcher.TRUE_ON_POLICY, " (true on-policy)")):
        for flag in recipe:
            value = flag.value(settings) if callable(flag.value) else flag.value
            found.setdefault(flag.name, ("set" if value is None else f"`{value}`") + note)
    return found


def gb10_values(text: str) -> dict[str, str]:
    """Flag -> what the GB10 lab says it set: the usual value first, then those of single runs."""
    usual: dict[str, list[str]] = defaultdict(list)
    single: dict[str, list[str]] = defaultdict(list)
    for setting in toml(text)["setting"]:
        name = GB10_NAMES.get(setting["id"], setting["name"])
        flag, _, rest = name.partition(" ")
        if not flag.startswith("--") or "router" in rest or setting.get("by"):
            continue
        flag = flag.rstrip(",")
        value = str(setting["value"])
        value = "set" if flag in GB10_SWITCHES else value.lower() if value == "FSDP" else value
        if setting["unit"] == "MiB":
            value += " MiB"
        own = rest or ("note" in setting and "runs that set it" in setting["note"])
        (single if own else usual)[flag].append(value)
    found = {}
    for flag in {*usual, *single}:
        kept = list(dict.fromkeys(usual[flag]))
        others = [value for value in dict.fromkeys(single[flag]) if value not in kept]
        parts = [" = ".join(kept)] if kept else []
        parts += [f"{', '.join(others)} in single runs"] if others else []
        found[flag] = ", ".join(parts)
    return found


def h200_values(tree: Tree, launcher: Any) -> dict[str, str]:
    """Flag -> the values of the stored runs: the most frequent first."""
    seen: dict[str, Counter] = defaultdict(Counter)
    for path in sorted((tree.root / RUNS).glob("*/run.toml")):
        command = toml(path.read_text(encoding="utf-8"))["run"]["command"].split()
        for name, *values in launcher.grouped(command)[1:]:
            seen[name][" ".join(values) or "set"] += 1
    return {
        flag: ", ".join(value if value == "set" else f"`{value}`" for value, _ in n.most_common())
        for flag, n in seen.items()
    }


def _default(entry: Mapping[str, Any]) -> str:
    value = entry.get("default")
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"`{text}`" if " " not in text and text else text or "empty"


def _section(tree: Tree, path: str) -> str:
    """Number of a page, or its title when it has none."""
    try:
        title = str(parse(path, tree.text(path)).front.get("title", ""))
    except ChapterError:
        title = ""
    number = re.match(r"\d+\.\d+(?=\s)", title)
    return number[0] if number else title or Path(path).stem


_NO_EXPLANATION = ("/index.md", "/authors.md", "/reference-features.md")


def pages(tree: Tree, places: list[str]) -> str:
    """Links to the pages that name a flag: the one that names it most, then the others."""
    order = flagnames.nav_order(tree.text("mkdocs.yml"))
    rank = {path: place for place, path in enumerate(order)}
    explains = (path for path in places if not path.endswith(_NO_EXPLANATION))
    count = Counter(explains)
    if not count:
        return DASH
    by_nav = sorted(count, key=lambda path: (rank.get(path, len(rank)), path))
    best = max(by_nav, key=lambda path: count[path])
    ordered = [best, *[path for path in by_nav if path != best]]
    folder = "manuals/miles-101/"  # of the page with these tables
    return ", ".join(f"[{_section(tree, path)}]({path.removeprefix(folder)})" for path in ordered)


def _places(tree: Tree) -> dict[str, list[str]]:
    """Row name -> path of each place that names it."""
    owners = flagnames.Owners.of(tree)
    found: dict[str, list[str]] = defaultdict(list)
    for place in flagnames.named(tree):
        if row := owners.row(place.flag):
            found[row].append(place.path)
    return found


_made: dict[str, dict[str, list[list[str]]]] = {}


def rows(tree: Tree) -> dict[str, list[list[str]]]:
    """Table -> its rows, heading first: every Miles flag that a page or the launcher names.

    The six tables come from one pass over the chapters, which is kept while they do not change.
    """
    read = [
        (path, tree.text(path))
        for path in (*tree.chapters(), flagnames.EXTRA, flagnames.HOOKS, "mkdocs.yml")
    ]
    key = hashlib.sha256(repr((tree.root, read)).encode()).hexdigest()
    if key not in _made:
        _made.clear()
        _made[key] = _rows(tree)
    return _made[key]


def _rows(tree: Tree) -> dict[str, list[list[str]]]:
    launcher = _launcher(tree)
    owners = flagnames.Owners.of(tree)
    places = _places(tree)
    ours, gb10 = launcher_values(launcher), gb10_values(tree.text(REPORTED))
    h200, traps = h200_values(tree, launcher), trap_flags(launcher)
    ignored = set(launcher.FSDP_IGNORES)
    shown = {*places, *(owners.row(flag) or flag for flag in ours)}
    made = {name: [HEAD] for name in (*GROUPS,)}
    table_of = {group: name for name, groups in GROUPS.items() for group in groups}
    for name in sorted(shown):
        entry = owners.miles.get(name) or owners.extra[name]
        warned = [trap for trap, flags in traps.items() if name in flags and trap != "fsdp-ignores"]
        told = [entry.get("watch"), entry.get("constraints")]
        if entry.get("on_fsdp"):
            told.append(f"FSDP: {entry['on_fsdp']}")
        elif name in ignored:
            told.append("FSDP ignores it")
        watch = _PLACE.sub("", sentences(*told))
        if warned:
            listed = ", ".join(f"`{trap}`" for trap in warned)
            watch = f"{watch} Launcher: [{listed}]({TRAP_LIST}).".strip()
        since, links = entry.get("since") or "August", pages(tree, places.get(name, []))
        meaning = sentences(entry["meaning"]) + (f"<br>{watch}" if watch else "")
        made[table_of[entry["group"]]].append(
            [
                f"`{name}`<br>{since}<br>{links}",
                f'<span class="cell-wide">{meaning}</span>',
                _default(entry),
                ours.get(name, DASH),
                gb10.get(name, DASH),
                h200.get(name, DASH),
            ]
        )
    return made


HEAD = [
    *("Flag, since, explained in", "Meaning, and what to watch for", "Default", "Launcher"),
    *("GB10 lab", "H200 runs"),
]


def name_of(row: list[str]) -> str:
    """The flag of a row."""
    return row[0].partition("<br>")[0].strip("`")


def _table(name: str) -> Callable[[Tree], list[list[str]]]:
    return lambda tree: rows(tree)[name]


def newer(tree: Tree) -> list[list[str]]:
    """What the GB10 manual names and the code of August does not have."""
    entries = yaml_document(tree.read(milesflags.FLAGS_FILE))["not_in_snapshot"]
    made = [["Named by the GB10 manual", "What it says", "In the code of 2026-08-21"]]
    for entry in entries:
        made.append([sentences(entry["name"])[:-1], *map(sentences, _told(entry))])
    return made


def _told(entry: Mapping[str, Any]) -> tuple[str, str]:
    return tuple(
        re.sub(r"\bseed\b", "GB10 manual", re.sub(r"\bsnapshot\b", "code of August", entry[key]))
        for key in ("meaning", "note")
    )


def tools(tree: Tree) -> list[list[str]]:
    """Flags of the converters of Miles, which are no flags of a run."""
    made = [["Flag", "Programs", "Meaning"]]
    for row in toml(tree.text(flagnames.EXTRA)).get("tool", []):
        programs = ", ".join(f"`{tool}`" for tool in row["tools"])
        made.append([f"`{row['name']}`", programs, row["meaning"]])
    return made


def variables(tree: Tree) -> list[list[str]]:
    """Environment variables that Miles and its launchers read."""
    entries = yaml_document(tree.read(milesflags.FLAGS_FILE))["environment_variables"]
    made = [["Variable", "Meaning", "Read in"]]
    for entry in entries:
        made.append([f"`{entry['name']}`", sentences(entry["meaning"]), f"`{entry['source']}`"])
    return made


TABLES: dict[str, Callable[[Tree], list[list[str]]]] = {
    **{name: _table(name) for name in GROUPS},
    "flags-newer": newer,
    "flags-of-tools": tools,
    "flags-variables": variables,
}


def check(root: Path) -> Report:
    """Every flag that a page names has a row in the reference, or belongs to another program."""
    tree, report = Tree(root), Report()
    owners = flagnames.Owners.of(tree)
    found = flagnames.named(tree)
    report.count("flags named", len(found))
    have = {name_of(row) for table in rows(tree).values() for row in table[1:]}
    report.count("rows", len(have))
    for place in found:
        row = owners.row(place.flag)
        if row is None and not owners.elsewhere(place.flag):
            text = (
                f"{place.flag} is in no table of the flag reference: not in "
                f"{milesflags.FLAGS_FILE}, and {flagnames.EXTRA} gives it no row and no program"
            )
            report.error(place.path, place.line, text)
        elif row is not None and row not in have:
            report.error(place.path, place.line, f"{place.flag}: the row {row} was not made")
    return report
