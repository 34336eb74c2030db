"""Which check finds which fault of a publication: faults are injected into the transfer and run.

The page says that the same-version round trip finds missing transfers and is no proof of the export
mapping. `matrix` measures that instead of believing it: every fault against every check, on real
weights, and once without a fault.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from . import publish
from .errors import ContractError, CoreRunError, PublicationError
from .publish import Serving

CHECKS = ("strict load", "HF comparison", "round trip", "log-probability")


@dataclass(frozen=True, slots=True)
class Fault:
    """kind: what goes wrong in a transfer. always: in each one, or only in the first.

    A stale transfer carries the last version's tensors under the new version; a lost one carries
    none and is taken for complete.
    """

    kind: str
    always: bool

    @property
    def name(self) -> str:
        """As a table shows it."""
        if self.kind == "none":
            return "no fault"
        return f"{self.kind}, {'every transfer' if self.always else 'one transfer'}"


FAULTS = (
    Fault("none", True),
    *(Fault(kind, always)
      for kind in ("dropped tensor", "swapped mapping", "stale weights", "lost transfer")
      for always in (False, True)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """One fault against one check. value: mean nats a token of the log-probability check."""

    fault: str
    check: str
    caught: bool
    value: float | None
    detail: str


class FaultyTransport:
    """An engine behind a transfer that goes wrong. names: the pair swapped; the first is dropped.

    old: the tensors of the last version. strict: whether the engine insists on every tensor.
    """

    def __init__(
        self,
        engine: Any,
        fault: Fault,
        names: tuple[str, str],
        old: Mapping[str, Any],
        *,
        strict: bool,
    ) -> None:
        self._engine, self._fault, self._names, self._strict = engine, fault, names, strict
        self._old = old
        self._loads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def load(self, named: Iterable[tuple[str, Any]], version: int) -> Any:
        """Hand the stream on, damaged where the fault applies."""
        self._loads += 1
        applies = self._fault.always or self._loads == 1
        stream = self._damaged(named) if applies else named
        return self._engine.load(stream, version, strict=self._strict)

    def _damaged(self, named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        one, other = self._names
        for name, tensor in named:
            if self._fault.kind == "lost transfer":
                continue
            if self._fault.kind == "stale weights":
                tensor = self._old[name]
            if self._fault.kind == "dropped tensor" and name == one:
                continue
            if self._fault.kind == "swapped mapping":
                name = {one: other, other: one}.get(name, name)
            yield name, tensor


def matrix(
    *,
    engine: Callable[[], Any],
    export: Callable[[], Iterable[tuple[str, Any]]],
    score: Callable[[Sequence[Any]], Sequence[Any]],
    change: Callable[[], Sequence[Any]],
    names: tuple[str, str],
    tolerance: float,
) -> list[Cell]:
    """Run every fault against every check.

    engine: a new one with the HF weights. export and score: the trainer's. change: moves the
    trainer's weights by one version and gives the samples to score. names: two of one shape.
    """
    old = {name: tensor.detach().clone() for name, tensor in export()}

    def serving(fault: Fault, *, strict: bool = False) -> Serving:
        transport = FaultyTransport(engine(), fault, names, old, strict=strict)
        return Serving(transport, bucket_bytes=1 << 20)

    cells = []
    for fault in FAULTS:
        own = serving(fault)
        error = _error(partial(publish.initial_comparison, own, export, 0))
        cells.append(_cell(fault, "HF comparison", error))
    samples = change()
    for fault in FAULTS:
        own = serving(fault, strict=True)
        cells.append(_cell(fault, "strict load", _error(partial(own.publish, export(), 1))))
        own = serving(fault)
        own.publish(export(), 1)
        cells.append(_scored(fault, own, score, samples, tolerance))
        error = _error(partial(publish.same_version_round_trip, own, export))
        cells.append(_cell(fault, "round trip", error))
    order = {name: place for place, name in enumerate(CHECKS)}
    rows = {fault.name: place for place, fault in enumerate(FAULTS)}
    return sorted(cells, key=lambda cell: (rows[cell.fault], order[cell.check]))


def _error(action: Callable[[], Any]) -> CoreRunError | None:
    try:
        action()
    except (PublicationError, ContractError) as error:
        return error
    return None


def _cell(fault: Fault, check: str, error: CoreRunError | None) -> Cell:
    detail = "" if error is None else " ".join(str(error).split())[:200]
    return Cell(fault.name, check, error is not None, None, detail)


def _scored(fault: Fault, serving: Serving, score: Any, samples: Any, tolerance: float) -> Cell:
    gap = publish.log_probability_gap(serving, score, samples)
    caught = not gap.mean <= tolerance
    detail = f"mean {gap.mean:.3g}, largest {gap.largest:.3g} nats, tolerance {tolerance:g}"
    return Cell(fault.name, "log-probability", caught, gap.mean, detail)


def markdown(cells: Sequence[Cell]) -> str:
    """The matrix as a table, one row a fault."""
    found = {(cell.fault, cell.check): cell for cell in cells}
    lines = [f"| fault | {' | '.join(CHECKS)} |", "| --- " * (len(CHECKS) + 1) + "|"]
    for fault in FAULTS:
        row = ["caught" if found[fault.name, check].caught else "missed" for check in CHECKS]
        if fault.kind == "none":
            row = ["alarm" if word == "caught" else "passes" for word in row]
        lines.append(f"| {fault.name} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m capture.core.detect`: a tiny model, the real trainer and the real engine."""
    parser = argparse.ArgumentParser(
        prog="python -m capture.core.detect",
        description="Inject faults into weight transfers and see which check finds them.",
        epilog="Exit codes: 0 the matrix was computed, 1 a check alarmed without a fault.",
    )
    parser.add_argument("--json", action="store_true", help="the cells as JSON")
    given = parser.parse_args(argv)
    cells = on_tiny_model()
    if given.json:
        print(json.dumps([asdict(cell) for cell in cells], indent=1))
    else:
        print(markdown(cells), end="")
    return 1 if any(c.caught for c in cells if c.fault == FAULTS[0].name) else 0


