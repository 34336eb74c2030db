"""Which block of a page is the printed output of a command: one answer for every check.

A `text` block straight after a `bash` block, with one empty line between the two, is the output
of that block. tests/manuals runs the command and compares; the claim check leaves its numbers to
that test.
"""

from __future__ import annotations

from dataclasses import dataclass

from scripts.chapters import Chapter, Fence


@dataclass(frozen=True)
class Output:
    """A command block and the block that shows what it prints."""

    command: Fence
    printed: Fence


def outputs(chapter: Chapter) -> list[Output]:
    """Every printed output of a page, in order."""
    return [
        Output(command, printed)
        for command, printed in zip(chapter.fences, chapter.fences[1:], strict=False)
        if command.language == "bash"
        and printed.language == "text"
        and printed.line == command.end + 2
    ]
