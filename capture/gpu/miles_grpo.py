"""Start one GRPO run with Miles on one GPU: Qwen3-0.6B on GSM8K, FSDP trainer, colocated engine.

Run it where Miles is, for example inside the Miles container:

    python3 /root/lab/miles_grpo.py

It downloads model and data into the lab folder on first use, builds the Miles command from the
tables below, refuses what cannot work, starts Ray and submits the job. Settings come from
environment variables (--help lists them). Standard library only, one file, so that it can be
copied alone. Values and code positions named as a source are those of radixark/miles at commit
31f1ca961 (2026-08-21) unless a date says otherwise.

The log gets `# run`, `# date` and `# command:` lines at the start and one line
`# end TIME rc=N seconds=S` at the end, also after SIGTERM and SIGINT.

Exit codes: 0 the job succeeded (or the dry run found nothing that is refused); 2 nothing was
started (bad setting, secret, refused trap, missing file or download); 128+N ended by signal N;
any other value is the exit code of `ray job submit`.
"""

import argparse
import ast
import datetime
import difflib
import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

REFUSED, WARNED = "refused", "warned"
BAD = 2  # exit code: nothing was started
Settings = dict[str, Any]


class LauncherError(Exception):
    """One line for the user; nothing was started. Exit code 2."""


# --- settings -----------------------------------------------------------------------------------


def _match(pattern: str, wants: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(wants)
        return text

    return parse


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch("[0-9]{1,10}", text) or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return parse


def _switch(text: str) -> bool:
    if text.lower() not in ("1", "true", "0", "false", ""):
        raise ValueError("1 or 0")
    return text.lower() in ("1", "true")


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"words quoted as for a shell ({error})") from None


