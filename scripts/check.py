"""`make check`: every check of the repository, then a table of what was and was not checked.

Exit codes: 0 everything holds, 1 something is wrong, 2 bad usage, 3 inspected nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from scripts.report import Report
from scripts.tree import ROOT, tracked_files

#: what this machine or this repository cannot check, whatever the result of the rest
NEVER_CHECKED = (
    ("GPU runs", "none on this machine; stored logs are read instead"),
    (
        "GB10 raw logs",
        "not available to us; only the arithmetic of the published values is checked",
    ),
    ("addresses outside the site", "nothing is fetched"),
    ("docker commands of the chapters", "parsed, never run"),
    ("tests marked slow", "they start many programs or read long logs: make check-slow"),
    ("what the labs print", "executed and compared by make check-labs"),
    ("the site in a browser", "needs Chromium: make check-site"),
    ("the OLMo-core trainer", "needs torch and Core: make check-core"),
    ("a real container engine", "needs root and packages: make check-containers"),
)
_TESTS = re.compile(r"(\d+) (passed|failed|error|errors|xfailed|xpassed|skipped|deselected)")


@dataclass
class Outcome:
    """A check that ran."""

    name: str
    report: Report
    seconds: float


WORKERS = 2  # each loads all the libraries and collects all the tests


@dataclass
class Tests:
    """The tests, which run beside the other checks."""

    root: Path
    workers: int = WORKERS
    process: subprocess.Popen[str] | None = None
    counts: dict[str, int] = field(default_factory=dict)

    def start(self) -> None:
        """Start pytest; its output is read when it ends."""
        words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--color=no"]
        self.process = subprocess.Popen(
            [*words, f"--numprocesses={self.workers}", "--dist=loadfile"],
            cwd=self.root,
            env=os.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self) -> Report:
        """Wait for pytest. Skipped tests count as wrong: a check that is left out must say so."""
        report = Report()
        if self.process is None:
            self.start()
        assert self.process is not None
        self.read(self.process.communicate()[0].strip(), self.process.returncode, report)
        report.count("tests", self.counts.get("passed", 0))
        if self.counts.get("skipped"):
            report.error("tests", 0, f"{self.counts['skipped']} tests were skipped")
        return report

    def read(self, output: str, status: int, report: Report) -> None:
        """Take pytest's counts, and its failures when its exit status is not zero."""
        for number, what in _TESTS.findall(output.rsplit("\n", 1)[-1]):
            self.counts["error" if what == "errors" else what] = int(number)
        if status:
            for line in output.splitlines()[-60:]:
                report.error("tests", 0, line)

    def stop(self) -> None:
        """End what still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()


def command(root: Path, words: list[str], what: str) -> Report:
    """Run a program that prints one problem a line and fails."""
    report = Report()
    done = subprocess.run(words, cwd=root, capture_output=True, text=True)
    report.count(what, sum(name.endswith(".py") for name in tracked_files(root)))
    if done.returncode:
        for line in (done.stdout + done.stderr).strip().splitlines():
            report.error(words[-1] if words[-1] != "." else "ruff", 0, line)
    return report


def lint(root: Path) -> Report:
    """Ruff's rules."""
    words = [sys.executable, "-m", "ruff", "check", "--output-format", "concise", "--no-cache", "."]
    return command(root, words, "Python files")


def layout(root: Path) -> Report:
    """Ruff's formatting."""
    words = [sys.executable, "-m", "ruff", "format", "--check", "--no-cache"]
    words += ["--output-format", "concise", "."]
    return command(root, words, "Python files")


def messages(name: str, what: str) -> Callable[[Path], Report]:
    """A check of a module whose `check(root)` gives a list of messages."""

    def run(root: Path) -> Report:
        report = Report()
        module = importlib.import_module(f"scripts.{name}")
        for message in module.check(root):
            path, line, text = split_message(str(message))
            report.error(path, line, text)
        counts = module.count(root) if hasattr(module, "count") else {what: 1}
        for key, number in counts.items():
            report.count(key, number)
        return report

    return run


def split_message(message: str) -> tuple[str, int, str]:
    """(path, line, text) of a `path:line: text` message."""
    match = re.match(r"([^:\s]+):(\d+): (.*)", message, re.DOTALL)
    return (match[1], int(match[2]), match[3]) if match else ("", 0, message)


def reports(name: str) -> Callable[[Path], Report]:
    """A check of a module whose `check(root)` gives a Report."""
    return lambda root: importlib.import_module(f"scripts.{name}").check(root)


def site(root: Path) -> Report:
    """Build the whole site aside and check its links, anchors and figures."""
    from scripts import render, sitecheck

    folder = root / "build" / "check-site"
    report = render.build(root, folder)
    if report.ok:
        report.merge(sitecheck.check(folder))
    return report


