"""The capture kit: ``python3 kit.py VERB ...``.

A verb is a module with ``add_arguments(parser)`` and ``run(args) -> exit code``; it is imported
when it is asked for, so that one broken or slow verb does not stop the others.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from mileskit.common.commandline import OneLineParser, drop_output, flush_output

# verb -> (module, one line for --help)
VERBS = {
    "run": (
        "mileskit.host.runner",
        "start one guarded run in the Miles container, and record what it was",
    ),
    "queue": ("mileskit.host.runqueue", "several runs in turn, each guarded and with a time limit"),
    "heat-guard": ("heat_guard", "pause a run while the GPU is hot"),
    "doctor": (
        "mileskit.host.doctor",
        "look at this host before a run: GPU, Docker, image, disk, memory",
    ),
    "watchdog": ("watchdog", "look at a run every 30 s and stop it when it is lost"),
    "replay": ("watchdog_replay", "what the watchdog would have done with a stored run"),
    "diagnose": (
        "mileskit.guard.diagnose",
        "the verdict on a log, with its evidence and root cause",
    ),
    "summarize": (
        "mileskit.summary.summarize",
        "a log to a summary: metrics, retries, pauses, how it ended",
    ),
    "health": (
        "mileskit.judge.health",
        "the numbers of a run against ranges, with a verdict on each",
    ),
    "compare": (
        "mileskit.judge.compare",
        "runs side by side on the same clean steps, and what they may claim",
    ),
    "report": (
        "mileskit.report.report",
        "one run or several as one HTML file that opens from disk",
    ),
    "estimate": (
        "mileskit.estimate.estimate",
        "the memory of a run before it starts, and how far off it was",
    ),
    "store": ("mileskit.evidence.store", "store a run: compress, scrub, fingerprint"),
    "acceptance": (
        "mileskit.acceptance.acceptance",
        "the whole protocol on this GPU: doctor, guarded steps, an engine death, one bundle",
    ),
    "intake": (
        "mileskit.acceptance.intake",
        "check the bundle of a reader, and lay its runs down as a lab",
    ),
}
EXIT_CODES = """exit codes:
  0  fine, or the run ended
  1  acted, or found something wrong
  2  bad usage, or lost sight of what it should read
  3  inspected nothing"""


def build_parser(verbs: tuple[str, ...] | None = None) -> argparse.ArgumentParser:
    """The kit's parser with the arguments of ``verbs`` (default: of every verb)."""
    parser = OneLineParser(
        prog=Path(sys.argv[0]).name or "kit.py",
        description="Tools around Miles runs on one GPU.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, (module, about) in VERBS.items():
        sub = subparsers.add_parser(verb, help=about, description=about, allow_abbrev=False)
        if verbs is None or verb in verbs:
            importlib.import_module(module).add_arguments(sub)
            sub.set_defaults(module=module)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Runs one verb; returns its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    asked = tuple(a for a in argv[:1] if a in VERBS)
    code = 0
    try:
        try:
            args = build_parser(asked).parse_args(argv)
            code = importlib.import_module(args.module).run(args)
        finally:
            flush_output()
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        drop_output()
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        drop_output()
        where = "the output" if error.filename is None else error.filename
        name = " ".join((Path(sys.argv[0]).name or "kit.py", *asked))
        print(f"{name}: {where}: {error.strerror or error}", file=sys.stderr)
        return 2
    return code


if __name__ == "__main__":
    sys.exit(main())
