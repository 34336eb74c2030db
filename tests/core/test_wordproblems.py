"""Word problems: the split, the chat, the reward, and that no torch is needed for them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tinygguf
from transformers import AutoTokenizer

from capture.core import configfile, smollm2, tasks
from capture.core.errors import ConfigError
from capture.core.tasks import wordproblems
from capture.core.tasks.wordproblems import score

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("words")
    tinygguf.write(made / "tiny.gguf")
    smollm2.write((made / "tiny.gguf").read_bytes(), made / "hf")
    return made / "hf"


def task(folder, **changes):
    own = {"name": "wordproblems", "train_prompts": 200, "eval_prompts": 40, **changes}
    return tasks.load(configfile.parse({"model": {"path": str(folder)}, "task": own}))


def test_the_split_is_disjoint_and_repeats_itself(folder):
    one, same, other = task(folder), task(folder), task(folder, seed=1)
    train, held_out = ({p.text for p in part} for part in (one.train, one.held_out))
    assert (len(train), len(held_out)) == (200, 40)
    assert not train & held_out
    assert not {text for text, _, _ in one.examples} & (train | held_out)
    assert (one.train, one.held_out) == (same.train, same.held_out)
    assert one.train != other.train


def test_more_training_prompts_leave_the_held_out_ones(folder):
    assert task(folder).held_out == task(folder, train_prompts=300).held_out


def test_tokens_are_those_of_the_models_own_chat(folder):
    own, reference = task(folder, shots=3), AutoTokenizer.from_pretrained(str(folder))
    for prompt in own.train[:5]:
        chat = own.messages(prompt.text)
        assert [message["role"] for message in chat] == ["user", "assistant"] * 3 + ["user"]
        ids = reference.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        assert prompt.tokens == tuple(ids)
    assert (own.eos_id, own.pad_id, own.vocab_size) == (2, 2, len(tinygguf.texts()))
    assert own.tokens[2] == "<|im_end|>"


@pytest.mark.parametrize("makers", [wordproblems.ONE_STEP, wordproblems.TWO_STEPS])
def test_worked_answers_hold_and_have_the_result_last(makers):
    """Every sum that a worked answer writes is right, and its last number is the result."""
    import random

    rng = random.Random(0)
    for maker in makers:
        for _ in range(50):
            text, worked, result = maker(rng, 12, "Ada", "Hugo", "keys")
            for sum_, value in re.findall(r"(\d+ [-+*] \d+) = (\d+)", worked):
                assert eval(sum_) == int(value)
            assert score(worked, str(result)) == 1.0
            assert result >= 0
            assert set(re.findall(r"\d+", text)) <= set(re.findall(r"\d+", worked))


def test_shares_of_steps_are_those_of_the_setting(folder):
    def share(own):
        double = ("brings", "do not fit in", "more than")
        return sum(any(word in p.text for word in double) for p in own.train) / len(own.train)

    assert share(task(folder, two_steps=0.0)) == 0.0
    assert share(task(folder, two_steps=1.0)) == 1.0
    assert 0.1 < share(task(folder, two_steps=0.2)) < 0.35


@pytest.mark.parametrize(
    ("text", "answer", "reward"),
    [
        ("It is 3 + 4 = 7. The answer is 7.", "7", 1.0),
        ("7 keys, so 8", "7", 0.0),
        ("", "7", 0.0),
        ("no number", "7", 0.0),
        ("1,007 keys", "1007", 1.0),
        ("10-3", "3", 1.0),
        ("it is -3", "3", 0.0),
        ("it is 7.5", "7", 0.0),
        ("it is 7.5", "5", 0.0),
        ("it is 7.", "7", 1.0),
        ("77", "7", 0.0),
    ],
)
def test_the_reward_is_of_the_last_number(text, answer, reward):
    assert score(text, answer) == reward


def test_special_tokens_count_for_nothing(folder):
    own = task(folder)
    prompt = own.train[0]
    good = [*own.encode(f"It is {prompt.answer}"), own.eos_id]
    assert own.reward(prompt, good) == own.reward(prompt, good[:-1]) == 1.0
    assert own.reward(prompt, [own.eos_id]) == 0.0


def test_demonstrations_are_rewarded_and_of_training_prompts(folder):
    own = task(folder, train_prompts=20)
    known = {prompt.tokens: prompt for prompt in own.train}
    for tokens, response in own.demonstrations(30, seed=1):
        assert response[-1] == own.eos_id
        assert own.reward(known[tuple(tokens)], response) == 1.0


def test_settings_that_give_too_few_are_one_line(folder, monkeypatch):
    with pytest.raises(ConfigError, match="at least 4"):
        task(folder, max_operand=3)
    monkeypatch.setattr(wordproblems, "NAMES", ("Ada", "Boris"))
    monkeypatch.setattr(wordproblems, "THINGS", ("keys",))
    monkeypatch.setattr(wordproblems, "TRIES", 3)
    with pytest.raises(ConfigError, match="gives fewer than 2040 word problems"):
        task(folder, max_operand=4, train_prompts=2000)


def test_a_model_folder_is_needed(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"needs model\.path"):
        tasks.load(configfile.parse({"task": {"name": "wordproblems"}}))
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(ConfigError, match="cannot be read"):
        task(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="no chat template"):
        task(tmp_path)


def test_no_torch_is_loaded(folder):
    program = (
        "import sys; from capture.core import configfile, tasks\n"
        f"own = {{'name': 'wordproblems', 'train_prompts': 9}}\n"
        f"c = configfile.parse({{'model': {{'path': {str(folder)!r}}}, 'task': own}})\n"
        "assert tasks.load(c).train\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
