"""Kill this process before its N-th step that leaves a trace outside (KILL_AT=N).

Steps are the programs it starts and the files it writes, renames or removes in the lab folder.
Readings (nvidia-smi, the samples file) do not count: they are not part of the pause cycle.
"""

import os
import signal
import sys

_left = int(os.environ.get("KILL_AT", "0"))
_lab = os.environ.get("FAKE_LAB", "?")


def _count(event, args):
    global _left
    if event == "subprocess.Popen":
        counts = "nvidia-smi" not in str(args[1])
    elif event == "open":
        path, mode = str(args[0]), args[1]
        written = isinstance(mode, str) and set(mode) & set("wa+")
        counts = bool(written) and path.startswith(_lab) and "samples" not in path
    else:
        counts = event in ("os.rename", "os.remove") and str(args[0]).startswith(_lab)
    if counts:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


if _left:
    sys.addaudithook(_count)
