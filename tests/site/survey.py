"""Opens every page of the site in one browser, a few at a time, and notes what it sees.

Each page is opened twice, light and dark, and resized; axe runs in light at the widest and in
dark at the width of a phone, so every page meets it in both schemes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from axe_playwright_python.base import AXE_FILE_PATH
from playwright.async_api import BrowserContext, Page, async_playwright

from scripts import browser

WIDTHS = (1280, 390, 360)
HEIGHT = 900
AXE_WIDTH = {"light": 1280, "dark": 390}
AT_ONCE = 3
SMALLEST_TEXT = 10.5  # CSS pixels of figure text; the chapters' own is 17

# layout shifts that no input caused, from the first paint on
WATCH_SHIFTS = """
window.__shift = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.__shift += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""

# Of a long table the first rows, since all are made alike; drawings are one image each to a reader.
AXE = """axe.run(
  { exclude: [["svg.fig-svg > *"], ["tbody tr:nth-child(n+9)"], [".md-nav--primary li li li"]] },
  { resultTypes: ["violations"], preload: false, elementRef: false, RUN }
)"""
# what a scheme or a width can change; the first look runs every rule
RULES = ["color-contrast", "link-in-text-block", "scrollable-region-focusable", "aria-hidden-focus"]
RULES += ["link-name", "button-name", "label", "aria-dialog-name", "nested-interactive", "tabindex"]
RUN = {"light": "", "dark": f"runOnly: {{ type: 'rule', values: {RULES} }}"}

MEASURE = """() => {
  const name = (e) => {
    const id = e.id ? "#" + e.id : "";
    const css = typeof e.className === "string" ? "." + e.className.trim().split(/\\s+/)[0] : "";
    return e.tagName.toLowerCase() + id + (css === "." ? "" : css);
  };
  const wide = document.documentElement.clientWidth;
  const over = document.documentElement.scrollWidth > wide
    ? [...document.querySelectorAll("main *, footer *")]
        .filter((e) => e.getBoundingClientRect().right > wide + 1)
        .filter((e) => !e.closest(".fig-table, .md-typeset__scrollwrap, pre, .highlight"))
        .slice(0, 3).map(name).concat("page is " + document.documentElement.scrollWidth + " wide")
    : [];
  const clipped = [], small = [], covered = [];
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
  return { over, clipped, small, empty, variants: shown };
}""".replace("SMALLEST", str(SMALLEST_TEXT))


@dataclass
class Look:
    """One page in one scheme: everything that was wrong, by kind, each with its width."""

    page: str
    scheme: str
    widths: list[int] = field(default_factory=list)
    console: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    overflow: list[str] = field(default_factory=list)
    clipped: list[str] = field(default_factory=list)
    small: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)
    axe: list[str] = field(default_factory=list)
    axe_rules: int = 0
    shift: float = 0.0

    def __str__(self) -> str:
        return f"{self.page} ({self.scheme})"


def pages(site: Path) -> list[str]:
    """Every page of the site, by its path."""
    return sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))


async def survey(site: Path) -> list[Look]:
    """Look at every page in both schemes."""
    looks: list[Look] = []
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(**browser.launch_options())
        for scheme in ("light", "dark"):
            context = await running.new_context(
                viewport={"width": WIDTHS[0], "height": HEIGHT}, color_scheme=scheme
            )
            await context.add_init_script(WATCH_SHIFTS)
            waiting = iter(pages(site))

            async def work(context: BrowserContext, scheme: str, waiting: Any) -> None:
                for name in waiting:
                    looks.append(await look(context, site, name, scheme))

            await asyncio.gather(*(work(context, scheme, waiting) for _ in range(AT_ONCE)))
            await context.close()
        await running.close()
    return sorted(looks, key=str)


async def look(context: BrowserContext, site: Path, name: str, scheme: str) -> Look:
    """Open one page and measure it at every width."""
    found = Look(name, scheme)
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
    await page.goto((site / name).resolve().as_uri(), wait_until="load")
    await page.evaluate("document.fonts.ready.then(() => 1)")
    found.shift = await page.evaluate("window.__shift")
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": HEIGHT})
        measured = await page.evaluate(MEASURE)
        found.widths.append(width)
        for kind, key in (("overflow", "over"), ("clipped", "clipped"), ("small", "small")):
            getattr(found, kind).extend(f"{text} at {width}" for text in measured[key])
        found.figures += [f"{text} at {width}" for text in measured["empty"]]
        found.figures += [f"{text} at {width}" for text in measured["variants"]]
        if width == AXE_WIDTH[scheme]:
            await run_axe(page, found)
    await page.close()
    return found


async def run_axe(page: Page, found: Look) -> None:
    """What axe calls serious or critical, with the first place of each."""
    await page.evaluate(AXE_FILE_PATH.read_text(encoding="utf-8"))
    result = await page.evaluate(AXE.replace("RUN", RUN[found.scheme]))
    found.axe_rules = len(result["passes"]) + len(result["violations"])
    for rule in result["violations"]:
        if rule["impact"] in ("serious", "critical"):
            place = rule["nodes"][0]
            found.axe.append(
                f"{rule['id']} ({len(rule['nodes'])}): {' '.join(map(str, place['target']))}"
                f" {place['html'][:120]}"
            )
