"""A TOML 1.0 reader for Python 3.10, which has no `tomllib`.

`parse(text)` gives the values that `tomllib.loads` gives. It is a plain recursive-descent
reader over the text; the tests hold it against `tomllib` on every stored TOML file and on
generated documents, valid and broken. Rules: https://toml.io/en/v1.0.0.
"""

from __future__ import annotations

import datetime as dt
import re

_WS = " \t"
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_CONTROL_MULTI = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}
_INT = re.compile(r"[+-]?(?:0|[1-9](?:_?[0-9])*)")
_BASED = re.compile(
    r"0x[0-9A-Fa-f](?:_?[0-9A-Fa-f])*|0o[0-7](?:_?[0-7])*|0b[01](?:_?[01])*",
)
_FLOAT = re.compile(
    r"[+-]?(?:0|[1-9](?:_?[0-9])*)"
    r"(?:\.[0-9](?:_?[0-9])*(?:[eE][+-]?[0-9](?:_?[0-9])*)?|[eE][+-]?[0-9](?:_?[0-9])*)"
    r"|[+-]?(?:inf|nan)"
)
_TIME = r"([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])(?:\.([0-9]{1,6})[0-9]*)?"
_LOCAL_TIME = re.compile(_TIME)
_DATE_TIME = re.compile(
    r"([0-9]{4})-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    rf"(?:[Tt ]{_TIME}(?:([Zz])|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))?)?"
)


class _Table(dict):
    """A table under construction: `closed` once nothing may be added to it any more."""

    __slots__ = ("closed", "defined", "dotted")

    def __init__(self):
        super().__init__()
        self.closed = False  # inline table
        self.defined = False  # its own [header] was seen
        self.dotted = False  # made by a dotted key


class _Tables(list):
    """An array of tables, made by [[header]] lines."""


def parse(text: str) -> dict:
    """The document as a dict. Raises ValueError naming the line."""
    reader = _Reader(text.replace("\r\n", "\n"))
    return _plain(reader.document())


def _plain(value):
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value


