"""The verdict words of the run guard, which of them stop a run, and which cause wins.

One row of :data:`ABOUT` a verdict.  ``STOPS`` are the words on which a live guard ends a run.
``SPECIFIC`` causes name what broke; they win over the words that only name the effect
(engine-dead, request-refused, worker-died, no-progress, failed).
"""

from __future__ import annotations

ABOUT = {
    "starting": "no step yet, and no deadline has passed",
    "healthy": "steps advance",
    "finished": "the run ended by itself",
    "stopped": "the run was ended from outside",
    "failed": "the job ended with an error that no other verdict names",
    "ray-memory-kill": "Ray killed a worker because the node ran low on memory",
    "cuda-oom": "CUDA ran out of memory",
    "kernel-missing": "this GPU cannot run a kernel that the settings ask for",
    "port-in-use": "a server of the run could not bind its port",
    "reward-error": "the reward cannot work",
    "engine-dead": "the engine's process is gone, or every request fails",
    "request-refused": "requests are answered with 4xx: the engine lives, nothing can succeed",
    "worker-died": "a Ray actor died",
    "nonfinite": "loss or gradient norm is NaN or infinite in two consecutive steps",
    "no-progress": "a deadline passed without an advancing counter",
    "ends-mid-line": "the log stops inside a line: host reset or full disk suspected",
    "no-signal": "five steps in a row in which every group has one reward",
    "gap-high": "the log-probability gap is above its limit in two consecutive steps",
    "gap-drift": "the log-probability gap has at least doubled and rises",
}

SPECIFIC = frozenset(
    ("ray-memory-kill", "cuda-oom", "kernel-missing", "port-in-use", "reward-error", "nonfinite")
)
STOPS = SPECIFIC | {"engine-dead", "request-refused", "worker-died", "no-progress"}
WARNINGS = ("gap-high", "gap-drift", "no-signal")
FINE = frozenset(("starting", "healthy", "finished", "stopped"))

# Kinds of errors_table rows that end a run, and the verdict that each supports.  Kinds that are
# absent (cuda-error, disk-full, ...) are shown as evidence: what they kill says so itself.
OF_KIND = {
    "ray-memory-kill": "ray-memory-kill",
    "cuda-oom": "cuda-oom",
    "kernel-missing": "kernel-missing",
    "port-in-use": "port-in-use",
    "engine-died": "engine-dead",
    "engine-hang": "engine-dead",
    "worker-died": "worker-died",
    "collective-timeout": "worker-died",
}
