"""The table of what became of the older documents: every row leads somewhere or gives a reason."""

import json

import pytest

from scripts import featuretables
from scripts.tree import ROOT, Tree

TREE = Tree(ROOT, {})
ROW = {"id": "a", "seed": "000", "section": "1.1", "what": "A thing."}
PLACE = ["miles-101/1-1-first-step.md"]


def read(*rows):
    text = "\n".join(f"- {json.dumps(row)}" for row in rows)
    return featuretables.features(Tree(ROOT, {featuretables.FILE: text.encode()}))


def test_each_document_has_all_its_features():
    rows = {row[0]: row for row in featuretables.counts(TREE)[1:]}
    assert rows["GB10 manual"][1] == "355"
    assert rows["page of the sequel"][1] == "94"


def test_a_page_becomes_a_link_with_its_title_and_a_file_a_name():
    rows = featuretables.first(
        Tree(
            ROOT,
            {
                featuretables.FILE: json.dumps(
                    [{**ROW, "state": "done", "where": [f"{PLACE[0]}#x", "Makefile"]}]
                ).encode()
            },
        )
    )
    assert rows[1][3] == "[1.1 One finished GRPO step](1-1-first-step.md#x), `Makefile`."


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"state": "done"}, "done without a place"),
        ({"state": "superseded", "why": "x"}, "superseded without a place"),
        ({"state": "superseded", "where": PLACE}, "superseded without a reason"),
        ({"state": "refused"}, "refused without a reason"),
        ({"state": "soon", "where": PLACE}, "state 'soon'"),
        ({"state": "later", "where": PLACE}, "state 'later'"),
        ({"state": "done", "where": ["miles-101/9-9.md"]}, "no page or file 'miles-101/9-9.md'"),
        ({"state": "done", "where": ["scripts/none.py"]}, "no page or file"),
        (
            {"state": "done", "where": ["tests/scripts/test_cli.py::test_none"]},
            "no page or file",
        ),
        (
            {"state": "done", "where": ["tests/scripts/test_claims.py::test_none"]},
            "no test 'test_none'",
        ),
        ({"state": "done", "where": PLACE, "note": "x"}, "unknown key 'note'"),
    ],
)
def test_a_row_that_leads_nowhere_is_named(row, says):
    with pytest.raises(ValueError, match=says.replace("(", r"\(")) as error:
        read({**ROW, **row})
    assert str(error.value).startswith("manuals/data/features.yaml: 'a'")


def test_an_id_stands_once():
    row = {**ROW, "state": "done", "where": PLACE}
    with pytest.raises(ValueError, match="there twice"):
        read(row, row)
