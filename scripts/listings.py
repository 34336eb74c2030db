"""Checks every `listing` fence: its lines are lines of the stored file, in that order.

A listing names its file, and after `---` shows lines. `…` inside a line cuts characters out, a
line of only `…` cuts lines out. Lines without a cut between them stand next to each other in the
file. A cut may not go through a number. `.xz` and `.gz` files are read unpacked; ANSI colour codes
and carriage returns are left out of the stored lines.

`python3 -m scripts.listings` prints the problems. Exit codes: 0 fine, 1 something is wrong,
3 inspected nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts import listinghead
from scripts.chapters import Chapter, ChapterError, Fence, fields, parse
from scripts.report import Report
from scripts.tree import ROOT, Tree

CUT = "…"
_UNITS = ("s", "ms", "min", "h", "GB", "MB", "GiB", "MiB", "tokens", "steps", "percent")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_KEYS = {"file", "title"}
# A cut does not begin or end inside a number: on its two sides are not two parts of one.
_CUT_START = r"(?!(?<=\d)[\d.,eE%]|(?<=[.+-])\d)"
_CUT_END = r"(?!(?<=[\d.,+-])[\d.])"
_JOINED = re.compile(rf"\d\s*{CUT}\s*(?:[\d.%]|(?:{'|'.join(_UNITS)})\b)|[=:]\s*{CUT}\s*[+-]?[\d.]")


@dataclass(frozen=True)
class Listing:
    """One listing. `lines` are (chapter line, text)."""

    file: str
    title: str
    lines: tuple[tuple[int, str], ...]


def read(path: str, fence: Fence) -> Listing:
    """The listing of a fence. ChapterError when its head is wrong or it shows nothing."""
    head, rule, body = fence.content.partition("\n---\n")
    if not rule:
        raise ChapterError(path, fence.line, "listing has no `---` line after its head")
    found = fields(path, Fence(fence.line, fence.language, head))
    if not found.get("file") or set(found) - _KEYS:
        raise ChapterError(path, fence.line, "a listing head has `file` and may have `title`")
    first = fence.line + head.count("\n") + 3
    lines = tuple((first + place, text) for place, text in enumerate(body.splitlines()))
    if not any(text.replace(CUT, "").strip() for _, text in lines):
        raise ChapterError(path, fence.line, "listing shows no line")
    return Listing(found["file"], found.get("title", ""), lines)


def stored_lines(text: str) -> list[str]:
    """Lines of a stored file as a listing may show them."""
    plain = _ANSI.sub("", text).replace("\r", "")
    return [line.rstrip() for line in plain.split("\n")]


def pattern(line: str) -> re.Pattern[str]:
    """What a stored line must be, as a whole, to be shown as `line`."""
    pieces = [piece.strip() for piece in line.split(CUT)]
    pieces[0] = line.split(CUT)[0].rstrip()
    return re.compile(f"{_CUT_START}.*?{_CUT_END}".join(re.escape(piece) for piece in pieces))


def cut_problem(line: str) -> str | None:
    """Why a cut of this line could join two numbers, or a number and a unit, into one; or None."""
    match = _JOINED.search(line)
    return f"a cut joins {match.group()!r}" if match else None


def _groups(listing: Listing) -> list[list[tuple[int, str]]]:
    groups: list[list[tuple[int, str]]] = [[]]
    for number, text in listing.lines:
        if text.strip() == CUT:
            groups.append([])
        else:
            groups[-1].append((number, text))
    return [group for group in groups if group]


def first_missing(listing: Listing, stored: list[str]) -> tuple[int, str] | None:
    """The first listing line (number, text) that the file lacks from there on, or None."""
    at = 0
    for group in _groups(listing):
        patterns = [pattern(text.rstrip()) for _, text in group]
        best = 0
        while at < len(stored):
            reached = 0
            while (
                reached < len(patterns)
                and at + reached < len(stored)
                and patterns[reached].fullmatch(stored[at + reached])
            ):
                reached += 1
            best = max(best, reached)
            if reached == len(patterns):
                break
            at += 1
        else:
            return group[best]
        at += len(patterns)
    return None


def check_chapter(
    tree: Tree, chapter: Chapter, report: Report, cache: dict[str, list[str]]
) -> None:
    """Check the listings of one page; unpacked files are kept in `cache`."""
    for fence in chapter.of("listing"):
        report.count("listings")
        try:
            listing = read(chapter.path, fence)
        except ChapterError as error:
            report.error(error.path, error.line, error.text)
            continue
        report.count("listing lines", sum(text.strip() != CUT for _, text in listing.lines))
        name = listing.file
        refused = listinghead.refusal(name)
        if not refused and not tree.exists(name):
            refused = f"listing of a file that is not here: {name}"
        if refused:
            report.error(chapter.path, fence.line, refused)
            continue
        found = listinghead.source(tree, name)
        for problem in listinghead.title_problems(
            listing.title, found, listinghead.run_names(tree)
        ):
            report.error(chapter.path, fence.line, f"title {listing.title!r} {problem}")
        for number, text in listing.lines:
            problem = cut_problem(text)
            if problem:
                report.error(chapter.path, number, problem)
        if name not in cache:
            cache[name] = stored_lines(tree.text(name))
        missing = first_missing(listing, cache[name])
        if missing:
            number, text = missing
            shown = text if len(text) <= 120 else text[:119] + CUT
            report.error(chapter.path, number, f"{name} has no such line at this place: {shown!r}")


def check(root: Path = ROOT, overlay: Mapping[str, bytes] | None = None) -> Report:
    """Check every listing of the chapters at `root`."""
    tree = Tree(root, overlay or {})
    report = Report()
    cache: dict[str, list[str]] = {}
    for path in tree.chapters():
        try:
            check_chapter(tree, parse(path, tree.text(path)), report, cache)
        except ChapterError as error:
            report.error(error.path, error.line, error.text)
    return report


if __name__ == "__main__":
    from scripts.cli import main

    raise SystemExit(main("listings", check, __doc__))
