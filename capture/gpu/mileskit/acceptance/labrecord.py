"""lab.toml of a lab that came as a bundle, made from the records of its runs (pure functions)."""

from __future__ import annotations

import datetime as dt

TIER = "measured"
MACHINE = ("gpu", "gpus", "gpu_memory_mib", "driver", "container")
SOFTWARE = ("miles_commit", "miles_date", "engine")
HOW = (
    "the protocol of `kit acceptance`, run by a reader; the container's output is the log, the "
    "lines that begin with '# ' are the launcher's, and the line with the word killer is the "
    "protocol's own"
)


class LabError(ValueError):
    """Runs that cannot be one lab; one line of text."""


def recipe(runs: dict[str, dict]) -> dict:
    """[recipe]: the first run that finished, else the first run."""
    whole = [name for name, run in runs.items() if run.get("ended", {}).get("how") == "finished"]
    name = (whole or list(runs))[0]
    return {"run": name, "command": runs[name].get("run", {}).get("command", "")}


def document(lab: str, title: str, runs: dict[str, dict], stated: dict[str, dict]) -> dict:
    """The whole lab.toml.

    runs: name -> run.toml. stated: name -> the fields of [setup] that the run's log says itself.
    [setup] holds the fields of the first run that no log says; where another run differs,
    [[other_setup]] says so. Raises LabError for runs of different machines or software.
    """
    names = list(runs)
    first = runs[names[0]]["setup"]
    for name in names[1:]:
        for field in (*MACHINE, *SOFTWARE):
            if runs[name]["setup"].get(field) != first.get(field):
                raise LabError(f"runs {names[0]} and {name} differ in {field}: two labs")
    versions: dict[str, str] = {}
    for run in runs.values():
        for package, version in run["setup"].get("versions", {}).items():
            versions.setdefault(package, str(version).partition("+")[0])
    setup = {k: v for k, v in first.items() if k not in stated[names[0]]}
    others = []
    for name in names[1:]:
        own = {k: v for k, v in runs[name]["setup"].items() if k not in stated[name]}
        lacking = sorted(setup.keys() - own.keys() - stated[name].keys())
        if lacking:
            raise LabError(f"run {name} lacks setup.{lacking[0]}, which {names[0]} has")
        changed = {k: v for k, v in own.items() if setup.get(k) != v}
        if changed:
            reason = "a run of its own: " + ", ".join(sorted(changed))
            others.append({"runs": [name], "reason": reason, "set": changed})
    made = {
        "schema": 1,
        "lab": {
            "name": lab,
            "title": title,
            "recorded": recorded(runs),
            "tier": TIER,
            "how": HOW,
        },
        "machine": {name: first[name] for name in MACHINE if name in first},
        "software": {name: first[name] for name in SOFTWARE if name in first}
        | ({"versions": versions} if versions else {}),
        "recipe": recipe(runs),
        "setup": setup,
    }
    return {**made, "other_setup": others} if others else made


def recorded(runs: dict[str, dict]) -> dt.date:
    """The day on which the first run began. Raises LabError."""
    days = [run["run"].get("started") for run in runs.values()]
    days = [day.date() for day in days if isinstance(day, dt.datetime)]
    if not days:
        raise LabError("no run says when it started")
    return min(days)
