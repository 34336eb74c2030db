"""Checks the shell blocks of the chapters and the README against the programs that they call.

Kit commands are parsed by the kit's own parser, `MILES_` variables must be settings of the
launcher, flags in MILES_EXTRA_ARGS must be Miles flags, make targets and repository paths must
exist, and the options of `docker run` must be known. A flag that is newer than the flag list is
allowed by a comment line `# since DATE: --flag` in its block.

`python3 -m scripts.commands` prints the problems. Exit codes: 0 fine, 1 something is wrong,
2 bad usage, 3 inspected nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from scripts import shellwords
from scripts.chapters import COMMAND_LANGUAGES, Chapter, ChapterError, Fence, parse
from scripts.report import Report
from scripts.tree import ROOT, Tree

FLAGS_FILE = "manuals/data/miles-flags.yaml"
REPO_FOLDERS = ("capture/", "manuals/", "scripts/", "figures/", "tests/")
_PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?")
_TARGET = re.compile(r"^([A-Za-z][\w-]*)\s*:(?!=)", re.MULTILINE)
_SINCE = re.compile(r"#\s*since\s+\d{4}-\d{2}(?:-\d{2})?:\s*(--[\w-]+)")
_INLINE = re.compile(r"(?:python3 capture/gpu/|make )\S.*")

# Source: `docker run --help` of Docker 28.
DOCKER_SWITCHES = {"--rm", "-d", "--detach", "-i", "-t", "-it", "--init", "--privileged"}
DOCKER_VALUES = {
    *("--name", "--gpus", "--ipc", "--shm-size", "--ulimit", "-v", "--volume", "--mount", "-e"),
    *("--env", "--env-file", "-w", "--workdir", "-u", "--user", "--network", "--entrypoint"),
    *("--memory", "-m", "--cpus", "-p", "--publish", "--label", "--pid", "--restart", "--device"),
    *("--memory-swap", "--cap-add", "--security-opt", "--platform", "--pull", "--hostname", "-h"),
    *("--stop-timeout", "--stop-signal", "--add-host", "--runtime", "--log-driver", "--log-opt"),
}


@lru_cache(maxsize=4)
def miles_flags(data: bytes) -> frozenset[str]:
    """Names of the flags in the flag list."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return frozenset(flag["name"] for flag in yaml.load(data, Loader=loader)["flags"])


@dataclass
class Programs:
    """What commands are checked against; None where the program does not exist yet."""

    tree: Tree
    settings: frozenset[str] | None = None
    launcher: Any = None
    kit: Any = None
    targets: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    unchecked: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, tree: Tree) -> Programs:
        """The programs of a repository."""
        found = cls(tree)
        folder = str(tree.root / "capture" / "gpu")
        if folder not in sys.path:
            sys.path.insert(0, folder)
        if tree.exists("capture/gpu/miles_grpo.py"):
            found.launcher = importlib.import_module("miles_grpo")
            found.settings = frozenset(s.name for s in found.launcher.SETTINGS)
        if tree.exists("capture/gpu/kit.py"):
            found.kit = importlib.import_module("kit")
        if tree.exists("Makefile"):
            found.targets = frozenset(_TARGET.findall(tree.text("Makefile")))
        if tree.exists(FLAGS_FILE):
            found.flags = miles_flags(tree.read(FLAGS_FILE))
        return found


class _Verb:
    """A verb of the kit as a program of its own: `build_parser` and a name."""

    def __init__(self, module: Any) -> None:
        self.module, self.__name__ = module, module.__name__

    def build_parser(self) -> argparse.ArgumentParser:
        """The parser with the verb's arguments."""
        parser = argparse.ArgumentParser(prog=f"{self.__name__}.py", allow_abbrev=False)
        self.module.add_arguments(parser)
        return parser


def parser_problem(module: Any, words: list[str]) -> str | None:
    """What a module's own argument parser says against the words, or None."""
    make = getattr(module, "build_parser", None) or getattr(module, "argument_parser", None)
    if make is None and hasattr(module, "add_arguments"):  # a verb that runs on its own too
        return parser_problem(_Verb(module), words)
    if make is None:
        return f"{module.__name__} has no build_parser() to check it with"
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            make().parse_args(words)
    except SystemExit as stop:
        if stop.code:
            return said.getvalue().strip().splitlines()[-1]
    except (AttributeError, ImportError) as error:
        return f"the parser of {module.__name__} is broken: {error}"
    return None


def command_problems(programs: Programs, command: shellwords.Command, since: set[str]) -> list[str]:
    """What is wrong with one simple command."""
    problems = []
    for name, value in command.env:
        problems += _variable(programs, name, value, since)
    words = list(command.words)
    if not words:
        return problems
    problems += _paths(programs.tree, words)
    if words[0] == "docker":
        return problems + _docker(programs, words, since)
    if words[0] == "make":
        for target in words[1:]:
            if "=" not in target and not target.startswith("-") and target not in programs.targets:
                problems.append(f"the Makefile has no target {target!r}")
    elif words[0] in ("-e", "--env"):  # a line that belongs on a `docker run`
        problems += _docker(programs, ["docker", "run", *words, "image"], since)
    elif _PYTHON.fullmatch(words[0]):
        problems += _python(programs, words[1:])
    return problems


