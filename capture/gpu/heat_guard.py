"""Pause a run while the GPU is hot, and resume it when it has cooled: verb `heat-guard`."""

import argparse
import math
import sys
import time
from pathlib import Path

from mileskit.heat.gpureplay import SampleError, read_readings
from mileskit.heat.gpusample import SMI_S, Smi
from mileskit.heat.heat_live import Guard
from mileskit.heat.heat_log import Journal, format_action, say
from mileskit.heat.heat_owner import Busy, Owner
from mileskit.heat.heat_policy import Limits, State, decide
from mileskit.heat.heat_stop import Stop
from mileskit.host.containers import ANSWER_S, NAME_PATTERN, Engine

DESCRIPTION = """\
Read the GPU temperature every few seconds; pause the run's container when it is hot, resume it when
it has cooled. The newest running container of the image is chosen unless --name names one. However
the guard ends, it resumes the run first; a guard that was killed with SIGKILL is repaired by the
next start with the same --owner-file.
"""

EPILOG = """\
exit codes:
  0  stopped as asked; nothing had to be paused
  1  stopped as asked; paused the run at least once, or repaired a pause that a killed guard left
  2  bad usage, another guard runs, nvidia-smi or the engine missing or failing at the start, or
     the run could not be resumed at the end
  3  inspected nothing: no temperature was ever read, or the stop file was there from the start
With --replay: 1 when the samples would have led to a pause, 3 when the file holds no sample.

log (a pause without a resume lasts to the end of the log; lines with # are comments):
  2026-11-29T13:27:19.120Z pause container=miles-plain temp_c=84 reason=hot
  2026-11-29T13:28:09.003Z resume container=miles-plain temp_c=74 reason=cool paused_s=49.9
reasons of a pause: hot; of a resume: cool, max-time, unreadable (the maximum passed without a
temperature), SIGINT and other signals, stop-file, repair, error (of the guard itself), and for
pauses that ended by themselves: unpaused, restarted, ended, gone.

A gentler way is to cap the clock, which slows a run but never freezes it (reported by others, not
measured here; needs root):
  nvidia-smi -lgc MIN,MAX     lock the SM clock to a range in MHz
  nvidia-smi -rgc             undo it
"""

DEFAULT_IMAGE = "radixark/miles:latest"
DEFAULT_LAB = "~/miles-lab"