_NAME = _match(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", "letters, digits, '.', '_' and '-'")
_FOLDER = _match(r"/[^\s:]*", "an absolute path without spaces or colons")
_HUB = _match(
    r"/[^\s:]*|[\w-][\w.-]*/[\w-][\w.-]*", "OWNER/NAME on the Hugging Face Hub, or an absolute path"
)
_BACKEND = _match(r"[A-Za-z0-9_/.@-]+", "the name of an attention backend")


class Setting(NamedTuple):
    """One environment variable that the launcher reads."""

    name: str
    default: str
    meaning: str
    parse: Callable[[str], Any]


SETTINGS = (
    Setting("MILES_RUN", "plain", "name of the run; its files go to LAB/runs/NAME", _NAME),
    Setting("MILES_NUM_ROLLOUT", "12", "number of rollout steps", _whole(1, 10**9)),
    Setting("MILES_EXTRA_ARGS", "", "more Miles flags, after ours, so that they win", _words),
    Setting("MILES_TRUE_ON_POLICY", "0", "1 adds the true on-policy flags, after all", _switch),
    Setting("MILES_SGLANG_ATTENTION", "fa3", "engine attention, true on-policy only", _BACKEND),
    Setting(
        "MILES_FSDP_ATTENTION",
        "flash_attention_3",
        "trainer attention, true on-policy only",
        _BACKEND,
    ),
    Setting("MILES_SEED", "1234", "seed of trainer and engine", _whole(0, 2**31 - 1)),
    Setting("MILES_ROLLOUT_SEED", "42", "seed of the prompt order", _whole(0, 2**31 - 1)),
    Setting("MILES_MODEL", "Qwen/Qwen3-0.6B", "model: Hub name, or a local folder", _HUB),
    Setting("MILES_DATA", "zhuzilin/gsm8k", "data: Hub name, or a local folder or file", _HUB),
    Setting("MILES_LAB", "/root/lab", "lab folder, mounted from the host", _FOLDER),
    Setting("MILES_DIR", "/root/miles", "folder of Miles, with train.py", _FOLDER),
    Setting("MILES_MEGATRON_DIR", "/root/Megatron-LM", "folder of Megatron-LM", _FOLDER),
    Setting("MILES_SCRIPT_EXTERNAL_RAY", "0", "1 uses a Ray that already runs", _switch),
)
EMPTY_IS_FINE = {"MILES_EXTRA_ARGS", "MILES_TRUE_ON_POLICY", "MILES_SCRIPT_EXTERNAL_RAY"}

# A value that looks like one of these is refused, because the command is printed into the log.
_SECRETS = (
    ("a W&B key", r"--wandb-k\w*[=\s]+\S"),
    (
        "a flag for a key, token or password",
        r"(?i)--\S*(api-key|token|secret|password)[=\s]+[^\s-]",
    ),
    (
        "a key, token or password",
        r"(?i)(api_?key|token|secret|passw(or)?d)[\"']?\s*[=:]\s*[\"']?\w",
    ),
    ("a Hugging Face token", r"\bhf_[A-Za-z0-9]{16,}"),
    ("an API key", r"\b(sk|pk|rk)-[A-Za-z0-9_-]{16,}|\bAIza[\w-]{30,}|\bAKIA[A-Z0-9]{16}\b"),
    ("a GitHub or GitLab token", r"\b(gh[oprsu]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,})"),
    ("a W&B key", r"\bwandb_v\d_\w{16,}|(?<![\w/.-])[0-9a-f]{40}(?!\w)"),
    ("a signed token", r"\beyJ[\w-]{10,}\.[\w-]{10,}"),
    ("a private key", r"-----BEGIN"),
    ("a password in an address", r"://[^/\s:@]+:[^/\s@]+@"),
)


def secret_in(text: str) -> str:
    """Say what kind of secret `text` seems to hold, or return "". Never returns the secret."""
    return next((kind for kind, pattern in _SECRETS if re.search(pattern, text)), "")


def read_settings(env: Mapping[str, str]) -> Settings:
    """Parse SETTINGS out of `env`. LauncherError names the variable, and no secret value."""
    found: Settings = {}
    for setting in SETTINGS:
        text = env.get(setting.name, setting.default)
        if kind := secret_in(text):
            raise LauncherError(
                f"{setting.name}: holds {kind}, and the command is printed into the log; give it as"
                " an environment variable of its own (WANDB_API_KEY, HF_TOKEN) with --env-file"
            )
        try:
            if not text and setting.name not in EMPTY_IS_FINE:
                raise ValueError("a value; it is set but empty")
            found[setting.name] = setting.parse(text)
        except ValueError as error:
            raise LauncherError(f"{setting.name}={text!r}: wants {error}") from None
    return found


def local_model(s: Settings) -> str:
    """Folder of the model: MILES_MODEL itself when it is a path, else LAB/models/NAME."""
    name = s["MILES_MODEL"]
    return name if name[0] == "/" else f"{s['MILES_LAB']}/models/{name.split('/')[1]}"


def local_data(s: Settings) -> str:
    """Prompt file: a file given as MILES_DATA, else train.parquet of the data folder."""
    name = s["MILES_DATA"]
    if name[0] != "/":
        name = f"{s['MILES_LAB']}/datasets/{name.split('/')[1]}"
    return name if re.search(r"\.(jsonl|parquet)$", name) else f"{name}/train.parquet"


def run_folder(s: Settings) -> str:
    """Folder of this run's own files."""
    return f"{s['MILES_LAB']}/runs/{s['MILES_RUN']}"


# --- the recipe ---------------------------------------------------------------------------------


class Flag(NamedTuple):
    """One flag of the command. `value` None: a switch. `since`: first known Miles date, if later
    than the list of flags that this file was checked against (2026-08-21)."""

    name: str
    value: Any
    meaning: str
    since: str = ""


RECIPE = (
    Flag("--hf-checkpoint", local_model, "model that engine and trainer load"),
    Flag("--prompt-data", local_data, "prompts and answers"),
    Flag("--input-key", "messages", "column of the prompt"),
    Flag("--label-key", "label", "column of the right answer"),
    Flag("--apply-chat-template", None, "turn the messages into a prompt"),
    Flag("--rollout-shuffle", None, "shuffle the prompts once per epoch"),
    Flag("--rollout-seed", lambda s: s["MILES_ROLLOUT_SEED"], "seed of the prompt order"),
    Flag("--seed", lambda s: s["MILES_SEED"], "seed of trainer and engine"),
    Flag("--num-rollout", lambda s: s["MILES_NUM_ROLLOUT"], "rollout steps"),
    Flag("--rollout-batch-size", "32", "prompts per step"),
    Flag("--n-samples-per-prompt", "8", "answers per prompt: the group size"),
    Flag("--global-batch-size", "256", "answers per optimizer update; 32 x 8 gives one per step"),
    Flag("--rollout-max-response-len", "1024", "token limit of one answer"),
    Flag("--rollout-temperature", "1", "sampling temperature"),
    Flag("--rm-type", "math", "reward: 1 when the boxed answer equals the label, else 0"),
    Flag("--advantage-estimator", "grpo", "reward minus the group mean, over the deviation"),
    Flag("--kl-coef", "0.00", "no KL penalty, so no reference model is loaded"),
    Flag("--entropy-coef", "0.00", "no entropy bonus"),
    Flag("--eps-clip", "0.2", "lower clip distance of the probability ratio"),
    Flag("--eps-clip-high", "0.28", "upper clip distance"),
    Flag("--optimizer", "adam", "AdamW, the only one of the FSDP trainer"),
    Flag("--lr", "1e-6", "learning rate"),
    Flag("--lr-decay-style", "constant", "no decay"),
    Flag("--weight-decay", "0.1", "AdamW weight decay"),
    Flag("--adam-beta1", "0.9", "decay of the first moment"),
    Flag("--adam-beta2", "0.98", "decay of the second moment"),
    Flag("--train-backend", "fsdp", "trainer; without it Miles takes Megatron"),
    Flag("--gradient-checkpointing", None, "recompute activations in the backward pass"),
    Flag("--use-dynamic-batch-size", None, "pack answers into micro-batches by tokens"),
    Flag("--max-tokens-per-gpu", "8192", "tokens in one micro-batch"),
    Flag("--actor-num-nodes", "1", "trainer machines"),
    Flag("--actor-num-gpus-per-node", "1", "trainer GPUs; the default is 8, and Ray would wait"),
    Flag("--num-gpus-per-node", "1", "GPUs of this machine, for the engine"),
    Flag("--rollout-num-gpus-per-engine", "1", "GPUs of one engine"),
    Flag("--colocate", None, "engine and trainer share the GPU, both offload"),
    Flag("--sglang-mem-fraction-static", "0.4", "share of GPU memory of the engine"),
    Flag("--update-weight-buffer-size", "536870912", "bytes of one weight-update bucket: 512 MiB"),
    Flag("--save-debug-event-data", lambda s: f"{run_folder(s)}/events", "metrics as JSON lines"),
)

# One contract exists for dense Qwen3 (miles/true_on_policy). --deterministic-mode is not here:
# the FSDP trainer ignores it.
CONTRACT = "qwen3_dense_true_on_policy_v1"
CONTRACT_MODELS = ("Qwen3-0.6B", "Qwen3-4B", "Qwen3-4B-Base", "Qwen3-4B-Instruct-2507")
TRUE_ON_POLICY = (
    Flag("--sglang-enable-deterministic-inference", None, "batch-invariant engine kernels"),
    Flag("--sglang-true-on-policy-contract", CONTRACT, "engine side of the contract"),
    Flag("--sglang-attention-backend", lambda s: s["MILES_SGLANG_ATTENTION"], "engine attention"),
    Flag("--attn-implementation", lambda s: s["MILES_FSDP_ATTENTION"], "trainer attention"),
    Flag("--true-on-policy-mode", None, "same arithmetic in engine and trainer"),
)
TRUE_ON_POLICY_ENV = {
    "NCCL_ALGO": "allreduce:tree",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}


def _spell(flags: tuple[Flag, ...], s: Settings) -> list[str]:
    words = []
    for flag in flags:
        words.append(flag.name)
        if flag.value is not None:
            words.append(str(flag.value(s) if callable(flag.value) else flag.value))
    return words


def default_flags(s: Settings) -> list[str]:
    """Words of the recipe for these settings, without extra and true on-policy flags."""
    return _spell(RECIPE, s)


def command(s: Settings) -> list[str]:
    """The Miles command: our flags, then the extra ones, then those of true on-policy mode.
    Miles keeps the last value of a flag that occurs twice (argparse)."""
    last = _spell(TRUE_ON_POLICY, s) if s["MILES_TRUE_ON_POLICY"] else []
    program = ["python3", f"{s['MILES_DIR']}/train.py"]
    return [*program, *default_flags(s), *s["MILES_EXTRA_ARGS"], *last]


def default_command(env: Mapping[str, str] | None = None) -> list[str]:
    """The command for an environment (an empty one when not given)."""
    return command(read_settings(env or {}))


def grouped(words: list[str]) -> list[list[str]]:
    """Split a command into its flags with their values; the first group is the program.

    A word is a flag when it begins with `--`; `--name=value` becomes two words."""
    groups: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, has_value, value = word.partition("=")
            groups.append([name, value] if has_value else [name])
        else:
            groups[-1].append(word)
    return groups


def runtime_env(s: Settings, env: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Ray runtime environment of the job. It is printed, so it carries no key: keys reach the
    workers through the environment of `ray start`. The lab folder comes last on the path, so that
    a file in it cannot hide a module of Miles."""
    inherited = [part for part in env.get("PYTHONPATH", "").split(":") if part]
    path = [s["MILES_DIR"], s["MILES_MEGATRON_DIR"], *inherited, s["MILES_LAB"]]
    found = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": ":".join(dict.fromkeys(path))}
    found["MASTER_ADDR"] = "127.0.0.1"
    direct = [*env.get("no_proxy", "").split(","), "localhost", "127.0.0.1", _own_address()]
    found["no_proxy"] = ",".join(dict.fromkeys(part for part in direct if part))
    if s["MILES_TRUE_ON_POLICY"]:
        found.update(TRUE_ON_POLICY_ENV)
    return {"env_vars": found}


def _own_address() -> str:
    """Address that this machine would send from, "" without a network. Sends nothing."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # reserved for documentation
            return str(probe.getsockname()[0])
    except OSError:
        return ""


# --- known traps --------------------------------------------------------------------------------


class Machine(NamedTuple):
    """What the launcher saw; None where it could not look."""

    capability: str | None = None  # compute capability of the first GPU, "9.0"
    cpus: int | None = None  # CPUs that Ray will count
    ray_runs: bool = False  # a Ray head or raylet in this process namespace
    has_miles: bool = False  # MILES_DIR holds train.py
    flag_names: frozenset[str] = frozenset()  # known Miles flags, empty when no list was found


class Plan:
    """The command as Miles will read it: each flag with the values that win."""

    def __init__(self, s: Settings, env: Mapping[str, str], machine: Machine) -> None:
        self.s, self.env, self.machine = s, env, machine
        self.words = command(s)
        self.flags = {name: values for name, *values in grouped(self.words)[1:]}

    def has(self, *names: str) -> bool:
        """Is one of these flags in the command?"""
        return any(name in self.flags for name in names)

    def text(self, name: str, default: str = "") -> str:
        """First value of a flag that wins, or `default`."""
        return (self.flags.get(name) or [default])[0]

    def number(self, name: str, default: float) -> float:
        """First value as a number; `default` when absent or no number (Miles then refuses it)."""
        try:
            return float(self.text(name, str(default)))
        except ValueError:
            return default

    def set_in_env(self, *names: str) -> str:
        """Those of `names` that the environment holds."""
        return ", ".join(name for name in names if name in self.env)

    @property
    def fsdp(self) -> bool:
        """Does the FSDP trainer run?"""
        return self.text("--train-backend") == "fsdp"

    def _fa3(self) -> tuple[bool, bool]:
        trainer = self.text("--attn-implementation")
        engine = self.text("--sglang-attention-backend")
        return engine == "fa3", trainer.endswith("flash_attention_3")

    @property
    def fa3(self) -> bool:
        """Is FlashAttention 3 asked for on one side?"""
        return any(self._fa3())

    @property
    def fa3_both(self) -> bool:
        """Is FlashAttention 3 asked for on both sides?"""
        return self._fa3() == (True, True)

    @property
    def model(self) -> str:
        """Folder name of the model."""
        return Path(self.text("--hf-checkpoint")).name

    @property
    def batch(self) -> float:
        """Answers per optimizer update."""
        return self.number("--global-batch-size", 0)

    @property
    def answers(self) -> float:
        """Answers per rollout step: prompts times group size."""
        return self.number("--rollout-batch-size", 0) * self.number("--n-samples-per-prompt", 1)

    @property
    def thinking_off(self) -> bool:
        """Is thinking switched off in the chat template?"""
        return bool(re.search(r"thinking\W+false", self.text("--apply-chat-template-kwargs"), re.I))

    @property
    def reward(self) -> str:
        """Built-in reward in use, "" when a function of the user replaces it."""
        return "" if self.has("--custom-rm-path") else self.text("--rm-type")


FSDP_IGNORES = (
    *("--deterministic-mode", "--pause-generation-mode", "--save-hf", "--keep-old-actor"),
    *("--reset-optimizer-states", "--debug-skip-weight-update", "--debug-disable-optimizer"),
    *("--rollout-data-postprocess-path", "--warmup-ratio", "--fsdp-state-dict-cpu-offload"),
    *("--update-weight-transfer-mode", "--disable-compute-advantages-and-returns"),
    "--allow-partial-train-step",
)
REWARDS = (
    *("math", "deepscaler", "gemma_math", "dapo", "f1", "gpqa", "ifbench", "remote_rm"),
    *("random", "deterministic_random"),
)
BOXED = ("math", "deepscaler", "gemma_math", "dapo")
CODE_FLAGS = (  # each names a Python object as module.name
    *("--custom-rm-path", "--dynamic-sampling-filter-path", "--custom-generate-function-path"),
    *("--rollout-function-path", "--buffer-filter-path", "--custom-loss-function-path"),
    *("--rollout-sample-filter-path", "--custom-reward-post-process-path"),
)


def _ignored(p: Plan) -> str:
    names = [name for name in FSDP_IGNORES if p.has(name, "--no-" + name[2:])]
    return ", ".join(names) if p.fsdp else ""


def _resumes(p: Plan) -> bool:
    return (Path(p.text("--load", "/dev/null")) / "latest_checkpointed_iteration.txt").is_file()


def _source_of(p: Plan, target: str) -> str | None:
    """File of the module of `module.name`, "" when it has none, None when there is no such module.

    Looks where the job will look, and imports nothing."""
    parts = target.split(".")[:-1]
    if not parts:
        return None
    for base in (*runtime_env(p.s, p.env)["env_vars"]["PYTHONPATH"].split(":"), *sys.path):
        place = Path(base or ".", *parts)
        for source in (place.with_name(place.name + ".py"), place / "__init__.py"):
            if source.is_file():
                return str(source)
    # a package that an import hook provides, such as an editable install, is not looked into
    return "" if importlib.util.find_spec(parts[0]) and parts[0] != "miles" else None


def _no_module(p: Plan) -> str:
    missing = [
        f"{flag} {p.text(flag)}"
        for flag in CODE_FLAGS
        if p.has(flag) and p.machine.has_miles and _source_of(p, p.text(flag)) is None
    ]
    return ", ".join(missing)


def _plain_reward(p: Plan) -> bool:
    source = _source_of(p, p.text("--custom-rm-path")) if p.has("--custom-rm-path") else None
    if not source or not source.endswith(".py"):
        return False
    try:
        tree = ast.parse(Path(source).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    name = p.text("--custom-rm-path").split(".")[-1]
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body)


def _labels(p: Plan, bad: Callable[[Any], bool]) -> bool:
    """Does one of the first thousand rows of a .jsonl prompt file have a bad label?"""
    path = Path(p.text("--prompt-data"))
    if path.suffix != ".jsonl" or not path.is_file() or p.reward != "math":
        return False
    with path.open("rb") as lines:
        for _, line in zip(range(1000), lines, strict=False):
            try:
                if bad(json.loads(line).get(p.text("--label-key", "label"))):
                    return True
            except (ValueError, AttributeError):
                continue
    return False


def _unknown(p: Plan) -> str:
    known = p.machine.flag_names
    if not known:
        return ""
    unknown = []
    for name in p.flags:
        alias = "--" + name[5:] if name.startswith("--no-") else name
        if not ({name, alias} & known or re.match("--(eval-)?(sglang|router)-", name)):
            near = difflib.get_close_matches(name, known, 1)
            unknown.append(name + (f" (near: {near[0]})" if near else ""))
    return ", ".join(unknown)


def _unknown_variables(p: Plan) -> str:
    ours = [setting.name for setting in SETTINGS]
    unknown = []
    for name in sorted(set(p.env) - set(ours)):
        near = difflib.get_close_matches(name, ours, 1, 0.8) if name.startswith("MILES_") else []
        unknown += [f"{name} (near: {near[0]})"] if near else []
    return ", ".join(unknown)


def _stray(p: Plan) -> str:
    """Words that no flag takes: Miles would end with 'unrecognized arguments'."""
    switches = {flag.name for flag in (*RECIPE, *TRUE_ON_POLICY) if flag.value is None}
    extra = p.s["MILES_EXTRA_ARGS"]
    stray = grouped(extra)[0] + [
        word for name, *values in grouped(extra)[1:] if name in switches for word in values
    ]
    return " ".join(stray)


def _gpus(p: Plan) -> str:
    asked = {
        "--actor-num-gpus-per-node": p.number("--actor-num-gpus-per-node", 8),
        "--actor-num-nodes": p.number("--actor-num-nodes", 1),
        "--rollout-num-gpus-per-engine": p.number("--rollout-num-gpus-per-engine", 1),
        "--rollout-num-gpus": 1 if p.has("--colocate") else p.number("--rollout-num-gpus", 1),
        "--eval-num-gpus": p.number("--eval-num-gpus", 0) * 2,
    }
    return ", ".join(f"{name} {p.text(name)}" for name, gpus in asked.items() if gpus > 1)


def _used(p: Plan) -> str:
    folder = p.text("--save-debug-event-data")
    return folder if folder and any(Path(folder).glob("*.jsonl")) else ""


class Trap(NamedTuple):
    """A setting that is known to fail or to surprise. `number` is its place in the manual's list
    of 17 traps, 0 when not in it. `test` returns what it saw (text), True, or something false."""

    id: str
    severity: str
    number: int
    test: Callable[[Plan], Any]
    advice: str
    source: str


# fmt: off
TRAPS = (
    Trap("stray-word", REFUSED, 0, _stray,
         "no flag takes these words; quote a value that holds spaces", "argparse"),
    Trap("gpus", REFUSED, 13, lambda p: not p.s["MILES_SCRIPT_EXTERNAL_RAY"] and _gpus(p),
         "this launcher gives Ray one GPU, and Ray would wait for the others for ever; ask for one,"
         " or start from a launcher of Miles", "miles/utils/arguments.py:109"),
    Trap("fa3-off-hopper", REFUSED, 14,
         lambda p: p.fa3 and p.machine.capability and p.machine.capability[:2] != "9."
         and f"compute capability {p.machine.capability}",
         "FlashAttention 3 is built for Hopper (9.x) only; leave the attention flags out, or take"
         " triton or flashinfer for the engine and sdpa for the trainer",
         "scripts/run_qwen3_0_6b_fsdp.py, docker/Dockerfile"),
    Trap("fa3-unknown-gpu", WARNED, 14, lambda p: p.fa3 and not p.machine.capability,
         "FlashAttention 3 needs a Hopper GPU (9.x), and nvidia-smi does not say which GPU this is",
         "scripts/run_qwen3_0_6b_fsdp.py, docker/Dockerfile"),
    Trap("model-not-in-contract", REFUSED, 0,
         lambda p: p.has("--true-on-policy-mode") and p.model not in CONTRACT_MODELS and p.model,
         f"the true on-policy contract covers {', '.join(CONTRACT_MODELS)} (by folder name)",
         "miles/true_on_policy"),
    Trap("attention-not-in-contract", WARNED, 0,
         lambda p: p.has("--true-on-policy-mode") and not p.fa3_both,
         "the true on-policy contract names FlashAttention 3 on both sides; with another attention"
         " the gap is not exactly 0", "miles/true_on_policy"),
    Trap("attention-without-mode", WARNED, 0,
         lambda p: not p.s["MILES_TRUE_ON_POLICY"]
         and p.set_in_env("MILES_SGLANG_ATTENTION", "MILES_FSDP_ATTENTION"),
         "does nothing without MILES_TRUE_ON_POLICY=1; in a normal run put"
         " --sglang-attention-backend or --attn-implementation into MILES_EXTRA_ARGS",
         "this launcher"),
    Trap("trainer-attention", REFUSED, 0,
         lambda p: p.fsdp and p.text("--attn-implementation") == "triton",
         "the trainer has no attention named triton; take sdpa, or leave the flag out",
         "miles/backends/fsdp_utils/arguments.py:30"),
    Trap("save-without-interval", WARNED, 1,
         lambda p: p.has("--save")
         and not p.has("--save-interval", "--save-trigger-sentinel", "--num-epoch"),
         "--save alone writes nothing; add --save-interval STEPS", "miles/utils/misc.py:144"),
    Trap("deepscaler-short", WARNED, 2,
         lambda p: p.reward.endswith("deepscaler")
         and (p.number("--rollout-max-response-len", 0) < 4096 or p.thinking_off),
         "deepscaler gives 0 to an answer without </think>: raise --rollout-max-response-len and"
         " leave thinking on, or take --rm-type math", "miles/rollout/rm_hub/deepscaler.py:38"),
    Trap("boxed-prefix", WARNED, 3,
         lambda p: p.reward[6:] in BOXED if p.reward.startswith("boxed_") else "",
         "boxed_ strips the box that the grader looks for, so a right answer scores as wrong on"
         " Miles of 2026-08-21; leave the prefix out", "miles/rollout/rm_hub/__init__.py:53"),
    Trap("dapo-without-key", REFUSED, 4,
         lambda p: p.reward.endswith("dapo") and not p.has("--reward-key"),
         "the reward dapo returns a dict; add --reward-key score (the scores are 1 and -1)",
         "miles/rollout/rm_hub/math_dapo_utils.py:262"),
    Trap("unknown-reward", WARNED, 5,
         lambda p: p.reward.removeprefix("boxed_") not in ("", *REWARDS) and p.reward,
         "not a reward of Miles of 2026-08-21; an unknown one fails in every group, and the rollout"
         " never ends", "miles/rollout/rm_hub/__init__.py:32"),
    Trap("remote-without-address", REFUSED, 5,
         lambda p: p.reward.endswith("remote_rm") and not p.has("--rm-url"),
         "the reward remote_rm needs --rm-url", "miles/rollout/rm_hub/__init__.py:19"),
    Trap("no-such-module", REFUSED, 5, _no_module,
         "not found on PYTHONPATH, in Miles or in the lab folder; a reward or filter that cannot be"
         " imported fails in every group, and the rollout never ends",
         "miles/rollout/inference_rollout/inference_rollout_train.py:110"),
    Trap("plain-reward", WARNED, 5, _plain_reward,
         "the reward is a plain function, and Miles awaits what it returns; write async def",
         "miles/rollout/rm_hub/__init__.py:32"),
    Trap("group-of-one-filtered", REFUSED, 5,
         lambda p: p.number("--n-samples-per-prompt", 1) == 1
         and "nonzero_std" in p.text("--dynamic-sampling-filter-path"),
         "a group of one answer has no deviation, so the filter drops every group and the rollout"
         " never ends; raise --n-samples-per-prompt",
         "miles/rollout/filter_hub/dynamic_sampling_filters.py:18"),
    Trap("group-of-one", WARNED, 0,
         lambda p: p.number("--n-samples-per-prompt", 1) == 1
         and p.text("--advantage-estimator", "grpo") == "grpo",
         "a group of one answer has advantage 0, so the run learns nothing",
         "miles/utils/arguments.py:3443"),
    Trap("kl-without-reference", REFUSED, 6,
         lambda p: (p.has("--use-kl-loss") or p.number("--kl-coef", 0)) and not p.has("--ref-load"),
         "a KL term needs a reference model; add --ref-load FOLDER",
         "miles/utils/arguments.py:2976"),
    Trap("kl-loss-zero", WARNED, 6,
         lambda p: p.has("--use-kl-loss") and p.number("--kl-loss-coef", 0) == 0,
         "a KL loss with coefficient 0 loads the reference model and runs it in every step for"
         " nothing; drop --use-kl-loss, or set --kl-loss-coef",
         "miles/backends/fsdp_utils/actor.py:645"),
    Trap("fsdp-ignores", WARNED, 7, _ignored,
         "accepted and ignored by the FSDP trainer", "miles/backends/fsdp_utils/arguments.py:52"),
    Trap("resume", WARNED, 8, _resumes,
         "a resume with the FSDP trainer keeps the old learning rate whatever --lr says, and starts"
         " over when the checkpoint is damaged: look for the '[FSDP] Loaded' lines of model and"
         " optimizer in the log", "miles/backends/fsdp_utils/checkpoint.py:49"),
    Trap("resume-splits", WARNED, 8,
         lambda p: p.has("--load") and p.has("--save") and p.text("--load") != p.text("--save"),
         "--load and --save differ, so the place in the prompts is read from one folder and"
         " written to the other", "miles/rollout/data_source.py:31"),
    Trap("group-reward-with-eval", REFUSED, 9,
         lambda p: p.has("--group-rm") and p.has("--eval-interval"),
         "--group-rm ends the run at the first evaluation, before step 0; drop one of the two",
         "miles/rollout/inference_rollout/inference_rollout_eval.py:29"),
    Trap("ray-runs", REFUSED, 10,
         lambda p: p.machine.ray_runs and not p.s["MILES_SCRIPT_EXTERNAL_RAY"],
         "a Ray runs here already, and two runs in one container end each other; take another"
         " container, end it with `ray stop`, or use it with MILES_SCRIPT_EXTERNAL_RAY=1",
         "miles/utils/external_utils/command_utils.py:179"),
    Trap("few-cpus", WARNED, 11,
         lambda p: (p.machine.cpus or RAY_CPUS) < RAY_CPUS and f"{p.machine.cpus} CPUs",
         "a one-GPU run asks Ray for three and waits without a message for the rest, so Ray is told"
         " that there are three", "miles/ray/placement_group.py:56"),
    Trap("same-sampling-seeds", WARNED, 12,
         lambda p: p.has("--sglang-enable-deterministic-inference"),
         "with deterministic inference every step samples with the same seeds: the rollout seed"
         " plus the place in the group",
         "miles/rollout/inference_rollout/inference_rollout_common.py:160"),
    Trap("label-zero", WARNED, 15, lambda p: _labels(p, lambda x: type(x) is int and x == 0),
         "a label that is the number 0 scores 0 whatever the answer; store labels as text",
         "miles/rollout/rm_hub/math_utils.py:480"),
    Trap("label-worked", WARNED, 0, lambda p: _labels(p, lambda x: "####" in str(x)),
         "a label still holds its worked solution (####) and scores 0; keep the answer only",
         "miles/rollout/rm_hub/math_utils.py:479"),
    Trap("wandb-without-group", REFUSED, 0,
         lambda p: p.has("--use-wandb")
         and not p.has("--wandb-group", "--disable-wandb-random-suffix"),
         "--use-wandb without --wandb-group NAME ends the run at start",
         "miles/utils/arguments.py:1920"),
    Trap("batch-too-large", REFUSED, 0,
         lambda p: 0 < p.answers < p.batch and f"batch {p.batch:.0f}, answers {p.answers:.0f}",
         "--global-batch-size is larger than prompts times answers, so no update is ever full",
         "miles/ray/rollout/rollout_data_conversion.py"),
    Trap("batch-not-one-update", WARNED, 0,
         lambda p: 0 < p.batch < p.answers and f"batch {p.batch:.0f}, answers {p.answers:.0f}",
         "--global-batch-size is not prompts times answers: a step makes several updates, and a"
         " remainder is thrown away", "miles/ray/rollout/rollout_data_conversion.py"),
    Trap("over-sampling-small", REFUSED, 0,
         lambda p: p.number("--over-sampling-batch-size", 1e9)
         < p.number("--rollout-batch-size", 0),
         "--over-sampling-batch-size must be at least --rollout-batch-size",
         "miles/utils/arguments.py:611"),
    Trap("top-p-without-top-k", WARNED, 0,
         lambda p: (p.number("--rollout-top-p", 1) < 1) != (p.number("--rollout-top-k", -1) > 0),
         "set --rollout-top-p and --rollout-top-k together: sampling replay (since 2026-10-15)"
         " needs both, and without replay the trainer scores the whole vocabulary",
         "manual of 2026-10-15; miles/backends/training_utils/loss_hub/logit_processors.py:55"),
    Trap("lora-on-fsdp", REFUSED, 0,
         lambda p: p.fsdp
         and (p.number("--lora-rank", 0) > 0 or p.number("--multi-lora-n-adapters", 0) > 0),
         "the FSDP trainer has no LoRA: it would train the whole model while the engine serves an"
         " adapter that nothing loads", "miles/utils/arguments.py:1714"),
    Trap("partial-fully-async", REFUSED, 0,
         lambda p: p.has("--partial-rollout") and p.has("--fully-async"),
         "--partial-rollout and --fully-async exclude each other", "miles/utils/arguments.py:653"),
    Trap("fully-async", REFUSED, 0, lambda p: p.has("--fully-async"),
         "needs train_async.py and GPUs of its own; this launcher runs train.py with --colocate",
         "miles/utils/arguments.py:59"),
    Trap("one-engine-tolerance", WARNED, 0, lambda p: p.has("--use-fault-tolerance"),
         "a dead engine is replaced between two rollouts, and with one engine the rollout cannot"
         " end; guard the run with the watchdog", "miles/ray/actor_group.py:125"),
    Trap("offload-level", WARNED, 0,
         lambda p: " ".join({*p.flags.get("--offload-rollout-level", [])} - {"kv_cache", "weight"}),
         "--offload-rollout-level takes kv_cache and weight; another word is accepted in silence",
         "miles/utils/arguments.py:176"),
    Trap("prompt-file", REFUSED, 0,
         lambda p: not re.search(r"\.(jsonl|parquet)(@\[.*\])?$", p.text("--prompt-data"))
         and p.text("--prompt-data"),
         "Miles reads .jsonl and .parquet only", "miles/utils/data.py"),
    Trap("run-used", WARNED, 0, _used,
         "holds events of an earlier run, and this one would append to them; set another MILES_RUN",
         "miles/utils/tracking_utils/tracking.py:52"),
    Trap("proxy", WARNED, 0,
         lambda p: p.set_in_env("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"),
         "a proxy may answer requests to the engine with 403; no_proxy is set for the addresses of"
         " this machine", "miles/utils/http_utils.py:286"),
    Trap("unknown-flag", WARNED, 0, _unknown,
         "not in the list of flags of Miles of 2026-08-21", "miles/utils/arguments.py"),
    Trap("unknown-variable", WARNED, 0, _unknown_variables,
         "this launcher does not read it", "this launcher"),
)
# fmt: on

# Numbers of the list of 17 that nothing shows before the launch, and what shows them later.
NOT_VISIBLE = {
    16: "an engine that hangs without closing its connection: the watchdog's progress deadline",
    17: "a log line of the Miles documentation that the code never prints: nothing to check",
}
RAY_CPUS = 3  # one bundle for trainer and engine, rollout manager, weight-update lock


class Found(NamedTuple):
    """A trap that this run steps into."""

    id: str
    severity: str
    text: str
    source: str


def check(s: Settings, env: Mapping[str, str], machine: Machine) -> list[Found]:
    """The traps of TRAPS that these settings step into, refused ones first."""
    plan = Plan(s, env, machine)
    found = []
    for trap in TRAPS:
        if seen := trap.test(plan):
            text = f"{seen}: {trap.advice}" if isinstance(seen, str) else trap.advice
            found.append(Found(trap.id, trap.severity, text, trap.source))
    return sorted(found, key=lambda one: one.severity != REFUSED)


# --- this machine -------------------------------------------------------------------------------


def _output(*words: str) -> str:
    """Output of a short command, "" when it fails, is missing or takes over 10 s."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout.strip()


def _nvidia(fields: str) -> str:
    """`fields` of the first GPU as nvidia-smi prints them, "" when it does not answer."""
    lines = _output("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader").splitlines()
    return lines[0].strip() if lines else ""


def _cpus() -> int | None:
    """CPUs of this container: the smaller of the affinity mask and the cgroup v2 quota."""
    try:
        cpus = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return None
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(cpus, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        return cpus


def _ray_runs() -> bool:
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text().strip() in ("raylet", "gcs_server"):
                return True
        except OSError:
            continue
    return False


def _flag_names(s: Settings) -> frozenset[str]:
    """Names in miles-flags.yaml beside this repository or in the lab folder; empty without one."""
    here = Path(__file__).resolve().parent
    for folder in (here.parents[1] / "manuals" / "data" if len(here.parents) > 1 else here, here):
        try:
            text = (folder / "miles-flags.yaml").read_text(encoding="utf-8")
        except OSError:
            continue
        return frozenset(re.findall(r"^  ?-? *name: (--\S+)", text, re.M))
    return frozenset()


def look(s: Settings) -> Machine:
    """Look at this machine; needs neither GPU nor Miles."""
    capability = _nvidia("compute_cap")
    return Machine(
        capability=capability if re.fullmatch(r"\d+\.\d+", capability) else None,
        cpus=_cpus(),
        ray_runs=_ray_runs(),
        has_miles=Path(s["MILES_DIR"], "train.py").is_file(),
        flag_names=_flag_names(s),
    )


# --- model and data -----------------------------------------------------------------------------

COMPLETE = ".miles-lab-complete.json"  # written last, so that half a download is not taken for one
MODEL_FILES = ("config.json", "*.safetensors")


def hub_download(repo: str, kind: str, folder: str) -> None:
    """Fetch a whole Hub repository into `folder`; resumes what a broken download left."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise LauncherError(
            f"cannot download {repo}: this Python has no huggingface_hub; run the launcher in the"
            " Miles container, or name a local folder with MILES_MODEL or MILES_DATA"
        ) from None
    snapshot_download(repo, repo_type=kind, local_dir=folder)


def _is_complete(folder: Path, repo: str) -> bool:
    try:
        mark = json.loads((folder / COMPLETE).read_text(encoding="utf-8"))
        sizes = mark["files"].items()
        return mark["repo"] == repo and all(
            (folder / name).stat().st_size == size for name, size in sizes
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def fetch(
    repo: str,
    kind: str,
    folder: Path,
    needed: tuple[str, ...],
    download: Callable[[str, str, str], None] = hub_download,
) -> bool:
    """Make `folder` hold the whole of `repo` ("model" or "dataset"). True when it downloaded.

    A folder counts as whole when its mark names this repository and every file that the mark lists
    still has its size. Raises LauncherError when a download fails or lacks a `needed` pattern."""
    if _is_complete(folder, repo):
        return False
    print(f"downloading {kind} {repo} to {folder}", flush=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        download(repo, kind, str(folder))
        _has_all(folder, needed)
        files = {
            str(path.relative_to(folder)): path.stat().st_size
            for path in sorted(folder.rglob("*"))
            if path.is_file() and ".cache" not in path.relative_to(folder).parts
        }
        files.pop(COMPLETE, None)
        part = folder / (COMPLETE + ".part")
        part.write_text(json.dumps({"repo": repo, "files": files}, indent=1), encoding="utf-8")
        part.replace(folder / COMPLETE)
    except LauncherError:
        raise
    except Exception as error:  # the client raises many types; all mean the same to the user
        first = next(iter(str(error).splitlines()), "")
        raise LauncherError(f"cannot download {repo}: {type(error).__name__}: {first}") from None
    return True


def _has_all(folder: Path, needed: tuple[str, ...]) -> None:
    for pattern in needed:
        if not any(folder.glob(pattern)):
            raise LauncherError(f"{folder} has no {pattern}")


def prepare(s: Settings, download: Callable[[str, str, str], None] = hub_download) -> int:
    """Have model and data in place and make the folder of the run; returns the downloads made."""
    made = 0
    model, data = Path(local_model(s)), Path(local_data(s))
    if s["MILES_MODEL"][0] != "/":
        made += fetch(s["MILES_MODEL"], "model", model, MODEL_FILES, download)
    _has_all(model, MODEL_FILES)
    if s["MILES_DATA"][0] != "/":
        made += fetch(s["MILES_DATA"], "dataset", data.parent, (data.name,), download)
    _has_all(data.parent, (data.name,))
    try:
        Path(run_folder(s)).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LauncherError(f"cannot make {run_folder(s)}: {error.strerror}") from None
    return made


# --- the run ------------------------------------------------------------------------------------


class Stopped(BaseException):
    """A signal asks the launcher to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _raise_stopped(number: int, _frame: Any) -> None:
    raise Stopped(number)


def _listen(handler: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _say(text: str) -> None:
    print(text, flush=True)


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _run(words: list[str], more_env: Mapping[str, str]) -> int:
    """Print and run one command in its own session, passing on a signal. Returns its exit code,
    128+N after signal N."""
    exports = "".join(f"export {name}={shlex.quote(more_env[name])} && " for name in more_env)
    _say(f"EXEC: {exports}{shlex.join(words)}")
    try:
        child = subprocess.Popen(words, start_new_session=True, env={**os.environ, **more_env})
    except OSError as error:
        raise LauncherError(f"cannot run {words[0]}: {error.strerror}") from None
    try:
        code = child.wait()
    except Stopped as stop:
        _listen(signal.SIG_IGN)
        child.send_signal(stop.number)
        try:
            child.wait(timeout=4)  # `docker stop` kills after 10 s
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise
    return code if code >= 0 else 128 - code


def submit_words(s: Settings, env: Mapping[str, str], job: str) -> list[str]:
    """`ray job submit` for the command of these settings under the submission id `job`."""
    address = [] if "RAY_ADDRESS" in env else ["--address=http://127.0.0.1:8265"]
    return [
        *("ray", "job", "submit"),
        *address,
        f"--submission-id={job}",
        f"--runtime-env-json={json.dumps(runtime_env(s, env))}",
        "--",
        *command(s),
    ]


def _entry(s: Settings, words: list[str]) -> list[str]:
    """Replace the command by a script when it has words that a shell would read.

    Ray joins the words into one line for a shell, and older versions do not quote them."""
    place = words.index("--") + 1
    if all(shlex.quote(word) == word for word in words[place:]):
        return words
    script = Path(run_folder(s), "command.sh")
    script.write_text("exec " + shlex.join(words[place:]) + "\n", encoding="utf-8")
    return [*words[:place], "sh", str(script)]


def _versions(s: Settings) -> str:
    found = []
    for name in ("torch", "transformers", "ray", "sglang"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    commit = _output("git", "-C", s["MILES_DIR"], "log", "-1", "--format=%h (%cs)") or "unknown"
    return f"# miles commit {commit}; {', '.join(found) or 'no versions found'}"


def run(s: Settings, env: Mapping[str, str], found: list[Found], machine: Machine) -> int:
    """Run the job between its two markers. Returns the launcher's exit code."""
    _listen(_raise_stopped)
    began = time.monotonic()
    own_ray = False
    job = f"raysubmit_{s['MILES_RUN'][:40]}_{os.getpid()}_{int(time.time())}"
    code = BAD
    try:
        _say(f"# run {s['MILES_RUN']}\n# date {_now()}")
        _say(f"# command: {shlex.join(command(s))}")
        _say(_versions(s))
        _say(f"# gpu {_nvidia('name,driver_version,memory.total,memory.used') or 'unknown'}")
        for one in found:
            _say(f"# {one.severity} {one.id}: {one.text}")
        prepare(s)
        if not s["MILES_SCRIPT_EXTERNAL_RAY"]:
            start = ["ray", "start", "--head", "--node-ip-address", "127.0.0.1", "--num-gpus", "1"]
            start.append("--disable-usage-stats")
            if machine.cpus and machine.cpus < RAY_CPUS:
                start += ["--num-cpus", str(RAY_CPUS)]
            own_ray = True
            code = _run(start, {"PYTHONUNBUFFERED": "1"})
            if code:
                raise LauncherError(f"ray start ended with exit code {code}")
        words = _entry(s, submit_words(s, env, job))
        direct = runtime_env(s, env)["env_vars"]["no_proxy"]
        code = _run(words, {"no_proxy": direct, "PYTHONUNBUFFERED": "1"})
    except LauncherError as error:
        print(f"miles_grpo.py: {error}", file=sys.stderr, flush=True)
        code = BAD
    except Stopped as stop:
        code = 128 + stop.number
    _listen(signal.SIG_IGN)
    # a progress bar may have left the line open
    _say(f"\n# end {_now()} rc={code} seconds={time.monotonic() - began:.0f}")
    if own_ray:
        _quiet("ray", "stop", "--force")
    elif code > 128:
        _quiet("ray", "job", "stop", "--no-wait", job)
    return code


def _quiet(*words: str) -> None:
    if shutil.which(words[0]):
        _output(*words)


# --- entry --------------------------------------------------------------------------------------


def argument_parser() -> argparse.ArgumentParser:
    """The launcher's own options; everything else is an environment variable."""
    lines = ["environment variables:"]
    for one in SETTINGS:
        lines.append(f"  {one.name:26}{one.meaning} [{one.default or 'empty'}]")
    lines.append(f"  {'PYTHONPATH':26}passed on to the Ray workers, before the lab folder")
    lines += ["", *__doc__.strip().split("\n\n")[-1].splitlines()]
    parser = argparse.ArgumentParser(
        prog="miles_grpo.py",
        description=__doc__.splitlines()[0],
        epilog="\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print traps and command; needs no GPU and no Miles"
    )
    parser.add_argument("--json", action="store_true", help="print the dry run as JSON")
    return parser


def dry_run_text(s: Settings, found: list[Found]) -> str:
    """Traps as comments, then the command with one flag a line, then the count of its flags."""
    groups = grouped(command(s))
    lines = [f"# {one.severity} {one.id}: {one.text} [{one.source}]" for one in found]
    lines.append(" \\\n  ".join(shlex.join(group) for group in groups))
    ours = len(grouped(default_flags(s))) - 1
    lines.append(f"# {len(groups) - 1} flags, {ours} of them the launcher's own")
    return "\n".join(lines)


def _passing_as_warnings(found: list[Found]) -> list[Found]:
    """A Ray that runs now may be gone when the run starts, or be on another machine."""
    return [
        one._replace(severity=WARNED, text=f"now it would be refused: {one.text}")
        if one.id == "ray-runs"
        else one
        for one in found
    ]


def main(argv: list[str] | None = None, env: Mapping[str, str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    try:
        return _main(argv, env)
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        sys.stderr.close()
        return 0


def _main(argv: list[str] | None, env: Mapping[str, str] | None) -> int:
    args = argument_parser().parse_args(argv)
    env = os.environ if env is None else env
    try:
        s = read_settings(env)
    except LauncherError as error:
        print(f"miles_grpo.py: {error}", file=sys.stderr)
        return BAD
    machine = look(s)
    found = check(s, env, machine)
    if args.dry_run or args.json:
        found = _passing_as_warnings(found)
    refused = [one for one in found if one.severity == REFUSED]
    if args.json:
        body = {"command": command(s), "runtime_env": runtime_env(s, env)}
        print(json.dumps({**body, "traps": [one._asdict() for one in found]}, indent=1))
    elif args.dry_run:
        print(dry_run_text(s, found))
    elif not machine.has_miles:
        print(f"miles_grpo.py: MILES_DIR={s['MILES_DIR']}: no train.py there", file=sys.stderr)
        return BAD
    for one in refused:
        print(f"miles_grpo.py: {one.severity} {one.id}: {one.text}", file=sys.stderr)
    if refused:
        return BAD
    if args.dry_run or args.json:
        return 0
    return run(s, env, found, machine)


if __name__ == "__main__":
    sys.exit(main())
