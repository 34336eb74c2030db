"""What a check of the watchdog costs: its own time, the Docker client's, and memory.

The log is a stored retry-dense one, repeated to two sizes: the check must cost the same.
`python -m scripts.bench_guard` prints one line a size, and one for the client when an engine
answers.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DENSE = ROOT / "capture/gpu/out-h200-miles/kill_noft/run.log.xz"
SIZES_MB = (15, 150)
CHECKS = 2000
CHUNK = 1 << 16

# Run in a process of its own, so that its peak memory is its own.
PROGRAM = """
import lzma, resource, sys, time
sys.path.insert(0, sys.argv[1])
from mileskit.guard.guardlimits import Limits
from mileskit.guard.guardlive import LiveLog
one = lzma.open(sys.argv[2]).read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
log, size, began = LiveLog(Limits(), 0.0, 0.0), 0, time.perf_counter()
while size < float(sys.argv[3]) * 1e6:
    for at in range(0, len(one), int(sys.argv[4])):
        log.feed(one[at : at + int(sys.argv[4])], 0.5)
    size += len(one)
read = time.perf_counter() - began
log.go_live(1.0)
began = time.perf_counter()
for k in range(int(sys.argv[5])):
    log.check(1.0 + k / 1000)
check = (time.perf_counter() - began) / int(sys.argv[5])
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(size, read, check, before / 1024, after / 1024)
"""


def measure(size_mb: float, log: Path = DENSE, checks: int = CHECKS) -> dict:
    """Seconds to read a log of ``size_mb`` megabytes, seconds a check, memory in MiB."""
    words = [ROOT / "capture/gpu", log, size_mb, CHUNK, checks]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, words)],
        capture_output=True,
        text=True,
        check=True,
    )
    size, read, check, before, after = map(float, done.stdout.split())
    return {
        "bytes": size,
        "read_s": read,
        "check_s": check,
        "peak_mib": after,
        "peak_before_mib": before,
    }


def client_s(rounds: int = 10) -> float | None:
    """Median seconds of one look with the Docker client; None when no engine answers."""
    words = ["docker", "ps", "--quiet"]
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        try:
            done = subprocess.run(words, capture_output=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode:
            return None
        taken.append(time.perf_counter() - began)
    return sorted(taken)[len(taken) // 2]


def main() -> int:
    """Prints the table."""
    for size in SIZES_MB:
        found = measure(size)
        print(
            f"{found['bytes'] / 1e6:6.1f} MB read in {found['read_s']:.2f} s; a check takes "
            f"{found['check_s'] * 1e6:.0f} us; peak memory {found['peak_mib']:.1f} MiB, "
            f"{found['peak_before_mib']:.1f} MiB of it before the guard read anything"
        )
    look = client_s()
    told = "no engine answered: not measured" if look is None else f"{look * 1e3:.0f} ms a look"
    print(f"Docker client: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
