"""Stored labs: a page and its notebook are the same cells, run from top to bottom, with outputs."""

import json
import re

import pytest
from minirepo import FakeBook

from scripts import claims, labs
from scripts.chapters import ChapterError, parse
from scripts.tree import ROOT, Tree

PAGE = """---
title: A lab
jupyter:
  kernelspec:
    name: python3
---

# A lab

You add.

```python
a = 1 + 1
print("sum", a)
```

The value again:

```python
a
```

The end.
"""
NAME = "manuals/m/labs/1-a.md"
NOTEBOOK = "manuals/m/labs/1-a.ipynb"


def text(source):
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def code(source, ran, *outputs):
    cell = {"cell_type": "code", "metadata": {}, "source": source}
    return cell | {"execution_count": ran, "outputs": list(outputs)}


def stream(said, name="stdout"):
    return {"output_type": "stream", "name": name, "text": said}


def value(shown, kind="text/plain"):
    data = {kind: shown}
    return {"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": 2}


def cells():
    return [
        {"cell_type": "raw", "metadata": {}, "source": "---\ntitle: A lab\n---"},
        text("# A lab\n\nYou add."),
        code('a = 1 + 1\nprint("sum", a)', 1, stream("sum 2\n")),
        text("The value again:"),
        code("a", 2, value("2")),
        text("The end."),
    ]


def check(tmp_path, made=None, page=PAGE, name=NOTEBOOK):
    document = {"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": made or cells()}
    overlay = {NAME: page.encode(), name: json.dumps(document).encode()}
    return labs.check(tmp_path, overlay)


def said(*args, **named):
    return [str(problem) for problem in check(*args, **named).problems]


def test_a_stored_lab_is_right_and_counted(tmp_path):
    report = check(tmp_path)
    assert report.problems == []
    assert report.counts == {"labs": 1, "code cells": 2, "output lines": 2}


def test_a_cell_that_never_ran_is_named_with_its_line(tmp_path):
    made = cells()
    made[2] = code(made[2]["source"], None)
    assert said(tmp_path, made) == [f"{NAME}:12: code cell 1 never ran: run `make labs`"]


def test_cells_ran_from_top_to_bottom(tmp_path):
    made = cells()
    made[4]["execution_count"] = 5
    assert "ran as number 5" in said(tmp_path, made)[0]


@pytest.mark.parametrize(("place", "source"), [(2, 'print("sum", 2)'), (4, "a")])
def test_a_cell_that_prints_has_an_output(tmp_path, place, source):
    made = cells()
    made[place]["outputs"] = []
    assert "no output is stored" in said(tmp_path, made)[0]


@pytest.mark.parametrize(
    ("output", "wrong"),
    [
        (stream("careful\n", "stderr"), "wrote to stderr"),
        ({"output_type": "error", "ename": "E", "evalue": "x"}, "ended with E: x"),
        (value("<b>2</b>", "text/html"), "an output that is no text"),
        (stream("x\n" * 25), "prints 25 lines"),
        (stream("x" * 89), "a line of 89 signs"),
        (stream("0.30000000000000004\n"), "round it"),
        (stream("\x1b[1mbold\n"), "colour codes"),
    ],
)
def test_outputs_are_short_round_plain_text(tmp_path, output, wrong):
    made = cells()
    made[2]["outputs"].append(output)
    assert any(wrong in line for line in said(tmp_path, made))


@pytest.mark.parametrize(
    ("right", "wrong", "line"),
    [
        ("1 + 1", "1 + 2", 12),
        ("You add.", "You subtract.", 1),
        ("The end.", "The end, I say.", 22),
        ("title: A lab", "title: A labb", 1),
        ("\n```python\na\n```\n", "", 0),
    ],
)
def test_a_page_that_differs_from_its_notebook_is_named_with_a_line(tmp_path, right, wrong, line):
    found = said(tmp_path, page=PAGE.replace(right, wrong))
    assert len(found) == 1
    assert found[0].startswith(f"{NAME}:{line}: " if line else f"{NAME}: ")
    assert "run `make labs`" in found[0]


def test_a_page_has_a_notebook_and_a_notebook_a_page(tmp_path):
    found = said(tmp_path, name="manuals/m/labs/2-b.ipynb")
    assert len(found) == 2
    assert "without a page" in found[0]
    assert "no notebook beside this page" in found[1]


@pytest.mark.parametrize("data", [b"", b"[]", b'{"nbformat": 3}', b'{"nbformat": 4}', b"\xff"])
def test_a_file_that_is_no_notebook_is_named(tmp_path, data):
    with pytest.raises(labs.LabError, match=re.escape(NOTEBOOK)):
        labs.read(NOTEBOOK, data)


@pytest.mark.parametrize(
    ("source", "shows"),
    [
        ("a = 1", False),
        ("a = 1\na", True),
        ("a + 1", True),
        ("a;", False),
        ("f(a)", False),
        ("if a:\n    print(a)", True),
        ("def f():\n    print(1)", False),
        ("def f():\n    print(1)\nprint(2)", True),
        ("", False),
    ],
)
def test_a_cell_prints_when_it_calls_print_or_ends_with_a_value(source, shows):
    assert labs.prints(source) is shows


CELL = '''"""Two lines:
of 8 GB."""
share = 0.25  # a quarter
print(f"share {share:.2f} of 3 s")
'''


def test_a_cell_says_its_comments_and_strings_and_not_its_numbers_or_formats():
    found = labs.said(CELL)
    assert (1, "Two lines:") in found
    assert (2, "of 8 GB.") in found
    assert (3, "# a quarter") in found
    assert (4, " of 3 s") in found
    assert not any("0.25" in text or ".2f" in text for _, text in found)


def test_a_number_typed_into_a_string_of_a_lab_needs_evidence(tmp_path):
    page = PAGE.replace("You add.", "").replace('"sum"', '"took 233 s"')
    overlay = {NAME: page.encode(), NOTEBOOK: b"{}"}
    (tmp_path / "manuals").mkdir()
    report = claims.check_tree(Tree(tmp_path, overlay), FakeBook({}))
    assert [str(p) for p in report.problems if "233 s" in p.text] == [
        f"{NAME}:14: number without evidence: '233 s'; link it or exempt it"
    ]


def test_an_output_may_hold_a_fence_of_its_own_code():
    assert labs.shown("a\n```\nb") == ["", "````{ .text .lab-output }", "a", "```", "b", "````"]


def test_the_page_of_every_stored_lab_shows_what_its_cells_printed():
    tree = Tree(ROOT)
    assert labs.pages(tree)
    for path in labs.pages(tree):
        chapter = parse(path, tree.text(path))
        assert len(labs.stored_outputs(tree, chapter)) == len(labs.code_fences(chapter))


def test_a_lab_without_its_notebook_cannot_be_rendered(tmp_path):
    tree = Tree(tmp_path, {NAME: PAGE.encode()})
    with pytest.raises(ChapterError, match="no notebook beside"):
        labs.stored_outputs(tree, parse(NAME, PAGE))


def test_both_lock_files_pin_the_same_versions():
    locks = [
        dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE))
        for name in ("requirements.lock", "requirements-labs.lock")
    ]
    shared = locks[0].keys() & locks[1].keys()
    assert {"numpy", "pytest"} <= shared
    assert {name: locks[0][name] for name in shared} == {name: locks[1][name] for name in shared}
