"""Derives what each run.toml says a second time, from the log, the samples and the lab's record.

For every stored run: the fields that its log states (through the kit's own reader of headers and
commands), how it ended, the columns that its numbers show to be wrong, the clock record's span,
and the fields that no log states, which lab.toml says once for all runs. Runs of one lab that
overlap in time must say that they shared the GPU.
"""

from __future__ import annotations

import io
import itertools
import json
import lzma
import re
import statistics
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from scripts import summaries
from scripts.report import Report
from scripts.tree import Tree

MOST_MISSED = 3  # samples in a row that a clock record may lack


def line_of(text: str, place: str) -> int:
    """1-based line of `table.field` in a TOML text; of the table, or 1, where it is not there."""
    table, _, name = place.partition(".")
    found, inside = 1, False
    for number, line in enumerate(text.split("\n"), start=1):
        if line.startswith("["):
            inside = line.strip().strip("[]") == table
            found = number if inside else found
        elif inside and re.match(rf"{re.escape(name)}\s*=", line):
            return number
    return found


@dataclass
class Record:
    """One stored run: its folder, run.toml as text and data, its log and the log's summary."""

    folder: str
    text: str
    toml: dict[str, Any]
    log: bytes
    summary: dict[str, Any]

    @property
    def path(self) -> str:
        """run.toml, relative to the root."""
        return f"{self.folder}/run.toml"

    @property
    def name(self) -> str:
        """Name of the run, from its folder."""
        return PurePosixPath(self.folder).name

    @property
    def span(self) -> tuple[float, float]:
        """First and last time of the log, seconds since 1970."""
        return moment(self.summary["first_time"]), moment(self.summary["last_time"])

    def get(self, place: str, default: Any = None) -> Any:
        """A `table.field`."""
        table, _, name = place.partition(".")
        return self.toml.get(table, {}).get(name, default)

    def error(self, report: Report, place: str, text: str) -> None:
        """Record an error at the line of a `table.field`."""
        report.error(self.path, line_of(self.text, place), f"{place}: {text}")


def moment(text: str) -> float:
    """Seconds since 1970 of an ISO time in UTC."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def load(tree: Tree, folder: str, report: Report) -> Record | None:
    """Read one run; None after an error."""
    path = f"{folder}/run.toml"
    try:
        text = tree.read(path).decode("utf-8")
        toml = tomllib.loads(text)
        log = summaries.unpacked(tree.read(f"{folder}/run.log.xz"))
        guard = f"{folder}/heat-guard.log"
        pauses = tree.read(guard) if tree.exists(guard) else None
        built = json.loads(summaries.recomputed(log, pauses)[0])
        (summary,) = built["runs"]
    except (OSError, ValueError, KeyError, lzma.LZMAError) as error:
        report.error(path, 1, f"cannot be held against its log: {type(error).__name__}: {error}")
        return None
    return Record(folder, text, toml, log, summary)


@lru_cache(maxsize=32)
def log_lines(log: bytes) -> list[str]:
    """Lines of an unpacked log, split once; nobody changes them."""
    return log.decode("utf-8", "replace").split("\n")


def check_stated(record: Record, lab: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Fields that the log states. Returns what it states."""
    from mileskit.evidence import runinfo

    said = runinfo.header(log_lines(record.log))
    recipe = lab.get("recipe", {}).get("command", "")
    command = record.get("run.command", "")
    try:
        expected = runinfo.stated(said, command, recipe)
    except runinfo.RunInfoError as error:
        record.error(report, "run.command", str(error))
        return said
    for place, text in runinfo.contradictions(record.toml, expected):
        record.error(report, place, text)
    report.count("fields that logs state", sum(len(fields) for fields in expected.values()))
    own_lab = PurePosixPath(record.folder).parent.name.removeprefix("out-")
    for place, value in (("run.lab", own_lab), ("run.name", record.name)):
        if record.get(place) != value:
            record.error(report, place, f"is {record.get(place)!r}, its folder says {value!r}")
    return expected


