"""The terms of `manuals/glossary.toml`: reading them, finding them in text, and their table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from markdown.extensions.toc import slugify

from scripts import navigation
from scripts.chapters import Block, Chapter, parse
from scripts.tree import Tree, toml

PATH = "manuals/glossary.toml"
PAGE = "manuals/miles-101/reference-glossary.md"
PREFIX = "term-"
_KEYS = {"name": str, "definition": str, "page": str, "aliases": list, "common": bool}


class GlossaryError(ValueError):
    """A glossary that cannot be used; `line` is 1-based, 0 for the file."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(f"{PATH}:{line}: {text}")
        self.line, self.text = line, text


@dataclass(frozen=True)
class Term:
    """One term. `page` is the path below the root of the page that introduces it.

    common  its name is an ordinary word too, so that its uses are not held against it
    line    its line in glossary.toml
    """

    name: str
    definition: str
    page: str
    aliases: tuple[str, ...] = ()
    common: bool = False
    line: int = 0

    @property
    def anchor(self) -> str:
        """Its id on the page of the glossary: 'term-kv-cache'."""
        return PREFIX + "-".join(re.findall(r"[a-z0-9]+", self.name.lower()))

    @property
    def names(self) -> tuple[str, ...]:
        """Name and aliases."""
        return (self.name, *self.aliases)

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches one use in prose, also in the plural."""
        return _pattern(self.names)

    def is_called(self, text: str) -> bool:
        """True when the text is its name or an alias, in any case, singular or plural."""
        return self.pattern.fullmatch(text.strip()) is not None


@lru_cache(maxsize=512)
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    """Names in any case, unless one has capitals after its first letter, such as 'KL'."""
    parts = []
    for name in sorted(names, key=len, reverse=True):
        spaced = re.sub(r"(?:\\ )+", r"\\s+", re.escape(name))
        exact = re.search(r"[A-Z]", name[1:]) or len(name) < 3
        parts.append(spaced if exact else f"(?i:{spaced})")
    return re.compile(rf"(?<![\w-])(?:{'|'.join(parts)})s?(?![\w-])")


def _entry(line: int, entry: dict) -> Term:
    name = entry.get("name") or "?"
    for key in ("name", "definition", "page"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise GlossaryError(line, f"term {name!r}: no {key}")
    for key, value in entry.items():
        if key not in _KEYS:
            raise GlossaryError(line, f"term {name!r}: unknown key {key!r}")
        if not isinstance(value, _KEYS[key]):
            raise GlossaryError(line, f"term {name!r}: {key} = {value!r}")
    if entry["definition"].rstrip()[-1] != ".":
        raise GlossaryError(line, f"term {name!r}: its definition is no whole sentence")
    aliases = tuple(entry.get("aliases", ()))
    page = f"manuals/{entry['page']}"
    return Term(name, entry["definition"], page, aliases, entry.get("common", False), line)


def read(tree: Tree) -> list[Term]:
    """Every term, in order. GlossaryError for a broken entry, a double or an unsorted one."""
    text = tree.text(PATH)
    try:
        whole = toml(text)
    except ValueError as error:
        raise GlossaryError(0, f"not TOML: {error}") from None
    lines = [n for n, row in enumerate(text.splitlines(), 1) if row.strip() == "[[term]]"]
    entries = whole.get("term", [])
    if set(whole) != {"schema", "term"} or whole["schema"] != 1 or len(entries) != len(lines):
        raise GlossaryError(0, "needs schema = 1, and a line [[term]] before each term")
    terms = [_entry(line, entry) for line, entry in zip(lines, entries, strict=True)]
    seen: dict[str, str] = {}
    for before, term in zip([None, *terms], terms, strict=False):
        if before and before.name.lower() > term.name.lower():
            raise GlossaryError(term.line, f"{term.name!r} is not in order after {before.name!r}")
        for name in (*map(str.lower, term.names), term.anchor):
            if name in seen and seen[name] != term.name:
                raise GlossaryError(term.line, f"{name!r} belongs to {seen[name]!r} already")
            seen[name] = term.name
    return terms


def introduction(chapter: Chapter, term: Term) -> Block | None:
    """The block of a page that has the term in bold, or None."""
    for block in chapter.blocks:
        if any(term.is_called(block.text[start:end]) for start, end in block.strong):
            return block
    return None


def heading_ids(chapter: Chapter) -> Iterator[tuple[int, str]]:
    """(line, id) of each heading of a page; a second one of the same name gets `_1`."""
    seen: Counter[str] = Counter()
    for block in chapter.blocks:
        if block.heading:
            name = slugify(block.text, "-")
            yield block.line_at(0), f"{name}_{seen[name]}" if seen[name] else name
            seen[name] += 1


def place(chapter: Chapter, term: Term) -> str:
    """Fragment of the heading under which a page introduces the term, '' for its top."""
    block = introduction(chapter, term)
    if block is None:
        return ""
    before = [name for line, name in heading_ids(chapter) if line <= block.line_at(0)]
    return f"#{before[-1]}" if len(before) > 1 else ""


def table(tree: Tree) -> list[list[str]]:
    """One row a term: name with its anchor, definition, link to where a page introduces it."""
    rows = [["term", "meaning", "introduced in"]]
    for term in read(tree):
        also = f" (also: {', '.join(term.aliases)})" if term.aliases else ""
        name = f'<span id="{term.anchor}"></span>**{term.name.replace("_", chr(92) + "_")}**{also}'
        where = "a page that is not written yet"
        if tree.exists(term.page):
            chapter = parse(term.page, tree.text(term.page))
            href = navigation.relative(PAGE, term.page) + place(chapter, term)
            where = f"[{navigation.label(term.page, chapter)}]({href})"
        rows.append([name, term.definition.replace("_", "\\_"), where])
    return rows


TABLES: dict[str, Callable[[Tree], list[list[str]]]] = {"glossary": table}
