"""Numbers that a page may state without a figure: settings that are verified, and reasons."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scripts import context, coresettings, findnumbers, quantities
from scripts.chapters import Chapter
from scripts.report import Report
from scripts.tree import Tree, toml

#: what the number of a setting counts; a setting that is not here stands for a bare number
COUNTS: dict[str, tuple[str, ...]] = {
    "--rollout-batch-size": ("prompt", "group"),
    "--n-samples-per-prompt": ("answer", "sample"),
    "--global-batch-size": ("sample", "answer"),
    "--rollout-max-response-len": ("token",),
    "--num-rollout": ("step", "rollout"),
    "MILES_NUM_ROLLOUT": ("step", "rollout"),
    "--num-steps-per-rollout": ("update",),
    "--actor-num-gpus-per-node": ("gpu",),
    "--rollout-num-gpus": ("gpu",),
    "--eval-interval": ("step", "rollout"),
    "--save-interval": ("step", "rollout"),
    "--max-tokens-per-gpu": ("token",),
}
REPORTED_SETTING = re.compile(r"(?P<lab>[\w-]+):(?P<id>[\w-]+)")
RUN_SETTING = re.compile(r"(?P<run>[\w.-]+/[\w.-]+)\s+(?P<flag>--[\w-]+)")


_GOES_ON = re.compile(r"[\w/%]|[.,]\d")  # "256 answers" does not exempt "256 answers/s"
MIN_REASON = 3  # words


@dataclass
class Exemption:
    """One front-matter entry. `used` counts the numbers that it covered."""

    text: str
    line: int
    setting: str = ""
    reason: str = ""
    used: int = 0

    def covers(self, text: str, start: int, end: int) -> bool:
        """True when the exempt text stands in `text` over the span."""
        at = text.find(self.text)
        while at >= 0:
            after = at + len(self.text)
            if at <= start and end <= after and not _GOES_ON.match(text, after):
                return True
            at = text.find(self.text, at + 1)
        return False


@dataclass
class Exemptions:
    """The exemptions of one page."""

    path: str
    entries: list[Exemption] = field(default_factory=list)

    def allow(self, text: str, start: int, end: int) -> bool:
        """True when an entry covers the span; the entry then counts as used."""
        covering = [entry for entry in self.entries if entry.covers(text, start, end)]
        for entry in covering:
            entry.used += 1
        return bool(covering)


def read(chapter: Chapter, report: Report) -> Exemptions:
    """The page's exemptions; malformed entries become problems."""
    found = Exemptions(chapter.path)
    raw = chapter.front.get("exempt") or []
    if not isinstance(raw, list):
        report.error(chapter.path, chapter.front_line("exempt"), "exempt is no list")
        return found
    for entry in raw:
        text = str(entry.get("text", "")) if isinstance(entry, dict) else ""
        line = chapter.front_line(text) if text else chapter.front_line("exempt")
        if not text or set(entry) not in ({"text", "setting"}, {"text", "reason"}):
            message = f"exemption needs `text` and one of `setting`, `reason`: {entry!r}"
            report.error(chapter.path, line, message)
            continue
        found.entries.append(
            Exemption(
                quantities.squeeze(text),
                line,
                str(entry.get("setting", "")),
                str(entry.get("reason", "")),
            )
        )
    return found


def flag_values(command: list[str]) -> dict[str, str]:
    """`--flag value` pairs of an argument list; the last one wins; a bare flag is "true"."""
    values: dict[str, str] = {}
    for place, word in enumerate(command):
        if not word.startswith("--"):
            continue
        flag, equals, value = word.partition("=")
        following = command[place + 1] if place + 1 < len(command) else "--"
        if equals:
            values[flag] = value
        else:
            values[flag] = "true" if following.startswith("--") else following
    return values


def default_recipe(tree: Tree) -> dict[str, str]:
    """Flags of the launcher's default recipe, and its MILES_ settings. Empty without a launcher."""
    if not tree.exists("capture/gpu/miles_grpo.py"):
        return {}
    folder = str(tree.root / "capture" / "gpu")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import miles_grpo

    recipe = flag_values([str(word) for word in miles_grpo.default_command(env={})])
    return recipe | {setting.name: setting.default for setting in miles_grpo.SETTINGS}


