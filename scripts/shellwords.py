"""Shell blocks of a page as simple commands with line numbers. Reads shell, never runs it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from scripts.chapters import Fence

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_REDIRECT = re.compile(r"\s\d?>&\d|\s&?\d?>>?\s*(?=\S)|\s<\s*(?=\S)")
_BREAKS = set("|&;()")
_WRAPPERS = {"sudo", "time", "nohup", "env", "exec", "export", "command"}
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")


class ShellError(ValueError):
    """A command line that a shell would not read."""


@dataclass(frozen=True)
class Command:
    """One simple command: assignments before it, and its words."""

    line: int
    env: tuple[tuple[str, str], ...]
    words: tuple[str, ...]


def logical_lines(fence: Fence) -> list[tuple[int, str]]:
    """(line, text) of each command line: continuations joined, here-documents left out.

    In a `console` block the lines after `$ ` are commands, all others are output.
    """
    found: list[tuple[int, str]] = []
    end_word = ""
    joining = False
    for number, raw in enumerate(fence.content.splitlines(), start=fence.line + 1):
        text = raw
        if end_word:
            end_word = "" if text.strip() == end_word else end_word
            continue
        if joining:
            start, before = found.pop()
            text = before + " " + text.lstrip().removeprefix("> ").lstrip()
            number = start
        elif fence.language == "console":
            if not text.startswith("$ "):
                continue
            text = text[2:]
        joining = text.endswith("\\")
        text = text[:-1].rstrip() if joining else text
        heredoc = _HEREDOC.search(text)
        if heredoc and not joining:
            end_word = heredoc[2]
            text = text[: heredoc.start()] + text[heredoc.end() :]
        if text.strip():
            found.append((number, text))
    return found


def split(text: str) -> list[list[str]]:
    """Words of each simple command of one line. ShellError on an unclosed quote."""
    lexer = shlex.shlex(_REDIRECT.sub(" \0", text), posix=True, punctuation_chars="|&;()")
    lexer.whitespace_split = True
    try:
        tokens = list(lexer)
    except ValueError as error:
        raise ShellError(str(error)) from None
    commands: list[list[str]] = [[]]
    for token in tokens:
        if set(token) <= _BREAKS:
            commands.append([])
        elif not token.startswith("\0"):
            commands[-1].append(token)
    return [words for words in commands if words]


def commands(fence: Fence) -> list[Command]:
    """Every simple command of a block. ShellError names the line in its text."""
    found = []
    for line, text in logical_lines(fence):
        try:
            simple = split(text)
        except ShellError as error:
            raise ShellError(f"line {line}: {error}: {text}") from None
        for words in simple:
            found.append(_command(line, words))
    return found


def _command(line: int, words: list[str]) -> Command:
    env: list[tuple[str, str]] = []
    at = 0
    while at < len(words):
        assignment = _ASSIGNMENT.fullmatch(words[at])
        if assignment:
            env.append((assignment[1], assignment[2]))
        elif words[at] not in _WRAPPERS:
            break
        at += 1
    return Command(line, tuple(env), tuple(words[at:]))
