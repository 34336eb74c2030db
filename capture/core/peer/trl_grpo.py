"""TRL's GRPOTrainer on the model, prompts, reward and settings of one of our run files.

`python -m capture.core.peer.trl_grpo RUN_FILE --configuration NAME --out FILE [--steps N]`. TRL
gets the questions of our collections in our order, as chats which its tokenizer must turn into our
tokens. One optimizer step a generation, no KL, the same clipping, reduction, optimizer numbers and
lengths, weights in float32 under bfloat16 autocast. What a configuration changes is in
CONFIGURATIONS; everything not named there or below is TRL's default.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import configfile, tasks
from ..config import RunConfig
from ..cursor import RolloutCursor
from ..errors import ContractError, CoreRunError, RefusedError
from ..tasks.wordproblems import score
from . import own
from .rows import Device, Writer

DEFAULT_BATCH = 8  # TRL's, and transformers', per_device_train_batch_size

_BFLOAT16 = "the weights that are trained are bfloat16, not float32"
_PLAIN = {"gradient_checkpointing": False}
_BFLOAT16_WEIGHTS = {**_PLAIN, "model_init_kwargs": {"dtype": "bfloat16"}}
_CONTINUOUS = {**_PLAIN, "use_transformers_continuous_batching": True}

#: name -> (samples of a forward, changes of GRPOConfig, how its numerics differ); candidates are
#: tried in this order. Continuous batching casts the weights to bfloat16 for good, and
#: a static cache holds the weights' dtype, so it fails under autocast of float32 weights.
CONFIGURATIONS: dict[str, tuple[int, dict[str, Any], str]] = {
    "default": (DEFAULT_BATCH, {}, ""),
    "plain256": (256, _PLAIN, ""),
    "continuous-graphs": (
        256,
        {**_CONTINUOUS, "transformers_continuous_batching_config": {"use_cuda_graph": True}},
        _BFLOAT16,
    ),
    "bfloat16": (256, _BFLOAT16_WEIGHTS, _BFLOAT16),
    "static": (256, {**_BFLOAT16_WEIGHTS, "cache_implementation": "static"}, _BFLOAT16),
    "continuous": (256, _CONTINUOUS, _BFLOAT16),
    "plain64": (64, _PLAIN, ""),
    "compiled": (256, {**_PLAIN, "torch_compile": True}, ""),
}


def questions(config: RunConfig, task: Any) -> list[Any]:
    """Prompts of all collections of the run, in our order."""
    cursor = RolloutCursor(
        pool=len(task.train),
        batch=config.rollout.rollout_batch_size,
        seed=config.seed,
        shuffle=config.rollout.shuffle,
    )
    draws = [cursor.draw() for _ in range(config.rollout.num_rollout)]
    return [task.train[index] for draw in draws for index in draw.prompts]


def refuse(config: RunConfig) -> None:
    """RefusedError for settings that TRL has not, or does in another way."""
    for wrong, what in (
        (config.task.name != "wordproblems", f"task {config.task.name}"),
        (config.steps_per_collection != 1, "several optimizer steps a collection"),
        (config.objective.kl_coef, "a KL term"),
        (config.objective.tis, "truncated importance sampling"),
        (config.objective.entropy_coef, "an entropy bonus"),
        (config.schedule.kind != "constant", f"schedule {config.schedule.kind}"),
    ):
        if wrong:
            raise RefusedError(f"the comparison with TRL has no {what}", "peer")


def training_arguments(config: RunConfig, name: str, folder: str) -> Any:
    """TRL's GRPOConfig of one of CONFIGURATIONS."""
    from trl import GRPOConfig

    forward, changes, _ = CONFIGURATIONS[name]
    rollout, optimizer, objective = config.rollout, config.optimizer, config.objective
    samples = config.samples_per_collection
    forward = min(forward, samples)
    if samples % forward:
        raise RefusedError(f"{samples} samples a step are no multiple of {forward}", "peer")
    settings: dict[str, Any] = {
        "output_dir": folder,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "use_cpu": config.model.device == "cpu",
        "seed": config.seed,
        "max_steps": rollout.num_rollout,
        "shuffle_dataset": False,
        "bf16": config.model.dtype == "bfloat16",
        "model_init_kwargs": {"dtype": "float32"},
        "per_device_train_batch_size": forward,
        "gradient_accumulation_steps": samples // forward,
        "num_generations": rollout.n_samples_per_prompt,
        "max_completion_length": rollout.max_new_tokens,
        "temperature": rollout.temperature,
        "top_p": rollout.top_p,
        "top_k": max(rollout.top_k, 0),
        "num_iterations": 1,
        "beta": 0.0,
        "epsilon": objective.eps_clip,
        "epsilon_high": objective.eps_clip_high or objective.eps_clip,
        "loss_type": "dapo" if objective.reduction == "token" else "grpo",
        "scale_rewards": "group" if objective.normalize_std else "none",
        "learning_rate": optimizer.lr,
        "lr_scheduler_type": "constant_with_warmup" if config.schedule.warmup_steps else "constant",
        "warmup_steps": config.schedule.warmup_steps,
        "adam_beta1": optimizer.beta1,
        "adam_beta2": optimizer.beta2,
        "adam_epsilon": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.max_grad_norm,
    }
    return GRPOConfig(**{**settings, **changes})


