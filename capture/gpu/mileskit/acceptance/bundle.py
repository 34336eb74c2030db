"""The bundle of the protocol: one zip with the stored runs, what was seen, and checksums.

Members, in the order of their names:

    SHA256SUMS                        the checksum of every other member
    acceptance.json                   machine, image, each stage with its verdict and reason
    doctor.json, doctor.txt           the look at the host
    out-LAB/RUN/...                   run folders as `store` makes them
    out-LAB/RUN.gpu-samples.jsonl     samples of the GPU over a run
    unstored/RUN/...                  a run that `store` refused: its scrubbed log and draft

Every text passes the scrubber. Names, order, dates and modes are fixed, so the same files give the
same list of members; the compressed bytes can differ between versions of zlib.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import stat
import tempfile
import zipfile
from pathlib import Path

from mileskit.acceptance import enginekill, recordcheck
from mileskit.evidence import checksums, scrub, store
from mileskit.host.runspec import Spec

KIND, SCHEMA = "miles-acceptance", 1
SUMS, ABOUT = "SHA256SUMS", "acceptance.json"
EXTRA = ("watchdog.log", enginekill.RECORD)
"""Files of a run that go into its folder beside log, record and summary."""

DATE = (1980, 1, 1, 0, 0, 0)
MODE = (stat.S_IFREG | 0o644) << 16
PACKED = (".xz",)  # members that no second compression makes smaller


def is_bundle(path: Path) -> bool:
    """Is this file a bundle of the kit, so that a newer one may take its place?"""
    try:
        with zipfile.ZipFile(path) as packed:
            return packed.NameToInfo.keys() >= {ABOUT, SUMS}
    except (OSError, zipfile.BadZipFile, ValueError):
        return False


def lab_name(gpu: str) -> str:
    """A lab's name from the GPU's, as `reader-gb10` for an NVIDIA GB10."""
    plain = re.sub(r"[^a-z0-9]+", "-", gpu.lower().replace("nvidia", " ")).strip("-")
    return f"reader-{plain}" if plain else "reader"


def stage_runs(folder: Path, lab: str, specs: list[Spec], words: list[str]) -> dict[str, str]:
    """Put the runs that have a log into `folder`; the names of those not stored, with the reason.

    Raises OSError.
    """
    unstored = {}
    for spec in specs:
        if not spec.file("log").exists():
            continue
        try:
            store.store(arguments(folder, lab, spec, words))
        except (store.StoreError, ValueError, OSError) as error:
            plain = isinstance(error, OSError)
            lines = [str(error)] if plain else [str(arg) for arg in error.args]
            reason = recordcheck.one_line("; ".join(lines[:12]))
            unstored[spec.name] = scrubbed(reason, words)
            shutil.rmtree(folder / f"out-{lab}" / spec.name, ignore_errors=True)
            keep_unstored(folder / "unstored" / spec.name, spec, words)
    for left in (folder / checksums.NAME, *folder.glob(".*.toml")):
        left.unlink(missing_ok=True)
    return unstored


def arguments(folder: Path, lab: str, spec: Spec, words: list[str]) -> argparse.Namespace:
    """The arguments of `store` for one run of the protocol."""
    given = [str(spec.file("log")), "--lab", lab, "--run", spec.name, "--out", str(folder)]
    if spec.file("run.toml").exists():
        draft = folder / f".{spec.name}.toml"
        draft.write_bytes(scrub.scrub_bytes(spec.file("run.toml").read_bytes(), words))
        given += ["--run-toml", str(draft)]
    for option, kind in (("--heat-guard", "heat-guard.log"), ("--samples", "gpu-samples.jsonl")):
        if filled(spec.file(kind)):
            given += [option, str(spec.file(kind))]
    extra = [str(spec.file(kind)) for kind in EXTRA if filled(spec.file(kind))]
    given += ["--extra", *extra] if extra else []
    for word in words:
        given += ["--word", word]
    parser = argparse.ArgumentParser()
    store.add_arguments(parser)
    return parser.parse_args(given)


def filled(path: Path) -> bool:
    """Is the file there, with something in it?"""
    return path.is_file() and path.stat().st_size > 0


def keep_unstored(place: Path, spec: Spec, words: list[str]) -> None:
    """What a refused run left, scrubbed: its log compressed, and its texts."""
    place.mkdir(parents=True, exist_ok=True)
    kinds = {"log": "run.log.xz", "run.toml": "run.toml", "heat-guard.log": "heat-guard.log"}
    for kind, name in {**kinds, **{extra: extra for extra in EXTRA}}.items():
        if filled(spec.file(kind)):
            store.copy_scrubbed(str(spec.file(kind)), place / name, words)


def scrubbed(text: str, words: list[str]) -> str:
    """A text with its secrets masked."""
    return scrub.scrub_bytes(text.encode("utf-8"), words).decode("utf-8")


def texts(about: dict, doctor_json: str, doctor_text: str, words: list[str]) -> dict[str, bytes]:
    """The members that are not runs, scrubbed."""
    found = {
        ABOUT: json.dumps(about, indent=1, ensure_ascii=False),
        "doctor.json": doctor_json,
        "doctor.txt": doctor_text,
    }
    return {
        name: (scrubbed(text, words).rstrip("\n") + "\n").encode() for name, text in found.items()
    }


def members(folder: Path, more: dict[str, bytes]) -> dict[str, bytes]:
    """Every member by its name, sorted, with the list of checksums first."""
    found = dict(more)
    for path in folder.rglob("*"):
        if path.is_file():
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    found = dict(sorted(found.items()))
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in found.items())
    return {SUMS: sums.encode(), **found}


def pack(files: dict[str, bytes]) -> bytes:
    """The zip of the members."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, DATE)
            entry.external_attr, entry.create_system = MODE, 3
            as_is = name.endswith(PACKED)
            entry.compress_type = zipfile.ZIP_STORED if as_is else zipfile.ZIP_DEFLATED
            packed.writestr(entry, data)
    return out.getvalue()


def write(path: Path, files: dict[str, bytes]) -> str:
    """Write the bundle in one piece; its checksum. Raises OSError."""
    data = pack(files)
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}.half")
    try:
        half.write_bytes(data)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
    return hashlib.sha256(data).hexdigest()


def make(path: Path, specs: list[Spec], about: dict, doctor: tuple[str, str], words: list[str]):
    """Make the whole bundle: (its checksum, the finished acceptance.json). Raises OSError."""
    with tempfile.TemporaryDirectory(prefix="miles-acceptance-") as name:
        folder = Path(name)
        unstored = stage_runs(folder, about["lab"], specs, words)
        place = folder / f"out-{about['lab']}"
        stored = sorted(p.name for p in place.iterdir() if p.is_dir()) if place.is_dir() else []
        about = {**about, "runs": stored, "unstored": unstored}
        digest = write(path, members(folder, texts(about, *doctor, words)))
    return digest, about
