"""Measures `kit.py summarize` on two logs of 150 MB beside GNU `grep -c` on the same bytes.

The logs are stored runs repeated: a plain one, and one full of retries. `make bench` prints wall
and user seconds, peak memory and the ratio to grep, all from one run.

exit codes: 0 within the limits, 1 over a limit, 2 bad usage or a program is missing,
3 inspected nothing
"""

from __future__ import annotations

import argparse
import lzma
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LAB = ROOT / "capture" / "gpu" / "out-h200-miles"
LOGS = {"plain": "plain_s1234", "retry-dense": "kill_noft"}
PATTERN = "Server error '503"
MEGABYTES = 150
WALL_LIMIT_S = 2.0
MEMORY_LIMIT_MIB = 60.0


class Measured(NamedTuple):
    """Of one program: seconds and peak resident memory in MiB."""

    wall: float
    user: float
    peak: float


def repeated(source: Path, target: Path, size: int) -> int:
    """Writes the uncompressed ``source`` again and again until ``size`` bytes; returns bytes."""
    with lzma.open(source) as stream:
        block = stream.read()
    with target.open("wb") as out:
        while out.tell() < size:
            out.write(block)
        return out.tell()


# Peak memory counts from the moment of the fork, so the program is started by a small process of
# its own and not by this one, which has unpacked a log. Its output goes through a pipe, because
# grep stops at the first match when it writes to the null device.
_STARTER = """
import os, subprocess, sys, time
begin = time.perf_counter()
one = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
one.stdout.read()
_, status, usage = os.wait4(one.pid, 0)
wall = time.perf_counter() - begin
print(wall, usage.ru_utime, usage.ru_maxrss, os.waitstatus_to_exitcode(status))
"""


def measure(command: list[str]) -> Measured:
    """Runs a command, reads its output and forgets it. Raises OSError when it fails.

    The peak is never below that of the small starting process, about 10 MiB.
    """
    starter = [sys.executable, "-S", "-E", "-c", _STARTER, *command]
    done = subprocess.run(starter, capture_output=True, text=True, check=False)
    fields = done.stdout.split()
    if len(fields) != 4 or fields[3] not in ("0", "1"):
        raise OSError(f"{' '.join(command)}: failed: {done.stderr.strip()[-300:]}")
    per_mib = 1024**2 if sys.platform == "darwin" else 1024
    wall, user, peak = (float(field) for field in fields[:3])
    return Measured(wall, user, peak / per_mib)


def over_limit(one: Measured) -> list[str]:
    """What of a measurement is over its limit."""
    found = []
    if one.wall > WALL_LIMIT_S:
        found.append(f"wall {one.wall:.2f} s is over {WALL_LIMIT_S:g} s")
    if one.peak > MEMORY_LIMIT_MIB:
        found.append(f"peak memory {one.peak:.0f} MiB is over {MEMORY_LIMIT_MIB:g} MiB")
    return found


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="size of each log")
    args = parser.parse_args(argv)
    if args.megabytes < 1:
        parser.error("--megabytes must be at least 1")
    grep = shutil.which("grep")
    if grep is None:
        print("bench: grep is not installed", file=sys.stderr)
        return 2
    wrong = []
    print(f"{'log':12} {'bytes':>12}  {'program':10} {'wall s':>7} {'user s':>7} {'peak MiB':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for name, run in LOGS.items():
            source = LAB / run / "run.log.xz"
            if not source.exists():
                print(f"bench: {source.relative_to(ROOT)} is missing", file=sys.stderr)
                return 3
            log = Path(folder) / f"{name}.log"
            size = repeated(source, log, args.megabytes * 10**6)
            kit = [sys.executable, str(ROOT / "capture/gpu/kit.py"), "summarize", str(log)]
            programs = {
                "grep -c": [grep, "-c", PATTERN, str(log)],
                "summarize": [*kit, "-o", f"{folder}/summary.json"],
            }
            try:
                # One untimed read puts the log into the page cache for both.
                measure(programs["grep -c"])
                got = {program: measure(command) for program, command in programs.items()}
            except OSError as error:
                print(f"bench: {error}", file=sys.stderr)
                return 2
            for program, one in got.items():
                print(
                    f"{name:12} {size:12,}  {program:10} {one.wall:7.2f} {one.user:7.2f} "
                    f"{one.peak:9.1f}"
                )
            ratio = got["summarize"].wall / got["grep -c"].wall
            print(f"{name:12} summarize takes {ratio:.1f} times the wall time of grep")
            wrong += [f"{name}: {text}" for text in over_limit(got["summarize"])]
    for text in wrong:
        print(f"bench: {text}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
