"""Every page, light and dark, at 1280, 390 and 360 pixels."""

import survey

from scripts import sitecheck

SHIFT_LIMIT = 0.05  # cumulative layout shift; the web calls up to 0.1 good


def wrong(looks, kind):
    """'page: what' of everything that a kind of look found."""
    return [f"{look.page}: {text}" for look in looks for text in getattr(look, kind)]


def test_every_page_was_measured_light_and_dark_at_every_width(looks, site):
    wanted = {(scheme, width) for scheme in survey.SCHEMES for width in survey.WIDTHS}
    assert [look.page for look in looks] == survey.pages(site)
    assert [look.page for look in looks if look.seen != wanted] == []
    assert len(looks) > 50


def test_pages_were_loaded_by_readers_of_both_schemes(looks):
    loaded = [look.loaded for look in looks]
    assert min(loaded.count(scheme) for scheme in survey.SCHEMES) >= len(looks) // 2


def test_no_page_logs_an_error(looks):
    assert wrong(looks, "console") == []


def test_no_request_leaves_the_site(looks):
    assert wrong(looks, "outside") == []


def test_no_page_scrolls_sideways(looks):
    assert wrong(looks, "overflow") == []


def test_no_text_of_a_figure_is_cut(looks):
    assert wrong(looks, "clipped") == []


def test_text_of_a_figure_is_large_enough_to_read(looks):
    assert wrong(looks, "small") == []


def test_every_figure_shows_one_drawing_at_every_width(looks):
    assert wrong(looks, "figures") == []


def test_axe_finds_nothing_serious(looks):
    assert wrong(looks, "axe") == []
    assert {scheme for look in looks for scheme in look.axe_rules} == set(survey.SCHEMES)
    assert [look.page for look in looks if min(look.axe_rules.values()) <= 15] == []


def test_nothing_moves_while_a_page_loads(looks):
    assert [f"{look.page}: {look.shift:.3f}" for look in looks if look.shift > SHIFT_LIMIT] == []


def test_every_link_and_anchor_of_the_site_resolves(site):
    report = sitecheck.check(site)
    assert [str(problem) for problem in report.problems] == []
    assert report.counts["internal links"] > 1000
