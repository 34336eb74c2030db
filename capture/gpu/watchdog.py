"""The verb ``watchdog``: guard a running container, or a log file, and stop a run that is lost."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from datetime import datetime, timezone

from mileskit.common.commandline import drop_output, flush_output
from mileskit.guard import diagnose
from mileskit.guard.guardlimits import (
    Limits,
    UsageError,
    add_limit_options,
    limits_of,
    seconds,
    whole,
)
from mileskit.guard.guardreport import evidence, lines
from mileskit.guard.logdrive import drive
from mileskit.guard.verdicts import STOPS
from mileskit.guard.watch import Watch, hook
from mileskit.guard.watchsource import ContainerRun, FileRun, Lost
from mileskit.host.containers import ANSWER_S, NAME_PATTERN, Engine
from mileskit.summary.pauses import iso

DESCRIPTION = """\
Look at a run every 30 s and stop it when it is lost: requests that only fail, an engine or worker
that died, a phase without progress, a training that is not finite. The run is a container (NAME),
or with --follow a log file, which is only watched.
"""
EPILOG = """\
exit codes:
  0  the run ended
  1  stopped the run (with --follow or --dry-run: would have stopped it)
  2  bad usage, or lost sight of the run (Docker gone, log unreadable): it has no guard
  3  inspected nothing: the log that was followed holds no line of a Miles run

