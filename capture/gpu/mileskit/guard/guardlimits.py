"""Every number of the run guard's rules, with its default, and their command-line options."""

from __future__ import annotations

import argparse
import math
import re
from typing import NamedTuple


class UsageError(ValueError):
    """A value that cannot be used; the message is the one line to print."""


class Limits(NamedTuple):
    """Limits of the rules; times in seconds.

    Sources: limit, checks, every and window are the reference manual's section 1.2; the deadlines
    are this project's own choice (public reports: first steps of 40 minutes that were alive).
    """

    limit: int = 100  # failed requests in a window that make a check bad
    checks: int = 10  # bad checks in a row that stop the run
    every: float = 30.0  # between two checks
    window: float = 60.0  # that a check looks back
    grace: float = 60.0  # after a fatal line, without recovery
    grace_ft: float = 300.0  # the same with fault tolerance on, which restarts engines
    startup_stall: float = 900.0  # start-up without a new mark
    first_stall: float = 1200.0  # first step without any progress
    first_ceiling: float = 7200.0  # first step without a rollout, step, eval or save
    stall: float = 600.0  # later steps: the larger of this ...
    stall_steps: float = 5.0  # ... and this many median steps
    ceiling: float = 3600.0
    ceiling_steps: float = 20.0
    gap: float = 0.1  # log-probability gap that is high
    signal_steps: int = 5  # steps in a row without signal


_HELP = {
    "limit": "failed requests in the window that make a check bad",
    "checks": "bad checks in a row that stop the run",
    "every": "seconds between checks",
    "window": "seconds that a check looks back",
    "grace": "seconds that a fatal line waits for a recovery",
    "grace_ft": "the same when fault tolerance is on",
    "startup_stall": "seconds without a new mark in start-up",
    "first_stall": "seconds without progress in the first step",
    "first_ceiling": "seconds of the first step without a rollout, step, eval or save",
    "stall": "seconds without progress later",
    "stall_steps": "the same in median steps; the larger one holds",
    "ceiling": "seconds later without a rollout, step, eval or save",
    "ceiling_steps": "the same in median steps; the larger one holds",
    "gap": "log-probability gap that is high",
    "signal_steps": "steps in a row without signal that warn",
}
_COUNTS = ("limit", "checks", "signal_steps")
_LARGEST = 999_999_999
_LEAST_EVERY = 0.1  # seconds; a check looks at the container


def whole(name: str, text: object, least: int) -> int:
    """A whole number of ``least`` to 999,999,999 from text; UsageError otherwise."""
    if not re.fullmatch(r"[0-9]{1,9}", str(text)):
        shown = str(text)[:40]
        raise UsageError(f"{name} must be a whole number below one billion, not {shown!r}")
    if int(str(text)) < least:
        raise UsageError(f"{name} must be {least} or more, not {text}")
    return int(str(text))


def seconds(name: str, text: object, above: float = 0.0) -> float:
    """A finite number above ``above`` from text; UsageError otherwise."""
    try:
        value = float(str(text))
    except ValueError:
        value = math.nan
    if not (above < value <= _LARGEST):
        raise UsageError(f"{name} must be a number above {above:g}, not {str(text)[:40]!r}")
    return value


def add_limit_options(parser: argparse.ArgumentParser, skip: tuple[str, ...] = ()) -> None:
    """One option for each limit, named as the field."""
    group = parser.add_argument_group("limits (seconds unless said otherwise)")
    for name, default in Limits()._asdict().items():
        if name not in skip:
            option = "--" + name.replace("_", "-")
            group.add_argument(
                option, default=None, metavar="N", help=f"{_HELP[name]} ({default:g})"
            )


def limits_of(args: argparse.Namespace, **given: object) -> Limits:
    """Limits from parsed options; ``given`` are values that come from elsewhere (or None).

    Raises UsageError that names the option and the value.
    """
    found: dict = {}
    for name in Limits._fields:
        text = given.get(name, getattr(args, name, None))
        if text is None:
            continue
        label = name if name in given else "--" + name.replace("_", "-")
        if name in _COUNTS:
            found[name] = whole(label, text, 0 if name == "limit" else 1)
        else:
            found[name] = seconds(label, text)
            if name == "every" and found[name] < _LEAST_EVERY:
                raise UsageError(f"{label} must be {_LEAST_EVERY:g} or more, not {text}")
    return Limits()._replace(**found)
