"""Finds numbers of the pages that look measured and are neither a checked link nor exempt."""

from __future__ import annotations

import re
from collections.abc import Mapping

from scripts import exemptions, findnumbers, labs
from scripts.chapters import COMMAND_LANGUAGES, FILL, Block, Chapter, Fence, Link
from scripts.outputs import outputs
from scripts.report import Report

CHECKED_FENCES = {"figure", "listing", "table"}
_COMMENT = re.compile(r"(?:^|\s)#(?!!).*")
_SAID = re.compile(r"\b(?:echo|printf)\b.*")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")


def check_unlinked(
    chapters: Mapping[str, Chapter],
    stating: Mapping[str, list[Link]],
    exempt: Mapping[str, exemptions.Exemptions],
    report: Report,
) -> None:
    """Every measured-looking number of the pages is a checked link or exempt."""
    for path, chapter in chapters.items():
        linked = {id(link) for link in stating.get(path, [])}
        front = [
            Block.of(text, chapter.front_line(f"{key}:"))
            for key, text in chapter.front.items()
            if isinstance(text, str)
        ]
        for block in front + fence_lines(chapter) + chapter.blocks:
            _check_block(path, block, linked, exempt[path], report)


def _check_block(
    path: str, block: Block, linked: set[int], exempt: exemptions.Exemptions, report: Report
) -> None:
    spans = [(link.start, link.end) for link in block.links if id(link) in linked]
    for start, end in block.code:
        code = block.text[start:end]
        spans += [(start + a, start + b) for a, b in findnumbers.flag_values(code)]
    text = block.without(spans).replace("\u00a0", " ").replace("\u202f", " ")
    for place in findnumbers.find_hidden(text.replace(FILL, " ")):
        message = f"{text[place]!r} (U+{ord(text[place]):04X}) can hide a number"
        report.error(path, block.line_at(place), message)
    found = findnumbers.find_measured(text) or findnumbers.find_in_column(block.column, text)
    for start, end in found:
        report.count("numbers that look measured")
        if not exempt.allow(text, start, end):
            message = f"number without evidence: {text[start:end]!r}; link it or exempt it"
            report.error(path, block.line_at(start), message)


def fence_lines(chapter: Chapter) -> list[Block]:
    """Lines of code blocks in which a number is still a claim.

    Those are all lines of a block that nothing else checks; of a shell block its comments, what it
    prints by itself, here-documents, and the output in a `console` block; of a lab's code cell
    its comments and strings. An output block is compared by tests/manuals and left out.
    """
    printed = {output.printed.line for output in outputs(chapter)}
    found = []
    for fence in chapter.fences:
        if fence.language in CHECKED_FENCES or fence.line in printed:
            continue
        lines = enumerate(fence.content.splitlines(), start=fence.line + 1)
        if fence.language in COMMAND_LANGUAGES:
            lines = enumerate(_said_by_shell(fence), start=fence.line + 1)
        elif labs.is_cell(chapter.path, fence):
            lines = [(fence.line + at, text) for at, text in labs.said(fence.content)]
        found += [Block.of(text, number) for number, text in lines if text.strip()]
    return found


def _said_by_shell(fence: Fence) -> list[str]:
    """Of each line the part that a reader takes for a statement, '' for a plain command."""
    said = []
    end_word = ""
    for text in fence.content.splitlines():
        if end_word:
            end_word = "" if text.strip() == end_word else end_word
            said.append(text)
            continue
        if fence.language == "console" and not text.startswith(("$ ", "> ")):
            said.append(text)
            continue
        heredoc = _HEREDOC.search(text)
        end_word = heredoc[2] if heredoc else ""
        part = _SAID.search(text) or _COMMENT.search(text)
        said.append(part.group() if part else "")
    return said
