"""Shell blocks of a page as simple commands with line numbers. Reads shell, never runs it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from scripts.chapters import Fence

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_REDIRECT = re.compile(r"\s\d?>&\d|\s&?\d?>>?\s*(?=\S)|\s<\s*(?=\S)")
_BREAKS = set("|&;()")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_BACKTICKS = re.compile(r"`([^`]*)`")
_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
# Words before a command, with the options of each that take a value.
_KEYWORDS = {"if", "then", "else", "elif", "while", "until", "do", "!", "{", "}", "done", "fi"}
_LISTS = {"for", "case", "select", "esac", "in", "function"}
_WRAPPERS: dict[str, tuple[str, ...]] = {
    "sudo": ("-u", "-g"),
    "time": (),
    "nohup": (),
    "env": ("-u", "-C"),
    "exec": (),
    "export": (),
    "command": (),
    "nice": ("-n",),
    "stdbuf": (),
    "watch": ("-n",),
    "timeout": ("-k", "-s", "--signal", "--kill-after"),
    "xargs": ("-n", "-I", "-P", "-d", "-L", "-a", "-s"),
}
_SHELLS = {"bash", "sh", "zsh", "dash"}


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
    """Words of each simple command of one line, those in back-ticks and $(...) too.

    ShellError on an unclosed quote.
    """
    inner: list[list[str]] = []
    unquoted = re.sub(r"'[^']*'", "''", text)
    for pattern in (_BACKTICKS, _SUBSTITUTION):
        for found in pattern.findall(unquoted):
            inner += split(found)
    if "`" in unquoted:
        text = _BACKTICKS.sub("VALUE", text)
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
    return [words for words in commands if words] + inner


def commands(fence: Fence) -> list[Command]:
    """Every simple command of a block. ShellError names the line in its text."""
    found = []
    for line, text in logical_lines(fence):
        try:
            for words in split(text):
                found += unwrapped(line, words)
        except ShellError as error:
            raise ShellError(f"line {line}: {error}: {text}") from None
    return found


def unwrapped(line: int, words: list[str]) -> list[Command]:
    """The command that these words run, without keywords and wrappers; several for `bash -c`."""
    env: list[tuple[str, str]] = []
    at = 0
    while at < len(words):
        word = words[at]
        assignment = _ASSIGNMENT.fullmatch(word)
        if word in _LISTS:
            return []
        if assignment:
            env.append((assignment[1], assignment[2]))
        elif word in _WRAPPERS:
            at = _after_options(words, at + 1, _WRAPPERS[word])
            if word == "timeout":
                at += 1  # its duration
            continue
        elif word not in _KEYWORDS:
            break
        at += 1
    rest = words[at:]
    if (
        len(rest) > 2
        and rest[0].rsplit("/", 1)[-1] in _SHELLS
        and re.fullmatch("-[a-z]*c", rest[1])
    ):
        inner = [command for part in split(rest[2]) for command in unwrapped(line, part)]
        return [Command(line, tuple(env), ()), *inner]
    return [Command(line, tuple(env), tuple(rest))]


def _after_options(words: list[str], at: int, with_value: tuple[str, ...]) -> int:
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in with_value else 1
    return at
