"""Executing labs: what a stored notebook says is what its cells print now."""

import json
import shutil

import pytest
from nbclient.exceptions import CellExecutionError

from scripts import run_labs

PAGE = """---
title: A lab
jupyter:
  jupytext:
    formats: ipynb,md
    notebook_metadata_filter: -jupytext.text_representation.jupytext_version
    text_representation:
      extension: .md
      format_name: markdown
      format_version: '1.3'
  kernelspec:
    display_name: Python 3
    language: python
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
"""
NAME = "manuals/m/labs/1-a.md"


@pytest.fixture(scope="module", autouse=True)
def quiet(tmp_path_factory):
    """Jupyter's own files stay in a folder of the tests, and the environment ends with them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            patch.setenv(name, "")
        patch.setenv("PYTHONHASHSEED", "0")
        run_labs.quiet_jupyter(tmp_path_factory.mktemp("jupyter"))
        yield


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A folder with one lab, executed and stored once; tests change copies of it."""
    root = tmp_path_factory.mktemp("lab")
    page = root / NAME
    page.parent.mkdir(parents=True)
    page.write_text(PAGE, encoding="utf-8")
    assert run_labs.store(root, NAME)
    return root


@pytest.fixture
def stored(executed, tmp_path):
    """A copy of the stored lab; gives the root and the notebook's path."""
    shutil.copytree(executed, tmp_path / "copy")
    return tmp_path / "copy", (tmp_path / "copy" / NAME).with_suffix(".ipynb")


def problems(root):
    return [str(problem) for problem in run_labs.check(root).problems]


def pair(stored, right, wrong):
    """What is said when the page is edited and the notebook is not."""
    return run_labs.pair_problems(PAGE.replace(right, wrong), stored[1].read_text(encoding="utf-8"))


def edit(path, change):
    """Change the JSON of a notebook in place."""
    document = json.loads(path.read_text(encoding="utf-8"))
    change([cell for cell in document["cells"] if cell["cell_type"] == "code"])
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def test_a_stored_lab_passes_and_its_cells_are_counted(stored):
    report = run_labs.check(stored[0])
    assert report.problems == []
    assert report.counts["labs executed"] == 1
    assert report.counts["cells compared"] == 2


def test_storing_twice_changes_nothing(stored):
    before = stored[1].read_bytes()
    assert not run_labs.store(stored[0], NAME)
    assert stored[1].read_bytes() == before


def test_a_notebook_holds_no_random_name_no_time_and_no_version(stored):
    text = stored[1].read_text(encoding="utf-8")
    assert not any(word in text for word in ('"id"', "iopub", '"jupytext_version"', '"version"'))


def test_outputs_and_values_that_no_cell_gives_fail_cell_by_cell(stored):
    def lie(cells):
        cells[0]["outputs"][0]["text"] = ["sum 3\n"]
        cells[1]["outputs"][0]["data"]["text/plain"] = ["3"]

    edit(stored[1], lie)
    found = problems(stored[0])
    assert any("2 failed" in line for line in found)
    assert any("sum 3" in line for line in found)


def test_a_cell_that_never_ran_fails_though_nbval_lets_it_pass(stored):
    def forget(cells):
        for cell in cells:
            cell.update(execution_count=None, outputs=[])

    edit(stored[1], forget)
    assert sum("never ran" in line for line in problems(stored[0])) == 2


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("You add.", "You subtract."), ("title: A lab", "title: Another"), ("1 + 1", "1 + 2")],
)
def test_a_page_that_was_edited_after_its_notebook_fails(stored, right, wrong):
    assert pair(stored, right, right) == []
    assert "make labs" in pair(stored, right, wrong)[0]


def test_a_lab_that_takes_too_long_fails(stored, monkeypatch):
    monkeypatch.setattr(run_labs, "run_nbval", lambda path: (2, []))
    assert problems(stored[0]) == []
    monkeypatch.setattr(run_labs, "LIMIT_S", 0)
    assert any("the limit is 0 s" in line for line in problems(stored[0]))


def test_cells_that_nbval_did_not_compare_fail(stored, monkeypatch):
    monkeypatch.setattr(run_labs, "run_nbval", lambda path: (1, []))
    assert any("nbval compared 1" in line for line in problems(stored[0]))


def test_a_cell_that_raises_stores_nothing(stored):
    before = stored[1].read_bytes()
    page = stored[0] / NAME
    page.write_text(PAGE.replace("1 + 1", "1 / 0"), encoding="utf-8")
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        run_labs.store(stored[0], NAME)
    assert stored[1].read_bytes() == before
