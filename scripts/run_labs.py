"""Executes the labs: `--store` writes their outputs, without it they are compared with the stored.

The check runs each notebook with nbval, which compares every cell's output with the stored one,
and asks jupytext if page and notebook are the same. A lab may take at most LIMIT_S seconds. This
program runs in the environment of the labs (`make check-labs`, `make labs`).

Exit codes: 0 fine, 1 something is wrong (with --store: a lab was written anew), 2 bad usage,
3 no lab found.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from scripts import labs
from scripts.report import Report
from scripts.tree import ROOT, Tree

LIMIT_S = 20  # of one lab, on two cores
CELL_TIMEOUT_S = 60
WORKERS = 2
_PASSED = re.compile(r"(\d+) passed")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def quiet_jupyter(folder: Path) -> None:
    """Keep Jupyter away from the user's own settings: its files live below `folder`."""
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        os.environ[name] = str(folder / name.lower())
        Path(os.environ[name]).mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONHASHSEED"] = "0"


def from_page(text: str) -> nbformat.NotebookNode:
    """The notebook of a page, without outputs and without cell names, which are random."""
    notebook = jupytext.reads(text, fmt="md")
    notebook.nbformat_minor = 4
    for cell in notebook.cells:
        cell.pop("id", None)
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def execute(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Run the cells from top to bottom in `folder`; CellExecutionError when one raises."""
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        record_timing=False,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = one_stream(cell.outputs)


def one_stream(outputs: list) -> list:
    """Outputs with the parts of one stream joined: where they are cut depends on the clock."""
    joined: list = []
    for output in outputs:
        last = joined[-1] if joined else None
        if last and output.output_type == last.output_type == "stream" and last.name == output.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def store(root: Path, path: str) -> bool:
    """Run one lab and store it; True when the stored notebook changed."""
    notebook = from_page((root / path).read_text(encoding="utf-8"))
    target = root / labs.notebook_of(path)
    execute(notebook, target.parent)
    text = nbformat.writes(notebook).rstrip("\n") + "\n"
    if target.is_file() and target.read_text(encoding="utf-8") == text:
        return False
    partial = target.with_name(target.name + ".part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(target)
    return True


def pair_problems(page: str, notebook: str) -> list[str]:
    """What jupytext says against a pair: the notebook written as a page must be the page."""
    written = jupytext.writes(nbformat.reads(notebook, as_version=4), fmt="md")
    if written == page:
        return []
    pairs = zip(written.splitlines(), page.splitlines(), strict=False)
    line = next((number for number, (a, b) in enumerate(pairs, 1) if a != b), 0)
    return [f"page and notebook differ from line {line} on: run `make labs`"]


def run_nbval(path: Path) -> tuple[int, list[str]]:
    """(cells that passed, problems) of one notebook under nbval."""
    words = [sys.executable, "-m", "pytest", "--nbval", "-p", "no:cacheprovider", "-q"]
    words += ["-o", "addopts=", "-o", "filterwarnings=", "--color=no", "--tb=short"]
    words += [f"--nbval-cell-timeout={CELL_TIMEOUT_S}", str(path)]
    done = subprocess.run(words, capture_output=True, text=True)
    output = _COLOUR.sub("", done.stdout + done.stderr)
    passed = _PASSED.search(output)
    if done.returncode == 0:
        return int(passed[1]) if passed else 0, []
    return int(passed[1]) if passed else 0, output.strip().splitlines()[-40:]


def check_lab(root: Path, path: str) -> Report:
    """Run one lab and compare everything that it prints."""
    report = Report()
    notebook = root / labs.notebook_of(path)
    if not notebook.is_file():
        return report  # the check of the stored labs says so
    text = notebook.read_text(encoding="utf-8")
    for problem in pair_problems((root / path).read_text(encoding="utf-8"), text):
        report.error(path, 0, problem)
    started = time.perf_counter()
    passed, problems = run_nbval(notebook)
    seconds = time.perf_counter() - started
    for line in problems:
        report.error(path, 0, line)
    cells = sum(cell.kind == "code" for cell in labs.read(path, text.encode()))
    if passed != cells and not problems:
        report.error(path, 0, f"{cells} code cells, and nbval compared {passed}")
    if seconds > LIMIT_S:
        report.error(path, 0, f"took {seconds:.0f} s; the limit is {LIMIT_S} s")
    report.count("labs executed")
    report.count("cells compared", passed)
    report.notes.append(f"{path}: {passed} cells, {seconds:.1f} s")
    return report


def check(root: Path = ROOT) -> Report:
    """Check the stored labs, then execute them, two at a time."""
    report = labs.check(root)
    with ThreadPoolExecutor(WORKERS) as pool:
        for part in pool.map(lambda path: check_lab(root, path), labs.pages(Tree(root))):
            report.merge(part)
    return report


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python3 -m scripts.run_labs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", action="store_true", help="write the outputs anew")
    parser.add_argument("labs", nargs="*", metavar="PAGE", help="with --store: only these pages")
    options = parser.parse_args(argv)
    known = labs.pages(Tree(ROOT))
    if unknown := sorted(set(options.labs) - set(known)):
        parser.error(f"no lab {unknown[0]!r}")
    quiet_jupyter(ROOT / "build" / "jupyter")
    if options.store:
        return _store_all(options.labs or known)
    started = time.perf_counter()
    report = check()
    print("\n".join([*map(str, report.problems), *report.notes]))
    counts = ", ".join(f"{number:,} {what}" for what, number in report.counts.items())
    seconds = time.perf_counter() - started
    print(f"labs: {counts or 'nothing'}; {len(report.problems)} wrong ({seconds:.1f} s)")
    return 1 if report.problems else 0 if known else 3


def _store_all(paths: list[str]) -> int:
    changed = []
    for path in paths:
        try:
            if store(ROOT, path):
                changed.append(labs.notebook_of(path))
        except CellExecutionError as error:
            print(f"{path}: {_COLOUR.sub('', str(error)).strip()}", file=sys.stderr)
            return 2
    print("\n".join([*changed, f"{len(paths)} labs, {len(changed)} written anew"]))
    return 1 if changed else 0 if paths else 3


if __name__ == "__main__":
    raise SystemExit(main())
