"""Load a run for judging it: a run folder, ``LAB/RUN`` of a stored run, a log, a summary or events.

``load`` reads the input once.  A folder's summary is used when it is not older than its log; a
log is summarized in one pass.  A `run.toml` beside a log or a summary belongs to it.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import math
import re
from pathlib import Path
from typing import NamedTuple

from mileskit.common import kitfiles, tomlio
from mileskit.heat.gpureplay import SampleError, read_readings
from mileskit.heat.gpusample import Sample
from mileskit.judge.twice import Twice
from mileskit.log import eventfiles
from mileskit.log.logsource import LogSourceError, open_log
from mileskit.summary.pauses import PauseLogError
from mileskit.summary.summarize import Summary
from mileskit.summary.summaryfile import SCHEMA

LOGS = ("run.log.xz", "run.log.gz", "run.log")
_STORED = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class LoadError(Exception):
    """An input that cannot be used; one line that names the file (exit code 2)."""


class NothingError(LoadError):
    """An input that holds nothing of a Miles run (exit code 3)."""


class Loaded(NamedTuple):
    """One run.

    run: a run of a summary (SUMMARY.md) whose non-finite cells are floats; toml: its run.toml or
    None; name: short name for output; source: "stored run", "run folder", "log", "summary" or
    "event files"; path: what was read (a kit file name for a stored run); notes: what a reader
    must know about the input; sha256: of the uncompressed log, None when there was none;
    pause_log: whether a heat-guard log was read with it.
    """

    run: dict
    toml: dict | None
    name: str
    source: str
    path: str
    notes: tuple[str, ...] = ()
    sha256: str | None = None
    pause_log: bool = False


def add_input_options(parser: argparse.ArgumentParser) -> None:
    """Options about a run's log that health and report share."""
    parser.add_argument("--heat-guard", metavar="FILE", help="log of the heat guard (pauses)")
    parser.add_argument(
        "--samples", metavar="FILE", help="clock record: JSON lines of the heat guard, or CSV"
    )
    parser.add_argument(
        "--utc-offset",
        default="+00:00",
        metavar="+HH:MM",
        help="how far the log's clock is ahead of UTC (default +00:00)",
    )


def stored_runs() -> list[str]:
    """``LAB/RUN`` of every run that the kit holds a summary and a run.toml of, sorted."""
    names = set(kitfiles.names("out-"))
    found = []
    for name in names:
        parts = name.split("/")
        toml = f"{parts[0]}/{parts[1]}/run.toml" if len(parts) == 3 else ""
        if parts[-1] == "summary.json" and toml in names:
            found.append(f"{parts[0][4:]}/{parts[1]}")
    return sorted(found)


def load(
    text: str,
    heat_guard: str | None = None,
    utc_offset: str = "+00:00",
    reader: type[Summary] = Summary,
) -> Loaded:
    """The run that ``text`` names: a path, ``-`` for a log on standard input, or ``LAB/RUN``.

    heat_guard: path of the heat guard's log (default: `heat-guard.log` in a run folder);
    utc_offset: how far the log's clock is ahead of UTC; reader: makes the summary of a log.
    Raises LoadError and NothingError.
    """
    path = Path(text)
    try:
        if text != "-" and not path.exists():
            if _STORED.fullmatch(text) and text in stored_runs():
                return _stored(text)
            raise LoadError(_unknown(text))
        if text != "-" and path.is_dir():
            return _folder(path, heat_guard, utc_offset, reader)
        return _file(text, heat_guard, utc_offset, reader)
    except (LogSourceError, PauseLogError, tomlio.TomlError, eventfiles.EventError) as error:
        raise LoadError(str(error)) from None
    except OSError as error:
        raise LoadError(f"{error.filename or text}: {error.strerror or error}") from None


