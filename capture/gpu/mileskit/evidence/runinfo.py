"""What a log says about its own run, and the run.toml made from it (pure functions).

A log of the kit begins with lines `# run NAME`, `# date ISO`, `# command: ...`,
`# miles commit ...; sglang ...; torch ..., ...`, `# gpu NAME, DRIVER, TOTAL MiB, USED MiB` and,
when the GPU was shared, `# other runs share this GPU at the same time: A, B (...)`.
A log of the OLMo-core trainer has `# packages: NAME VERSION, ...` and `# settings: {JSON}` instead
of the third line and of options in its command.
`header` reads them, `settings` parses a training command, `changed` compares two, `stated` is all
that follows from a log, `merge` adds a draft to it, and `contradictions` holds a finished record
against it.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import re
import shlex
from collections.abc import Iterable

SCHEMA = 1
SEED = 1234  # Miles' default of --seed
ROLLOUT_SEED = 42  # Miles' default of --rollout-seed

RUN_FIELDS = ("lab", "name", "started", "command", "seed", "rollout_seed", "num_rollout",
              "changed", "note")  # fmt: skip
SETUP_FIELDS = (
    "model", "data", "reward", "miles_commit", "miles_date", "engine", "versions", "container",
    "image", "launcher", "gpu", "gpus", "gpu_memory_mib", "driver", "shared", "shared_with",
    "clock_record", "attention_engine", "attention_trainer", "sampling", "not_stock",
)  # fmt: skip
ENDED_FIELDS = ("how", "status", "steps", "partial", "verdict")
TABLES = ("run", "ended", "setup")  # of a draft
LISTS = ("unusable", "masked")  # arrays of tables of a draft
# Fields that only make sense beside another one: (field, value when the other one says so).
IMPLIED = {"image": ("container", False, ""), "shared_with": ("shared", False, [])}

_INT = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.?[0-9]+)(?:[eE][+-]?[0-9]+)?")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_NEGATIVE = re.compile(r"-[0-9.]")


class RunInfoError(ValueError):
    """A header, command or draft that cannot be used; one line of text."""


def parse_time(text: str) -> dt.datetime:
    """An ISO time with `Z` as an aware datetime. Raises RunInfoError."""
    found = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?Z", text)
    try:
        moment = dt.datetime.strptime(found[1], "%Y-%m-%dT%H:%M:%S") if found else None
    except ValueError:
        moment = None
    if moment is None:
        raise RunInfoError(f"not a UTC time like 2026-11-29T13:27:19Z: {text!r}")
    return moment.replace(tzinfo=dt.timezone.utc)


def header(lines: Iterable[str]) -> dict:
    """What the `# ` lines at the top of a log say: {"run": {...}, "setup": {...}}.

    A log that has its settings there gives "settings" too. Reads up to the first line that does not
    begin with `# `. Raises RunInfoError for a date that is no date and settings that are none.
    """
    run, setup, own = {}, {}, None
    own_settings: dict = {}
    for line in lines:
        if not line.startswith("# "):
            break
        text = line[2:].strip()
        word, _, rest = text.partition(" ")
        if word == "run":
            own = rest.strip()
        elif word == "date":
            run["started"] = parse_time(rest.strip())
        elif word == "command:":
            run["command"] = rest.strip()
        elif word == "miles":
            setup.update(_software(text))
        elif word == "gpu":
            setup.update(_gpu(rest))
        elif word == "packages:":
            pairs = (item.strip().partition(" ") for item in rest.split(","))
            setup["versions"] = {name: version for name, _, version in pairs}
        elif word == "settings:":
            own_settings.update(_flat(rest))
        elif text.startswith("other runs share this GPU"):
            names = re.sub(r"\([^)]*\)", "", text.partition(":")[2])
            setup["shared"] = True
            setup["shared_with"] = [n.strip() for n in names.split(",") if n.strip() != own]
    found = {"run": run, "setup": setup}
    return {**found, "settings": own_settings} if own_settings else found


def _flat(text: str) -> dict:
    """Settings of a run file in JSON as `section.key`; what is unset is left out."""
    try:
        tables = json.loads(text)
        flat = {k: v for k, v in tables.items() if not isinstance(v, dict)}
        for name, table in tables.items():
            if isinstance(table, dict):
                flat.update({f"{name}.{key}": value for key, value in table.items()})
    except (ValueError, AttributeError):
        raise RunInfoError(f"settings that are no JSON table: {text[:80]!r}") from None
    return {key: value for key, value in flat.items() if value is not None}


def _software(text: str) -> dict:
    """`miles commit C (snapshot D); sglang V (NOTE); torch V, NAME V, ...`"""
    parts = [part.strip() for part in text.split(";")]
    found = {}
    day = r"(?: \((?:snapshot )?(\d{4})-(\d\d)-(\d\d)\))?"
    commit = re.match(rf"miles commit ([0-9a-f]+){day}", parts[0])
    if commit:
        found["miles_commit"] = commit[1]
        if commit[2]:
            found["miles_date"] = dt.date(int(commit[2]), int(commit[3]), int(commit[4]))
    versions = {}
    for part in parts[1:]:
        engine = re.fullmatch(r"sglang (\S+) \((.+)\)", part)
        if engine:
            versions["sglang"] = engine[1]
            found["engine"] = f"SGLang {engine[1]} ({engine[2]})"
            continue
        for item in part.split(","):
            name, _, version = item.strip().partition(" ")
            if re.fullmatch(r"\d\S*", version):
                versions[name] = version
    if versions:
        found["versions"] = versions
    return found


def _gpu(text: str) -> dict:
    """`NAME, DRIVER, TOTAL MiB, USED MiB`, as nvidia-smi prints them."""
    found = re.fullmatch(r"(.+), ([0-9.]+), ([0-9]+) MiB, ([0-9]+) MiB", text.strip())
    if not found:
        return {}
    return {
        "gpu": found[1],
        "driver": found[2],
        "gpu_memory_mib": int(found[3]),
        "gpu_used_mib_at_start": int(found[4]),
    }


@functools.lru_cache(maxsize=64)
def _words(command: str) -> tuple[str, ...]:
    """The words of a command, split once."""
    return tuple(shlex.split(command))


def settings(command: str) -> tuple[dict, dict]:
    """The options and the environment assignments of a training command.

    Option names come without their leading hyphens. A value is an int, a float or text, a
    list when an option has several, True when it has none; the last of a repeated option
    counts. Options before the last `*.py` word belong to docker, ray or python and are left
    out. Raises RunInfoError when the command cannot be split into words.
    """
    try:
        words = _words(command)
    except ValueError as error:
        raise RunInfoError(f"the command cannot be split into words: {error}") from None
    scripts = [i for i, word in enumerate(words) if word.endswith(".py")]
    head, rest = (words[: scripts[-1]], words[scripts[-1] + 1 :]) if scripts else ([], words)
    environment = {}
    for word in head:
        if not _ASSIGNMENT.fullmatch(word):
            break
        name, _, value = word.partition("=")
        environment[name] = _typed(value)
    options: dict = {}
    name, values = None, []
    for word in [*rest, "--"]:
        if word.startswith("-") and not _NEGATIVE.match(word):
            if name is not None:
                options.pop(name, None)
                options[name] = _joined(values)
            name, equals, value = word.lstrip("-").partition("=")
            values = [_typed(value)] if equals else []
        elif name is not None:
            values.append(_typed(word))
    return options, environment


def _joined(values: list):
    if not values:
        return True
    return values[0] if len(values) == 1 else values


def _typed(word: str):
    if _INT.fullmatch(word):
        return int(word)
    return float(word) if _FLOAT.fullmatch(word) else word


def changed(command: str, recipe: str) -> list[str]:
    """What a command adds to, sets otherwise than, or leaves out of a recipe's command."""
    ours, _ = settings(command)
    plain, _ = settings(recipe)
    lines = [_flag(name, ours[name]) for name in ours if ours[name] != plain.get(name)]
    return sorted(lines) + sorted(f"no --{name}" for name in plain if name not in ours)


