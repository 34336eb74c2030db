"""The memory of a colocated run before it starts, as ranges (pure functions).

GB are 2**30 bytes, as PyTorch, SGLang and Ray print them.  Rules from outside: 16 bytes for each
parameter in the FSDP trainer (fp32 weight 4, gradient 4, two Adam values 8): Miles of 2026-08-21,
miles/backends/fsdp_utils/adaptations/precision.py; order of offload and onload:
miles/backends/fsdp_utils/actor.py; the KV pool is what `--sglang-mem-fraction-static` of the free
memory leaves beside the weights: SGLang 0.5.16.
"""

from __future__ import annotations

from typing import NamedTuple

from mileskit.estimate.modelsize import Model

GB = 2**30
WEIGHT, GRADIENT, ADAM, SERVED = 4, 4, 8, 2  # bytes a parameter
STATE = WEIGHT + GRADIENT + ADAM
LOGIT_LOW, LOGIT_HIGH = 2, 14
"""Bytes a logit: one bf16 copy; a bf16 copy and three fp32 ones (upcast, log-softmax, gradient)."""
RAY_KILL = 0.95
"""Ray's default RAY_memory_usage_threshold: from here it kills workers of a node."""

FITS, DOES_NOT, OPEN = "fits", "does not fit", "too close to say"
_ORDER = (DOES_NOT, OPEN, FITS)


class Ask(NamedTuple):
    """What is asked. memory_gb: of the GPU, or of CPU and GPU together when unified; fraction:
    --sglang-mem-fraction-static; kv_tokens: a fixed cache instead (or None); prompts, answers,
    prompt_tokens, limit: of one rollout, in tokens; micro_tokens: --max-tokens-per-gpu;
    reference: a reference model is loaded; checkpointing: --gradient-checkpointing."""

    model: Model
    memory_gb: float
    unified: bool
    fraction: float
    kv_tokens: int | None = None
    kv_value_bytes: int = 2
    prompts: int = 32
    answers: int = 8
    prompt_tokens: int = 512
    limit: int = 1024
    micro_tokens: int = 8192
    offload: bool = True
    reference: bool = True
    checkpointing: bool = True


class Seen(NamedTuple):
    """What the stored runs say beyond the rules (estimatecheck.seen).

    free_share: of unified memory that was free when an engine started; overhead_gb: GPU memory
    that neither the trainer's pool nor a sleeping engine's rows explain; overhead_share: of the
    trainer state, unexplained on unified memory; fit_share, fail_share: trainer state over memory
    of the reported unified runs that fit and that did not; fit_limit: answer limit of the former;
    plain_share, plain_limit: the same of a smaller run at a longer limit; killed: the smallest
    reported run that was killed, as a question.
    """

    free_share: float
    overhead_gb: float
    overhead_share: float
    fit_share: float
    fit_limit: int
    plain_share: float
    plain_limit: int
    fail_share: float
    killed: Ask


class Row(NamedTuple):
    """One part: its range in GB and how it is bounded."""

    name: str
    low: float
    high: float
    how: str


class Plan(NamedTuple):
    """rows: parts; peaks: phase -> (low, high) in GB; room_gb: what must not be passed; verdict
    and why; kv_tokens: range of tokens that the cache holds (None when unknown); kv_wanted: tokens
    of one rollout when all answers reach the limit; host_gb: what is offloaded to separate host
    memory at most, None when nothing is or memory is unified."""

    rows: tuple[Row, ...]
    peaks: dict
    room_gb: float
    verdict: str
    why: tuple[str, ...]
    kv_tokens: tuple[int, int] | None
    kv_wanted: int
    host_gb: float | None

    @property
    def line(self) -> str:
        """The verdict with what it leaves out."""
        if self.host_gb is None or self.verdict == DOES_NOT:
            return self.verdict
        what = f"up to {self.host_gb:.2f} GB of host memory for what is offloaded"
        return f"{self.verdict} on the GPU; {what}: not judged"


def activations(ask: Ask) -> tuple[float, float]:
    """GB of one micro-batch: kept layer inputs, and the logits as LOGIT_LOW and LOGIT_HIGH say.

    Without gradient checkpointing a layer keeps about 34 bytes a hidden value and token instead of
    2 (Korthikanti and others 2022, arXiv 2205.05198, equation 2 without the attention matrix).
    """
    model, tokens = ask.model, _micro(ask)
    kept = 2 if ask.checkpointing else 34
    low = tokens * (2 * model.layers_hidden + LOGIT_LOW * model.vocab)
    high = tokens * (kept * model.layers_hidden + LOGIT_HIGH * model.vocab)
    return low / GB, high / GB


