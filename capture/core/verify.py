"""`python -m capture.core contract FILE...`: verifies training contract records.

Reads files of this trainer and of others, streaming. Files in one folder are one run: with all its
ranks, local values are checked against global ones; with some, the report says what it could not
check. Exit codes: 0 fine; 1 something is wrong; 2 bad usage or unreadable; 3 no record to inspect.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from . import contract, verifychecks
from .contract import FILE_NAME, TrainingRecord

SHOWN = 40
"""Problems printed; JSON output holds more of them."""

KEPT = 10_000
"""Problems, and unknown fields of a file, that a report holds; more are only counted."""

UNCHECKED_ALWAYS = (
    "seconds: only that they are not negative",
    "the size of the diagnostics' values: only that they fit together",
    "thirds beside each other: no record says which positions were active",
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong; line counts from 1, step and rank are None for unreadable lines."""

    file: str
    line: int
    step: int | None
    rank: int | None
    check: str
    detail: str

    def __str__(self) -> str:
        step = "" if self.step is None else f"step {self.step}: "
        return _printable(f"{self.file}:{self.line}: {step}{self.check}: {self.detail}")


@dataclass(slots=True)
class Report:
    """What a verification found."""

    files: list[str] = field(default_factory=list)
    records: int = 0
    steps: int = 0
    problems: list[Problem] = field(default_factory=list)
    further: int = 0  # problems that were only counted
    notes: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 fine, 1 wrong, 3 nothing inspected."""
        return 1 if self.problems else 0 if self.records else 3

    def add(self, problem: Problem) -> None:
        """Hold a problem, or count it when there are many."""
        if len(self.problems) < KEPT:
            self.problems.append(problem)
        else:
            self.further += 1

    def plain(self) -> dict:
        """For `--json`."""
        return {**asdict(self), "ok": self.exit_code == 0}


class _File:
    """Checks one file record by record and hands the records on."""

    def __init__(self, path: Path, report: Report) -> None:
        self.path, self.name, self.report = path, str(path), report
        self.rank: int | None = None
        self.world_size: int | None = None
        self.line = 0
        self.unreadable: set[int] = set()  # steps that stood on unreadable lines
        self.unsealed = 0
        self._known_notes: set[str] = set()

    def problem(self, line: int, record: TrainingRecord | None, check: str, detail: str) -> None:
        step, rank = (None, None) if record is None else (record.step, record.rank)
        self.report.add(Problem(self.name, line, step, rank, check, detail))

    def records(self) -> Iterator[TrainingRecord]:
        before: TrainingRecord | None = None
        bad = 0
        interval: int | None = None
        collection, oldest, oldest_before = -1, 0, 0
        for line in contract.read(self.path):
            self.line = line.number
            for note in line.notes:
                if note not in self._known_notes and len(self._known_notes) < KEPT:
                    self._known_notes.add(note)
                    self.report.notes.append(f"{self.name}:{line.number}: unknown field {note}")
            record = line.record
            if record is None:
                self.problem(line.number, None, line.check, line.problem or "unreadable")
                bad += 1
                self.unreadable.add((before.step if before else 0) + bad)
                continue
            self.report.records += 1
            self.unsealed += not line.sealed and not line.problem
            found = [(line.check, line.problem)] if line.problem else []
            found += verifychecks.record_checks(record)
            if before is None:
                self._first(line.number, record, bad)
            else:
                found += verifychecks.follow_checks(before, record, bad)
            if record.collection != collection:
                collection, oldest_before, oldest = record.collection, oldest, sys.maxsize
            oldest = min(oldest, record.versions.consumed)
            found += verifychecks.history_checks(record, oldest_before, interval)
            if record.diagnostics is not None:
                interval = record.diagnostics.interval
            for check, detail in found:
                self.problem(line.number, record, check, detail)
            before, bad = record, 0
            yield record

    def _first(self, number: int, record: TrainingRecord, bad: int) -> None:
        self.rank, self.world_size = record.rank, record.world_size
        named = FILE_NAME.fullmatch(self.path.name)
        if named and int(named[1]) != record.rank:
            self.problem(
                number, record, "rank", f"rank {record.rank} in the file of rank {named[1]}"
            )
        if record.step != bad + 1:
            self.report.not_checked.append(
                f"{self.name}: steps before {record.step}, where the file begins"
            )


def verify(paths: Sequence[Path]) -> Report:
    """Check files, each folder's as one run. Raises OSError for a file that cannot be read."""
    report = Report()
    folders: dict[Path, list[Path]] = {}
    for path in dict.fromkeys(paths):
        folders.setdefault(path.parent, []).append(path)
    for files in folders.values():
        _verify_run(files, report)
    if report.records:
        report.not_checked += UNCHECKED_ALWAYS
    return report


