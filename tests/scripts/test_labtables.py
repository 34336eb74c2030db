"""The tables of the lab notes say what the records of the labs say."""

import re
import tomllib

import pytest

from scripts import labtables
from scripts.tree import ROOT, Tree

TREE = Tree(ROOT, {})
REPORTED = tomllib.loads((ROOT / labtables.GB10 / "reported.toml").read_text())
STORED = sorted(path.parent.name for path in (ROOT / labtables.H200).glob("*/run.toml"))


def changed(path: str, old: str, new: str) -> Tree:
    text = TREE.read(path).decode()
    assert old in text
    return Tree(ROOT, {path: text.replace(old, new).encode()})


@pytest.mark.parametrize("name", sorted(labtables.TABLES))
def test_every_row_has_as_many_cells_as_the_heading_and_a_first_cell(name):
    heading, *rows = labtables.TABLES[name](TREE)
    assert rows
    assert {len(row) for row in rows} == {len(heading)}
    assert all(row[0] for row in rows)


def test_every_run_that_the_source_tells_of_is_a_row():
    rows = labtables.gb10_runs(TREE)[1:]
    assert len(rows) == len(REPORTED["run"])
    named = {row[0].strip("`") for row in rows} - {"no name given"}
    assert named == {run["name"] for run in REPORTED["run"] if run["name"]}


def test_the_two_partial_runs_of_the_source_and_no_other_are_marked():
    marked = [row[0] for row in labtables.gb10_runs(TREE)[1:] if "partial" in row[4]]
    assert marked == ["`e2-n16`", "`e2b-dapo-filter`"]


def test_no_note_points_at_a_line_of_our_working_copy():
    text = "\n".join(cell for row in labtables.gb10_runs(TREE) for cell in row)
    assert not re.search(r"from \d{3}\b(?!-)|line \d", text)


def test_the_machine_of_the_source_has_its_digest_and_its_unified_memory():
    rows = dict(row[:2] for row in labtables.gb10_machine(TREE)[1:])
    assert rows["memory, shared by CPU and GPU"] == "128 GB"
    assert rows["memory, as nvidia-smi reports it"] == "`[N/A]`"
    assert rows["image digest"].startswith("`sha256:c64fa344")


def test_a_changed_setting_changes_its_cell():
    path = f"{labtables.GB10}/reported.toml"
    tree = changed(path, 'printed = "[N/A]"', 'printed = "lost"')
    rows = dict(row[:2] for row in labtables.gb10_machine(tree)[1:])
    assert rows["memory, as nvidia-smi reports it"] == "lost"


def test_a_setting_that_the_source_does_not_have_is_an_error(monkeypatch):
    monkeypatch.setattr(labtables, "GUARD", ("guard-colour",))
    with pytest.raises(KeyError, match="guard-colour"):
        labtables.gb10_guard(TREE)


def test_every_stored_run_is_a_row_in_the_order_of_its_start():
    rows = labtables.h200_runs(TREE)[1:]
    names = [row[0].strip("`") for row in rows]
    assert sorted(names) == STORED
    assert names[0] == "smoke"


def test_the_wrong_columns_of_a_run_are_named():
    rows = {row[0].strip("`"): row[-1] for row in labtables.h200_runs(TREE)[1:]}
    assert rows["plain_s1234"] == "`rollout/ref_log_probs`, `train/kl_loss`"
    assert rows["plain3"] == "none"


def test_only_one_run_of_ours_is_alone_to_its_end():
    rows = labtables.h200_runs(TREE)[1:]
    assert [r[0] for r in rows if r[6] == "alone" and r[4] == "finished"] == ["`plain_s1234`"]


def test_every_stand_in_is_a_row_with_the_runs_that_have_it():
    lab = tomllib.loads((ROOT / labtables.H200 / "lab.toml").read_text())
    rows = labtables.h200_stand_ins(TREE)[1:]
    more = {
        item for other in lab["other_setup"] for item in other.get("add", {}).get("not_stock", [])
    }
    assert len(rows) == len(lab["setup"]["not_stock"]) + len(more)
    fused = next(where for what, where in rows if "Megatron's fused" in what)
    assert fused == "all but `smoke`"


def test_every_lost_table_is_listed():
    assert len(labtables.gb10_lost(TREE)) == len(REPORTED["lost"]) + 1
