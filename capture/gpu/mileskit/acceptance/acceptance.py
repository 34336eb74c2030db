"""Verb `acceptance`: the whole protocol on this GPU, and one bundle to send."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import NamedTuple

from mileskit.acceptance import bundle, enginekill, recordcheck, stages
from mileskit.acceptance.stages import FAILED, NOT_RUN, PASSED, Stage
from mileskit.common import command, tomlio
from mileskit.evidence import scrub, store
from mileskit.host import doctor, doctor_checks, runfacts, runlive, runner, runqueue, runspec
from mileskit.host.doctor_probes import Place, look
from mileskit.host.runlive import say
from mileskit.host.runspec import Spec, SpecError

DESCRIPTION = """\
Run the protocol on this GPU and make one bundle of it. The stages are: a look at the host; a
guarded run of 12 steps; a second run whose engine is killed once rollout 3 began, which the
watchdog must stop; and the pauses of the heat guard, if any came. A stage that fails is recorded,
and the bundle is made all the same. Started again, it runs only what is not over yet.

Only its own two containers are stopped, and only the engine inside the second one is killed. Both
runs need the whole GPU, one after the other, each for --limit-minutes at most. Ctrl+C stops the
run and makes the bundle. A closed terminal ends nothing. Nothing is sent anywhere: the bundle is a
file.
"""
EPILOG = """\
The runs are named PREFIX-steps and PREFIX-death, in LAB/runs. The bundle is a zip with the run
folders as `store` makes them, what `doctor` saw, the guards' logs, acceptance.json with a verdict
for each stage (passed, failed, or not-run, with the reason), and a checksum of every file. User
names, keys and host names are masked; give --word for names that no shape tells.

exit codes:
  0  every stage passed, or was not needed (no pause came); the bundle is made
  1  a stage failed or was not run; the bundle is made
  2  bad usage; or sight of a run was lost (the bundle is made); or no bundle could be written
  3  nothing could be looked at and nothing was run; the bundle says so