--on-stop gets MILES_RUN, MILES_VERDICT, MILES_WHY, MILES_ROOT and MILES_ROOT_LINE in its
environment; it runs after the container is stopped.
"""
DEFAULT_NAME = "miles-plain"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add, lim = parser.add_argument, Limits()
    add("name", nargs="?", default=DEFAULT_NAME, help="exact container name (%(default)s)")
    add(
        "limit",
        nargs="?",
        default=str(lim.limit),
        help="failed requests in the window that make a check bad (%(default)s)",
    )
    add(
        "checks",
        nargs="?",
        default=str(lim.checks),
        help="bad checks in a row that stop the run (%(default)s)",
    )
    add("--follow", metavar="FILE", help="watch a log file instead of a container")
    add(
        "--clock",
        choices=("wall", "log"),
        default="wall",
        help="log: run through the file on its own times, faster than it happened",
    )
    add("--offset", default="0", metavar="S", help="with --clock log: seconds to the first check")
    add("--now", metavar="+S", help="with --clock log: go on S seconds after the last line")
    diagnose.add_log_options(parser)
    add("--engine", default="docker", help="client program: docker (default), podman, or a path")
    add("--answer-s", default=ANSWER_S, metavar="S", help="wait for the engine (%(default)g)")
    add(
        "--lost-after",
        default="3",
        metavar="N",
        help="checks in a row without an answer of the engine that end the guard (%(default)s)",
    )
    add("--on-stop", metavar="COMMAND", help="shell command to run when the run was stopped")
    add("--dry-run", action="store_true", help="say what would be stopped, stop nothing")
    add("--json", action="store_true", help="the decision as one JSON object")
    add_limit_options(parser, skip=("limit", "checks"))


def run(args: argparse.Namespace) -> int:
    try:
        limits = limits_of(args, limit=args.limit, checks=args.checks)
        if args.clock == "log":
            return _log_clock(args, limits)
        return _watch(args, limits)
    except UsageError as error:
        _note(str(error))
        return 2
    except Exception as error:  # status 1 would say that the run was stopped
        _note(f"error of the watchdog itself: {error!r}: the run has no guard")
        return 2


def _log_clock(args: argparse.Namespace, limits: Limits) -> int:
    """``--follow FILE --clock log``: all checks of a log in one go."""
    if args.follow is None:
        raise UsageError("--clock log needs --follow FILE")
    offset = 0.0 if args.offset == "0" else seconds("--offset", args.offset)
    args.log = args.follow
    log, pauses = diagnose.read_log(args)
    if not log.of_miles:
        _note(f"{args.follow}: no line of a Miles run")
        return 3
    until = diagnose.time_to_judge(args.now, log, diagnose.offset_s(args.utc_offset))
    result = drive(
        log.runs[-1],
        limits,
        offset=offset,
        until=until,
        pauses=pauses,
        fault_tolerance=args.fault_tolerance,
    )
    found = evidence(result.guard, result.decision)
    found["run"] = len(log.runs)
    found |= {
        "stopped": result.stopped_at is not None,
        "decided_at": iso(until if result.stopped_at is None else result.stopped_at),
        "seconds": result.seconds,
        "checks": result.checks,
        "longest_bad_checks": result.longest,
    }
    stopped = result.stopped_at is not None
    _say(
        args,
        found,
        found["decided_at"],
        args.follow,
        "would stop the run" if stopped else "the log ended",
    )
    if stopped and args.on_stop and not args.dry_run:
        hook(args.on_stop, args.follow, found)
    return int(stopped)


def _watch(args: argparse.Namespace, limits: Limits) -> int:
    """A container or a growing file, until it ends, is stopped, or is lost."""
    for option in ("now", "pauses"):
        if getattr(args, option) is not None:
            raise UsageError(f"--{option} needs --clock log")
    lost_after = whole("--lost-after", args.lost_after, 1)
    if args.follow is not None:
        source = FileRun(args.follow)
    else:
        if not NAME_PATTERN.fullmatch(args.name):
            raise UsageError(f"{args.name[:80]!r} cannot be a container name")
        source = ContainerRun(Engine(args.engine, seconds("--answer-s", args.answer_s)), args.name)
    watch = Watch(
        source,
        limits,
        note=_note,
        lost_after=lost_after,
        dry_run=args.dry_run,
        fault_tolerance=args.fault_tolerance,
        utc_offset_s=diagnose.offset_s(args.utc_offset),
    )
    try:
        with _signals_end(), source:
            end = watch.run()
    except Lost as error:
        _note(str(error))
        return 2
    except _Ended as error:
        _note(f"{source.name}: ended by {error}: the run has no guard")
        return 2
    except KeyboardInterrupt:
        _note(f"{source.name}: interrupted: the run goes on without a guard")
        return 2
    if end.decision is None:
        _note(f"{source.name}: the run ended")
        return 0
    found = evidence(end.guard, end.decision) | end.machine
    found["stopped"] = end.stopped
    _say(args, found, _utc(), source.name, end.action)
    if end.acted and args.on_stop and not args.dry_run:
        hook(args.on_stop, source.name, found)
    return int(end.acted)


class _Ended(BaseException):
    """A signal ends the watchdog; the text is its name."""


@contextlib.contextmanager
def _signals_end():
    """Turns SIGTERM and SIGHUP into _Ended, where nobody (such as nohup) has set them before."""

    def end(number, _frame):
        raise _Ended(signal.Signals(number).name)

    mine = []
    with contextlib.suppress(ValueError):  # only the main thread may
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, end)
                mine.append(number)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


def _say(args: argparse.Namespace, found: dict, when: str, name: str, action: str) -> None:
    """Prints the decision; that nobody can read it changes neither the exit code nor the hook."""
    try:
        if args.json:
            print(json.dumps({"name": name, "action": action, **found}, ensure_ascii=False))
        else:
            print(f"{when} {name}: {found['verdict']}: {found['why'] or found['about']}: {action}")
            if found["verdict"] in STOPS or found["root"]:
                print("\n".join(lines(found)))
        flush_output()
    except OSError as error:
        drop_output()
        _note(f"{name}: {found['verdict']}: {action}; cannot print the rest: {error.strerror}")


def _utc() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _note(text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"{_utc()} watchdog: {text}", file=sys.stderr, flush=True)


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str):
        _note(message)
        raise SystemExit(2)


def main(argv: list[str] | None = None) -> int:
    parser = _OneLineParser(prog="watchdog.py", allow_abbrev=False)
    add_arguments(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
