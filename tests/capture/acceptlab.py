"""A lab in which the protocol of `acceptance` can run, with logs of stored runs as its output."""

import argparse
import datetime as dt
import lzma
import os
import shlex
import sys
from pathlib import Path

import miles_grpo
from mileskit.acceptance import acceptance, bundle, enginekill, stages
from mileskit.host import rundraft, runfacts, runspec

from tests.fakes.lab import ROOT
from tests.fakes.runlab import QUICK, RunLab

STORED = ROOT / "capture" / "gpu" / "out-h200-miles"
STEPS, DEATH = "acceptance-steps", "acceptance-death"
DIED = b"# 2026-11-29T12:59:45.150706Z killer"

# In the watchdog's place: waits for the kill, then stops the container as the real one does.
WATCHDOG = """\
import pathlib, subprocess, sys, time
record, name, word = sys.argv[1:]
while not pathlib.Path(record).exists():
    time.sleep(0.02)
time.sleep(0.4)
now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
subprocess.run(["docker", "stop", f"id-of-{name}"])
print(f"{now} {name}: {word}: its scheduler crashed: stopped the run", flush=True)
sys.exit(1)
"""
IDLE = "import time\nwhile True: time.sleep(1)"


def stored_log(run: str, name: str, date: str) -> list[bytes]:
    """The lines of a stored log under the header of the launcher for the run `name`."""
    body = lzma.decompress((STORED / run / "run.log.xz").read_bytes()).split(b"\n")
    body = [line for line in body if not line.startswith(b"# ") or line.startswith(DIED)]
    command = shlex.join(miles_grpo.default_command({"MILES_RUN": name}))
    head = f"""# run {name}
# date {date}
# command: {command}
# miles commit 31f1ca961 (2026-08-21); torch 2.11.0, transformers 5.12.1, ray 2.56.0
# gpu NVIDIA H200, 580.159.04, 143771 MiB, 4 MiB
"""
    return [*head.encode().rstrip(b"\n").split(b"\n"), *body]


def fill(lab: RunLab) -> None:
    """What the container prints in each stage, and a host that the doctor finds fit."""
    lab.set("doctor")
    steps = stored_log("plain3", STEPS, "2026-11-29T13:27:19Z")
    lab.set(f"output-miles-{STEPS}", b"\n".join(steps))
    death = stored_log("kill_noft", DEATH, "2026-11-29T12:55:47Z")
    at = next(number for number, line in enumerate(death) if line.startswith(DIED))
    lab.set(f"output-miles-{DEATH}", b"\n".join(death[:at]) + b"\n")
    lab.set("after-kill", b"\n".join(death[at : at + 600]) + b"\n")
    lab.set(f"hang-miles-{DEATH}")
    lab.set("exec", '{"at": 1795957185.2, "pids": [5107]}\n')


def watchdogs(monkeypatch, word: str = "engine-dead") -> None:
    """Stand-ins for the watchdogs: one that idles, and one that stops the run after its kill."""

    def words(spec: runspec.Spec) -> list[str]:
        if not spec.name.endswith("-death"):
            return [sys.executable, "-c", "pass"]
        record = str(spec.file(enginekill.RECORD))
        return [sys.executable, "-c", WATCHDOG, record, spec.container, word]

    monkeypatch.setattr(runspec, "watchdog_words", words)


def plan(lab: RunLab, *more: str, heat: bool = False) -> acceptance.Plan:
    """The plan of the protocol with these options."""
    parser = argparse.ArgumentParser()
    acceptance.add_arguments(parser)
    cache = lab.folder / "cache"
    words = ["--lab", str(lab.lab), "--cache", str(cache), *more]
    words += [] if heat else ["--no-heat-guard"]
    return acceptance.plan_of(parser.parse_args(words))


def protocol(lab: RunLab, *more: str, asked=lambda: "", heat: bool = False) -> tuple[dict, int]:
    """Run the protocol in this process: (acceptance.json, exit code)."""
    os.environ["PATH"] = lab.env["PATH"]
    lab.lab.mkdir(exist_ok=True)
    return acceptance.work(plan(lab, *more, heat=heat), asked, QUICK)


def verdicts(about: dict) -> dict[str, str]:
    """Stage -> verdict."""
    return {row["name"]: row["verdict"] for row in about["stages"]}


def reason(about: dict, stage: str) -> str:
    return next(row["reason"] for row in about["stages"] if row["name"] == stage)


def bundle_of(about: dict) -> Path:
    return Path(about["bundle"])


# -- a bundle without a protocol -------------------------------------------------------------------


def facts() -> runfacts.Facts:
    """What the kit would have found out about the image and the GPU."""
    digest = "radixark/miles@sha256:" + "c6" * 32
    image = runfacts.Image(digest, digest, "amd64", "sha256:1mage")
    gpu = runfacts.Gpu("NVIDIA H200", "580.159.04", 143771, False, 4)
    day = dt.date(2026, 8, 21)
    return runfacts.Facts(image, "31f1ca961", day, "a subject", "0.5.16", gpu, (), "0" * 64)


def leave_runs(lab: Path) -> list[runspec.Spec]:
    """Write what the two runs of a protocol leave in LAB/runs; their specs."""
    (lab / "runs").mkdir(parents=True)
    ends = {
        STEPS: {"how": "finished", "status": 0, "steps": 12, "verdict": "finished"},
        DEATH: {
            **{"how": "killed", "status": 143, "steps": 3, "verdict": "engine-dead"},
            "by": "watchdog",
        },
    }
    specs = []
    for name, stored, date, lines in (
        (STEPS, "plain3", "2026-11-29T13:27:19Z", None),
        (DEATH, "kill_noft", "2026-11-29T12:55:47Z", 1800),
    ):
        env = runspec.container_env(name, [], {})
        spec = runspec.Spec(name, env, lab, lab / "cache", heat_guard=False)
        log = stored_log(stored, name, date)[:lines]
        spec.file("log").write_bytes(b"\n".join(log).rstrip(b"\n") + b"\n")
        document = rundraft.draft(spec, facts(), date)
        rundraft.write(spec.file("run.toml"), rundraft.ended(document, ends[name]))
        specs.append(spec)
    said = (
        f"2026-11-29T13:04:46Z miles-{DEATH}: engine-dead: its scheduler crashed: stopped the run"
    )
    specs[1].file("watchdog.log").write_text(said + "\n")
    enginekill.write(specs[1].file(enginekill.RECORD), enginekill.Kill(1795957185.2, 3, (5107,)))
    return specs


def make_bundle(folder: Path, path: Path) -> dict:
    """Make the bundle of a protocol whose stages passed, without running it."""
    specs = leave_runs(folder)
    fit = stages.Stage(stages.DOCTOR, stages.PASSED, "no line is failing", 0.1)
    rows = [fit, stages.of_steps(specs[0], 12, ""), stages.of_death(specs[1], "")]
    rows.append(stages.of_heat(specs, False))
    about = {
        "kind": bundle.KIND,
        "schema": bundle.SCHEMA,
        "lab": "reader-h200",
        "started": "2026-11-29T12:55:00Z",
        "ended": "2026-11-29T13:40:00Z",
        "machine": {"gpu": "NVIDIA H200"},
        "software": {},
        "stages": [row.row() for row in rows],
    }
    return bundle.make(path, specs, about, ('{"lines": []}', "14 ok"), [])[1]