def samples(one: Loaded, file: str | None = None) -> tuple[list[Sample], str] | None:
    """The clock record of a run: its samples in the order of time, and where they come from.

    file: a record to use instead of the one that run.toml names.  None when there is none
    ("clock unknown").  Raises LoadError.
    """
    named = ((one.toml or {}).get("setup") or {}).get("clock_record") or ""
    if not file and not named:
        return None
    try:
        if file:
            place, data = file, Path(file).read_bytes()
        elif one.source == "stored run":
            place = _inside(f"{one.path}/{named}")
            data = kitfiles.read_bytes(place)
        else:
            folder = Path(one.path)
            place = str((folder if folder.is_dir() else folder.parent) / named)
            data = Path(place).read_bytes()
        lines = io.StringIO(data.decode("utf-8", "replace"))
        found = [s for reading in read_readings(lines, place) for s in reading.samples]
    except SampleError as error:
        raise LoadError(str(error)) from None
    except OSError as error:
        if not file:  # a run.toml without the record that it names
            return [], f"{named} (missing)"
        raise LoadError(f"{file}: {error.strerror or error}") from None
    return sorted(found, key=lambda s: s.time), place


def _unknown(text: str) -> str:
    labs = ", ".join(sorted({name.split("/")[0] for name in stored_runs()})) or "none"
    return f"{text}: no such file, and no stored run LAB/RUN of that name (labs: {labs})"


def _inside(name: str) -> str:
    """A kit file name without its ``..`` parts."""
    parts: list[str] = []
    for part in name.split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in ("", ".", ".."):
            parts.append(part)
    return "/".join(parts)


def _stored(text: str) -> Loaded:
    lab, name = text.split("/")
    folder = f"out-{lab}/{name}"
    toml = tomlio.loads(kitfiles.read_bytes(f"{folder}/run.toml").decode("utf-8"))
    summary = _json(kitfiles.read_bytes(f"{folder}/summary.json"), f"{folder}/summary.json")
    return _of_summary(summary, toml, text, "stored run", folder)


def _folder(path: Path, heat_guard: str | None, utc_offset: str, reader) -> Loaded:
    toml_path = path / "run.toml"
    toml = tomlio.load(toml_path) if toml_path.exists() else None
    name = _name_of(toml) or path.resolve().name
    log = next((path / n for n in LOGS if (path / n).exists()), None)
    summary = path / "summary.json"
    fresh = summary.exists() and (
        log is None or summary.stat().st_mtime >= log.stat().st_mtime or _is_stored(path)
    )
    if fresh and heat_guard is None:
        loaded = _json(summary.read_bytes(), str(summary))
        return _of_summary(loaded, toml, name, "run folder", str(path))
    if log is not None:
        guard = heat_guard
        if guard is None and (path / "heat-guard.log").exists():
            guard = str(path / "heat-guard.log")
        return _log(str(log), guard, utc_offset, reader, toml, name, "run folder", str(path))
    if any(path.glob("*.jsonl")):
        run, notes = eventfiles.read_folder(path)
        return _events(run, notes, toml, name, str(path))
    raise NothingError(f"{path}: no run.log.xz, no summary.json and no event file (*.jsonl) in it")


def _is_stored(path: Path) -> bool:
    """A folder of the kit's own: a checkout gives its files no meaningful times."""
    return path.resolve().parent.name.startswith("out-") and (path / "run.toml").exists()


def _file(text: str, heat_guard: str | None, utc_offset: str, reader) -> Loaded:
    path = Path(text)
    beside = path.parent / "run.toml"
    named = text != "-" and path.name in (*LOGS, "summary.json") and beside.exists()
    toml = tomlio.load(beside) if named else None
    name = "standard input" if text == "-" else _name_of(toml) or _stem(path)
    if text != "-" and path.suffix == ".jsonl":
        run, notes = eventfiles.read_files([path])
        return _events(run, notes, toml, name, text)
    if text != "-" and path.suffix == ".json":
        return _of_summary(_json(path.read_bytes(), text), toml, name, "summary", text)
    return _log(text, heat_guard, utc_offset, reader, toml, name, "log", text)


