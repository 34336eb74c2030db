"""Which block of a page is the printed output of a command, and what that command prints now.

A `text` block straight after a `bash` block, with one empty line between the two, is the output
of that block. tests/manuals runs the command and compares; the claim check leaves its numbers to
that test. `python3 -m scripts.outputs` (`make outputs`) writes the outputs of every page anew, for
an author who changed a tool, and names the blocks that changed.

Exit codes: 0 nothing changed, 1 wrote a change, 2 a command cannot be run, 3 no output on any page.
"""

from __future__ import annotations

import lzma
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts import coreverbs
from scripts.chapters import Chapter, Fence, parse
from scripts.tree import ROOT, Tree

TIMEOUT_S = 60
_PYTHON = re.compile(r"\A(?:\.venv-core/bin/)?python3? ")
_UNPACK = re.compile(r"xzcat (\S+) \| ")


@dataclass(frozen=True)
class Output:
    """A command block and the block that shows what it prints."""

    command: Fence
    printed: Fence


class OutputError(ValueError):
    """A command that has an output on a page and cannot be run here."""


def outputs(chapter: Chapter) -> list[Output]:
    """Every printed output of a page, in order."""
    return [
        Output(command, printed)
        for command, printed in zip(chapter.fences, chapter.fences[1:], strict=False)
        if command.language == "bash"
        and printed.language == "text"
        and printed.line == command.end + 2
    ]


def of_all_pages(root: Path = ROOT) -> Iterator[tuple[str, Output]]:
    """(page, output) of every page."""
    tree = Tree(root)
    for path in tree.chapters():
        for found in outputs(parse(path, tree.text(path))):
            yield path, found


def printed_by(command: str, root: Path = ROOT) -> str:
    """What a command of a page prints, run in the repository root. OutputError when it cannot be.

    `xzcat FILE |` is done here, since a reader's xz is not a tool that this repository needs. Verbs
    of the trainer that need no torch run with the Python of this process.
    """
    command = command.strip()
    words = f"{sys.executable} {_PYTHON.sub('', command, count=1)}"
    data = b""
    unpack = _UNPACK.match(command)
    if unpack:
        words = command[unpack.end() :].replace(".venv-core/bin/python ", f"{sys.executable} ")
        data = lzma.decompress((root / unpack[1]).read_bytes())
    elif not command.startswith("python3 capture/") and not coreverbs.runs_here(command):
        raise OutputError(f"this command has an output and cannot be run here: {command}")
    shell = shutil.which("bash") or "sh"
    done = subprocess.run(
        [shell, "-c", words], cwd=root, input=data, capture_output=True, timeout=TIMEOUT_S
    )
    return done.stdout.decode("utf-8")


def trimmed(text: str) -> list[str]:
    """Lines without the space at their ends, and without empty lines at the end."""
    return [line.rstrip() for line in text.rstrip("\n").split("\n")]


def rewrite(root: Path = ROOT) -> list[str]:
    """Write each page's outputs anew; returns `page:line` of those that changed."""
    changed = []
    found = list(of_all_pages(root))
    # From the end of each page, so that the lines of the blocks before stay where they are.
    for path, output in reversed(found):
        now = trimmed(printed_by(output.command.content, root))
        if now == trimmed(output.printed.content):
            continue
        page = root / path
        lines = page.read_text(encoding="utf-8").split("\n")
        lines[output.printed.line : output.printed.end - 1] = now
        page.write_text("\n".join(lines), encoding="utf-8")
        changed.append(f"{path}:{output.printed.line}")
    return changed[::-1]


def main() -> int:
    """The command line; returns the exit code."""
    try:
        changed = rewrite()
    except (OutputError, subprocess.TimeoutExpired) as error:
        print(f"outputs: {error}", file=sys.stderr)
        return 2
    total = len(list(of_all_pages()))
    print("\n".join([*changed, f"{total} outputs, {len(changed)} written anew"]))
    return 1 if changed else 0 if total else 3


if __name__ == "__main__":
    raise SystemExit(main())