def on_tiny_model(tolerance: float = 1e-4, seed: int = 0) -> list[Cell]:
    """The matrix of a tiny random Llama under OLMo-core, after one optimizer step."""
    import tempfile

    import numpy as np

    from . import configfile, engines, tasks, tinymodel
    from .actor import CoreActor
    from .rollouts import seed_of
    from .samples import Collection, Sample

    config = configfile.parse(
        {
            "model": {"d_model": 32, "ffn": 64, "seed": seed},
            "optimizer": {"lr": 1e-3},
            "rollout": {"rollout_batch_size": 4, "n_samples_per_prompt": 4},
            "batch": {"global_batch_size": 16},
        }
    )
    task = tasks.load(config)
    with tempfile.TemporaryDirectory(prefix="core-detect-") as scratch:
        folder = tinymodel.prepare(config, task, f"{scratch}/model")
        actor = CoreActor(config)
        actor.init(folder)

        def engine() -> Any:
            return engines.build(config, folder, eos_id=task.eos_id, pad_id=task.pad_id)

        def change() -> Sequence[Any]:
            prompts = [prompt.tokens for prompt in task.train[:4]]
            made = engine().generate(prompts, n=4, max_new_tokens=8, seed=seed_of("detect", seed))
            samples = [
                Sample(
                    sample_id=i,
                    group_id=i // 4,
                    tokens=np.concatenate([np.asarray(prompts[i // 4], np.int64), one.tokens]),
                    prompt_len=len(prompts[i // 4]),
                    loss_mask=np.ones(len(one.tokens), bool),
                    behaviour_logp=one.logps,
                    behaviour_version=one.versions,
                    reward=float(i % 2),
                    advantage=1.0 if i % 2 else -1.0,
                    finish=one.finish,
                )
                for i, one in enumerate(made)
            ]
            actor.train(Collection(tuple(samples), 0), 0)
            return samples

        layer = "model.layers.0.mlp"
        cells = matrix(
            engine=engine,
            export=actor.export,
            score=actor.score,
            change=change,
            names=(f"{layer}.gate_proj.weight", f"{layer}.up_proj.weight"),
            tolerance=tolerance,
        )
        actor.close()
    return cells


if __name__ == "__main__":
    sys.exit(main())
