"""The output that a chapter prints under a command is what the command prints.

`scripts.outputs` says which blocks are outputs, here and in the claim check.
"""

from __future__ import annotations

import lzma
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.chapters import parse
from scripts.outputs import outputs

ROOT = Path(__file__).resolve().parents[2]
_UNPACK = re.compile(r"xzcat (\S+) \| ")


def pairs() -> Iterator[tuple[str, int, str, str]]:
    """(page, line, command, printed output) of every command with an output under it."""
    for path in sorted(ROOT.glob("manuals/**/*.md")):
        page = path.relative_to(ROOT).as_posix()
        for found in outputs(parse(page, path.read_text(encoding="utf-8"))):
            command, printed = found.command, found.printed
            yield page, command.line, command.content.strip(), printed.content


def outcome(command: str) -> str:
    """What a command prints, run in the repository root.

    `xzcat FILE |` is done here, since a reader's xz is not a tool that this repository needs.
    """
    words = f"{sys.executable} " + command.removeprefix("python3 ")
    data = b""
    unpack = _UNPACK.match(command)
    if unpack:
        words = command[unpack.end() :]
        data = lzma.decompress((ROOT / unpack[1]).read_bytes())
    elif not command.startswith("python3 capture/"):
        pytest.fail(f"this command has an output and cannot be run here: {command}")
    shell = shutil.which("bash") or "sh"
    done = subprocess.run(
        [shell, "-c", words], cwd=ROOT, input=data, capture_output=True, check=False, timeout=60
    )
    return done.stdout.decode("utf-8")


def lines(text: str) -> list[str]:
    """Lines without the space at their ends."""
    return [line.rstrip() for line in text.rstrip("\n").split("\n")]


@pytest.mark.parametrize(
    ("command", "printed"),
    [pytest.param(c, out, id=f"{page}:{line}") for page, line, c, out in pairs()],
)
def test_a_printed_output_is_what_its_command_prints(command: str, printed: str) -> None:
    assert lines(outcome(command)) == lines(printed)


def test_the_chapters_print_outputs() -> None:
    assert len(list(pairs())) >= 2


def test_a_changed_digit_in_an_output_is_seen() -> None:
    page, line, command, printed = next(pairs())
    changed = re.sub(r"\d(?!.*\d)", lambda m: str((int(m[0]) + 1) % 10), printed, count=1)
    assert changed != printed, f"{page}:{line} prints no digit"
    assert lines(outcome(command)) != lines(changed)
