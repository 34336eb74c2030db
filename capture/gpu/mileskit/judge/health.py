"""The verb ``health``: the numbers of a run against ranges, with a verdict on each."""

from __future__ import annotations

import argparse
import json
import math
import sys

from mileskit.judge import healthreport, healthtext, ranges, runload, setupdiff

EXIT_CODES = """exit codes:
  0  nothing is outside; also when no reference has this setup and the rules that need none
     found nothing (the last line then begins with "no verdict on ranges")
  1  something is outside, or the restart test failed
  2  bad usage, or a file cannot be read
  3  inspected nothing: no step of a Miles run"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``kit.py health``."""
    parser.description = (
        "Judge a run by the five numbers of its first ten steps, the eight signals, its step 0,"
        " its resume and its times. RUN is a run folder, LAB/RUN of a stored run, a log (plain,"
        " .gz, .xz, - for standard input), a summary.json, or a file or folder of Miles' own"
        " --save-debug-event-data."
    )
    parser.epilog = EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("runs", nargs="*", metavar="RUN", help="the run to judge")
    parser.add_argument(
        "--against",
        nargs="+",
        action="extend",
        default=[],
        metavar="LAB/RUN",
        help="reference runs, or gb10 for its published ranges (default: stored runs whose model,"
        " data and recipe are equal)",
    )
    parser.add_argument(
        "--resume-check",
        nargs=2,
        metavar=("FIRST", "SECOND"),
        help="does the second log continue the first?",
    )
    runload.add_input_options(parser)
    parser.add_argument("--steps", action="store_true", help="print the times of every step")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """Runs the verb; returns the exit code."""
    try:
        if args.resume_check:
            return _resume(args)
        if len(args.runs) != 1:
            raise runload.LoadError("name one RUN (several after --against end with --)")
        return _health(args)
    except runload.NothingError as error:
        print(f"health: {error}", file=sys.stderr)
        return 3
    except runload.LoadError as error:
        print(f"health: {error}", file=sys.stderr)
        return 2


def _health(args) -> int:
    one = runload.load(args.runs[0], args.heat_guard, args.utc_offset)
    mine = setupdiff.facts(one)
    if not one.run["steps"]["index"] and len(one.run["rollouts"]["index"]) < ranges.MIN_STEPS:
        how = one.run.get("ended", {}).get("how")
        more = "".join(f"; {note}" for note in one.notes)
        raise runload.NothingError(
            f"{one.name}: no step in this run (ended: {how}), so nothing to judge; diagnose says"
            f" what ended it{more}"
        )
    reference = ranges.choose(one, mine, args.against)
    record = runload.samples(one, args.samples)
    found = healthreport.report(one, mine, reference, record, args.steps or args.json)
    if args.json:
        print(json.dumps(plain(found), indent=1, ensure_ascii=False))
    else:
        print("\n".join(healthtext.lines(found)))
    return 1 if found["verdict"] == "outside" else 0


def _resume(args) -> int:
    if args.runs:
        raise runload.LoadError("--resume-check takes its two logs and no RUN")
    first, second = (runload.load(p, None, args.utc_offset) for p in args.resume_check)
    found = healthreport.resume_report(first, second)
    if args.json:
        print(json.dumps(plain(found), indent=1, ensure_ascii=False))
    else:
        print("\n".join(healthtext.resume_lines(found)))
    return 0 if found["passed"] else 1


def plain(value):
    """The value with non-finite floats as the texts of a summary."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value
