"""The tables of section 1.2 that are made from the guard's code and the made-up logs."""

import importlib
import json

import miles_grpo
from mileskit.guard import guardlimits

from scripts import commands, guardtables, render, tables
from scripts.tree import ROOT, Tree

TREE = Tree(ROOT, {})


def test_the_rules_state_the_limits_of_the_code():
    text = str(guardtables.guard_rules(TREE))
    limits = guardlimits.Limits()
    assert f"{limits.checks} checks in a row" in text
    assert f"over {limits.limit} failed requests in the last {limits.window:g} s" in text
    assert f"{limits.grace:g} s without a recovery" in text
    assert f"start-up: {limits.startup_stall / 60:g} min" in text


def test_a_changed_limit_changes_the_table(monkeypatch):
    before = guardtables.guard_rules(TREE)
    changed = guardlimits.Limits(checks=7)
    monkeypatch.setattr(guardlimits, "Limits", lambda: changed)
    after = guardtables.guard_rules(TREE)
    assert before != after
    assert "7 checks in a row" in after[1][2]


def test_each_made_up_log_has_a_row_with_its_expected_verdict():
    expected = json.loads(TREE.text(f"{guardtables.CASES}/expected.json"))
    rows = guardtables.guard_cases(TREE)[1:]
    assert {row[0]: row[2] for row in rows} == {k: v["verdict"] for k, v in expected.items()}


def test_each_row_states_the_seconds_that_its_case_allows():
    expected = json.loads(TREE.text(f"{guardtables.CASES}/expected.json"))
    for name, _, _, stopped, seconds in guardtables.guard_cases(TREE)[1:]:
        if "within_s" in expected[name]:
            assert stopped == "30 of 30", name
            assert float(seconds.split(" to ")[1]) <= expected[name]["within_s"], name


def test_the_traps_of_the_launcher_are_all_listed():
    rows = tables.launcher_traps(TREE)[1:]
    assert [row[0] for row in rows] == [trap.id for trap in miles_grpo.TRAPS]


def test_a_table_with_a_tier_gets_a_badge_and_escapes_its_cells():
    html = render.figurehtml.plain_table("x", [["a"], ["<think>"]], "synthetic", "T")
    assert "&lt;think&gt;" in html
    assert '<span class="badge-key">tier</span> synthetic' in html


def test_a_verb_that_runs_on_its_own_is_checked_with_its_own_options():
    watchdog = importlib.import_module("watchdog")
    assert commands.parser_problem(watchdog, ["miles-plain", "100", "10"]) is None
    assert "--nope" in commands.parser_problem(watchdog, ["--nope"])