def _stem(path: Path) -> str:
    name = path.name
    for ending in (".xz", ".gz", ".log"):
        name = name[: -len(ending)] if name.endswith(ending) else name
    return name or path.name


def _name_of(toml: dict | None) -> str | None:
    run = (toml or {}).get("run") or {}
    if run.get("lab") and run.get("name"):
        return f"{run['lab']}/{run['name']}"
    return run.get("name")


def _log(text, heat_guard, utc_offset, reader, toml, name, source, path) -> Loaded:
    guard = Path(heat_guard).read_bytes() if heat_guard else None
    collecting = gc.isenabled()
    gc.disable()  # events are plain tuples without cycles; the collector finds nothing
    try:
        with open_log(text) as stream:
            try:
                one = reader(stream, guard, utc_offset)
            except PauseLogError as error:
                raise PauseLogError(
                    str(error).replace("heat-guard log", str(heat_guard), 1)
                ) from None
            twice = Twice(one)
            runs = list(one.runs())
            made = {"schema": SCHEMA, "runs": runs, "source": one.source()}
    except ValueError as error:
        raise LoadError(str(error)) from None
    finally:
        if collecting:
            gc.enable()
    if not one.events:
        raise NothingError(f"{name if text == '-' else text}: no line of a Miles run")
    loaded = _of_summary(made, toml, name, source, path)
    return loaded._replace(notes=(*loaded.notes, *twice.notes()))


def distinct(ones: list[Loaded]) -> list[Loaded]:
    """The runs with a name each: runs of one name get their file's name, their path or a number."""
    groups: dict[str, list[int]] = {}
    for i, one in enumerate(ones):
        groups.setdefault(one.name, []).append(i)
    out = list(ones)
    for name, at in groups.items():
        if len(at) == 1:
            continue
        stems, paths = ([of(ones[i].path) for i in at] for of in (lambda p: _stem(Path(p)), str))
        numbers = [f"#{k + 1}" for k in range(len(at))]
        more = next(m for m in (stems, paths, numbers) if len(set(m)) == len(at))
        for i, word in zip(at, more, strict=True):
            if word != name:
                out[i] = ones[i]._replace(name=f"{name} ({word})")
    return out


def _events(run: dict, notes: tuple[str, ...], toml, name: str, path: str) -> Loaded:
    if not run["rollouts"]["index"] and not run["steps"]["index"]:
        raise NothingError(f"{path}: no metric event of a rollout or a step")
    return Loaded(floats(run), toml, name, "event files", path, notes)


def _json(data: bytes, name: str) -> dict:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise LoadError(f"{name}: not JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("runs"), list):
        raise LoadError(f"{name}: not a summary: it has no list of runs")
    if found.get("schema") != SCHEMA:
        raise LoadError(f"{name}: schema {found.get('schema')!r}, this kit reads {SCHEMA}")
    return found


def _of_summary(summary: dict, toml, name: str, source: str, path: str) -> Loaded:
    runs = summary["runs"]
    if not runs:
        raise NothingError(f"{path}: a summary without a run")
    notes = ()
    if len(runs) > 1:
        line = runs[-1].get("first_line")
        notes = (f"{len(runs)} runs in this log; the last one is judged, from line {line} on",)
    src = summary.get("source") or {}
    if toml is None and source == "log" and runs[-1].get("markers", {}).get("run"):
        name = str(runs[-1]["markers"]["run"])
    try:
        run = floats(runs[-1])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise LoadError(f"{path}: not a summary of this kit") from None
    guarded = src.get("pause_log_sha256") is not None
    return Loaded(run, toml, name, source, path, notes, src.get("sha256"), guarded)


def floats(run: dict) -> dict:
    """The run with the texts "nan", "inf" and "-inf" of its tables as floats."""
    out = dict(run)
    for table in ("rollouts", "steps"):
        columns = {
            name: column
            if name.startswith("time/")
            else [_NON_FINITE.get(v) if isinstance(v, str) else v for v in column]
            for name, column in run[table]["columns"].items()
        }
        out[table] = {**run[table], "columns": columns}
    return out
