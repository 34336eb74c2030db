"""Checks that tracked files hold no secret, no path of a working machine and no registry host.

Stored evidence goes through the kit's scrubber again, which must find nothing left to mask. Lock
files name no host at all and give a hash for every requirement. Links of the README lead to files.

`python3 -m scripts.hygiene` prints the problems. Exit codes: 0 fine, 1 something is wrong,
2 bad usage, 3 inspected nothing.
"""

from __future__ import annotations

import lzma
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from scripts.report import Report
from scripts.tree import ROOT, Tree, tracked_files

EVIDENCE = "capture/gpu/out-"
#: what -> pattern. Written so that this file does not match itself.
FORBIDDEN = {
    "path of a working machine": (rb"/(?:wor[k])/(?:main|shared)|/roo[t]/\.pyen[v]"),
    "home folder of a user": (
        rb"/(?:hom[e])/(?!user\b|you\b|USER\b|me\b|alice\b|<)[a-z][a-z0-9_-]+/"
    ),
    "host of a package registry": rb"(?:pyp[i]\.org|pythonhoste[d]|registry\.npmj[s])",
    "private key": rb"-----BEGIN [A-Z ]*PRIVATE KE[Y]-----\n[A-Za-z0-9+/]{40}",
    "access token": rb"\b(?:gh[pousr]_[A-Za-z0-9]{36}|hf_[A-Za-z0-9]{34}|AKIA[0-9A-Z]{16})\b",
}
#: what files under tests/ may show, since the scrubber's own tests need it
IN_TESTS = {"home folder of a user", "private key", "access token"}
_PATTERNS = {what: re.compile(pattern) for what, pattern in FORBIDDEN.items()}


def text_problems(data: bytes) -> list[tuple[int, str]]:
    """(line, what) of everything forbidden in a file."""
    found = []
    for what, pattern in _PATTERNS.items():
        for match in pattern.finditer(data):
            found.append((data.count(b"\n", 0, match.start()) + 1, what))
    return sorted(found)


def lock_problems(text: str) -> list[tuple[int, str]]:
    """(line, text) of what is wrong in a requirements lock: a host, or no hash."""
    found = []
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if "://" in line:
            found.append((number, f"names a host: {line.strip()}"))
        pinned = re.match(r"([A-Za-z0-9][\w.-]*)(==\S+)?", line)
        if pinned and not pinned[2]:
            found.append((number, f"{pinned[1]} is not pinned"))
        elif pinned and (number == len(lines) or "--hash=sha256:" not in lines[number]):
            found.append((number, f"{pinned[1]} has no hash"))
    return found


def readme_problems(tree: Tree) -> list[tuple[int, str]]:
    """(line, text) of every link or image of the README that names no file of the repository."""
    found = []
    for number, line in enumerate(tree.text("README.md").splitlines(), start=1):
        for target in re.findall(r"\]\(([^)#\s]+)", line):
            if not target.startswith(("https:", "http:")) and not tree.exists(target):
                found.append((number, f"no such file: {target}"))
    return found


def _scrub(root: Path, data: bytes) -> int | None:
    """Line of the first byte that the kit's scrubber would mask, or None."""
    folder = str(root / "capture" / "gpu")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    from mileskit.evidence import scrub

    cleaned = scrub.scrub_bytes(data)
    if cleaned == data:
        return None
    same = next((at for at, (a, b) in enumerate(zip(data, cleaned, strict=False)) if a != b), 0)
    return data.count(b"\n", 0, same) + 1


def check(root: Path = ROOT, overlay: Mapping[str, bytes] | None = None) -> Report:
    """Check every tracked file at `root`."""
    tree = Tree(root, overlay or {})
    report = Report()
    for path in tracked_files(root):
        data = tree.read(path)
        if path.endswith(".xz"):
            try:
                data = lzma.decompress(data)
            except lzma.LZMAError as error:
                report.error(path, 0, f"cannot be unpacked: {error}")
                continue
        report.count("files")
        allowed = IN_TESTS if path.startswith("tests/") else set()
        for line, what in text_problems(data):
            if what not in allowed:
                report.error(path, line, f"holds a {what}")
        if path.startswith(EVIDENCE):
            report.count("stored files scrubbed again")
            line = _scrub(root, data)
            if line is not None:
                report.error(path, line, "the scrubber would still mask something here")
        if path == "README.md":
            for line, text in readme_problems(tree):
                report.error(path, line, text)
        if re.fullmatch(r"(?:.*/)?requirements[\w.-]*\.lock", path):
            report.count("lock files")
            for line, text in lock_problems(data.decode()):
                report.error(path, line, text)
    return report


if __name__ == "__main__":
    from scripts.cli import main

    raise SystemExit(main("hygiene", check, __doc__))