"""
STEPS, AT, LIMIT_MINUTES = 12, 3, 240


class Plan(NamedTuple):
    """What was asked for. again: names of runs to run anew."""

    steps: Spec
    death: Spec
    count: int
    rollout: int
    out: Path | None
    lab_name: str
    words: list[str]
    again: list[str]
    despite: bool

    @property
    def specs(self) -> list[Spec]:
        return [self.steps, self.death]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    runner.add_place_arguments(parser)
    parser.set_defaults(heat_guard=True)
    for action in parser._actions:
        if action.dest == "heat_guard":
            action.help = "is on here anyway; see --no-heat-guard"
    add = parser.add_argument
    add("--no-heat-guard", dest="heat_guard", action="store_false", help="never pause a hot run")
    add("--prefix", default="acceptance", help="beginning of the runs' names (%(default)s)")
    add("--env", action="append", default=[], metavar="NAME=VALUE", help="setting; repeatable")
    add("--extra-args", metavar="FLAGS", help="more Miles flags, in quotes")
    add("--num-rollout", default=str(STEPS), metavar="N", help="steps of both runs (%(default)s)")
    add("--kill-at", default=str(AT), metavar="N", help="rollout of the kill (%(default)s)")
    add("--limit-minutes", default=str(LIMIT_MINUTES), metavar="M",
        help="stop a run after M minutes (%(default)s)")  # fmt: skip
    add("--again", action="append", default=[], choices=("steps", "death"),
        help="run this stage anew although it is over; repeatable")  # fmt: skip
    add("--despite-doctor", action="store_true", help="run although the doctor has a failing line")
    add("--lab-name", default="", metavar="NAME", help="name of your lab (reader-GPU)")
    add("--bundle", default="", metavar="FILE", help="the bundle (LAB/PREFIX-LABNAME.zip)")
    add("--word", action="append", default=[], help="mask this name too; repeatable")
    add("--json", action="store_true", help="print acceptance.json at the end")


def run(args: argparse.Namespace) -> int:
    try:
        plan = plan_of(args)
        if args.dry_run:
            return dry_run(plan)
    except SpecError as error:
        print(f"acceptance: {error}", file=sys.stderr)
        return 2
    try:
        with (
            runqueue.locked(plan.steps.lab),
            runlive.Signals() as signals,
            contextlib.redirect_stdout(sys.stderr),  # commands of runs must not mix with the JSON
        ):
            about, code = work(plan, lambda: signals.reason)
    except BlockingIOError:
        print(f"acceptance: another queue or protocol works in {plan.steps.lab}", file=sys.stderr)
        return 2
    except (OSError, store.StoreError, ValueError) as error:
        print(f"acceptance: no bundle: {cause(error)}", file=sys.stderr)
        return 2
    print(json.dumps(about, indent=1, ensure_ascii=False) if args.json else as_text(about))
    return code


def cause(error: Exception) -> str:
    """Why no bundle could be written, as one line."""
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return recordcheck.one_line(f"{where}{error.strerror or error}")
    return recordcheck.one_line("; ".join(map(str, error.args[:3])))


def plan_of(args: argparse.Namespace) -> Plan:
    """The protocol of the arguments. Raises SpecError."""
    count = runspec.whole(args.num_rollout, "--num-rollout", 2, 100_000)
    rollout = runspec.whole(args.kill_at, "--kill-at", 1, 100_000)
    if rollout >= count:
        raise SpecError(f"--kill-at {rollout}: there are rollouts 0 to {count - 1}")
    if args.lab_name and not store.NAME.fullmatch(args.lab_name):
        raise SpecError(f"--lab-name {args.lab_name!r}: letters, digits, '.', '_' and '-' only")
    for word in args.word:
        try:
            scrub.word_rule(word)
        except scrub.ScrubError as error:
            raise SpecError(f"--word: {error}") from None
    specs = []
    for kind in ("steps", "death"):
        args.name, args.note = f"{args.prefix}-{kind}", f"stage {kind} of the acceptance protocol"
        specs.append(runner.spec_of(args, os.environ))
    if not specs[0].checks:
        raise SpecError("--checks 0: the protocol needs the watchdog")
    out = runspec.folder(args.bundle, "--bundle") if args.bundle else None
    if out is not None and out.exists() and not bundle.is_bundle(out):
        raise SpecError(f"--bundle {out}: exists and is no bundle")
    again = [f"{args.prefix}-{kind}" for kind in args.again]
    return Plan(*specs, count, rollout, out, args.lab_name, args.word, again, args.despite_doctor)


def dry_run(plan: Plan) -> int:
    """Print every command in its order; 2 when a trap refuses the settings."""
    one = plan.steps
    print("# -- doctor: looks only")
    for words in ([one.engine, "version"], [one.engine, "info"], runspec.image_words(one),
                  [one.engine, "ps"], runspec.gpu_words(), runspec.apps_words()):  # fmt: skip
        print(shlex.join(words))
    print(f"\n# -- {stages.STEPS}: {plan.count} guarded steps")
    code = runner.dry_run(one)
    print(f"\n# -- {stages.DEATH}: the engine is killed once rollout {plan.rollout} began")
    code = max(code, runner.dry_run(plan.death))
    print(f"# once rollout {plan.rollout} began; the watchdog must stop the run")
    print(shlex.join(enginekill.words(plan.death.engine, plan.death.container)))
    name = plan.lab_name or "reader-GPU"
    longest = sum(spec.limit_s for spec in plan.specs) / 60
    print(f"\n# -- at most {longest:g} minutes for both runs; nothing else is stopped or killed")
    print(f"\n# -- bundle\n# {plan.out or one.lab / f'{prefix(plan)}-{name}.zip'}")
    return code


def prefix(plan: Plan) -> str:
    return plan.steps.name[: -len("-steps")]


# -- the stages ------------------------------------------------------------------------------------


def work(plan: Plan, asked, timing: runlive.Timing | None = None) -> tuple[dict, int]:
    """Run what is left, make the bundle: (acceptance.json, exit code). Raises OSError."""
    began = time.time()
    say(f"stage 1 of 4, {stages.DOCTOR}: looking at this host")
    lines, host = examine(plan)
    tell(host)
    gpu = asked_gpu()
    asker, trouble, lost = runfacts.Asker(), "", False
    if host.verdict != PASSED and not plan.despite:
        trouble = f"the doctor did not pass ({host.reason}); --despite-doctor runs anyway"
    results = []
    for number, name in ((2, stages.STEPS), (3, stages.DEATH)):
        spec = plan.steps if name == stages.STEPS else plan.death
        say(f"stage {number} of 4, {name}: run {spec.name}")
        why = trouble or (f"{asked()} before it began" if asked() else "")
        if name == stages.STEPS:
            why, blind = one_run(plan, spec, asker, asked, timing, why)
        else:
            why, blind = one_death(plan, asker, asked, timing, why)
        lost |= blind
        if blind:
            trouble = f"sight of {spec.name} was lost"
        result = judged(plan, name, why)
        tell(result)
        results.append(result)
    say(f"stage 4 of 4, {stages.HEAT}: reading the heat guard's logs")
    heat = stages.of_heat(plan.specs, plan.steps.heat_guard)
    tell(heat)
    found = [host, *results, heat]
    about = about_of(plan, found, gpu, began, asked())
    place = plan.out or plan.steps.lab / f"{prefix(plan)}-{about['lab']}.zip"
    say(f"bundle: compressing into {place}")
    doctors = (doctor.as_json(lines), doctor.as_text(lines))
    digest, about = bundle.make(place, plan.specs, about, doctors, plan.words)
    for name, why in about["unstored"].items():
        say(f"{name} is in the bundle, but not as a stored run: {why}")
    say(f"bundle {place}, {place.stat().st_size / 1e6:.1f} MB, sha256 {digest}")
    return {**about, "bundle": str(place), "sha256": digest}, code_of(found, lost)


def one_run(plan: Plan, spec: Spec, asker, asked, timing, why: str) -> tuple[str, bool]:
    """Run one stage unless it is over: (why it was not started, was sight lost)."""
    again = spec.name in plan.again
    try:
        before = runqueue.past(spec)
        if before not in ("", "interrupted") and not again:
            say(f"{spec.name}: {before} earlier, not run again")
            return "", False
        if why:
            return why, False
        outcome = runqueue.one(spec, again, asker, asked, timing)
    except (runner.NotStarted, tomlio.TomlError, OSError) as error:
        return str(error), False
    return "", not isinstance(outcome, str) and runner.exit_code(outcome) == 2


def one_death(plan: Plan, asker, asked, timing, why: str) -> tuple[str, bool]:
    """The same for the run whose engine is killed."""
    spec = plan.death
    words = enginekill.words(spec.engine, spec.container)
    record = spec.file(enginekill.RECORD)
    killer = enginekill.Killer(spec.file("log"), record, words, plan.rollout, asked)
    with contextlib.closing(killer):
        why, blind = one_run(plan, spec, asker, killer, timing, why)
    return why or killer.trouble, blind


def judged(plan: Plan, name: str, why: str) -> Stage:
    """The verdict on a stage from what its run left."""
    if name == stages.STEPS:
        return stages.of_steps(plan.steps, plan.count, why)
    return stages.of_death(plan.death, why)


def examine(plan: Plan) -> tuple[list[doctor_checks.Line], Stage]:
    """What `doctor` sees, and the verdict on it."""
    one, began = plan.steps, time.monotonic()
    lines = doctor_checks.lines(look(Place(one.lab, one.cache, one.image, one.engine)), one.image)
    return lines, stages.of_doctor(lines, time.monotonic() - began)


def asked_gpu() -> runfacts.Gpu | None:
    """The first GPU as nvidia-smi names it."""
    ran = command.run_program(runspec.gpu_words(), runfacts.ASK_S)
    return runfacts.parse_gpu(ran.out, runfacts.host_memory_mib()) if ran.status == 0 else None


def about_of(plan: Plan, found: list[Stage], gpu, began: float, stopped: str) -> dict:
    """acceptance.json, without what the bundle adds."""
    setup = {}
    for spec in plan.specs:
        setup = setup or (stages.record(spec) or {}).get("setup", {})
    machine = {name: setup[name] for name in
               ("gpu", "driver", "gpu_memory_mib", "memory_unified") if name in setup}  # fmt: skip
    if not machine and gpu is not None:
        machine = {"gpu": gpu.name, "driver": gpu.driver, "memory_unified": gpu.unified}
        machine |= {} if gpu.memory_mib is None else {"gpu_memory_mib": gpu.memory_mib}
    machine["architecture"] = runfacts.machine()
    image = {name: str(setup[name]) for name in
             ("image", "miles_commit", "miles_date", "engine") if name in setup}  # fmt: skip
    stamps = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) for at in (began, time.time())]
    about = {
        "kind": bundle.KIND,
        "schema": bundle.SCHEMA,
        "lab": plan.lab_name or bundle.lab_name(machine.get("gpu", "")),
        "started": stamps[0],
        "ended": stamps[1],
        "machine": machine,
        "software": image,
        "guards": {
            "limit": plan.steps.limit,
            "checks": plan.steps.checks,
            "heat_guard": plan.steps.heat_guard,
        },
        "stages": [stage.row() for stage in found],
    }
    return {**about, "stopped_by": stopped} if stopped else about


def code_of(found: list[Stage], lost: bool) -> int:
    """The exit code of --help for the stages."""
    if lost:
        return 2
    if all(stage.verdict == NOT_RUN for stage in found):
        return 3
    bad = [s for s in found if s.verdict == FAILED]
    bad += [s for s in found if s.verdict == NOT_RUN and s.name != stages.HEAT]
    return int(bool(bad))


def tell(stage: Stage) -> None:
    """One line on a stage that is judged."""
    took = "" if stage.seconds is None else f" ({stage.seconds:.0f} s)"
    say(f"{stage.name}: {stage.verdict}{took}: {stage.reason}")


def as_text(about: dict) -> str:
    """The table of the stages for people, and what to do with the bundle."""
    width = max(len(row["name"]) for row in about["stages"])
    out = [f"{r['name']:{width}}  {r['verdict']:8}  {r['reason']}" for r in about["stages"]]
    out += [f"bundle  {about['bundle']}", f"sha256  {about['sha256']}"]
    kinds = {stages.STEPS: "steps", stages.DEATH: "death"}
    bad = [row for row in about["stages"] if row["name"] in kinds and row["verdict"] == FAILED]
    for row in bad:
        out.append(f"to run {row['name']} anew: the same command with --again {kinds[row['name']]}")
    out.append("look into it before you send it; a name it still holds: --word NAME")
    return "\n".join(out)
