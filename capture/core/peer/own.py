"""This trainer's side of the comparison: a run as its file says, with a row for every step.

`python -m capture.core.peer.own RUN_FILE --out FILE [--steps N] [--set KEY=VALUE]`. Evaluations,
checkpoints and weight audits are off, since the other side has none. The step ends when the engine
has the new weights.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import cli, configfile
from ..config import RunConfig
from ..errors import CoreRunError
from .rows import Device, Writer

_METRICS = re.compile(r" - (rollout) (\d+): (\{.*\})$")


def settings(
    file: str, changes: Sequence[str], *, steps: int | None, seed: int | None
) -> RunConfig:
    """The run file as both sides of the comparison run it."""
    given = dict(map(configfile.change, changes))
    if steps is not None:
        given["rollout.num_rollout"] = steps
    if seed is not None:
        given["seed"] = seed
    fixed = {
        "evaluation.interval": 0,
        "evaluation.at_start": False,
        "miles.check_weight_update_equal": False,
        "miles.save_interval": 0,
    }
    return configfile.load(file, {**given, **fixed})


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options that both sides have."""
    parser.add_argument("file", help="run file (TOML)")
    parser.add_argument("--out", required=True, help="file of the rows")
    parser.add_argument("--steps", type=int, help="optimizer steps; without it, the run file's")
    parser.add_argument("--seed", type=int, help="the run's seed")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")


def facts(config: RunConfig) -> dict[str, Any]:
    """The settings that both sides share, for the `setup` row."""
    import torch

    found: dict[str, Any] = {
        "model": Path(str(config.model.path)).name,
        "prompts": config.rollout.rollout_batch_size,
        "samples_per_prompt": config.rollout.n_samples_per_prompt,
        "samples_per_step": config.batch.global_batch_size,
        "max_new_tokens": config.rollout.max_new_tokens,
        "temperature": config.rollout.temperature,
        "lr": config.optimizer.lr,
        "forward_dtype": config.model.dtype,
        "master_dtype": "float32",
        "seed": config.seed,
        "device": config.model.device,
        "torch": torch.__version__,
    }
    if config.model.device == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
    return found


def logged(path: Path) -> dict[int, dict[str, float]]:
    """Collection -> values of its `rollout` line in a run log."""
    found = {}
    for line in path.read_text("utf-8").splitlines():
        if match := _METRICS.search(line):
            found[int(match[2])] = ast.literal_eval(match[3])
    return found


def measure(config: RunConfig, writer: Writer) -> None:
    """Run, and write a row for each step, which in such a run is a collection."""
    from .. import driver

    device = Device(config.model.device)
    log = Path(str(config.miles.save)) / "run.log"
    marks: dict[str, float] = {}
    ended: list[float] = []

    def boundary(name: str, index: int) -> None:
        if name not in ("collected", "trained", "published"):
            return
        marks[name] = now = device.now()
        if name != "published":
            return
        values = logged(log)[index]
        samples = config.samples_per_collection
        writer.row(
            "step",
            step=index,
            seconds=now - ended[-1] if ended else None,
            generation_seconds=marks["collected"] - ended[-1] if ended else None,
            train_seconds=marks["trained"] - marks["collected"],
            publish_seconds=now - marks["trained"],
            samples=samples,
            response_tokens=round(values["rollout/response_lengths"] * samples),
            reward=values["rollout/raw_reward"],
            truncated=values["rollout/truncated"],
            **device.memory(),
        )
        ended.append(device.now())

    driver.run(config, boundary=boundary)


def main(argv: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m capture.core.peer.own", description=__doc__)
    arguments(parser)
    given = parser.parse_args(argv)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="core-peer-"))
        changes = [*given.changes, f'miles.save="{folder}/run"']
        try:
            config = settings(given.file, changes, steps=given.steps, seed=given.seed)
            cli.early(config)
            writer = Writer(given.out)
            stack.callback(writer.close)
            writer.row("setup", side="core", configuration="core", **facts(config))
            measure(config, writer)
            writer.row("end")
        except CoreRunError as error:
            print(f"own: {configfile.one_line(error)}", file=sys.stderr)
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
