"""Section 7.2: the published numbers behind "change one thing per run"."""

from __future__ import annotations

from figures.registry import Figure, figure
from figures.sources import published
from figures.tablefigure import published_table

# what, name of the value, id in reported.toml, kind, unit (None: that of the source)
_ROWS = (
    ("runs that failed", "failed", "failed-runs", "count", None),
    ("failures that began in the engine", "in_engine", "failed-in-engine", "count", None),
    ("failures that began in the trainer", "in_trainer", "failed-in-trainer", "count", None),
    ("rollout gain, two settings changed", "two_changed", "first-pair-gain", "share", None),
    ("memory share of one run of that pair", "share_a", "first-pair-fraction-a", "share", ""),
    ("memory share of the other run", "share_b", "first-pair-fraction-b", "share", ""),
    ("rollout gain, one setting changed", "one_changed", "pair-gain-percent", "share", None),
    ("step 10 of one run, rollout", "rollout_a", "e6a-step-10", "time", None),
    ("step 10 of one run, answer length", "length_a", "e6a-length-10", "count", None),
    ("step 10 of the other run, rollout", "rollout_b", "e3c-step-10", "time", None),
    ("step 10 of the other run, answer length", "length_b", "e3c-length-10", "count", None),
)


@figure("fig-7-2-gb10")
def gb10_record() -> Figure:
    """One row a published number."""
    values = [
        published(name, "gb10", value_id, kind=kind, unit=unit)
        for _, name, value_id, kind, unit in _ROWS
    ]
    columns = {"what": "Number", "published": "Published"}
    return published_table(values, _ROWS, columns)
