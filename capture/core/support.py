"""The support matrix: evaluates a run's settings, and prints the table of the manual.

`evaluate` is called when settings are read and when the actor is built; it looks at no weights and
loads neither torch nor OLMo-core.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from . import modelfacts, standins
from .config import RunConfig
from .errors import RefusedError
from .modelfacts import ModelFacts
from .supportexact import REFUSED_EXACT
from .supportother import ACCEPTED, NOT_COVERED, REFUSED_ELSEWHERE
from .supportrows import REFUSED_BY_SETTINGS as _REFUSED
from .supportrows import Row

REFUSED_BY_SETTINGS: tuple[Row, ...] = (*_REFUSED, *REFUSED_EXACT)
ROWS: tuple[Row, ...] = (*ACCEPTED, *REFUSED_BY_SETTINGS, *REFUSED_ELSEWHERE, *NOT_COVERED)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that refuses a run, and the settings that it refuses."""

    row: Row
    found: str

    def __str__(self) -> str:
        return f"{self.found}: {self.row.reason}"


def refusals(config: RunConfig, facts: ModelFacts | None = None) -> list[Refusal]:
    """Every row that refuses these settings, in the order of the table."""
    facts = modelfacts.of(config) if facts is None else facts
    found = []
    for row in REFUSED_BY_SETTINGS:
        if row.when and (text := row.when(config, facts)) is not None:
            found.append(Refusal(row, text))
    return found


def evaluate(config: RunConfig, facts: ModelFacts | None = None) -> None:
    """Raise RefusedError for the first row that refuses these settings, counting the others.

    `facts` are those of the model's folder unless given. ConfigError where that is unreadable.
    """
    found = refusals(config, facts)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise RefusedError(f"{found[0]}{more}", found[0].row.id)


def markdown(rows: Sequence[Row] = ROWS) -> str:
    """The matrix as the manual's Markdown table."""
    lines = ["| what | state | why | where the page says it |", "| --- | --- | --- | --- |"]
    for row in rows:
        cells = (code(row.what), row.state.replace("-", " "), code(row.reason), row.seed or "ours")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    """A cell, with names of fields in back-ticks."""
    return re.sub(r"\b[a-z]+(?:_[a-z0-9]+)+\b|\b(?:core|miles)\.\w+\b", r"`\g<0>`", text)


def records(rows: Sequence[Row] = ROWS) -> list[dict[str, str]]:
    """The rows as plain data: id, what, state, reason, seed."""
    names = ("id", "what", "state", "reason", "seed")
    return [{name: getattr(row, name) for name in names} for row in rows]


def main(argv: Sequence[str]) -> int:
    """`support [FILE]`: the matrix, or what it says about a run file."""
    parser = argparse.ArgumentParser(
        prog="python -m capture.core support",
        description="The support matrix, or every row of it that refuses a run file.",
        epilog="Exit codes: 0 fine, 1 a row refuses the file, 2 bad usage or an unreadable file.",
    )
    parser.add_argument("file", nargs="?", help="a run file; without one, the whole matrix")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON")
    form.add_argument("--markdown", action="store_true", help="as the manual's table")
    arguments = parser.parse_args(argv)
    if arguments.file:
        return _one_file(arguments.file, arguments.json)
    if arguments.json:
        print(json.dumps(records(), indent=1))
    elif arguments.markdown:
        print(markdown(), end="")
    else:
        _print_plain()
    return 0


def _one_file(name: str, as_json: bool) -> int:
    from .configfile import read

    config = read(name)
    found = refusals(config)
    if as_json:
        print(json.dumps([{"id": item.row.id, "found": str(item)} for item in found], indent=1))
    else:
        for item in found:
            print(f"{name}: refused ({item.row.id}): {item}")
        if not found:
            how = standins.label_of(config)
            print(f"{name}: accepted; {len(REFUSED_BY_SETTINGS)} rows looked at")
            if how:
                print(f"{name}: {how}")
    return 1 if found else 0


def _print_plain() -> None:
    width = max(len(row.id) for row in ROWS)
    for row in ROWS:
        reason = f": {row.reason}" if row.reason else ""
        print(f"{row.state:<11} {row.id:<{width}}  {row.what}{reason}")
    counts = Counter(row.state for row in ROWS)
    print(", ".join(f"{number} {state}" for state, number in counts.items()), file=sys.stderr)
