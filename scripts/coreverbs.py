"""`python -m capture.core VERB`, the trainer's own program, for the checks of commands and outputs.

Its verbs parse their arguments before they load torch, and some of them never load it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from scripts.programs import said_against

COMMAND = re.compile(r"(?:\.venv-core/bin/)?python3? -m capture\.core (?P<verb>[a-z-]+)\b")
WITHOUT_TORCH = ("config", "support", "contract", "verify-checkpoint")


class _Captured(Exception):
    """Carries the parser of a verb out of it."""


@lru_cache(maxsize=16)
def parser_of(verb: str) -> argparse.ArgumentParser | None:
    """The parser that a verb uses, None when there is no such verb."""
    from capture.core import cli

    if verb not in cli.VERBS:
        return None

    def stop(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        raise _Captured(parser)

    real = argparse.ArgumentParser.parse_args
    argparse.ArgumentParser.parse_args = stop  # type: ignore[method-assign, assignment]
    try:
        cli.VERBS[verb][0]([])
    except _Captured as captured:
        return captured.args[0]
    finally:
        argparse.ArgumentParser.parse_args = real  # type: ignore[method-assign]
    return None


def problem(words: Sequence[str]) -> str | None:
    """What is wrong with the words after `python -m capture.core`, or None."""
    if words[0] in ("-h", "--help"):
        return None
    parser = parser_of(words[0])
    if parser is None:
        return f"capture.core has no verb {words[0]!r}"
    return said_against(parser, list(words[1:]))


def runs_here(command: str) -> bool:
    """True for a command whose verb needs neither torch nor OLMo-core."""
    match = COMMAND.match(command)
    return bool(match) and (
        match["verb"] in WITHOUT_TORCH or (match["verb"] == "run" and "--dry-run" in command)
    )