def _variable(programs: Programs, name: str, value: str, since: set[str]) -> list[str]:
    if not name.startswith("MILES_"):
        return []
    if programs.settings is not None and name not in programs.settings:
        return [f"{name} is no setting of the launcher"]
    if name != "MILES_EXTRA_ARGS":
        return []
    try:
        words = shlex.split(value)
    except ValueError as error:
        return [f"MILES_EXTRA_ARGS: {error}"]
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    return [
        f"{flag} is no Miles flag (commit 31f1ca961) and has no `# since` line"
        for flag in flags
        if flag not in programs.flags | since
    ]


def _paths(tree: Tree, words: list[str]) -> list[str]:
    problems = []
    for word in words:
        path = word.removeprefix("./")
        if not path.startswith(REPO_FOLDERS) or re.search(r"[A-Z]{3}|[$<{]", path):
            continue
        found = any(tree.root.glob(path)) if "*" in path else tree.exists(path.rstrip("/"))
        if not found:
            problems.append(f"no such path in the repository: {path}")
    return problems


def _python(programs: Programs, words: list[str]) -> list[str]:
    while words and words[0] in ("-u", "-B", "-W", "-X"):
        words = words[2:] if words[0] in ("-W", "-X") else words[1:]
    if not words:
        return []
    if words[0] == "-m":
        name = words[1] if len(words) > 1 else ""
        path = name.replace(".", "/") + ".py"
        if name.startswith(("scripts.", "figures.")) and not programs.tree.exists(path):
            return [f"no module {name}"]
        return []
    name = words[0].rsplit("/", 1)[-1]
    if name in ("kit.py", "miles-kit.pyz"):
        if programs.kit is None:
            return ["there is no capture/gpu/kit.py to check it with"]
        problem = parser_problem(programs.kit, words[1:])
    elif name == "miles_grpo.py":
        if programs.launcher is None:
            return ["there is no capture/gpu/miles_grpo.py to check it with"]
        problem = parser_problem(programs.launcher, words[1:])
    elif words[0].startswith("capture/gpu/") and programs.tree.exists(words[0]):
        problem = parser_problem(importlib.import_module(name.removesuffix(".py")), words[1:])
    else:
        return []
    return [problem] if problem else []


def _docker(programs: Programs, words: list[str], since: set[str]) -> list[str]:
    if words[1:2] != ["run"]:
        return []
    problems: list[str] = []
    at = 2
    while at < len(words) and words[at].startswith("-"):
        option, equals, value = words[at].partition("=")
        if option in DOCKER_VALUES:
            if not equals:
                at += 1
                value = words[at] if at < len(words) else ""
            if option in ("-e", "--env"):
                name, _, setting = value.partition("=")
                problems += _variable(programs, name, setting, since)
        elif option not in DOCKER_SWITCHES:
            return [*problems, f"docker run has no option {option}"]
        at += 1
    if at >= len(words):
        return [*problems, "docker run names no image"]
    inner = words[at + 1 :]
    if inner and _PYTHON.fullmatch(inner[0]):
        problems += _python(programs, inner[1:])
    return problems


def check_fence(programs: Programs, path: str, fence: Fence, report: Report) -> None:
    """Check one shell block."""
    report.count("command blocks")
    since = set(_SINCE.findall(fence.content))
    try:
        found = shellwords.commands(fence)
    except shellwords.ShellError as error:
        report.error(path, fence.line, f"no shell would read {error}")
        return
    for command in found:
        report.count("commands")
        for problem in command_problems(programs, command, since):
            report.error(path, command.line, problem)


def check_inline(programs: Programs, chapter: Chapter, report: Report) -> None:
    """Kit commands and make targets named in inline code: the verb or target must exist."""
    for block in chapter.blocks:
        for start, end in block.code:
            text = block.text[start:end]
            if not _INLINE.fullmatch(text):
                continue
            report.count("commands named in prose")
            words = text.split()
            problems = []
            if words[0] == "make":
                problems = command_problems(
                    programs, shellwords.Command(0, (), tuple(words[:2])), set()
                )
            elif words[1].endswith("/kit.py") and len(words) > 2 and words[2].islower():
                problems = _python(programs, [words[1], words[2], "--help"])
            for problem in problems:
                report.error(chapter.path, block.line_at(start), f"`{text}`: {problem}")


def check(root: Path = ROOT, overlay: Mapping[str, bytes] | None = None) -> Report:
    """Check the shell blocks of every chapter and the README at `root`."""
    tree = Tree(root, overlay or {})
    programs = Programs.of(tree)
    report = Report()
    for path in [*tree.chapters(), *(["README.md"] if tree.exists("README.md") else [])]:
        try:
            chapter = parse(path, tree.text(path))
        except ChapterError as error:
            report.error(error.path, error.line, error.text)
            continue
        for fence in chapter.of(*COMMAND_LANGUAGES):
            check_fence(programs, path, fence, report)
        check_inline(programs, chapter, report)
    return report


if __name__ == "__main__":
    from scripts.cli import main

    raise SystemExit(main("commands", check, __doc__))
