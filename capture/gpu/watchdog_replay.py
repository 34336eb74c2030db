"""The verb ``replay``: what the guard would have done with a stored run, at every phase offset.

The outage rule alone (default) on a log, a per-second file or a summary, for several numbers of
checks; or with ``--full`` all rules on a log.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from typing import NamedTuple

from mileskit.guard import diagnose
from mileskit.guard.guardlimits import (
    Limits,
    UsageError,
    add_limit_options,
    limits_of,
    seconds,
    whole,
)
from mileskit.guard.logdrive import drive
from mileskit.guard.persecond import Failures, read_failures
from mileskit.guard.rule_outage import Outage
from mileskit.log.events import Retry
from mileskit.summary.pauses import iso

EXIT_CODES = """exit codes:
  0  no offset would have stopped the run (outage rule: with the largest number of checks)
  1  some offset would have stopped it
  2  bad usage, or a file cannot be read
  3  inspected nothing: no line of a Miles run in the log"""
# Lowest full minute of the reference lab's dead engine (reported): 2,669 failed requests.
DEAD_PER_SECOND = 2669 / 60


class Streaks(NamedTuple):
    """One offset: the longest run of bad checks, and the time at which each length was first
    reached, in seconds after the first failed request."""

    longest: int
    reached: dict


def streaks(found: Failures, limits: Limits, offset: float) -> Streaks:
    """The outage rule over failures per second, the first check ``offset`` s after the start."""
    rule = Outage(limits.window, limits.limit, limits.checks)
    items = sorted([(s, 1, n) for s, n in found.seconds] + [(t, 0, 0) for t in found.advances])
    origin = math.floor(found.start)
    due, reached, place = origin + offset, {}, 0
    first = found.seconds[0][0] if found.seconds else origin
    while due <= found.end + limits.every:
        while place < len(items) and items[place][0] < due:
            at, failing, count = items[place]
            place += 1
            if failing:
                rule.failed(Retry(0, at, None, None, None, None, None, count), at)
            else:
                rule.advanced()
        rule.check(due)
        reached.setdefault(rule.streak, due - first)
        due += limits.every
    return Streaks(rule.longest, reached)


def dead_engine(limits: Limits, per_second: float) -> list[float]:
    """Seconds from the first failure to the stop, at each offset, of an engine that is dead."""
    span = int(limits.window + (limits.checks + 3) * limits.every)
    counts = [math.floor((k + 1) * per_second) - math.floor(k * per_second) for k in range(span)]
    found = Failures([(k, n) for k, n in enumerate(counts) if n], [], 0, span)
    each = (streaks(found, limits, offset) for offset in offsets(limits))
    return [s.reached[limits.checks] for s in each if limits.checks in s.reached]


def offsets(limits: Limits) -> range:
    """Every whole second of the interval between two checks."""
    return range(max(1, math.ceil(limits.every)))


def outage_table(
    found: Failures, limits: Limits, numbers: list[int], per_second: float
) -> list[dict]:
    """One row for each number of checks."""
    each = [streaks(found, limits, offset) for offset in offsets(limits)]
    rows = []
    for checks in numbers:
        stopped = [s.reached[checks] for s in each if checks in s.reached]
        dead = dead_engine(limits._replace(checks=checks), per_second)
        rows.append(
            {
                "checks": checks,
                "offsets": len(each),
                "stopped": len(stopped),
                "stopped_after_s": [min(stopped), max(stopped)] if stopped else None,
                "longest": max(s.longest for s in each),
                "dead_stopped_after_s": [min(dead), max(dead)] if dead else None,
            }
        )
    return rows


def full_table(run, limits: Limits, until: float, pauses=None, fault_tolerance=False) -> dict:
    """All rules at every offset: verdicts, how many stopped, seconds to the stop."""
    each = [
        drive(
            run, limits, offset=offset, until=until, pauses=pauses, fault_tolerance=fault_tolerance
        )
        for offset in offsets(limits)
    ]
    stopped = [r for r in each if r.stopped_at is not None]
    waits = [r.seconds for r in stopped if r.seconds is not None]
    return {
        "offsets": len(each),
        "stopped": len(stopped),
        "verdicts": dict(sorted(Counter(r.decision.verdict for r in each).items())),
        "seconds": [min(waits), max(waits)] if waits else None,
        "longest": max(r.longest for r in each),
        "hours": round((until - run.start) / 3600, 4),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("log", help="log, per-second file (SECOND COUNT lines), or summary.json; - standard input")
    add("--numbers", default="6,8,10", metavar="N,N", help="numbers of checks (%(default)s)")
    add("--full", action="store_true", help="all rules instead of the outage rule; a log only")
    add("--now", metavar="TIME", help="with --full: as for diagnose")
    add(
        "--dead-rate",
        default=f"{DEAD_PER_SECOND:.4g}",
        metavar="R",
        help="failed requests a second of the synthetic dead engine (%(default)s)",
    )
    diagnose.add_log_options(parser)
    add_limit_options(parser)
    add("--json", action="store_true", help="one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    try:
        limits = limits_of(args)
        if args.full:
            return _full(args, limits)
        numbers = [whole("--numbers", part.strip(), 1) for part in args.numbers.split(",")]
        rate = seconds("--dead-rate", args.dead_rate)
        runs = read_failures(args.log)
    except UsageError as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    found = runs[-1]
    if found.end <= found.start and not found.seconds:
        print(f"replay: {args.log}: no line of a Miles run", file=sys.stderr)
        return 3
    rows = outage_table(found, limits, numbers, rate)
    if args.json:
        print(json.dumps({"failed": found.total, "rows": rows}, indent=1))
    else:
        when = iso(found.seconds[0][0]) if found.seconds else "none"
        print(
            f"{args.log}: {found.total} failed requests, first {when}; checks every "
            f"{limits.every:g} s over the last {limits.window:g} s, limit {limits.limit}"
        )
        print("checks  offsets stopped  most bad checks in a row  dead engine stopped after")
        for row in rows:
            dead = row["dead_stopped_after_s"]
            shown = f"{dead[0]:g} to {dead[1]:g} s" if dead else "never"
            print(
                f"{row['checks']:6}  {row['stopped']:2} of {row['offsets']:<9}"
                f"  {row['longest']:<24}  {shown}"
            )
    return int(max(rows, key=lambda row: row["checks"])["stopped"] > 0)


def _full(args: argparse.Namespace, limits: Limits) -> int:
    log, pauses = diagnose.read_log(args)
    until = diagnose.time_to_judge(args.now, log, diagnose.offset_s(args.utc_offset))
    if not log.of_miles:
        print(f"replay: {args.log}: no line of a Miles run", file=sys.stderr)
        return 3
    table = full_table(log.runs[-1], limits, until, pauses, args.fault_tolerance)
    if args.json:
        print(json.dumps(table, indent=1))
    else:
        words = ", ".join(f"{word} at {n}" for word, n in table["verdicts"].items())
        print(f"{args.log}: {table['hours']:.2f} h, {table['offsets']} offsets: {words}")
        took = table["seconds"]
        after = f", {took[0]:.0f} to {took[1]:.0f} s after its first sign" if took else ""
        print(
            f"stopped at {table['stopped']} of {table['offsets']} offsets{after}; "
            f"most bad checks in a row: {table['longest']}"
        )
    return int(table["stopped"] > 0)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="watchdog_replay.py", allow_abbrev=False)
    add_arguments(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