def check_ended(record: Record, report: Report) -> None:
    """[ended] as the summary of the log gives it; the verdict word is nobody's but the record's."""
    from mileskit.evidence import runinfo

    own = record.toml.get("ended", {})
    expected = runinfo.ended(
        record.summary, {"verdict": "", **own}, record.get("run.num_rollout", 0)
    )
    for name in sorted(expected.keys() | own.keys()):
        if expected.get(name) != own.get(name):
            text = f"the log gives {expected.get(name)!r}, the record {own.get(name)!r}"
            record.error(report, f"ended.{name}", text)
    report.count("fields that logs state", len(expected))


def check_unusable(record: Record, report: Report) -> None:
    """Columns that the log's own numbers show to be wrong, and rows for columns that are there."""
    from mileskit.summary import wrongcolumns

    rows = {row.get("column"): row for row in record.toml.get("unusable", [])}
    wrong = wrongcolumns.wrong_reference(record.toml.get("settings", {}), record.summary)
    for column, why in wrong.items():
        if column not in rows:
            record.error(report, "unusable.column", f"{column} is not listed: {why}")
    columns = record.summary["rollouts"]["columns"].keys() | record.summary["steps"]["columns"]
    for column, row in rows.items():
        if column not in columns:
            record.error(report, "unusable.column", f"{column}: the log has no such column")
        if not row.get("reason"):
            record.error(report, "unusable.reason", f"{column}: no reason is given")
    report.count("unusable columns", len(rows))


def check_clock(tree: Tree, record: Record, report: Report) -> None:
    """A clock record is there, and its samples cover the run from start to end."""
    from mileskit.heat import gpureplay

    named, place = record.get("setup.clock_record", ""), "setup.clock_record"
    if not named:
        return
    parts: list[str] = []
    for part in (*PurePosixPath(record.folder).parts, *PurePosixPath(named).parts):
        parts = parts[:-1] if part == ".." else [*parts, part]
    path = "/".join(parts)
    try:
        text = tree.read(path).decode("utf-8")
        times = [reading.time for reading in gpureplay.read_readings(io.StringIO(text), path)]
    except (OSError, ValueError) as error:
        record.error(report, place, f"{named} cannot be read: {error}")
        return
    if len(times) < 2:
        record.error(report, place, f"{named} holds {len(times)} samples")
        return
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    usual = statistics.median(gaps)
    start, end = record.span
    if times[0] > start + usual or times[-1] < end - usual:
        text = f"{named} covers {_utc(times[0])} to {_utc(times[-1])}"
        record.error(report, place, f"{text}, the run lasts from {_utc(start)} to {_utc(end)}")
    for earlier, gap in zip(times, gaps, strict=False):
        if gap > MOST_MISSED * usual and start - gap < earlier < end:
            record.error(report, place, f"{named} has no sample for {gap:.0f} s at {_utc(earlier)}")
    report.count("clock records")


