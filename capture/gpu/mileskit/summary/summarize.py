"""The verb ``summarize``: a Miles log to a summary (schema in SUMMARY.md).

Reads the log once, in chunks, and writes run by run, so memory does not grow with the log.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mileskit.log.events import (
    CutLine,
    EngineDecode,
    EnginePrefill,
    EngineStart,
    EngineWeights,
    Eval,
    MultiTurn,
    Perf,
    Progress,
    Retry,
    Rollout,
    RunStart,
    Step,
)
from mileskit.log.logparse import LogParser
from mileskit.log.logsource import LogSourceError, open_log
from mileskit.summary import summaryfile
from mileskit.summary.pauses import Pause, PauseLogError, read_pauses
from mileskit.summary.runtable import RunTable
from mileskit.summary.summaryfile import diff_summaries, to_bytes

__all__ = ["Summary", "build", "diff_summaries", "to_bytes"]

CHUNK = 1 << 18  # a chunk and its lines stay in the processor's cache
_QUIET = {EngineDecode, EnginePrefill, Progress}  # events that only say that time passes
_NUMBERED = (Step, Rollout, Perf, Eval, MultiTurn)
EXIT_CODES = """exit codes:
  0  summary made (or, with --check, equal to the stored one)
  1  --check found a difference
  2  bad usage, or a file cannot be read or written
  3  nothing of a Miles run in the log; nothing written"""


class Summary:
    """One pass over a log: iterate :meth:`runs`, then ask :meth:`source`.

    ``pause_log``: bytes of a heat-guard log or None; ``utc_offset``: "+HH:MM" that the log's
    clock is ahead of UTC, or seconds.
    """

    def __init__(self, stream: BinaryIO, pause_log: bytes | None = None, utc_offset="+00:00"):
        self.stream = stream
        self.pauses: list[Pause] = read_pauses(pause_log) if pause_log is not None else []
        self.pause_log = pause_log
        self.parser = LogParser(parse_offset(utc_offset))
        self.bytes = 0
        self.events = 0
        self._hash = hashlib.sha256()

    def runs(self) -> Iterator[dict]:
        """The runs of the log, one after another."""
        run, part = RunTable(), None
        for events in self._events():
            for ev in events:
                kind = type(ev)
                if kind is Retry:
                    (part or run).retry(ev)
                elif kind in _QUIET:
                    (part or run).seen(ev[1])
                elif kind is RunStart:
                    if ev.why != "number-down" and part is not None:
                        run.absorb(part)
                        part = None
                    yield run.result(self.pauses, last=False)
                    run, part = part or RunTable(), None
                    run.started_by, run.line = ev.why, ev.since_line
                elif kind is CutLine:
                    (part or run).cut = ev.line
                else:
                    if kind in _NUMBERED:
                        if part is not None:
                            run.absorb(part)
                            part = None
                    elif part is None and kind in (EngineStart, EngineWeights) and run.started():
                        part = RunTable()
                    (part or run).add(ev)
        if part is not None:
            run.absorb(part)
        run.seen(self.parser.time)
        if self.events:
            yield run.result(self.pauses, last=True)

    def _events(self) -> Iterator[list]:
        feed, read, update = self.parser.feed, self.stream.read, self._hash.update
        while data := read(CHUNK):
            self.bytes += len(data)
            update(data)
            events = feed(data)
            self.events += len(events)
            yield events
        events = self.parser.close()
        self.events += sum(type(ev) is not CutLine for ev in events)
        yield events

    def source(self) -> dict:
        """What was read: of the uncompressed log, and the heat-guard log's checksum."""
        guard = None
        if self.pause_log is not None:
            guard = hashlib.sha256(self.pause_log).hexdigest()
        return {
            "sha256": self._hash.hexdigest(),
            "bytes": self.bytes,
            "lines": self.parser.line + (1 if self.parser.cut else 0),
            "pause_log_sha256": guard,
        }


def build(stream: BinaryIO, pause_log: bytes | None = None, utc_offset="+00:00") -> dict:
    """The whole summary of a log (see :class:`Summary` for the arguments)."""
    one = Summary(stream, pause_log, utc_offset)
    runs = list(one.runs())
    return {"schema": summaryfile.SCHEMA, "runs": runs, "source": one.source()}


def parse_offset(text) -> float:
    """Seconds of "+HH:MM"; numbers pass through.  Raises ValueError."""
    if isinstance(text, (int, float)):
        return float(text)
    m = re.fullmatch(r"([+-])(\d\d):?(\d\d)|Z", text)
    if not m or (m[1] and (int(m[2]) > 14 or int(m[3]) > 59)):
        raise ValueError(f"not an offset from UTC like +02:00: {text!r}")
    if not m[1]:
        return 0.0
    seconds = int(m[2]) * 3600 + int(m[3]) * 60
    return float(-seconds if m[1] == "-" else seconds)


