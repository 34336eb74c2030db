"""Section 7.1: the published numbers that its entries cite."""

from __future__ import annotations

from figures.registry import Figure, figure
from figures.sources import published

# entry, what, name of the value, id in reported.toml, kind, unit (None: that of the source). The
# 503 lines of the source are failed requests.
_ROWS = (
    ("reward import", "time the job stayed up", "import_hours", "import-test-hours", "time", None),
    ("reward import", "503 lines in that time", "import_503", "import-test-503", "count", ""),
    ("Ray memory kill", "node memory at one kill", "kill_gb", "kill-1-gb", "memory", None),
    ("Ray memory kill", "node memory in all", "node_gb", "node-gb", "memory", None),
    ("gap at step 0", "range over healthy runs", "gap", "healthy-gap-0", "metric", None),
    ("low fraction", "KV cache", "kv", "fraction-check-tokens", "count", None),
    ("low fraction", "first rollout", "rollout_low", "fraction-check-rollout-0", "time", None),
    ("a higher fraction", "first rollout", "rollout", "fraction-025-rollout-0", "time", None),
    ("fractional reward", "advantage of each answer", "leak", "advantage-leak", "metric", None),
    ("open requests", "open requests, fewer", "open_low", "client-open-low", "count", ""),
    ("open requests", "client cost with them", "cost_low", "client-cost-256", "time", None),
    ("open requests", "open requests, more", "open_high", "client-open-high", "count", ""),
    ("open requests", "client cost with them", "cost_high", "client-cost-1536", "time", None),
)

_NOUNS = {"import_503": "failed requests|requests|lines"}


@figure("fig-7-1-reported")
def reported_numbers() -> Figure:
    """One row a published number: the entry that cites it, what it is, and the number."""
    values = [
        published(name, "gb10", value_id, kind=kind, unit=unit, noun=_NOUNS.get(name, ""))
        for _, _, name, value_id, kind, unit in _ROWS
    ]
    return Figure(
        shape="A table of published values, one row each.",
        values=values,
        rows=[
            {"entry": row[0], "what": row[1], "published": value.text}
            for row, value in zip(_ROWS, values, strict=True)
        ],
        columns={"entry": "Entry", "what": "What", "published": "Published"},
    )
