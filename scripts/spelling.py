"""Checks the words of the prose against an English list and the repository's own dictionary.

Code, links' targets and words that hold digits are left out. `manuals/dictionary.txt` has one
word a line, sorted without regard to case; an entry that no page uses, or that the English list
knows already, is an error. An entry with a capital is matched as written.

`python3 -m scripts.spelling` prints the problems; `--unknown` prints only the unknown words.
Exit codes: 0 fine, 1 something is wrong, 2 bad usage, 3 inspected nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from scripts.chapters import Chapter, ChapterError, fields, parse
from scripts.report import Report
from scripts.tree import ROOT, Tree

DICTIONARY = "manuals/dictionary.txt"
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
_CHUNK = re.compile(r"\S+")
_NO_PROSE = re.compile(r"[\d_/\\@=<>{}#]|\w\.\w|^--?\w")


@lru_cache(maxsize=1)
def english() -> frozenset[str]:
    """The English list of pyspellchecker, in lower case."""
    from spellchecker import SpellChecker

    return frozenset(SpellChecker(language="en").word_frequency.dictionary)


def words(text: str) -> Iterator[tuple[int, str]]:
    """(offset, word) of each word of prose; paths, flags and names with digits are no words."""
    for chunk in _CHUNK.finditer(text):
        plain = chunk[0].strip("()[]\"'\u201c\u201d.,;:!?*")
        if _NO_PROSE.search(plain):
            continue
        for word in _WORD.finditer(chunk[0]):
            yield chunk.start() + word.start(), word[0].replace("\u2019", "'")


def page_words(chapter: Chapter) -> Iterator[tuple[int, str]]:
    """(line, word) of a page: front matter sentences, prose without code, figure sentences."""
    for key in ("title", "outcome"):
        for _, word in words(str(chapter.front.get(key, ""))):
            yield chapter.front_line(f"{key}:"), word
    for block in chapter.blocks:
        text = list(block.text)
        for start, end in block.code:
            text[start:end] = " " * (end - start)
        for offset, word in words("".join(text)):
            yield block.line_at(offset), word
    for fence in chapter.of("figure"):
        found = fields(chapter.path, fence)
        for key in ("title", "claim", "caption"):
            for _, word in words(re.sub(r"\{\w*\}", " ", found.get(key, ""))):
                yield fence.line_of(f"{key}:"), word


def known(word: str, listed: frozenset[str]) -> bool:
    """True when the list has the word, also without a possessive 's."""
    lowered = word.lower()
    return lowered in listed or lowered.removesuffix("'s") in listed


def entry_for(word: str, entries: Mapping[str, int]) -> str | None:
    """The dictionary entry that allows a word, or None."""
    bare = word.removesuffix("'s")
    for form in (word, bare, word.lower(), bare.lower()):
        if form in entries:
            return form
    return None


def read_dictionary(tree: Tree, report: Report, listed: frozenset[str]) -> dict[str, int]:
    """Entries -> line. Unsorted, doubled and superfluous entries become problems."""
    entries: dict[str, int] = {}
    if not tree.exists(DICTIONARY):
        return entries
    before = ""
    for number, entry in enumerate(tree.text(DICTIONARY).splitlines(), start=1):
        if not entry or entry.startswith("#"):
            continue
        if entry in entries:
            report.error(DICTIONARY, number, f"{entry!r} is there twice")
        elif entry.lower() < before.lower():
            report.error(DICTIONARY, number, f"{entry!r} is not in order after {before!r}")
        if known(entry, listed):
            report.error(DICTIONARY, number, f"{entry!r} is in the English list already")
        entries[entry] = number
        before = entry
    report.count("dictionary entries", len(entries))
    return entries


def check(root: Path = ROOT, overlay: Mapping[str, bytes] | None = None) -> Report:
    """Check the words of every chapter and the README at `root`."""
    tree = Tree(root, overlay or {})
    report = Report()
    listed = english()
    entries = read_dictionary(tree, report, listed)
    used: set[str] = set()
    for path in [*tree.chapters(), *(["README.md"] if tree.exists("README.md") else [])]:
        try:
            for line, word in page_words(parse(path, tree.text(path))):
                report.count("words")
                if known(word, listed):
                    continue
                entry = entry_for(word, entries)
                if entry is None:
                    report.error(path, line, f"unknown word {word!r}")
                else:
                    used.add(entry)
        except ChapterError as error:
            report.error(error.path, error.line, error.text)
    for entry, number in entries.items():
        if entry not in used and not known(entry, listed):
            report.error(DICTIONARY, number, f"{entry!r} is used on no page")
    return report


if __name__ == "__main__":
    if sys.argv[1:] == ["--unknown"]:
        found = {p.text.split("'")[1] for p in check().problems if "unknown word" in p.text}
        print("\n".join(sorted(found, key=str.lower)))
        raise SystemExit(0)
    from scripts.cli import main

    raise SystemExit(main("spelling", check, __doc__))
