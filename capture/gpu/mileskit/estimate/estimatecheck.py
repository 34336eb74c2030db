"""What stored and reported runs say about an estimate of memory: how far off each rule was."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from mileskit.common import kitfiles, tomlio
from mileskit.estimate import memoryplan, modelsize
from mileskit.estimate.memoryplan import GB, SERVED, STATE, Ask, Seen
from mileskit.judge import runload
from mileskit.report import reportlog

ALONE = "h200-miles/plain_s1234"  # the stored run that had its GPU to itself
_ROUND_UP = 0.05  # "1.7B" names every count up to 1.75e9


class Support(NamedTuple):
    """One comparison: the rule, the run and its tier, estimate (a range) and what was printed,
    both in ``unit``; off: distance of the print from the range, relative to the print."""

    rule: str
    run: str
    tier: str
    low: float
    high: float
    printed: float
    unit: str

    @property
    def off(self) -> float:
        if self.low <= self.printed <= self.high:
            return 0.0
        near = self.low if self.printed < self.low else self.high
        return (near - self.printed) / self.printed


class Outcome(NamedTuple):
    """A reported run on unified memory: its trainer state in GB and as a share, and what came."""

    what: str
    state_gb: float
    share: float
    outcome: str


@lru_cache(maxsize=1)
def reported() -> dict:
    """Value or setting of out-gb10/reported.toml by id: its number."""
    document = tomlio.loads(kitfiles.read_bytes("out-gb10/reported.toml").decode("utf-8"))
    rows = [*document["value"], *document["setting"]]
    return {row["id"]: row["value"] for row in rows if "value" in row}


def _published(name: str) -> float:
    return float(reported()[name])


@lru_cache(maxsize=1)
def _alone() -> reportlog.Input:
    return reportlog.read(ALONE)


def seen() -> Seen:
    """The numbers that the plan takes from runs."""
    node, bytes_ = _published("node-gb"), _published("adam-bytes")
    free = (_published("plain-avail-gb") + _published("plain-weights-gb")) / node
    four = modelsize.of_count(_published("params-4b") * 1e9)
    state = bytes_ * four.params / GB
    short = int(_published("short-answer-limit"))
    ask = Ask(four, node, True, _published("fraction-4b-second"), limit=short)
    explained = state + (SERVED + 2) * four.params / GB + memoryplan.activations(ask)[0]
    largest = (_published("params-1-7b") + _ROUND_UP) * 1e9
    small = (_published("params-0-6b") + _ROUND_UP) * 1e9
    return Seen(
        free_share=free,
        overhead_gb=_overhead(),
        overhead_share=(_published("kill-2-gb") - explained) / state,
        fit_share=bytes_ * largest / GB / node,
        fit_limit=short,
        plain_share=bytes_ * small / GB / node,
        plain_limit=int(_published("answer-limit")),
        # of the memory as the maker counts it, the smaller of the two shares
        fail_share=state / _published("gpu-memory"),
        killed=ask._replace(memory_gb=_published("gpu-memory")),
    )


OVERHEAD_GB = 3.1
"""Used minus reserved in plain_s1234, rounded up: for a kit without logs."""


def _overhead() -> float:
    lines = [m.gb for m in _alone().memory if "used_GB" in m.gb and "reserved_GB" in m.gb]
    if not lines:
        return OVERHEAD_GB
    return max(gb["used_GB"] - gb["reserved_GB"] for gb in lines)


def supports() -> tuple[list[Support], list[str]]:
    """The comparisons, and what could not be compared here."""
    found, missing = _engine_h200()
    found += _engine_gb10()
    trainer = _trainer_h200()
    if not trainer:
        missing.append(f"trainer state and activations: {_alone().no_log or 'no memory lines'}")
    return found + trainer, missing


def _model(name: str) -> modelsize.Model:
    return modelsize.count(modelsize.KNOWN[name], name)


_POOL = "KV cache from the fraction"


def _engine_h200() -> tuple[list[Support], list[str]]:
    model, found, missing = _model("SmolLM2-135M-Instruct"), [], []
    for name in runload.stored_runs():
        one = runload.load(name)
        start = one.run.get("startup") or {}
        cache, weights = start.get("kv_cache"), start.get("weights_loaded")
        setup = (one.toml or {}).get("setup", {})
        # a run of another trainer has no engine of Miles, so nothing of it is missing
        if setup.get("model") != model.name or setup.get("miles_commit") == "none":
            continue
        if not cache or not weights:
            missing.append(f"{name}: no start-up lines of the engine")
            continue
        size = cache["k_gb"] + cache["v_gb"]
        found.append(_token(name, "measured", model, size, cache["tokens"]))
        if name == ALONE:
            found.append(_weights(name, "measured", model, weights["gb"]))
            free = weights["avail_gb"] + weights["gb"]
            fraction = one.toml["settings"]["sglang-mem-fraction-static"]
            pool = fraction * free - weights["gb"]
            found.append(Support(_POOL, name, "measured", pool, pool, size, "GB"))
    return found, missing


def _token(name, tier, model, gb: float, tokens: int) -> Support:
    bytes_ = float(model.kv_values * SERVED)
    return Support("KV bytes of a token", name, tier, bytes_, bytes_, gb * GB / tokens, "bytes")


def _weights(name, tier, model, gb: float) -> Support:
    low, high = (SERVED * n / GB for n in (model.params, model.params + model.doubled))
    return Support("engine weights", name, tier, low, high, gb, "GB")


def _engine_gb10() -> list[Support]:
    model, run = _model("Qwen3-0.6B"), "GB10 plain"
    cache = _published("plain-k-size") + _published("plain-v-size")
    free = _published("plain-avail-gb") + _published("plain-weights-gb")
    pool = _published("memory-fraction") * free - _published("plain-weights-gb")
    return [
        _token(run, "reported", model, cache, int(_published("plain-kv-tokens"))),
        _weights(run, "reported", model, _published("plain-weights-gb")),
        Support(_POOL, run, "reported", pool, pool, cache, "GB"),
    ]


def _trainer_h200() -> list[Support]:
    one = _alone()
    after_first = [m for m in one.memory if "offload" in m.when and "allocated_GB" in m.gb]
    loaded = [m.gb for m in after_first if m.when.startswith("before")][1:]
    left = [m.gb for m in after_first if m.when.startswith("after")][1:]
    if not loaded or not left:
        return []
    model = _model("SmolLM2-135M-Instruct")
    settings = one.loaded.toml["settings"]
    state = STATE * model.params / GB
    kept = max(gb["allocated_GB"] for gb in loaded) - min(gb["allocated_GB"] for gb in left)
    micro, limit = settings["max-tokens-per-gpu"], settings["rollout-max-response-len"]
    ask = Ask(model, 0.0, False, 0.0, micro_tokens=micro, limit=limit)
    peak = max(gb["reserved_GB"] - gb["allocated_GB"] for gb in loaded if "reserved_GB" in gb)
    return [
        Support("16 bytes a parameter", ALONE, "measured", state, state, kept, "GB"),
        Support("activations", ALONE, "measured", *memoryplan.activations(ask), peak, "GB"),
    ]


def outcomes() -> list[Outcome]:
    """The reported runs on unified memory, by the 16-byte estimate."""
    node, bytes_ = _published("node-gb"), _published("adam-bytes")
    long, short = int(_published("answer-limit")), int(_published("short-answer-limit"))
    steps = int(_published("fit-1-7b-steps"))
    rows = [
        (f"Qwen3-0.6B, answers up to {long:,} tokens", "params-0-6b", "fit"),
        (f"Qwen3-1.7B, answers up to {short} tokens", "params-1-7b", f"fit for {steps} steps"),
    ]
    for fraction, kill in (("fraction-4b-first", "kill-1-gb"), ("fraction-4b-second", "kill-2-gb")):
        what = f"Qwen3-4B, answers up to {short} tokens, fraction {_published(fraction):g}"
        at = f"killed by Ray in the first step at {_published(kill):.2f} of {node:.2f} GB"
        rows.append((what, "params-4b", at))
    found = []
    for what, name, outcome in rows:
        state = bytes_ * _published(name) * 1e9 / GB
        found.append(Outcome(what, state, state / node, outcome))
    return found


def half_rule() -> str:
    """The published first guess, and the run that contradicts it."""
    share, memory = _published("first-guess-share"), _published("gpu-memory")
    return (
        "Half of the memory as a first guess for this estimate is not safe:"
        f" {share:g} x {memory:g} GB are {share * memory:g} GB, the estimate of the 4B model that"
        " did not fit (contradiction half-memory-rule of the GB10 values)."
    )
