"""What is built around the text of a page: frame, tables, cards, fonts, cache and claims.json."""

import json

import pytest
from minirepo import OTHER, PAGE

from scripts import (
    claims,
    claimsjson,
    drawncache,
    fonts,
    holds,
    htmltables,
    pageframe,
    partpages,
    setaside,
    sitefinish,
)
from scripts.chapters import ChapterError
from scripts.report import Report

TABLE = (
    "<table>\n<thead>\n<tr>\n<th>step</th>\n<th>in <em>s</em></th>\n<th>why</th>\n</tr>\n</thead>\n"
    '<tbody>\n<tr>\n<td>0</td>\n<td style="text-align: right;">23</td>\n<td>first</td>\n</tr>\n'
    "</tbody>\n</table>"
)


@pytest.fixture
def pages(repo, book):
    tree = repo(PAGE, OTHER)
    found = claims.load(tree, report := Report())
    claims.build_figures(found, book, report)
    assert report.ok
    return tree, found


def test_a_page_holds_for_the_evidence_of_its_figures_and_its_links(pages):
    shown = holds.of(pages[1], "manuals/one.md")
    assert shown.tiers == {"measured": 1}
    assert shown.setups == ("a model, H200",)
    linked = holds.of(pages[1], "manuals/two.md")
    assert linked.tiers == {}
    assert linked.values == 1
    assert linked.setups == shown.setups


def test_every_page_takes_a_minute_to_read_at_least(pages):
    assert holds.minutes(pages[1].chapters["manuals/two.md"]) == 1


def test_outcome_and_badges_stand_under_the_title(pages):
    chapter = pages[1].chapters["manuals/one.md"]
    head = pageframe.head(chapter, holds.of(pages[1], chapter.path))
    text = pageframe.with_head("---\na: b\n---\n# One step\n\nText", head)
    assert text.index("# One step") < text.index("You read a step.") < text.index("Text")
    assert '<span class="badge-key">measured</span> 1 figure</li>' in head
    assert '<span class="badge-key">setup</span> a model, H200</li>' in head


def test_a_page_without_an_outcome_gets_no_head(pages):
    chapter = pages[1].chapters["manuals/two.md"]
    assert pageframe.head(chapter, holds.Holds(1)) == ""
    assert pageframe.with_head("# T\n\nText", "") == "# T\n\nText"


def test_many_setups_are_counted_and_not_listed():
    texts = pageframe.badges(holds.Holds(1, setups=("a", "b", "c")))
    assert "3 setups, named at each figure" in texts[-1]


def test_the_foot_names_versions_labs_and_a_date_that_is_written_later():
    held = holds.Holds(1, values=3, labs={"x": "measured"}, versions=("Miles of 2026-01-01",))
    foot = pageframe.foot("manuals/m/one.md", held)
    for part in ("Miles of 2026-01-01", "x (measured)", pageframe.VERIFIED, "3 numbers"):
        assert part in foot
    assert "states no measured number" in pageframe.foot("manuals/m/one.md", holds.Holds(1))


def test_every_cell_of_a_table_knows_its_heading():
    text = htmltables.wrapped(f"<p>x</p>{TABLE}")
    assert '<div class="table-frame" tabindex="0"><table class="data stacked">' in text
    assert '<td data-label="step">0</td>' in text
    assert '<td data-label="in s" style="text-align: right;">23</td>' in text
    assert text.count("<table") == text.count("</table>") == text.count("</div>") == 1


def test_a_made_table_keeps_its_frame_and_a_listing_is_left_alone():
    made = TABLE.replace("<table>", '<table class="fig-data" data-search-exclude>')
    text = htmltables.wrapped(made)
    assert '<table class="fig-data data stacked" data-search-exclude>' in text
    assert "table-frame" not in text
    other = '<table class="highlighttable"><tr><td>1</td></tr></table>'
    assert htmltables.wrapped(other) == other


def test_a_table_of_two_columns_is_not_stacked():
    two = "<table><thead><tr><th>a</th><th>b</th></tr></thead><tr><td>1</td><td>2</td></tr></table>"
    assert 'class="data"' in htmltables.wrapped(two)


def test_the_date_of_the_build_is_written_into_every_page(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "search_index.json").write_text('{"docs": []}')
    (tmp_path / "404.html").write_text("lost")
    (tmp_path / "a.html").write_text(f"<p>{pageframe.VERIFIED}</p>")
    sitefinish.finish(tmp_path, {})
    text = (tmp_path / "a.html").read_text()
    assert text == '<p><time datetime="1970-01-02">1970-01-02</time></p>'
    assert (tmp_path / "search" / "search_index.js").read_text() == 'var __index = {"docs": []}\n'
    assert not (tmp_path / "404.html").exists()


