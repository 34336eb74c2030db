"""The `figure` fences of the chapters: reading them and filling their sentences from values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from scripts.chapters import FILL, Chapter, ChapterError, fields

ID = re.compile(r"fig-[a-z0-9]+(?:-[a-z0-9]+)*")
_HOLE = re.compile(r"\{([^{}]*)\}")
_KEYS = {"id", "title", "claim", "caption"}


@dataclass(frozen=True)
class FigureBlock:
    """One figure fence. Lines are 1-based lines of the chapter."""

    path: str
    line: int
    id: str
    title: str
    claim: str
    caption: str
    lines: Mapping[str, int]

    def texts(self) -> list[tuple[str, str, int]]:
        """(key, text, line) of the sentences that a reader sees."""
        pairs = (("title", self.title), ("claim", self.claim), ("caption", self.caption))
        return [(key, text, self.lines.get(key, self.line)) for key, text in pairs]


def holes(template: str) -> list[str]:
    """Names between braces, in order."""
    return _HOLE.findall(template)


def pieces(template: str, texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """The sentence in parts: (value name or "", text). KeyError on an unknown name.

    `{steps}-step` of a value displayed as "12 steps" drops the unit: "12-step".
    """
    parts = _HOLE.split(template)  # text and names in turn
    found = []
    for place, part in enumerate(parts):
        if place % 2 == 0:
            found.append(("", part))
            continue
        number, _, unit = texts[part].rpartition(" ")
        follows = re.match(r"[- ]([A-Za-z%]+)", parts[place + 1])
        repeated = number and follows and follows[1].rstrip("s") == unit.rstrip("s")
        found.append((part, number if repeated else texts[part]))
    return found


def fill_with_spans(
    template: str, texts: Mapping[str, str]
) -> tuple[str, list[tuple[str, int, int]]]:
    """The filled sentence, and (name, start, end) of each value in it. KeyError as `pieces`."""
    text, spans = "", []
    for name, part in pieces(template, texts):
        if name:
            spans.append((name, len(text), len(text) + len(part)))
        text += part
    return text, spans


def fill(template: str, texts: Mapping[str, str]) -> str:
    """The sentence with each {name} replaced by its displayed text. KeyError on an unknown name."""
    return "".join(text for _, text in pieces(template, texts))


def blanked(template: str) -> str:
    """The template with its holes replaced by fill characters of the same length."""
    return _HOLE.sub(lambda m: FILL * len(m[0]), template)


def figure_blocks(chapter: Chapter) -> tuple[list[FigureBlock], list[ChapterError]]:
    """Every figure fence of a chapter, and what is wrong with the ones that cannot be read."""
    blocks: list[FigureBlock] = []
    errors: list[ChapterError] = []
    for fence in chapter.of("figure"):
        try:
            found = fields(chapter.path, fence)
        except ChapterError as error:
            errors.append(error)
            continue
        unknown = sorted(set(found) - _KEYS)
        missing = sorted(key for key in ("id", "title", "claim") if not found.get(key))
        if unknown or missing:
            what = f"unknown key {unknown[0]!r}" if unknown else f"no {missing[0]!r}"
            errors.append(ChapterError(chapter.path, fence.line, f"figure block: {what}"))
        elif not ID.fullmatch(found["id"]):
            text = f"figure id {found['id']!r} must look like fig-1-1-steps"
            errors.append(ChapterError(chapter.path, fence.line, text))
        else:
            blocks.append(
                FigureBlock(
                    path=chapter.path,
                    line=fence.line,
                    id=found["id"],
                    title=found["title"],
                    claim=found["claim"],
                    caption=found.get("caption", ""),
                    lines={key: fence.line_of(f"{key}:") for key in found},
                )
            )
    return blocks, errors
