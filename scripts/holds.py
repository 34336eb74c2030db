"""What a page holds for: the tiers, labs, setups and Miles versions behind its figures.

Everything is computed from the evidence that the figures of the page read, the ones that it
shows and the ones that its number links lead to.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from figures import citations, evidence, reported
from figures.strength import NO_MILES
from scripts import claims
from scripts.chapters import Chapter

WORDS_A_MINUTE = 220  # of technical prose
SECONDS_A_FIGURE = 20
#: parts of a setup that only its figure needs to say
DETAILS = {"alone on GPU", "GPU shared", "GPU alone or shared", "clock recorded", "clock unknown"}
DETAILS |= {"container", "no container"}
TIERS = ("measured", "reported", "diagram")


@dataclass(frozen=True)
class Holds:
    """Of one page.

    tiers    figures shown, by tier; one that is measured and reported counts for both
    values   values that the page states, in claims and as number links
    labs     lab -> tier
    setups   one line a setup, without the details that its figures name
    versions of Miles, as 'Miles of DATE, commit X'
    sources  titles of cited sources, by id
    """

    minutes: int
    tiers: dict[str, int] = field(default_factory=dict)
    values: int = 0
    labs: dict[str, str] = field(default_factory=dict)
    setups: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)


def minutes(chapter: Chapter) -> int:
    """Reading time of a page, at least one minute."""
    words = sum(len(block.text.split()) for block in chapter.blocks if not block.cell)
    seconds = words / WORDS_A_MINUTE * 60 + SECONDS_A_FIGURE * len(chapter.of("figure"))
    return max(1, math.ceil(seconds / 60))


def linked(pages: claims.Pages, chapter: Chapter) -> list[tuple[str, str]]:
    """(figure id, value name) of every number link of a page."""
    found = []
    for link in chapter.links:
        match = claims.FIGURE_LINK.fullmatch(link.href)
        if match and match["name"] and match["id"] in pages.figures:
            found.append((match["id"], match["name"]))
    return found


def of(pages: claims.Pages, path: str) -> Holds:
    """What stands behind the page at `path`."""
    chapter = pages.chapters[path]
    shown = [i for page, i in pages.blocks if page == path and i in pages.figures]
    links = linked(pages, chapter)
    figures = {i: pages.figures[i] for i in [*shown, *(i for i, _ in links)]}
    tiers: Counter[str] = Counter()
    for figure_id in shown:
        for tier in pages.figures[figure_id].tier.split(" and "):
            tiers[tier] += 1
    labs: dict[str, str] = {}
    sources: dict[str, str] = {}
    for figure in figures.values():
        for access in figure.accesses:
            lab = access.run.partition("/")[0]
            if lab.startswith(citations.PREFIX):
                source = citations.source(lab.removeprefix(citations.PREFIX))
                sources[source.id] = source.title
            else:
                labs[lab] = access.tier
    setups = dict.fromkeys(
        ", ".join(part for part in setup.text.split(", ") if part not in DETAILS)
        for figure in figures.values()
        for setup in figure.strength.setups
        if not any(key == "source" for key, _ in setup.identity)
    )
    return Holds(
        minutes=minutes(chapter),
        tiers={tier: tiers[tier] for tier in TIERS if tiers[tier]},
        values=len(links) + sum(len(pages.figures[i].values) for i in shown),
        labs=dict(sorted(labs.items())),
        setups=tuple(setups),
        versions=tuple(sorted({text for f in figures.values() for text in versions(f)})),
        sources=sources,
    )


def versions(figure: Any) -> list[str]:
    """The versions of Miles behind a figure, from the records of its runs and labs."""
    found = []
    for run, tier in sorted({(access.run, access.tier) for access in figure.accesses}):
        lab = run.partition("/")[0]
        if lab.startswith(citations.PREFIX):
            continue
        if tier == "reported":
            setup = reported.table(lab).get("lab", {})
        else:
            setup = getattr(evidence.run(run), "setup", {})
        if setup.get("miles_date") and setup.get("miles_commit") != NO_MILES:
            commit = f", commit {setup['miles_commit']}" if setup.get("miles_commit") else ""
            found.append(f"Miles of {setup['miles_date']}{commit}")
    return found
