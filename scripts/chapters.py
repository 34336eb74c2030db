"""Reads a chapter: front matter, fenced blocks, links and prose, each with its line number.

Indented code is read as prose on purpose: chapters use fences, and text inside an admonition is
indented without being code.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, field
from functools import lru_cache
from html import unescape
from typing import Any
from urllib.parse import unquote

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

FILL = "\ufffc"  # stands in a block's text where a checked link was
COMMAND_LANGUAGES = {"bash", "console", "sh", "shell", "zsh"}
_TAG = re.compile(r"<!--.*?-->|</?[A-Za-z][^>]*>", re.DOTALL)
_ATTRIBUTE = re.compile(r"\b(?:title|alt|aria-label|summary|content)\s*=\s*[\"']([^\"']*)")
_FRONT = re.compile(r"\A---\n(.*?)^---[ \t]*\n", re.DOTALL | re.MULTILINE)


class ChapterError(ValueError):
    """A chapter that cannot be read; `line` is 1-based."""

    def __init__(self, path: str, line: int, text: str) -> None:
        super().__init__(f"{path}:{line}: {text}")
        self.path, self.line, self.text = path, line, text


@dataclass(frozen=True)
class Fence:
    """One fenced block. `line` is the line of its opening fence, 1-based, and `end` of its last.

    `language` is the first word of `info`, in lower case.
    """

    line: int
    language: str
    content: str
    end: int = 0
    info: str = ""

    def line_of(self, needle: str) -> int:
        """Line of the first content line that starts with `needle`, else the fence's own."""
        for offset, text in enumerate(self.content.splitlines()):
            if text.lstrip().startswith(needle):
                return self.line + 1 + offset
        return self.line


@dataclass(frozen=True)
class Link:
    """One link of a block; `start` and `end` are offsets of its text in the block's text."""

    line: int
    text: str
    href: str
    start: int
    end: int


@dataclass
class Block:
    """One paragraph, heading, table cell or HTML block as plain text.

    Inline code stands in `text` without its back-ticks; `code` lists its spans, `strong` those of
    bold text. `cell` is true for
    a cell of a table, and `column` is the head of its column.
    """

    text: str = ""
    links: list[Link] = field(default_factory=list)
    code: list[tuple[int, int]] = field(default_factory=list)
    strong: list[tuple[int, int]] = field(default_factory=list)
    heading: bool = False
    cell: bool = False
    column: str = ""
    _offsets: list[int] = field(default_factory=lambda: [0])
    _lines: list[int] = field(default_factory=lambda: [1])

    @classmethod
    def of(cls, text: str, line: int) -> Block:
        """A block of one line."""
        return cls(text=text, _lines=[line])

    def line_at(self, offset: int) -> int:
        """Source line of a character of `text`."""
        return self._lines[bisect.bisect_right(self._offsets, offset) - 1]

    def without(self, spans: list[tuple[int, int]]) -> str:
        """`text` with spans replaced by fill characters; offsets stay the same."""
        chars = list(self.text)
        for start, end in spans:
            chars[start:end] = FILL * (end - start)
        return "".join(chars)


@dataclass
class Chapter:
    """A parsed page. `path` is relative to the repository root."""

    path: str
    front: dict[str, Any]
    front_lines: list[str]
    fences: list[Fence]
    blocks: list[Block]

    @property
    def links(self) -> list[Link]:
        """Every link of the prose, in order."""
        return [link for block in self.blocks for link in block.links]

    def of(self, *languages: str) -> list[Fence]:
        """The fences with one of these languages."""
        return [fence for fence in self.fences if fence.language in languages]

    def front_line(self, needle: str) -> int:
        """Line of the front matter that holds `needle`; 1 when none does."""
        for number, text in enumerate(self.front_lines, start=2):
            if needle in text:
                return number
        return 1


def split_front(path: str, source: str) -> tuple[dict[str, Any], str, int]:
    """Front matter as a dict, the body, and the number of lines before the body.

    ChapterError when the YAML is broken or is no mapping.
    """
    match = _FRONT.match(source)
    if match is None:
        return {}, source, 0
    try:
        front = yaml.safe_load(match[1]) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = 2 + (mark.line if mark else 0)
        raise ChapterError(path, line, f"front matter is no YAML: {error}") from None
    if not isinstance(front, dict):
        raise ChapterError(path, 1, "front matter is no mapping")
    return front, source[match.end() :], match[0].count("\n")


def _markdown() -> MarkdownIt:
    return MarkdownIt("commonmark").enable("table").disable("code")


