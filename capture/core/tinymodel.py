"""A tiny model for runs without any download: random weights, the task's own vocabulary.

Writes an HF folder (configuration, weights, tokenizer), which the trainer imports and the engine
starts from, as both do with a real model. `warm_steps` supervised steps on the task's
demonstrations come first, in plain torch: a random model never answers, every group would have
reward 0, and GRPO would have nothing to learn from.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ConfigError, RefusedError

if TYPE_CHECKING:
    from .config import RunConfig
    from .tasks import Task

FACTS = "tinymodel.json"
WARM_BATCH = 64  # demonstrations of a supervised step
WARM_LR = 3e-3


def prepare(config: RunConfig, task: Task, folder: Path | str) -> Path:
    """The HF folder of a run: `model.path`, or a tiny model written into `folder`.

    A tiny model that is there already with the same settings is kept. ConfigError when the
    vocabulary of `model.path` is not the task's.
    """
    if config.model.path is not None:
        path = Path(config.model.path)
        found = json.loads((path / "config.json").read_bytes()).get("vocab_size")
        if found != task.vocab_size:
            raise ConfigError(
                f"model.path: {config.model.path!r}: vocabulary of {found} tokens, but task"
                f" {task.name} has its own of {task.vocab_size}"
            )
        return path
    folder = Path(folder)
    facts = facts_of(config)
    try:
        if json.loads((folder / FACTS).read_text()) == facts:
            return folder
    except (OSError, ValueError):
        pass
    write(config, task, folder)
    return folder


def facts_of(config: RunConfig) -> dict[str, Any]:
    """The settings that a tiny model depends on."""
    run = {"path", "backend", "dtype", "device", "threads", "dropout"}
    if config.model.family != "qwen3_moe":
        run |= {"n_experts", "experts_per_token", "expert_ffn"}
    own = {**config.model.model_dump(exclude=run), "seed": seed_of(config)}
    return {"model": own, "task": config.task.model_dump()}


def seed_of(config: RunConfig) -> int:
    """The seed of a tiny model's weights and demonstrations."""
    return config.seed if config.model.seed is None else config.model.seed


def write(config: RunConfig, task: Task, folder: Path | str) -> None:
    """Make the model and put it into `folder`, which appears whole or not at all."""
    folder = Path(folder)
    model = build(config, task)
    if config.model.warm_steps:
        warm(model, task, steps=config.model.warm_steps, seed=seed_of(config))
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    model.save_pretrained(str(part))
    tokenizer(task).save_pretrained(str(part))
    (part / FACTS).write_text(json.dumps(facts_of(config), indent=1) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


def build(config: RunConfig, task: Task) -> Any:
    """The transformers model with random float32 weights; other random numbers stay as they are."""
    import torch
    import transformers

    own = config.model
    classes = {"llama": "Llama", "qwen3": "Qwen3", "olmo2": "Olmo2", "qwen3_moe": "Qwen3Moe"}
    if own.family not in classes:
        raise RefusedError(f"no tiny model of family {own.family}", "model-family")
    experts = {}
    if own.family == "qwen3_moe":
        experts = {
            "num_experts": own.n_experts,
            "num_experts_per_tok": own.experts_per_token,
            "moe_intermediate_size": own.expert_ffn,
            "norm_topk_prob": True,
        }
    settings = getattr(transformers, classes[own.family] + "Config")(
        vocab_size=task.vocab_size,
        hidden_size=own.d_model,
        intermediate_size=own.ffn,
        num_hidden_layers=own.n_layers,
        num_attention_heads=own.n_heads,
        num_key_value_heads=own.n_kv_heads,
        head_dim=own.d_model // own.n_heads,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=task.bos_id,
        eos_token_id=task.eos_id,
        pad_token_id=task.pad_id,
        use_cache=True,
        **experts,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(config))
        model = getattr(transformers, classes[own.family] + "ForCausalLM")(settings)
    return model.to(torch.float32)


def warm(model: Any, task: Task, *, steps: int, seed: int) -> float:
    """Train on demonstrations, the loss on response tokens only; give the last loss, in nats."""
    import torch

    pairs = task.demonstrations(steps * WARM_BATCH, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=WARM_LR, weight_decay=0.0)
    last = float("nan")
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = WARM_LR * (1 - step / steps)
        ids, labels = _rows(pairs[step * WARM_BATCH : (step + 1) * WARM_BATCH], task.pad_id)
        logits = model(input_ids=torch.tensor(ids)).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), torch.tensor(labels)[:, 1:].flatten(), ignore_index=-100
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        last = float(loss.detach())
    model.eval()
    return last


def _rows(
    pairs: list[tuple[list[int], list[int]]], pad_id: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Token rows and label rows of equal length; padding is on the right, where nothing sees it."""
    longest = max(len(prompt) + len(response) for prompt, response in pairs)
    ids, labels = [], []
    for prompt, response in pairs:
        space = longest - len(prompt) - len(response)
        ids.append(prompt + response + [pad_id] * space)
        labels.append([-100] * len(prompt) + response + [-100] * space)
    return ids, labels


def tokenizer(task: Task) -> Any:
    """The task's vocabulary as a transformers tokenizer, one token a character."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    own = Tokenizer(
        models.WordLevel(
            {text: index for index, text in enumerate(task.tokens)},
            unk_token=task.tokens[task.pad_id],
        )
    )
    own.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=own,
        bos_token=task.tokens[task.bos_id],
        eos_token=task.tokens[task.eos_id],
        pad_token=task.tokens[task.pad_id],
    )
