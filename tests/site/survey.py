"""Opens every page of the site in one browser, a few at a time, and notes what it sees.

A page is loaded once, every second one in dark. It is then shown in both schemes at every width,
and axe judges it twice with all its rules: light and wide, dark and on a phone.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from axe_playwright_python.base import AXE_FILE_PATH
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from scripts import browser

WIDTHS = (1280, 390, 360)
HEIGHT = 900
SCHEMES = {"light": "default", "dark": "slate"}
AXE_AT = {"light": 1280, "dark": 390}
AT_ONCE = 3
SMALLEST_TEXT = 10.5  # CSS pixels of figure text; the chapters' own is 17

# layout shifts that no input caused, from the first paint on
WATCH_SHIFTS = """
window.__shift = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.__shift += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""

# The theme's button sets the same attribute. Colours change at once, so that none is half-way.
SHOW = """scheme => {
  if (!document.getElementById("at-once")) {
    const style = document.head.appendChild(document.createElement("style"));
    style.id = "at-once";
    style.textContent = "*, ::before, ::after { transition: none !important; }";
  }
  document.body.setAttribute("data-md-color-scheme", scheme);
}"""

# Once all is measured, before axe looks: of long tables and of the ledger the first rows stay,
# since all are made alike, and of a drawing its title and its description: it is one image.
TRIM = """() => {
  const alike = ["svg.fig-svg > :not(title, desc)", "tbody tr:nth-child(n+9)"];
  alike.push(".md-nav--primary li li li", ".ledger > :nth-child(n+9)");
  for (const element of document.querySelectorAll(alike.join())) element.remove();
}"""
AXE = """axe.run(
  document, { resultTypes: ["violations"], preload: false, elementRef: false }
)"""

MEASURE = """() => {
  const name = (e) => {
    const id = e.id ? "#" + e.id : "";
    const css = typeof e.className === "string" ? "." + e.className.trim().split(/\\s+/)[0] : "";
    return e.tagName.toLowerCase() + id + (css === "." ? "" : css);
  };
  const wide = document.documentElement.clientWidth;
  const overflow = document.documentElement.scrollWidth > wide
    ? [...document.querySelectorAll("main *, footer *")]
        .filter((e) => e.getBoundingClientRect().right > wide + 1)
        .filter((e) => !e.closest(".fig-table, .md-typeset__scrollwrap, pre, .highlight"))
        .slice(0, 3).map(name).concat("page is " + document.documentElement.scrollWidth + " wide")
    : [];
  const clipped = [], small = [];
  for (const svg of document.querySelectorAll("svg.fig-svg")) {
    const frame = svg.getBoundingClientRect();
    if (!frame.width) continue;
    for (const text of svg.querySelectorAll("text")) {
      const box = text.getBoundingClientRect();
      if (!box.width) continue;
      const said = text.textContent.trim().slice(0, 30);
      if (box.left < frame.left - 1 || box.right > frame.right + 1
          || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        clipped.push(svg.closest("figure").id + ": " + said);
      const matrix = text.getScreenCTM();
      const size = parseFloat(getComputedStyle(text).fontSize) * Math.hypot(matrix.a, matrix.b);
      if (size < SMALLEST)
        small.push(svg.closest("figure").id + ": " + said + " " + size.toFixed(1) + " px");
    }
  }
  const figures = [...document.querySelectorAll("figure.fig")];
  const empty = figures.filter((f) => f.getBoundingClientRect().height < 40).map((f) => f.id);
  const drawn = [...document.querySelectorAll("figure.fig .fig-body:has(svg)")];
  const shown = drawn.filter(
    (b) => [...b.querySelectorAll("svg.fig-svg")].filter((s) => s.clientWidth).length !== 1
  ).map((b) => b.closest("figure").id);
  return { overflow, clipped, small, figures: [...empty, ...shown] };
}""".replace("SMALLEST", str(SMALLEST_TEXT))