CHECKS: dict[str, Callable[[Path], Report]] = {
    "lint": lint,
    "format": layout,
    "summaries": reports("summaries"),
    "reported": messages("check_reported", "files"),
    "second": messages("second_computation", "runs"),
    "evidence": reports("evidence_check"),
    "claims": reports("claims"),
    "figures": reports("drawings"),
    "listings": reports("listings"),
    "labs": reports("labs"),
    "commands": reports("commands"),
    "flags": reports("flagtables"),
    "spelling": reports("spelling"),
    "prose": reports("prose"),
    "terms": reports("terms"),
    "sources": reports("sources"),
    "site": site,
    "hygiene": reports("hygiene"),
}


def fingerprint(root: Path) -> dict[str, str]:
    """Hash of every file that git tracks or would track; works without git too."""
    return {
        name: hashlib.sha256((root / name).read_bytes()).hexdigest() for name in tracked_files(root)
    }


def unchanged(before: dict[str, str], after: dict[str, str]) -> Report:
    """A check reads: no tracked file may differ, appear or go while it runs."""
    report = Report()
    report.count("files", len(after))
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            report.error(name, 0, "changed while the checks ran; a check must only read")
    return report


def run_check(name: str, check: Callable[[], Report]) -> Outcome:
    """Run one check and print its problems and one line."""
    started = time.perf_counter()
    try:
        report = check()
    except Exception as error:  # one broken check must not hide what the others find
        report = Report()
        place = traceback.extract_tb(error.__traceback__)[-1]
        report.error(
            os.path.relpath(place.filename, ROOT),
            place.lineno or 0,
            f"the check itself broke: {type(error).__name__}: {error}",
        )
    if report.ok and not any(report.counts.values()):
        report.error(name, 0, "inspected nothing")
    outcome = Outcome(name, report, time.perf_counter() - started)
    for problem in report.problems:
        print(f"  {problem}")
    state = "ok" if report.ok else f"{len(report.problems)} WRONG"
    print(f"{name:<10} {state} ({outcome.seconds:.1f} s)", flush=True)
    return outcome


def table(outcomes: Iterable[Outcome], left_out: Iterable[str]) -> str:
    """What was checked, how many, the result; then what was not checked, and why."""
    rows = [("check", "looked at", "result")]
    for outcome in outcomes:
        counts = ", ".join(f"{n:,} {what}" for what, n in outcome.report.counts.items())
        result = "ok" if outcome.report.ok else f"{len(outcome.report.problems)} wrong"
        rows.append((outcome.name, counts, result))
    name_width = max(len(row[0]) for row in rows)
    result_width = max(len(row[2]) for row in rows)
    lines = [f"{row[0]:<{name_width}}  {row[2]:<{result_width}}  {row[1]}" for row in rows]
    lines.insert(1, "-" * 72)
    lines += ["", "not checked"]
    lines += [f"  {what}: {why}" for what, why in NEVER_CHECKED]
    lines += [f"  {name}: left out by --only" for name in left_out]
    for outcome in outcomes:
        lines += [f"  {text}" for text in outcome.report.unchecked]
        lines += [f"  {note}" for note in outcome.report.notes]
    return "\n".join(lines)


def totals(outcomes: list[Outcome], tests: Tests | None) -> list[str]:
    """The last lines: counts of checked numbers and of tests, for a reader of the log."""
    lines = []
    for outcome in outcomes:
        if outcome.name == "claims":
            counts = outcome.report.counts
            seen = sum(counts.get(what, 0) for what in ("numbers in claims", "number links"))
            failed = len(outcome.report.problems)
            lines.append(f"claims: {max(0, seen - failed)} passed, {failed} failed")
    if tests is not None:
        failed = tests.counts.get("failed", 0) + tests.counts.get("error", 0)
        lines.append(f"tests: {tests.counts.get('passed', 0)} passed, {failed} failed")
    return lines


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    names = [*CHECKS, "tests"]
    parser = argparse.ArgumentParser(
        prog="python3 -m scripts.check",
        description=__doc__,
        epilog=f"Checks: {', '.join(names)}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="NAME,...", help="run only these checks")
    options = parser.parse_args(argv)
    wanted = options.only.split(",") if options.only else names
    unknown = sorted(set(wanted) - set(names))
    if unknown:
        parser.error(f"no check {unknown[0]!r}; there are {', '.join(names)}")
    started = time.perf_counter()
    before = fingerprint(ROOT)
    tests = Tests(ROOT) if "tests" in wanted else None
    if tests:
        tests.start()
    try:
        outcomes = [
            run_check(name, lambda check=check: check(ROOT))
            for name, check in CHECKS.items()
            if name in wanted
        ]
        if tests:
            outcomes.append(run_check("tests", tests.finish))
    finally:
        if tests:
            tests.stop()
    outcomes.append(run_check("read-only", lambda: unchanged(before, fingerprint(ROOT))))
    left_out = [name for name in names if name not in wanted]
    print(f"\n{table(outcomes, left_out)}\n\n{time.perf_counter() - started:.0f} s in all")
    print("\n".join(totals(outcomes, tests)))
    return 0 if all(outcome.report.ok for outcome in outcomes) else 1


if __name__ == "__main__":
    raise SystemExit(main())
