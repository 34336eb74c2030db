"""The verb ``report``: one or several runs as one HTML file that opens from disk."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mileskit.judge import clockcheck, healthreport, ranges, runload, setupdiff
from mileskit.report import reportcharts as charts
from mileskit.report import reportclock as clock
from mileskit.report import reporthtml as html
from mileskit.report import reportlog
from mileskit.report import reportparts as parts
from mileskit.report import reportsetup as setup
from mileskit.report.reportcharts import View
from mileskit.report.reportlog import Input
from mileskit.report.svgchart import PATTERNS

EXIT_CODES = """exit codes:
  0  report written, whatever its verdicts
  2  bad usage, a file cannot be read or written, or the output file is no report
  3  inspected nothing: an input holds no line of a Miles run; nothing written"""
LONGEST_NAME = 80
HEAD = 2_000  # bytes in which a report names its maker


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``kit.py report``."""
    parser.description = (
        "Write one HTML file about one run or several side by side: verdicts, time line, metrics,"
        " failed requests, memory, setup and command. It holds everything it shows and opens from"
        " disk. RUN is a run folder, LAB/RUN of a stored run, a log (plain, .gz, .xz, - for"
        " standard input), a summary.json, or Miles' own event files."
    )
    parser.epilog = EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the run, or several")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="the HTML file; an older report there is replaced, any other file is left alone",
    )
    runload.add_input_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the verb; returns the exit code."""
    out = Path(args.output)
    try:
        if len(args.runs) > 1 and args.heat_guard:
            raise runload.LoadError("--heat-guard takes one RUN")
        if args.runs.count("-") > 1:
            raise runload.LoadError("standard input can be read once")
        _refuse(out)
        inputs = [reportlog.read(r, args.heat_guard, args.utc_offset) for r in args.runs]
        page = build([_view(one, args.samples) for one in inputs])
        _write(out, page.encode("utf-8"))
    except runload.NothingError as error:
        print(f"report: {error}", file=sys.stderr)
        return 3
    except runload.LoadError as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"report: {error.filename or out}: {error.strerror or error}", file=sys.stderr)
        return 2
    return 0


def _refuse(out: Path) -> None:
    """Raises LoadError when the output exists and is no report."""
    if not os.path.lexists(out):
        if not out.parent.is_dir():
            raise runload.LoadError(f"{out}: there is no folder {out.parent}")
        return
    if not out.is_file() or out.is_symlink():
        raise runload.LoadError(f"{out}: not a plain file; choose another -o")
    with out.open("rb") as file:
        if html.GENERATOR.encode() not in file.read(HEAD):
            raise runload.LoadError(f"{out}: exists and is no report; choose another -o")


def _write(out: Path, data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=out.parent, prefix=".report-", delete=False) as file:
        try:
            file.write(data)
            file.flush()
            Path(file.name).chmod(0o644)
            Path(file.name).replace(out)
        finally:
            Path(file.name).unlink(missing_ok=True)


def _view(one: Input, samples: str | None) -> View:
    loaded = one.loaded
    mine = setupdiff.facts(loaded)
    record = runload.samples(loaded, samples)
    why = "no clock record belongs to this run"
    if record and not record[0]:
        why = f"the clock record {Path(record[1]).name} holds no sample"
    timing = clockcheck.check(loaded, mine, record)
    unusable = {u["column"]: u.get("reason", "") for u in (loaded.toml or {}).get("unusable") or []}
    return View(one, loaded.name, mine, timing, record[0] if record else (), why, unusable)


def _health(view: View) -> dict | None:
    run = view.run
    if not run["steps"]["index"] and not run["rollouts"]["index"]:
        return None
    one = view.input.loaded
    reference = ranges.choose(one, view.facts, [])
    record = (list(view.samples), "") if view.samples else None
    return healthreport.report(one, view.facts, reference, record, False)


def build(views: Sequence[View]) -> str:
    """The whole page of these runs; the same runs give the same text."""
    views = _named(views)
    many = len(views) > 1
    health = [_health(view) for view in views]
    pairs = [setupdiff.differences(views[0].facts, view.facts) for view in views[1:]]
    title = ", ".join(view.name for view in views)
    bodies = {
        "Overview": parts.overview(views, health),
        "What differs": setup.differing(views, pairs),
        "Time line": _grid("panels", [_lanes(view, many) for view in views]),
        "Metrics": _grid(
            "blocks",
            [
                *charts.metric_blocks(views),
                charts.groups_block(views),
                *charts.eval_blocks(views),
            ],
        ),
        "Times": _grid("blocks", [charts.time_block(views)])
        + setup.medians(views)
        + setup.step_table(views),
        "Failed requests and errors": clock.retries_block(views) + parts.errors(views),
        "Memory and clock": _grid("blocks", [clock.memory_block(views), clock.clock_block(views)]),
        "Start-up": setup.startup(views),
        "Verdicts": parts.verdicts(views, health),
        "Setup and command": setup.setup(views),
        "Remarks": setup.remarks(views),
    }
    top = f"<h1>Run report: {html.text(title)}</h1>{html.note(_lead(many))}"
    head = f"{PATTERNS}<header>{top}</header>"
    sections = [html.section(name, body, name.split()[0].lower()) for name, body in bodies.items()]
    return html.page(f"Run report: {title}", "\n".join([head, *filter(None, sections)]), many)


def _grid(css: str, blocks: Sequence[str]) -> str:
    body = "".join(blocks)
    return f'<div class="{css}">{body}</div>' if body else ""


def _lanes(view: View, many: bool) -> str:
    under = [charts.SHARED] if view.shared else []
    return html.figure(view.name if many else "", clock.timeline(view), under)


def _lead(many: bool) -> str:
    lead = "Everything here is computed from the log and its run.toml; GB are 2**30 bytes."
    if many:
        lead += " Runs stand side by side on one scale; kit.py compare judges a difference."
    return lead


def _named(views: Sequence[View]) -> list[View]:
    """The views with distinct names of a length that a page can show."""
    seen: dict[str, int] = {}
    found = []
    for view in views:
        if len(view.name) > LONGEST_NAME:
            view = view._replace(name=view.name[:LONGEST_NAME] + "...")
        seen[view.name] = seen.get(view.name, 0) + 1
        count = seen[view.name]
        found.append(view if count == 1 else view._replace(name=f"{view.name} ({count})"))
    return found