def run_setting(tree: Tree, run: str, flag: str) -> str | None:
    """A flag's value in a stored run's run.toml, or None."""
    lab, name = run.split("/")
    path = f"capture/gpu/out-{lab}/{name}/run.toml"
    if not tree.exists(path):
        return None
    settings: Mapping[str, Any] = toml(tree.text(path)).get("settings", {})
    bare = flag.removeprefix("--")
    for key in (flag, bare, bare.replace("-", "_")):
        if key in settings:
            return str(settings[key])
    return None


def reported_setting(tree: Tree, lab: str, name: str) -> tuple[str | None, str]:
    """Printed number and unit of a published setting or value of a lab, (None, "") when absent."""
    path = f"capture/gpu/out-{lab}/reported.toml"
    if not tree.exists(path):
        return None, ""
    whole = toml(tree.text(path))
    for entry in [*whole.get("setting", []), *whole.get("value", [])]:
        if entry.get("id") == name:
            return str(entry["printed"]), str(entry.get("unit", ""))
    return None, ""


def verify(
    tree: Tree,
    pages: list[Exemptions],
    report: Report,
    recipe: Mapping[str, str] | None = None,
) -> None:
    """Check every setting against its source and every entry for use; note what is exempt.

    `recipe` stands in for the launcher's default flags.
    """
    known = default_recipe(tree) if recipe is None else recipe
    for page in pages:
        for entry in page.entries:
            report.count("exemptions")
            if not entry.used:
                report.error(page.path, entry.line, f"exemption is not used: {entry.text!r}")
            if len(findnumbers.find_numbers(entry.text)) > 1:
                report.error(page.path, entry.line, f"exempts more than one number: {entry.text!r}")
            if entry.reason:
                if len(entry.reason.split()) < MIN_REASON:
                    report.error(page.path, entry.line, f"is no reason: {entry.reason!r}")
                report.notes.append(f"exempt {page.path}: {entry.text!r} ({entry.reason})")
            else:
                report.notes.append(f"exempt {page.path}: {entry.text!r} = {entry.setting}")
                _verify_setting(tree, page.path, entry, report, known)


def _verify_setting(
    tree: Tree,
    path: str,
    entry: Exemption,
    report: Report,
    recipe: Mapping[str, str],
) -> None:
    match = RUN_SETTING.fullmatch(entry.setting)
    place = REPORTED_SETTING.fullmatch(entry.setting)
    core = coresettings.SETTING.fullmatch(entry.setting)
    actual = recipe.get(entry.setting)
    counts = COUNTS.get(match["flag"] if match else entry.setting, ())
    if core:
        actual, counts = coresettings.value(tree, core), coresettings.counted(core["key"])
    elif match:
        actual = run_setting(tree, match["run"], match["flag"])
    elif place:
        actual, unit = reported_setting(tree, place["lab"], place["id"])
        counts = (quantities.canonical_unit(unit),) if unit else ()
    if actual is None:
        report.error(path, entry.line, f"setting {entry.setting!r} is in no recipe or run.toml")
        return
    spans = findnumbers.find_numbers(entry.text)
    if len(spans) != 1:
        report.error(path, entry.line, f"a setting exempts exactly one number: {entry.text!r}")
        return
    start, end = spans[0]
    written = entry.text[start:end]
    try:
        same = quantities.to_decimal(written) == quantities.to_decimal(actual)
    except quantities.QuantityError:
        same = False
    if not same:
        report.error(path, entry.line, f"{entry.text!r} is written, {entry.setting} is {actual!r}")
        return
    problem = context.problem(entry.text, start, end, "", counts)
    if not problem and not any(
        quantities.canonical_unit(word) in counts for word in re.split(r"[\s-]+", entry.text[end:])
    ):
        measure = next((unit for unit in counts if quantities.is_measure(unit)), "")
        problem = f"the unit {measure!r} is missing" if measure else None
    if problem:
        report.error(path, entry.line, f"{entry.text!r} is no value of {entry.setting}: {problem}")
