"""The tables of part 6 against their facts file."""

import pytest
import yaml

from scripts import placementtables as tables
from scripts.tree import ROOT, Tree

TREE = Tree(ROOT, {})


def changed(change) -> Tree:
    """The repository with a changed facts file."""
    facts = yaml.safe_load(TREE.text(tables.FACTS))
    change(facts)
    return Tree(ROOT, {tables.FACTS: yaml.safe_dump(facts).encode()})


@pytest.mark.parametrize("name", tables.TABLES)
def test_every_row_fills_every_column_of_its_table(name):
    head, *rows = tables.TABLES[name](TREE)
    assert rows
    assert all(len(row) == len(head) for row in rows)
    assert all(cell.strip() for row in rows for cell in row)


def test_every_transfer_mode_of_the_flag_has_a_row():
    flags = yaml.safe_load(TREE.text("manuals/data/miles-flags.yaml"))["flags"]
    (flag,) = [f for f in flags if f["name"] == "--update-weight-transfer-mode"]
    shown = {row[0].strip("`") for row in tables.weight_transfer(TREE)[1:]}
    assert set(flag["choices"]) < shown


def test_every_trainer_of_the_flag_has_a_row_and_the_default_is_marked():
    flags = yaml.safe_load(TREE.text("manuals/data/miles-flags.yaml"))["flags"]
    (flag,) = [f for f in flags if f["name"] == "--train-backend"]
    shown = [row[0] for row in tables.trainers(TREE)[1:]]
    assert {f"`{value}`" for value in flag["choices"]} <= {name.split(" ")[0] for name in shown}
    assert [name for name in shown if "(default)" in name] == [f"`{flag['default']}` (default)"]


def test_a_placement_that_we_have_no_words_for_is_refused():
    tree = changed(lambda facts: facts["placements"].append({"name": "on the moon", "how": "x"}))
    with pytest.raises(ValueError, match="on the moon"):
        tables.placement(tree)


def test_words_for_a_mode_that_the_facts_lost_are_refused():
    tree = changed(lambda facts: facts["weight_transfer"].pop(2))
    with pytest.raises(ValueError, match="p2p"):
        tables.weight_transfer(tree)


def test_a_part_that_august_lacks_says_so_and_claims_nothing():
    (row,) = [row for row in tables.fault_tolerance(TREE)[1:] if "weight_update" in row[0]]
    assert row[2:4] == ["unknown", "unknown"]
    assert "Not in the code of 2026-08-21" in row[4]
    (row,) = [row for row in tables.trainers(TREE)[1:] if "torchtitan" in row[0]]
    assert row[2:5] == ["lost"] * 3


def test_what_a_resume_loses_stands_beside_what_it_restores():
    rows = tables.resume_parts(TREE)[1:]
    facts = tables.facts(TREE, "checkpoint_resume_fsdp")
    assert [row[1] for row in rows].count("yes") == len(facts["saved"])
    assert [row[1] for row in rows].count("no") == len(facts["not_saved"])


@pytest.mark.parametrize(
    ("text", "made"),
    [
        (
            "refused with train_async.py, --fully-async, p2p",
            "Refused with `train_async.py`, `--fully-async`, p2p.",
        ),
        ("fails; see (tools/convert.py)", "Fails. See (`tools/convert.py`)."),
        ("torch_dist made", "`torch_dist` made."),
        ("split and/or not, 1.5 times", "Split and/or not, 1.5 times."),
    ],
)
def test_facts_become_sentences_with_code_marked(text, made):
    assert tables.sentences(text) == made
