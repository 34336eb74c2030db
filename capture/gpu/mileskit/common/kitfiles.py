"""Where the kit's own files are: in a folder or inside the one-file kit (`miles-kit.pyz`).

A module's `__file__` is a path inside the zip there, so nothing may open it; and a verb that
starts another verb has to start the zip.
"""

import functools
import sys
import zipfile
from pathlib import Path

_HERE = Path(__file__).absolute().parents[2]  # the folder of kit.py


def archive() -> Path | None:
    """The file of the one-file kit that this code runs from, None when it runs from a folder."""
    return _HERE if _HERE.is_file() else None


def read_bytes(name: str) -> bytes:
    """A file of the kit by its path below the kit's folder, as `out-gb10/lab.toml`.

    Raises FileNotFoundError when the kit has no such file.
    """
    packed = archive()
    if packed is None:
        return (_HERE / name).read_bytes()
    with zipfile.ZipFile(packed) as kit:
        try:
            return kit.read(name)
        except KeyError:
            raise FileNotFoundError(2, "no such file in the kit", f"{packed}/{name}") from None


def names(prefix: str = "") -> list[str]:
    """The kit's files whose path below its folder starts with `prefix`, sorted.

    The folder is read once: a kit does not change while it runs.
    """
    return [name for name in _names() if name.startswith(prefix)]


@functools.lru_cache(maxsize=1)
def _names() -> list[str]:
    packed = archive()
    if packed is not None:
        with zipfile.ZipFile(packed) as kit:
            found = [name for name in kit.namelist() if not name.endswith("/")]
    else:
        found = [path.relative_to(_HERE).as_posix() for path in _HERE.rglob("*") if path.is_file()]
        found = [name for name in found if "__pycache__" not in name]
    return sorted(found)


def program() -> str:
    """The file that starts the kit: `kit.py` or the one-file kit."""
    return str(archive() or _HERE / "kit.py")


def command(verb: str, *args: str) -> list[str]:
    """The words that run a verb of this same kit with this same Python, isolated if this is."""
    isolated = ["-I"] if sys.flags.isolated else []
    return [sys.executable, *isolated, program(), verb, *args]
