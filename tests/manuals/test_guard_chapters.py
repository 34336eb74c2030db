"""Settings and words that sections 1.2 and 7.1 state in prose are those of the code."""

import argparse
import re
from pathlib import Path

import heat_guard
from mileskit.guard import guardlimits, verdicts
from mileskit.heat import heat_policy

MANUAL = Path(__file__).resolve().parents[2] / "manuals" / "miles-101"
GUARD = (MANUAL / "1-2-guard-a-run.md").read_text(encoding="utf-8")
TROUBLE = (MANUAL / "7-1-troubleshooting.md").read_text(encoding="utf-8")


def slug(heading: str) -> str:
    """The anchor that the site makes of a heading."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower())).strip("-")


def entries() -> dict[str, str]:
    """Heading and text of each entry of 7.1."""
    parts = re.split(r"^### (.+)$", TROUBLE, flags=re.MULTILINE)
    return {
        head: re.split(r"^## ", text, flags=re.M)[0]
        for head, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def test_the_guard_page_states_the_limits_of_the_code():
    limits = guardlimits.Limits()
    assert f"Every {limits.every:g} s the guard looks" in GUARD
    assert f"Checks are {limits.every:g} s apart" in GUARD
    assert f"watchdog.py miles-plain {limits.limit} {limits.checks}" in GUARD
    assert f"window of {limits.window:g} s" in GUARD


def test_the_heat_page_states_the_limits_of_the_code():
    heat = heat_policy.Limits()
    parser = argparse.ArgumentParser()
    heat_guard.add_arguments(parser)
    assert f"Every {parser.get_default('interval_s'):g} s it reads" in GUARD
    assert f"At {heat.pause_c:g} C or above it pauses" in GUARD
    lasts = f"lasts {heat.min_pause_s:g} s at the least and {heat.max_pause_s:g} s at the most"
    assert f"A pause ends at {heat.resume_c:g} C or below, but {lasts}" in GUARD


def test_every_verdict_leads_to_an_entry_that_exists():
    table = [line for line in TROUBLE.splitlines() if line.startswith("| `")]
    words = {word for line in table for word in re.findall(r"`([a-z-]+)`", line.split("|")[1])}
    assert set(verdicts.ABOUT) <= words
    anchors = {slug(head) for head in entries()}
    for line in table:
        for anchor in re.findall(r"\]\(#([\w-]+)\)", line):
            assert anchor in anchors, line


def test_the_verdict_table_says_which_verdicts_stop_a_run():
    for line in TROUBLE.splitlines():
        if line.startswith("| `") and "](#" in line:
            cells = [cell.strip() for cell in line.split("|")]
            for word in re.findall(r"`([a-z-]+)`", cells[1]):
                assert (cells[2] == "yes") == (word in verdicts.STOPS), line


def test_every_entry_has_a_cause_a_check_a_fix_and_a_tier():
    assert len(entries()) >= 30
    for head, text in entries().items():
        for label in ("Cause", "Check", "Fix", "Tier"):
            assert text.count(f"- **{label}**: ") == 1, f"{head}: {label}"


def test_every_tier_is_one_of_those_that_the_page_explains():
    tiers = ("measured here", "reported by the GB10 lab", "reported in the tracker")
    tiers += ("read from code", "made-up log")
    for head, text in entries().items():
        tier = text.partition("- **Tier**: ")[2]
        assert any(word in tier for word in tiers), head