def test_parts_that_were_set_aside_come_back_as_they_were():
    page = (
        '<svg class="fig-svg fig-wide" id="a"><text>1</text>\n</svg>\n<svg class="logo"></svg>'
        '<table class="fig-data" data-search-exclude>\n<td>`x` & *y*</td></table>'
    )
    short, parts = setaside.taken(page)
    assert len(parts) == 2
    assert "<text>" not in short
    assert "*y*" not in short
    assert '<svg class="logo"></svg>' in short
    assert setaside.put_back(short, parts) == page


def test_a_mark_without_its_part_is_an_error():
    with pytest.raises(KeyError):
        setaside.put_back('<i data-part="0123"></i>', {})


NAV = "site_name: x\nnav:\n  - Part:\n      - part/index.md\n      - one.md\n      - two.md\n"
PART = "---\ntitle: P\n---\n# P\n\n```sections\n```\n"
RESULT = PAGE.replace(
    "# One step\n",
    "# One step\n\n**The result in one sentence.**\nIt took [233 s](#fig-a-steps:first).\n",
)


def part_page(repo, book, nav=NAV):
    tree = repo(RESULT, OTHER)
    tree.overlay.update({"mkdocs.yml": nav.encode(), "manuals/part/index.md": PART.encode()})
    found = claims.load(tree, Report())
    claims.build_figures(found, book, Report())
    return tree, found


def test_a_part_page_lists_the_pages_after_it_with_outcome_and_result(repo, book):
    tree, found = part_page(repo, book)
    text = partpages.cards(tree, found.chapters["manuals/part/index.md"], found)
    assert text.index("## [One step](../one.md)") < text.index("(../two.md)")
    assert "You read a step." in text
    assert "It took [233 s](../one.md#fig-a-steps:first)." in text


def test_a_part_page_outside_the_navigation_is_an_error_with_its_line(repo, book):
    tree, found = part_page(repo, book, "nav:\n  - one.md\n")
    with pytest.raises(ChapterError, match=r"part/index\.md:6: no page follows"):
        partpages.cards(tree, found.chapters["manuals/part/index.md"], found)


def test_fonts_come_inside_the_style_sheet(repo):
    tree = repo(PAGE)
    assert fonts.css(tree) == ""
    name = next(iter(fonts.FACES.values()))[0]
    tree.overlay[f"{fonts.FOLDER}/{name}"] = b"wOF2"
    assert 'url("data:font/woff2;base64,d09GMg==")' in fonts.css(tree)


def test_claims_json_has_every_statement_with_its_evidence(pages):
    found = json.loads(claimsjson.document(pages[1]))
    stated = [(c["page"], c["kind"], c["stated"]) for c in found["claims"]]
    assert ("one.html", "link", "233 s") in stated
    assert ("two.html", "link", "233 s") in stated
    (claim,) = [c for c in found["claims"] if c["page"] == "two.html"]
    assert claim["anchor"] == "one.html#fig-a-steps:first"
    assert (claim["numbers"], claim["unit"], claim["runs"]) == ([233.4], "s", ["lab/run"])
    assert found["figures"]["fig-a-steps"]["pages"] == ["one.html"]


KEY = ("fig-a", False, "a,b\n1,2\n", ("1 s",))


def test_drawings_are_kept_for_the_same_fingerprint_only(tmp_path):
    path = tmp_path / "build" / "d.json"
    drawncache.save(path, "one", {KEY: "<svg/>"})
    assert drawncache.load(path, "one") == {KEY: "<svg/>"}
    assert drawncache.load(path, "two") == {}
    path.write_text("{ half")
    assert drawncache.load(path, "one") == {}
    assert drawncache.load(tmp_path / "none", "one") == {}


@pytest.mark.parametrize("name", ["figures/a.py", "capture/gpu/out-x/r/summary.json"])
def test_a_changed_figure_or_run_changes_the_fingerprint_and_a_chapter_does_not(tmp_path, name):
    for path in (name, "manuals/one.md"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("1")
    before = drawncache.fingerprint(tmp_path)
    (tmp_path / "manuals/one.md").write_text("2")
    assert drawncache.fingerprint(tmp_path) == before
    (tmp_path / name).write_text("2")
    assert drawncache.fingerprint(tmp_path) != before


def test_what_was_drawn_is_there_in_the_next_build(tmp_path):
    drawn = {}
    with drawncache.kept(tmp_path, drawn):
        drawn[KEY] = "<svg/>"
    again = {}
    with drawncache.kept(tmp_path, again):
        assert again == {KEY: "<svg/>"}
