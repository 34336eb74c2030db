"""Verb `store`: put one finished run into the evidence, once and for good.

Makes `ROOT/out-LAB/RUN/` with the scrubbed, compressed log (`run.log.xz`), `run.toml` with
the complete setup fingerprint, `summary.json`, and what else belongs to the run. The folder is
built beside its place and renamed into it, so that it is there completely or not at all.
An existing run is never changed. `ROOT/EVIDENCE.sha256` gets the checksum of each file.
"""

from __future__ import annotations

import argparse
import io
import lzma
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from mileskit.common import kitfiles, tomlio
from mileskit.evidence import checksums, runinfo, scrub
from mileskit.log import logsource
from mileskit.summary import summarize, wrongcolumns
from mileskit.summary.pauses import PauseLogError

EPILOG = """\
The log's own `# ` lines (date, command, versions, GPU, other runs) are read first; drafts
(--run-toml, TOML in the shape of run.toml) add what the log does not say: [run] note,
[ended] verdict, the rest of [setup], [[unusable]], [[masked]]. A draft that contradicts the log
is refused, unless its top-level list `override` names the field, as "setup.shared_with".
`changed` is computed from [recipe] command of the lab's lab.toml, when that is there.

exit codes:
  0  stored (with --dry-run: would be stored)
  2  bad usage or unreadable input; a line for each missing field of the fingerprint;
     the run exists already
  3  the log holds nothing
"""

# The decoder takes as much memory as the dictionary, and no stored log needs more than this.
XZ = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 16 << 20}]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
HEADER_LINES = 200  # the log's own header is looked for in this many lines


class StoreError(Exception):
    """Bad usage or input; every argument is one line for the user."""


class EmptyLog(StoreError):
    """The log holds no byte."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = __doc__.partition("\n")[2].strip()
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("log", metavar="LOG", help="the raw log: plain, .gz, .xz, or - for input")
    parser.add_argument("--lab", required=True, help="name of the lab, as h200-miles")
    parser.add_argument("--run", required=True, help="name of the run inside the lab")
    parser.add_argument(
        "--run-toml", action="append", default=[], metavar="DRAFT",
        help="what the log does not say; may be repeated, a later draft wins over an earlier",
    )  # fmt: skip
    parser.add_argument("--heat-guard", metavar="FILE", help="the heat guard's log of this run")
    parser.add_argument(
        "--samples", metavar="FILE",
        help="clock record: GPU samples over the run, kept once for the lab",
    )  # fmt: skip
    parser.add_argument(
        "--extra", nargs="+", action="extend", default=[], metavar="FILE",
        help="other files of the run; a leading `RUN.` of the name is dropped",
    )  # fmt: skip
    parser.add_argument(
        "--word", action="append", default=[],
        help="mask this user, host or project name too; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--out", metavar="ROOT", help="folder that holds out-LAB (default: the kit's own folder)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print run.toml, store nothing")


def run(args: argparse.Namespace) -> int:
    try:
        text = store(args)
    except EmptyLog as error:
        print(f"store: {error}", file=sys.stderr)
        return 3
    except StoreError as error:
        for line in error.args:
            print(f"store: {line}", file=sys.stderr)
        return 2
    except (logsource.LogSourceError, PauseLogError, ValueError) as error:
        print(f"store: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"store: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    print(text)
    return 0


def store(args: argparse.Namespace) -> str:
    """Store the run of the arguments; the line to print. Raises StoreError and its kin."""
    for what, name in (("--lab", args.lab), ("--run", args.run)):
        if not NAME.fullmatch(name):
            raise StoreError(f"{what} {name!r}: only letters, digits, dots, hyphens, underscores")
    root = Path(args.out) if args.out else default_root()
    lab = root / f"out-{args.lab}"
    place = lab / args.run
    if place.exists():
        raise StoreError(f"{place}: exists already; a stored run is never changed")
    if not root.is_dir():
        raise StoreError(f"{root}: no such folder")
    made_lab = not lab.exists()
    lab.mkdir(exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".store-{args.run}-", dir=lab))
    try:
        document = build(args, lab, building)
        text = tomlio.dumps(document)
        if args.dry_run:
            return text.rstrip("\n")
        (building / "run.toml").write_text(text, encoding="utf-8")
        if args.samples:
            keep_samples(Path(args.samples), lab, args.word)
        checksums.read(root)  # an unreadable list is found before anything is in place
        building.chmod(0o755)
        building.rename(place)
        new = [place, lab / Path(args.samples).name] if args.samples else [place]
        checksums.add(root, new)
    finally:
        shutil.rmtree(building, ignore_errors=True)
        if made_lab and not any(lab.iterdir()):
            lab.rmdir()
    end = document["ended"]
    masks = sum(m.get("count", 0) for m in document.get("masked", []) if m["by"] == "store")
    return f"{place}: {end['steps']} steps, {end['how']}, {masks} masks"


def default_root() -> Path:
    """The kit's own folder, or the current one when the kit runs from a zip."""
    return Path.cwd() if kitfiles.archive() else Path(kitfiles.program()).parent


