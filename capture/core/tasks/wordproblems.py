"""Word problems with small whole numbers, for a model that has its own tokenizer.

A prompt is a chat: `task.shots` worked examples, then the question, rendered by the chat template
of the model folder. The reward is 1 when the last number of the answer is the right one, and 0
otherwise; how the answer is worded does not matter. Each question comes once, so that training and
held-out questions share none; names, things and numbers are drawn from the task's seed.

With the numbers of `examples/gpu.toml` SmolLM2-135M-Instruct answers between a fifth and a half of
the questions before any training (96 answers sampled on a CPU), so groups hold both rewards from
the first step on.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .base import Prompt

if TYPE_CHECKING:
    from ..config import RunConfig

NAMES = ("Ada", "Boris", "Carla", "Dinesh", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas",
         "Kofi", "Lena", "Mateo", "Nora", "Omar", "Petra", "Quinn", "Rosa", "Sven")  # fmt: skip
THINGS = ("lemons", "pencils", "buttons", "stamps", "candles", "plates", "ribbons", "pebbles",
          "tickets", "spoons", "bottles", "acorns", "feathers", "keys", "blankets")  # fmt: skip
TRIES = 100  # draws per wanted question before the settings are found too narrow
LEAST_TOP = 4

# A number: digits, groups of thousands, a fraction; a minus counts unless a digit stands before it.
_NUMBER = re.compile(r"(?:(?<![\d)])-)?\d+(?:,\d{3})*(?:\.\d+)?")

Question = tuple[str, str, int]
"""Text, worked answer, result."""


def _sum(r: random.Random, top: int, name: str, other: str, thing: str) -> Question:
    a, b = r.randint(2, top), r.randint(2, top)
    return (
        f"{name} finds {a} {thing} in the morning and {b} in the evening."
        f" How many {thing} does {name} find that day?",
        f"{name} finds {a} + {b} = {a + b} {thing}. The answer is {a + b}.",
        a + b,
    )


def _difference(r: random.Random, top: int, name: str, other: str, thing: str) -> Question:
    a = r.randint(4, top)
    b = r.randint(1, a - 1)
    return (
        f"A drawer holds {a} {thing}. {name} takes {b} of them out."
        f" How many {thing} stay in the drawer?",
        f"In the drawer stay {a} - {b} = {a - b} {thing}. The answer is {a - b}.",
        a - b,
    )


def _product(r: random.Random, top: int, name: str, other: str, thing: str) -> Question:
    a, b = r.randint(2, 9), r.randint(2, 9)
    return (
        f"{name} packs {a} crates with {b} {thing} in each. How many {thing} does {name} pack?",
        f"{name} packs {a} * {b} = {a * b} {thing}. The answer is {a * b}.",
        a * b,
    )


def _in_and_out(r: random.Random, top: int, name: str, other: str, thing: str) -> Question:
    a, b = r.randint(2, top), r.randint(2, top)
    c = r.randint(1, a + b - 1)
    return (
        f"{name} has {a} {thing}. {other} brings {b} more, and later {name} sells {c}."
        f" How many {thing} does {name} have now?",
        f"With those of {other}, {name} has {a} + {b} = {a + b} {thing}."
        f" After the sale, {a + b} - {c} = {a + b - c}. The answer is {a + b - c}.",
        a + b - c,
    )


def _crates_and_more(r: random.Random, top: int, name: str, other: str, thing: str) -> Question:
    a, b, c = r.randint(2, 9), r.randint(2, 9), r.randint(2, top)
    return (
        f"{name} packs {a} crates with {b} {thing} in each, and {c} {thing} do not fit in."
        f" How many {thing} are there?",
        f"In the crates are {a} * {b} = {a * b} {thing}."
        f" With the others, {a * b} + {c} = {a * b + c}. The answer is {a * b + c}.",
        a * b + c,
    )


def _more_than(r: random.Random, top: int, name: str, other: str, thing: str) -> Question:
    a, b = r.randint(2, top), r.randint(1, top)
    return (
        f"{name} owns {a} {thing}. {other} owns {b} more than {name}."
        f" How many {thing} do they own together?",
        f"{other} owns {a} + {b} = {a + b} {thing}."
        f" Together they own {a} + {a + b} = {2 * a + b}. The answer is {2 * a + b}.",
        2 * a + b,
    )


ONE_STEP: tuple[Callable[..., Question], ...] = (_sum, _difference, _product)
TWO_STEPS: tuple[Callable[..., Question], ...] = (_in_and_out, _crates_and_more, _more_than)


class WordProblems:
    """The task of one `[task]` table and one model folder."""

    name = "wordproblems"

    def __init__(
        self,
        folder: Path | str,
        *,
        train: int,
        held_out: int,
        max_operand: int,
        two_steps: float,
        shots: int,
        seed: int,
    ) -> None:
        self._tokenizer = ChatTokenizer(folder)
        own = self._tokenizer
        self.vocab_size, self.pad_id = own.vocab_size, own.pad_id
        self.bos_id, self.eos_id = own.bos_id, own.eos_id
        self.examples = _questions(shots, max_operand, two_steps, f"wordproblems/shots/{seed}")
        known = {text for text, _, _ in self.examples}
        drawn = _questions(
            train + held_out, max_operand, two_steps, f"wordproblems/{seed}", without=known
        )
        self._worked: dict[str, str] = {text: worked for text, worked, _ in drawn}
        self.held_out = self._prompts(drawn[:held_out])
        self.train = self._prompts(drawn[held_out:])

    def messages(self, question: str) -> list[dict[str, str]]:
        """The chat that ends with a question."""
        found = []
        for text, worked, _ in self.examples:
            found += [
                {"role": "user", "content": text},
                {"role": "assistant", "content": worked},
            ]
        return [*found, {"role": "user", "content": question}]

    def _prompts(self, questions: Sequence[Question]) -> tuple[Prompt, ...]:
        return tuple(
            Prompt(i, text, tuple(self._tokenizer.chat(self.messages(text))), str(result))
            for i, (text, _, result) in enumerate(questions)
        )

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """The vocabulary, by id."""
        return self._tokenizer.tokens()

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without begin or end."""
        return self._tokenizer.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids; special tokens are left out."""
        return self._tokenizer.decode(tokens)

    def reward(self, prompt: Prompt, response: Sequence[int]) -> float:
        """1.0 when the last number of the response is the result; else 0.0."""
        return score(self.decode(response), prompt.answer)

    def demonstrations(self, count: int, seed: int) -> list[tuple[list[int], list[int]]]:
        """(prompt tokens, tokens of the worked answer) of training prompts, with replacement."""
        rng = random.Random(f"demonstrations/{seed}")
        drawn = [rng.choice(self.train) for _ in range(count)]
        return [(list(p.tokens), [*self.encode(self._worked[p.text]), self.eos_id]) for p in drawn]


def score(text: str, answer: str) -> float:
    """1.0 when the last number in `text` is the whole number `answer`; else 0.0."""
    numbers = _NUMBER.findall(text)
    return float(bool(numbers) and numbers[-1].replace(",", "") == answer)


def _questions(
    count: int, top: int, two_steps: float, seed: str, without: set[str] = frozenset()
) -> list[Question]:
    """`count` different questions. ConfigError when the settings do not give as many."""
    if top < LEAST_TOP:
        raise ConfigError(f"task: max_operand = {top}: word problems need at least {LEAST_TOP}")
    rng = random.Random(seed)
    seen, found = set(without), []
    for _ in range(TRIES * count):
        if len(found) == count:
            break
        makers = TWO_STEPS if rng.random() < two_steps else ONE_STEP
        name, other = rng.sample(NAMES, 2)
        question = rng.choice(makers)(rng, top, name, other, rng.choice(THINGS))
        if question[0] not in seen:
            seen.add(question[0])
            found.append(question)
    if len(found) < count:
        raise ConfigError(f"task: max_operand = {top} gives fewer than {count} word problems")
    return found


class ChatTokenizer:
    """The tokenizer and the chat template of an HF folder, without transformers or torch."""

    def __init__(self, folder: Path | str) -> None:
        from tokenizers import Tokenizer

        folder = Path(folder)
        settings = _json(folder / "tokenizer_config.json")
        file = folder / "chat_template.jinja"
        template = file.read_text("utf-8") if file.is_file() else settings.get("chat_template")
        if not isinstance(template, str):
            raise ConfigError(f"model.path: {str(folder)!r}: no chat template")
        try:
            self._own = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:
            raise ConfigError(f"model.path: {str(folder / 'tokenizer.json')!r}: {error}") from None
        self._template = _compiled(template)
        self._special = {
            word: _text_of(settings.get(f"{word}_token")) for word in ("bos", "eos", "pad")
        }
        self.eos_id = self._id("eos")
        self.pad_id = self._id("pad") if self._special["pad"] else self.eos_id
        self.bos_id = self._id("bos") if self._special["bos"] else self.eos_id
        # a model may have more rows than its tokenizer has tokens
        self.vocab_size = int(_json(folder / "config.json").get("vocab_size", 0))

    def _id(self, word: str) -> int:
        found = self._own.token_to_id(self._special[word] or "")
        if found is None:
            raise ConfigError(f"model.path: the tokenizer has no {word} token")
        return int(found)

    def tokens(self) -> tuple[str, ...]:
        """Texts of all ids; '' for a row of the model without a token."""
        return tuple(self._own.id_to_token(i) or "" for i in range(self.vocab_size))

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a chat that the assistant goes on with."""
        special = {f"{word}_token": text for word, text in self._special.items() if text}
        text = self._template.render(messages=messages, add_generation_prompt=True, **special)
        return self.encode(text)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without begin or end."""
        return list(self._own.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids; special tokens are left out."""
        return str(self._own.decode(list(tokens), skip_special_tokens=True))


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path: {str(path)!r}: cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"model.path: {str(path)!r}: no table")
    return found


def _text_of(token: Any) -> str:
    """A special token as text; transformers writes it bare or with its settings."""
    return str(token.get("content", "")) if isinstance(token, dict) else token or ""


def _compiled(template: str) -> Any:
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    try:
        return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(
            template
        )
    except TemplateError as error:
        raise ConfigError(f"model.path: chat template: {error}") from None


def build(config: RunConfig) -> WordProblems:
    """The task of a run. ConfigError without `model.path`, whose tokenizer it needs."""
    if config.model.path is None:
        raise ConfigError('task.name: "wordproblems" needs model.path, for its tokenizer')
    own = config.task
    return WordProblems(
        config.model.path,
        train=own.train_prompts,
        held_out=own.eval_prompts,
        max_operand=own.max_operand,
        two_steps=own.two_steps,
        shots=own.shots,
        seed=own.seed,
    )
