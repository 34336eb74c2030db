"""Verb `queue`: several guarded runs in turn, each with a time limit; resumable."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import miles_grpo

from mileskit.common import tomlio
from mileskit.host import containers, runfacts, runlive, runner, runspec
from mileskit.host.runlive import Outcome, say
from mileskit.host.runspec import Spec, SpecError

DESCRIPTION = """\
Run the [[run]] entries of FILE in turn. A run that is over (finished, failed, stopped by the
watchdog or by its limit) is not run again when the queue is started again; one that was interrupted
is set aside (NAME.aside-1.log ...) and run anew. After a run that the watchdog stopped (its exit
code 1) the queue goes on; when sight is lost (2) it ends after that run. When it is done it writes
the stop file, which ends a heat guard that was started beside it.
"""
EPILOG = """\
FILE, for example:
  [[run]]
  name = "seed-7"
  settings = { MILES_NUM_ROLLOUT = 12, MILES_SEED = 7 }
  extra_args = "--sglang-mem-fraction-static 0.25"
  limit_minutes = 60
  note = "a third seed"

exit codes:
  0  every run finished by itself, now or earlier
  1  at least one run failed or was stopped (watchdog, time limit, Ctrl+C)
  2  bad usage or nothing could be started; or sight of a run was lost, and the queue stopped
  3  FILE holds no run
