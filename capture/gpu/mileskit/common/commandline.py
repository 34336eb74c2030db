"""What every command of the kit does alike: one line for a bad option, and for lost output."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line on standard error, exit code 2."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {' '.join(message.split())} (--help tells more)\n")


def flush_output() -> None:
    """Writes what waits for standard output, so that an error comes while it can be told."""
    if sys.stdout is not None:
        sys.stdout.flush()


def drop_output() -> None:
    """Sends what is left for standard output nowhere: Python would fail on it at its exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
