"""The driver: collect, train, publish, evaluate, checkpoint, until the horizon.

Every rank runs it. Rank 0 has the engine and the run log; what it collects goes to all ranks. The
clock moves only after an optimizer step that every rank completed, and the serving side gets a
version only when its last bucket has landed. Torch and Core are loaded when a run starts.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from . import gpufacts, progress, records, resuming, rollouts
from .checkpoint import FOLDER, CheckpointStore
from .clock import PolicyClock, Vote
from .config import RunConfig
from .cursor import Draw, RolloutCursor
from .errors import CheckpointError, ConfigError, ContractError
from .export import refuse_occupied, write_hf
from .journal import Journal
from .manifest import Manifest, Shape, lock_digest
from .parts import Parts, build
from .producer import Producer
from .publish import Publication, Serving
from .rollouts import Evaluation
from .samples import Collection
from .transfers import Transfers

BOUNDARIES = ("collected", "trained", "published", "evaluated", "checkpointed", "exported")
Boundary = Callable[[str, int], None]
"""Called after each part of a collection, with its name of BOUNDARIES and the collection."""


@dataclass(slots=True)
class Result:
    """How a run ended. completed: it reached its horizon; else it stopped on purpose.

    rewards: mean reward of each collection of this process. collections and optimizer_step count
    those of the whole run.
    """

    completed: bool = False
    collections: int = 0
    optimizer_step: int = 0
    published: int | None = None
    rewards: list[float] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    publications: list[Publication] = field(default_factory=list)
    checkpoint: Path | None = None
    export: Path | None = None


def main(config: RunConfig) -> int:
    """Run, and say on rank 0 where it is and how it ended. Gives the exit code."""
    first = int(os.environ.get("RANK", "0")) == 0
    told = progress.on_terminal(config.rollout.num_rollout) if first else None
    result = run(config, told=told)
    if first:
        print(progress.ending(config.name, result))
    return 0


def run(
    config: RunConfig,
    *,
    parts: Parts | None = None,
    boundary: Boundary | None = None,
    told: Callable[[int, Result], None] | None = None,
) -> Result:
    """Train as `config` says; what was finished before an error stays valid.

    parts: ready-made pieces in place of those that the settings name. told: called after each
    collection with the number of those that are done.
    Raises CoreRunError, and whatever `boundary` raises.
    """
    if config.miles.save_hf is not None and config.miles.load is None:
        refuse_occupied(config.miles.save_hf)
    gpufacts.line(config)  # before this run has memory of its own there
    with contextlib.ExitStack() as stack:
        made = parts or build(config, stack)
        own = _Run(config, made, boundary or (lambda name, collection: None))
        own.told = told or own.told
        try:
            result = own.go()
        except BaseException as error:
            with contextlib.suppress(OSError):  # a full disk must not hide what happened
                own.close(130 if isinstance(error, KeyboardInterrupt) else 1)
            raise
        own.close(0)
        return result


class _Run:
    """One process's part in a run."""

    def __init__(self, config: RunConfig, parts: Parts, boundary: Boundary) -> None:
        from . import collective

        self.ranks, self.rank = collective, collective.rank()
        self.config, self.parts, self.boundary = config, parts, boundary
        self.actor, self.result = parts.actor, Result()
        self.asynchronous = config.rollout.mode == "async"
        self.clock = PolicyClock(
            steps_per_collection=config.steps_per_collection,
            max_lag=config.rollout.max_lag if self.asynchronous else None,
            world_size=config.parallel.world_size,
        )
        self.cursor = RolloutCursor(
            pool=len(parts.task.train),
            batch=config.rollout.rollout_batch_size,
            seed=config.seed,
            shuffle=config.rollout.shuffle,
        )
        self.serving = None
        if self.rank == 0:
            self.serving = Serving(
                parts.engine,
                bucket_bytes=config.engine.bucket_bytes,
                mixed=self.asynchronous and config.engine.refresh != "barrier",
            )
        self.transfers = Transfers(self.actor, self.clock, self.serving)
        self.producer: Producer | None = None
        self.journal: Journal | None = None
        self.saved_step: int | None = None
        self.told: Callable[[int, Result], None] = lambda done, result: None
        self.generation_seconds = 0.0

    def close(self, status: int) -> None:
        """Stop the producer and end the log."""
        if self.producer is not None:
            with contextlib.suppress(ContractError):
                self.producer.stop()
        if self.journal is not None:
            self.journal.close(status)

    def go(self) -> Result:
        """The whole run, from the first or the resumed collection on."""
        config = self.config
        manifest = self._resume() if config.miles.load is not None else self._fresh()
        self._first_publication(fresh=manifest is None)
        if config.evaluation.at_start and manifest is None:
            self._evaluate()
        self._start_producer()
        horizon, stop = config.rollout.num_rollout, config.miles.debug_exit_after_rollout
        while self.cursor.committed < horizon:
            self._one_collection()
            self.told(self.cursor.committed, self.result)
            if self.cursor.committed == stop:
                break
        if self.producer is not None:
            self.producer.stop()
        result = self.result
        result.collections, result.optimizer_step = self.cursor.committed, self.clock.version
        result.published = self.clock.published
        result.completed = self.cursor.committed >= horizon
        self._checkpoint()
        if result.completed:
            self._export()
        return result

    def _one_collection(self) -> None:
        index = self.cursor.committed
        collection, waited = self._collect()
        self.boundary("collected", index)
        trained = self._train(collection)
        self.boundary("trained", index)
        self._publish(collection, waited, trained)
        self.boundary("published", index)
        every = self.config.evaluation.interval
        if every and (index + 1) % every == 0:
            self._evaluate()
        self.boundary("evaluated", index)
        every = self.config.miles.save_interval
        if every and (index + 1) % every == 0:
            self._checkpoint()
        self.boundary("checkpointed", index)

    # -- start -----------------------------------------------------------------------------------

    def _fresh(self) -> None:
        save = self.config.miles.save
        with self.ranks.guard("miles.save"):
            if save is not None and resuming.in_use(Path(save), self.rank):
                raise ConfigError(resuming.occupied(save))
            self.journal = Journal(self.config, self.rank, None)
        self.actor.init(self.parts.hf_folder)

    def _resume(self) -> Manifest:
        config = self.config
        store = self._store(config.miles.load)
        folder = store.latest()
        if folder is None:
            raise CheckpointError(resuming.nothing(config.miles.load))
        shape = Shape(config.parallel.world_size, config.parallel.ep, lock_digest())
        manifest = store.check(folder, shape)  # before anything native is loaded
        resuming.take_place(manifest, folder, config, self.cursor, self.clock)
        if config.miles.save_hf is not None and manifest.collection < config.rollout.num_rollout:
            refuse_occupied(config.miles.save_hf)
        self.actor.init(self.parts.hf_folder)
        self.actor.restore(folder)
        with self.ranks.guard("restore"):
            for what, own, kept in (
                ("optimizer step", self.actor.optimizer_step, manifest.optimizer_step),
                ("learning rate", self.actor.lr_next, _or(manifest.lr, self.actor.lr_next)),
            ):
                if own != kept:
                    raise CheckpointError(
                        f"{folder}: {what} {own} was restored, the manifest says {kept}"
                    )
            save = config.miles.save
            same = save is not None and Path(save).resolve() == Path(config.miles.load).resolve()
            if save is not None and not same and resuming.in_use(Path(save), self.rank):
                raise ConfigError(f"miles.save: {save!r}: holds another run")
            self.journal = Journal(config, self.rank, manifest.optimizer_step)
            self.journal.resumed(Path(FOLDER) / folder.name)
        self.saved_step = manifest.optimizer_step if same else None
        self.result.checkpoint = folder if same else None
        return manifest

    def _store(self, root: str) -> CheckpointStore:
        return CheckpointStore(
            Path(root),
            keep=self.config.miles.keep_checkpoints,
            rank=self.rank,
            agree=self.ranks.agree,
        )

    def _first_publication(self, *, fresh: bool) -> None:
        audit = self.config.miles.check_weight_update_equal
        if audit and fresh:
            self._note(self.transfers.first_of_fresh_run(), "equal to the HF snapshot")
            return
        self._note(self.transfers.publish())
        if audit:
            self._note(self.transfers.repeat(), "same-version round trip")

    def _note(self, record: Publication, checked: str | None = None) -> float:
        self.result.publications.append(record)
        with self.ranks.guard("run-log"):
            self.journal.published(record)
            if checked is not None:
                self.journal.checked(checked)
        return record.seconds

    # -- the parts of a collection ---------------------------------------------------------------

    def _start_producer(self) -> None:
        if not self.asynchronous or self.rank != 0:
            return

        def collect(draw: Draw, gate: Callable[[], None]) -> tuple[Collection, float]:
            started = time.perf_counter()
            made = rollouts.collect(self.config, self.parts.task, self.serving, draw, gate=gate)
            return made, time.perf_counter() - started

        self.producer = Producer(
            collect,
            cursor=self.cursor,
            clock=self.clock,
            serving_version=lambda: self.serving.version,
            horizon=self.config.rollout.num_rollout,
        )
        self.producer.start()

    def _collect(self) -> tuple[Collection, float]:
        """The next collection, on every rank, and the seconds that the trainer waited for it."""
        started, made = time.perf_counter(), None
        with self.ranks.guard("rollout"):
            if self.producer is not None:
                _, made = self.producer.take()
            elif self.rank == 0:
                draw = self.cursor.draw()
                collection = rollouts.collect(self.config, self.parts.task, self.serving, draw)
                made = collection, time.perf_counter() - started
        collection, seconds = self.ranks.gather(made)[0]
        if self.rank != 0:
            self.cursor.draw()  # as rank 0 did
        with self.ranks.guard("run-log"):
            self.journal.collected(collection, seconds)
        self.result.rewards.append(
            sum(sample.reward for sample in collection.samples) / len(collection.samples)
        )
        return collection, time.perf_counter() - started

    def _train(self, collection: Collection) -> float:
        """All optimizer steps of a collection; the clock follows each. Gives its seconds."""
        started = time.perf_counter()
        steps = self.config.steps_per_collection
        with self.ranks.guard("consume"):
            self.clock.consume(records.versions_of(collection, steps))
        for result in self.actor.steps(collection, self.clock.version):
            vote = Vote(self.rank, result.step, True, result.lr_used, result.lr_next)
            published = self.clock.published
            self.clock.advance(self.ranks.gather(vote))
            errors = records.over_ranks(records.error_histogram(result, collection))
            with self.ranks.guard("contract-file"):
                record = records.record_of(
                    result,
                    collection,
                    errors,
                    config=self.config,
                    rank=self.rank,
                    published=published,
                    diagnostics=self.parts.take_diagnostics(result.step),
                )
                self.journal.write(record)
            everyones = self.ranks.gather(record)
            with self.ranks.guard("run-log"):
                self.journal.step(result, everyones)
        self.cursor.commit(collection.index)
        return time.perf_counter() - started

    def _publish(self, collection: Collection, waited: float, trained: float) -> None:
        count = self.cursor.committed
        every = self.config.core.diagnostic_interval
        audit = self.config.miles.check_weight_update_equal and every and count % every == 0
        paused = contextlib.nullcontext()
        if audit and self.producer is not None:
            paused = self.producer.paused()  # until the check is done
        with paused:
            seconds = self._note(self.transfers.publish())
            if audit:
                seconds += self._note(self.transfers.repeat(), "same-version round trip")
        times = {"train_wait": waited, "train": trained, "actor_train": trained}
        with self.ranks.guard("run-log"):
            self.journal.times(collection, {**times, "update_weights": seconds})

    def _evaluate(self) -> None:
        found = None
        with self.ranks.guard("evaluation"):
            if self.rank == 0:
                found = rollouts.evaluate(
                    self.config, self.parts.task, self.serving, self.cursor.committed
                )
                self.journal.evaluated(found)
        self.result.evaluations.append(self.ranks.gather(found)[0])

    # -- what is left behind ---------------------------------------------------------------------

    def _checkpoint(self) -> None:
        save, clock = self.config.miles.save, self.clock
        if save is None or self.saved_step == clock.version:
            return
        describe = resuming.describer(self.config, self.clock, self.cursor, self.actor.lr_next)
        folder = self._store(save).save(self.cursor.committed, self.actor.save, describe)
        self.saved_step, self.result.checkpoint = clock.version, folder
        with self.ranks.guard("run-log"):
            self.journal.saved(Path(FOLDER) / folder.name)

    def _export(self) -> None:
        target = self.config.miles.save_hf
        if target is None:
            return
        # Rank 0 writes the folder, so it alone may say that a resumed run had it already.
        if self.ranks.gather((Path(target) / "config.json").exists())[0]:
            return
        with self.ranks.guard("export"):
            named = self.actor.export()
            if self.rank == 0:
                dtype = getattr(self.actor.hf_config, "dtype", None)
                write_hf(named, self.parts.hf_folder, target, dtype=dtype)
            else:
                for _ in named:
                    pass
        self.result.export = Path(target)
        self.boundary("exported", self.cursor.committed)


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
