"""Verb `intake`: check the bundle of a reader, and lay its runs down as a lab."""

from __future__ import annotations

import argparse
import io
import json
import shutil
import sys
import tempfile
from pathlib import Path

from mileskit.acceptance import bundle, bundlecheck, labrecord, recheck, recordcheck
from mileskit.acceptance.bundlecheck import Bundle, BundleError
from mileskit.acceptance.stages import Stage
from mileskit.common import tomlio
from mileskit.evidence import checksums, runinfo, scrub, store
from mileskit.log import logsource

DESCRIPTION = """\
Check a bundle of `acceptance` (names, sizes, links, checksums, schema), pass every text through
the scrubber once more, compute each summary, and the verdict of each run and stage, anew from the
logs, and lay the runs down as ROOT/out-LAB with a lab.toml made from their records. A lab
that is there is never changed. Nothing of the bundle is started, and nothing is laid down unless
all of it is fine.
"""
EPILOG = """\
exit codes:
  0  the lab is laid down (with --dry-run: would be)
  2  bad usage, a bundle that is refused (one line says why), or a lab that exists already
  3  the bundle holds no stored run
"""
LONGEST_NAME = 100


class IntakeError(Exception):
    """One line for the user; nothing was laid down."""


class NoRun(IntakeError):
    """The bundle holds no stored run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("bundle", metavar="BUNDLE", help="the zip that `acceptance` made")
    add("--lab", default="", metavar="NAME", help="name of the lab here (that of the bundle)")
    add("--title", default="", help="title of the lab (GPU and date)")
    add("--out", metavar="ROOT", help="folder that gets out-LAB (default: the kit's own folder)")
    add("--word", action="append", default=[], help="mask this name too; repeatable")
    add("--dry-run", action="store_true", help="check everything, lay nothing down")
    add("--json", action="store_true", help="print what was found as JSON")


def run(args: argparse.Namespace) -> int:
    path = Path(args.bundle)
    try:
        found = bundlecheck.read(path)
        report = lay_down(found, args)
    except NoRun as error:
        print(f"intake: {path}: {error}", file=sys.stderr)
        return 3
    except (BundleError, IntakeError, labrecord.LabError, logsource.LogSourceError) as error:
        print(f"intake: {path}: {error}", file=sys.stderr)
        return 2
    except store.StoreError as error:
        for line in error.args:
            print(f"intake: {path}: {line}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"intake: {error.filename or path}: {error.strerror}", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"intake: {path}: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report, indent=1, ensure_ascii=False) if args.json else as_text(report))
    return 0


def lay_down(found: Bundle, args: argparse.Namespace) -> dict:
    """Build the lab beside its place and rename it into it; what was done."""
    root = Path(args.out) if args.out else store.default_root()
    lab = args.lab or found.about["lab"]
    if not store.NAME.fullmatch(lab) or len(lab) > LONGEST_NAME:
        raise IntakeError(
            f"--lab {lab[:80]!a}: only letters, digits, dots, hyphens, underscores, at most "
            f"{LONGEST_NAME}"
        )
    if not recordcheck.plain(args.title):
        raise IntakeError(f"--title {args.title[:80]!a}: one plain line is needed")
    place = root / f"out-{lab}"
    if place.exists() or place.is_symlink():
        raise IntakeError(f"{place} exists already; a lab is never overwritten, give another --lab")
    if not root.is_dir():
        raise IntakeError(f"{root}: no such folder")
    twins = [path.name for path in root.glob("out-*") if path.name.lower() == place.name.lower()]
    if twins:
        raise IntakeError(f"{twins[0]} exists already, and differs from {lab} in capitals alone")
    if not found.runs():
        raise NoRun(f"holds no stored run: {unstored(found)}")
    checksums.read(root)  # an unreadable list is found before anything is in place
    # a hidden folder on the same disk, so that the rename is one step
    with tempfile.TemporaryDirectory(prefix=f".intake-{lab}-", dir=root) as name:
        work = Path(name)
        masks, rows, stages = build(found, lab, args, work)
        report = {
            "lab": lab,
            "folder": str(place),
            "runs": rows,
            "masks": masks,
            "stages": [stage.row() for stage in stages],
            "differ": recheck.differ(found.about["stages"], stages),
            "laid_down": not args.dry_run,
        }
        if not args.dry_run:
            (work / f"out-{lab}").rename(place)
            try:
                checksums.add(root, [place])
            except BaseException:
                shutil.rmtree(place, ignore_errors=True)
                raise
    return report


def unstored(found: Bundle) -> str:
    """Why the bundle has no stored run, from its own words."""
    reasons = [f"{name}: {why}" for name, why in sorted(found.about["unstored"].items())]
    stages = [f"{row['name']} {row['verdict']}: {row['reason']}" for row in found.about["stages"]]
    return "; ".join(map(str, reasons or stages))[:400]


def build(found: Bundle, lab: str, args, work: Path) -> tuple[int, list[dict], list[Stage]]:
    """Fill work/out-LAB; (masks that were still needed, a row for each run, the stages anew)."""
    start = f"out-{found.about['lab']}/"
    given = work / "given"
    for name, data in found.files.items():
        if name.startswith(start):
            target = given / name[len(start) :]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    drafts, masks = {}, 0
    for name in found.runs():
        drafts[name], more = draft_of(given / name / "run.toml", work / f"{name}.toml", args.word)
        masks += more
    place = work / f"out-{lab}"
    place.mkdir()
    # `store` computes what differs from the lab's recipe, so the recipe has to be there first
    first = {"recipe": labrecord.recipe(drafts)}
    (place / "lab.toml").write_text(tomlio.dumps(first), encoding="utf-8")
    for name in found.runs():
        store.store(arguments(given, work, lab, name, args.word))
    runs = {name: judged(recheck.Stored(place, name)) for name in found.runs()}
    said = {name: drafts[name].get("ended", {}).get("verdict") for name in runs}
    doctor = found.files.get("doctor.json", b"")
    stages = recheck.rows(found.about["stages"], place, list(runs), doctor)
    stated = {name: stated_setup(place / name, run) for name, run in runs.items()}
    document = labrecord.document(lab, args.title or title(runs), runs, stated)
    text = scrub.scrub_bytes(tomlio.dumps(document).encode("utf-8"), args.word)
    (place / "lab.toml").write_bytes(text)
    about = {**found.about, "stages": [stage.row() for stage in stages], "runs": list(runs)}
    kept = {bundle.ABOUT: (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode("utf-8")}
    if "doctor.txt" in found.files:
        kept["doctor.txt"] = found.files["doctor.txt"]
    for name, data in kept.items():
        (place / name).write_bytes(scrub.scrub_bytes(data, args.word))
    rows = [
        {
            "name": name,
            "steps": run["ended"]["steps"],
            "how": run["ended"]["how"],
            "verdict": run["ended"]["verdict"],
            "said": said[name],
            "same_summary": same_summary(given / name, place / name),
        }
        for name, run in runs.items()
    ]
    before = sum(counted(tomlio.load(given / name / "run.toml")) for name in runs)
    return masks + sum(map(counted, runs.values())) - before, rows, stages


def judged(run: recheck.Stored) -> dict:
    """The stored record, with the verdict that its log gives here. Raises IntakeError."""
    document = tomlio.load(run.file("run.toml"))
    ended = document["ended"]
    if ended["how"] == "finished" and ended["partial"]:
        asked = document["run"]["num_rollout"]
        raise IntakeError(f"run {run.name}: its record says finished, its log holds "
                          f"{ended['steps']} of {asked} steps")  # fmt: skip
    ended["verdict"] = recheck.verdict(run, ended["how"])
    run.file("run.toml").write_text(tomlio.dumps(document), encoding="utf-8")
    return document


def draft_of(record: Path, draft: Path, words: list[str]) -> tuple[dict, int]:
    """Write a stored record, scrubbed, as a draft that `store` takes; its tables, and the masks."""
    document = tomlio.load(record)
    recordcheck.check(record.parent.name, document)
    for table in ("schema", "settings", "environment"):
        document.pop(table, None)
    for name in ("lab", "name"):
        document["run"].pop(name, None)
    out = io.BytesIO()
    masks = scrub.scrub(io.BytesIO(tomlio.dumps(document).encode("utf-8")), out, words)
    draft.write_bytes(out.getvalue())
    try:
        return tomlio.load(draft), sum(mask.count for mask in masks)
    except tomlio.TomlError:
        why = "its record holds a secret in the name of a field"
        raise IntakeError(f"run {record.parent.name}: {why}") from None


def arguments(given: Path, work: Path, lab: str, name: str, words: list[str]):
    """The arguments of `store` for one run of the bundle."""
    folder = given / name
    line = [str(folder / "run.log.xz"), "--lab", lab, "--run", name, "--out", str(work)]
    line += ["--run-toml", str(work / f"{name}.toml")]
    if (folder / "heat-guard.log").exists():
        line += ["--heat-guard", str(folder / "heat-guard.log")]
    samples = given / f"{name}.gpu-samples.jsonl"
    if samples.exists():
        line += ["--samples", str(samples)]
    extra = [str(folder / kind) for kind in bundle.EXTRA if (folder / kind).exists()]
    line += ["--extra", *extra] if extra else []
    for word in words:
        line += ["--word", word]
    parser = argparse.ArgumentParser()
    store.add_arguments(parser)
    return parser.parse_args(line)


def stated_setup(folder: Path, document: dict) -> dict:
    """The fields of [setup] that the stored log says itself."""
    with store.lines_of(folder / "run.log.xz") as stream:
        said = runinfo.header(store.header_lines(stream))
    command = document["run"].get("command", "")
    return runinfo.stated(said, command, "")["setup"]


def counted(document: dict) -> int:
    """Masks that `store` made in a run, over all rows."""
    rows = document.get("masked", [])
    return sum(row.get("count", 0) for row in rows if isinstance(row, dict))


def same_summary(given: Path, made: Path) -> bool:
    """Is the bundle's own summary the one that its log gives here?"""
    theirs = given / "summary.json"
    return theirs.exists() and theirs.read_bytes() == (made / "summary.json").read_bytes()


