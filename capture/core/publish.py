"""Publication: the trainer's weights, streamed into the serving engine in flattened buckets.

No HF folder is written. The exporter's tensors are copied one after another into a flat buffer of
bounded size; full buffers are handed to the engine, which copies its tensors out of them. Until the
last bucket has landed the serving side is torn: it has no version and generates nothing.
Loads torch only when tensors move.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .errors import ContractError, CoreRunError, PublicationError

if TYPE_CHECKING:
    import torch

Named = tuple[str, "torch.Tensor"]


@dataclass(frozen=True, slots=True)
class Publication:
    """One transfer: its version, what moved, and how long it took.

    largest_bucket is at most bucket_bytes unless a single tensor is larger, which then has a bucket
    of its own. repeated_version marks the second transfer of a round trip.
    """

    version: int
    tensors: int
    bytes: int
    buckets: int
    largest_bucket: int
    seconds: float
    repeated_version: bool

    def as_json(self) -> dict[str, Any]:
        """Plain data for a record or a log line."""
        return asdict(self)


class _Tally:
    """Counts one stream while the engine drains it."""

    def __init__(self) -> None:
        self.tensors = self.bytes = self.buckets = self.largest = 0
        self.finished = False


def flattened(named: Iterable[Named], bucket_bytes: int, tally: _Tally) -> Iterator[Named]:
    """The same tensors, as views into flat buffers of at most `bucket_bytes`.

    A buffer holds one dtype of one device. Whoever takes a view copies it, so that at most two
    buffers are alive. Raises PublicationError for a name that comes twice.
    """
    seen: set[str] = set()
    waiting: list[Named] = []
    size = 0
    for name, tensor in named:
        if name in seen:
            raise PublicationError(f"{name} was exported twice")
        seen.add(name)
        tensor = tensor.detach()
        length = tensor.numel() * tensor.element_size()
        kind = (tensor.dtype, tensor.device)
        if waiting and (size + length > bucket_bytes or kind != _kind(waiting[0][1])):
            yield from _landed(waiting, size, tally)
            waiting, size = [], 0
        waiting.append((name, tensor))
        size += length
    if waiting:
        yield from _landed(waiting, size, tally)
    tally.finished = True


def _kind(tensor: torch.Tensor) -> tuple[Any, Any]:
    return tensor.dtype, tensor.device


def _landed(waiting: Sequence[Named], size: int, tally: _Tally) -> Iterator[Named]:
    import torch

    flat = torch.cat([tensor.reshape(-1) for _, tensor in waiting])
    tally.buckets += 1
    tally.bytes += size
    tally.largest = max(tally.largest, size)
    start = 0
    for name, tensor in waiting:
        tally.tensors += 1
        yield name, flat[start : start + tensor.numel()].view(tensor.shape)
        start += tensor.numel()


class Serving:
    """The one door to the engine: who generates, and who replaces its weights.

    Generation and publication exclude each other, unless `mixed` lets the engine itself change the
    weights under running responses, between two tokens. `version` is what the weights really are;
    it is None before the first publication and while the weights are torn.
    """

    def __init__(self, engine: Any, *, bucket_bytes: int, mixed: bool = False) -> None:
        if bucket_bytes < 1:
            raise PublicationError(f"buckets of {bucket_bytes} bytes hold nothing")
        self.engine = engine
        self.bucket_bytes = bucket_bytes
        self.mixed = mixed
        self._transfers = 0
        self.log: list[Publication] = []
        self._version: int | None = None
        self._torn: str | None = "nothing has been published"
        self._names: frozenset[str] | None = None
        self._lock = threading.RLock()

    @property
    def version(self) -> int | None:
        """The policy version of the serving weights, or None."""
        return None if self._torn else self._version

    @property
    def torn(self) -> str | None:
        """Why the serving weights are no version, or None when they are one."""
        return self._torn

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep generation and publication of other threads out."""
        with self._lock:
            yield

    def generate(self, prompts: Sequence[Sequence[int]], **settings: Any) -> list[Any]:
        """The engine's responses, which say themselves which version sampled each token.

        Raises PublicationError while the weights are torn, and where the engine says that it holds
        another version. With mixed=True a publication may come while this goes on.
        """
        asked = [list(prompt) for prompt in prompts]
        if not self.mixed:
            with self._lock:
                made = self.engine.generate(asked, version=self._whole(), **settings)
                self._whole()
                return list(made)
        while True:
            with self._lock:
                self._whole()
                transfers = self._transfers
            try:
                return list(self.engine.generate(asked, **settings))
            except ContractError as error:
                if error.check != "engine-version":
                    raise
                with self._lock:  # a publication began in between: ask again when it is done
                    if self._transfers == transfers:
                        raise

    def score(self, tokens: Any, prompt_len: int) -> Any:
        """The engine's log-probabilities of a response, float32 [R]."""
        with self._lock:
            self._whole()
            return self.engine.score(tokens, prompt_len)

    def _whole(self) -> int:
        if self._torn or self._version is None:
            raise PublicationError(f"the serving weights are torn: {self._torn}")
        held = getattr(self.engine, "version", self._version)
        if held != self._version:
            raise PublicationError(
                f"the engine holds version {held}, version {self._version} was published"
            )
        return self._version

    def publish(
        self, named: Iterable[Named], version: int, *, repeated: bool = False
    ) -> Publication:
        """Stream a version into the engine and give what moved.

        Raises PublicationError, and leaves the serving side torn, when the exporter or the engine
        fails on the way, when the engine leaves tensors in the stream, when the names differ from
        those of the last publication, or when the version goes back. A repeated version must be the
        one that serves.
        """
        with self._lock:
            if self._version is not None and (
                version < self._version or (version == self._version) != repeated
            ):
                raise PublicationError(
                    f"version {version} after version {self._version}"
                    f"{' as a repetition' if repeated else ''}"
                )
            started = time.perf_counter()
            tally, names = _Tally(), set[str]()
            self._transfers += 1
            self._torn = f"version {version} was being published"

            def stream() -> Iterator[Named]:
                for name, tensor in flattened(named, self.bucket_bytes, tally):
                    names.add(name)
                    yield name, tensor

            try:
                self.engine.load(stream(), version)
                self._landed(tally, names)
            except CoreRunError as error:
                self._torn += f" and failed: {error}"
                raise
            except Exception as error:
                self._torn += f" and failed: {type(error).__name__}: {error}"
                raise PublicationError(self._torn) from error
            self._names = frozenset(names)
            self._version, self._torn = version, None
            record = Publication(
                version,
                tally.tensors,
                tally.bytes,
                tally.buckets,
                tally.largest,
                time.perf_counter() - started,
                repeated,
            )
            self.log.append(record)
            return record

    def _landed(self, tally: _Tally, names: set[str]) -> None:
        if not tally.finished:
            raise PublicationError(f"the engine took {tally.tensors} tensors and left the others")
        if not names:
            raise PublicationError("the exporter gave no tensor")
        if self._names is not None and self._names != names:
            odd = sorted(self._names ^ names)
            raise PublicationError(
                f"{len(names)} tensors, {len(self._names)} last time; {odd[0]} is in only one"
            )

    def break_weights(self, why: str) -> None:
        """Note that something wrote into the serving weights outside a publication."""
        self._torn = why


