"""Verb `doctor`: look at this host before a run, and say what to do about what is wrong."""

from __future__ import annotations

import argparse
import json
import sys

from mileskit.host import doctor_checks, runspec
from mileskit.host.doctor_checks import FAILING, OK, UNKNOWN, Line
from mileskit.host.doctor_probes import Place, look

DESCRIPTION = """\
Look at GPU, driver, memory, temperature, clocks, Docker, container toolkit, image, folders, disk,
CPUs and ports, and print one line for each: ok, warning, failing, or unknown when it could not be
looked at. Nothing is changed. Run it on the host, not in the container.
"""
EPILOG = """\
exit codes:
  0  nothing is failing (there may be warnings, and lines that could not be looked at)
  1  a line is failing
  2  bad usage
  3  nothing could be looked at
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--lab", default=runspec.LAB, help="lab folder of this host (%(default)s)")
    add("--cache", default=runspec.CACHE, help="download cache of this host (%(default)s)")
    add("--image", default=runspec.IMAGE, help="image of the run (%(default)s)")
    add("--engine", default="docker", help="client program (%(default)s)")
    add(
        "--container",
        action="store_true",
        help="also start a container that looks at the GPU, as section 1.1 does",
    )
    add("--json", action="store_true", help="print the lines as JSON")


def run(args: argparse.Namespace) -> int:
    try:
        lab, cache = runspec.folder(args.lab, "--lab"), runspec.folder(args.cache, "--cache")
    except runspec.SpecError as error:
        print(f"doctor: {error}", file=sys.stderr)
        return 2
    probes = look(Place(lab, cache, args.image, args.engine, in_container=args.container))
    lines = doctor_checks.lines(probes, args.image)
    print(as_json(lines) if args.json else as_text(lines))
    return exit_code(lines)


def exit_code(lines: list[Line]) -> int:
    """The exit code of --help for a report."""
    if all(line.state == UNKNOWN for line in lines):
        return 3
    return int(any(line.state == FAILING for line in lines))


def as_text(lines: list[Line]) -> str:
    """The report for people; what to do stands below its line."""
    width = max(len(line.name) for line in lines)
    out = []
    for line in lines:
        out.append(f"{line.state:8}{line.name:{width}}  {line.found}")
        if line.todo:
            out.append(f"{'':8}{'':{width}}  -> {line.todo}")
    out.append(counts(lines))
    return "\n".join(out)


def counts(lines: list[Line]) -> str:
    """How many lines are in each state."""
    states = [line.state for line in lines]
    fine = states.count(OK)
    rest = [f"{states.count(s)} {s}" for s in ("warning", "failing", "unknown") if s in states]
    return ", ".join([f"{fine} ok", *rest])


def as_json(lines: list[Line]) -> str:
    """The report for programs."""
    return json.dumps(
        {"lines": [line._asdict() for line in lines], "exit_code": exit_code(lines)}, indent=1
    )