def title(runs: dict[str, dict]) -> str:
    """GPU, model and Miles' date of the first run."""
    setup = next(iter(runs.values()))["setup"]
    return f"{setup.get('gpu')}, Miles of {setup.get('miles_date')}, {setup.get('model')}"


def as_text(report: dict) -> str:
    """What was found for people, with the next commands."""
    out = []
    for row in report["stages"]:
        out.append(f"{row['name']:12}  {row['verdict']:8}  {row['reason']}")
    for row in report["runs"]:
        same = "" if row["same_summary"] else ", summary differs from the bundle's and is new"
        steps = f"{row['steps']} steps, {row['how']}, verdict {row['verdict']}"
        if row["said"] != row["verdict"]:
            steps += f" by its log (the bundle says {row['said']})"
        out.append(f"run {row['name']}: {steps}{same}")
    out += report["differ"]
    out.append(f"{report['masks']} masks were still needed")
    if not report["laid_down"]:
        return "\n".join([*out, f"{report['folder']} would be laid down"])
    out += [
        f"{report['folder']} is laid down; next:",
        f"  read {report['folder']}/lab.toml and its [lab] title and how",
        "  .venv/bin/python -m scripts.evidence_check --write",
        f"  git add capture/gpu/out-{report['lab']} capture/gpu/EVIDENCE.sha256",
        "  make check",
    ]
    return "\n".join(out)
