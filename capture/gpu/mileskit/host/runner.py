"""Verb `run`: start one guarded run of section 1.1 on this host, and record what it was."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import miles_grpo

from mileskit.common import command, kitfiles
from mileskit.guard import verdicts
from mileskit.host import containers, rundraft, runfacts, runlive, runspec
from mileskit.host.runlive import Outcome, say, show
from mileskit.host.runspec import Spec, SpecError
from mileskit.log import logsource
from mileskit.summary import pauses, summarize

DESCRIPTION = """\
Start one run in the Miles container: resolve the image to its digest, write a draft of the run's
record, start the container with the launcher of the lab folder, guard it with the watchdog, and
stay until it ends. Ctrl+C stops the container, waits for the watchdog and says what is where; a
closed terminal does not end the run. Every command is printed; --dry-run only prints them.
"""
EPILOG = """\
files of a run NAME in LAB/runs: NAME.log (the run), NAME.watchdog.log, NAME.run.toml (the draft
that `store` completes), and with --heat-guard NAME.heat-guard.log and NAME.gpu-samples.jsonl.

settings: MILES_* variables of this shell reach the container, then --env, then the options. Keys
(WANDB_API_KEY, HF_TOKEN) go into a file that is given with --env-file; it is never printed.
A value that begins with -- needs an equals sign: --extra-args="--rollout-top-p 0.95".

exit codes:
  0  the run ended by itself with status 0 (with --dry-run: it could be started)
  1  the run failed, or was stopped by the watchdog, its time limit or Ctrl+C
  2  nothing was started (bad usage, a refused setting, no image, a name or log in use), or sight
     was lost: Docker stopped answering, or the watchdog did and the run went on without a guard
