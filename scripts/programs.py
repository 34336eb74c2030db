"""The programs that commands of the pages are checked against, and their own argument parsers."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from scripts import milesflags
from scripts.tree import Tree

_TARGET = re.compile(r"^([A-Za-z][\w-]*)\s*:(?!=)", re.MULTILINE)


@dataclass
class Programs:
    """What commands are checked against; None where the program does not exist yet."""

    tree: Tree
    settings: frozenset[str] | None = None
    launcher: Any = None
    kit: Any = None
    targets: frozenset[str] = frozenset()
    flags: milesflags.Flags = field(default_factory=lambda: milesflags.Flags("", {}))

    @classmethod
    def of(cls, tree: Tree) -> Programs:
        """The programs of a repository."""
        found = cls(tree)
        folder = str(tree.root / "capture" / "gpu")
        if folder not in sys.path:
            sys.path.insert(0, folder)
        if tree.exists("capture/gpu/miles_grpo.py"):
            found.launcher = importlib.import_module("miles_grpo")
            found.settings = frozenset(s.name for s in found.launcher.SETTINGS)
        if tree.exists("capture/gpu/kit.py"):
            found.kit = importlib.import_module("kit")
        if tree.exists("Makefile"):
            found.targets = frozenset(_TARGET.findall(tree.text("Makefile")))
        if tree.exists(milesflags.FLAGS_FILE):
            found.flags = milesflags.read(tree.read(milesflags.FLAGS_FILE))
        if tree.exists(milesflags.HOOKS_FILE):
            found.flags = milesflags.with_hooks(found.flags, tree.read(milesflags.HOOKS_FILE))
        return found


class _Verb:
    """A verb of the kit as a program of its own: `build_parser` and a name."""

    def __init__(self, module: Any) -> None:
        self.module, self.__name__ = module, module.__name__

    def build_parser(self) -> argparse.ArgumentParser:
        """The parser with the verb's arguments."""
        parser = argparse.ArgumentParser(prog=f"{self.__name__}.py", allow_abbrev=False)
        self.module.add_arguments(parser)
        return parser


class _Captured(Exception):
    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


@lru_cache(maxsize=64)
def parser_of_main(name: str) -> argparse.ArgumentParser | None:
    """The parser that `python3 -m NAME` would use, None when it has none.

    Its `main` runs up to the first `parse_args` and no further.
    """
    module = importlib.import_module(name)

    def stop(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        raise _Captured(parser)

    if hasattr(module, "main"):
        run: Callable[[], Any] = lambda: module.main([])  # noqa: E731
    elif hasattr(module, "check"):
        cli = importlib.import_module("scripts.cli")
        run = lambda: cli.main(name, module.check, module.__doc__, [])  # noqa: E731
    else:
        return None
    real = argparse.ArgumentParser.parse_args
    argparse.ArgumentParser.parse_args = stop  # type: ignore[method-assign, assignment]
    try:
        run()
    except _Captured as captured:
        return captured.parser
    finally:
        argparse.ArgumentParser.parse_args = real  # type: ignore[method-assign]
    return None


def parser_problem(module: Any, words: list[str]) -> str | None:
    """What a module's own argument parser says against the words, or None."""
    make = getattr(module, "build_parser", None) or getattr(module, "argument_parser", None)
    if make is None and hasattr(module, "add_arguments"):  # a verb that runs on its own too
        return parser_problem(_Verb(module), words)
    if make is None:
        return f"{module.__name__} has no build_parser() to check it with"
    try:
        return said_against(make(), words)
    except (AttributeError, ImportError) as error:
        return f"the parser of {module.__name__} is broken: {error}"


def said_against(parser: argparse.ArgumentParser, words: list[str]) -> str | None:
    """The last line of a parser's error for these words, None when it takes them."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            parser.parse_args(words)
    except SystemExit as stop:
        if stop.code:
            return said.getvalue().strip().splitlines()[-1]
    return None


def help_text(module: Any, words: list[str]) -> str:
    """What a module prints for these words and --help; "" when it refuses them."""
    shown = io.StringIO()
    with (
        contextlib.suppress(SystemExit),
        contextlib.redirect_stdout(shown),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        module.build_parser().parse_args([*words, "--help"])
    return shown.getvalue()
