"""Rebuilding summaries: any change of log or summary is seen and placed."""

import json
import lzma

from scripts import summaries
from scripts.tree import ROOT, Tree

RUN = "capture/gpu/out-h200-miles/n4"


def check_n4(overlay):
    from scripts.report import Report

    report = Report()
    summaries.check_run(Tree(ROOT, overlay), RUN, report)
    return [str(problem) for problem in report.problems]


def test_the_stored_summary_is_what_the_log_gives():
    assert check_n4({}) == []


def test_a_changed_value_names_run_column_and_both_numbers():
    stored = (ROOT / RUN / "summary.json").read_bytes()
    summary = json.loads(stored)
    name, column = next(iter(summary["runs"][0]["steps"]["columns"].items()))
    old = json.dumps(column[0])
    line = next(n for n, t in enumerate(stored.decode().splitlines()) if f'"{name}": [' in t)
    lines = stored.decode().splitlines(keepends=True)
    lines[line] = lines[line].replace(f"[{old}", "[17.5", 1)
    found = check_n4({f"{RUN}/summary.json": "".join(lines).encode()})
    assert found[0].startswith(f"{RUN}/summary.json:{line + 1}: h200-miles/n4: ")
    assert "17.5" in found[0]
    assert name in found[0]


def test_a_missing_summary_and_a_broken_log_are_named():
    found = check_n4({f"{RUN}/run.log.xz": b"not xz"})
    assert found[0].startswith(f"{RUN}/run.log.xz: cannot be unpacked")
    found = check_n4({f"{RUN}/run.log.xz": lzma.compress(b"nothing\n")})
    assert any("holds 0 runs" in text for text in found)


def test_spaces_in_a_summary_are_a_difference_too():
    stored = (ROOT / RUN / "summary.json").read_bytes()
    (found,) = check_n4({f"{RUN}/summary.json": stored + b"\n"})
    assert "same values, other bytes" in found


def test_every_stored_run_is_looked_at():
    assert RUN in summaries.run_folders(Tree(ROOT))
    assert len(summaries.run_folders(Tree(ROOT))) >= 12