"""
DIAGNOSE_S = 300.0


class NotStarted(Exception):
    """One line for the user; nothing was started."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="name of the run (MILES_RUN, plain)"
    )
    parser.add_argument("--num-rollout", metavar="N", help="rollout steps (12)")
    parser.add_argument("--extra-args", metavar="FLAGS", help="more Miles flags, in quotes")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="setting; repeatable"
    )
    add_place_arguments(parser)
    parser.add_argument("--limit-minutes", metavar="M", help="stop the run after M minutes")
    parser.add_argument("--note", default="", help="a sentence for the run's record")


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that `run` and `queue` share."""
    add = parser.add_argument
    add("--env-file", action="append", default=[], metavar="FILE", help="keys, as NAME=VALUE lines")
    add("--lab", default=runspec.LAB, help="lab folder of this host (%(default)s)")
    add("--cache", default=runspec.CACHE, help="download cache of this host (%(default)s)")
    add("--image", default=runspec.IMAGE, help="image; its digest is what runs (%(default)s)")
    add("--engine", default="docker", help="client program (%(default)s)")
    add("--gpus", default="all", help="value of docker run --gpus; none leaves it out (all)")
    add(
        "--limit", default=runspec.LIMIT, metavar="N", help="watchdog: errors a check (%(default)s)"
    )
    add(
        "--checks",
        default=runspec.CHECKS,
        metavar="N",
        help="watchdog: bad checks in a row, 0 for no watchdog (%(default)s)",
    )
    add("--on-stop", default="", metavar="COMMAND", help="of yours, after the watchdog stopped it")
    add("--heat-guard", action="store_true", help="pause the run while the GPU is hot")
    add(
        "--dry-run", action="store_true", help="print every command, start nothing; needs no Docker"
    )


def run(args: argparse.Namespace) -> int:
    try:
        spec = spec_of(args, os.environ)
        if args.dry_run:
            return dry_run(spec)
    except SpecError as error:
        print(f"run: {error}", file=sys.stderr)
        return 2
    with runlive.Signals() as signals:
        try:
            outcome = start(spec, runfacts.Asker(), lambda: signals.reason)
        except NotStarted as error:
            print(f"run: {error}", file=sys.stderr)
            return 2
    return exit_code(outcome)


def exit_code(outcome: Outcome) -> int:
    """The exit code of --help for an outcome."""
    if outcome.alive or outcome.how in ("not-started", "unknown"):
        return 2
    if outcome.lost and outcome.by != "user":
        return 2
    return 0 if outcome.how == "finished" else 1


def spec_of(args: argparse.Namespace, environ: Mapping[str, str]) -> Spec:
    """The run of the arguments. Raises SpecError."""
    name = runspec.check_name(args.name or environ.get("MILES_RUN") or "plain")
    given = []
    for pair in args.env:
        variable, equals, value = pair.partition("=")
        if not equals:
            raise SpecError("--env wants NAME=VALUE")
        given.append((variable, value))
    env = runspec.container_env(name, given, environ, args.num_rollout, args.extra_args)
    limit = args.limit_minutes
    limit_s = 0.0 if limit is None else runspec.minutes(limit, "--limit-minutes")
    return place_of(args, name, env)._replace(limit_s=limit_s, note=args.note)


def place_of(args: argparse.Namespace, name: str, env: dict[str, str]) -> Spec:
    """A run with the options that `run` and `queue` share. Raises SpecError."""
    for path in args.env_file:
        runspec.env_file_names(path)
    for what in ("image", "engine", "gpus"):
        text = getattr(args, what)
        if not text or text.startswith("-") or any(char.isspace() for char in text):
            raise SpecError(f"--{what} {text!r} cannot be used")
    return Spec(
        name=name,
        env=env,
        lab=runspec.folder(args.lab, "--lab"),
        cache=runspec.folder(args.cache, "--cache"),
        image=args.image,
        engine=args.engine,
        gpus=args.gpus,
        env_files=tuple(args.env_file),
        limit=runspec.whole(args.limit, "--limit", 1, 999_999_999),
        checks=runspec.whole(args.checks, "--checks", 0, 999_999_999),
        heat_guard=args.heat_guard,
        on_stop=args.on_stop,
    )


def dry_run(spec: Spec) -> int:
    """Print the traps and all commands; 2 when a trap refuses the settings."""
    found = traps(spec, None)
    for line in runspec.dry_run(spec, spec.file("heat-guard.stop")):
        print(line)
    return refuse(found)


def traps(spec: Spec, capability: str | None) -> list[miles_grpo.Found]:
    """Known traps of the settings, as far as this host can see them."""
    machine = miles_grpo.Machine(capability=capability, cpus=os.cpu_count())
    found = miles_grpo.check(spec.settings, spec.env, machine)
    if any((spec.lab / "runs" / spec.name / "events").glob("*.jsonl")):
        text = (
            f"{spec.lab}/runs/{spec.name}/events: the new run would append to an old one's events"
        )
        found.append(miles_grpo.Found("run-used", miles_grpo.WARNED, text, "Miles"))
    return found


def refuse(found: list[miles_grpo.Found]) -> int:
    """Print the traps; 2 when one refuses, else 0."""
    for one in found:
        show(f"run: {one.severity} {one.id}: {one.text}", sys.stderr)
    return 2 if any(one.severity == miles_grpo.REFUSED for one in found) else 0


# -- one run ---------------------------------------------------------------------------------------


def start(
    spec: Spec, asker: runfacts.Asker, asked, timing: runlive.Timing | None = None
) -> Outcome:
    """Check, start, guard and finish one run; its record is complete afterwards.

    asked: a function that gives "" or why to end. Raises NotStarted when nothing was started.
    """
    engine = containers.Engine(spec.engine)
    image = prepare(spec, engine, asker)
    if refuse(traps(spec, capability())):
        raise NotStarted("nothing was started")
    say(f"image {image.reference}")
    try:
        facts = asker.facts(spec, image)
        for trouble in facts.troubles:
            say(f"not recorded: {trouble}")
        if not facts.launcher_is_ours:
            say(f"{spec.lab / runfacts.LAUNCHER}: not the kit's launcher; used as it is")
        if asked():
            raise NotStarted(f"{asked()} before the start")
        launched = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        document = rundraft.draft(spec, facts, launched)
        rundraft.write(spec.file("run.toml"), document)
        announce(spec, image.reference)
        outcome = runlive.Live(spec, engine, asked, timing or runlive.Timing()).go(image.reference)
    except runfacts.FactsError as error:
        raise NotStarted(str(error)) from None
    except OSError as error:
        raise NotStarted(f"{error.filename}: {error.strerror}") from None
    if outcome.how == "not-started":
        for kind in ("log", "run.toml"):
            with contextlib.suppress(OSError):
                spec.file(kind).unlink()
        raise NotStarted(f"{spec.container} was not started")
    finish(spec, document, outcome)
    return outcome


def prepare(spec: Spec, engine: containers.Engine, asker: runfacts.Asker) -> runfacts.Image:
    """Folders, free names, and the image. Raises NotStarted."""
    for kind in ("log", "run.toml", "watchdog.log"):
        if spec.file(kind).exists():
            raise NotStarted(f"{spec.file(kind)} exists; take another name for this run")
    try:
        image = asker.image(spec)
    except runfacts.FactsError as error:
        raise NotStarted(str(error)) from None
    if image.architecture and image.architecture != runfacts.machine():
        raise NotStarted(f"{spec.image} is for {image.architecture}, this host is another machine")
    there = engine.by_name(spec.container)
    if not there.yes:
        raise NotStarted(there.why)
    if there.value is not None:
        way = "stop" if there.value.alive else "rm"
        raise NotStarted(
            f"a container {spec.container} exists ({there.value.status}); take another name, or end"
            f" it with: {spec.engine} {way} {spec.container}"
        )
    try:
        for folder in (spec.lab / "runs", spec.cache):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotStarted(f"{error.filename}: {error.strerror}") from None
    return image


def capability() -> str | None:
    """Compute capability of the first GPU as nvidia-smi says it, None when it does not."""
    words = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    ran = command.run_program(words, runfacts.ASK_S)
    first = (ran.out.splitlines() or [""])[0].strip()
    return first if first.replace(".", "", 1).isdigit() and "." in first else None


def announce(spec: Spec, image: str) -> None:
    """Print the commands that are about to run."""
    out = shlex.quote(str(spec.file("log")))
    show(f"{runspec.shell(runspec.run_words(spec, image))} > {out} 2>&1")
    if spec.checks:
        show(runspec.shell(runspec.watchdog_words(spec)))
    if spec.heat_guard:
        show(runspec.shell(runspec.heat_words(spec, spec.file("heat-guard.stop"))))


# -- its end ---------------------------------------------------------------------------------------


def finish(spec: Spec, document: dict, outcome: Outcome) -> None:
    """Complete the draft with [ended], and say what is where."""
    table = ended_table(spec, document["run"]["num_rollout"], outcome)
    try:
        rundraft.write(spec.file("run.toml"), rundraft.ended(document, table))
    except OSError as error:
        say(f"{error.filename}: {error.strerror}; the draft lacks its [ended] table")
    who = {"watchdog": "stopped by the watchdog", "limit": "stopped at its time limit"}
    how = who.get(outcome.by, "stopped by you" if outcome.by == "user" else outcome.how)
    status = "" if outcome.status is None else f", status {outcome.status}"
    say(f"{spec.name}: {how}{status}, {table['steps']} steps, verdict {table['verdict']}")
    if outcome.by == "watchdog":
        say(f"watchdog: {runlive.tail(spec.file('watchdog.log'), 1)}")
    if outcome.alive:
        say(f"{spec.container} may still run, without a guard: {spec.engine} ps")
    for kind in ("log", "watchdog.log", "run.toml", "heat-guard.log", "gpu-samples.jsonl"):
        if spec.file(kind).exists():
            say(f"  {spec.file(kind)}")
    say(f"keep it: {store_line(spec)}")


def ended_table(spec: Spec, num_rollout: object, outcome: Outcome) -> dict:
    """The [ended] table: what this program saw, with the steps that the log holds."""
    steps = rollouts = 0
    with contextlib.suppress(logsource.LogSourceError, pauses.PauseLogError, OSError, ValueError):
        with logsource.open_log(spec.file("log")) as stream:
            runs = summarize.build(stream)["runs"]
        if runs:
            steps = len(runs[-1]["steps"]["index"])
            rollouts = len(runs[-1]["rollouts"]["index"])
    table: dict = {"how": outcome.how, "status": outcome.status, "steps": steps}
    if outcome.status is None:
        del table["status"]
    short = not isinstance(num_rollout, int) or rollouts < num_rollout or steps == 0
    table["partial"] = short or outcome.by != ""
    table["verdict"] = verdict(spec, outcome)
    if outcome.by:
        table["by"] = outcome.by
    if outcome.lost:
        table["unguarded"] = True
    return table


def verdict(spec: Spec, outcome: Outcome) -> str:
    """The word of `kit diagnose` for the log; where it sees nothing wrong, what the end says."""
    words = [str(spec.file("log")), "--json"]
    if spec.file("heat-guard.log").exists():
        words += ["--pauses", str(spec.file("heat-guard.log"))]
    ran = command.run_program(kitfiles.command("diagnose", *words), DIAGNOSE_S)
    word = ""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        word = json.loads(ran.out)["verdict"]
    if word in verdicts.ABOUT and word not in verdicts.FINE:
        return word
    return {"finished": "finished", "failed": "failed"}.get(outcome.how, "stopped")


def store_line(spec: Spec) -> str:
    """The command that puts the run into the evidence."""
    kit = [Path(sys.executable).name, kitfiles.program(), "store"]
    words = [*kit, str(spec.file("log")), "--lab", "MY-LAB", "--run", spec.name]
    words += ["--run-toml", str(spec.file("run.toml"))]
    if spec.file("heat-guard.log").exists():
        words += ["--heat-guard", str(spec.file("heat-guard.log"))]
    if spec.file("gpu-samples.jsonl").exists():
        words += ["--samples", str(spec.file("gpu-samples.jsonl"))]
    return shlex.join(words)
