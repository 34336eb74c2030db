"""The verb ``compare``: runs side by side on the same clean steps, and what they may claim."""

from __future__ import annotations

import argparse
import csv
import json
import sys

from mileskit.judge import comparerows, comparetext, comparison, health, quantities, runload, sides

EXIT_CODES = """exit codes:
  0  compared, whatever came out
  2  bad usage, or a file cannot be read
  3  inspected nothing: a run without a step, no common step, or no quantity that
     all runs have"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``kit.py compare``."""
    parser.description = (
        "Compare runs on the steps that all of them have and that no pause touched. Runs of one"
        " setting stand on one side, the first run's side is A; A1,A2 puts runs on one side by"
        " hand. RUN is what `health` takes. A time needs the pauses and the clock of its run: give"
        " a run folder whose heat-guard.log lies beside its log and whose run.toml names a"
        " clock_record; without them a claim on a time says that they are unknown."
    )
    parser.epilog = EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("runs", nargs="+", metavar="RUN", help="two runs or more")
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="KEY",
        help="compare this key of the log, or one of: "
        + ", ".join(q.id for q in quantities.DEFAULT)
        + " (default: all of these)",
    )
    parser.add_argument(
        "--utc-offset",
        default="+00:00",
        metavar="+HH:MM",
        help="how far the logs' clock is ahead of UTC (default +00:00)",
    )
    out = parser.add_mutually_exclusive_group()
    out.add_argument("--json", action="store_true", help="one JSON object instead of text")
    out.add_argument("--csv", action="store_true", help="values and differences as CSV")


def run(args: argparse.Namespace) -> int:
    """Runs the verb; returns the exit code."""
    try:
        made = sides.group(
            comparison.members(args.runs, lambda name: runload.load(name, None, args.utc_offset))
        )
        return _compare(made, args)
    except runload.NothingError as error:
        print(f"compare: {error}", file=sys.stderr)
        return 3
    except runload.LoadError as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2


def _compare(made: list[sides.Side], args) -> int:
    members = [m for side in made for m in side.members]
    if len(members) < 2:
        raise runload.LoadError("name at least two runs")
    empty = [m.one.name for m in members if not m.one.run["rollouts"]["index"]]
    if empty:
        raise runload.NothingError(f"{', '.join(empty)}: no step in this run")
    wanted = [quantities.named(name) for name in args.column] or list(quantities.DEFAULT)
    found = comparison.compare(made, wanted)
    if args.json:
        print(json.dumps(health.plain(found), indent=1, ensure_ascii=False))
    elif args.csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(comparerows.csv_rows(found))
    else:
        print("\n".join(comparetext.lines(found)))
    if not found["common_steps"]:
        print("compare: the runs have no step number in common", file=sys.stderr)
        return 3
    if all("skipped" in q for q in found["quantities"]):
        why = "; ".join(f"{q['name']}: {q['skipped']}" for q in found["quantities"][:1])
        print(f"compare: nothing was compared ({why})", file=sys.stderr)
        return 3
    return 0