"""
FIELDS = ("name", "settings", "extra_args", "limit_minutes", "note")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("file", metavar="FILE", help="TOML file with [[run]] entries")
    runner.add_place_arguments(parser)
    parser.add_argument("--stop-file", metavar="FILE", help="written when done (LAB/queue.done)")
    parser.add_argument(
        "--again", action="append", default=[], metavar="NAME", help="run this one anew; repeatable"
    )


def run(args: argparse.Namespace) -> int:
    try:
        specs = read(args, os.environ)
        lab = runspec.folder(args.lab, "--lab")
        stop_file = runspec.folder(args.stop_file or f"{lab}/queue.done", "--stop-file")
    except (SpecError, tomlio.TomlError) as error:
        print(f"queue: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"queue: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    if not specs:
        print(f"queue: {args.file}: no [[run]] entry", file=sys.stderr)
        return 3
    if args.dry_run:
        return dry_run(specs, stop_file, args.again)
    try:
        with locked(lab), runlive.Signals() as signals:
            return work(specs, stop_file, args.again, lambda: signals.reason)
    except BlockingIOError:
        print(f"queue: another queue works in {lab}", file=sys.stderr)
    except OSError as error:
        print(f"queue: {error.filename}: {error.strerror}", file=sys.stderr)
    return 2


# -- the file --------------------------------------------------------------------------------------


def read(args: argparse.Namespace, environ: Mapping[str, str]) -> list[Spec]:
    """The runs of the file, every one checked. Raises SpecError, tomlio.TomlError, OSError."""
    document = tomlio.load(args.file)
    unknown = [name for name in document if name != "run"]
    if unknown:
        raise SpecError(f"{args.file}: {unknown[0]!r} is unknown; only [[run]] entries are read")
    entries = document.get("run", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise SpecError(f"{args.file}: run must be written as [[run]] entries")
    specs = []
    for number, entry in enumerate(entries, 1):
        try:
            specs.append(spec_of(args, entry, environ))
        except SpecError as error:
            raise SpecError(f"{args.file}: [[run]] {number}: {error}") from None
    names = [spec.name for spec in specs]
    for what, wanted in (("name", names), ("--again", args.again)):
        for name in wanted:
            if names.count(name) != 1:
                why = "comes twice" if name in names else "is not in the file"
                raise SpecError(f"{args.file}: {what} {name!r} {why}")
    return specs


def spec_of(args: argparse.Namespace, entry: dict, environ: Mapping[str, str]) -> Spec:
    """One entry as a run. Raises SpecError."""
    unknown = [name for name in entry if name not in FIELDS]
    if unknown:
        raise SpecError(f"{unknown[0]!r} is unknown; known are {', '.join(FIELDS)}")
    for name, kind in (("name", str), ("extra_args", str), ("note", str), ("settings", dict)):
        if not isinstance(entry.get(name, kind()), kind):
            raise SpecError(f"{name} = {entry[name]!r} must be a {kind.__name__}")
    if "limit_minutes" not in entry:
        raise SpecError("limit_minutes is missing")
    name = runspec.check_name(entry.get("name", ""))
    given = [(variable, _text(variable, v)) for variable, v in entry.get("settings", {}).items()]
    env = runspec.container_env(name, given, environ, None, entry.get("extra_args"))
    limit_s = runspec.minutes(entry["limit_minutes"], "limit_minutes")
    spec = runner.place_of(args, name, env)
    return spec._replace(limit_s=limit_s, note=entry.get("note", ""))


def _text(variable: str, value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (str, int, float)):
        return str(value)
    raise SpecError(f"settings.{variable} = {value!r}: text or a number is needed")


# -- what was done before --------------------------------------------------------------------------


def past(spec: Spec) -> str:
    """What an earlier queue left of this run: "" nothing, "interrupted", or how it ended.

    A run that its user stopped, or whose end nobody recorded, counts as interrupted. Raises
    tomlio.TomlError for a damaged record.
    """
    record = spec.file("run.toml")
    if not record.exists():
        return "interrupted" if spec.file("log").exists() else ""
    ended = tomlio.load(record).get("ended", {})
    how = ended.get("how", "")
    if how in ("", "unknown") or ended.get("by") == "user":
        return "interrupted"
    return f"{how} (watchdog)" if ended.get("by") == "watchdog" else how


def set_aside(spec: Spec) -> str:
    """Rename the files of an earlier try to NAME.aside-N...; the new beginning of their names."""
    runs = spec.lab / "runs"
    number = 1
    while list(runs.glob(f"{spec.name}.aside-{number}.*")):
        number += 1
    fresh = f"{spec.name}.aside-{number}"
    for kind in ("log", "run.toml", "watchdog.log", "heat-guard.log", "heat-guard.out",
                 "gpu-samples.jsonl"):  # fmt: skip
        if spec.file(kind).exists():
            spec.file(kind).rename(runs / f"{fresh}.{kind}")
    if (runs / spec.name).is_dir():
        (runs / spec.name).rename(runs / f"{fresh}.files")
    return fresh


# -- working ---------------------------------------------------------------------------------------


def work(specs: list[Spec], stop_file: Path, again: list[str], asked, timing=None) -> int:
    """Run what is left to run; the exit code."""
    if refused(specs, again):
        return 2
    asker = runfacts.Asker()
    if stop_file.exists():
        say(f"removing {stop_file}, which an earlier queue left")
        stop_file.unlink()
    hows: list[str] = []
    for spec in specs:
        if asked():
            break
        try:
            outcome = one(spec, spec.name in again, asker, asked, timing)
        except (runner.NotStarted, tomlio.TomlError, OSError) as error:
            say(f"{spec.name}: {error}")
            say("the queue stops here")
            write_stop_file(stop_file)
            return 2
        if isinstance(outcome, str):
            hows.append(outcome)
            continue
        hows.append(outcome.how)
        if runner.exit_code(outcome) == 2:
            say("sight was lost: the queue stops here")
            if not outcome.alive:
                write_stop_file(stop_file)
            return 2
    write_stop_file(stop_file)
    fine = sum(how == "finished" for how in hows)
    say(f"{fine} of {len(specs)} runs finished")
    return 0 if fine == len(specs) else 1


def refused(specs: list[Spec], again: list[str]) -> bool:
    """Does a trap refuse one of the runs that are left? Better said now than in the night."""
    capability = runner.capability()
    found = []
    for spec in specs:
        if spec.name in again or past(spec) in ("", "interrupted"):
            traps = runner.traps(spec, capability)
            found += [(spec.name, one) for one in traps if one.severity == miles_grpo.REFUSED]
    for name, one in found:
        print(f"queue: {name}: {one.severity} {one.id}: {one.text}", file=sys.stderr)
    return bool(found)


def one(spec: Spec, again: bool, asker, asked, timing) -> Outcome | str:
    """Run one entry, or say how it ended earlier. Raises runner.NotStarted."""
    before = past(spec)
    if before and before != "interrupted" and not again:
        say(f"{spec.name}: {before} earlier, not run again")
        return before
    if before:
        seen = containers.Engine(spec.engine).by_name(spec.container)
        if not seen.yes:
            raise runner.NotStarted(seen.why)
        if seen.value is not None and seen.value.alive:
            raise runner.NotStarted(
                f"its container {spec.container} still runs; wait for it, or end it with:"
                f" {spec.engine} stop {spec.container}"
            )
        say(f"{spec.name}: {before} earlier; its files are now {set_aside(spec)}.*")
    return runner.start(spec, asker, asked, timing)


def write_stop_file(path: Path) -> None:
    """Tell a heat guard beside the queue to end."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("the queue is done\n", encoding="utf-8")
        return
    say(f"{path} could not be written: end the heat guard yourself")


@contextlib.contextmanager
def locked(lab: Path):
    """Hold the lab's queue lock. Raises BlockingIOError when another queue has it, OSError."""
    lab.mkdir(parents=True, exist_ok=True)
    with (lab / ".queue.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def dry_run(specs: list[Spec], stop_file: Path, again: list[str]) -> int:
    """Print every command of every run; 2 when a trap refuses one of them."""
    code = 0
    for spec in specs:
        try:
            before = past(spec)
        except tomlio.TomlError as error:
            before = f"damaged record: {error}"
        if before and before != "interrupted" and spec.name not in again:
            print(f"\n# -- {spec.name}: {before} earlier, would not run again")
            continue
        aside = ", its files would be set aside" if before else ""
        print(f"\n# -- {spec.name}{aside}")
        code = max(code, runner.dry_run(spec))
    print(f"\n# when done\ntouch {stop_file}")
    return code
