"""The run log of this trainer, in the line shapes of Miles of 2026-08-21.

The capture kit reads such a log as it reads one of Miles: `kit.py summarize`, `health`, `compare`,
`report`, `diagnose`. Only metrics that this trainer knows are written, under Miles' keys with
Miles' meanings; a key outside KEYS is refused. `runmetrics` computes the values. Needs no torch.

Shapes: `# ` lines at the top and the end; between them
`[YYYY-MM-DD HH:MM:SS.mmm TAG] file.py:N - KIND N: {python dict}`, times in UTC.
Contract records go in as `training_contract K: {json}`, a line that no metric reader takes.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from .contract import TrainingRecord
from .errors import ContractError

TRAINER = "actor_cell0_rank0"
ROLLOUT = "rollout_manager"
DRIVER = "main"

_STATISTICS = ("mean", "median", "max", "min")

KEYS: dict[str, tuple[str, ...]] = {
    "rollout-perf": (
        *(f"rollout/response_len/{name}" for name in _STATISTICS),
        "rollout/zero_std/count_R",
        "rollout/zero_std/all_zero_percentage",
        "rollout/zero_std/all_one_percentage",
        "rollout/truncated_ratio",
        *(f"rollout/weight_version/{name}" for name in _STATISTICS),
        "rollout/weight_version/mixed_version_ratio",
        "rollout/fully_async/queue_size",
        "rollout/fully_async/stale_groups_filtered",
        "rollout/fully_async/avg_staleness",
        "rollout/fully_async/max_staleness",
        "perf/rollout_time",
        "perf/tokens_per_gpu_per_sec",
        "perf/effective_tokens_per_gpu_per_sec",
        "perf/longest_sample_tokens_per_sec",
        "perf/longest_effective_sample_tokens_per_sec",
    ),
    "rollout": (
        "rollout/response_lengths",
        "rollout/rewards",
        "rollout/truncated",
        "rollout/rollout_log_probs",
        "rollout/raw_reward",
        "rollout/total_lengths",
        "rollout/ref_log_probs",
        "rollout/log_probs",
        "rollout/entropy",
        "rollout/advantages",
        "rollout/returns",
    ),
    "step": (
        "train/loss",
        "train/pg_loss",
        "train/entropy_loss",
        "train/pg_clipfrac",
        "train/ppo_kl",
        "train/train_rollout_logprob_abs_diff",
        "train/train_rollout_kl",
        "train/kl_loss",
        "train/tis",
        "train/tis_clipfrac",
        "train/tis_abs",
        "train/grad_norm",
        "train/lr-pg_0",
        "train/step",
    ),
    "perf": (
        "perf/sleep_time",
        "perf/wake_up_time",
        "perf/update_weights_time",
        "perf/train_wait_time",
        "perf/train_time",
        "perf/log_probs_time",
        "perf/ref_log_probs_time",
        "perf/actor_train_time",
        "perf/actor_train_tok_per_s",
        "perf/step_time",
        "perf/wait_time_ratio",
    ),
    "eval": (
        "eval/NAME",
        "eval/NAME-truncated_ratio",
        "eval/NAME-none_reward_ratio",
        "eval/NAME-pass@K",
        "eval/duration_seconds",
        "eval/lag_steps",
    ),
}
"""Kind of line to the keys it may hold, as `manuals/data/miles-metrics.yaml` lists them.

