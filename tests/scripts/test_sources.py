"""Sources: the file and the pages agree in both directions, and nothing else leads outside."""

import pytest

from scripts import sources, sourcetables
from scripts.chapters import parse
from scripts.tree import Tree

TOML = """schema = 1
[[source]]
id = "runs"
rank = 1
kind = "runs"
title = "Our runs"
who = "this manual"
date = "2026"
read = "itself"
[[source]]
id = "paper"
rank = 5
kind = "paper"
title = "A paper"
who = "some team"
date = "2026"
url = "https://arxiv.org/abs/1"
read = "itself"
{more}
[[source.value]]
id = "cost"
what = "a cost"
number = 4.8
unit = "s"
digits = 1
about = true
"""
PAGE = """---
title: A page
---
# A page

It is [known](miles-101/reference-sources.md#paper) and [ours](miles-101/reference-sources.md#runs).
Read [the paper](https://arxiv.org/abs/1/) and open `https://code.example/x` yourself.

```bash
curl https://example.org/file
```
"""


@pytest.fixture
def tree(tmp_path):
    def make(page=PAGE, more="", nav="nav:\n  - A page: one.md\n"):
        files = {
            "manuals/sources.toml": TOML.format(more=more),
            "manuals/one.md": page,
            "mkdocs.yml": f"site_name: x\n{nav}",
        }
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return Tree(tmp_path)

    return make


def problems(tree):
    return [str(problem) for problem in sources.check(tree.root).problems]


def test_pages_and_file_that_agree_have_no_problem(tree):
    report = sources.check(tree().root)
    assert report.ok
    assert report.counts == {
        "pages": 1,
        "links that leave the site": 1,
        "citations": 2,
        "sources": 2,
        "values": 1,
    }


@pytest.mark.parametrize(
    "wrong",
    [
        "[the paper](https://arxiv.org/abs/2)",
        "[the paper](https://arxiv.org/abs/1/more)",
        "[the paper](http://arxiv.org/abs/1)",
        "[the paper](//arxiv.org/abs/2)",
        "[the paper](HTTPS://arxiv.org/abs/2)",
        "<https://arxiv.org/abs/2>",
        "https://arxiv.org/abs/2 there",
        '<a href="https://arxiv.org/abs/2">it</a>',
        "[the paper][1]",
    ],
)
def test_an_address_of_no_source_is_named_with_its_line(tree, wrong):
    page = PAGE.replace("[the paper](https://arxiv.org/abs/1/)", wrong)
    page += "\n[1]: https://arxiv.org/abs/2\n"
    (found,) = problems(tree(page))
    assert found.startswith("manuals/one.md:7: ")
    assert "is the url of no source in manuals/sources.toml" in found


def test_an_address_on_your_own_machine_is_no_source(tree):
    page = PAGE.replace("yourself", "on [it](http://127.0.0.1:8265)")
    assert problems(tree(page)) == []


def test_a_citation_names_a_source_that_exists(tree):
    page = PAGE.replace("#paper", "#papers")
    found = problems(tree(page))
    assert found[0].startswith("manuals/one.md:6: link ")
    assert "no source 'papers'" in found[0]
    assert "no page links to paper" in found[1]


def test_a_source_that_no_page_links_says_why(tree):
    page = PAGE.replace("[known](miles-101/reference-sources.md#paper)", "known")
    (found,) = problems(tree(page))
    assert found == (
        "manuals/sources.toml:11: no page links to paper, and it has no uncited reason"
    )
    assert problems(tree(page, 'uncited = "only listed"')) == []
    (found,) = problems(tree(PAGE, 'uncited = "only listed"'))
    assert "says why no page cites it, and one does" in found


def test_a_broken_file_is_one_problem(tree):
    (found,) = problems(tree(more="rank = 4"))
    assert found.startswith("manuals/sources.toml: not TOML")
    (found,) = problems(tree(more='hardwere = "x"'))
    assert found == "manuals/sources.toml: source paper: unknown key 'hardwere'"


def test_each_row_has_an_anchor_and_the_pages_that_cite_it(tree):
    (_, row) = sourcetables.rank_table("miles-101", 5)(tree(more='lost = ["a table"]'))
    assert row[0] == '<span id="paper"></span>[A paper](https://arxiv.org/abs/1)'
    assert row[1] == "some team, hardware not stated"
    assert row[2] == "Read itself. Lost: a table."
    assert row[3] == "[A page](../one.md)"
    assert sourcetables.source_values(tree())[1][:3] == ["paper.cost", "a cost", "about 4.8 s"]


def test_every_rank_of_the_file_has_a_table_on_the_page_of_sources():
    from scripts.tree import ROOT

    here = Tree(ROOT)
    page = parse(sourcetables.PAGES["miles-101"], here.text(sourcetables.PAGES["miles-101"]))
    shown = {fence.content.split()[1] for fence in page.of("table")}
    ranks = {source.rank for source in sourcetables.read(here)}
    assert {f"sources-rank-{rank}" for rank in ranks} <= shown


def test_the_source_line_of_a_figure_leads_to_the_row_of_its_source():
    from figures import registry
    from scripts import render
    from scripts.tree import ROOT

    figure = registry.build("fig-7-1-reported")
    for page, href in (
        ("manuals/index.md", "miles-101/reference-sources.html"),
        ("manuals/miles-101/7-1-troubleshooting.md", "reference-sources.html"),
    ):
        line = render.source_of(Tree(ROOT), figure, page)
        assert f'<a href="{href}#miles-issue-client-cost">Miles issue tracker: ' in line
