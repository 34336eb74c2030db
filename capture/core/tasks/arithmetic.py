"""Sums of two numbers, character by character, with a tokenizer of fifteen tokens.

A prompt is `<bos>07+25=`, its right answer `23<eos>`: 32 with the lowest digit first, the order in
which one adds, since a model of two layers learns it in seconds. The reward is 1 for exactly that
and 0 for anything else. Held-out questions are drawn from the same table and never trained on.

The demonstrations that warm a tiny model are right only in part, on purpose: a model of this size
learns the whole table from right ones, and nothing would be left for GRPO to improve. A policy
that copies them answers right less often than it could, so groups hold both rewards from the
first step on. What a run then shows is that the reward moves the policy on questions that it was
never trained on, not that a model discovers addition from reward alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ..config import RunConfig
from ..errors import ConfigError
from .base import Prompt

SPECIAL = ("<pad>", "<bos>", "<eos>")
TOKENS = (*SPECIAL, *"0123456789", "+", "=")
PAD, BOS, EOS = range(3)
IDS = {token: index for index, token in enumerate(TOKENS)}


class Arithmetic:
    """The task of one `[task]` table: the same seed gives the same questions in the same order."""

    name = "arithmetic"
    tokens = TOKENS
    vocab_size = len(TOKENS)
    pad_id, bos_id, eos_id = PAD, BOS, EOS

    def __init__(
        self, *, train: int, held_out: int, max_operand: int, seed: int, right: float
    ) -> None:
        questions = [(a, b) for a in range(max_operand + 1) for b in range(max_operand + 1)]
        if train + held_out > len(questions):
            raise ConfigError(
                f"task: {train} training and {held_out} held-out prompts, but max_operand ="
                f" {max_operand} gives only {len(questions)} questions"
            )
        random.Random(f"arithmetic/{seed}").shuffle(questions)
        self.right = right
        self.width = len(str(max_operand))
        self.held_out = self._prompts(questions[:held_out])
        self.train = self._prompts(questions[held_out : held_out + train])

    def _prompts(self, questions: Sequence[tuple[int, int]]) -> tuple[Prompt, ...]:
        found = []
        for index, (a, b) in enumerate(questions):
            text = f"{a:0{self.width}}+{b:0{self.width}}="
            found.append(Prompt(index, text, (BOS, *self.encode(text)), written(a + b)))
        return tuple(found)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, one a character. ValueError for any other character."""
        try:
            return [IDS[character] for character in text]
        except KeyError as error:
            raise ValueError(f"no token for {error.args[0]!r}") from None

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids; special tokens are left out."""
        return "".join(TOKENS[token] for token in tokens if token >= len(SPECIAL))

    def reward(self, prompt: Prompt, response: Sequence[int]) -> float:
        """1.0 when the response is the answer and the end token, and nothing else; else 0.0."""
        return float(list(response) == [*self.encode(prompt.answer), EOS])

    def demonstrations(self, count: int, seed: int) -> list[tuple[list[int], list[int]]]:
        """(prompt tokens, response tokens) of training prompts, drawn with replacement.

        A share `right` of them has the right answer; the others are off by 1, 2 or 3.
        """
        rng = random.Random(f"demonstrations/{seed}")
        found = []
        for _ in range(count):
            prompt = rng.choice(self.train)
            answer = read(prompt.answer)
            if rng.random() >= self.right:
                off = rng.choice((-3, -2, -1, 1, 2, 3))
                answer = answer + off if answer + off >= 0 else answer - off
            found.append((list(prompt.tokens), [*self.encode(written(answer)), EOS]))
        return found


def written(number: int) -> str:
    """A number as answers write it, lowest digit first."""
    return str(number)[::-1]


def read(answer: str) -> int:
    """The number that an answer means."""
    return int(answer[::-1])


def build(config: RunConfig) -> Arithmetic:
    """The task of a run's `[task]` table."""
    own = config.task
    return Arithmetic(
        train=own.train_prompts,
        held_out=own.eval_prompts,
        max_operand=own.max_operand,
        seed=own.seed,
        right=own.demonstrations_right,
    )
