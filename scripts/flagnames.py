"""Which flags the pages of the first manual name, where, and what each of them belongs to.

A flag is named in prose, in inline code, in a command block, or in a cell of a generated table.
Listings, outputs and figures are what a program wrote, so they name nothing. The reference of
flags itself is left out, since it is made from this list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from scripts import milesflags
from scripts.chapters import COMMAND_LANGUAGES, Chapter, ChapterError, fields, parse
from scripts.dockerwords import OPTIONS
from scripts.tree import Tree, toml, yaml_document

FOLDER = "manuals/miles-101/"
REFERENCE = f"{FOLDER}reference-flags.md"
EXTRA = "manuals/data/flag-words.toml"
HOOKS = "manuals/data/miles-hooks.yaml"
WITHOUT_FLAGS = ("kit-file", "guard-cases")  # tables that take long and name no flag
_FLAG = re.compile(r"(?<![\w\-=/])--[a-z](?:[\w-]*\w)?(?:-?\*)?")
_PAGE = re.compile(r"\b(miles-101/[\w.-]+\.md)\b")


@dataclass(frozen=True)
class Named:
    """A flag on a page: path of the page, line (1-based), and the flag."""

    path: str
    line: int
    flag: str


def flags_in(text: str) -> Iterator[tuple[int, str]]:
    """(offset, flag) of each flag in a text; `--name=value` and `--family-*` too."""
    for match in _FLAG.finditer(text):
        yield match.start(), match[0]


def _chapters(tree: Tree) -> Iterator[Chapter]:
    for path in tree.chapters():
        if path.startswith(FOLDER) and path != REFERENCE:
            try:
                yield parse(path, tree.text(path))
            except ChapterError:
                continue  # the other checks name it


def on_page(tree: Tree, chapter: Chapter) -> Iterator[Named]:
    """Every flag that one page names, once a place."""
    for block in chapter.blocks:
        for offset, flag in flags_in(block.text):
            yield Named(chapter.path, block.line_at(offset), flag)
    for fence in chapter.fences:
        if fence.language in COMMAND_LANGUAGES:
            for offset, flag in flags_in(fence.content):
                line = fence.line + 1 + fence.content.count("\n", 0, offset)
                yield Named(chapter.path, line, flag)
        elif fence.language == "table":
            for flag in _of_table(tree, fields(chapter.path, fence).get("id", "")):
                yield Named(chapter.path, fence.line, flag)


def _of_table(tree: Tree, table_id: str) -> Iterator[str]:
    """Flags in the cells of a generated table."""
    from scripts import tables  # which imports the modules that read this one

    if table_id not in tables.TABLES or table_id in WITHOUT_FLAGS:
        return
    for row in tables.TABLES[table_id](tree)[1:]:
        for cell in row:
            for _, flag in flags_in(cell):
                yield flag


def named(tree: Tree) -> list[Named]:
    """Every flag that a page names, once a place, in the order of the pages' paths."""
    return [place for chapter in _chapters(tree) for place in on_page(tree, chapter)]


@lru_cache(maxsize=2)
def _kit_flags(tree_root: Any) -> frozenset[str]:
    found: set[str] = set()
    for folder in ("capture/gpu", "scripts"):
        for path in (tree_root / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            found |= set(re.findall(r"[\"'](--[a-z][\w-]*)[\"']", text))
    return frozenset(found)


@lru_cache(maxsize=2)
def _hooks(data: bytes) -> dict[str, dict[str, Any]]:
    """Rows of the hooks, flags that take an import path: they are facts of a file of their own."""
    whole = yaml_document(data)
    return {
        hook["flag"]: {
            "name": hook["flag"],
            "group": "model_and_data" if "start" in hook["stage"] else "reward_and_loss",
            "default": None,
            "meaning": f"Hook, {hook['stage']}: an import path",
            "constraints": [f"works on {hook['works_on']}", *hook.get("constraints", [])],
        }
        for hook in whole["hooks"]
    }


@dataclass(frozen=True)
class Owners:
    """What a flag can belong to.

    miles: entries of the facts file by name. extra: rows from elsewhere: hooks, families that
    Miles passes on, and flags that are newer than the facts file. tools: flags of the converters
    of Miles. other: flag -> program, such as docker. kit: flags of this repository's programs.
    """

    miles: Mapping[str, Mapping[str, Any]]
    extra: Mapping[str, Mapping[str, Any]]
    tools: Mapping[str, Mapping[str, Any]]
    other: Mapping[str, str]
    kit: frozenset[str]

    @classmethod
    def of(cls, tree: Tree) -> Owners:
        """The owners of a repository. ValueError for a row that is given twice."""
        words = toml(tree.text(EXTRA))
        extra = {row["name"]: row for row in words.get("flag", [])}
        tools = {row["name"]: row for row in words.get("tool", [])}
        miles = milesflags.read(tree.read(milesflags.FLAGS_FILE)).entries
        extra |= {name: row for name, row in _hooks(tree.read(HOOKS)).items() if name not in miles}
        if twice := sorted(extra.keys() & miles.keys()):
            raise ValueError(f"{EXTRA}: {twice[0]} is in {milesflags.FLAGS_FILE} already")
        other = {flag: program for program, flags in words["other"].items() for flag in flags}
        for options in OPTIONS.values():
            other |= {flag: "docker" for group in options for flag in group}
        return cls(miles, extra, tools, other, _kit_flags(tree.root))

    def row(self, flag: str) -> str | None:
        """Name of the row that holds a Miles flag, also for `--no-x` and members of a family."""
        plain = "--" + flag[5:] if flag.startswith("--no-") else flag
        for name in (flag, plain):
            if name in self.miles or name in self.extra:
                return name
        families = [
            name
            for name in (*self.miles, *self.extra)
            if name.endswith("*") and f"{flag}-".startswith(name[:-1])
        ]
        return max(families, key=len, default=None)

    def elsewhere(self, flag: str) -> bool:
        """Does the flag belong to another program?"""
        return flag in self.tools or flag in self.other or flag in self.kit


@lru_cache(maxsize=4)
def nav_order(mkdocs: str) -> tuple[str, ...]:
    """Pages of the manual in the order of the site's navigation."""
    loader = type("Loader", (yaml.SafeLoader,), {})
    loader.add_multi_constructor("", lambda *_: None)
    text = yaml.dump(yaml.load(mkdocs, loader).get("nav", []), width=10**6)
    return tuple(f"manuals/{page}" for page in _PAGE.findall(text))
