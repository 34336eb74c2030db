"""Lines of the shape of a Miles log, for tests; the numbers are made up."""

from __future__ import annotations

import io

from mileskit.log.logparse import LogParser
from mileskit.summary import summarize

ENGINE = "(SGLangEngine pid=7)"
MANAGER = "(RolloutManager pid=8)"
TRAINER = "(FSDPTrainRayActor pid=9)"
URL = "http://192.0.2.1:3000/generate"


def clock(second: float) -> str:
    """Local time of a second of the day, ``2026-11-29 HH:MM:SS.mmm``."""
    ms = round(second * 1000)
    s, ms = divmod(ms, 1000)
    return f"2026-11-29 {s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}.{ms:03d}"


def sourced(second: float, message: str, prefix: str = TRAINER, source: str = "a.py:1") -> str:
    """A record of a Miles logger."""
    return f"{prefix} [{clock(second)} actor_cell0_rank0] {source} - {message}"


def engine(second: float, message: str) -> str:
    """A record of the engine: whole seconds, no file and line."""
    return f"{ENGINE} [{clock(second)[:19]}] {message}"


def rollout(second: float, n: int, reward: float = 0.5) -> list[str]:
    """The three rollout-side lines of one step; the rollout lasts 10 s and ends at ``second``."""
    engine_side = f"perf {n}: {{'perf/rollout_time': 10.0, 'rollout/zero_std/count_1': 3}}"
    return [
        sourced(second, engine_side, MANAGER),
        sourced(second, f"rollout {n}: {{'rollout/raw_reward': {reward}}}"),
    ]


def step(second: float, n: int, grad: str = "0.5", step_time: float = 30.0) -> list[str]:
    """The step line and the trainer's perf line."""
    return [
        sourced(second, f"step {n}: {{'train/loss': 0.0, 'train/grad_norm': {grad}}}"),
        sourced(second, f"perf {n}: {{'perf/train_time': 20.0, 'perf/step_time': {step_time}}}"),
    ]


def retry(
    second: float, attempt: int, status: int = 503, prefix: str = MANAGER, body: str = ""
) -> list[str]:
    """The two physical lines of one failed request."""
    side = "Server" if status >= 500 else "Client"
    body = body or '{"error":{"type":"Service Unavailable","code":"no_available_workers"}}'
    return [
        sourced(second, f"Error: {side} error '{status} Some Reason' for url '{URL}'", prefix),
        f"{prefix} For more information check: https://developer.mozilla.org/Status/{status}, "
        f"retrying... (attempt {attempt}/60, url={URL}, response={body})",
    ]


def text(*lines: str | list[str]) -> bytes:
    """Lines, or lists of lines, joined with a newline after each."""
    flat: list[str] = []
    for line in lines:
        flat += [line] if isinstance(line, str) else line
    return "".join(f"{line}\n" for line in flat).encode()


def events(data: bytes, cut: int = 1 << 18) -> list:
    """All events of a log that is fed in pieces of ``cut`` bytes."""
    parser = LogParser()
    out = []
    for at in range(0, len(data), cut):
        out += parser.feed(data[at : at + cut])
    return out + parser.close()


def of(kind: type, data: bytes, cut: int = 1 << 18) -> list:
    """The events of one type."""
    return [ev for ev in events(data, cut) if type(ev) is kind]


def summary(data: bytes, pauses: bytes | None = None, utc_offset: str = "+00:00") -> dict:
    """The summary of a log."""
    return summarize.build(io.BytesIO(data), pauses, utc_offset)
