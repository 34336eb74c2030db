"""Checks the shell blocks of the chapters and the README against the programs that they call.

Kit commands are parsed by the kit's own parser, `MILES_` variables must be settings of the
launcher with values that it takes, flags in MILES_EXTRA_ARGS must be Miles flags, make targets and
repository paths must exist, and docker commands, their options and images must be known. Loops,
braces, `timeout`, `xargs` and `bash -c` are looked into. A flag that is newer than the flag list
is allowed by a comment line `# since DATE: --flag` in its block. Of inline code, kit commands,
make targets, `MILES_` names and repository paths are checked. `python -m capture.core VERB` is
parsed by the parser of that verb.

`python3 -m scripts.commands` prints the problems. Exit codes: 0 fine, 1 something is wrong,
2 bad usage, 3 inspected nothing.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path

from scripts import coreverbs, dockerwords, milesflags, shellwords
from scripts.chapters import COMMAND_LANGUAGES, Chapter, ChapterError, Fence, parse
from scripts.programs import Programs, help_text, parser_of_main, parser_problem, said_against
from scripts.report import Report
from scripts.tree import ROOT, Tree

REPO_FOLDERS = ("capture/", "manuals/", "scripts/", "figures/", "tests/", "docs/")
_PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?")
_INLINE = re.compile(r"(?:python3 capture/gpu/|make |(?:\S+/)?python3? -m capture\.core )\S.*")
_VARIABLE = re.compile(r"(MILES_[A-Z_]+)(?:=(\S*))?")
# Names in capitals stand for names of the reader, and `out-mine` is his own lab folder.
_PLACEHOLDER = re.compile(r"[$<{]|/out-mine(?=/|$)|(?:^|[/-])[A-Z]{2,}(?=/|$)")
_COPIED = re.compile(r"(?:/root/lab|~/miles-lab|\$HOME/miles-lab)/([\w-]+\.py)")


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
        problems += _make(programs, words[1:])
    elif words[0] in ("-e", "--env"):  # a line that belongs on a `docker run`
        problems += _docker(programs, ["docker", "run", *words, dockerwords.IMAGES[0]], since)
    elif _PYTHON.fullmatch(words[0]):
        problems += _python(programs, words[1:])
    elif words[0].rpartition("/")[2] == "torchrun" and "-m" in words:
        problems += _python(programs, words[words.index("-m") :])
    elif words[0].endswith((".py", ".pyz")):
        problems += _python(programs, [words[0].removeprefix("./"), *words[1:]])
    return problems


def _make(programs: Programs, words: list[str]) -> list[str]:
    problems = []
    for place, word in enumerate(words):
        value = place > 0 and words[place - 1] in ("-C", "-f", "-j", "-I", "-o")
        if value or "=" in word or word.startswith("-") or word in programs.targets:
            continue
        problems.append(f"the Makefile has no target {word!r}")
    return problems


def _variable(programs: Programs, name: str, value: str, since: set[str]) -> list[str]:
    if not name.startswith("MILES_"):
        return []
    if programs.settings is not None and name not in programs.settings:
        return [f"{name} is no setting of the launcher"]
    if name == "MILES_EXTRA_ARGS":
        return milesflags.line_problems(value, programs.flags, since)
    problem = milesflags.setting_problem(programs.launcher, name, value)
    return [problem] if problem else []


def _paths(tree: Tree, words: list[str]) -> list[str]:
    problems = []
    for word in words:
        path = word.removeprefix("./")
        copied = _COPIED.fullmatch(word)
        if copied:
            path = f"capture/gpu/{copied[1]}"
        if not path.startswith(REPO_FOLDERS) or _PLACEHOLDER.search(path):
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
        return _module(programs, words[1] if len(words) > 1 else "", words[2:])
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


def _module(programs: Programs, name: str, words: list[str]) -> list[str]:
    """`python3 -m NAME`: a module of this repository, with the flags that its parser takes."""
    if name == "capture.core" and words:
        return [problem] if (problem := coreverbs.problem(words)) else []
    if name.startswith("capture.") and not name.startswith("capture.core"):
        return [f"the kit is no package: python3 {name.replace('.', '/')}.py"]
    if not name.startswith(("scripts.", "figures.", "capture.core.")):
        return []
    path = name.replace(".", "/")
    if not (programs.tree.exists(f"{path}.py") or programs.tree.exists(f"{path}/__main__.py")):
        return [f"no module {name}"]
    if name.startswith("capture.core."):
        return []  # most of them load torch, which this environment lacks
    parser = parser_of_main(name)
    if parser is None:
        return [f"{name} is no program"]
    problem = said_against(parser, words)
    return [problem] if problem else []


def _docker(programs: Programs, words: list[str], since: set[str]) -> list[str]:
    found = dockerwords.read(words)
    problems = list(found.problems)
    for name, value in found.env:
        problems += _variable(programs, name, value, since)
    for command in shellwords.unwrapped(0, list(found.inner)):
        problems += command_problems(programs, command, since)
    return list(dict.fromkeys(problems))


def check_fence(programs: Programs, path: str, fence: Fence, report: Report) -> None:
    """Check one shell block."""
    report.count("command blocks")
    for place, text in enumerate(fence.content.splitlines(), start=1):
        if text.lstrip().startswith(("~~~", "```")):
            report.error(path, fence.line + place, f"a fence inside a block: {text.strip()}")
    since, wrong = milesflags.since(fence.content, programs.flags)
    for text in wrong:
        report.error(path, fence.line, text)
    try:
        found = shellwords.commands(fence)
    except shellwords.ShellError as error:
        report.error(path, fence.line, f"no shell would read {error}")
        return
    for command in found:
        report.count("commands")
        for problem in dict.fromkeys(command_problems(programs, command, since)):
            report.error(path, command.line, problem)


def check_inline(programs: Programs, chapter: Chapter, report: Report) -> None:
    """Inline code that names a kit command, a make target, a `MILES_` variable or a path."""
    for block in chapter.blocks:
        for start, end in block.code:
            text = block.text[start:end]
            for problem in inline_problems(programs, text, report):
                report.error(chapter.path, block.line_at(start), f"`{text}`: {problem}")


def inline_problems(programs: Programs, text: str, report: Report) -> list[str]:
    """What is wrong with one piece of inline code."""
    variable = _VARIABLE.fullmatch(text)
    if variable:
        return _named_variable(programs, variable[1], variable[2])
    if " " not in text:
        return _paths(programs.tree, [text])
    if not _INLINE.fullmatch(text):
        return []
    report.count("commands named in prose")
    words = text.split()
    if words[0] == "make":
        return _make(programs, words[1:2])
    if words[1] == "-m":
        return _python(programs, words[1:]) if words[3].islower() else []
    problems = _paths(programs.tree, words)
    if words[1].endswith("/kit.py") and len(words) > 2 and words[2].islower():
        problems += _python(programs, [words[1], words[2], "--help"])
        flags = [word.partition("=")[0] for word in words[3:] if word.startswith("--")]
        if flags and not problems:
            known = help_text(programs.kit, words[2:3])
            problems += [
                f"{words[2]} has no option {flag}"
                for flag in flags
                if not re.search(rf"{flag}(?![\w-])", known)
            ]
    return problems


def _named_variable(programs: Programs, name: str, value: str | None) -> list[str]:
    """A variable in prose: a setting of the launcher, or a name that the kit or Miles knows."""
    if programs.settings is None or name in programs.settings:
        return _variable(programs, name, value, set()) if value else []
    tree = programs.tree
    files = [p for folder in ("capture/gpu/*.py", "manuals/data/*") for p in tree.root.glob(folder)]
    if any(name in path.read_text("utf-8", "replace") for path in files if path.is_file()):
        return []
    return [f"neither the kit nor a facts file knows {name}"]


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
        for fence in chapter.fences:
            if fence.language in COMMAND_LANGUAGES:
                check_fence(programs, path, fence, report)
            elif not fence.language:
                report.error(path, fence.line, "a block names its language: bash, text, ...")
        check_inline(programs, chapter, report)
    return report


if __name__ == "__main__":
    from scripts.cli import main

    raise SystemExit(main("commands", check, __doc__))