def build(args: argparse.Namespace, lab: Path, folder: Path) -> dict:
    """Fill the folder with everything but run.toml, and give run.toml's document."""
    masked = copy_scrubbed(args.log, folder / "run.log.xz", args.word)
    document = document_of(args, lab, folder / "run.log.xz")
    if args.heat_guard:
        masked += copy_scrubbed(args.heat_guard, folder / "heat-guard.log", args.word)
    for name in args.extra:
        target = folder / extra_name(name, args.run)
        if target.exists():
            raise StoreError(f"{name}: a file {target.name} is in the run already")
        masked += copy_scrubbed(name, target, args.word)
    summary = summary_of(folder)
    (folder / "summary.json").write_bytes(summarize.to_bytes(summary))
    if len(summary["runs"]) != 1:
        raise StoreError(f"{args.log}: holds {len(summary['runs'])} runs, a stored run holds one")
    num_rollout = document["run"]["num_rollout"]
    document["ended"] = runinfo.ended(summary["runs"][0], document["ended"], num_rollout)
    document["masked"] = [*document.get("masked", []), *masked]
    wrong = wrongcolumns.wrong_reference(document.get("settings", {}), summary["runs"][0])
    rows = document.get("unusable", [])
    listed = {row.get("column") for row in rows}
    more = [{"column": c, "reason": why} for c, why in wrong.items() if c not in listed]
    document["unusable"] = [*rows, *more]
    return runinfo.ordered(document)


def document_of(args: argparse.Namespace, lab: Path, log: Path) -> dict:
    """run.toml without what follows from the summary. Raises StoreError when fields are missing."""
    with lines_of(log) as stream:
        said = runinfo.header(header_lines(stream))
    overrides = []
    drafts = [tomlio.load(name) for name in args.run_toml]
    for draft in drafts:
        draft.pop("schema", None)
        overrides += draft.pop("override", [])
    draft, recipe = joined(drafts), recipe_of(lab)
    planned = draft.get("run", {}) if isinstance(draft.get("run"), dict) else {}
    if recipe and "run.changed" not in overrides:
        planned.pop("changed", None)  # what differs from the lab's recipe is computed
    command = planned.get("command") or said["run"].get("command", "")
    document = runinfo.merge(runinfo.stated(said, command, recipe), draft, overrides)
    own = document.setdefault("run", {})
    own.update({"lab": args.lab, "name": args.run})
    own.setdefault("note", "")
    if overrides:
        own["overrides"] = overrides
    if args.samples:
        document.setdefault("setup", {})["clock_record"] = f"../{Path(args.samples).name}"
    lacking = runinfo.missing(document)
    if lacking:
        raise StoreError(
            *(f"{args.log}: {name} is missing; give it in a draft (--run-toml)" for name in lacking)
        )
    return document


def joined(drafts: list[dict]) -> dict:
    """The drafts as one: tables field by field (later wins), arrays of tables end to end."""
    result: dict = {}
    for draft in drafts:
        for name, value in draft.items():
            if isinstance(value, dict):
                result[name] = {**result.get(name, {}), **value}
            elif isinstance(value, list):
                result[name] = [*result.get(name, []), *value]
            else:
                result[name] = value
    return result


def lines_of(path: str | Path) -> BinaryIO:
    """The uncompressed log as a stream whose readline is quick."""
    return io.BufferedReader(logsource.open_log(path), 1 << 18)


def header_lines(stream: BinaryIO) -> Iterable[str]:
    for _ in range(HEADER_LINES):
        line = stream.readline(1 << 20)
        if not line:
            return
        yield line.decode("utf-8", "replace").rstrip("\r\n")


def recipe_of(lab: Path) -> str:
    path = lab / "lab.toml"
    return tomlio.load(path).get("recipe", {}).get("command", "") if path.exists() else ""


def summary_of(folder: Path) -> dict:
    heat_guard = folder / "heat-guard.log"
    pause_log = heat_guard.read_bytes() if heat_guard.exists() else None
    with logsource.open_log(folder / "run.log.xz") as stream:
        return summarize.build(stream, pause_log)


def extra_name(source: str, run_name: str) -> str:
    """The file's name in the run folder: without `RUN.`, compressed files as .xz."""
    name = Path(source).name
    name = name[len(run_name) + 1 :] if name.startswith(f"{run_name}.") else name
    name = name[:-3] + ".xz" if name.endswith(".gz") else name
    if name in ("run.log.xz", "run.toml", "summary.json", "heat-guard.log"):
        raise StoreError(f"{source}: the name {name} is taken in a run folder")
    return name


def copy_scrubbed(source: str, target: Path, words: list[str]) -> list[dict]:
    """Scrub source into target (compressed when that ends in .xz); the rows for [[masked]]."""
    with lines_of(source) as stream, target.open("xb") as raw:
        try:
            if target.suffix == ".xz":
                with lzma.open(raw, "wb", format=lzma.FORMAT_XZ, filters=XZ) as out:
                    masks = scrub.scrub(stream, out, words)
                    size = out.tell()
            else:
                masks = scrub.scrub(stream, raw, words)
                size = raw.tell()
        except scrub.ScrubError as error:
            raise StoreError(f"{source}: {error}") from None
    if not size:
        raise EmptyLog(f"{source}: holds nothing")
    return [{**mask._asdict(), "by": "store", "file": target.name} for mask in masks]


def keep_samples(source: Path, lab: Path, words: list[str]) -> None:
    """Put the samples beside the lab's runs; a file of that name must be the same one."""
    out = io.BytesIO()
    with source.open("rb") as stream:
        scrub.scrub(stream, out, words)
    target = lab / source.name
    if target.exists():
        if target.read_bytes() != out.getvalue():
            raise StoreError(f"{target}: exists already with other content than {source}")
        return
    half = lab / f".{source.name}.half"
    half.write_bytes(out.getvalue())
    half.replace(target)
