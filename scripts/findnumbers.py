"""Finds the numbers of a text that look measured: digits with a unit, a counted noun, a metric."""

from __future__ import annotations

import re

from scripts.quantities import COUNTED, MEASURES, NUMBER, SIGN, STOP

_SPELLINGS = {spelling for spellings in MEASURES.values() for spelling in spellings}
_SYMBOLS = "|".join(
    re.escape(s)
    for s in sorted(_SPELLINGS, key=len, reverse=True)
    if s not in {"x", "fold", "degrees", "d", "B"} or s == "\u00d7"
)
_PLURALS = "|".join(sorted(COUNTED.values(), key=len, reverse=True))
_SINGULARS = "|".join(sorted(COUNTED, key=len, reverse=True))
# A count is whole ("5.3 seeds" is a section that seeds something) unless it is scaled.
_WHOLE = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_INTEGER = (
    rf"(?:{_WHOLE}(?:\.\d+)?\s(?:thousand|million|billion|dozen)"
    rf"|{_WHOLE}(?:\.\d+)?[kMG]|{_WHOLE}(?!\.\d))"
)
_BETWEEN = r"(?:\s?[\u2013\u2014-]\s?|\s(?:to|and|or|of)\s)"
_RANGE = rf"{SIGN}(?:{NUMBER}|\.\d+)(?:{_BETWEEN}{SIGN}{NUMBER})?"
_COUNT = rf"{_INTEGER}(?:{_BETWEEN}{_INTEGER})?"
_ADJECTIVES = rf"(?:(?!(?:{STOP})\b)[a-z][a-z-]*\s){{0,2}}"
_EDGE = r"(?<![\w.,:\u2212])(?<!\w[-/])"
_END = r"(?!\w)"
_WITH_UNIT = re.compile(
    rf"{_EDGE}(?:\d+\s?h\s?\d+{_END}"
    rf"|{_RANGE}(?:\s?-?(?:{_SYMBOLS}|x(?!\s*\d)|-fold)|\sdegrees|\s?(?-i:[dB])){_END}"
    rf"|\d+,\d{{1,2}}\s?(?:{_SYMBOLS}){_END}"
    rf"|\d{{1,2}}(?::\d\d){{1,2}}{_END}"
    rf"|{NUMBER}(?-i:[kMGT]){_END}"
    rf"|\b(?:by\s)?a?\s?factor\sof\s{NUMBER}"
    rf"|x\d[\d.]*{_END}"
    rf"|[$\u20ac]\s?{NUMBER})",
    re.IGNORECASE,
)
_OF_A_KIND = re.compile(
    rf"{_EDGE}(?:{_COUNT}\s(?:of\s(?:the\s|its\s|our\s|your\s)?)?{_ADJECTIVES}(?:{_PLURALS}){_END}"
    rf"|{_COUNT}-(?:{_SINGULARS}|{_PLURALS}){_END}"
    rf"|{_COUNT}\s(?:{_SINGULARS})(?=\s[a-z])"
    rf"|1\s{_ADJECTIVES}(?:{_SINGULARS}){_END}"
    rf"|{_WHOLE}\sof\s(?:the\s|its\s|our\s|your\s)?{_WHOLE}(?![\w.])"
    rf"|{_WHOLE}/{_WHOLE}(?![\w/.-]))",
    re.IGNORECASE,
)
_DECIMAL = re.compile(
    rf"(?<![\w.,:/\u2212])(?<!\w-){SIGN}(?:\d*\.\d+(?:[eE][-+\u2212]?\d+)?|\d+[eE][-+\u2212]?\d+)"
    r"(?![\w.]*\w)(?!-\w)"
)
# What is numbered and not counted: "section 3", "HTTP 503", "October 15", "in 2026".
_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_LABELLED = re.compile(
    rf"(?:\b(?:sections?|parts?|chapters?|tables?|figures?|ports?|lines?|steps?|ranks?|rows?|items?|"
    rf"codes?|status|issues?|pages?|perf|rollout|update|seed|HTTP|version|{_MONTHS})|\#)\s*\Z",
    re.IGNORECASE,
)
_YEAR = re.compile(r"\b(?:in|since|of|until|before|after|from)\s\Z", re.IGNORECASE)
_PROGRAMS = (
    "Python|Ray|NCCL|CUDA|torch|PyTorch|SGLang|transformers|Triton|Docker|Compose|Miles|Ubuntu|Linux|"
    "driver|versions?|sections?|parts?|chapters?|FSDP|NumPy|git|make"
)
_NAMED = re.compile(
    rf"(?:\b(?:{_PROGRAMS})\s(?:(?:before|after|since|from|than|newer|older|and|or|of)\s){{0,4}}|\bv)"
    r"(?:v?\d[\d.]*\w*(?:,\s|\s(?:and|or|to)\s|,\s(?:and|or)\s))*\Z",
    re.IGNORECASE,
)
_HEADING = re.compile(r"\s+[A-Z]")


