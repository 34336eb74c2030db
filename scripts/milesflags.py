"""Miles flags and launcher settings as a command line gives them: names and values."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any

from scripts.tree import yaml_document

FLAGS_FILE = "manuals/data/miles-flags.yaml"
HOOKS_FILE = "manuals/data/miles-hooks.yaml"  # flags that take an import path, same commit
_SINCE = re.compile(r"#\s*since\s+(\d{4}-\d{2}(?:-\d{2})?):\s*(--[\w-]+)")
_NUMBERS = {"int": int, "float": float}


@dataclass(frozen=True)
class Flags:
    """The flag list: `date` of its commit, and each flag's entry by name."""

    date: str
    entries: dict[str, dict[str, Any]]

    def entry(self, flag: str) -> dict[str, Any] | None:
        """The entry of a flag, of a switch by its `--no-` form, or of the family `--name-*` whose
        text names that flag.
        """
        if flag in self.entries:
            return self.entries[flag]
        switch = self.entries.get(f"--{flag.removeprefix('--no-')}")
        if flag.startswith("--no-") and switch and _can_be_turned_off(switch):
            return switch
        for name, entry in self.entries.items():
            if name.endswith("*") and flag.startswith(name[:-1]):
                told = " ".join([str(entry.get("meaning", "")), *entry.get("constraints", [])])
                if flag in re.findall(r"--[\w-]+", told):
                    return entry
        return None


def _can_be_turned_off(switch: dict[str, Any]) -> bool:
    """True for a switch that is on by default, or whose type names its `--no-` form."""
    kind = str(switch.get("type"))
    return "--no-x" in kind or (kind == "bool" and switch.get("default") is True)


@lru_cache(maxsize=4)
def read(data: bytes) -> Flags:
    """The flag list of a facts file."""
    whole = yaml_document(data)
    when = str(whole["header"]["source"]["commit_date"])
    return Flags(when, {flag["name"]: flag for flag in whole["flags"]})


def with_hooks(flags: Flags, data: bytes) -> Flags:
    """The flag list with the hooks of their facts file, which take any text."""
    whole = yaml_document(data)
    hooks = {hook["flag"]: {"name": hook["flag"], "type": "str"} for hook in whole["hooks"]}
    return Flags(flags.date, hooks | flags.entries)


def since(text: str, flags: Flags) -> tuple[set[str], list[str]]:
    """Flags that a block declares as newer than the list, and what is wrong with its dates."""
    found, problems = set(), []
    for when, flag in _SINCE.findall(text):
        whole = when if len(when) > len("2026-10") else f"{when}-28"
        try:
            date.fromisoformat(whole)
        except ValueError:
            problems.append(f"`# since {when}` is no date")
            continue
        found.add(flag)
        if whole <= flags.date:
            problems.append(f"`# since {when}: {flag}` is not after the flag list ({flags.date})")
    return found, problems


def line_problems(text: str, flags: Flags, newer: set[str]) -> list[str]:
    """What is wrong with the flags in a MILES_EXTRA_ARGS line."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        return [f"MILES_EXTRA_ARGS: {error}"]
    problems = []
    for place, word in enumerate(words):
        if not word.startswith("--"):
            continue
        flag, equals, value = word.partition("=")
        entry = flags.entry(flag)
        if entry is None:
            if flag not in newer:
                problems.append(
                    f"{flag} is no Miles flag (commit 31f1ca961) and has no `# since` line"
                )
            continue
        following = words[place + 1] if place + 1 < len(words) else ""
        value = value if equals else following
        if value and not value.startswith("--") and "$" not in value:
            problems += value_problems(flag, value, entry)
    return problems


def value_problems(flag: str, value: str, entry: dict[str, Any]) -> list[str]:
    """What is wrong with a value, by the type and the choices in the flag list."""
    choices = entry.get("choices")
    if isinstance(choices, list) and choices and value not in map(str, choices):
        return [f"{flag} takes {', '.join(map(str, choices))}, not {value!r}"]
    make = _NUMBERS.get(str(entry.get("type")))
    if make is None:
        return []
    try:
        make(value)
    except ValueError:
        return [f"{flag} takes a number, not {value!r}"]
    return []


def setting_problem(launcher: Any, name: str, value: str) -> str | None:
    """What the launcher itself says about one of its settings, or None."""
    if "$" in value or not hasattr(launcher, "read_settings"):
        return None
    try:
        launcher.read_settings({name: value})
    except launcher.LauncherError as error:
        return str(error)
    return None