def _utc(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def lab_setup(lab: Mapping[str, Any], name: str) -> dict[str, Any]:
    """[setup] of a lab.toml with the changes that it states for one run."""
    setup = dict(lab.get("setup", {}))
    for other in lab.get("other_setup", []):
        if name in other.get("runs", []):
            setup |= other.get("set", {})
            for field, items in other.get("drop", {}).items():
                setup[field] = [item for item in setup[field] if item not in items]
            for field, items in other.get("add", {}).items():
                setup[field] = [*setup.get(field, []), *items]
    return setup


def check_lab_setup(
    record: Record, lab: Mapping[str, Any], stated: Mapping[str, Any], report: Report
) -> None:
    """What no log states is what lab.toml states; [setup] has no field that neither states."""
    expected = lab_setup(lab, record.name)
    said = stated.get("setup", {})
    own = record.toml.get("setup", {})
    for field in sorted((expected.keys() | own.keys()) - said.keys()):
        if field not in expected:
            record.error(report, f"setup.{field}", "neither the log nor lab.toml states it")
        elif own.get(field) != expected[field]:
            text = f"lab.toml says {expected[field]!r}, the record {own.get(field)!r}"
            record.error(report, f"setup.{field}", text)
        report.count("fields that lab.toml states")
    masked = [row for row in record.toml.get("masked", []) if row.get("by") == "capture"]
    if masked != lab.get("masked", []):
        record.error(report, "masked.what", 'the rows by "capture" are not those of lab.toml')


def check_machine(path: str, text: str, lab: Mapping[str, Any], record: Record, report: Report):
    """[machine] and [software] of lab.toml are what the run's record says."""
    setup = record.toml.get("setup", {})
    for table, names in (
        ("machine", ("gpu", "gpus", "gpu_memory_mib", "driver", "container")),
        ("software", ("miles_commit", "miles_date")),
    ):
        for name in names:
            if lab.get(table, {}).get(name) != setup.get(name):
                found = f"{lab.get(table, {}).get(name)!r}, run {record.name} {setup.get(name)!r}"
                report.error(path, line_of(text, f"{table}.{name}"), f"{table}.{name}: {found}")
    versions = lab.get("software", {}).get("versions", {})
    for package, version in setup.get("versions", {}).items():
        if versions.get(package) != version.partition("+")[0]:
            line = line_of(text, "software.versions")
            found = f"{package} {versions.get(package)}, run {record.name} {version}"
            report.error(path, line, f"software.versions: {found}")


def check_lists(path: str, text: str, lab: Mapping[str, Any], tree: Tree, runs, report: Report):
    """The runs that lab.toml names exist, and have the answers and samples that it says."""
    known = {record.name for record in runs}
    folder = PurePosixPath(path).parent
    for table in ("other_setup", "fault", "answers", "samples"):
        rows = lab.get(table, [])
        for row in rows if isinstance(rows, list) else [rows]:
            for name in sorted(set(row.get("runs", [])) - known):
                report.error(path, line_of(text, f"{table}.runs"), f"{table}: no run {name!r}")
            if table == "other_setup" and not row.get("reason"):
                where = line_of(text, f"{table}.runs")
                report.error(path, where, f"{table} of {row.get('runs')}: no reason is given")
    answers = lab.get("answers")
    if answers:
        have = {n for n in known if tree.exists(f"{folder}/{n}/{answers['file']}")}
        if have != set(answers["runs"]):
            report.error(
                path, line_of(text, "answers.runs"), f"answers are stored of {sorted(have)}"
            )
    samples = lab.get("samples")
    if samples:
        use = {r.name for r in runs if r.get("setup.clock_record") == f"../{samples['file']}"}
        if use != set(samples["runs"]):
            report.error(path, line_of(text, "samples.runs"), f"samples are used by {sorted(use)}")


def check_overlaps(runs: list[Record], lab: Mapping[str, Any], report: Report) -> None:
    """Two runs of a one-GPU lab at one time shared the GPU, and each names the other."""
    if lab.get("machine", {}).get("gpus") != 1:
        return
    for one in runs:
        for other in runs:
            (a, b), (c, d) = one.span, other.span
            if one is other or a >= d or c >= b:
                continue
            if not one.get("setup.shared", True):
                one.error(report, "setup.shared", f"false, but {other.name} ran at the same time")
            elif other.name not in one.get("setup.shared_with", []):
                one.error(report, "setup.shared_with", f"{other.name} ran at the same time")


def check(tree: Tree) -> Report:
    """Hold every run.toml against its log and every lab.toml against its runs."""
    folder = str(tree.root / "capture" / "gpu")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    report = Report()
    labs: dict[str, list[Record]] = {}
    for run in summaries.run_folders(tree):
        record = load(tree, run, report)
        if record is not None:
            labs.setdefault(str(PurePosixPath(run).parent), []).append(record)
            report.count("records")
    for place, runs in sorted(labs.items()):
        path = f"{place}/lab.toml"
        try:
            text = tree.read(path).decode("utf-8")
            lab = tomllib.loads(text)
        except (OSError, ValueError) as error:
            report.error(path, 1, f"cannot be read: {error}")
            continue
        for record in runs:
            stated = check_stated(record, lab, report)
            check_ended(record, report)
            check_unusable(record, report)
            check_clock(tree, record, report)
            check_lab_setup(record, lab, stated, report)
            check_machine(path, text, lab, record, report)
        check_lists(path, text, lab, tree, runs, report)
        check_overlaps(runs, lab, report)
    return report
