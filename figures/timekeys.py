"""Which entries of a summary are times, and which the general reader of facts leaves alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

# Durations, rates and utilisations: everything that a second job on the same GPU changes.
_TIMING = re.compile(r"^(perf/(?!mfu_peak_tflops)|time/)|(_time|_seconds|_per_sec|_per_s)$")
_TIME_KEYS = frozenset({"time", "seconds", "total_s", "start", "end", "started", "timing"})
# Tables of the summary -> the method that reads them under their own rules.
BY_METHOD = {
    "rollouts": "column()",
    "steps": "column()",
    "medians": "median()",
    "startup": "startup()",
}
# What a log says of itself and its errors: no speed of any work.
OF_LOG_LINES = frozenset({"first_time", "last_time", "started", "ended", "errors", "retries"})


def is_time_column(name: str) -> bool:
    """True for a metric that a second job on the same GPU would change."""
    return bool(_TIMING.search(name))


def is_time(key: str) -> bool:
    """True for a key of the summary that names a time, or a metric that is one."""
    return key in _TIME_KEYS or is_time_column(key)


def holds_time(item: Any) -> bool:
    """True when an entry has a duration or a time anywhere in it."""
    if isinstance(item, dict):
        return any(is_time(key) or holds_time(value) for key, value in item.items())
    return isinstance(item, list) and any(holds_time(part) for part in item)


def is_median(keys: Sequence[str]) -> bool:
    """True for the keys of one number of one median."""
    return len(keys) == 3 and keys[0] == "medians"
