"""What findings share: the environment, a tiny random model, samples, distances. Needs torch."""

from __future__ import annotations

import dataclasses
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..actor import CoreActor
from ..configfile import parse, with_changes
from ..packing import plan
from ..samples import Collection, Sample
from .record import RecordError

VOCABULARY = 96
ROOT = Path(__file__).resolve().parents[3]


def environment() -> dict[str, Any]:
    """Versions and the device, for a record."""
    return {
        "core": metadata.version("ai2-olmo-core"),
        "torch": torch.__version__.partition("+")[0],
        "transformers": metadata.version("transformers"),
        "python": ".".join(map(str, sys.version_info[:2])),
        "device": "cpu",
        "machine": platform.machine(),
        "stand_ins": 0,
    }


def tiny(family: str = "llama", seed: int = 0, **changes: Any) -> tuple[Any, dict]:
    """(HF configuration, state dict) of a random model, 2 layers of width 64, float32.

    Norms are not all 1, so that two of them in each other's place give other numbers.
    """
    import transformers

    kind = {"llama": "Llama", "qwen3": "Qwen3", "olmo2": "Olmo2"}[family]
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        **changes,
    }
    config = getattr(transformers, f"{kind}Config")(**settings)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).float()
    scatter(model.named_parameters(), seed)
    return config, {name: value.detach().clone() for name, value in model.state_dict().items()}


@torch.no_grad()
def scatter(parameters: Iterable[tuple[str, torch.Tensor]], seed: int, std: float = 0.15) -> None:
    """Fill weights: matrices normal with `std`, vectors uniform in [0.5, 1.5)."""
    generator = torch.Generator().manual_seed(seed)
    for _, weight in parameters:
        if weight.dim() > 1:
            weight.normal_(0, std, generator=generator)
        else:
            weight.uniform_(0.5, 1.5, generator=generator)


def hf_model(config: Any, state: Mapping[str, torch.Tensor]) -> Any:
    """The transformers model of a configuration with these weights, float32, for inference."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    model.load_state_dict(state)
    return model


def settings(**changes: Any) -> Any:
    """A run of 8 samples a collection, one optimizer step each; section__key=value changes it."""
    base = {
        "rollout": {"rollout_batch_size": 4, "n_samples_per_prompt": 2, "num_rollout": 20},
        "batch": {"global_batch_size": 8},
        "optimizer": {"lr": 1e-2, "max_grad_norm": 0.0},
        "scoring": {"max_mean_drift": 0.0},
    }
    return parse(with_changes(base, {key.replace("__", "."): v for key, v in changes.items()}))


def actor_of(source: tuple[Any, dict] | None = None, **changes: Any) -> CoreActor:
    """A trainer with the weights of `source`."""
    actor = CoreActor(settings(**changes))
    actor.init(source or tiny())
    return actor


def collection(seed: int = 0, count: int = 8, *, longer: int = 9) -> Collection:
    """Samples of unequal length; every second response is `longer` tokens longer."""
    rng = np.random.default_rng(seed)
    samples = []
    for number in range(count):
        prompt, response = int(rng.integers(2, 6)), int(rng.integers(2, 6))
        response += longer * (number % 2)
        samples.append(
            Sample(
                sample_id=number,
                group_id=number // 2,
                tokens=rng.integers(1, VOCABULARY, prompt + response),
                prompt_len=prompt,
                loss_mask=np.ones(response, bool),
                behaviour_logp=rng.normal(-4.5, 0.1, response),
                behaviour_version=np.zeros(response, np.int64),
                reward=float(rng.integers(2)),
                advantage=float(rng.normal()),
            )
        )
    return Collection(tuple(samples), 0)


def lopsided(data: Collection) -> Collection:
    """The same samples, but those of the second of two ranks keep one active token each."""
    step = plan(data.samples, world_size=2, optimizer_steps=1, pack_tokens=None).steps[0]
    few = {index for pack in step.ranks[1] for index in pack.sample_indexes}
    samples = []
    for index, sample in enumerate(data.samples):
        mask = np.ones(sample.response_len, bool)
        if index in few:
            mask[1:] = False
        samples.append(dataclasses.replace(sample, loss_mask=mask))
    return Collection(tuple(samples), data.index)


def flat(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """All tensors in one vector, float64, in order of their names."""
    return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])


def distance(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> float:
    """Euclidean distance of two sets of tensors over the length of the second."""
    one, other = flat(found), flat(wanted)
    return float((one - other).norm() / other.norm())


def gradients(actor: CoreActor) -> dict[str, torch.Tensor]:
    """Copies of the gradients by Core's names; whole ones under FSDP."""
    found = {}
    for name, weight in actor.named_parameters().items():
        gradient = weight.grad
        if gradient is not None:
            whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
            found[name] = whole.detach().clone()
    return found


def miles_wheel() -> Path:
    """The folder of the unpacked wheel `miles-rl`: MILES_RL, or where `make check-core` puts it."""
    folder = Path(os.environ.get("MILES_RL", ROOT / "build" / "miles-rl"))
    if not (folder / "miles").is_dir():
        raise RecordError(f"{folder} holds no Miles; `make check-core` puts it there")
    return folder


def beside_miles(program: Sequence[str], given: Any) -> Any:
    """What a program answers to `given`, in a process of its own that imports from `miles-rl`.

    program: arguments of Python. It gets three more: the folder of the wheel, a file with `given`,
    and the file for its answer, both of `torch.save`. RuntimeError with its stderr where it fails.
    """
    with tempfile.TemporaryDirectory(prefix="core-miles-") as scratch:
        files = [str(Path(scratch) / name) for name in ("given.pt", "answer.pt")]
        torch.save(given, files[0])
        done = subprocess.run(
            [sys.executable, *program, str(miles_wheel()), *files],
            env={**os.environ, "TORCHDYNAMO_DISABLE": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        return torch.load(files[1])
