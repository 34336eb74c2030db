"""What programs read: claims.json, the data of each figure, and anchors that stay."""

import csv
import io
import json
import re

import pytest
from lxml import html

from scripts import claimkeys


@pytest.fixture(scope="module")
def document(site):
    return json.loads((site / "claims.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def trees(site):
    """Every built page, parsed, by its path."""
    return {
        path.relative_to(site).as_posix(): html.fromstring(path.read_bytes())
        for path in site.rglob("*.html")
    }


def test_every_claim_has_value_unit_tier_setup_runs_and_figure(document):
    assert document["schema"] == claimkeys.SCHEMA
    assert len(document["claims"]) > 500
    for claim in document["claims"]:
        assert set(claim) == set(claimkeys.CLAIM_KEYS)
        assert claim["numbers"] or claim["text"]
        assert claim["tier"] in ("measured", "reported", "measured and reported")
        assert claim["setups"], claim["anchor"]
        assert claim["figure"] in document["figures"]


def test_every_key_of_the_file_is_explained_on_its_page(document, trees):
    rows = trees["claims-json.html"].xpath("//tbody/tr/td[1]")
    explained = [row.text_content() for row in rows]
    keys = [*document["claims"][0], *next(iter(document["figures"].values()))]
    assert sorted(explained) == sorted(keys)


def test_every_number_link_of_the_pages_is_in_the_file(document, trees):
    stated = {(c["page"], c["stated"], c["anchor"].partition("#")[2]) for c in document["claims"]}
    missing = []
    for page, tree in trees.items():
        if page.endswith("claim-ledger.html") or "/part-" in page:  # both repeat other pages
            continue
        for link in tree.xpath("//a[contains(@class, 'num')]"):
            said = (page, link.text_content(), link.get("href").partition("#")[2])
            missing += [said] if said not in stated else []
    assert missing == []


def test_every_anchor_of_the_file_is_on_its_page(document, trees):
    ids = {page: set(tree.xpath("//@id")) for page, tree in trees.items()}
    missing = []
    for claim in document["claims"]:
        page, _, anchor = claim["anchor"].partition("#")
        missing += [claim["anchor"]] if anchor not in ids[page] else []
    assert missing == []


def test_every_figure_has_its_data_as_csv_with_a_heading(document, site, trees):
    shown = {i for tree in trees.values() for i in tree.xpath("//figure/@id") if i[:4] == "fig-"}
    assert shown == set(document["figures"])
    for figure in document["figures"].values():
        text = (site / figure["data"]).read_text(encoding="utf-8")
        rows = list(csv.reader(io.StringIO(text, newline="")))
        assert len(rows) > 1
        assert all(rows[0])
        assert {len(row) for row in rows} == {len(rows[0])}


def test_a_page_says_what_it_holds_for_and_when_it_was_verified(trees):
    for page, tree in trees.items():
        dates = tree.xpath("//time/@datetime")
        assert dates, page
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", date) for date in dates)
    foot = trees["miles-101/1-1-first-step.html"].xpath("//aside[@class='page-foot']")[0]
    text = foot.text_content()
    for part in (
        "Miles of 2026-08-21, commit 31f1ca961",
        "h200-miles (measured)",
        "gb10 (reported)",
    ):
        assert part in text


def test_a_section_begins_with_its_outcome_its_reading_time_and_its_badges(trees):
    sections = [page for page in trees if re.search(r"/\d-\d-", page)]
    assert len(sections) > 30
    for page in sections:
        head = trees[page].xpath("//div[@class='page-head']")
        assert len(head) == 1, page
        assert head[0].xpath(".//p[@class='outcome']")[0].text_content().strip()
        assert re.search(r"reading \d+ min", head[0].text_content())


def test_a_figure_block_goes_from_claim_to_figure_to_caption_to_data(trees):
    for page, tree in trees.items():
        for figure in tree.xpath("//figure[contains(@class, 'fig')][starts-with(@id, 'fig-')]"):
            order = [
                element.get("class")
                for element in figure.iter()
                if element.get("class") in ("fig-claim", "fig-body", "fig-badges", "fig-source")
            ]
            wanted = ["fig-claim", "fig-body", "fig-badges", "fig-source"]
            assert order == wanted, f"{page}: {figure.get('id')}"
