"""From chapter to page: rendering, counting figures, and the check of the built site."""

import hashlib

import pytest
from minirepo import DIAGRAM, OTHER, PAGE

from scripts import claims, figurehtml, generated, render, sitecheck, tables
from scripts.chapters import ChapterError
from scripts.report import Report
from scripts.tree import Tree


@pytest.fixture
def pages(repo, book):
    tree = repo(PAGE)
    report = Report()
    found = claims.load(tree, report)
    claims.build_figures(found, book, report)
    assert report.ok
    return tree, found


def rendered(pages, name="manuals/one.md", source=PAGE):
    tree, found = pages
    return render.page(tree, found.chapters[name], source, found)


def test_a_figure_block_leads_with_its_claim_and_anchors_every_value(pages):
    text = rendered(pages)
    assert '<figure class="fig" id="fig-a-steps">' in text
    assert text.index("fig-claim") < text.index("<svg") < text.index("fig-caption")
    for name in ("steps", "first", "share"):
        assert text.count(f'id="fig-a-steps:{name}"') == 1
    assert '<span class="num num-measured" id="fig-a-steps:first"' in text
    assert 'class="fig-wide"' in text
    assert 'class="fig-narrow"' in text
    assert "```figure" not in text


def test_badges_data_and_recompute_command_stand_under_a_figure(pages):
    text = rendered(pages)
    for part in ("measured</li>", "1 run, 1 seed, 12 steps", "a model, a GPU"):
        assert part in text
    assert 'href="data/fig-a-steps.csv"' in text
    assert "<code>make check-claims</code>" in text


def test_a_diagram_says_what_it_was_drawn_from_and_offers_no_command(repo, book, diagram):
    source = PAGE + DIAGRAM
    found = claims.load(tree := repo(source), report := Report())
    claims.build_figures(found, book, report)
    text = rendered((tree, found), source=source)
    text = text[text.index('id="fig-d"') :]
    assert '<span class="badge-key">diagram</span> drawn from the code</li>' in text
    assert 'href="data/fig-d.csv"' in text
    assert "recompute" not in text
    assert "badge-measured" not in text
    row = "Each request goes through the router. | diagram | drawn from the code"
    assert row in generated.figure_index(found)
    assert f"{row} |" in generated.claim_ledger(found).partition("## Claims of diagrams")[2]


def test_a_ledger_without_diagrams_has_no_part_for_them(pages):
    assert "diagram" not in generated.claim_ledger(pages[1])


def test_a_number_link_says_value_tier_runs_and_setup_to_eyes_and_readers(pages):
    line = "The first step took [233 s](#fig-a-steps:first)"
    shown = 'data-what="233 s, measured" data-runs="run lab/run" data-setup="a model, H200"'
    said = 'aria-description="233 s, measured; run lab/run; a model, H200"'
    assert f"{line}{{ .num .num-measured {shown} {said} }}, and" in rendered(pages)
    other = rendered(pages, "manuals/two.md", OTHER)
    assert '(one.md#fig-a-steps:first){ .num .num-measured data-what="233 s' in other


def test_text_around_the_fences_is_unchanged(pages):
    text = rendered(pages)
    assert text.startswith(PAGE[: PAGE.index("The first step took")])


def test_a_figure_that_was_not_built_is_an_error_with_its_line(pages):
    tree, found = pages
    found.figures.clear()
    with pytest.raises(ChapterError, match=r"manuals/one\.md:13: figure 'fig-a-steps' was not"):
        render.page(tree, found.chapters["manuals/one.md"], PAGE, found)


def test_text_of_a_figure_is_escaped(pages, figure):
    _, found = pages
    block = found.blocks["manuals/one.md", "fig-a-steps"]
    html = figurehtml.sentence("a < b & {first}", figure, set())
    assert html.startswith("a &lt; b &amp; <span")
    assert "<b>" not in figurehtml.table([["<b>"], ["<i>"]])
    assert block.id in figurehtml.block(block, figure, "x.csv")


def test_a_flag_in_a_cell_is_not_parted_from_its_hyphens():
    assert figurehtml.cell("no --ref-load") == 'no <span class="nobr">--ref</span>-load'
    assert figurehtml.cell("`--ref-load` a--b ---") == "<code>--ref-load</code> a--b ---"


def test_what_stands_in_back_ticks_is_code_in_a_made_table_too():
    html = figurehtml.plain_table("x", [["a"], ["`--flag <N>` of `x`"], ["one ` alone"]], "t")
    assert "<td><code>--flag &lt;N&gt;</code> of <code>x</code></td>" in html
    assert "<td>one ` alone</td>" in html


