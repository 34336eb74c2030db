"""Builds logs for the guard's tests and drives the guard over them; the numbers are made up."""

from __future__ import annotations

import io

import minilog as m
from mileskit.guard.guardlimits import Limits
from mileskit.guard.logdrive import drive, load

OFFSETS = range(30)
HOUR = 9 * 3600.0  # logs begin at nine


def startup(at: float = HOUR) -> list[str]:
    """The engine's marks of a start that takes ten seconds."""
    return [
        m.engine(at, "server_args=ServerArgs(model_path='/root/lab/model')"),
        m.engine(
            at + 5,
            "Load weight end. elapsed=5.85 s, type=Qwen3ForCausalLM, avail mem=94.8 GB, "
            "mem usage=1.40 GB.",
        ),
        m.engine(
            at + 7,
            "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 345645, K size: 18.46 GB, "
            "V size: 18.46 GB",
        ),
        m.engine(at + 10, "The server is fired up and ready to roll!"),
    ]


def one_step(at: float, n: int, grad: str = "0.5", gap: float = 0.015, every: float = 170.0):
    """A step that ends at ``at``: rollout lines 100 s before, then step and perf."""
    metrics = f"{{'train/loss': 0.0, 'train/train_rollout_logprob_abs_diff': {gap}, "
    return [
        *m.rollout(at - 100, n),
        m.sourced(at, f"step {n}: {metrics}'train/grad_norm': {grad}}}"),
        m.sourced(at, f"perf {n}: {{'perf/train_time': 99.0, 'perf/step_time': {every}}}"),
    ]


def steps(first: float, count: int, every: float = 170.0, start: int = 0, **more) -> list[str]:
    """``count`` steps, the first of which ends at ``first``."""
    found = []
    for k in range(count):
        found += one_step(first + k * every, start + k, every=every, **more)
    return found


def failing(first: float, last: float, per_second: float = 3.0, status: int = 503) -> list[str]:
    """Failed requests from ``first`` to ``last``."""
    found = []
    for k in range(int((last - first) * per_second)):
        found += m.retry(first + k / per_second, 1 + k // 100 % 60, status)
    return found


def decode(at: float, tokens: float = 900.0) -> str:
    return m.engine(
        at,
        "Decode batch, #running-req: 31, #token: 9000, token usage: 0.05, cuda graph: True, "
        f"gen throughput (token/s): {tokens:.2f}, #queue-req: 0",
    )


def judge(*lines, now_after: float = 0.0, **options):
    """The diagnosis of a log, judged ``now_after`` s after its last line."""
    log = load(io.BytesIO(m.text(*lines)))
    return drive(log.runs[-1], until=log.last_time + now_after, act=False, **options).decision


def live(*lines, now_after: float = 0.0, limits: Limits | None = None, **options) -> list:
    """Outcomes of a live guard at all 30 offsets."""
    log = load(io.BytesIO(m.text(*lines)))
    until = log.last_time + now_after
    return [
        drive(log.runs[-1], limits, until=until, offset=offset, **options) for offset in OFFSETS
    ]


def stops(outcomes: list) -> set:
    """The verdicts on which the run was stopped; "" for offsets at which it was not."""
    return {r.decision.verdict if r.stopped_at is not None else "" for r in outcomes}


def slowest(outcomes: list) -> float:
    """The most seconds from the first sign to the stop."""
    return max(r.seconds for r in outcomes)