# -- the verb ------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``kit.py summarize``."""
    parser.description = (
        "Read a Miles log and print what happened, or write summary.json. "
        "LOG is a plain, .gz or .xz log or - for standard input; a run folder is summarized "
        "in place."
    )
    parser.epilog = EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("log", nargs="+", metavar="LOG", help="log, run folder, or -")
    parser.add_argument("--heat-guard", metavar="FILE", help="log of the heat guard (pauses)")
    parser.add_argument(
        "--utc-offset",
        default="+00:00",
        metavar="+HH:MM",
        help="how far the log's clock is ahead of UTC (default +00:00)",
    )
    parser.add_argument("-o", "--output", metavar="OUT", help="write the summary here")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument(
        "--check", action="store_true", help="run folders only: compare, write nothing"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the verb; returns the exit code."""
    try:
        parse_offset(args.utc_offset)
        if len(args.log) > 1 and (args.output or args.heat_guard or args.json):
            raise ValueError("-o, --heat-guard and --json take one LOG")
        if args.check and not all(Path(p).is_dir() for p in args.log):
            raise ValueError("--check takes run folders")
        if args.output and Path(args.log[0]).is_dir():
            raise ValueError("a run folder is summarized in place; leave out -o")
        gc.disable()  # events are plain tuples without cycles; the collector finds nothing
        return max(_one(path, args) for path in args.log)
    except (ValueError, LogSourceError, PauseLogError, OSError) as error:
        print(f"summarize: {error}", file=sys.stderr)
        return 2
    finally:
        gc.enable()


def _one(path: str, args) -> int:
    folder = Path(path) if path != "-" and Path(path).is_dir() else None
    guard = Path(args.heat_guard) if args.heat_guard else None
    out = Path(args.output) if args.output else None
    log = path
    if folder:
        log = next(
            (folder / n for n in ("run.log.xz", "run.log.gz", "run.log") if (folder / n).exists()),
            None,
        )
        if log is None:
            raise LogSourceError(f"{folder}: no run.log.xz in it")
        guard = guard or (folder / "heat-guard.log")
        guard = guard if guard.exists() else None
        out = folder / "summary.json"
    pause_log = guard.read_bytes() if guard else None
    with open_log(log) as stream:
        try:
            one = Summary(_watched(stream), pause_log, args.utc_offset)
        except PauseLogError as error:
            raise PauseLogError(str(error).replace("heat-guard log", str(guard), 1)) from None
        if args.check:
            return _check(folder, one)
        return _make(path, one, out, args.json)


def _check(folder: Path, one: Summary) -> int:
    stored_path = folder / "summary.json"
    if not stored_path.exists():
        print(f"{folder.name}: no summary.json stored")
        return 1
    stored = stored_path.read_bytes()
    computed = to_bytes({"runs": list(one.runs()), "source": one.source()})
    if stored == computed:
        return 0
    try:
        found = diff_summaries(stored, computed)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        found = [f"not a summary: {error}"]
    print(f"{folder.name}: {found[0] if found else 'same values, other bytes'}")
    return 1


def _make(path: str, one: Summary, out: Path | None, as_json: bool) -> int:
    if out is None and not as_json:
        for number, run_ in enumerate(one.runs(), 1):
            print(describe(run_, number))
        return _nothing(path) if not one.events else 0
    target = out.parent if out else None
    with tempfile.NamedTemporaryFile(dir=target, prefix=".summary-", delete=False) as file:
        try:
            summaryfile.write(file, one.runs(), one.source)
            file.flush()
            if not one.events:
                return _nothing(path)
            if out is None:
                file.seek(0)
                while block := file.read(CHUNK):
                    sys.stdout.buffer.write(block)
                sys.stdout.flush()
            elif not _same(Path(file.name), out):
                Path(file.name).chmod(0o644)
                Path(file.name).replace(out)
            return 0
        finally:
            Path(file.name).unlink(missing_ok=True)


def _same(a: Path, b: Path) -> bool:
    if not b.exists() or a.stat().st_size != b.stat().st_size:
        return False
    return a.read_bytes() == b.read_bytes()


def _nothing(path: str) -> int:
    print(f"summarize: {path}: no line of a Miles run in it", file=sys.stderr)
    return 3


class _watched:
    """Passes reads on and shows how far they are on a terminal."""

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self._done = self._shown = 0
        self._tty = sys.stderr.isatty()

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if self._tty:
            self._done += len(data)
            if self._done - self._shown >= 32 << 20:
                self._shown = self._done
                print(f"\rread {self._done >> 20} MiB", end="", file=sys.stderr, flush=True)
            elif not data and self._shown:
                print("\r" + " " * 24 + "\r", end="", file=sys.stderr, flush=True)
        return data


_SHOWN = (
    ("perf/step_time", "whole step, s"),
    ("perf/rollout_time", "rollout, s"),
    ("perf/train_time", "training, s"),
    ("perf/update_weights_time", "weight update, s"),
    ("rollout/raw_reward", "reward"),
    ("rollout/response_lengths", "answer length, tokens"),
    ("train/train_rollout_logprob_abs_diff", "log-probability gap"),
    ("train/grad_norm", "gradient norm"),
)


def describe(run_: dict, number: int) -> str:
    """A short table of one run for people."""
    ended, steps = run_["ended"], run_["steps"]["index"]
    name = run_["markers"].get("run", f"started by {run_['started_by']}")
    lines = [f"run {number}: {name}"]
    span = f", steps {steps[0]} to {steps[-1]}" if steps else ""
    lines.append(f"  {len(steps)} steps{span}; {len(run_['pauses'])} pauses")
    lines.append(f"  {'median':24}{'all':>12}{'n':>5}{'clean':>12}{'n':>5}")
    for column, label in _SHOWN:
        m = run_["medians"].get(column)
        if m:
            clean = "-" if m["clean"] is None else f"{m['clean']:.4g}"
            lines.append(
                f"  {label:24}{m['all']:>12.4g}{m['n_all']:>5}{clean:>12}{m['n_clean']:>5}"
            )
    retries = run_["retries"]
    if retries["total"]:
        parts = ", ".join(f"{n} {s}" for s, n in retries["by_status"].items())
        lines.append(f"  retries: {retries['total']} ({parts}), attempt {retries['max_attempt']}")
    for error in run_["errors"][:6]:
        lines.append(
            f"  {error['kind']} x{error['count']}, line {error['first_line']}: {error['text'][:90]}"
        )
    status = "" if ended["status"] is None else f", status {ended['status']}"
    lines.append(f"  ended: {ended['how']}{status} at {ended['time']}")
    return "\n".join(lines)
