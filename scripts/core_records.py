"""Measurements of the OLMo-core trainer that are no run of it: storing and checking them.

A record is a folder `capture/gpu/out-LAB/NAME` with `record.toml` and packed JSON lines: a file of
an experiment (kind "experiment"), the rows of both sides of a comparison with their
`summary.json.xz` (kind "peer"), or other lines (kind "plain"). record.toml says when and how it was
made, what the machine was and how many lines each file has. The check reads every file again: an
experiment's first line must name the machine and the versions of record.toml; a comparison's
summary must follow from its rows; other lines are only read. A run of the trainer that stores its
contract records must have those that its log holds.

    python3 -m scripts.core_records store FILE... --lab h200-core --name NAME --draft DRAFT.toml

Exit codes: 0 stored, 2 bad usage or a file that does not hold.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import lzma
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from capture.core.errors import CoreRunError
from capture.core.peer import rows
from scripts import summaries
from scripts.report import Report
from scripts.tree import ROOT, Tree

STORE = "capture/gpu"
FILE = "record.toml"
SUMMARY = "summary.json"
KINDS = ("experiment", "peer", "plain")
SCHEMA = 1
FIELDS = {
    "record": ("lab", "name", "kind", "started", "command", "note"),
    "setup": ("model", "gpu", "gpus", "gpu_memory_mib", "driver", "versions", "shared",
              "clock_record", "not_stock"),
}  # fmt: skip
CONTRACT = "training_contract_rank0.jsonl.xz"
_CONTRACT_LINE = re.compile(r"actor_cell0_rank0\] .* - training_contract \d+: (\{.*\})$")
#: how an experiment's first line calls a package
NAMES = {"core": "ai2-olmo-core", "torch": "torch", "transformers": "transformers"}


class RecordError(Exception):
    """A record that does not hold; one line."""


def folders(tree: Tree) -> list[str]:
    """Folders of stored records, relative to the root."""
    found = {
        p.parent.relative_to(tree.root).as_posix()
        for p in tree.root.glob(f"{STORE}/out-*/*/{FILE}")
    }
    found |= {
        str(PurePosixPath(path).parent)
        for path in tree.overlay
        if path.startswith(f"{STORE}/out-") and path.endswith(f"/{FILE}")
    }
    return sorted(found)


def lines_of(data: bytes, name: str) -> list[dict[str, Any]]:
    """The objects of JSON lines. RecordError names file and line."""
    found = []
    for number, line in enumerate(data.decode("utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise RecordError(f"{name}:{number}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise RecordError(f"{name}:{number}: no object")
        found.append(row)
    if not found:
        raise RecordError(f"{name}: holds nothing")
    return found


def check_document(document: Mapping[str, Any], files: Mapping[str, bytes]) -> int:
    """Hold record.toml against its files (name without .xz -> content); the number of lines.

    RecordError for the first thing that is wrong.
    """
    if document.get("schema") != SCHEMA:
        raise RecordError(f"schema: {document.get('schema')!r}: not {SCHEMA}")
    for table, names in FIELDS.items():
        for name in names:
            if name not in document.get(table, {}):
                raise RecordError(f"{table}.{name}: missing")
    kind = document["record"]["kind"]
    if kind not in KINDS:
        raise RecordError(f"record.kind: {kind!r}: none of {', '.join(KINDS)}")
    counts = document.get("lines", {})
    tables = {name: data for name, data in files.items() if name != SUMMARY}
    if counts.keys() != tables.keys():
        raise RecordError(f"lines: names {sorted(counts)}, the folder has {sorted(tables)}")
    found = {name: lines_of(data, name) for name, data in tables.items()}
    for name, lines in found.items():
        if counts[name] != len(lines):
            raise RecordError(f"lines.{name}: {counts[name]}, the file has {len(lines)}")
    if kind == "experiment":
        for name, lines in found.items():
            _check_experiment(document, name, lines)
    elif kind == "peer":
        _check_peer(document, files, found)
    return sum(map(len, found.values()))


def _check_machine(document: Mapping[str, Any], name: str, said: Mapping[str, Any]) -> None:
    """said: `setup` field or package -> what the file says."""
    setup = document["setup"]
    for what, value in said.items():
        own = setup.get(what) if what in setup else setup["versions"].get(what)
        if value is not None and own != value:
            raise RecordError(f"{name}: {what} {value!r}, {FILE} {own!r}")


def _check_experiment(document: Mapping[str, Any], name: str, lines: list[dict[str, Any]]) -> None:
    head = lines[0]
    if not isinstance(head.get("experiment"), str) or not isinstance(head.get("environment"), dict):
        raise RecordError(f"{name}:1: does not name experiment and environment")
    made = head["environment"]
    versions = {package: made.get(key) for key, package in NAMES.items()}
    _check_machine(document, name, {"gpu": made.get("device"), **versions})
    for number, line in enumerate(lines[1:], start=2):
        if not isinstance(line.get("key"), dict) or not isinstance(line.get("values"), dict):
            raise RecordError(f"{name}:{number}: no key with values")


def _check_peer(
    document: Mapping[str, Any],
    files: Mapping[str, bytes],
    found: Mapping[str, list[dict[str, Any]]],
) -> None:
    if SUMMARY not in files:
        raise RecordError(f"{SUMMARY}: missing")
    summary = json.loads(files[SUMMARY])
    entries = {entry["file"]: entry for entry in summary["runs"]}
    if not found.keys() <= entries.keys():
        raise RecordError(f"{SUMMARY}: does not name {sorted(found.keys() - entries.keys())[0]}")
    for name, lines in found.items():
        entry, setup = entries[name], lines[0]
        versions = {key: setup.get(key) for key in ("torch", "transformers", "trl")}
        _check_machine(document, name, {"gpu": setup.get("gpu"), **versions})
        if setup.get("configuration") != entry["configuration"]:
            raise RecordError(f"{name}: is of configuration {setup.get('configuration')!r}")
        warmup = 1 if entry["phase"] == "try" else summary["warmup_steps"]
        try:
            computed = rows.summary(lines, warmup)
        except CoreRunError as error:
            if "problem" not in entry:
                raise RecordError(f"{name}: {error}") from None
            continue
        for key, value in computed.items():
            if entry.get(key) != value:
                raise RecordError(
                    f"{SUMMARY}: {name}: {key} {entry.get(key)!r}, its rows {value!r}"
                )
    again = rows.compared(summary["runs"], summary["warmup_steps"])
    sides = {  # an older program said less about a side; what it said must follow
        name: {key: value for key, value in side.items() if key in summary["sides"].get(name, side)}
        for name, side in again["sides"].items()
    }
    if sides != summary["sides"]:
        raise RecordError(f"{SUMMARY}: sides does not follow from its runs")
    if again["times_as_many_samples"] != summary["times_as_many_samples"]:
        raise RecordError(f"{SUMMARY}: times_as_many_samples does not follow from its runs")


def read(tree: Tree, folder: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """(record.toml, files by name without .xz) of a record. RecordError, OSError."""
    document = tomllib.loads(tree.read(f"{folder}/{FILE}").decode("utf-8"))
    names = [*document.get("lines", {})]
    names += [SUMMARY] if document.get("record", {}).get("kind") == "peer" else []
    try:
        return document, {n: lzma.decompress(tree.read(f"{folder}/{n}.xz")) for n in names}
    except lzma.LZMAError as error:
        raise RecordError(f"a file cannot be unpacked: {error}") from None


def check(tree: Tree) -> Report:
    """Hold every record against its files and against its lab."""
    report = Report()
    for folder in folders(tree):
        path = f"{folder}/{FILE}"
        try:
            document, files = read(tree, folder)
            report.count("lines of records", check_document(document, files))
            lab = tomllib.loads(
                tree.read(f"{PurePosixPath(folder).parent}/lab.toml").decode("utf-8")
            )
            _check_lab(document, folder, lab)
        except (RecordError, OSError, ValueError, KeyError, TypeError) as error:
            text = str(error) if isinstance(error, RecordError) else f"cannot be read: {error!r}"
            report.error(path, 1, text)
            continue
        report.count("measurements")
    check_contracts(tree, report)
    return report


def check_contracts(tree: Tree, report: Report) -> None:
    """Stored contract records of runs are those in the runs' logs, line by line."""
    for folder in summaries.run_folders(tree):
        path = f"{folder}/{CONTRACT}"
        if not tree.exists(path):
            continue
        try:
            own = lzma.decompress(tree.read(path)).decode("utf-8").splitlines()
            log = lzma.decompress(tree.read(f"{folder}/run.log.xz")).decode("utf-8").splitlines()
        except (OSError, ValueError, lzma.LZMAError) as error:
            report.error(path, 1, f"cannot be read: {error}")
            continue
        said = [match[1] for line in log if (match := _CONTRACT_LINE.search(line))]
        for number, (one, other) in enumerate(itertools.zip_longest(own, said), start=1):
            if one != other:
                report.error(path, number, "is not the record that run.log holds")
                break
        report.count("contract records", len(own))