class _Reader:
    def __init__(self, text: str):
        self.text = text
        self.at = 0

    def fail(self, what: str):
        line = self.text.count("\n", 0, self.at) + 1
        raise ValueError(f"line {line}: {what}")

    def peek(self, n: int = 1) -> str:
        return self.text[self.at : self.at + n]

    def blank(self):
        while self.peek() and self.peek() in _WS:
            self.at += 1

    def comment(self):
        if self.peek() == "#":
            end = self.text.find("\n", self.at)
            end = len(self.text) if end < 0 else end
            if _CONTROL.search(self.text, self.at, end):
                self.fail("control character in a comment")
            self.at = end

    def gap(self):
        """Blanks, comments and line ends, as they may stand inside an array."""
        while True:
            self.blank()
            self.comment()
            if self.peek() != "\n":
                return
            self.at += 1

    def document(self) -> dict:
        root = _Table()
        here = root
        while True:
            self.gap()
            if self.at >= len(self.text):
                return root
            if self.peek() == "[":
                here = self.header(root)
            else:
                self.pair(here)
            self.blank()
            self.comment()
            if self.at < len(self.text) and self.peek() != "\n":
                self.fail(f"unexpected {self.peek()!r}")

    def key(self) -> list[str]:
        parts = []
        while True:
            self.blank()
            if self.peek() == '"':
                parts.append(self.basic())
            elif self.peek() == "'":
                parts.append(self.literal())
            else:
                found = _BARE.match(self.text, self.at)
                if not found:
                    self.fail("a key is missing")
                parts.append(found.group())
                self.at = found.end()
            self.blank()
            if self.peek() != ".":
                return parts
            self.at += 1

    def header(self, root: _Table) -> _Table:
        double = self.peek(2) == "[["
        self.at += 2 if double else 1
        parts = self.key()
        if self.peek(2 if double else 1) != ("]]" if double else "]"):
            self.fail("a table header is not closed")
        self.at += 2 if double else 1
        table = root
        for part in parts[:-1]:
            table = self.child(table, part)
        last = parts[-1]
        found = table.get(last)
        if double:
            if found is None:
                found = table[last] = _Tables()
            if not isinstance(found, _Tables):
                self.fail(f"{last!r} is already defined")
            made = _Table()
            made.defined = True
            found.append(made)
            return made
        if found is None:
            found = table[last] = _Table()
        if not isinstance(found, _Table) or found.closed or found.defined or found.dotted:
            self.fail(f"{last!r} is already defined")
        found.defined = True
        return found

    def child(self, table: _Table, part: str) -> _Table:
        found = table.get(part)
        if found is None:
            found = table[part] = _Table()
        if isinstance(found, _Tables):
            found = found[-1]
        if not isinstance(found, _Table) or found.closed:
            self.fail(f"{part!r} is already defined")
        return found

    def pair(self, table: _Table):
        parts = self.key()
        if self.peek() != "=":
            self.fail("'=' is missing after a key")
        self.at += 1
        for part in parts[:-1]:
            found = table.get(part)
            if found is None:
                found = table[part] = _Table()
                found.dotted = True
            if not isinstance(found, _Table) or found.closed or not found.dotted:
                self.fail(f"{part!r} is already defined")
            table = found
        if parts[-1] in table:
            self.fail(f"{parts[-1]!r} is already defined")
        self.blank()
        table[parts[-1]] = self.value()

    def value(self):
        char = self.peek()
        if char == '"':
            return self.basic_multi() if self.peek(3) == '"""' else self.basic()
        if char == "'":
            return self.literal_multi() if self.peek(3) == "'''" else self.literal()
        if char == "[":
            return self.array()
        if char == "{":
            return self.inline()
        for word, value in (("true", True), ("false", False)):
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return value
        return self.scalar()

    def scalar(self):
        for pattern, make in (
            (_DATE_TIME, self.date_time),
            (_LOCAL_TIME, lambda m: dt.time(*map(int, m.group(1, 2, 3)), _micro(m.group(4)))),
            (_FLOAT, lambda m: float(m.group().replace("_", ""))),
            (_BASED, lambda m: int(m.group().replace("_", ""), 0)),
            (_INT, lambda m: int(m.group().replace("_", ""))),
        ):
            found = pattern.match(self.text, self.at)
            if found:
                made = make(found)
                self.at = found.end()
                return made
        return self.fail("a value is missing or unknown")

    def date_time(self, m):
        year, month, day, hour, minute, second, part, zulu, sign, oh, om = m.groups()
        try:
            if hour is None:
                return dt.date(int(year), int(month), int(day))
            zone = None
            if zulu:
                zone = dt.timezone.utc
            elif sign:
                shift = dt.timedelta(hours=int(oh), minutes=int(om))
                zone = dt.timezone(shift if sign == "+" else -shift)
            numbers = map(int, (year, month, day, hour, minute, second))
            return dt.datetime(*numbers, _micro(part), zone)
        except ValueError:
            self.fail(f"no such date: {m.group()}")

    def array(self) -> list:
        self.at += 1
        items = []
        while True:
            self.gap()
            if self.peek() == "]":
                self.at += 1
                return items
            items.append(self.value())
            self.gap()
            if self.peek() == ",":
                self.at += 1
            elif self.peek() != "]":
                self.fail("an array is not closed")

    def inline(self) -> _Table:
        self.at += 1
        table = _Table()
        self.blank()
        if self.peek() == "}":
            self.at += 1
            table.closed = True
            return table
        while True:
            self.pair(table)
            self.blank()
            if self.peek() == "}":
                self.at += 1
                _close(table)
                return table
            if self.peek() != ",":
                self.fail("an inline table is not closed")
            self.at += 1

    def basic(self) -> str:
        self.at += 1
        out = []
        while True:
            char = self.peek()
            if char == '"':
                self.at += 1
                return "".join(out)
            if not char or (char != "\t" and _CONTROL.match(char)):
                self.fail("text is not closed, or holds a control character")
            out.append(self.escape() if char == "\\" else char)
            if char != "\\":
                self.at += 1

    def escape(self) -> str:
        kind = self.text[self.at + 1 : self.at + 2]
        if kind in _ESCAPES:
            self.at += 2
            return _ESCAPES[kind]
        size = {"u": 4, "U": 8}.get(kind)
        digits = self.text[self.at + 2 : self.at + 2 + size] if size else ""
        if not size or not re.fullmatch(rf"[0-9A-Fa-f]{{{size}}}", digits):
            self.fail(f"unknown escape \\{kind}")
        code = int(digits, 16)
        if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
            self.fail(f"no character has the code {digits}")
        self.at += 2 + size
        return chr(code)

    def basic_multi(self) -> str:
        self.at += 3
        if self.peek() == "\n":
            self.at += 1
        out = []
        while True:
            char = self.peek()
            if not char:
                self.fail("text is not closed")
            if self.peek(3) == '"""':
                return "".join(out) + self.closing('"')
            if char == "\\":
                fold = re.compile(r"\\[ \t]*\n[ \t\n]*").match(self.text, self.at)
                if fold:
                    self.at = fold.end()
                else:
                    out.append(self.escape())
                continue
            if _CONTROL_MULTI.match(self.text, self.at):
                self.fail("control character in text")
            out.append(char)
            self.at += 1

    def literal_multi(self) -> str:
        self.at += 3
        if self.peek() == "\n":
            self.at += 1
        end = self.text.find("'''", self.at)
        if end < 0:
            self.fail("text is not closed")
        body = self.text[self.at : end]
        if _CONTROL_MULTI.search(body):
            self.fail("control character in text")
        self.at = end
        return body + self.closing("'")

    def closing(self, quote: str) -> str:
        """Step over three quotes; up to two more before them belong to the text."""
        extra = 0
        while extra < 2 and self.text[self.at + 3 + extra : self.at + 4 + extra] == quote:
            extra += 1
        self.at += 3 + extra
        return quote * extra

    def literal(self) -> str:
        end = self.text.find("'", self.at + 1)
        line_end = self.text.find("\n", self.at)
        if end < 0 or -1 < line_end < end:
            self.fail("text is not closed")
        body = self.text[self.at + 1 : end]
        if _CONTROL.search(body):
            self.fail("control character in text")
        self.at = end + 1
        return body


def _micro(digits: str | None) -> int:
    return int((digits or "0").ljust(6, "0"))


def _close(table: _Table):
    table.closed = True
    for value in table.values():
        if isinstance(value, _Table):
            _close(value)