def _fill_block(block: Block, token: Token, first_line: int) -> None:
    line = first_line
    block._lines[0] = line
    open_links: list[tuple[str, int, int]] = []
    bold: list[int] = []

    def add(text: str) -> None:
        block.text += text

    for child in token.children or []:
        if child.type in ("softbreak", "hardbreak"):
            add(" ")
            line += 1
            block._offsets.append(len(block.text))
            block._lines.append(line)
        elif child.type == "link_open":
            open_links.append((unquote(str(child.attrGet("href") or "")), len(block.text), line))
        elif child.type == "link_close":
            href, start, at = open_links.pop()
            end = len(block.text)
            block.links.append(Link(at, block.text[start:end], href, start, end))
        elif child.type == "strong_open":
            bold.append(len(block.text))
        elif child.type == "strong_close":
            block.strong.append((bold.pop(), len(block.text)))
        elif child.type == "code_inline":
            start = len(block.text)
            add(child.content)
            block.code.append((start, len(block.text)))
        elif child.type == "html_inline":
            line += child.content.count("\n")
        elif child.type == "image":
            add(f" {child.content} ")
        else:
            add(child.content)


@lru_cache(maxsize=256)
def parse(path: str, source: str) -> Chapter:
    """Parse one page, once. ChapterError (with the line) on broken front matter."""
    source = source.replace("\r\n", "\n")
    front, body, before = split_front(path, source)
    fences: list[Fence] = []
    blocks: list[Block] = []
    heading = False
    heads: list[str] = []
    column = -1
    for token in _markdown().parse(body):
        first = (token.map[0] if token.map else 0) + 1 + before
        if token.type == "heading_open":
            heading = True
        elif token.type == "heading_close":
            heading = False
        elif token.type == "table_open":
            heads = []
        elif token.type == "tr_open":
            column = -1
        elif token.type in ("th_open", "td_open"):
            column += 1
        elif token.type in ("tr_close", "table_close"):
            column = -1
        elif token.type == "fence":
            info = token.info.strip()
            end = (token.map[1] if token.map else 0) + before
            language = info.split(" ")[0].lower()
            fences.append(Fence(first, language, token.content, end, info))
        elif token.type == "inline":
            block = Block(heading=heading, cell=column >= 0)
            _fill_block(block, token, first)
            if column >= 0 and column == len(heads):
                heads.append(block.text)
            elif 0 <= column < len(heads):
                block.column = heads[column]
            blocks.append(block)
            blocks += _titles(token, first)
        elif token.type == "html_block":
            blocks.extend(_html_blocks(token.content, first))
    return Chapter(path, front, source.split("\n")[1 : max(before - 1, 1)], fences, blocks)


def _titles(token: Token, first: int) -> list[Block]:
    """What a reader sees when he points at a link, an image or inline HTML."""
    found = [str(child.attrGet("title") or "") for child in token.children or []]
    for child in token.children or []:
        if child.type == "html_inline":
            found += [unescape(value) for value in _ATTRIBUTE.findall(child.content)]
    return [Block.of(text, first) for text in found if text.strip()]


def _html_blocks(content: str, first: int) -> list[Block]:
    attributes = [
        Block.of(unescape(match[1]), first + content.count("\n", 0, match.start()))
        for match in _ATTRIBUTE.finditer(content)
    ]
    blanked = _TAG.sub(lambda m: "\n" * m[0].count("\n") or "", content)
    return attributes + [
        Block.of(unescape(text), first + offset)
        for offset, text in enumerate(blanked.splitlines())
        if text.strip()
    ]


def fields(path: str, fence: Fence) -> dict[str, str]:
    """The YAML mapping of a figure, table or listing-head fence. ChapterError when broken.

    A value may hold colons, braces and quotes without being quoted: each line is `key: text`, and
    an indented line continues the one before.
    """
    found: dict[str, str] = {}
    key = ""
    for offset, text in enumerate(fence.content.splitlines()):
        if not text.strip():
            continue
        match = re.match(r"([a-z_]+):(?:\s+(.*))?$", text)
        if match:
            key = match[1]
            if key in found:
                raise ChapterError(path, fence.line + 1 + offset, f"{key!r} is given twice")
            found[key] = (match[2] or "").strip()
        elif key and text[:1].isspace():
            found[key] = f"{found[key]} {text.strip()}".strip()
        else:
            raise ChapterError(path, fence.line + 1 + offset, f"not a `key: text` line: {text!r}")
    return {key: _unquote(text) for key, text in found.items()}


def _unquote(text: str) -> str:
    text = text.removeprefix(">").removeprefix("|").strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text
