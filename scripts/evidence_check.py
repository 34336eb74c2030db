"""Holds the stored evidence against its list of checksums, and each record against its log.

`capture/gpu/EVIDENCE.sha256` lists every stored file but the computed summaries. A file that
changed, is missing or is not listed is an error. Then every run.toml is derived again from its log
and from lab.toml (scripts/evidence_records.py), and every record.toml held against its files
(scripts/core_records.py).

`--write` makes the list anew from the files that are there; `store` adds what it stores by itself.
Exit codes: 0 fine, 1 something is wrong, 2 bad usage, 3 inspected nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from scripts import core_records, evidence_records
from scripts.report import Report
from scripts.tree import ROOT, Tree, tracked_files

FOLDER = "capture/gpu"


def _kit(root: Path) -> None:
    folder = str(root / FOLDER)
    if folder not in sys.path:
        sys.path.insert(0, folder)


def evidence_files(tree: Tree) -> set[str]:
    """Paths of all evidence, relative to the folder of the list."""
    from mileskit.evidence import checksums

    start = f"{FOLDER}/"
    names = {*tracked_files(tree.root), *tree.overlay}
    found = {name[len(start) :] for name in names if name.startswith(start)}
    return {name for name in found if checksums.is_evidence(name)}


def check_list(tree: Tree, report: Report) -> None:
    """Compare the files with the list."""
    from mileskit.evidence import checksums

    place = f"{FOLDER}/{checksums.NAME}"
    files = evidence_files(tree)
    if not files:
        return
    try:
        text = tree.read(place).decode("utf-8")
        listed = checksums.parse(text)
    except (OSError, ValueError) as error:
        report.error(place, 1, f"cannot be read: {error}")
        return
    for number, path in enumerate(listed, start=1):
        if path not in files:
            report.error(place, number, f"{path} is listed and not there")
        elif checksums.checksum(tree.read(f"{FOLDER}/{path}")) != listed[path]:
            report.error(place, number, f"{path} changed since it was listed")
        else:
            report.count("checksums")
    for path in sorted(files - listed.keys()):
        report.error(f"{FOLDER}/{path}", 0, f"is not listed in {checksums.NAME}")
    if text != checksums.render(listed):
        report.error(place, 1, "is not sorted by path, or lacks its last newline")


def check(root: Path = ROOT, overlay: Mapping[str, bytes] | None = None) -> Report:
    """Check the list of checksums and the records at `root`."""
    _kit(root)
    tree = Tree(root, overlay or {})
    report = Report()
    check_list(tree, report)
    report.merge(evidence_records.check(tree))
    report.merge(core_records.check(tree))
    report.unchecked.append(
        "truth of the evidence: a checksum shows that a file changed after it was listed, "
        "not that it was right then"
    )
    return report


def write(root: Path = ROOT) -> int:
    """Make the list anew; the number of files in it."""
    _kit(root)
    from mileskit.evidence import checksums

    folder = root / FOLDER
    listed = {
        path: checksums.checksum((folder / path).read_bytes())
        for path in evidence_files(Tree(root))
    }
    checksums.write(folder / checksums.NAME, listed)
    return len(listed)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python3 -m scripts.evidence_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--write", action="store_true", help="make the list of checksums anew")
    if parser.parse_args(argv).write:
        print(f"{write()} files listed")
        return 0
    report = check()
    print(*report.problems, sep="\n", end="\n" if report.problems else "")
    print("evidence: " + ", ".join(f"{number} {what}" for what, number in report.counts.items()))
    if report.problems:
        return 1
    return 0 if any(report.counts.values()) else 3


if __name__ == "__main__":
    sys.exit(main())
