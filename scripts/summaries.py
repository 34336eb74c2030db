"""Rebuilds every stored summary from its raw log and compares the bytes.

`python3 -m scripts.summaries` prints the problems. Exit codes: 0 fine, 1 something is wrong,
2 bad usage, 3 inspected nothing.
"""

from __future__ import annotations

import io
import lzma
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from scripts.report import Report
from scripts.tree import ROOT, Tree

_RUN = re.compile(r"(capture/gpu/out-[\w.-]+/[\w.-]+)/run\.toml")
SHOWN = 5  # differences that are printed for one run


def run_folders(tree: Tree) -> list[str]:
    """Folders of stored runs, relative to the root, sorted."""
    found = {
        path.parent.relative_to(tree.root).as_posix()
        for path in tree.root.glob("capture/gpu/out-*/*/run.toml")
    }
    found |= {match[1] for path in tree.overlay if (match := _RUN.fullmatch(path))}
    return sorted(found)


def first_difference(stored: bytes, computed: bytes) -> int:
    """1-based line of `stored` at which the two part."""
    pairs = zip(stored.split(b"\n"), computed.split(b"\n"), strict=False)
    for number, (one, other) in enumerate(pairs, start=1):
        if one != other:
            return number
    return min(stored.count(b"\n"), computed.count(b"\n")) + 1


@lru_cache(maxsize=32)
def unpacked(log: bytes) -> bytes:
    """The text of a packed log. lzma.LZMAError when it is damaged."""
    return lzma.decompress(log)


@lru_cache(maxsize=32)
def recomputed(log: bytes, pauses: bytes | None) -> tuple[bytes, int, int]:
    """(summary, lines of the log, runs in it) of an unpacked log."""
    from mileskit.summary import summarize

    built = summarize.build(io.BytesIO(log), pauses)
    return summarize.to_bytes(built), built["source"]["lines"], len(built["runs"])


def check_run(tree: Tree, folder: str, report: Report) -> None:
    """Compare one run's summary with what its log gives."""
    from mileskit.summary import summarize

    log, summary, guard = (
        f"{folder}/{n}" for n in ("run.log.xz", "summary.json", "heat-guard.log")
    )
    run = folder.removeprefix("capture/gpu/out-")
    for path in (log, summary):
        if not tree.exists(path):
            report.error(path, 0, f"run {run} has no such file")
            return
    try:
        data = unpacked(tree.read(log))
    except lzma.LZMAError as error:
        report.error(log, 0, f"cannot be unpacked: {error}")
        return
    pauses = tree.read(guard) if tree.exists(guard) else None
    stored = tree.read(summary)
    computed, lines, runs = recomputed(data, pauses)
    report.count("runs")
    report.count("log lines", lines)
    if runs != 1:
        report.error(log, 0, f"holds {runs} runs; a stored run is one")
    if stored == computed:
        return
    line = first_difference(stored, computed)
    try:
        differences = summarize.diff_summaries(stored, computed)[:SHOWN]
    except (ValueError, LookupError, TypeError) as error:
        differences = [f"not a summary: {error}"]
    for text in differences or ["same values, other bytes"]:
        report.error(summary, line, f"{run}: {text}")


def check(root: Path = ROOT, overlay: Mapping[str, bytes] | None = None) -> Report:
    """Check the summary of every stored run at `root`."""
    folder = str(root / "capture" / "gpu")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    tree = Tree(root, overlay or {})
    report = Report()
    for run in run_folders(tree):
        check_run(tree, run, report)
    return report


if __name__ == "__main__":
    from scripts.cli import main

    raise SystemExit(main("summaries", check, __doc__))
