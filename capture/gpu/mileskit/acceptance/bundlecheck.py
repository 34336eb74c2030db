"""Read a bundle that a stranger sent: nothing in it is trusted.

Only names of the known forms are accepted, so no member can leave its folder; links, folders,
encrypted, doubled and oversized members are refused, and no member is read further than its limit.
The limits are far above what the protocol makes.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import stat
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

from mileskit.acceptance import bundle, enginekill, recordcheck
from mileskit.acceptance.stages import FAILED, NAMES, NOT_RUN, PASSED
from mileskit.common import tomlio

MIB = 1 << 20
MOST_BYTES = 256 * MIB  # of the file, and of all members together
MOST_MEMBERS = 200
MOST_RATIO, RATIO_FROM = 200, MIB  # a text packs about twenty times smaller, a bomb a thousand
LOGS_BYTES = 4096 * MIB  # of all logs together
LOG_BYTES = 2048 * MIB  # of a log that is unpacked; the GB10 lab's log of a dead engine: 147 MB
LOG_MEMORY = 64 * MIB  # of the decoder; `store` writes logs that need a quarter of it

_RUN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_FILES = {
    r"run\.log\.xz": 128 * MIB,
    r"run\.toml": MIB,
    r"summary\.json": 32 * MIB,
    r"watchdog\.log": 16 * MIB,
    r"heat-guard\.log": 16 * MIB,
    r"engine-kill\.json": MIB,
}
SIZES = {
    r"SHA256SUMS|acceptance\.json|doctor\.(?:json|txt)": MIB,
    rf"out-{_RUN}/{_RUN}\.gpu-samples\.jsonl": 64 * MIB,
    **{rf"(?:out-{_RUN}|unstored)/{_RUN}/{name}": size for name, size in _FILES.items()},
}
"""Form of a member's name -> its most bytes."""

_FORMS = [(re.compile(form), size) for form, size in SIZES.items()]
_ESCAPED = re.compile(r"\\u00[2-7][0-9a-fA-F]|\\/")
OF_THE_LAB = ("lab.toml", bundle.ABOUT, "doctor.txt")  # files that lie beside the runs
VERDICTS = (PASSED, FAILED, NOT_RUN)


class BundleError(ValueError):
    """A bundle that is refused; one line of text."""


class Bundle(NamedTuple):
    """A checked bundle. about: acceptance.json; files: every member but the list of checksums."""

    about: dict
    files: dict[str, bytes]

    def runs(self) -> list[str]:
        """Names of the stored runs."""
        start = f"out-{self.about['lab']}/"
        found = {name.split("/")[1] for name in self.files if name.startswith(start)
                 and name.count("/") == 2}  # fmt: skip
        return sorted(found)


