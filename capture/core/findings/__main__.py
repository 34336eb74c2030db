"""`python -m capture.core.findings [NAME...]`: measure again; print, compare or store."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from . import record
from .record import FOLDER, Finding

HELPERS = ("__init__", "__main__", "record", "common", "moe", "tworanks")


def programs() -> list[str]:
    """Names of the findings, one a module of this folder."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in HELPERS)


def measure(name: str) -> Finding:
    """Run one finding's program and add the environment that it ran in."""
    from dataclasses import replace

    import torch

    from .. import collective
    from .common import environment

    torch.set_num_threads(1)  # threads cost more than they save on tensors this small
    module = importlib.import_module(f"{__package__}.{name}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning of PyTorch's is no result
        try:
            found = module.measure()
        finally:
            collective.stop_alone()  # Core's MoE train module makes a process group of one
    return replace(found, name=name, environment={**environment(), **found.environment})


def show(finding: Finding) -> str:
    """A finding as lines for a person."""
    lines = [f"{finding.name}: {finding.outcome}", f"  {finding.claim.format(**_words(finding))}"]
    for name, value in finding.values.items():
        unit = "" if value.unit == "1" else f" {value.unit}"
        lines.append(f"  {name:<20} {_short(value.value)}{unit}")
    return "\n".join(lines)


def _words(finding: Finding) -> dict[str, str]:
    return {name: _short(value.value) for name, value in finding.values.items()}


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_short(item) for item in value)}]"
    return str(value)


def main(argv: Sequence[str] | None = None) -> int:
    """See the help."""
    parser = argparse.ArgumentParser(
        prog="python -m capture.core.findings",
        description="Measure the findings again, on a processor.",
        epilog="Exit codes: 0 measured, and as recorded with --check; 1 something is not as"
        " recorded; 2 bad usage; 3 nothing to run.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="findings; all without one")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compare with the stored records")
    what.add_argument("--write", action="store_true", help="store the records")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    known = programs()
    for name in given.names:
        if name not in known:
            parser.error(f"{name}: no such finding; there are {', '.join(known)}")
    names = given.names or known
    if not names:
        return 3
    wrong = 0
    for name in names:
        started = time.perf_counter()
        found = measure(name)
        seconds = time.perf_counter() - started
        if given.write:
            record.write(found, given.folder)
        if given.check:
            try:
                lines = record.read(name, given.folder).differences(found)
            except record.RecordError as error:
                lines = [str(error)]
            wrong += len(lines)
            print("\n".join(lines) or f"{name}: as recorded")
        else:
            print(show(found))
        if sys.stderr.isatty():
            print(f"  {seconds:.1f} s", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
