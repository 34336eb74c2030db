"""Opens a log for reading in binary: plain, .gz, .xz or standard input ("-").

The compression is told by the first bytes, not by the name.
"""

from __future__ import annotations

import gzip
import io
import lzma
import sys
import zlib
from pathlib import Path
from typing import BinaryIO

_MAGIC = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\x00": lzma.open}


class LogSourceError(Exception):
    """A log that cannot be opened or read; the message names the file and the reason."""


class _Stream(io.RawIOBase):
    """A binary stream whose read errors name the file."""

    def __init__(self, inner: BinaryIO, name: str, raw: BinaryIO | None = None):
        super().__init__()
        self._inner = inner
        self._raw = raw
        self.name = name

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            return self._inner.read(size)
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise LogSourceError(f"{self.name}: cannot read: {error}") from None

    def readinto(self, buffer) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed and self._inner is not sys.stdin.buffer:
            self._inner.close()
            if self._raw is not None:
                self._raw.close()
        super().close()


def open_log(path: str | Path) -> BinaryIO:
    """Binary stream of the uncompressed log at ``path`` ("-": standard input).

    Raises LogSourceError when it cannot be opened; its read() raises LogSourceError on damaged
    data.
    """
    if str(path) == "-":
        return _Stream(sys.stdin.buffer, "standard input")
    path = Path(path)
    try:
        raw = path.open("rb")
        head = raw.read(6)
        raw.seek(0)
    except OSError as error:
        raise LogSourceError(f"{path}: cannot open: {error.strerror or error}") from None
    for magic, opener in _MAGIC.items():
        if head.startswith(magic):
            return _Stream(opener(raw, "rb"), str(path), raw)
    return _Stream(raw, str(path))
