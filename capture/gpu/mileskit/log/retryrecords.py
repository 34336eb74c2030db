"""The two physical lines of a failed request, and the one-line form of a failed connection.

Texts: Miles http_utils.py:227 around the exception texts of httpx, which have two lines when the
server answered (``Error: Server error '503 ...' for url`` and ``For more information check: ...,
retrying... (attempt A/60, url=URL, response=BODY)``).  Older versions print neither the address nor
the response.
"""

from __future__ import annotations

import json
import re

from mileskit.log.lineshape import clean_text, repeat_count

_FIRST_HALF = re.compile(
    rb"Error: (?:Server error|Client error|Redirect response|Informational response) '(\d{3})\b"
)
_ONE_LINE = re.compile(
    rb"Error: (.*?)(?:, |\s)retrying\.\.\. \(attempt (\d+)/(\d+)"
    rb"(?:, url=(.*?), response=(.*))?\)\s*$",
    re.S,
)
# Its start and its end may be on other lines when a terminal wrapped it.
_SECOND_HALF = re.compile(
    rb"(?:For more information check: )?(?:\S{0,200}?Status/(\d{3}))?.{0,80}?"
    rb"retrying\.\.\. \(attempt (\d+)/(\d+)"
    rb"(?:,(?: ?url=(.*?)(?:, ?|$))?(?:response=(.*?))?)?\)?\s*$",
    re.S,
)
_CODE = re.compile(rb'"code": ?"([^"]{1,80})"')


def first_half(msg: bytes) -> tuple[int, int] | None:
    """(HTTP status, times) of the first line."""
    m = _FIRST_HALF.match(msg)
    return (int(m[1]), repeat_count(msg)[1]) if m else None


def second_half(msg: bytes) -> tuple[int | None, tuple] | None:
    """(status if named, (attempt, limit, code, url, times)) of the second line."""
    bare, times = repeat_count(msg)
    m = _SECOND_HALF.match(bare)
    if m is None:
        return None
    url = None if m[4] is None else clean_text(m[4], 200)
    half = (int(m[2][:9]), int(m[3][:9]), router_code(m[5] or b""), url, times)
    return (int(m[1]) if m[1] else None), half


def one_line(msg: bytes) -> tuple | None:
    """Fields of a Retry after line and time, of a request that got no answer."""
    bare, times = repeat_count(msg)
    m = _ONE_LINE.match(bare)
    if m is None:
        return None
    code = router_code(m[5] or b"") or clean_text(m[1], 80) or None
    url = None if m[4] is None else clean_text(m[4], 200)
    return None, int(m[2][:9]), int(m[3][:9]), code, url, times


def router_code(body: bytes) -> str | None:
    """The router's error code in a response body, else the start of its text, None when empty."""
    m = _CODE.search(body, 0, 4000)
    if m:
        return m[1].decode("utf-8", "replace")
    body = body.strip()
    if body in (b"", b"None"):
        return None
    if body.startswith(b"{"):
        try:
            found = json.loads(body)
            inner = found.get("error", found)
            got = inner if isinstance(inner, str) else inner.get("type") or inner.get("message")
            if got:
                return clean_text(str(got).encode(), 80)
        except (ValueError, AttributeError, RecursionError):
            pass
    return clean_text(re.sub(rb"<[^>]{0,200}>", b" ", body[:600]), 80) or None
