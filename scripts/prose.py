"""Checks how the chapters are written: the limits stand in `manuals/prose.toml`.

Sentences and paragraphs that are too long, two sentences on one source line or one on two lines,
contractions, semicolons, forbidden words, and a sentence that stands twice in the manual. Code
counts as one word and is not read; table cells are exempt from the rule of one sentence a line, and
the list of sources may name a record that another page names too.
Spelling, terms and links have checks of their own.

Exit codes: 0 fine, 1 something is wrong, 2 bad usage, 3 inspected nothing.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.chapters import Block, Chapter, ChapterError, fields, parse
from scripts.report import Report
from scripts.tree import ROOT, Tree, toml

LIMITS = "manuals/prose.toml"
CODE = "\ufffd"  # stands for a code span, which is one word
_NUMBERS = ("words_in_a_sentence", "sentences_in_a_paragraph", "words_of_a_repeated_sentence")
_END = re.compile(r"[.!?][\"')\]]*(?=\s+\S|\s*$)")
_CONTRACTION = re.compile(
    r"\b(?:\w+n['\u2019]t|\w+['\u2019](?:re|ll|ve|d|m)"
    r"|(?:it|that|there|here|what|who|where|how|let|he|she|this)['\u2019]s)\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"\S*[\w\ufffd]\S*")


@dataclass(frozen=True)
class Limits:
    """What `manuals/prose.toml` says.

    forbidden: word -> what to write instead. repeated: sentences that may stand twice.
    """

    words: int
    sentences: int
    repeated_words: int
    repeated: frozenset[str]
    forbidden: Mapping[str, str]

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches any forbidden word, the longest first."""
        listed = sorted(self.forbidden, key=len, reverse=True)
        return re.compile(
            rf"(?<![\w-])(?:{'|'.join(map(re.escape, listed)) or '(?!)'})(?![\w-])", re.IGNORECASE
        )


def read_limits(tree: Tree) -> Limits:
    """The limits of the repository. ValueError names the file and what is wrong with it."""
    try:
        found: dict[str, Any] = toml(tree.text(LIMITS))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{LIMITS}: {error}") from None
    for key in _NUMBERS:
        value = found.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{LIMITS}: {key} is {value!r}, not a whole number above 0")
    if unknown := sorted(found.keys() - {*_NUMBERS, "repeated", "forbidden"}):
        raise ValueError(f"{LIMITS}: unknown key {unknown[0]!r}")
    repeated = found.get("repeated", [])
    return Limits(
        found["words_in_a_sentence"],
        found["sentences_in_a_paragraph"],
        found["words_of_a_repeated_sentence"],
        frozenset(plain(text) for text in repeated),
        {word.lower(): why for word, why in found.get("forbidden", {}).items()},
    )


@dataclass(frozen=True)
class Sentence:
    """One sentence of a page: its text and the source lines of its first and last character.

    masked: the text with the signs of code spans replaced.
    """

    text: str
    masked: str
    line: int
    last_line: int

    @property
    def words(self) -> int:
        """How many words it has; a code span or a number is one."""
        return len(_WORD.findall(self.masked))


def plain(text: str) -> str:
    """The words of a sentence in lower case, for comparing."""
    return " ".join(re.findall(r"[\w.]+", text.lower())).rstrip(".")


def sentences(block: Block) -> list[Sentence]:
    """The sentences of a block, with code spans as one word each."""
    text = masked(block)
    found, start = [], 0
    for end in [*(match.end() for match in _END.finditer(text)), len(text)]:
        part = text[start:end]
        if part.strip():
            first = start + len(part) - len(part.lstrip())
            last = start + len(part.rstrip()) - 1
            lines = block.line_at(first), block.line_at(last)
            found.append(Sentence(block.text[first : last + 1], part.strip(), *lines))
        start = end
    return found


def masked(block: Block) -> str:
    """The text of a block; each code span is a run of one sign, so that offsets stay."""
    chars = list(block.text)
    for start, end in block.code:
        chars[start:end] = CODE * (end - start)
    return "".join(chars)


