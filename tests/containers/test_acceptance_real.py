"""The protocol against a real engine and the real watchdog: the killed run is stopped by it."""

import json
import re
import subprocess
import time

import pytest
from mileskit.acceptance import bundlecheck
from realruns import build_image, real_lab

from tests.capture import acceptlab
from tests.capture.acceptlab import DEATH, STEPS

IMAGE = "miles-101-test/protocol:1"
# In Python's place: prints a log; as the killing program it lets the log go on behind the kill.
PYTHON = """\
#!/bin/sh
if [ "$1" = -c ]; then
    touch /root/lab/killed
    echo "{\\"at\\": $(date +%s), \\"pids\\": [7]}"
    exit 0
fi
trap 'echo "# end 2026-11-29T14:00:00Z rc=143 seconds=1"; exit 143' TERM
cat "/root/lab/$MILES_RUN.before"
while [ -f "/root/lab/$MILES_RUN.hang" ]; do
    [ -f /root/lab/killed ] && rm /root/lab/killed && cat /root/lab/after
    sleep 0.1
done
echo "# end 2026-11-29T14:00:00Z rc=0 seconds=1"
"""


@pytest.fixture
def real(tmp_path, daemon):
    """A lab whose docker is the real client, and an image that plays both runs."""
    build_image(daemon, tmp_path / "context", IMAGE, PYTHON)
    lab = real_lab(tmp_path, daemon)
    yield lab
    daemon.remove(*daemon.docker("ps", "-aq").stdout.split())


def as_of_now(lines: list[bytes], which=max) -> bytes:
    """The lines with their clock times moved so that the last one (min: the first) is now."""
    stamp = re.compile(rb"(?<=\[)2026-11-29 (\d\d):(\d\d):(\d\d)")

    def seconds(found: re.Match) -> int:
        return int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3])

    now = which(seconds(found) for line in lines for found in stamp.finditer(line))

    def moved(found: re.Match) -> bytes:
        when = time.gmtime(time.time() - now + seconds(found))
        return time.strftime("%Y-%m-%d %H:%M:%S", when).encode()

    return b"\n".join(stamp.sub(moved, line) for line in lines) + b"\n"


def test_the_watchdog_stops_the_run_whose_engine_was_killed(real):
    steps = acceptlab.stored_log("plain3", STEPS, "2026-11-29T13:27:19Z")
    (real.lab / f"{STEPS}.before").write_bytes(b"\n".join(steps) + b"\n")
    death = acceptlab.stored_log("kill_noft", DEATH, "2026-11-29T12:55:47Z")
    at = next(n for n, line in enumerate(death) if line.startswith(acceptlab.DIED))
    (real.lab / f"{DEATH}.before").write_bytes(as_of_now(death[:at]))
    (real.lab / "after").write_bytes(as_of_now(death[at : at + 600], min))
    (real.lab / f"{DEATH}.hang").touch()
    words = ["--image", IMAGE, "--gpus", "none", "--no-heat-guard", "--despite-doctor", "--json"]
    run = subprocess.run(
        real.words("acceptance", *words, "--limit-minutes", "8"),
        env=real.env,
        capture_output=True,
        text=True,
        timeout=560,
    )
    about = json.loads(run.stdout)
    assert acceptlab.verdicts(about)["steps"] == "passed", run.stderr
    row = next(row for row in about["stages"] if row["name"] == "engine-death")
    assert row["verdict"] == "passed", run.stderr
    assert row["watchdog_verdict"] == "engine-dead"
    assert 0 <= row["seconds_to_stop"] < 400
    assert bundlecheck.read(acceptlab.bundle_of(about)).runs() == [DEATH, STEPS]
