"""How fast the run guard sees a failure, and how often it stops a run that is none.

Rows come from the stored runs (real) and from the made-up logs of the tests (synthetic), each
driven through all rules at every phase offset.  `python -m scripts.detection` prints them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FINE = ("finished", "stopped")
# Hanley and Lippman-Hand, JAMA 1983: no event in n trials gives a rate of at most 3/n (95 %).
RULE_OF_THREE = 3


def _kit(root: Path):
    folder = str(root / "capture" / "gpu")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import logdrive
    import logsource
    import watchdog_replay

    return logdrive, logsource, watchdog_replay


def _row(root: Path, path: Path, kind: str, now_after_s: float) -> dict:
    """One log: verdict, offsets that stop it, fewest and most seconds to the stop, hours."""
    logdrive, logsource, replay = _kit(root)
    with logsource.open_log(path) as stream:
        log = logdrive.load(stream)
    until = (log.last_time or 0.0) + now_after_s
    run = log.runs[-1]
    table = replay.full_table(run, replay.Limits(), until)
    verdict = logdrive.drive(run, until=until, act=False).decision.verdict
    low, high = table["seconds"] or (None, None)
    return {
        "log": str(path.relative_to(root)),
        "kind": kind,
        "verdict": verdict,
        "offsets": table["offsets"],
        "stopped": table["stopped"],
        "seconds_min": low,
        "seconds_max": high,
        "hours": (until - run.start) / 3600,
    }


def rows(root: Path) -> list[dict]:
    """Real logs first, then synthetic ones, each in the order of its name.

    ``seconds_min`` and ``seconds_max``: from the first failed request or fatal line to the
    decision to stop, over the offsets that stopped; None when none did or nothing was printed.
    """
    stored = sorted(root.glob("capture/gpu/out-*/*/run.log.xz"))
    found = [_row(root, path, "real", 0.0) for path in stored]
    cases = root / "tests/fixtures/synthetic-cases"
    expected = json.loads((cases / "expected.json").read_text(encoding="utf-8"))
    for name, case in sorted(expected.items()):
        (path,) = cases.glob(f"{name}.log*")
        found.append(_row(root, path, "synthetic", case.get("now_after_s", 0.0)))
    return found


def false_stops(found: list[dict]) -> dict:
    """Stops among the real runs that needed none, and what their number supports.

    ``at_most``: upper 95 % bound of the share of such runs that are stopped (rule of three);
    None when one was stopped.  ``at_most_per_hour``: the same per hour of such runs.
    """
    healthy = [row for row in found if row["kind"] == "real" and row["verdict"] in FINE]
    hours = sum(row["hours"] for row in healthy)
    stopped = sum(row["stopped"] > 0 for row in healthy)
    clean = bool(healthy) and not stopped
    return {
        "logs": len(healthy),
        "hours": hours,
        "stopped": stopped,
        "at_most": min(1.0, RULE_OF_THREE / len(healthy)) if clean else None,
        "at_most_per_hour": RULE_OF_THREE / hours if clean and hours else None,
    }


def main() -> int:
    """Prints the rows and the false stops as JSON."""
    found = rows(ROOT)
    print(json.dumps({"rows": found, "false_stops": false_stops(found)}, indent=1))
    return 0 if found else 3


if __name__ == "__main__":
    sys.exit(main())
