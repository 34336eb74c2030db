"""What a reader does: search from a folder, follow a number, and all of it from the keyboard."""

import http.server
import re
import threading
from functools import partial

import pytest

FIRST = "miles-101/1-1-first-step.html"


@pytest.fixture
def server(site):
    """The site over HTTP on this machine; gives its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{made.server_port}/"
    made.shutdown()
    made.server_close()


def opened(tab, site, name="index.html"):
    tab.goto((site / name).resolve().as_uri())
    tab.wait_for_function("document.fonts.status === 'loaded'")
    return tab


def search(tab, words):
    """Open the search with a key, type, and give the first result."""
    tab.keyboard.press("/")
    tab.wait_for_function("document.activeElement.matches('.md-search__input')")
    tab.keyboard.type(words)
    tab.wait_for_selector(".md-search-result__item a", timeout=20_000)
    return tab.locator(".md-search-result__item a").first


def test_search_works_from_a_folder_without_a_server(tab, site):
    hit = search(opened(tab, site), "zero-variance filter")
    assert "3-2-zero-variance-filter.html" in hit.get_attribute("href")
    assert hit.get_attribute("href").startswith("file:")


def test_from_a_folder_the_search_starts_when_it_gets_the_focus(tab, site):
    opened(tab, site)
    assert tab.locator("iframe[title=search]").count() == 0
    search(tab, "zero-variance filter")
    assert tab.locator("iframe[title=search]").count() == 1


def test_search_works_over_http(tab, server):
    tab.goto(server)
    assert "3-2-zero-variance-filter" in search(tab, "zero-variance filter").get_attribute("href")


def test_search_finds_captions_and_no_text_of_drawings(tab, site):
    index = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    assert "Each bar is one whole step." in index
    assert "page-head" not in index
    assert "Evidence of this page" not in index


def test_a_result_opens_from_the_keyboard(tab, site):
    search(opened(tab, site), "zero-variance filter")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/3-2-zero-variance-filter.html**")


def press_tab_until(tab, selector, most=400):
    """Press Tab until something that matches has the focus."""
    for _ in range(most):
        tab.keyboard.press("Tab")
        if tab.evaluate("s => document.activeElement.matches(s)", selector):
            return
    pytest.fail(f"no {selector} in {most} presses of Tab")


def shown_beside(tab):
    """What the style sheet shows beside the element with the focus: text, position, size."""
    return tab.evaluate(
        """() => {
          const at = document.activeElement;
          const style = getComputedStyle(at, "::after");
          const box = [parseFloat(style.width), parseFloat(style.height)];
          return [style.content, style.position, at.dataset.what, at.dataset.setup, box];
        }"""
    )


def test_the_first_tab_leads_past_the_navigation_to_the_text(tab, site):
    opened(tab, site, FIRST)
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.matches('.md-skip')")
    tab.keyboard.press("Enter")
    press_tab_until(tab, "main article a", most=5)


def test_a_number_shows_value_tier_run_and_setup_on_focus_and_leads_to_its_figure(tab, site):
    opened(tab, site, FIRST)
    press_tab_until(tab, "a.num")
    content, position, what, setup, (wide, high) = shown_beside(tab)
    assert position == "fixed"
    assert wide > 3 * high > 0
    assert re.search(r"12( steps)?, reported", what)
    assert "GB10" in setup
    assert what in content
    assert "run gb10/plain" in content
    tab.keyboard.press("Enter")
    tab.wait_for_function("location.hash === '#fig-1-1-gb10:steps'")
    assert tab.evaluate("!!document.querySelector('.num:target').closest('figure.fig')")


def test_from_a_number_the_keyboard_reaches_its_data_and_its_evidence(tab, site):
    opened(tab, site, FIRST)
    press_tab_until(tab, "a.num")
    tab.keyboard.press("Enter")
    press_tab_until(tab, "figure.fig a[download]", most=5)
    name = tab.evaluate("document.activeElement.getAttribute('href')")
    assert (site / "miles-101" / name).resolve().is_file()
    press_tab_until(tab, "figure.fig a[href*='claim-ledger']", most=2)
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/claim-ledger.html#of-fig-1-1-gb10")
    row = tab.locator("tr:has(#of-fig-1-1-gb10)")
    assert row.is_visible()
    assert "gb10/plain" in row.inner_text()


def test_numbers_work_without_javascript(chromium, site):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / FIRST).resolve().as_uri())
    link = page.locator("a.num").first
    link.hover()
    assert link.is_visible()
    link.click()
    assert page.url.endswith("#fig-1-1-gb10:steps")
    context.close()


def test_three_clicks_lead_from_home_to_a_verified_number(tab, site):
    opened(tab, site)
    tab.get_by_role("link", name="One finished GRPO step").click()
    tab.locator("article a.num").first.click()
    tab.locator("figure.fig:has(:target) a", has_text="Evidence").click()
    assert "claim-ledger.html#of-fig" in tab.url


def test_home_says_everything_on_one_screen(tab, site):
    opened(tab, site)
    for text in (
        *("make check", "For whom", "The OLMo-core trainer", "What was measured, and on what"),
        *("h200-miles, measured", "h200-core, measured", "GB10 lab, reported"),
    ):
        box = tab.locator("article").get_by_text(text).first.bounding_box()
        assert box["y"] + box["height"] <= 900, text


def test_every_page_of_a_manual_leads_to_the_next_one(tab, site):
    opened(tab, site, FIRST)
    assert "part-1" in tab.locator(".md-footer__link--prev").get_attribute("href")
    assert "1-2-guard" in tab.locator(".md-footer__link--next").get_attribute("href")


def test_the_look_can_be_changed_and_stays(tab, site):
    opened(tab, site)
    before = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.locator("label[title='Use the dark look']").click()
    after = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert after != before
    opened(tab, site, FIRST)
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == after
