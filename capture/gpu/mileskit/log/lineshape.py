"""Shapes of one physical line of a Miles log: colour, Ray prefix, logger prefix, timestamps.

Outside sources: Ray's print_worker_logs for the ``(NAME pid=N, ip=A)`` prefix, Miles'
logging_utils for ``[date time.ms TAG] file.py:line - ``, SGLang for ``[date time PREFIX] ``.
"""

from __future__ import annotations

import calendar
import re

ANSI = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
REPEATED = re.compile(rb"\s*\[repeated (\d+)x across cluster\].*$", re.S)

_COLOUR = rb"(?:\x1b\[[0-9;]*m)*"
RAY_PREFIX = rb"\((?:[^()\s]{0,200} ?pid=\d+[^()]{0,80}|raylet[^()]{0,80}|autoscaler[^()]{0,80})\)"
_STAMP = rb"\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?(?: [^\]\[]{0,120})?\] "
_SOURCE = rb"[\w.<>-]{1,80}:\d+ - "

# groups: 1 Ray prefix, 2 seconds text, 3 fraction, 4 source
HEAD = re.compile(
    _COLOUR + rb"(" + RAY_PREFIX + rb")?" + _COLOUR + rb"\s*" + rb"(?:" + _STAMP + rb")?"
    rb"(" + _SOURCE + rb")?"
)
# What ``docker logs -t`` and ``kubectl logs --timestamps`` put before a line, and what follows it
# in a Miles log (Rust programs begin their own lines with such a time and two blanks or a level).
OUTER = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) ")
OUTER_FIRST = re.compile(OUTER.pattern + rb"(?=\(|\[20|# |EXEC: |Job ')")
MESSAGE_SOURCE = re.compile(_SOURCE)
# A record that follows a bar fragment on the same line.
RECORD = re.compile(rb"(?:" + RAY_PREFIX + rb")?" + _COLOUR + rb" ?" + _STAMP)

# groups: 1 label with the percentage, 2 done, 3 its unit, 4 total, 5 its unit
BAR = re.compile(
    rb"([^%|]{0,300}(?<=\d))%[^|]{0,40}(?:\|[^|]{0,400})?\|"
    rb"\s*([\d.]+)([kKMGT]?)i?B?/([\d.]+)([kKMGT]?)i?B?\s*\[[^\]]*\]?"
)
_SCALE = {b"": 1.0, b"k": 1e3, b"K": 1e3, b"M": 1e6, b"G": 1e9, b"T": 1e12}

_DIGITS = re.compile(rb"\d{1,6}")
# Where a timestamp may stand in a line that needs only its time.
ANY_STAMP = re.compile(
    rb"(?:\[|\A|\x1b\[2m|\) ?|# (?:date |end )?)"
    rb"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?(Z?)"
)


def scaled(number: bytes, unit: bytes) -> float:
    """Number of a bar with its decimal unit (tqdm prints 1.5G for 1.5e9)."""
    try:
        return float(number) * _SCALE[unit]
    except ValueError:
        return 0.0


class Clock:
    """Turns ``YYYY-MM-DD HH:MM:SS`` into seconds since the epoch, cached per second.

    ``utc_offset_s``: seconds that the log's local clock is ahead of UTC.
    """

    def __init__(self, utc_offset_s: float = 0.0):
        self.offset = utc_offset_s
        self._cache: dict[bytes, float | None] = {}

    def second(self, text: bytes) -> float | None:
        """Epoch seconds of a 19-byte local time; None when it is no date."""
        got = self._cache.get(text)
        if got is None and text not in self._cache:
            if len(self._cache) >= 4096:
                self._cache.clear()
            got = self._cache[text] = self._parse(text)
        return got

    def _parse(self, text: bytes) -> float | None:
        try:
            y, mo, d = int(text[0:4]), int(text[5:7]), int(text[8:10])
            h, mi, s = int(text[11:13]), int(text[14:16]), int(text[17:19])
            if not (1 <= mo <= 12 and 1 <= d <= 31 and h < 24 and mi < 60 and s < 61):
                return None
            return calendar.timegm((y, mo, d, h, mi, s)) - self.offset
        except (ValueError, OverflowError):
            return None

    def at(self, text: bytes, fraction: bytes | None) -> float | None:
        """Epoch seconds of a local time with an optional decimal fraction."""
        whole = self.second(text)
        if whole is None or not fraction:
            return whole
        return whole + int(fraction) / 10 ** len(fraction)

    def of_line(self, line: bytes) -> float | None:
        """Time of the first timestamp in the first 400 bytes of a line, or None."""
        at = line.find(b"[20", 0, 120)
        if at >= 0 and (when := self.second(line[at + 1 : at + 20])) is not None:
            if line[at + 20 : at + 21] in (b".", b","):
                digits = _DIGITS.match(line, at + 21)
                if digits:
                    when += int(digits[0]) / 10 ** len(digits[0])
            return when
        m = ANY_STAMP.search(line, 0, 400)
        if m is None:
            return None
        when = self.at(m.group(1), m.group(2))
        if when is not None and m.group(3):
            when += self.offset
        return when


def clean_text(raw: bytes, limit: int = 400) -> str:
    """Printable text of a message: colours and control bytes gone, cut at ``limit`` characters."""
    text = ANSI.sub(b"", raw[: 4 * limit]).decode("utf-8", "replace")
    if text.isprintable():
        return text.strip()[:limit]
    return "".join(c if c.isprintable() else " " for c in text).strip()[:limit]


def repeat_count(message: bytes) -> tuple[bytes, int]:
    """Message without Ray's repeat tail, and how many times it stands for."""
    if b"[repeated " not in message:
        return message, 1
    m = REPEATED.search(message)
    if m is None:
        return message, 1
    return message[: m.start()], max(1, int(m.group(1)[:9]))
