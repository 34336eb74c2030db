"""What differs between two runs: flags and setup, sorted by what a difference can change.

Kinds of a difference:

- ``seed``: the two runs are repeats with another seed;
- ``length``: how many rollouts were asked for;
- ``idle``: changes no sample and no update (ports, trackers, checkpoints written, a reference
  model whose KL coefficient is 0, the cap of the KV pool);
- ``cost``: meant to change time or memory and not the samples (offload, memory fraction, bucket
  and batch packing);
- ``coupled``: follows from another difference (the global batch that keeps one update a rollout);
- ``setting``: any other flag;
- ``setup``: model, data, reward, code, engine, GPU;
- ``sharing``: the GPU was alone in one run and shared in the other.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from mileskit.evidence import runinfo
from mileskit.judge.runload import Loaded

SEEDS = ("seed", "rollout-seed")
NOT_SET = "(not set)"
_LENGTH = re.compile(r"num-rollout|num-epoch")
_IDLE = re.compile(
    r".*port|.*-ports|use-wandb|wandb-.*|use-tensorboard|tb-.*|use-mlflow|mlflow-.*"
    r"|save|save-interval|save-hf|save-debug-.*|dump-details|load|ref-ckpt-step"
    r"|eval-.*|n-samples-per-eval-prompt|skip-eval-before-train|log-passrate|log-multi-turn|log-reward-category"
    r"|sglang-max-total-tokens|sglang-log-level|sglang-enable-metrics|use-prometheus|prometheus-.*"
)
_REFERENCE = ("use-kl-loss", "ref-load", "kl-loss-type", "kl-loss-coef")
_COST = re.compile(
    r"offload.*|no-offload.*|sglang-mem-fraction-static|update-weight-buffer-size"
    r"|max-tokens-per-gpu|log-probs-max-tokens-per-gpu|micro-batch-size|use-dynamic-batch-size"
    r"|gradient-checkpointing|fsdp-.*|sglang-cuda-graph-.*|sglang-disable-cuda-graph"
    r"|sglang-max-running-requests|sglang-chunked-prefill-size|sglang-server-concurrency"
    r"|sglang-disable-radix-cache|update-weight-transfer-mode|balance-data"
)
_SETUP = (
    "model", "data", "reward", "miles_commit", "engine", "container", "image", "launcher", "gpu",
    "gpus", "driver",
)  # fmt: skip
_TIME_ONLY = ("gpu", "gpus", "driver", "container", "image", "launcher")
# A field of the setup that a flag says too: the flag counts, unless nobody knows the flags.
_FLAGS_OF = {
    "model": "hf-checkpoint",
    "data": "prompt-data",
    "reward": "custom-rm-path",
}
METRIC_KINDS = frozenset({"setting", "coupled", "setup"})
TIME_KINDS = METRIC_KINDS | {"cost", "sharing"}


class Facts(NamedTuple):
    """What is known of a run's setup: flags (None when no command is known) and setup fields."""

    settings: dict | None
    setup: dict
    seed: int | str
    rollout_seed: int | str

    @property
    def seeds(self) -> str:
        """Both seeds as text, ``seed 7, rollout seed 42``; "seed unknown" without a command."""
        if self.seed == "unknown":
            return "seed unknown"
        return f"seed {self.seed}, rollout seed {self.rollout_seed}"


class Difference(NamedTuple):
    """One difference; a and b are texts, "(not set)" for an absent flag."""

    kind: str
    name: str
    a: str
    b: str

    def __str__(self) -> str:
        more = " (follows: as many updates a rollout as before)" if self.kind == "coupled" else ""
        return f"{self.name}: {self.a} / {self.b}{more}"


def facts(one: Loaded) -> Facts:
    """The setup of a run from its run.toml, else from the log's own first lines."""
    toml = one.toml or {}
    settings = toml.get("settings")
    setup = dict(toml.get("setup") or {})
    run = dict(toml.get("run") or {})
    if not toml:
        said = _header(one.run)
        setup, run = said.get("setup", {}), said.get("run", {})
    command = run.get("command") or (one.run.get("markers") or {}).get("command")
    if not settings and command:
        try:
            settings, _ = runinfo.settings(command)
        except runinfo.RunInfoError:
            settings = None
    if not settings:
        return Facts(None, setup, run.get("seed", "unknown"), run.get("rollout_seed", "unknown"))
    seed = settings.get("seed", run.get("seed", runinfo.SEED))
    rollout_seed = settings.get("rollout-seed", run.get("rollout_seed", runinfo.ROLLOUT_SEED))
    return Facts(dict(settings), setup, seed, rollout_seed)


