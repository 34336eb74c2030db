"""Where a listing comes from: its tier and run follow from the path of its file, not from a title.

A listing shows a file of the evidence (`capture/gpu/out-LAB`), or code and fixtures of the
repository; never a page of the manual, which would be its own evidence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from figures.wording import GPU, MODEL
from scripts import findnumbers
from scripts.tree import Tree, toml

FOLDERS = ("capture/", "scripts/", "figures/", "tests/")
FILES = ("Makefile", "pyproject.toml", "mkdocs.yml")
_LAB = re.compile(r"capture/gpu/out-(?P<lab>[\w.-]+?)/(?:(?P<run>[\w.-]+)/)?(?P<file>[^/]+)")
_RECORDED = re.compile(r"capture/gpu/testcontainers/recorded\.\w+")
_TIME = re.compile(
    r"'perf/[\w/]*(?:time|tflops|per_s|tok|throughput)[\w/]*'|\belapsed=|\b\d+(?:\.\d+)?s/it\b"
)
_SAYS_MEASURED = re.compile(r"\bmeasured\b", re.IGNORECASE)
_SAYS_REPORTED = re.compile(r"\b(?:reported|published)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Source:
    """The tier of a listed file ('measured', 'reported', 'recorded' or 'file') and what it is of.

    `label` names it to the reader. `setup` is the text in which GPU and model names may be found;
    `unusable` are columns that its record marks; `shared` says that other work was on the GPU.
    """

    tier: str
    label: str
    run: str = ""
    setup: str = ""
    shared: bool = False
    unusable: tuple[str, ...] = field(default=())


def refusal(path: str) -> str | None:
    """Why a file may not be listed, or None."""
    if path.startswith("/") or ".." in path.split("/"):
        return f"listing of a file that is not here: {path}"
    if path.endswith(".md") or not (path.startswith(FOLDERS) or path in FILES):
        return f"only evidence, code and fixtures may be listed, not {path}"
    return None


def _toml(tree: Tree, path: str) -> dict[str, Any]:
    return toml(tree.text(path)) if tree.exists(path) else {}


def source(tree: Tree, path: str) -> Source:
    """Where a listed file comes from."""
    match = _LAB.fullmatch(path)
    if _RECORDED.fullmatch(path):
        return Source(
            "recorded", "Measured on a test container, no GPU, no Miles", setup="no Miles"
        )
    if match is None:
        return Source("file", "File of this repository")
    lab, run = match["lab"], match["run"] or ""
    folder = f"capture/gpu/out-{lab}"
    if match["file"] == "published.txt" and not run:
        setup = _toml(tree, f"{folder}/reported.toml")
        known = " ".join(str(item) for item in (setup.get("lab", {}), setup.get("setting", [])))
        return Source("reported", f"Reported by the {lab.upper()} lab", setup=known)
    record = _toml(tree, f"{folder}/{run}/run.toml") if run else {}
    if record:
        setup = record.get("setup", {})
        unusable = tuple(entry["column"] for entry in record.get("unusable", []))
        return Source(
            "measured", f"Measured, run {run}", run, str(setup), bool(setup.get("shared")), unusable
        )
    return Source("file", f"File of lab {lab}")


def run_names(tree: Tree) -> set[str]:
    """Names of all stored runs."""
    return {path.parent.name for path in tree.root.glob("capture/gpu/out-*/*/run.toml")}


def title_problems(title: str, found: Source, runs: set[str]) -> list[str]:
    """What a title says against the source of its listing."""
    problems = []
    if _SAYS_MEASURED.search(title) and found.tier not in ("measured", "recorded"):
        problems.append("says 'measured' of what no run of ours gave")
    if _SAYS_REPORTED.search(title) and found.tier != "reported":
        problems.append("says 'reported' of what nobody else published")
    named = set(re.findall(r"[\w-]+", title)) & {name for name in runs if re.search(r"[\d_]", name)}
    named |= {name for name in re.findall(r"\bruns? ([\w-]+)", title) if name in runs}
    problems += [f"names run {name}" for name in sorted(named - {found.run})]
    if found.setup:
        for pattern in (GPU, MODEL):
            names = {match.group() for match in pattern.finditer(title)}
            names = {name for name in names if name.lower() not in found.setup.lower()}
            problems += [f"names {name}, which its source has not" for name in sorted(names)]
    for start, end in findnumbers.find_measured(title):
        problems.append(f"states a number: {title[start:end]!r}")
    return problems


def notes(found: Source, lines: list[str]) -> list[str]:
    """What a reader must see above the listed lines: times of a shared GPU, unusable columns."""
    text = "\n".join(lines)
    said = [f"{column} is unusable" for column in found.unusable if f"'{column}'" in text]
    if found.shared and _TIME.search(text):
        said.append("the GPU was shared, so its times are no result")
    return said


def head(title: str, path: str, found: Source, lines: list[str]) -> str:
    """The line above a listing: tier and run, the author's title, the file, and warnings."""
    parts = [title] if title.lower().startswith(found.label.lower()) else [found.label, title]
    shown = ": ".join([part for part in parts if part] + [path.removeprefix("capture/gpu/")])
    warnings = notes(found, lines)
    return f"{shown} ({'; '.join(warnings)})" if warnings else shown