Words in capitals stand for a variable part.
"""

_KINDS = {  # kind -> (word on the line, tag)
    "rollout-perf": ("perf", ROLLOUT),
    "rollout": ("rollout", TRAINER),
    "step": ("step", TRAINER),
    "perf": ("perf", TRAINER),
    "eval": ("eval", ROLLOUT),
}
_VARIABLE = {"NAME": r"[\w.]+", "R": r"-?\d+(?:\.\d+)?", "K": r"\d+"}
_PART = re.compile(r"(?<=/)NAME(?=$|[-/])|(?<=_)R$|(?<=@)K$")


def _pattern(keys: tuple[str, ...]) -> re.Pattern[str]:
    forms = []
    for key in keys:
        found = _PART.split(key)
        words = [_VARIABLE[m[0]] for m in _PART.finditer(key)] + [""]
        forms.append("".join(re.escape(a) + b for a, b in zip(found, words, strict=True)))
    return re.compile("|".join(forms))


_ALLOWED = {kind: _pattern(keys) for kind, keys in KEYS.items()}


class RunLog:
    """Writes one run's log; every line is on disk before the call returns.

    path: file to append to; a second run in the same file begins with its own `# run` line.
    name: of the run. command: what started it. notes: header lines, for example versions.
    gpu: `NAME, DRIVER, TOTAL MiB, USED MiB` as nvidia-smi prints it, or None on a CPU.
    echo: also write each line there. clock: seconds since the epoch.
    Raises ContractError for a key that Miles does not log and for a value that is no number.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        name: str,
        command: str | list[str],
        notes: tuple[str, ...] = (),
        gpu: str | None = None,
        echo: TextIO | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = Path(path)
        self._clock = clock
        self._echo = echo
        self._started = clock()
        self._ended = False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._stream: TextIO = self.path.open("a", encoding="utf-8", newline="\n")
        text = command if isinstance(command, str) else shlex.join(command)
        self._header(f"run {name}")
        self._header(f"date {_utc(self._started)}")
        self._header(f"command: {text}")
        self._header("trainer OLMo-core, not Miles; line shapes of Miles 2026-08-21")
        if gpu:
            self._header(f"gpu {gpu}")
        for note in notes:
            self._header(note)

    def metrics(self, kind: str, number: int, values: Mapping[str, float]) -> None:
        """Write one numbered dict line. kind: a key of KEYS. number: rollout id, or update id."""
        word, tag = _KINDS[kind]
        numbers = {}
        for key, value in values.items():
            if not _ALLOWED[kind].fullmatch(key):
                raise ContractError("run-log", f"{key!r} is no key of a {kind} line of Miles")
            numbers[key] = _number(key, value)
        self._record(tag, f"{word} {number}: {_python(numbers)}")

    def rollout_perf(self, number: int, values: Mapping[str, float]) -> None:
        """`perf N` of the rollout side: after generation, before the trainer gets the data."""
        self.metrics("rollout-perf", number, values)

    def rollout(self, number: int, values: Mapping[str, float]) -> None:
        """`rollout N`: before the first update of the collection."""
        self.metrics("rollout", number, values)

    def step(self, number: int, values: Mapping[str, float]) -> None:
        """`step K`, K from 0: after each optimizer update."""
        self.metrics("step", number, values)

    def perf(self, number: int, values: Mapping[str, float]) -> None:
        """`perf N` of the trainer side: at the end of a collection's training."""
        self.metrics("perf", number, values)

    def eval(self, number: int, values: Mapping[str, float]) -> None:
        """`eval N`: when an evaluation has finished."""
        self.metrics("eval", number, values)

    def contract(self, record: TrainingRecord) -> None:
        """The contract record of a step, the same JSON as in its file."""
        tag = f"actor_cell0_rank{record.rank}"
        self._record(tag, f"training_contract {record.step - 1}: {record.line()}")

    def timer(self, name: str, seconds: float) -> None:
        """A finished timer: Miles prints tenths of a second."""
        self._record(TRAINER, f"Timer {name} end (elapsed: {seconds:.1f}s)")

    def saved(self, folder: str | Path) -> None:
        """A checkpoint that is complete."""
        self._record(TRAINER, f"Saved checkpoint to {folder}")

    def loaded(self, what: str, folder: str | Path) -> None:
        """What a resume loaded. what: model, optimizer, LR scheduler, RNG state or data.

        The bracketed word is part of the shape by which readers know the line.
        """
        if what == "data":
            self._record(ROLLOUT, f"load metadata from {folder}")
        elif what in ("model", "optimizer", "LR scheduler", "RNG state"):
            self._record(TRAINER, f"[FSDP] Loaded {what} from {folder}")
        else:
            raise ContractError("run-log", f"{what!r} is no part of a checkpoint that Miles names")

    def note(self, text: str, tag: str = DRIVER) -> None:
        """A free line of the driver, for example a publication."""
        self._record(tag, text)

    def end(self, status: int) -> None:
        """The last line: exit status and wall time. Later lines are refused."""
        seconds = round(self._clock() - self._started)
        self._header(f"end {_utc(self._clock())} rc={status} seconds={seconds}")
        self.close()

    def close(self) -> None:
        """Close the file without an end line, as a killed run leaves it."""
        self._ended = True
        self._stream.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._ended:
            self.end(0 if kind is None else 130 if issubclass(kind, KeyboardInterrupt) else 1)

    def _header(self, text: str) -> None:
        self._write(f"# {' '.join(text.split())}")

    def _record(self, tag: str, text: str) -> None:
        now = self._clock()
        moment = datetime.fromtimestamp(now, UTC)
        stamp = f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"
        frame = sys._getframe(2)
        source = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        self._write(f"[{stamp} {tag}] {source} - {' '.join(text.splitlines())}")

    def _write(self, line: str) -> None:
        if self._ended:
            raise ContractError("run-log", f"{self.path}: a line after the end")
        self._stream.write(line + "\n")
        self._stream.flush()
        if self._echo is not None:
            print(line, file=self._echo, flush=True)


def next_path(folder: str | Path) -> Path:
    """`run.log`, or `run-2.log` and so on when a run has logged there: one file for each start."""
    folder, number = Path(folder), 1
    while (path := folder / ("run.log" if number == 1 else f"run-{number}.log")).exists():
        number += 1
    return path


def _number(key: str, value: object) -> float | int:
    if hasattr(value, "item"):
        value = value.item()  # numpy and torch scalars would print their type
    if type(value) not in (int, float):
        raise ContractError("run-log", f"{key}: {value!r} is no number")
    return value


def _python(values: Mapping[str, float]) -> str:
    return "{" + ", ".join(f"{key!r}: {value!r}" for key, value in values.items()) + "}"


def _utc(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