def _check_lab(document: Mapping[str, Any], folder: str, lab: Mapping[str, Any]) -> None:
    place = PurePosixPath(folder)
    own, setup = document["record"], document["setup"]
    for field, value in (("lab", place.parent.name.removeprefix("out-")), ("name", place.name)):
        if own[field] != value:
            raise RecordError(f"record.{field}: {own[field]!r}, its folder says {value!r}")
    for field in ("gpu", "gpus", "gpu_memory_mib", "driver"):
        if lab.get("machine", {}).get(field) != setup[field]:
            said = lab.get("machine", {}).get(field)
            raise RecordError(f"setup.{field}: {setup[field]!r}, lab.toml says {said!r}")
    versions = lab.get("software", {}).get("versions", {})
    for package, version in setup["versions"].items():
        if versions.get(package) != version.partition("+")[0]:
            said = versions.get(package)
            raise RecordError(f"setup.versions.{package}: {version}, lab.toml says {said}")


def store(files: Iterable[Path], lab: Path, name: str, draft: Mapping[str, Any]) -> Path:
    """Put files into the lab as a record, whole or not at all. RecordError, OSError."""
    from mileskit.common import tomlio
    from mileskit.evidence import checksums, scrub

    place = lab / name
    if place.exists():
        raise RecordError(f"{place}: exists already; a stored record is never changed")
    if not (lab / "lab.toml").is_file():
        raise RecordError(f"{lab}: has no lab.toml")
    content: dict[str, bytes] = {}
    for file in files:
        with file.open("rb") as stream, io.BytesIO() as out:
            scrub.scrub(stream, out, [])
            content[file.name] = out.getvalue()
    document = {
        "schema": SCHEMA,
        "record": {**draft.get("record", {}), "lab": lab.name.removeprefix("out-"), "name": name},
        "setup": draft.get("setup", {}),
        "lines": {n: len(lines_of(d, n)) for n, d in content.items() if n != SUMMARY},
    }
    check_document(document, content)
    building = Path(tempfile.mkdtemp(prefix=f".store-{name}-", dir=lab))
    try:
        for file_name, data in content.items():
            packed = lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
            (building / f"{file_name}.xz").write_bytes(packed)
        (building / FILE).write_text(tomlio.dumps(document), encoding="utf-8")
        building.chmod(0o755)
        building.rename(place)
        checksums.add(lab.parent, [place])
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return place


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python3 -m scripts.core_records",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("verb", choices=("store",))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--lab", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--draft", required=True, type=Path, help="[record] and [setup] in TOML")
    parser.add_argument("--root", type=Path, default=ROOT / STORE, help="folder that holds out-LAB")
    given = parser.parse_args(argv)
    sys.path.insert(0, str(ROOT / STORE))
    try:
        draft = tomllib.loads(given.draft.read_text("utf-8"))
        place = store(given.files, given.root / f"out-{given.lab}", given.name, draft)
    except (RecordError, OSError, ValueError) as error:
        print(f"core_records: {error}", file=sys.stderr)
        return 2
    print(f"{place}: stored")
    return 0


if __name__ == "__main__":
    sys.exit(main())