def rows_of(ask: Ask, seen: Seen) -> dict[str, Row]:
    """The parts by key."""
    params = ask.model.params
    state = STATE * params / GB
    engine = SERVED * params / GB, SERVED * (params + ask.model.doubled) / GB
    act = activations(ask)
    parts = {
        "weights": _exact("trainer weights", WEIGHT, params),
        "gradients": _exact("gradients", GRADIENT, params),
        "adam": _exact("Adam, two values", ADAM, params),
        "engine": Row(
            "engine weights", *engine, "bf16, 2 bytes; the high end holds a tied embedding twice"
        ),
        "kv": Row("KV cache", *_kv(ask, seen, engine)),
        "activations": Row(
            "activations",
            *act,
            f"{_micro(ask):,} tokens: layer inputs, and {LOGIT_LOW} to {LOGIT_HIGH} bytes a logit",
        ),
    }
    if ask.reference:
        words = "2 to 4 bytes; in host memory, so it counts where memory is unified"
        parts["reference"] = Row("reference model", 2 * params / GB, 4 * params / GB, words)
    if ask.unified:
        high = seen.overhead_share * state
        words = (
            f"up to {seen.overhead_share:.2f} of the trainer state, as in the reported 4B run at"
            " its kill, which may have needed more"
        )
    else:
        high = seen.overhead_gb
        words = f"up to {high:.1f} GB, as in plain_s1234: CUDA contexts and a sleeping engine"
    parts["overhead"] = Row("not explained", 0.0, high, words)
    return parts


def _exact(name: str, bytes_: int, params: int) -> Row:
    size = bytes_ * params / GB
    return Row(name, size, size, f"fp32, {bytes_} bytes a parameter")


def _micro(ask: Ask) -> int:
    """Tokens of one micro-batch: the limit, or one longest sample where that is more."""
    return max(ask.micro_tokens, ask.prompt_tokens + ask.limit)


def _kv(ask: Ask, seen: Seen, engine: tuple[float, float]) -> tuple[float, float, str]:
    if ask.kv_tokens is not None:
        size = ask.kv_tokens * ask.model.kv_values * ask.kv_value_bytes / GB
        return size, size, f"{ask.kv_tokens:,} tokens"
    share = seen.free_share if ask.unified else 1.0
    low = max(0.0, ask.fraction * share * ask.memory_gb - engine[1])
    high = max(0.0, ask.fraction * ask.memory_gb - engine[0])
    words = f"fraction {ask.fraction:g} of the free memory, less the engine's weights"
    if ask.unified:
        words += f"; low end: {share:.2f} of the memory is free at its start"
    return low, high, words


def plan(ask: Ask, seen: Seen) -> Plan:
    """The parts, the peak of each phase and the verdict."""
    parts = rows_of(ask, seen)
    peaks = {}
    rollout, training = _phases(ask)
    for name, low, high in (("rollout", *rollout), ("training", *training)):
        peaks[name] = (
            sum(parts[k].low for k in low if k in parts),
            sum(parts[k].high for k in high if k in parts),
        )
    room = ask.memory_gb * (RAY_KILL if ask.unified else 1.0)
    verdict, why = _verdict(ask, seen, peaks, room)
    kv = None
    if ask.model.kv_values is not None:
        size = ask.model.kv_values * ask.kv_value_bytes / GB
        kv = int(parts["kv"].low / size), int(parts["kv"].high / size)
    held, more = _cache_verdict(ask, parts["kv"], kv)
    verdict, why = min(verdict, held, key=_ORDER.index), (*more, *why)
    wanted = ask.prompts * ask.answers * (ask.prompt_tokens + ask.limit)
    host = None
    if not ask.unified and ask.offload:
        host = STATE * ask.model.params / GB + (parts["reference"].high if ask.reference else 0.0)
    return Plan(tuple(parts.values()), peaks, room, verdict, why, kv, wanted, host)


_STATE = ("weights", "gradients", "adam")