def find_measured(text: str) -> list[tuple[int, int]]:
    """Spans of measured-looking numbers: digits with a measure or a counted noun, and metrics.

    A metric is a bare decimal such as 0.53 or .7 or 1e-9. Versions (Python 3.11, 0.5.16), dates,
    names with digits (H200, SmolLM2-135M), section numbers and ordinals (step 12, HTTP 503) are
    not measured.
    """
    found = [match.span() for match in _WITH_UNIT.finditer(text)]
    for match in _OF_A_KIND.finditer(text):
        before = text[: match.start()]
        year = re.match(r"(?:19|20)\d\d\s", match.group()) and _YEAR.search(before)
        if not (year or _LABELLED.search(before)):
            found.append(match.span())
    for match in _DECIMAL.finditer(text):
        before = text[: match.start()]
        section = not before.strip() and _HEADING.match(text, match.end())
        if not (section or _NAMED.search(before)):
            found.append(match.span())
    return _widest(found)


def _widest(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans that lie in no other one, in order."""
    kept: list[tuple[int, int]] = []
    for start, end in sorted(set(spans), key=lambda span: (span[0], -span[1])):
        if not kept or start >= kept[-1][1]:
            kept.append((start, end))
    return kept


_BARE = re.compile(rf"(?<![\w.])(?<!\w-){SIGN}(?:{NUMBER}|\.\d+)(?![\w])")


def find_numbers(text: str) -> list[tuple[int, int]]:
    """Spans of every number that is not part of a name (H200, SmolLM2-135M)."""
    return [match.span() for match in _BARE.finditer(text)]


_UNIT_IN_HEAD = re.compile(
    rf"(?:^|[,(]|\bin\s)\s*(?:{_PLURALS}|{_SYMBOLS})(?:\s?(?:per|a|/)\s?\w+)?\)?\s*\Z"
)


def find_in_column(head: str, cell: str) -> list[tuple[int, int]]:
    """Spans of a table cell's bare numbers when the head of its column names a unit."""
    return find_numbers(cell) if _UNIT_IN_HEAD.search(head) else []


_FLAG = re.compile(
    r"--[\w-]+[ =](?P<value>[^\s]+)(?=\s+--|\s*\Z)|\A(?:timeout|sleep) (?P<wait>\d+\s?[smhd]?)\Z"
)


def flag_values(code: str) -> list[tuple[int, int]]:
    """Spans of the values that inline code gives to flags: `--lr 1e-5`, `timeout 600 s`.

    A whole number written as a decimal, `1.0`, is a literal of a program too.
    """
    if re.fullmatch(r"\d+\.0", code):
        return [(0, len(code))]
    return [m.span("value" if m["value"] else "wait") for m in _FLAG.finditer(code)]


_HIDDEN = re.compile(
    r"[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]|[^\x00-\x7f](?<=\d)|[\u00b2\u00b3\u00b9"
    r"\u2070-\u2089\u2150-\u215f\u00bc-\u00be]|\d\s*\\[,;:! ]"
)


def find_hidden(text: str) -> list[int]:
    """Places of characters that hide a number: invisible ones, foreign digits, TeX spaces."""
    return [match.start() for match in _HIDDEN.finditer(text)]
