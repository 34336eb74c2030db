"""Drawings and tables of figures stay out of MkDocs.

MkDocs, its extensions and the search parse every byte of a page, several times, and leave these
parts as they are. So a page goes through them with short marks, and the finished page gets the
parts back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

_PART = re.compile(
    r"<svg\b[^>]*\bfig-svg\b.*?</svg>|<table class=\"fig-data\"[^>]*>.*?</table>", re.DOTALL
)
_MARK = re.compile(r'<i data-part="(\w+)"></i>')


def taken(text: str) -> tuple[str, dict[str, str]]:
    """The page with a mark for each part, and the parts by the name in their mark."""
    parts: dict[str, str] = {}

    def mark(match: re.Match[str]) -> str:
        name = hashlib.sha256(match[0].encode()).hexdigest()[:16]
        parts[name] = match[0]
        return f'<i data-part="{name}"></i>'

    return _PART.sub(mark, text), parts


def put_back(page: str, parts: Mapping[str, str]) -> str:
    """A built page with its parts. KeyError for a mark without a part."""
    return _MARK.sub(lambda match: parts[match[1]], page)