def _header(run: dict) -> dict:
    lines = [f"# {note['text']}" for note in run.get("notes") or [] if note.get("text")]
    markers = run.get("markers") or {}
    if markers.get("command"):
        lines.insert(0, f"# command: {markers['command']}")
    if markers.get("run"):
        lines.insert(0, f"# run {markers['run']}")
    try:
        found = runinfo.header(lines)
    except runinfo.RunInfoError:
        return {}
    if found["setup"].get("gpu_used_mib_at_start") == 0:
        found["setup"].setdefault("shared", False)  # else nothing says that it was alone
    return found


def differences(a: Facts, b: Facts) -> list[Difference] | None:
    """Every difference, the weightiest kinds last; None when the flags of a run are unknown."""
    if a.settings is None or b.settings is None:
        return None
    found = [
        Difference("seed", name, str(x), str(y))
        for name, x, y in (
            ("seed", a.seed, b.seed),
            ("rollout-seed", a.rollout_seed, b.rollout_seed),
        )
        if x != y
    ]
    left, right = a.settings, b.settings
    idle_reference = _no_kl(left) and _no_kl(right)
    coupled = updates_per_rollout(left) is not None and updates_per_rollout(
        left
    ) == updates_per_rollout(right)
    for name in sorted({*left, *right}):
        if name in SEEDS or _same(left.get(name), right.get(name)):
            continue
        if name in _FLAGS_OF.values() and _known_equal(name, a, b):
            continue
        kind = _kind(name, idle_reference, coupled)
        found.append(Difference(kind, name, _show(left.get(name)), _show(right.get(name))))
    found += _setup_differences(a, b)
    order = ("seed", "length", "idle", "cost", "sharing", "coupled", "setting", "setup")
    return sorted(found, key=lambda d: (order.index(d.kind), d.name))


def _kind(name: str, idle_reference: bool, coupled: bool) -> str:
    if _LENGTH.fullmatch(name):
        return "length"
    if name in _REFERENCE and idle_reference:
        return "idle"
    if name == "global-batch-size" and coupled:
        return "coupled"
    if _IDLE.fullmatch(name):
        return "idle"
    return "cost" if _COST.fullmatch(name) else "setting"


def _setup_differences(a: Facts, b: Facts) -> list[Difference]:
    found = []
    for name in _SETUP:
        x, y = a.setup.get(name), b.setup.get(name)
        flag = _FLAGS_OF.get(name)
        if flag and not _same(a.settings.get(flag), b.settings.get(flag)):
            continue  # the flag is listed already, or the setups are equal
        if x in (None, "", 0) or y in (None, "", 0) or "not stated" in (x, y) or x == y:
            continue
        found.append(Difference("setup", name, _show(x), _show(y)))
    mine, other = a.setup.get("versions") or {}, b.setup.get("versions") or {}
    for name in sorted(set(mine) & set(other)):
        x, y = str(mine[name]).split("+")[0], str(other[name]).split("+")[0]
        if x != y:
            found.append(Difference("setup", f"{name} version", x, y))
    x, y = a.setup.get("shared"), b.setup.get("shared")
    if x is not None and y is not None and x != y:
        words = {True: "shared", False: "alone"}
        found.append(Difference("sharing", "GPU", words[x], words[y]))
    return found


def _known_equal(flag: str, a: Facts, b: Facts) -> bool:
    """Whether the setups say that what two different paths hold is the same."""
    field = next(field for field, name in _FLAGS_OF.items() if name == flag)
    x = a.setup.get(field)
    return x is not None and x == b.setup.get(field)


def _no_kl(settings: dict) -> bool:
    """No KL in the loss: the flag is off, or its coefficient is 0 (Miles' default of it)."""
    return not settings.get("use-kl-loss") or float(settings.get("kl-loss-coef", 0) or 0) == 0.0


def updates_per_rollout(settings: dict | None) -> float | None:
    """Optimizer updates in one rollout: prompts x answers / global batch; None when not said."""
    try:
        answers = settings["rollout-batch-size"] * settings["n-samples-per-prompt"]
        return answers / settings["global-batch-size"]
    except (KeyError, TypeError, ZeroDivisionError):
        return None


def _same(x, y) -> bool:
    return x == y and isinstance(x, bool) == isinstance(y, bool)


def _show(value) -> str:
    if value is None:
        return NOT_SET
    if value is True:
        return "on"
    if value is False:
        return "off"
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def metric_differences(found: list[Difference]) -> list[Difference]:
    """Those that can change a metric which is no time."""
    return [d for d in found if d.kind in METRIC_KINDS and d.name not in _TIME_ONLY]


def time_differences(found: list[Difference]) -> list[Difference]:
    """Those that can change a time."""
    return [d for d in found if d.kind in TIME_KINDS or d.name in _TIME_ONLY]


def own(found: list[Difference]) -> list[Difference]:
    """Without the coupled ones."""
    return [d for d in found if d.kind != "coupled"]
