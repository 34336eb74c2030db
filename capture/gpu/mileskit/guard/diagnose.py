"""The verb ``diagnose``: the verdict on a finished or running log, with its evidence."""

from __future__ import annotations

import argparse
import json
import re
import sys

from mileskit.guard.guardlimits import Limits, UsageError, add_limit_options, limits_of
from mileskit.guard.guardreport import evidence, lines
from mileskit.guard.logdrive import LogRuns, Outcome, drive, load
from mileskit.guard.verdicts import FINE
from mileskit.log.lineshape import Clock
from mileskit.log.logsource import LogSourceError, open_log
from mileskit.summary.pauses import PauseLogError, PauseSet, iso, read_pauses

EXIT_CODES = """exit codes:
  0  starting, healthy, finished or stopped: nothing wrong found
  1  something is wrong: the verdict names it
  2  bad usage, or a file cannot be read
  3  inspected nothing: no line of a Miles run in the log"""
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?(Z?)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("log", help="log file (plain, .gz, .xz; - for standard input)")
    parser.add_argument(
        "--now",
        metavar="TIME",
        help="judge as if it were TIME in the log's clock (2026-10-20T09:30:00), or +SECONDS"
        " after its last line (default: its last line)",
    )
    add_log_options(parser)
    add_limit_options(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Options that the tools share which read a log on its own clock."""
    parser.add_argument("--pauses", metavar="FILE", help="the heat guard's log of this run")
    parser.add_argument(
        "--fault-tolerance",
        action="store_true",
        help="the run restarts dead engines (also read from its command in the log)",
    )
    parser.add_argument(
        "--utc-offset",
        default="+00:00",
        metavar="+HH:MM",
        help="how far the log's clock is ahead of UTC (%(default)s)",
    )


def offset_s(text: str) -> float:
    """Seconds of "+HH:MM"; UsageError when it is none."""
    m = re.fullmatch(r"([+-]?)(\d\d):?(\d\d)", text)
    if m is None:
        raise UsageError(f"--utc-offset must look like +02:00, not {text[:40]!r}")
    if int(m[2]) > 14 or int(m[3]) > 59:
        raise UsageError(f"--utc-offset must be within 14:59 hours of UTC, not {text}")
    size = int(m[2]) * 3600 + int(m[3]) * 60
    return -float(size) if m[1] == "-" else float(size)


def read_log(args: argparse.Namespace) -> tuple[LogRuns, PauseSet | None]:
    """The log and the pauses that the options name.  Raises UsageError with one line."""
    pauses = None
    try:
        if args.pauses:
            with open_log(args.pauses) as stream:
                pauses = PauseSet(read_pauses(stream.read(), args.pauses))
        with open_log(args.log) as stream:
            return load(stream, offset_s(args.utc_offset)), pauses
    except (LogSourceError, PauseLogError) as error:
        raise UsageError(str(error)) from None


def time_to_judge(text: str | None, log: LogRuns, utc_offset_s: float) -> float:
    """The guard's time that ``--now`` means; never before the log's last line."""
    last = log.last_time or 0.0
    if text is None:
        return last
    if re.fullmatch(r"\+\d{1,9}(\.\d+)?", text):
        return last + float(text[1:])
    m = _TIME.fullmatch(text)
    clock = Clock(utc_offset_s)
    when = clock.at(f"{m[1]} {m[2]}".encode(), m[3].encode() if m[3] else None) if m else None
    if when is None:
        raise UsageError(
            f"--now must be a time like 2026-10-20T09:30:00 or +600, not {text[:40]!r}"
        )
    if m[4]:
        when += clock.offset
    if when < last - 1:
        raise UsageError(f"--now {text} is before the log's last line ({iso(last)})")
    return max(last, when)


def diagnose(
    log: LogRuns,
    limits: Limits,
    now: float,
    pauses: PauseSet | None = None,
    fault_tolerance: bool = False,
) -> Outcome:
    """The verdict on the last run of a log, judged at ``now`` (guard's time)."""
    return drive(
        log.runs[-1], limits, until=now, pauses=pauses, act=False, fault_tolerance=fault_tolerance
    )


def run(args: argparse.Namespace) -> int:
    try:
        limits = limits_of(args)
        log, pauses = read_log(args)
        now = time_to_judge(args.now, log, offset_s(args.utc_offset))
    except UsageError as error:
        print(f"diagnose: {error}", file=sys.stderr)
        return 2
    last = log.runs[-1]
    if not log.of_miles:
        print(f"diagnose: {args.log}: no line of a Miles run", file=sys.stderr)
        return 3
    result = diagnose(log, limits, now, pauses, args.fault_tolerance)
    found = evidence(result.guard, result.decision)
    found["run"] = len(log.runs)
    found["first_line"], found["lines"] = last.first_line, log.lines
    found["judged_at"] = iso(now)
    if args.json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        which = f" (run {len(log.runs)} of the file)" if len(log.runs) > 1 else ""
        print(f"{found['verdict']}{which}: {found['why'] or found['about']}")
        print("\n".join(lines(found)))
    return 0 if result.decision.verdict in FINE else 1
