"""What a task gives the driver, and how a run's `[task]` becomes one."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..errors import ConfigError, RefusedError

if TYPE_CHECKING:
    from ..config import RunConfig


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question: its place in its list, its text, its tokens, the expected answer as text."""

    index: int
    text: str
    tokens: tuple[int, ...]
    answer: str


class Task(Protocol):
    """Prompts and a reward. `train` and `held_out` share no question."""

    name: str
    tokens: tuple[str, ...]  # the vocabulary, by id
    vocab_size: int
    pad_id: int
    bos_id: int
    eos_id: int
    train: tuple[Prompt, ...]
    held_out: tuple[Prompt, ...]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without begin or end."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids; special tokens are left out."""

    def reward(self, prompt: Prompt, response: Sequence[int]) -> float:
        """The reward of the response tokens, which end with `eos_id` unless they were cut."""

    def demonstrations(self, count: int, seed: int) -> list[tuple[list[int], list[int]]]:
        """(prompt tokens, response tokens) to warm a tiny model with, of training prompts only."""


def load(config: RunConfig) -> Task:
    """The task of a run. ConfigError for a name that is no module here, or settings it refuses."""
    name = config.task.name
    module = None
    if re.fullmatch(r"[a-z][a-z0-9_]*", name) and name != "base":
        try:
            module = importlib.import_module(f".{name}", __package__)
        except ModuleNotFoundError as error:
            if error.name != f"{__package__}.{name}":
                raise
    if not hasattr(module, "build"):
        raise ConfigError(f"task.name: {name!r}: no module of capture.core.tasks")
    return module.build(config)


def check_lengths(config: RunConfig, task: Task) -> None:
    """Raise RefusedError where a prompt with its longest response does not fit the settings.

    A run would otherwise end when such a sample first comes, which may be after hours.
    """
    own = config.batch
    key, room = "pack_tokens", own.pack_tokens
    if own.document_tokens:
        key, room = "document_tokens", own.document_tokens
    # only the exact engine answers held-out prompts in rows of that size
    exact = config.engine.kind == "core"
    prompts = (*task.train, *task.held_out) if exact else task.train
    longest = max(len(prompt.tokens) for prompt in prompts)
    if room and longest + config.rollout.max_new_tokens > room:
        raise RefusedError(
            f"batch.{key} = {room}, rollout.max_new_tokens = {config.rollout.max_new_tokens}: the"
            f" longest prompt has {longest} tokens, and a sample is never split",
            key.replace("_", "-"),
        )
