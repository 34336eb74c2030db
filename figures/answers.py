"""The stored answers of the first two steps of a run: token ids and the engine's probabilities.

Only some runs have the file `answers-steps-0-1.jsonl.xz`, one JSON object a line: `i` index of the
sample, `g` group, `r` reward, `n` length in tokens, `t` token ids, `lp` the log-probability that
the engine gave to each of them. Its text holds each number with as many digits as tell it from its
neighbours, so equal numbers are equal bit for bit.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from figures import evidence
from figures.evidence import Access, EvidenceError

FILE = "answers-steps-0-1.jsonl.xz"
STEPS = (0, 1)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: its reward, token ids and the engine's log-probability of each token (nats)."""

    index: int
    group: int
    reward: float
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """How far two runs agree in one step: counts of answers, and of all tokens of the first run."""

    answers: int
    tokens: int
    same_text: int
    same_log_probs: int
    same_rewards: int


def of_step(run: evidence.Run, step: int) -> Mapping[int, Answer]:
    """The answers of one step by sample index. EvidenceError for a run or step without any."""
    path = run.folder / FILE
    whole = _read(str(path), evidence.read(path))
    size = run.setting("rollout-batch-size") * run.setting("n-samples-per-prompt")
    found = {i: answer for i, answer in whole.items() if i // size == step}
    if len(found) != size:
        raise EvidenceError(f"{path}: {len(found)} answers of step {step}, {size} are expected")
    evidence.record(Access(run.id, f"{FILE}:step {step}", steps=1))
    return MappingProxyType(found)


@lru_cache(maxsize=8)
def _read(name: str, data: bytes) -> Mapping[int, Answer]:
    found: dict[int, Answer] = {}
    try:
        for line in lzma.decompress(data).decode("utf-8").splitlines():
            row = json.loads(line)
            tokens, log_probs = tuple(row["t"]), tuple(row["lp"])
            answer = Answer(row["i"], row["g"], row["r"], tokens, log_probs)
            if len(tokens) != len(log_probs) or len(tokens) != row["n"]:
                raise EvidenceError(f"{name}: answer {row['i']} has lists of several lengths")
            if answer.index in found:
                raise EvidenceError(f"{name}: answer {row['i']} twice")
            found[answer.index] = answer
    except (lzma.LZMAError, ValueError, KeyError) as error:
        raise EvidenceError(f"{name}: {error!r}") from None
    return found


def compare(one: Mapping[int, Answer], other: Mapping[int, Answer]) -> Pair:
    """Compare two runs answer by answer; EvidenceError when they hold other sample indices."""
    if set(one) != set(other):
        raise EvidenceError("two steps with other sample indices")
    pairs: Sequence[tuple[Answer, Answer]] = [(one[i], other[i]) for i in sorted(one)]
    return Pair(
        answers=len(pairs),
        tokens=sum(len(a.tokens) for a, _ in pairs),
        same_text=sum(a.tokens == b.tokens for a, b in pairs),
        same_log_probs=sum(a.tokens == b.tokens and a.log_probs == b.log_probs for a, b in pairs),
        same_rewards=sum(a.reward == b.reward for a, b in pairs),
    )