@dataclass
class Look:
    """One page: everything that was wrong, by kind, each with its scheme and width.

    loaded     the scheme in which the page was loaded
    seen       every scheme and width in which it was measured
    axe_rules  scheme -> number of rules that axe applied
    shift      layout shift while it was loaded
    """

    page: str
    loaded: str
    seen: set[tuple[str, int]] = field(default_factory=set)
    console: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    overflow: list[str] = field(default_factory=list)
    clipped: list[str] = field(default_factory=list)
    small: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)
    axe: list[str] = field(default_factory=list)
    axe_rules: dict[str, int] = field(default_factory=dict)
    shift: float = 0.0


def pages(site: Path) -> list[str]:
    """Every page of the site, by its path."""
    return sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))


async def survey(site: Path) -> list[Look]:
    """Look at every page."""
    looks: list[Look] = []
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(**browser.launch_options())
        contexts = [await opened(running, scheme) for scheme in SCHEMES]
        waiting = iter(enumerate(pages(site)))

        async def work() -> None:
            for number, name in waiting:
                turn = number % len(SCHEMES)
                looks.append(await look(contexts[turn], site, Look(name, list(SCHEMES)[turn])))

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        await running.close()
    return sorted(looks, key=lambda look: look.page)


async def opened(running: Browser, scheme: str) -> BrowserContext:
    """A window whose reader prefers a scheme."""
    context = await running.new_context(
        viewport={"width": WIDTHS[0], "height": HEIGHT}, color_scheme=scheme
    )
    await context.add_init_script(WATCH_SHIFTS)
    return context


async def look(context: BrowserContext, site: Path, found: Look) -> Look:
    """Load one page, measure it in every scheme and width, and let axe judge it."""
    page = await context.new_page()
    inside = site.resolve().as_uri()

    def request(sent: Any) -> None:
        if not sent.url.startswith((inside, "data:", "blob:", "about:")):
            found.outside.append(unquote(sent.url))

    def console(said: Any) -> None:
        if said.type in ("error", "warning"):
            found.console.append(said.text)

    page.on("request", request)
    page.on("console", console)
    page.on("pageerror", lambda error: found.console.append(str(error)))
    page.on("requestfailed", lambda sent: found.console.append(f"failed: {sent.url}"))
    await page.goto((site / found.page).resolve().as_uri(), wait_until="load")
    await page.evaluate("document.fonts.ready.then(() => 1)")
    found.shift = await page.evaluate("window.__shift")
    loaded = await page.evaluate("document.body.getAttribute('data-md-color-scheme')")
    if loaded != SCHEMES[found.loaded]:
        found.console.append(f"a reader who prefers {found.loaded} gets {loaded}")
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": HEIGHT})
        for scheme in SCHEMES:
            await measure(page, found, scheme, width)
    await page.evaluate(TRIM)
    await page.evaluate(AXE_FILE_PATH.read_text(encoding="utf-8"))
    for scheme, width in AXE_AT.items():
        await page.set_viewport_size({"width": width, "height": HEIGHT})
        await judge(page, found, scheme)
    await page.close()
    return found


async def measure(page: Page, found: Look, scheme: str, width: int) -> None:
    """What is cut, small, empty or too wide in one scheme at the width of the window."""
    await page.evaluate(SHOW, SCHEMES[scheme])
    measured = await page.evaluate(MEASURE)
    found.seen.add((scheme, width))
    for kind in ("overflow", "clipped", "small", "figures"):
        getattr(found, kind).extend(f"{text} at {width}, {scheme}" for text in measured[kind])


async def judge(page: Page, found: Look, scheme: str) -> None:
    """What axe calls serious or critical in one scheme, with the first place of each."""
    await page.evaluate(SHOW, SCHEMES[scheme])
    result = await page.evaluate(AXE)
    found.axe_rules[scheme] = len(result["passes"]) + len(result["violations"])
    for rule in result["violations"]:
        if rule["impact"] in ("serious", "critical"):
            place = rule["nodes"][0]
            found.axe.append(
                f"{scheme}, {rule['id']} ({len(rule['nodes'])}): "
                f"{' '.join(map(str, place['target']))} {place['html'][:120]}"
            )