def _flag(name: str, value) -> str:
    if value is True:
        return f"--{name}"
    values = value if isinstance(value, list) else [value]
    return " ".join([f"--{name}", *map(str, values)])


def merge(said: dict, draft: dict, overrides: Iterable[str]) -> dict:
    """The log's facts with the draft's added.

    Raises RunInfoError when the draft contradicts the log in a field that `overrides` (as
    `table.field`) does not name, or when an override overrides nothing.
    """
    overrides = list(overrides)
    result = {table: dict(fields) for table, fields in said.items()}
    for table, fields in draft.items():
        if table in LISTS and isinstance(fields, list):
            result[table] = fields
            continue
        if table not in TABLES or not isinstance(fields, dict):
            raise RunInfoError(f"a draft has no {table!r} of this form")
        target = result.setdefault(table, {})
        for name, value in fields.items():
            known = target.get(name)
            if known is not None and known != value and f"{table}.{name}" not in overrides:
                raise RunInfoError(f"{table}.{name}: the log says {known!r}, the draft {value!r}")
            target[name] = value
    for name in overrides:
        table, _, field = name.partition(".")
        if field not in said.get(table, {}):
            raise RunInfoError(f"override {name}: the log does not say it")
    return result


def stated(said: dict, command: str, recipe: str) -> dict:
    """Everything that a log says of its run: its header, and what follows from its command.

    said: result of `header`. command: the training command, '' when nobody knows it. recipe: the
    command of the lab's plain recipe or ''. Tables run, setup, settings, environment.
    """
    result = {table: dict(fields) for table, fields in said.items()}
    if not command:
        return result
    options, environment = settings(command)
    stated_by_itself = said.get("settings")
    facts = of_core(stated_by_itself) if stated_by_itself else from_settings(options)
    for table, fields in facts.items():
        for name, value in fields.items():
            result[table].setdefault(name, value)
    if recipe:
        result["run"]["changed"] = changed(command, recipe)
    return {**result, "settings": stated_by_itself or options, "environment": environment}