class Watch:
    """What one run of TRL's trainer does, step by step."""

    def __init__(self, config: RunConfig, writer: Writer) -> None:
        self.config, self.writer = config, writer
        self.device = Device(config.model.device)
        self.ended: float | None = None
        self.steps = 0
        self.generation = 0.0
        self.rewards: list[float] = []
        self.lengths: list[int] = []
        self.cut = 0
        self.dtypes: set[str] = set()

    def reward(self, completions: Any, answer: Any, completion_ids: Any, **_: Any) -> list[float]:
        """TRL's reward function: ours, on the text of the last message."""
        texts = [message[-1]["content"] for message in completions]
        found = [score(text, right) for text, right in zip(texts, answer, strict=True)]
        self.rewards += found
        self.lengths += [len(ids) for ids in completion_ids]
        longest = self.config.rollout.max_new_tokens
        self.cut += sum(len(ids) >= longest for ids in completion_ids)
        return found

    def step(self, model: Any) -> None:
        """The end of an optimizer step."""
        now = self.device.now()
        seconds = None if self.ended is None else now - self.ended
        samples = len(self.rewards)
        if samples != self.config.samples_per_collection:
            raise ContractError("peer-samples", f"{samples} samples in step {self.steps}")
        self.dtypes = {str(p.dtype).removeprefix("torch.") for p in model.parameters()}
        self.writer.row(
            "step",
            step=self.steps,
            seconds=seconds,
            generation_seconds=None if seconds is None else self.generation,
            train_seconds=None if seconds is None else seconds - self.generation,
            samples=samples,
            response_tokens=sum(self.lengths),
            reward=sum(self.rewards) / samples,
            truncated=self.cut / samples,
            master_dtypes=sorted(self.dtypes),
            **self.device.memory(),
        )
        self.steps += 1
        self.generation, self.cut = 0.0, 0
        self.rewards, self.lengths = [], []
        self.ended = self.device.now()


def trainer_of(config: RunConfig, name: str, folder: str, watch: Watch) -> Any:
    """TRL's trainer, watched. ContractError when its tokens of a prompt are not ours."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer

    class Timed(GRPOTrainer):
        """Notes how long a generation takes."""

        def _generate_single_turn(self, *arguments: Any, **named: Any) -> Any:
            started = watch.device.now()
            found = super()._generate_single_turn(*arguments, **named)
            watch.generation += watch.device.now() - started
            return found

    class Steps(TrainerCallback):
        """Tells when a step has ended."""

        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            watch.step(named["model"])

    task = tasks.load(config)
    prompts = questions(config, task)
    tokenizer = AutoTokenizer.from_pretrained(
        config.model.path, local_files_only=True, padding_side="left"
    )
    rows = [{"prompt": task.messages(p.text), "answer": p.answer} for p in prompts]
    for row, prompt in zip(rows, prompts, strict=True):
        theirs = tokenizer.apply_chat_template(
            row["prompt"], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        if tuple(theirs) != prompt.tokens:
            raise ContractError("peer-prompt", f"TRL reads other tokens in {prompt.text!r}")
    return Timed(
        model=config.model.path,
        reward_funcs=watch.reward,
        args=training_arguments(config, name, folder),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[Steps()],
    )


def main(argv: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m capture.core.peer.trl_grpo")
    own.arguments(parser)
    parser.add_argument("--configuration", choices=sorted(CONFIGURATIONS), default="default")
    given = parser.parse_args(argv)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    name = given.configuration
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="core-peer-"))
        try:
            config = own.settings(given.file, given.changes, steps=given.steps, seed=given.seed)
            refuse(config)
            writer = Writer(Path(given.out))
            stack.callback(writer.close)
            watch = Watch(config, writer)
            trainer = trainer_of(config, name, folder, watch)
            import transformers
            import trl

            forward, changes, numerics = CONFIGURATIONS[name]
            writer.row(
                "setup",
                side="trl",
                configuration=name,
                forward_samples=forward,
                changes=changes,
                numerics=numerics,
                trl=trl.__version__,
                transformers=transformers.__version__,
                **own.facts(config),
            )
            trainer.train()
            writer.row("end", master_dtypes=sorted(watch.dtypes))
        except CoreRunError as error:
            print(f"trl_grpo: {configfile.one_line(error)}", file=sys.stderr)
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
