"""JSON lines of an experiment: one measurement a line, appended as soon as it is known.

Standard library only. The first line names experiment, settings and environment. A file that is
there already with the same settings is gone on with: what it holds is not measured again. A line
that a killed process cut off is removed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError

SCHEMA = 1


class Lines:
    """The file of one experiment, open for appending.

    ConfigError when the file is of another experiment, of other settings, or no such file.
    quiet: no progress on stderr.
    """

    def __init__(
        self,
        path: Path | str,
        experiment: str,
        settings: Mapping[str, Any],
        environment: Mapping[str, Any],
        *,
        quiet: bool = False,
    ) -> None:
        self.path, self.quiet = Path(path), quiet
        self._started = time.perf_counter()
        head = {"schema": SCHEMA, "experiment": experiment, "settings": dict(settings)}
        found = _whole_lines(self.path)
        self._done: dict[str, dict[str, Any]] = {}
        if found:
            own = {key: found[0].get(key) for key in head}
            if own != json.loads(json.dumps(head)):
                raise ConfigError(f"{self.path}: holds {own}, not {head}; name another file")
            self._done = {_key(line["key"]): line["values"] for line in found[1:]}
        else:
            self._append({**head, "environment": dict(environment)})

    def has(self, **key: Any) -> bool:
        """Whether this measurement is in the file."""
        return _key(key) in self._done

    def add(self, values: Mapping[str, Any], **key: Any) -> None:
        """Write a measurement, unless the file has it. Numbers must be finite."""
        if self.has(**key):
            return
        self._append({"key": key, "values": dict(values)})
        self._done[_key(key)] = dict(values)
        if not self.quiet:
            seconds = time.perf_counter() - self._started
            shown = ", ".join(f"{name} {value}" for name, value in key.items())
            first = ", ".join(
                f"{name} {value:.4g}" for name, value in values.items() if isinstance(value, float)
            )
            print(f"[{seconds:6.1f} s] {shown}: {first[:160]}", file=sys.stderr, flush=True)

    def _append(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, allow_nan=False) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


def read(path: Path | str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(first line, measurements) of a file. ConfigError where it is none."""
    found = _whole_lines(Path(path))
    if not found:
        raise ConfigError(f"{path}: holds no experiment")
    return found[0], found[1:]


def table(lines: list[dict[str, Any]], name: str) -> list[str]:
    """One line for each key: the mean over seeds of a value, its least and its greatest."""
    rows = []
    for key, values in spread(lines, name, "seed"):
        shown = " ".join(str(value) for value in key.values())
        mean = sum(values) / len(values)
        rows.append(
            f"{shown:<32} {mean:.4g}  {min(values):.4g} to {max(values):.4g}, {len(values)} seeds"
        )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m capture.core.experiments.lines FILE`: a value of every measurement, over seeds."""
    parser = argparse.ArgumentParser(
        prog="python -m capture.core.experiments.lines",
        description="Show a value of an experiment's file: mean over seeds, least and greatest.",
        epilog="Exit codes: 0 shown, 2 no such file or value.",
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--value", default="mean_abs", help="its name, such as seconds")
    given = parser.parse_args(argv)
    try:
        rows = table(read(given.file)[1], given.value)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if not rows:
        print(f"{given.file}: no measurement has {given.value}", file=sys.stderr)
        return 2
    print("\n".join(rows))
    return 0


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; a last one without its end is cut off the file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    whole = data[: data.rfind(b"\n") + 1]
    try:
        found = [json.loads(line) for line in whole.splitlines()]
        if any(not isinstance(line, dict) for line in found):
            raise ValueError("a line is no object")
        if found and (found[0].get("schema") != SCHEMA or any("key" not in o for o in found[1:])):
            raise ValueError("not the lines of an experiment")
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    if whole != data:
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return found


def _key(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


def spread(lines: list[dict[str, Any]], name: str, over: str) -> Iterator[tuple[dict, list[float]]]:
    """For each key without `over`, the values of `name` over all of its `over`, in file order."""
    groups: dict[str, list[float]] = {}
    for line in lines:
        if over in line["key"] and name in line["values"]:
            rest = {key: value for key, value in line["key"].items() if key != over}
            groups.setdefault(_key(rest), []).append(line["values"][name])
    for rest, values in groups.items():
        yield json.loads(rest), values


if __name__ == "__main__":
    sys.exit(main())
