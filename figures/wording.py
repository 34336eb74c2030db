"""How a sentence may speak about its evidence: no wider, no stronger and of nothing else.

Three kinds of sentence: the claim of a figure, its title and caption, and a sentence of the prose
that links numbers. `claim_errors` has the strictest rules; the others need not say "one run".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from figures.strength import Strength

_ONE_RUN = re.compile(
    r"\b(?:one|an?|this|that|the|our|its|single)\b(?:[\s-]+[\w.,:/`'*+-]+){0,6}?[\s-]+(?:run|test"
    r"|replay)\b",
    re.IGNORECASE,
)
# "A run with 20 steps takes 23 s" speaks of any run; "a run took 23 s" of one.
_LOOSE_RUN = re.compile(r"^\W*(?:an?)\b(?:[\s-]+[\w.,:/`'*+-]+){0,6}?[\s-]+run\b", re.IGNORECASE)
_PRESENT = re.compile(
    r"\b(?:takes|needs|costs|gives|raises|reaches|loads|holds|uses|is|are)\b", re.IGNORECASE
)
_TIMELESS = re.compile(r"(?<!\brun )\b(?:takes|needs|costs|raises|reaches)\b", re.IGNORECASE)
_SOURCE = re.compile(r"\b(?:reported|published|lab|report|manual)\b", re.IGNORECASE)
_EVERYTHING = r"(?:every|any|each|all|most|many)"
_GENERAL = re.compile(
    r"\b(?:always|usually|typically|generally|(?<!ended )(?<!ends )normally|commonly|never|often"
    rf"|tends? to|in general|as a rule|{_EVERYTHING} runs?(?! of (?:ours|this|these)\b)"
    rf"|{_EVERYTHING} (?:\w+ )?(?:GPUs?|machines?|models?|tasks?)"
    r"|runs (?:take|need|give))\b",
    re.IGNORECASE,
)
# Of several runs, "each run" may mean each of those.
_EACH_RUN = re.compile(r"(?:each|all) runs?", re.IGNORECASE)
_COMPARATIVE = re.compile(
    r"\b(?:than|versus|vs|against|compared|outperforms?|beats?|exceeds?|twice|thrice|halved?"
    r"|doubled?|half (?:as|the|of)|times (?:as|the)|more|less|fewer|faster|slower|quicker|higher"
    r"|lower|better|worse|best|worst|fastest|slowest|larger|smaller|bigger|greater|longer|shorter"
    r"|cheaper|stronger|weaker|steadier|noisier|improves?|improved|reduces?|reduced|speed-?ups?"
    r"|instead of)\b",
    re.IGNORECASE,
)
_NUMBERS = {
    word: number
    for words, numbers in (
        (("one", "two", "three", "four", "five", "six", "seven", "eight", "nine"), range(1, 10)),
        (("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen"), range(10, 16)),
        (("sixteen", "seventeen", "eighteen", "nineteen", "twenty"), range(16, 21)),
        (("thirty", "forty", "fifty", "sixty", "hundred"), (30, 40, 50, 60, 100)),
    )
    for word, number in zip(words, numbers, strict=True)
}
_COUNTED = re.compile(
    rf"(?<![\w.,\ufffc-])(?P<number>\d[\d,]*|(?:(?:twenty|thirty|forty)[ -])?"
    rf"(?:{'|'.join(_NUMBERS)}))\s(?:of\s(?:the\s|these\s|our\s|its\s)?)?"
    rf"(?:(?!runs|seeds|of\b|{'|'.join(_NUMBERS)})[a-z-]+\s){{0,2}}?(?P<noun>runs|seeds)\b",
    re.IGNORECASE,
)
GPU = re.compile(
    r"\b(?:GB\d{2,3}|[ABHLVP]\d{2,3}[A-Z]?|MI\d{3}\w?|RTX[ -]?\w+|T4|TPU\w*)\b(?![.-]\d)"
)
MODEL = re.compile(
    r"\b(?:Qwen|Llama|SmolLM|Gemma|GPT|DeepSeek|Mistral|Phi|GLM)[\w.-]*\w", re.IGNORECASE
)
_DATA = re.compile(r"\b(?:GSM8K|AIME\w*|MMLU|HumanEval|DAPO-\w+)\b")
_MEASURED = re.compile(
    r"\b(?:we (?:have )?measured|measured (?:by us|here|on|in)"
    r"|our (?:own )?(?:\w+ )?(?:runs?|logs?))\b",
    re.IGNORECASE,
)
# A diagram shows how parts work together; how fast or how well they do is for figures with values.
_JUDGES = re.compile(
    r"\b(?:faster|slower|quicker|cheaper|better|worse|best|worst|fastest|slowest|outperforms?|beats?"
    r"|improves?|improved|speed-?ups?|measured|measures|reported|published)\b",
    re.IGNORECASE,
)
_REPORTED = re.compile(r"\b(?:reported|published|reports|publishes)\b", re.IGNORECASE)


def claim_errors(text: str, strength: Strength, parts: Sequence[Strength] = ()) -> list[str]:
    """What a claim says beyond its evidence, as messages; empty when the wording holds.

    One run: the claim must speak of one run ('in one run', 'this run', 'the 20-step run'). It may
    name no other number of runs or seeds than it, or one of its values (`parts`), has. Then the
    rules of `sentence_errors`.
    """
    errors = []
    if strength.one_run:
        loose = _LOOSE_RUN.match(text)
        if not _ONE_RUN.search(text) or (loose and _PRESENT.search(text, loose.end())):
            errors.append("rests on one run and does not say so (write 'one run' or 'this run')")
        errors += [
            f"rests on one run and says {match.group()!r}, as if it were so in every run"
            for match in _TIMELESS.finditer(text)
        ]
    if strength.tier == "reported" and not _SOURCE.search(text):
        errors.append("is reported and does not say so (write 'reported', or name the lab)")
    errors += _count_errors(text, [strength, *parts])
    return errors + sentence_errors(text, [strength], numbers=False)


def sentence_errors(text: str, strengths: Sequence[Strength], *, numbers: bool = True) -> list[str]:
    """What a title, caption or sentence of the prose says beyond the evidence of its numbers.

    No general word when everything is one setup, no comparative word over several, no GPU, model
    or data set that no setup has, no 'measured' of reported numbers and no 'reported' of measured
    ones, no more runs or seeds than there are.
    """
    setups = {setup.identity: setup for one in strengths for setup in one.setups}
    tiers = {one.tier for one in strengths}
    errors = []
    if len(setups) < 2:
        what = "one run" if all(one.one_run for one in strengths) else "one setup"
        what = what if strengths else "no run"
        errors += [
            f"rests on {what} and says {match.group()!r}"
            for match in _GENERAL.finditer(text)
            if what == "one run" or not _EACH_RUN.fullmatch(match.group())
        ]
    else:
        differs = sorted({name for one in strengths for name in one.differs})
        errors += [
            f"compares across two setups ({', '.join(differs) or 'two labs'}): {match.group()!r}"
            for match in _COMPARATIVE.finditer(text)
        ]
    if setups:
        known = " ".join(setup.text for setup in setups.values())
        for pattern in (GPU, MODEL, _DATA):
            errors += [
                f"names {name}, which is not in its setup ({known})"
                for name in sorted({match.group() for match in pattern.finditer(text)})
                if name.lower() not in known.lower()
            ]
    for only, pattern in (("reported", _MEASURED), ("measured", _REPORTED)):
        match = pattern.search(text) if tiers == {only} else None
        if match:
            errors.append(f"is {only} and says {match.group()!r}")
    return errors + (_most_errors(text, strengths) if numbers else [])


def diagram_errors(text: str) -> list[str]:
    """What the title, claim or caption of a diagram says that no diagram can show."""
    return [f"is of a diagram and says {match.group()!r}" for match in _JUDGES.finditer(text)]


def _count_errors(text: str, strengths: Sequence[Strength]) -> list[str]:
    """Numbers before 'runs' or 'seeds' that are those of none of the strengths."""
    errors = []
    for match in _COUNTED.finditer(text):
        runs = match["noun"].lower() == "runs"
        known = [len(one.runs) if runs else one.seeds for one in strengths]
        vague = None in known or (runs and any(one.unnamed for one in strengths))
        if not vague and _number(match["number"]) not in known:
            errors.append(f"says {match.group()!r} and rests on {known[0]} {match['noun']}")
    return errors


def _most_errors(text: str, strengths: Sequence[Strength]) -> list[str]:
    """Numbers before 'runs' or 'seeds' that are more than all strengths together have."""
    errors = []
    for match in _COUNTED.finditer(text):
        runs = match["noun"].lower() == "runs"
        seeds = [one.seeds for one in strengths]
        if None in seeds if not runs else any(one.unnamed for one in strengths):
            continue
        known = len({run for one in strengths for run in one.runs})
        if not runs:
            known = sum(number or 0 for number in seeds)
        if _number(match["number"]) > known:
            errors.append(f"says {match.group()!r} and rests on {known} {match['noun']}")
    return errors


def _number(text: str) -> int:
    digits = text.replace(",", "")
    if digits.isdigit():
        return int(digits)
    return sum(_NUMBERS[word] for word in re.split(r"[ -]", text.lower()))
