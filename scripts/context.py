"""What stands around a linked number: words and signs that would turn it into another number."""

from __future__ import annotations

import re
from collections.abc import Collection

from scripts import quantities

_SCALES = ("dozen", "score", "hundred", "thousand", "million", "billion", "trillion")
MULTIPLIERS = frozenset(("k", "K", "M", "G", "bn", "half", *_SCALES, *(f"{s}s" for s in _SCALES)))
_BEFORE_OK = re.compile(r"(?:^|[\s(\[\"'\u201c\u2018*|>])\Z")
_FACTOR = re.compile(
    rf"(?:^|\s)(?:(?:minus|plus|negative|half|twice|thrice|double|triple|times"
    rf"|[-+\u2212\u00b1\u00d7<>\u2264\u2265~])(?:\s(?:of|the|a))*"
    rf"|{quantities.NUMBER}|twenty|thirty|forty|fifty|[sen]\w+ty|(?:\w+\s)?(?:hundred|thousand))"
    r"\s\Z",
    re.IGNORECASE,
)
_AFTER_OK = re.compile(
    r"\Z|[\s)\]\"'\u201d\u2019\u2026:;!?*|<]|[.,](?!\w)|[\u2013\u2014](?!\s*[\d.])"
)
_JOINED = re.compile(r"-([^\W\d_]+)")
_TOKEN = re.compile(r"\s+([^\s]+)")
_RATE = frozenset(("a", "an", "each", "every", "per"))
_PREPOSITIONS = (
    "of",
    "over",
    "under",
    "between",
    "during",
    "within",
    "without",
    "across",
    "through",
)
_STOP = frozenset((*quantities.STOP.split("|"), *_PREPOSITIONS, "among", "about", "all"))
_END = ".,;:!?)]\u2026\"'|"


def nouns_of(value: object) -> tuple[str, ...]:
    """Canonical names of what a value counts; the rate of a bare number counts as one too."""
    names = (getattr(value, "noun", "") or "").split("|")
    unit = getattr(value, "unit", "")
    if unit and not quantities.is_measure(quantities.canonical_unit(unit)):
        names.append(unit)
    return tuple(quantities.canonical_unit(name) for name in names if name)


def problem(text: str, start: int, end: int, stated: str, nouns: Collection[str]) -> str | None:
    """What around `text[start:end]` changes the number written there, or None.

    `stated` is the canonical unit inside the span, "" for a bare number; `nouns` are the canonical
    names of what the number counts.
    """
    text = text.replace("\u00a0", " ").replace("\u202f", " ")
    before, after = text[:start], text[end:]
    if not _BEFORE_OK.search(before):
        return f"{before[-1]!r} touches it"
    factor = _FACTOR.search(before)
    if factor:
        return f"{factor.group().strip()!r} stands before it"
    joined = _JOINED.match(after)
    if joined and quantities.canonical_unit(joined[1]) in nouns:
        return None
    if not _AFTER_OK.match(after):
        return f"{after[:8].split()[0]!r} touches it"
    return _tail_problem(_words(after), stated, nouns)


def _words(after: str) -> list[str]:
    """Up to five words that follow, to the end of their clause."""
    words: list[str] = []
    at = 0
    while len(words) < 5 and (token := _TOKEN.match(after, at)):
        words.append(token[1].rstrip(_END))
        if token[1][-1] in _END:
            break
        at = token.end()
    return words


def _tail_problem(words: list[str], stated: str, nouns: Collection[str]) -> str | None:
    if not words:
        return None
    first, second = words[0], words[1] if len(words) > 1 else ""
    if any(quantities.canonical_unit(" ".join(words[:n])) in nouns for n in (1, 2, 3)):
        return None
    if first in MULTIPLIERS or first.lower() in MULTIPLIERS - {"k", "m", "g"}:
        return f"{first!r} follows it"
    if first[:1].isdigit() or first == "per" or words[:3] == ["and", "a", "half"]:
        return f"{' '.join(words[:2])!r} follows it"
    if first in _RATE and quantities.canonical_unit(second) in ("s", "ms", "min", "h", "d"):
        return f"{first} {second} follows it"
    for n in (1, 2, 3):
        if quantities.is_measure(quantities.canonical_unit(" ".join(words[:n]))):
            return f"the unit {' '.join(words[:n])!r} follows it"
    if stated:
        return None
    for place, word in enumerate(words):
        if word.lower() in _STOP:
            return None
        noun = quantities.canonical_unit(word)
        if noun in quantities.COUNTED:
            named = {quantities.canonical_unit(" ".join(words[n : place + 1])) for n in range(3)}
            if named.isdisjoint(nouns):
                return f"it is followed by {word!r} and counts {', '.join(nouns) or 'nothing'}"
            return None
    return None