class UsageError(Exception):
    """A bad option; the text is the one line to print."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add, limits = parser.add_argument, Limits()
    add("--name", help="exact name of the container")
    add("--image", help=f"image whose first running container is guarded ({DEFAULT_IMAGE})")
    add("--engine", default="docker", help="client program: docker (default), podman, or a path")
    add(
        "--gpu",
        action="append",
        metavar="N",
        help="GPU index, repeatable (default: every GPU); the hottest one counts",
    )
    add("--pause-c", default=limits.pause_c, metavar="C", help="pause at or above (%(default)g)")
    add("--resume-c", default=limits.resume_c, metavar="C", help="resume at or below (%(default)g)")
    add(
        "--min-pause-s",
        default=limits.min_pause_s,
        metavar="S",
        help="shortest pause (%(default)g)",
    )
    add(
        "--max-pause-s", default=limits.max_pause_s, metavar="S", help="longest pause (%(default)g)"
    )
    add("--interval-s", default=5.0, metavar="S", help="seconds between readings (%(default)g)")
    add("--smi-s", default=SMI_S, metavar="S", help="wait for nvidia-smi (%(default)g)")
    add("--answer-s", default=ANSWER_S, metavar="S", help="wait for the engine (%(default)g)")
    add("--lab", default=DEFAULT_LAB, help="folder of the files below (%(default)s)")
    add("--log", help="action log (LAB/runs/heat-guard.log)")
    add("--samples", help="samples as JSON lines (LAB/runs/gpu-samples.jsonl)")
    add("--stop-file", help="end when this file exists (LAB/queue.done)")
    add("--owner-file", help="who guards and what is paused (LAB/heat-guard.owner.json)")
    add("--dry-run", action="store_true", help="read the GPU and print what would be done")
    add("--repair", action="store_true", help="resume what a killed guard left paused, and end")
    add(
        "--replay",
        metavar="FILE",
        help="run the rule over stored samples: JSON lines of this"
        " guard, or the CSV of nvidia-smi --query-gpu=timestamp,temperature.gpu,...",
    )


def run(args: argparse.Namespace) -> int:
    try:
        limits = _limits(args)
        if args.replay is not None:
            return replay(Path(args.replay), limits, args.name or "replay")
        interval_s, smi_s, answer_s = (
            _number(args, name, low=0.01) for name in ("interval_s", "smi_s", "answer_s")
        )
        gpus = _gpus(args.gpu)
        engine = Engine(args.engine, answer_s)
        find = _finder(args, engine)
        lab = Path(args.lab).expanduser()
        log = _path(args.log, lab / "runs" / "heat-guard.log")
        samples = _path(args.samples, lab / "runs" / "gpu-samples.jsonl")
        stop_file = _path(args.stop_file, lab / "queue.done")
        owner = None if args.dry_run else Owner(_path(args.owner_file, _owner_default(lab)))
        if owner is not None:
            owner.take()
    except (UsageError, Busy) as error:
        say(str(error))
        return 2
    except OSError as error:
        say(f"cannot use {error.filename}: {error.strerror}")
        return 2
    stop = Stop(stop_file)
    journals = (Journal(None if args.dry_run else path, say) for path in (log, samples))
    guard = Guard(limits, engine, find, Smi(gpus), *journals, owner, smi_s)
    reason, code = "error", 2
    try:
        reason, code = _guard(guard, stop, interval_s, repair_only=args.repair)
    finally:
        done = guard.finish(reason)
        if owner is not None:
            owner.release(keep_record=not done)
    return code if done else 2


def _guard(guard: Guard, stop: Stop, interval_s: float, repair_only: bool) -> tuple[str, int]:
    """From the repair to the order to stop: (why it ended, exit code)."""
    if not guard.repair():
        return "not-repaired", 2
    if repair_only:
        return "repair", int(guard.counts["repairs"] > 0)
    if stop.asked() and stop.reason == "stop-file":
        say(f"{stop.stop_file} exists: remove it to start the guard")
        return "stop-file", 3
    listed = guard.engine.ps()
    if not listed.yes:
        say(listed.why)
        return "no-engine", 2
    if guard.read().refused:
        return "no-gpu", 2
    say(f"reading every {interval_s:g} s, pause at {guard.limits.pause_c:g} C")
    while not stop.asked():
        began = time.monotonic()
        guard.check()
        stop.wait(guard.until_next(began + interval_s))
    if not guard.counts["readable"]:
        return stop.reason, 3
    return stop.reason, int(guard.counts["pauses"] + guard.counts["repairs"] > 0)


def replay(path: Path, limits: Limits, name: str) -> int:
    """Print what the rule would have done with stored samples, whose heat no pause changed.

    Time is that of the samples; where it goes back, no time passes. Exit codes as in --help.
    """
    state, clock, before = State(), 0.0, None
    readings = pauses = blind = 0
    paused_s, hottest_c = 0.0, -math.inf
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for reading in read_readings(lines, str(path)):
                clock += 0.0 if before is None else max(0.0, reading.time - before)
                before = reading.time
                sample = reading.hottest
                readings += 1
                blind += sample is None
                temp_c = sample.temp_c if sample else None
                hottest_c = max(hottest_c, temp_c if sample else -math.inf)
                state, action = decide(limits, state, sample, clock)
                if action is None:
                    continue
                pauses += action.kind == "pause"
                paused_s += action.paused_s or 0.0
                when, kind = reading.time, action.kind
                print(format_action(when, kind, name, temp_c, action.reason, action.paused_s))
    except SampleError as error:
        say(str(error))
        return 2
    except OSError as error:
        say(f"cannot read {path}: {error.strerror}")
        return 2
    if state.paused_at is not None:
        paused_s += clock - state.paused_at
    if not readings:
        say(f"{path}: no sample")
        return 3
    top = f", hottest {hottest_c:g} C" if blind < readings else ""
    print(
        f"# {readings} readings over {clock:.0f} s: {pauses} pauses, {paused_s:.0f} s paused, "
        f"{blind} readings without a temperature{top}"
    )
    if blind == readings:
        return 3
    return int(pauses > 0)


def _limits(args: argparse.Namespace) -> Limits:
    limits = Limits(*(_number(args, name) for name in Limits._fields))
    if limits.wrong():
        raise UsageError(limits.wrong())
    return limits


def _number(args: argparse.Namespace, name: str, low: float = -math.inf) -> float:
    text, option = getattr(args, name), "--" + name.replace("_", "-")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or abs(value) > 1e6:
        raise UsageError(f"{option} {text!r} is not a usable number")
    if value < low:
        raise UsageError(f"{option} {text} must be at least {low:g}")
    return value


def _gpus(texts: list[str] | None) -> tuple[int, ...]:
    indices = [index.strip() for text in texts or () for index in text.split(",")]
    for index in indices:
        if not (index.isascii() and index.isdigit()):
            raise UsageError(f"--gpu {index!r} is not a GPU index")
    return tuple(dict.fromkeys(map(int, indices)))


def _finder(args: argparse.Namespace, engine: Engine):
    if args.name is not None and args.image is not None:
        raise UsageError("--name and --image exclude each other")
    if args.name is not None:
        if not NAME_PATTERN.fullmatch(args.name):
            raise UsageError(f"--name {args.name!r} cannot be a container name")
        return lambda: engine.by_name(args.name)
    image = DEFAULT_IMAGE if args.image is None else args.image
    if not image or image.startswith("-") or any(char.isspace() for char in image):
        raise UsageError(f"--image {image!r} cannot be an image name")
    return lambda: engine.by_image(image)


def _path(text: str | None, default: Path) -> Path:
    return default if text is None else Path(text).expanduser()


def _owner_default(lab: Path) -> Path:
    return lab / "heat-guard.owner.json"


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str):
        say(message)
        raise SystemExit(2)


def main(argv: list[str] | None = None) -> int:
    parser = _OneLineParser(prog="heat_guard.py")
    add_arguments(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
