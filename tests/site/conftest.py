"""Tests of the built site in a real browser; `make check-site` builds it and runs them.

They need the environment of requirements-site.lock and the system's Chromium.
"""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from scripts import browser

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).resolve().parent))


def pytest_sessionfinish(session):
    """A test that was left out is not fine: skipped tests fail the run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = 1


@pytest.fixture(scope="session")
def site():
    folder = ROOT / "site"
    assert (folder / "index.html").is_file(), "no site: run `make site` first"
    return folder


@pytest.fixture(scope="session")
def looks(site):
    """What every page did in light and dark, at every width; see `survey.Look`."""
    import survey

    # In a thread of its own: the browser of the other tests already owns this one's event loop.
    with ThreadPoolExecutor(1) as own:
        return own.submit(asyncio.run, survey.survey(site)).result()


@pytest.fixture(scope="session")
def chromium():
    """One browser for the tests that act."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(**browser.launch_options())
        yield running
        running.close()


@pytest.fixture
def tab(chromium):
    """An empty page of 1280 by 900 whose errors fail the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(10_000)
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert errors == []
