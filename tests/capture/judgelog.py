"""Builds logs for the tests of health and compare; the numbers are made up."""

from __future__ import annotations

import minilog as m

PLAIN = (
    "python3 run_miles.py --hf-checkpoint /lab/model --prompt-data /lab/run/train.jsonl"
    " --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 256"
    " --rollout-max-response-len 256 --lr 1e-5 --entropy-coef 0.00 --train-backend fsdp"
)
"""A recipe that no stored run has (no reference), with one update a rollout."""

GB10 = (
    "python3 train.py --hf-checkpoint /root/lab/models/Qwen3-0.6B"
    " --prompt-data /root/lab/data/gsm8k/train.parquet --rollout-batch-size 32"
    " --n-samples-per-prompt 8 --global-batch-size 256 --rollout-max-response-len 1024"
    " --rm-type math --sglang-mem-fraction-static 0.4"
)
"""The recipe whose ranges the GB10 lab published."""

HEALTHY = {
    "gap": 0.015,
    "reward": 0.5,
    "length": 30.0,
    "cut": 0.01,
    "grad": 0.6,
    "entropy": 0.3,
    "kl": 0.0,
    "clip": 0.0,
    "rollout_s": 10.0,
    "step_s": 30.0,
    "count": 3,
}
EVERY = 60.0  # seconds from one step to the next
NINE = 9 * 3600.0


def cell(value, i: int):
    """A value for every step, or the i-th of a list."""
    return value[i] if isinstance(value, (list, tuple)) else value


def text_of(value) -> str:
    return {None: "", float("inf"): "inf"}.get(value, "nan" if value != value else repr(value))


def log(
    steps: int = 12,
    first: int = 0,
    command: str | None = PLAIN,
    seed: int = 1,
    extra: str = "",
    start: float = NINE,
    head: tuple = (),
    numbers: list[int] | None = None,
    reference: float | None = None,
    end: str | None = "rc=0",
    **series,
) -> bytes:
    """A log of ``steps`` steps; every keyword of HEALTHY is a number, or a list of one a step.

    reference: the reference model's log-probability (the actor's is -0.37); numbers: the step
    numbers (default: from ``first`` on); head: lines before the first step.
    """
    lines = ["# run made", "# date 2026-11-29T09:00:00Z"]
    if command is not None:
        lines.append(f"# command: {command} --seed {seed} --rollout-seed {seed} {extra}".rstrip())
    lines += list(head)
    values = {**HEALTHY, **series}
    for i, n in enumerate(numbers or range(first, first + steps)):
        v = {key: cell(value, i) for key, value in values.items()}
        lines += one_step(start + (i + 1) * EVERY, n, v, reference)
    if end is not None:
        lines.append(f"# end 2026-11-29T12:00:00Z {end}")
    return m.text(*lines)


def one_step(at: float, n: int, v: dict, reference: float | None) -> list[str]:
    """The four lines of a step that ends at ``at``; the rollout ends 15 s before."""
    ref = "" if reference is None else f", 'rollout/ref_log_probs': {reference}"
    return [
        m.sourced(
            at - 16,
            f"perf {n}: {{'perf/rollout_time': {text_of(v['rollout_s'])},"
            f" 'rollout/zero_std/count_0.0': {v['count']},"
            f" 'rollout/zero_std/all_zero_percentage': {v['count'] / 32}}}",
            m.MANAGER,
        ),
        m.sourced(
            at - 15,
            f"rollout {n}: {{'rollout/raw_reward': {text_of(v['reward'])},"
            f" 'rollout/response_lengths': {text_of(v['length'])},"
            f" 'rollout/truncated': {text_of(v['cut'])},"
            f" 'rollout/entropy': {text_of(v['entropy'])},"
            f" 'rollout/log_probs': -0.37{ref}}}",
        ),
        m.sourced(
            at - 1,
            f"step {n}: {{'train/loss': 0.0, 'train/ppo_kl': {text_of(v['kl'])},"
            f" 'train/pg_clipfrac': {text_of(v['clip'])}, 'train/entropy_loss': 0.0,"
            f" 'train/train_rollout_logprob_abs_diff': {text_of(v['gap'])},"
            f" 'train/grad_norm': {text_of(v['grad'])}, 'train/lr-pg_0': 1e-05,"
            f" 'train/step': {n}}}",
        ),
        m.sourced(
            at, f"perf {n}: {{'perf/train_time': 14.0, 'perf/step_time': {text_of(v['step_s'])}}}"
        ),
    ]


def store(folder, name: str, data: bytes) -> str:
    """Writes a log; its path as text."""
    path = folder / f"{name}.log"
    path.write_bytes(data)
    return str(path)


def wobble(center: float, steps: int, salt: int, size: float = 0.08) -> list[float]:
    """A flat series with a fixed pseudo-random wobble of ``size`` times its center."""
    state, out = 12345 + 7919 * salt, []
    for _ in range(steps):
        state = (1103515245 * state + 12345) % 2**31
        out.append(center * (1 + size * (2 * state / 2**31 - 1)))
    return out