def _phases(ask: Ask) -> tuple[tuple, tuple]:
    """(low, high) part names of the rollout and of the training phase."""
    serving, learning = ("engine", "kv"), (*_STATE, "activations")
    if not ask.offload:
        every = (*serving, *learning)
        every += ("reference",) if ask.unified else ()
        return (every, (*every, "overhead")), (every, (*every, "overhead"))
    if ask.unified:  # what is offloaded stays in the same memory
        rollout = (*serving, *_STATE, "reference")
        training = (*learning, "engine", "reference")
        return (rollout, (*rollout, "overhead")), (training, (*training, "overhead"))
    return (serving, (*serving, "overhead")), (learning, (*learning, "engine", "overhead"))


def _verdict(ask: Ask, seen: Seen, peaks: dict, room: float) -> tuple[str, tuple[str, ...]]:
    low = max(v[0] for v in peaks.values())
    high = max(v[1] for v in peaks.values())
    what = f"{RAY_KILL:.0%} of the memory, where Ray kills," if ask.unified else "the GPU's memory"
    share = STATE * ask.model.params / GB / ask.memory_gb
    if low > room:
        return DOES_NOT, (f"even the low ends need {low:.1f} GB; {what} is {room:.1f} GB",)
    why = [f"low ends {low:.1f} GB, high ends {high:.1f} GB; {what} is {room:.1f} GB"]
    if not ask.unified:
        why.append("no stored run came near the limit of separate memory: by the estimate alone")
        return (FITS if high <= room else OPEN), tuple(why)
    why.append(f"16 bytes a parameter are {share:.0%} of this memory")
    if share >= seen.fail_share - 1e-9:
        why.append(f"the reported 4B runs, killed, had {seen.fail_share:.0%} of the nominal memory")
        less = _less(ask, seen.killed)
        if not less:
            return DOES_NOT, tuple(why)
        why.append(
            f"this run asks for less than they did ({', '.join(less)}): not shown either way"
        )
        return OPEN, tuple(why)
    if share > seen.fit_share + 1e-9:
        between = f"{seen.fit_share:.0%} (fit) and {seen.fail_share:.0%} (killed)"
        why.append(f"no reported run lies between {between}")
        return OPEN, tuple(why)
    longest = seen.fit_limit if share > seen.plain_share + 1e-9 else seen.plain_limit
    if ask.limit > longest:
        why.append(
            f"the reported run of this share that fit cut answers at {longest:,} tokens,"
            f" not {ask.limit:,}"
        )
        return OPEN, tuple(why)
    if high > room:
        return OPEN, tuple(why)
    why.append(f"reported runs of this share and answer limit fit (up to {seen.fit_share:.0%})")
    return FITS, tuple(why)


def _less(ask: Ask, killed: Ask) -> list[str]:
    """In what a run asks for less than a killed one did; empty when it asks for no less."""
    found = []
    if ask.memory_gb > killed.memory_gb + 1e-9:
        found.append(f"{killed.memory_gb:g} GB of memory")
    if ask.model.params < killed.model.params:
        found.append(f"{killed.model.params / 1e9:.3g} billion parameters")
    if ask.kv_tokens is not None:
        found.append(f"a cache of fraction {killed.fraction:g}")
    elif ask.fraction < killed.fraction - 1e-9:
        found.append(f"fraction {killed.fraction:g}")
    if killed.reference and not ask.reference:
        found.append("a reference model")
    if ask.limit < killed.limit:
        found.append(f"answers up to {killed.limit:,} tokens")
    if ask.micro_tokens < killed.micro_tokens:
        found.append(f"micro-batches of {killed.micro_tokens:,} tokens")
    return found


def _cache_verdict(ask: Ask, kv: Row, tokens: tuple[int, int] | None) -> tuple[str, tuple]:
    """Whether the cache holds one longest sample; without one nothing can be generated."""
    sample = ask.prompt_tokens + ask.limit
    if tokens is not None:
        low, high = tokens
        held = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        why = (f"the KV cache holds {held} tokens, and one longest sample has {sample:,}",)
        if high < sample:
            return DOES_NOT, why
        return (OPEN, why) if low < sample else (FITS, ())
    if kv.high <= 0:
        return DOES_NOT, ("nothing is left for the KV cache beside the engine's weights",)
    # as many heads of keys and values as of queries: no dense model keeps more of a token
    most = sample * 2 * ask.model.layers_hidden * ask.kv_value_bytes / GB
    if kv.low < most:
        return OPEN, (
            f"the KV cache has {kv.low:.2f} GB at its low end, and one longest sample of {sample:,}"
            f" tokens can need {most:.2f} GB; --config would say what it needs",
        )
    return FITS, ()
