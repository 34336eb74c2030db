"""Run one outside program with a deadline that holds.

`subprocess.run(timeout=...)` kills the program and then waits for it without a limit, so a program
stuck in the kernel (nvidia-smi on a lost GPU) would hang its caller. Here such a program is left
behind and reaped later.
"""

import contextlib
import os
import signal
import subprocess
from typing import NamedTuple

REAP_S = 1.0
"""Seconds a killed program gets to end before it is left behind."""

_left_behind: list[subprocess.Popen] = []


class Ran(NamedTuple):
    """What came of one program.

    status: exit status (negative: the signal that ended it), or None when there is no answer.
    out, err: what it printed, decoded with replacement characters, "" when there is no answer.
    trouble: "" or why there is no answer: "missing", "timeout", or the system's words.
    """

    status: int | None
    out: str = ""
    err: str = ""
    trouble: str = ""


def run_program(args: list[str], timeout_s: float) -> Ran:
    """Run `args` for at most `timeout_s` seconds and never raise for what the program does.

    The program gets a session of its own, so that a Ctrl+C on the terminal does not cut a
    half-sent request, and its messages are asked for in plain English (LC_ALL=C).
    """
    _reap()
    try:
        program = subprocess.Popen(
            args,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        return Ran(None, trouble="missing")
    except OSError as error:
        return Ran(None, trouble=error.strerror or str(error))
    try:
        out, err = program.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        end_program(program)
        return Ran(None, trouble="timeout")
    return Ran(program.returncode, _text(out), _text(err))


def end_program(program: subprocess.Popen) -> None:
    """Kill the program's session; leave it behind when even that does not end it in time."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(program.pid, signal.SIGKILL)
    try:
        program.wait(timeout=REAP_S)
    except subprocess.TimeoutExpired:
        _left_behind.append(program)
    for pipe in (program.stdout, program.stderr):
        if pipe is not None:
            pipe.close()


def still_stuck(name: str) -> bool:
    """Whether an earlier, killed call of the program `name` has still not ended."""
    _reap()
    return any(program.args[0] == name for program in _left_behind)


def _reap() -> None:
    _left_behind[:] = [program for program in _left_behind if program.poll() is None]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