def read(path: Path) -> Bundle:
    """The bundle of a file. Raises BundleError, OSError."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise BundleError(f"{size} bytes are more than a bundle can have ({MOST_BYTES})")
    try:
        with zipfile.ZipFile(path) as packed:
            entries = packed.infolist()
            check_entries(entries)
            files = {entry.filename: content(packed, entry) for entry in entries}
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RuntimeError) as error:
        raise BundleError(f"is no readable zip: {' '.join(str(error).split())[:160]}") from None
    check_sums(files)
    about = parse_about(files[bundle.ABOUT])
    check_folders(files, about["lab"])
    unpacked = 0
    for name, data in files.items():
        if name.endswith("/run.log.xz"):
            unpacked += check_log(name, data)
        else:
            check_text(name, data)
        if unpacked > LOGS_BYTES:
            raise BundleError(f"the logs unpack to more than {LOGS_BYTES} bytes together")
    del files[bundle.SUMS]
    return Bundle(about, files)


def check_entries(entries: list[zipfile.ZipInfo]) -> None:
    """Names, kinds and sizes, before anything is unpacked. Raises BundleError."""
    if len(entries) > MOST_MEMBERS:
        raise BundleError(f"{len(entries)} members are more than {MOST_MEMBERS}")
    seen: set[str] = set()
    for entry in entries:
        name, shown = entry.filename, ascii(entry.filename[:120])
        # zipfile cuts a name at a zero byte and turns the system's separator; look at the original
        if entry.orig_filename != name or not name.isascii():
            raise BundleError(
                f"member {entry.orig_filename[:120]!a}: a name of plain characters is needed"
            )
        most = limit(name)
        if most is None:
            raise BundleError(f"member {shown}: no bundle has a member of this name")
        if name.lower() in seen:
            raise BundleError(f"member {shown}: is there twice")
        seen.add(name.lower())
        mode = entry.external_attr >> 16
        if mode and not stat.S_ISREG(mode):
            raise BundleError(f"member {shown}: is a link or no plain file")
        if entry.flag_bits & 0x1:
            raise BundleError(f"member {shown}: is encrypted")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise BundleError(f"member {shown}: is packed in an unknown way")
        if entry.file_size > most:
            raise BundleError(f"member {shown}: {entry.file_size} bytes are more than {most}")
        if entry.file_size > RATIO_FROM and entry.file_size > MOST_RATIO * entry.compress_size:
            raise BundleError(f"member {shown}: unpacks to more than {MOST_RATIO} times its size")
    if sum(entry.file_size for entry in entries) > MOST_BYTES:
        raise BundleError(f"the members have more than {MOST_BYTES} bytes together")
    for name in (bundle.SUMS, bundle.ABOUT):
        if name not in {entry.filename for entry in entries}:
            raise BundleError(f"holds no {name}: not a bundle of the protocol")


def limit(name: str) -> int | None:
    """Most bytes of a member by its name, None for a name that no bundle has."""
    return next((size for form, size in _FORMS if form.fullmatch(name)), None)


def content(packed: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """The bytes of a member. Raises BundleError when they are not as many as it says."""
    with packed.open(entry) as stream:
        data = stream.read(entry.file_size + 1)
        if len(data) != entry.file_size or stream.read(1):
            raise BundleError(f"member {entry.filename!a}: is not as long as it says")
    return data


def check_sums(files: dict[str, bytes]) -> None:
    """The list names every other member, once, with its checksum. Raises BundleError."""
    listed: dict[str, str] = {}
    text = files[bundle.SUMS].decode("ascii", "replace")
    for number, line in enumerate(text.splitlines(), 1):
        found = re.fullmatch(r"([0-9a-f]{64})  (\S+)", line)
        if not found or found[2] in listed:
            raise BundleError(f"{bundle.SUMS}:{number}: not a checksum and a new name")
        listed[found[2]] = found[1]
    for name in sorted((files.keys() | listed.keys()) - {bundle.SUMS}):
        if name not in listed:
            raise BundleError(f"member {name}: is not listed in {bundle.SUMS}")
        if name not in files:
            raise BundleError(f"{bundle.SUMS}: {name[:120]!a} is listed and not there")
        if hashlib.sha256(files[name]).hexdigest() != listed[name]:
            raise BundleError(f"member {name}: has another checksum than listed")


def parse_about(data: bytes) -> dict:
    """acceptance.json. Raises BundleError for another schema."""
    try:
        about = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{bundle.ABOUT}: no JSON ({str(error)[:80]})") from None
    if not isinstance(about, dict) or about.get("kind") != bundle.KIND:
        raise BundleError(f"{bundle.ABOUT}: kind is not {bundle.KIND!r}")
    if type(about.get("schema")) is not int or about["schema"] != bundle.SCHEMA:
        raise BundleError(f"{bundle.ABOUT}: schema {about.get('schema')!r} is not {bundle.SCHEMA}")
    for name, kind in (("lab", str), ("started", str), ("ended", str), ("machine", dict),
                       ("software", dict), ("stages", list), ("unstored", dict)):  # fmt: skip
        if not isinstance(about.get(name), kind):
            raise BundleError(f"{bundle.ABOUT}: {name} is missing or no {kind.__name__}")
    if not re.fullmatch(_RUN, about["lab"]):
        raise BundleError(f"{bundle.ABOUT}: lab {about['lab'][:80]!r} is no name of a lab")
    rows = about["stages"]
    names = [row.get("name") if isinstance(row, dict) else None for row in rows]
    if names != list(NAMES):
        raise BundleError(f"{bundle.ABOUT}: stages are not {', '.join(NAMES)}")
    for row in rows:
        if row.get("verdict") not in VERDICTS or not isinstance(row.get("reason"), str):
            raise BundleError(f"{bundle.ABOUT}: stage {row['name']}: no verdict with a reason")
    bad = recordcheck.first_bad(about)
    if bad is not None:
        raise BundleError(f"{bundle.ABOUT}: holds {bad[:80]!a}, no plain line of text")
    return about


def check_folders(files: dict[str, bytes], lab: str) -> None:
    """One lab, and its runs have log and record. Raises BundleError."""
    for name in files:
        first, _, rest = name.partition("/")
        if first.startswith("out-") and first != f"out-{lab}":
            raise BundleError(f"member {name}: the bundle is of the lab {lab}")
        if first == f"out-{lab}" and rest.count("/") == 1:
            run = rest.partition("/")[0]
            if run in OF_THE_LAB:
                raise BundleError(f"run {run}: is the name of a file of the lab")
            for needed in ("run.log.xz", "run.toml"):
                if f"out-{lab}/{run}/{needed}" not in files:
                    raise BundleError(f"run {run}: has no {needed}")


def check_log(name: str, data: bytes) -> int:
    """The bytes of an xz file that unpacks within the limits; nothing is kept.

    Raises BundleError.
    """
    done = 0
    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=LOG_MEMORY)
    try:
        part = decoder.decompress(data, MIB)
        while True:
            done += len(part)
            if done > LOG_BYTES:
                raise BundleError(f"member {name}: unpacks to more than {LOG_BYTES} bytes")
            if decoder.eof:
                break
            if not part and decoder.needs_input:
                raise BundleError(f"member {name}: stops inside the packed log")
            part = decoder.decompress(b"", MIB)
    except lzma.LZMAError as error:
        raise BundleError(f"member {name}: cannot be unpacked: {error}") from None
    if decoder.unused_data:
        raise BundleError(f"member {name}: has bytes behind the packed log")
    return done


def check_text(name: str, data: bytes) -> None:
    """A member that is no log: texts of the kit are UTF-8, and what is JSON or TOML can be read.

    A JSON member spells no plain character as an escape: the scrubber reads bytes, and a key that
    is spelled so would pass it. The watchdog's log may hold what a command of its reader printed.
    Raises BundleError.
    """
    kind = name.rpartition("/")[2]
    if kind == "watchdog.log" or kind == bundle.SUMS:
        return
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        wanted = {".json": "JSON", ".toml": "TOML"}.get(Path(kind).suffix, "UTF-8 text")
        raise BundleError(f"member {name}: no {wanted}: holds bytes that are not UTF-8") from None
    if kind.endswith(".toml"):
        check_toml(name, data)
    if ".json" in kind and _ESCAPED.search(text):
        raise BundleError(f"member {name}: spells a plain character as an escape")
    if kind == enginekill.RECORD and enginekill.parse_record(text) is None:
        raise BundleError(f"member {name}: no record of a kill")
    if kind.endswith(".gpu-samples.jsonl"):
        for number, line in enumerate(text.splitlines(), 1):
            if not is_object(line):
                raise BundleError(f"member {name}: line {number} is no JSON object")


def is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def check_toml(name: str, data: bytes) -> None:
    """TOML. Raises BundleError."""
    try:
        tomlio.loads(data.decode("utf-8"))
    except (tomlio.TomlError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"member {name}: no TOML ({str(error)[:120]})") from None
