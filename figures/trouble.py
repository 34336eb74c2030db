"""Section 7.1: the published numbers that its entries cite."""

from __future__ import annotations

from figures.registry import Figure, figure
from figures.sources import cited, published
from figures.tablefigure import published_table
from figures.values import Value

# entry, what, name of the value, where it stands, kind, unit (None: that of the source). It stands
# in reported.toml of the GB10 lab or, as SOURCE.VALUE, in sources.toml. The 503 lines of the lab
# are failed requests.
_ROWS = (
    (
        "idle GPU",
        "fewest 503 lines in a full minute, rounded down",
        "least_rounded",
        "failed-run-min-per-minute-rounded",
        "count",
        "",
    ),
    ("reward import", "time the job stayed up", "import_hours", "import-test-hours", "time", None),
    ("reward import", "503 lines in that time", "import_503", "import-test-503", "count", ""),
    ("Ray memory kill", "node memory at one kill", "kill_gb", "kill-1-gb", "memory", None),
    ("Ray memory kill", "node memory in all", "node_gb", "node-gb", "memory", None),
    ("gap at step 0", "range over healthy runs", "gap", "healthy-gap-0", "metric", None),
    ("low fraction", "KV cache", "kv", "fraction-check-tokens", "count", None),
    ("low fraction", "first rollout", "rollout_low", "fraction-check-rollout-0", "time", None),
    ("a higher fraction", "first rollout", "rollout", "fraction-025-rollout-0", "time", None),
    (
        "fractional reward",
        "advantage of each answer",
        "leak",
        "miles-issue-fractional-rewards.advantage",
        "metric",
        None,
    ),
    (
        "open requests",
        "open requests, fewer",
        "open_low",
        "miles-issue-client-cost.open-few",
        "count",
        "",
    ),
    (
        "open requests",
        "client cost with them",
        "cost_low",
        "miles-issue-client-cost.cost-few",
        "time",
        None,
    ),
    (
        "open requests",
        "open requests, more",
        "open_high",
        "miles-issue-client-cost.open-many",
        "count",
        "",
    ),
    (
        "open requests",
        "client cost with them",
        "cost_high",
        "miles-issue-client-cost.cost-many",
        "time",
        None,
    ),
)

_NOUNS = dict.fromkeys(("import_503", "least_rounded"), "failed requests|requests|lines")


def _value(name: str, place: str, kind: str, unit: str | None) -> Value:
    if "." in place:
        return cited(name, place, kind=kind, unit=unit)
    return published(name, "gb10", place, kind=kind, unit=unit, noun=_NOUNS.get(name, ""))


@figure("fig-7-1-reported")
def reported_numbers() -> Figure:
    """One row a published number: the entry that cites it, what it is, and the number."""
    values = [_value(*row[2:]) for row in _ROWS]
    columns = {"entry": "Entry", "what": "What", "published": "Published"}
    return published_table(values, _ROWS, columns)