def of_core(options: dict) -> dict:
    """The fields of [run] and [setup] that follow from the OLMo-core trainer's own settings."""
    run = {"seed": options["seed"], "rollout_seed": options["seed"]}
    return {"run": {**run, "num_rollout": options["rollout.num_rollout"]}, "setup": {}}


def contradictions(document: dict, expected: dict) -> list[tuple[str, str]]:
    """(`table.field`, text) for each field of a record that is not what its log states.

    document: a whole run.toml. expected: result of `stated`. A field that [run] overrides names
    may differ, and must; the settings and the environment may never differ.
    """
    found = []
    overrides = document.get("run", {}).get("overrides", [])
    for table, fields in expected.items():
        own = document.get(table, {})
        names = [*fields, *(n for n in own if n not in fields)]
        whole = table in ("settings", "environment")
        for name in names if whole else fields:
            place, value = f"{table}.{name}", own.get(name)
            same = name in own and name in fields and _same(value, fields[name])
            if not same and (whole or place not in overrides):
                says = repr(fields[name]) if name in fields else "nothing"
                found.append((place, f"the log says {says}, the record {value!r}"))
    for place in overrides:
        table, _, name = place.partition(".")
        if name not in expected.get(table, {}):
            found.append(("run.overrides", f"{place}: the log does not say it"))
        elif expected[table][name] == document.get(table, {}).get(name):
            found.append(("run.overrides", f"{place}: is what the log says"))
    return found


def _same(one, other) -> bool:
    return type(one) is type(other) and one == other


def from_settings(options: dict) -> dict:
    """The fields of [run] and [setup] that follow from the options."""
    run = {
        "seed": options.get("seed", SEED),
        "rollout_seed": options.get("rollout-seed", ROLLOUT_SEED),
    }
    if "num-rollout" in options:
        run["num_rollout"] = options["num-rollout"]
    names = {
        "attention_engine": "sglang-attention-backend",
        "attention_trainer": "attn-implementation",
        "sampling": "sglang-sampling-backend",
    }
    setup = {field: options[name] for field, name in names.items() if name in options}
    return {"run": run, "setup": setup}


def ended(summary_run: dict, draft: dict, num_rollout: int) -> dict:
    """The [ended] table from a run of the summary and the draft's table with the verdict word.

    The draft's `how` and `status` count where the log has no end of its own (cut, running) or
    shows only that the run was killed, since the log cannot know by whom;
    a status that neither knows is left out. Partial: fewer rollouts than asked for, or no step.
    """
    end = summary_run["ended"]
    if end["how"] in ("cut", "running", "killed"):
        end = {"how": draft.get("how", end["how"]), "status": draft.get("status", end["status"])}
    steps = len(summary_run["steps"]["index"])
    table = {"how": end["how"], "status": end["status"], "steps": steps}
    if table["status"] is None:
        del table["status"]
    table["partial"] = len(summary_run["rollouts"]["index"]) < num_rollout or steps == 0
    table["verdict"] = draft["verdict"]
    return table


def ordered(document: dict) -> dict:
    """The document in the order of the schema, unknown fields after the known ones."""
    result = {"schema": SCHEMA}
    orders = {"run": RUN_FIELDS, "ended": ENDED_FIELDS, "setup": SETUP_FIELDS}
    for table in ("run", "ended", "setup", "environment", "settings", "unusable", "masked"):
        value = document.get(table)
        if isinstance(value, dict):
            known = [name for name in orders.get(table, ()) if name in value]
            value = {n: value[n] for n in (*known, *(n for n in value if n not in known))}
        if value:
            result[table] = value
    return result


def missing(document: dict) -> list[str]:
    """The fields of the fingerprint that the document lacks, as `table.field`."""
    setup = document.get("setup", {})
    for field, (other, when, value) in IMPLIED.items():
        if field not in setup and setup.get(other) is when:
            setup[field] = value
    lacking = [
        f"{table}.{name}"
        for table, names in (("run", RUN_FIELDS), ("setup", SETUP_FIELDS))
        for name in names
        if name not in document.get(table, {})
    ]
    if setup.get("container") and not setup.get("image"):
        lacking.append("setup.image")
    if not document.get("ended", {}).get("verdict"):
        lacking.append("ended.verdict")
    return lacking
