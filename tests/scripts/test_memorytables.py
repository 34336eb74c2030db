"""The generated tables of part 2 say what the facts files say."""

import pytest
import yaml

from scripts import memorytables
from scripts.tree import ROOT, Tree

TREE = Tree(ROOT, {})


def test_every_side_of_the_offload_facts_is_a_row():
    facts = yaml.safe_load((ROOT / memorytables.PLACEMENT).read_bytes())["offload"]
    heading, *rows = memorytables.offload_sides(TREE)
    assert [row[0] for row in rows] == [side["side"] for side in facts]
    assert {len(row) for row in rows} == {len(heading)}


def test_flags_and_calls_are_inline_code_and_places_in_the_source_are_left_out():
    text = "\n".join(cell for row in memorytables.offload_sides(TREE) for cell in row)
    assert "`--no-offload-rollout`" in text
    assert "`model.cpu()`" in text
    assert ".py" not in text


def test_a_lora_flag_that_the_facts_do_not_have_is_an_error(monkeypatch):
    monkeypatch.setattr(memorytables, "LORA", ("--lora-colour",))
    with pytest.raises(KeyError, match="lora-colour"):
        memorytables.lora_flags(TREE)
