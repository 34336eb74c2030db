"""The command line that every check shares."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from scripts.report import Report
from scripts.tree import ROOT


def print_report(name: str, report: Report, seconds: float) -> None:
    """Problems one a line, then one line of counts."""
    for problem in report.problems:
        print(problem)
    counts = ", ".join(f"{number:,} {what}" for what, number in report.counts.items())
    print(f"{name}: {counts or 'nothing'}; {len(report.problems)} wrong ({seconds:.1f} s)")


def main(
    name: str, check: Callable[..., Report], doc: str | None, argv: list[str] | None = None
) -> int:
    """Run one check over the repository. Returns the exit code: 0, 1, or 3 for nothing seen."""
    parser = argparse.ArgumentParser(
        prog=f"python3 -m scripts.{name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="print what is exempt too")
    options = parser.parse_args(argv)
    started = time.perf_counter()
    report = check(ROOT)
    print_report(name, report, time.perf_counter() - started)
    if options.verbose:
        print("\n".join(report.notes))
    if report.problems:
        return 1
    return 0 if any(report.counts.values()) else 3
