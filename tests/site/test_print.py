"""The printed books: contents, page numbers, light figures, and nothing over the edge."""

import re

import pypdfium2
import pytest
from pypdf import PdfReader

from scripts import make_pdf, printbook
from scripts.tree import ROOT

CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
TEXT_WIDTH = 170  # mm between the margins of print.css
POINTS_A_MM = 72 / 25.4


@pytest.fixture(scope="module", params=sorted(make_pdf.BOOKS))
def book(request, chromium, site, tmp_path_factory):
    """(folder, its contents, the PDF, text and brightness of its pages) of one manual."""
    out = tmp_path_factory.mktemp("pdf") / f"{request.param}.pdf"
    make_pdf.print_book(chromium, site, request.param, out, CONFIG)
    _, listed = printbook.book(site, make_pdf.BOOKS[request.param], request.param, CONFIG)
    drawn = pypdfium2.PdfDocument(out)
    texts = [page.get_textpage().get_text_range() for page in drawn]
    bright = [brightness(page) for page in drawn]
    yield request.param, listed, PdfReader(out), texts, bright
    drawn.close()


def brightness(page):
    """Mean of a page drawn small, from 0 (black) to 255."""
    shown = bytes(page.render(scale=0.1, grayscale=True).buffer)
    return sum(shown) / len(shown)


def squeezed(text):
    return re.sub(r"\s+", "", text)


def test_the_contents_name_the_page_on_which_each_title_stands(book):
    _, listed, reader, pages, _ = book
    texts = [squeezed(text) for text in pages]
    numbers = make_pdf.places(reader.stream)
    front = "".join(texts[1 : min(numbers[entry.anchor] for entry in listed) - 1])
    for entry in listed:
        number = numbers[entry.anchor]
        assert texts[number - 1].startswith(f"{number}{squeezed(entry.title)}"), entry.title
        assert f"{squeezed(entry.title)}{number}" in front, entry.title


def test_parts_without_a_page_are_named_in_the_contents_before_their_first_page(book):
    folder, listed, _, pages, _ = book
    wanted = {"miles-101": {"my-run": "Your own", "reference-flags": "Reference"}}
    named = {entry.anchor: entry.group for entry in listed if entry.group}
    slugs = wanted.get(folder, {}).items()
    assert named == {f"{folder}-{page}": title for page, title in slugs}
    front = "".join(squeezed(text) for text in pages[1:4])
    for entry in listed:
        assert squeezed(entry.group + entry.title) in front


def test_no_page_offers_a_download(book):
    assert [n for n, text in enumerate(book[3], start=1) if "Download this" in text] == []


def test_every_page_but_the_first_has_its_number(book):
    for number, text in enumerate(book[3], start=1):
        assert text.split()[0].startswith(str(number)) == (number > 1), number


def test_every_page_of_the_manual_is_printed(book, site):
    folder, listed, *_ = book
    pages = printbook.manual_pages(CONFIG, folder)
    assert {entry.anchor for entry in listed} == {printbook.slug(page) for page in pages}
    assert {p.name for p in (site / folder).glob("*.html")} <= {p.split("/")[-1] for p in pages}


def test_every_page_is_printed_light(book):
    assert [n for n, mean in enumerate(book[4], start=1) if mean < 215] == []


def test_the_outline_leads_to_the_headings(book):
    _, listed, reader, *_ = book
    titles = {item.title for item in reader.outline if not isinstance(item, list)}
    assert {entry.title for entry in listed} <= titles


def test_all_pages_are_a4(book):
    for page in book[2].pages:
        assert float(page.mediabox.width) == pytest.approx(210 * POINTS_A_MM, abs=1)
        assert float(page.mediabox.height) == pytest.approx(297 * POINTS_A_MM, abs=1)


@pytest.mark.parametrize("folder", sorted(make_pdf.BOOKS))
def test_nothing_is_wider_than_the_paper_and_figures_are_light(chromium, site, folder):
    """Laid out at the width between the margins, on a machine that prefers the dark look."""
    text, _ = printbook.book(site, make_pdf.BOOKS[folder], folder, CONFIG)
    file = site / f".test-{folder}.html"
    file.write_text(text, encoding="utf-8")
    width = int(TEXT_WIDTH / 25.4 * 96)
    context = chromium.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark", reduced_motion="reduce"
    )
    try:
        page = context.new_page()
        page.emulate_media(media="print")
        page.goto(file.resolve().as_uri())
        wide = page.evaluate(
            """wide => [...document.querySelectorAll("article *")]
              .filter((e) => e.getBoundingClientRect().right > wide + 1)
              .slice(0, 5).map((e) => e.closest("article").id + ": " + e.outerHTML.slice(0, 90))""",
            width,
        )
        grounds = page.evaluate(
            """() => [getComputedStyle(document.body).getPropertyValue("--fig-paper").trim(),
                      getComputedStyle(document.body).getPropertyValue("--fig-ink").trim()]"""
        )
        drawings = page.evaluate(
            """() => [...document.querySelectorAll("figure.fig .fig-body:has(svg)")]
              .filter((b) => [...b.querySelectorAll("svg.fig-svg")]
                .filter((s) => s.getBoundingClientRect().height > 20).length !== 1)
              .map((b) => b.closest("figure").id)"""
        )
    finally:
        context.close()
        file.unlink()
    assert wide == []
    assert grounds == ["#ffffff", "#1b1f24"]
    assert drawings == []
