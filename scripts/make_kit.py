"""Pack the capture kit into one file, `dist/miles-kit.pyz`, with the same bytes everywhere.

The bytes depend on the packed files alone: sorted names, one fixed date and mode, no compression
(deflate differs between versions of zlib).

Exit codes: 0 built; 2 bad usage, a missing file, or a file that cannot be written.
"""

import argparse
import hashlib
import io
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = "dist/miles-kit.pyz"
KIT = "capture/gpu"
PATTERNS = (
    "*.py",
    "mileskit/**/*.py",
    "out-*/lab.toml",
    "out-*/reported.toml",
    "out-*/*/run.toml",
    "out-*/*/summary.json",
    "out-*/*.csv",  # samples of the GPU clock
    "testcontainers/*",
)
"""What belongs into the kit, below capture/gpu."""

FIRST_LINE = b"#!/usr/bin/env python3\n"
DATE = (1980, 1, 1, 0, 0, 0)  # the oldest one that a zip can hold
MODE = 0o100644 << 16
UNIX = 3  # the system whose file modes are meant
MAIN = """\
import sys

if sys.version_info < (3, 10):
    sys.exit("miles-kit: Python 3.10 or newer is needed")
import kit

sys.exit(kit.main())
"""


class KitError(Exception):
    """One line for the user."""


def members(root: Path) -> dict[str, bytes]:
    """Name in the kit -> content, sorted by name. Raises KitError when a kind of file is absent."""
    folder = root / KIT
    found = {"__main__.py": MAIN.encode()}
    for pattern in PATTERNS:
        paths = [path for path in folder.glob(pattern) if path.is_file()]
        if not paths:
            raise KitError(f"{folder}: nothing matches {pattern}")
        for path in paths:
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return dict(sorted(found.items()))


def pack(files: dict[str, bytes]) -> bytes:
    """The bytes of the kit."""
    out = io.BytesIO()
    out.write(FIRST_LINE)
    with zipfile.ZipFile(out, "a", zipfile.ZIP_STORED) as kit:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, DATE)
            entry.external_attr = MODE
            entry.create_system = UNIX
            kit.writestr(entry, content)
    return out.getvalue()


def build(root: Path, out: Path) -> str:
    """Write the kit of the tree `root` to `out` and return its SHA-256 in hex.

    Raises KitError, or OSError when it cannot be written; `out` is then as it was.
    """
    content = pack(members(root))
    out.parent.mkdir(parents=True, exist_ok=True)
    half = out.with_name(f".{out.name}.half")
    try:
        half.write_bytes(content)
        half.chmod(0o755)
        half.replace(out)
    finally:
        half.unlink(missing_ok=True)
    return hashlib.sha256(content).hexdigest()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make_kit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", default=str(ROOT / OUT), help=f"file to write ({OUT})")
    args = parser.parse_args(argv)
    out = Path(args.out)
    try:
        digest = build(ROOT, out)
    except KitError as error:
        print(f"make_kit: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"make_kit: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    print(f"{digest}  {out.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