def test_a_listing_becomes_a_titled_block_and_a_table_a_table(repo, book):
    source = "# P\n\n```listing\nfile: a/b.log\ntitle: T\n---\nx…\n```\n\n```table\nid: t\n```\n"
    tree = repo(source, other=None)
    found = claims.load(tree, Report())
    chapter = found.chapters["manuals/one.md"]
    tables.TABLES["t"] = lambda tree: [["a", "b"], ["1", "x|y"]]
    try:
        text = render.page(tree, chapter, source, found)
    finally:
        del tables.TABLES["t"]
    assert '````text title="File of this repository: T: a/b.log"\nx…\n````' in text
    assert "| a | b |\n| --- | --- |\n| 1 | x\\|y |" in text
    with pytest.raises(ChapterError, match="no table 't'"):
        render.page(tree, chapter, source, found)


def test_the_generated_pages_list_every_figure_and_number(pages):
    _, found = pages
    index = generated.figure_index(found)
    assert "[The first step](one.md#fig-a-steps)" in index
    assert "In one 12-step run the first step took 233 s." in index
    ledger = generated.claim_ledger(found)
    assert ledger.count("`fig-a-steps:first`") == 3  # in the claim, on its page, on the other
    assert "`lab/run`" in ledger


def test_only_changed_files_are_written_and_others_go(tmp_path):
    output = render.Output({"a.md": b"1", "d/b.md": b"2"})
    assert output.write(tmp_path) == 2
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "c.md").write_bytes(b"3")
    output.files["a.md"] = b"changed"
    assert output.write(tmp_path) == 1
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.md", "b.md", "d"]


def test_a_page_that_lost_a_figure_is_counted(tmp_path):
    (tmp_path / "a.html").write_text('<figure class="fig" id="x"></figure>')
    report = Report()
    render.count_figures(tmp_path, {"a.md": 1}, report)
    assert report.ok
    render.count_figures(tmp_path, {"a.md": 2, "b.md": 1}, report)
    assert [str(p) for p in report.problems] == [
        "manuals/a.md: 2 figures in the chapter, 1 in the built page",
        "manuals/b.md: the page is not in the built site",
    ]


GOOD = """<html><body id="top"><a href="#x">a</a><a href="b.html#y">b</a><p id="x"></p>
<img src="i.png"><link rel="stylesheet" href="s.css"><a href="https://example.org/">out</a>
</body></html>"""


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("#x", "#z", "a.html:1: no anchor 'z' in a.html"),
        ("b.html#y", "b.html#z", "no anchor 'z' in b.html"),
        ("b.html#y", "c.html", "no such file in the site: c.html"),
        ("b.html#y", "../b.html", "no such file"),
        ("i.png", "j.png", "no such file in the site: j.png"),
        ('"i.png"', '"https://example.org/i.png"', "loads something from elsewhere"),
        ("s.css", "//example.org/s.css", "loads something from elsewhere"),
        ('id="x"', 'id="top"', "id 'top' is there twice"),
    ],
)
def test_a_broken_address_of_the_site_is_named(tmp_path, right, wrong, message):
    (tmp_path / "b.html").write_text('<html><body><p id="y">y</p></body></html>')
    (tmp_path / "i.png").write_bytes(b"")
    (tmp_path / "s.css").write_text("p { background: url(i.png) }")
    (tmp_path / "a.html").write_text(GOOD)
    assert sitecheck.check(tmp_path).problems == []
    (tmp_path / "a.html").write_text(GOOD.replace(right, wrong, 1))
    assert any(message in str(p) for p in sitecheck.check(tmp_path).problems)


def test_an_address_in_a_style_sheet_is_checked(tmp_path):
    (tmp_path / "a.html").write_text("<html><body></body></html>")
    (tmp_path / "s.css").write_text("@import 'https://example.org/x.css'; p{background:url(n.png)}")
    found = [p.text for p in sitecheck.check(tmp_path).problems]
    assert found == [
        "no such file in the site: n.png",
        "loads something from elsewhere: https://example.org/x.css",
    ]


def test_the_site_offers_the_kit_with_a_checksum_that_verifies_it():
    found = render.downloads(Tree(render.ROOT))
    digest, name = found["downloads/miles-kit.pyz.sha256"].decode().split()
    assert hashlib.sha256(found[f"downloads/{name}"]).hexdigest() == digest
    assert digest in tables.kit_file(Tree(render.ROOT))[1][2]