def page_blocks(chapter: Chapter) -> Iterator[tuple[Block, bool]]:
    """(block, is it running text) of a page: prose, then the sentences of its figures.

    Table cells and headings are no running text: a line may hold several of their sentences.
    """
    for block in chapter.blocks:
        yield block, not (block.heading or block.cell)
    for key in ("title", "outcome"):
        if text := str(chapter.front.get(key, "")):
            yield Block.of(text, chapter.front_line(f"{key}:")), False
    for fence in chapter.of("figure"):
        found = fields(chapter.path, fence)
        for key in ("title", "claim", "caption"):
            if found.get(key):
                yield Block.of(re.sub(r"\{\w+\}", "7", found[key]), fence.line_of(f"{key}:")), False


def check_page(chapter: Chapter, limits: Limits, report: Report, seen: dict[str, str]) -> None:
    """Check one page; `seen` collects its sentences as plain text -> place."""
    pattern = limits.pattern
    sources = False
    for block, running in page_blocks(chapter):
        if block.heading:
            sources = block.text == "Sources"
        found = sentences(block)
        report.count("sentences", len(found))
        if len(found) > limits.sentences and running:
            text = f"a paragraph of {len(found)} sentences; the limit is {limits.sentences}"
            report.error(chapter.path, found[0].line, text)
        before = 0
        for sentence in found:
            _check_sentence(chapter.path, sentence, limits, report)
            if running and sentence.line == before:
                report.error(chapter.path, sentence.line, f"two sentences: {sentence.text!r}")
            if running and sentence.last_line > sentence.line:
                text = f"a sentence over two lines: {sentence.text!r}"
                report.error(chapter.path, sentence.line, text)
            before = sentence.last_line
            if not (block.heading or block.cell or sources):
                _check_repeated(chapter.path, sentence, limits, report, seen)
        text = masked(block)
        for wrong in pattern.finditer(text):
            why = limits.forbidden[wrong[0].lower()]
            report.error(chapter.path, block.line_at(wrong.start()), f"{wrong[0]!r}: {why}")
        for wrong in _CONTRACTION.finditer(text):
            line = block.line_at(wrong.start())
            report.error(chapter.path, line, f"{wrong[0]!r} is a contraction")
        for wrong in re.finditer(";", text):
            line = block.line_at(wrong.start())
            report.error(chapter.path, line, "a semicolon: write two sentences")


def _check_sentence(path: str, sentence: Sentence, limits: Limits, report: Report) -> None:
    if sentence.words > limits.words:
        start = " ".join(sentence.text.split()[:6])
        text = f"a sentence of {sentence.words} words, the limit is {limits.words}: {start!r} ..."
        report.error(path, sentence.line, text)


def _check_repeated(
    path: str, sentence: Sentence, limits: Limits, report: Report, seen: dict[str, str]
) -> None:
    words = plain(sentence.text)
    if sentence.words < limits.repeated_words or words in limits.repeated:
        return
    place = f"{path}:{sentence.line}"
    if words in seen:
        report.error(path, sentence.line, f"stands at {seen[words]} too: {sentence.text!r}")
    seen.setdefault(words, place)


def check(root: Path = ROOT, overlay: Mapping[str, bytes] | None = None) -> Report:
    """Check every chapter at `root`."""
    tree = Tree(root, overlay or {})
    report = Report()
    try:
        limits = read_limits(tree)
    except ValueError as error:
        report.error(LIMITS, 0, str(error).partition(": ")[2])
        return report
    seen: dict[str, str] = {}
    for path in tree.chapters():
        try:
            check_page(parse(path, tree.text(path)), limits, report, seen)
        except ChapterError as error:
            report.error(error.path, error.line, error.text)
        report.count("pages")
    used = {words for words in limits.repeated if words in _all(tree)} if limits.repeated else set()
    for words in sorted(limits.repeated - used):
        report.error(LIMITS, 0, f"{words!r} is on no page")
    report.count("forbidden words", len(limits.forbidden))
    return report


def _all(tree: Tree) -> set[str]:
    return {
        plain(sentence.text)
        for path in tree.chapters()
        for block, _ in page_blocks(parse(path, tree.text(path)))
        for sentence in sentences(block)
    }


if __name__ == "__main__":
    from scripts.cli import main

    raise SystemExit(main("prose", check, __doc__))
