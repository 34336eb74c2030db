"""The tables of part 8 that are made from facts files."""

import re

import pytest
import yaml

from scripts import insidetables, milesflags, tables
from scripts.tree import ROOT, Tree

TREE = Tree(ROOT, {})


def changed(path, edit):
    """The tree with one facts file edited."""
    whole = yaml.safe_load(TREE.text(path))
    edit(whole)
    return Tree(ROOT, {path: yaml.safe_dump(whole).encode()})


def test_each_method_of_the_facts_has_one_row():
    names = [
        entry["name"] for entry in insidetables.facts(TREE, insidetables.CORRECTIONS)["corrections"]
    ]
    assert sorted(row[0] for row in insidetables.corrections(TREE)[1:]) == sorted(names)
    assert sorted(insidetables.METHODS) == sorted(names)


def test_a_method_that_the_page_does_not_know_is_an_error():
    def add(whole):
        whole["corrections"].append({**whole["corrections"][0], "name": "new one"})

    with pytest.raises(KeyError, match="new one"):
        insidetables.corrections(changed(insidetables.CORRECTIONS, add))


def test_methods_that_remove_a_cause_come_first():
    kinds = [row[2] for row in insidetables.corrections(TREE)[1:]]
    assert kinds == sorted(kinds, key=insidetables.ORDER.index)
    assert kinds[0] == "removes"


def test_each_of_the_five_sources_has_a_method():
    named = ", ".join(row[1] for row in insidetables.corrections(TREE)[1:])
    for source in ("tokens", "routing", "sampling", "numbers", "staleness"):
        assert source in named


def test_a_method_that_august_lacks_gets_no_invented_flag():
    rows = {row[0]: row for row in insidetables.corrections(TREE)[1:]}
    for name in ("sampling replay", "score centering"):
        assert "--" not in rows[name][3]
        assert rows[name][3] in ("no flag of its own", "name not known")
        assert rows[name][4] == "no, since October"
    rest = {
        row[4] for name, row in rows.items() if name not in ("sampling replay", "score centering")
    }
    assert rest == {"yes"}


def test_a_method_with_many_flags_shows_the_first_and_counts_the_rest():
    rows = {row[0]: row for row in insidetables.corrections(TREE)[1:]}
    assert rows["true on-policy contract"][3] == "`--true-on-policy-mode`, and 5 more"
    assert "…icepop_function" in rows["clip-or-drop importance sampling"][3]


def test_the_pages_of_the_methods_are_pages_of_the_manual():
    for row in insidetables.corrections(TREE)[1:]:
        for page in re.findall(r"\((.+?\.md)\)", row[6]):
            assert TREE.exists(f"manuals/miles-101/{page}"), page


def test_hooks_stand_in_the_order_of_a_step_and_are_all_there():
    facts = insidetables.facts(TREE, insidetables.HOOKS)
    order = {f"`{hook['flag']}`": hook["order"] for hook in facts["hooks"]}
    places = [order[row[0].partition("<br>")[0]] for row in insidetables.hooks(TREE)[1:]]
    assert places == list(range(1, facts["header"]["counts"]["hooks"] + 1))


def test_hooks_of_one_trainer_say_so():
    rows = dict(row[0].split("<br>") for row in insidetables.hooks(TREE)[1:])
    assert rows["`--custom-megatron-init-path`"].endswith("Megatron trainer only")
    assert "Megatron" not in rows["`--custom-rm-path`"]


def test_a_hook_that_fsdp_never_calls_says_so():
    limits = dict(insidetables.hook_limits(TREE)[1:])
    assert "FSDP actor never calls it" in limits["`--rollout-data-postprocess-path`"]


def test_calls_and_names_of_code_are_marked_once():
    text = insidetables.marked("fn(args, n_samples); with --group-rm async fn(args, **kwargs)")
    assert text == "`fn(args, n_samples)`; with `--group-rm` `async fn(args, **kwargs)`"


def test_each_router_entry_of_the_facts_is_in_one_of_two_tables():
    routers = {row[0] for row in insidetables.routers(TREE)[1:]}
    cases = {row[0] for row in insidetables.router_policies(TREE)[1:]}
    assert routers == set(insidetables.ROUTERS)
    assert cases == set(insidetables.POLICIES)


def test_every_table_of_part_8_is_registered():
    assert insidetables.TABLES.items() <= tables.TABLES.items()


def test_a_hook_and_a_named_member_of_a_family_are_flags():
    flags = milesflags.with_hooks(
        milesflags.read(TREE.read(milesflags.FLAGS_FILE)), TREE.read(milesflags.HOOKS_FILE)
    )
    line = "--rollout-data-postprocess-path a.b --router-disable-circuit-breaker"
    assert milesflags.line_problems(line, flags, set()) == []
    assert milesflags.line_problems("--router-made-up 1", flags, set())
