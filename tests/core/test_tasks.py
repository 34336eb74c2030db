"""The arithmetic task and the tiny model: the split, the reward, the folder of a run."""

from __future__ import annotations

import json

import pytest
import torch
from tiny import hf_model, tiny

from capture.core import configfile, tasks, tinymodel
from capture.core.errors import ConfigError
from capture.core.tasks.arithmetic import BOS, EOS, PAD, read, written

SMALL = {"train_prompts": 60, "eval_prompts": 20, "max_operand": 9}


def config(**changes):
    settings = {"task": dict(SMALL), "model": {"d_model": 32, "ffn": 64, "warm_steps": 2}}
    for dotted, value in changes.items():
        table, _, key = dotted.partition("__")
        settings.setdefault(table, {})[key] = value
    return configfile.parse(settings)


def test_held_out_questions_are_never_training_questions():
    task = tasks.load(config())
    train, held_out = ({prompt.text for prompt in part} for part in (task.train, task.held_out))
    assert (len(train), len(held_out)) == (60, 20)
    assert not train & held_out
    demonstrated = {tuple(prompt) for prompt, _ in task.demonstrations(500, 1)}
    assert not demonstrated & {prompt.tokens for prompt in task.held_out}
    assert [prompt.index for prompt in task.train] == list(range(60))


def test_the_same_settings_give_the_same_questions_and_another_seed_others():
    assert tasks.load(config()).train == tasks.load(config()).train
    assert tasks.load(config()).train != tasks.load(config(task__seed=1)).train


def test_held_out_questions_do_not_depend_on_how_many_are_trained_on():
    assert tasks.load(config()).held_out == tasks.load(config(task__train_prompts=30)).held_out


def test_every_answer_is_right_and_alone_gets_the_reward():
    task = tasks.load(config())
    for prompt in (*task.train, *task.held_out):
        a, b = prompt.text.rstrip("=").split("+")
        assert read(prompt.answer) == int(a) + int(b)
        right = [*task.encode(prompt.answer), EOS]
        assert task.reward(prompt, right) == 1.0
        wrong = [*task.encode(written(int(a) + int(b) + 1)), EOS]
        for response in (wrong, right[:-1], [*right, EOS], [PAD, *right], [BOS, *right], [EOS], []):
            assert task.reward(prompt, response) == 0.0
        assert prompt.tokens == (BOS, *task.encode(prompt.text))


def test_answers_begin_with_the_lowest_digit():
    assert (written(32), read("23"), written(7), written(40)) == ("23", 32, "7", "04")


def test_text_survives_its_tokens():
    task = tasks.load(config())
    assert task.decode([BOS, *task.encode("07+25="), EOS, PAD]) == "07+25="
    assert task.vocab_size == len(task.tokens) == len(set(task.tokens))
    with pytest.raises(ValueError, match="no token for 'x'"):
        task.encode("1x")


@pytest.mark.parametrize("right", [0.0, 0.6, 1.0])
def test_demonstrations_are_right_as_often_as_they_should(right):
    task = tasks.load(config(task__demonstrations_right=right))
    answers = {prompt.tokens: prompt.answer for prompt in task.train}
    found = task.demonstrations(4000, 1)
    share = sum(
        response == [*task.encode(answers[tuple(prompt)]), EOS] for prompt, response in found
    ) / len(found)
    assert abs(share - right) < 0.04  # five standard deviations
    assert found == task.demonstrations(4000, 1)
    assert found != task.demonstrations(4000, 2)


def test_more_prompts_than_questions_are_refused():
    with pytest.raises(ConfigError, match="gives only 100 questions"):
        tasks.load(config(task__train_prompts=81))


@pytest.mark.parametrize("name", ["poetry", "base", "..config", "arithmetic.x", "Arithmetic"])
def test_a_task_that_is_no_module_here_is_refused(name):
    with pytest.raises(ConfigError, match=r"task\.name"):
        tasks.load(config(task__name=name))


def test_a_tiny_folder_is_complete_and_its_tokenizer_is_the_tasks(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    own = config()
    task = tasks.load(own)
    folder = tinymodel.prepare(own, task, tmp_path / "start")
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    text = task.train[3].text
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == task.encode(text)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (EOS, PAD)
    model = AutoModelForCausalLM.from_pretrained(str(folder))
    assert model.config.vocab_size == task.vocab_size
    assert not list(tmp_path.glob("*.part"))


def test_a_tiny_folder_is_kept_for_the_same_settings_and_made_anew_for_others(tmp_path):
    own = config()
    task = tasks.load(own)
    weights = tinymodel.prepare(own, task, tmp_path / "start") / "model.safetensors"
    first, made = weights.read_bytes(), weights.stat().st_mtime_ns
    tinymodel.prepare(own, task, tmp_path / "start")
    assert weights.stat().st_mtime_ns == made
    tinymodel.prepare(config(model__seed=9), task, tmp_path / "start")
    assert weights.read_bytes() != first
    tinymodel.prepare(own, task, tmp_path / "start")
    assert weights.read_bytes() == first  # the same settings give the same bytes


def test_the_weights_follow_the_runs_seed_unless_they_have_their_own():
    assert tinymodel.seed_of(config()) == config().seed
    assert tinymodel.seed_of(config(model__seed=5)) == 5


@pytest.mark.parametrize("family", ["llama", "qwen3", "olmo2"])
def test_warming_lowers_the_loss_and_leaves_the_random_state(family):
    own = config(model__family=family)
    task = tasks.load(own)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    losses = [
        tinymodel.warm(tinymodel.build(own, task), task, steps=steps, seed=1) for steps in (1, 40)
    ]
    assert losses[1] < 0.7 * losses[0]
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_folder_with_another_vocabulary_is_refused(tmp_path):
    settings, state = tiny()
    model = hf_model(settings, state)
    model.save_pretrained(str(tmp_path))
    own = config(model__path=str(tmp_path))
    with pytest.raises(ConfigError, match="vocabulary of 96 tokens, but task arithmetic"):
        tinymodel.prepare(own, tasks.load(own), tmp_path / "start")
    found = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**found, "vocab_size": 15}))
    assert tinymodel.prepare(own, tasks.load(own), tmp_path / "start") == tmp_path
