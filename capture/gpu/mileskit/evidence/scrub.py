"""Mask secrets, user names and host names in a log, and count every mask.

The core is pure: `Scrubber.line(bytes) -> bytes` changes one line, `scrub(source, target)`
copies a stream in constant memory. Scrubbing twice gives what scrubbing once gives. A line
without a hit comes back byte for byte; bytes that are not UTF-8 pass through.

What is masked: tokens and keys known by their shape; values of names that say KEY, TOKEN,
SECRET or PASSWORD (environment, options, Python or JSON dicts, query strings); authorization
headers; logins inside URLs; private key blocks; user names in home folders; project folders
under /root; host names; e-mail addresses; public IP addresses; words that the caller gives.
`scrub_rules.RULES` is the table.

What stays: loopback, private, link-local and documentation IP addresses. A private address
tells which process of a run talked to which (router and engine URLs), does not tell where the
machine is, and readers of the log need it. Commit ids, SHA-256 sums, Ray ids and metric
values stay too: hex alone is no secret, a wandb key is known only by its place.

A user or host name in running text cannot be recognised: give it as a word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from mileskit.evidence.scrub_rules import RULES, Rule

PIECE = 1 << 20  # bytes of a long line that are handled at once
WINDOW = 1 << 16  # the part at the end of a piece where a place to cut is looked for
MARGIN = 1 << 12  # bytes after a cut, so that a mask begun before it would show
LONGEST = 1 << 24  # bytes without a place to cut: refused
KEY_LINES = 200  # a private key block is never longer; without its END line masking stops here

_KEY_BEGIN = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----")
_KEY_END = re.compile(rb"-----END [A-Z0-9 ]*PRIVATE KEY")
_KEY_BODY = re.compile(
    rb"^(?:\x1b\[[0-9;]*m|\([^)]*\)|\[[^\]]*\]|\s)*(?P<mask>[A-Za-z0-9+/]{4,}={0,2})\s*$"
)


class Mask(NamedTuple):
    """One kind of mask: what was masked, what stands there now, how many times."""

    what: str
    replacement: str
    count: int


class ScrubError(ValueError):
    """A stream or a word that cannot be scrubbed."""


def word_rule(word: str) -> Rule:
    """A rule for one word, in any case, as a whole word.

    Raises ScrubError for a word under three characters or one that a replacement holds.
    """
    low = word.lower().encode()
    if len(low) < 3:
        raise ScrubError(f"a word to mask needs at least three characters: {word!r}")
    if b"[masked:word]".find(low) >= 0 or any(low in r.replacement.lower() for r in RULES):
        raise ScrubError(f"a word to mask may not occur in the masks themselves: {word!r}")
    pattern = rb"(?i)(?<![A-Za-z0-9])(?P<mask>" + re.escape(low) + rb")(?![A-Za-z0-9])"
    return Rule("word", (low,), re.compile(pattern), b"[masked:word]")


class Scrubber:
    """Masks one stream; `masks()` tells what was masked so far."""

    def __init__(self, words: Iterable[str] = ()):
        self._rules = (*RULES, *(word_rule(word) for word in words))
        self._counts: Counter[tuple[str, bytes]] = Counter()
        self._key_lines_left = 0

    def masks(self) -> list[Mask]:
        """The masks made so far, sorted by kind."""
        return [Mask(w, r.decode(), n) for (w, r), n in sorted(self._counts.items())]

    def line(self, line: bytes) -> bytes:
        """The line with its secrets masked. Call it in the order of the stream."""
        if self._key_lines_left and (inside := self._inside_key(line)) is not None:
            return inside
        low = line.lower()
        for rule in self._rules:
            if any(hint in low for hint in rule.hints):
                line = self._apply(rule, line)
        begin = _KEY_BEGIN.search(line)
        if begin and not _KEY_END.search(line, begin.end()):
            self._key_lines_left = KEY_LINES
        return line

    def _apply(self, rule: Rule, line: bytes) -> bytes:
        def replace(found: re.Match) -> bytes:
            span = rule.span(found)
            if span is None:
                return found[0]
            self._counts[rule.what, rule.replacement] += 1
            start, end = span[0] - found.start(), span[1] - found.start()
            return found[0][:start] + rule.replacement + found[0][end:]

        return rule.pattern.sub(replace, line)

    def _inside_key(self, line: bytes) -> bytes | None:
        """The masked line of a key block, or None when the line is another writer's."""
        self._key_lines_left -= 1
        if _KEY_END.search(line):
            self._key_lines_left = 0
            return None
        found = _KEY_BODY.match(line)
        if not found:
            return None
        self._counts["private key", b"[masked:private key]"] += 1
        return line[: found.start("mask")] + b"[masked:private key]" + line[found.end("mask") :]

    def place_to_cut(self, piece: bytes) -> int:
        """Where a long line can be cut so that no mask is cut with it; 0 when nowhere."""
        start = max(0, len(piece) - 2 * WINDOW)
        tail = piece[start:]
        low = tail.lower()
        rules = [rule for rule in self._rules if any(hint in low for hint in rule.hints)]
        spans = [found.span() for rule in rules for found in rule.pattern.finditer(tail)]
        at = len(tail) - MARGIN
        while (at := max(tail.rfind(b" ", 0, at), tail.rfind(b",", 0, at))) >= max(
            0, len(tail) - WINDOW
        ):
            if not any(left < at + 1 < right for left, right in spans):
                return start + at + 1
        return 0


def pieces(source: BinaryIO, scrubber: Scrubber) -> Iterator[bytes]:
    """The stream as whole lines, a line over PIECE bytes in parts that no mask crosses.

    Raises ScrubError for a line with LONGEST bytes and no place to cut.
    """
    held = b""
    while part := source.readline(PIECE):
        held += part
        if part.endswith(b"\n"):
            yield held
            held = b""
        elif len(held) >= PIECE:
            at = scrubber.place_to_cut(held)
            if at:
                yield held[:at]
                held = held[at:]
            elif len(held) >= LONGEST:
                raise ScrubError(f"a line holds {len(held)} bytes without a place to cut")
    if held:
        yield held


def scrub(source: BinaryIO, target: BinaryIO, words: Iterable[str] = ()) -> list[Mask]:
    """Copy source to target with its secrets masked; the masks made, sorted by kind."""
    scrubber = Scrubber(words)
    for piece in pieces(source, scrubber):
        target.write(scrubber.line(piece))
    return scrubber.masks()


def scrub_bytes(data: bytes, words: Iterable[str] = ()) -> bytes:
    """The bytes with their secrets masked, for texts that are at hand anyway."""
    scrubber = Scrubber(words)
    return b"".join(scrubber.line(line) for line in data.splitlines(keepends=True))