def _verify_run(paths: Sequence[Path], report: Report) -> None:
    files = [_File(path, report) for path in paths]
    report.files += [file.name for file in files]
    streams = [file.records() for file in files]
    heads = [next(stream, None) for stream in streams]
    ranks = [file.rank for file in files if file.rank is not None]
    size = max((file.world_size or 1 for file in files), default=1)
    twice = len(set(ranks)) < len(ranks)
    if twice:
        report.not_checked.append(
            f"{files[0].path.parent}: ranks against each other; two files are of one rank"
        )
    while any(head is not None for head in heads):
        step = min(head.step for head in heads if head is not None)
        now = [i for i, head in enumerate(heads) if head is not None and head.step == step]
        report.steps += 1
        if not twice:
            _compare(files, heads, now, size, report)
        for index in now:
            heads[index] = next(streams[index], None)
    missing = sorted(set(range(size)) - set(ranks))
    if ranks and missing and len(files) < size:
        shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        report.not_checked.append(
            f"{files[0].path.parent}: local counts and objectives against the global ones; rank"
            f"{'s' if len(missing) > 1 else ''} {shown} of {size} not given"
        )
    unsealed = sum(file.unsealed for file in files)
    if unsealed:
        report.not_checked.append(f"{files[0].path.parent}: digests; {unsealed} records carry none")


def _compare(
    files: Sequence[_File],
    heads: Sequence[TrainingRecord | None],
    now: Sequence[int],
    size: int,
    report: Report,
) -> None:
    """Compare the records of one step that are there, and name the files that lack it."""
    first = heads[now[0]]
    lacking = False
    for index, file in enumerate(files):
        if index in now:
            continue
        lacking = True
        if first.step in file.unreadable:
            report.not_checked.append(
                f"{file.name}: step {first.step} against other ranks; its line is unreadable"
            )
        else:
            file.problem(
                file.line,
                None,
                "ranks",
                f"no record of step {first.step}, which rank {first.rank} has",
            )
    for index in now[1:]:
        for check, detail in verifychecks.agreement_checks(first, heads[index]):
            files[index].problem(files[index].line, heads[index], check, detail)
    if not lacking and len(now) == size:
        for check, detail in verifychecks.all_ranks_checks([heads[index] for index in now]):
            files[now[0]].problem(files[now[0]].line, first, check, detail)


# -- command line --------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb `contract`."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="training_contract_rankN.jsonl (.gz, .xz), or a folder that holds them",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """Verify the files and print the report; returns the exit code."""
    paths: list[Path] = []
    for name in args.files:
        path = Path(name)
        if path.is_dir():
            inside = sorted(
                (part for part in path.iterdir() if FILE_NAME.fullmatch(part.name)),
                key=lambda part: int(FILE_NAME.fullmatch(part.name)[1]),
            )
            if not inside:
                print(f"{name}: no training_contract_rankN.jsonl in it", file=sys.stderr)
                return 3
            paths += inside
        elif not path.exists():
            print(f"{name}: no such file", file=sys.stderr)
            return 2
        else:
            paths.append(path)
    try:
        report = verify(paths)
    except OSError as error:
        print(f"{error.filename}: cannot be read: {error.strerror}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(report.plain(), indent=1))
    else:
        _print(report)
    if report.exit_code == 3:
        print(f"{', '.join(report.files)}: no record", file=sys.stderr)
    return report.exit_code


def _print(report: Report) -> None:
    for problem in report.problems[:SHOWN]:
        print(problem)
    count = len(report.problems) + report.further
    if count > SHOWN:
        print(f"... and {count - SHOWN} more; --json lists up to {KEPT}")
    for kind, texts in (("note", report.notes), ("not checked", report.not_checked)):
        for text in texts[:SHOWN]:
            print(_printable(f"{kind}: {text}"))
        if len(texts) > SHOWN:
            print(f"{kind}: ... and {len(texts) - SHOWN} more")
    print(
        f"{report.records} records of {report.steps} steps in {len(report.files)} files:"
        f" {'no problem' if not count else f'{count} problem' + 's' * (count > 1)}"
    )


def _printable(text: str) -> str:
    """One line without control characters: names in a file may hold anything."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def main(argv: Sequence[str] | None = None) -> int:
    """The verb by itself."""
    parser = argparse.ArgumentParser(
        prog="python -m capture.core contract",
        description="Verify training contract records.",
        epilog="exit codes: 0 fine; 1 something is wrong; 2 bad usage, or a file cannot be read;"
        " 3 no record to inspect",
    )
    add_arguments(parser)
    try:
        args = parser.parse_args(argv)
    except SystemExit as stop:  # argparse has printed
        return int(stop.code or 0)
    return run(args)


if __name__ == "__main__":
    sys.exit(main())