Export = Callable[[], Iterable[Named]]


def same_version_round_trip(serving: Serving, export: Export) -> Publication:
    """Snapshot the serving weights, reset them, publish the same version again, compare exactly.

    Finds tensors that did not arrive. It cannot find a mapping that is wrong both times.
    Raises PublicationError that names the first tensors that differ.
    """
    with serving.held():
        version = serving.version
        if version is None:
            raise PublicationError(f"no version to repeat: {serving.torn}")
        return _reset_and_compare(serving, export, version, "round-trip", repeated=True)


def initial_comparison(serving: Serving, export: Export, version: int) -> Publication:
    """Publish into reset weights and compare with what the engine loaded from the HF folder.

    Only the first publication of a fresh run can be compared so: later weights have changed.
    Raises PublicationError that names the first tensors that differ.
    """
    with serving.held():
        return _reset_and_compare(serving, export, version, "hf-snapshot", repeated=False)


def _reset_and_compare(
    serving: Serving, export: Export, version: int, check: str, *, repeated: bool
) -> Publication:
    serving.engine.snapshot()
    serving.break_weights(f"{check}: the weights were reset")
    serving.engine.reset()
    record = serving.publish(export(), version, repeated=repeated)
    differences = list(serving.engine.compare())
    if differences:
        shown = "; ".join(_shown(item) for item in differences[:3])
        why = f"{check}: {len(differences)} of {record.tensors} tensors differ: {shown}"
        serving.break_weights(why)
        raise PublicationError(why)
    return record


def _shown(difference: Any) -> str:
    apart = difference.detail if difference.max_abs is None else f"by {difference.max_abs:.3g}"
    return f"{difference.name}: {difference.kind} {apart}".strip()


@dataclass(frozen=True, slots=True)
class LogpGap:
    """|trainer - engine| log-probability over active tokens, nats."""

    tokens: int
    mean: float
    largest: float


def log_probability_check(
    serving: Serving,
    score: Callable[[Sequence[Any]], Sequence[Any]],
    samples: Sequence[Any],
    tolerance: float,
) -> LogpGap:
    """Let trainer and engine score the same responses; the mean difference must be small.

    This one sees a wrong mapping, since the trainer never reads the serving weights.
    samples: `Sample`s; score: the trainer's log-probabilities, one float array [R] a sample.
    Raises ContractError above the tolerance and where nothing was compared.
    """
    gap = log_probability_gap(serving, score, samples)
    if not gap.tokens:
        raise ContractError("log-probability", "no token to compare")
    if not gap.mean <= tolerance:  # NaN fails
        raise ContractError(
            "log-probability",
            f"trainer and engine differ by {gap.mean:.3g} nats a token (at most"
            f" {gap.largest:.3g}) over {gap.tokens} tokens, tolerance {tolerance:g}",
        )
    return gap


def log_probability_gap(
    serving: Serving, score: Callable[[Sequence[Any]], Sequence[Any]], samples: Sequence[Any]
) -> LogpGap:
    """The gap of `log_probability_check`, without a verdict."""
    import numpy as np

    total, largest, tokens = 0.0, 0.0, 0
    for sample, own in zip(samples, score(samples), strict=True):
        served = np.asarray(serving.score(sample.tokens, sample.prompt_len), np.float64)
        apart = np.abs(np.asarray(own, np.float64) - served)[sample.loss_mask]
        total += float(apart.sum())
        tokens += len(apart)
        largest = float(np.max([largest, *apart]))
    return LogpGap(tokens, total / tokens if tokens else 0.0, largest)
