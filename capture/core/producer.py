"""The async producer: a thread that generates collections while the trainer trains.

It starts a collection only when the serving version is new enough for that collection's last
optimizer step; the trainer checks the age again when it takes the collection. `paused` keeps the
thread from generating, between two chunks of prompts, so that weights can be published and
checked. Loads neither torch nor numpy.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from .clock import PolicyClock
from .cursor import Draw, RolloutCursor
from .errors import ContractError, CoreRunError

_POLL = 0.05  # seconds between looks at stop while waiting


class Stopped(Exception):
    """The producer was asked to stop while it generated; its collection stays pending."""


class Producer:
    """Runs `collect(draw, gate)` for one draw after another.

    collect must call gate() before each chunk that it generates: it blocks while paused and raises
    Stopped at the end. horizon: collections of the whole run. ready: finished collections that may
    wait for the trainer.
    """

    def __init__(
        self,
        collect: Callable[[Draw, Callable[[], None]], Any],
        *,
        cursor: RolloutCursor,
        clock: PolicyClock,
        serving_version: Callable[[], int | None],
        horizon: int,
        ready: int = 1,
    ) -> None:
        if clock.max_lag is None:
            raise ContractError("async", "a producer needs a clock with a lag of at least 1")
        self._collect, self._cursor, self._clock = collect, cursor, clock
        self._serving_version, self._horizon = serving_version, horizon
        self._first, self._first_version = cursor.committed, clock.version
        self._ready: queue.Queue[tuple[Draw, Any]] = queue.Queue(maxsize=ready)
        self._state = threading.Condition()
        self._pauses = 0
        self._working = False
        self._stopped = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)

    def start(self) -> None:
        """Begin to generate."""
        self._thread.start()

    def take(self, timeout: float | None = None) -> tuple[Draw, Any]:
        """The next collection, in order. Raises what the producer died of, or ContractError."""
        waited = 0.0
        while True:
            try:
                return self._ready.get(timeout=_POLL)
            except queue.Empty:
                waited += _POLL
            if self._failure is not None:
                raise self._failure
            if not self._thread.is_alive() and self._ready.empty():
                raise ContractError("producer", "it ended before the last collection")
            if timeout is not None and waited >= timeout:
                raise ContractError("producer", f"no collection in {timeout:g} s")

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Wait until nothing is being generated, and keep it so."""
        with self._state:
            self._pauses += 1
            self._state.wait_for(lambda: not self._working)
        try:
            yield
        finally:
            with self._state:
                self._pauses -= 1
                self._state.notify_all()

    def stop(self, timeout: float = 60.0) -> None:
        """End after the chunk under way. What was not taken stays pending in the cursor."""
        with self._state:
            self._stopped = True
            self._state.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                raise ContractError("producer", f"still generating after {timeout:g} s")

    def _gate(self) -> None:
        with self._state:
            self._working = False
            self._state.notify_all()
            self._state.wait_for(lambda: self._stopped or not self._pauses)
            if self._stopped:
                raise Stopped
            self._working = True

    def _idle(self) -> None:
        with self._state:
            self._working = False
            self._state.notify_all()

    def _run(self) -> None:
        try:
            for _ in range(self._first, self._horizon):
                draw = self._cursor.draw()
                self._wait_until_fresh(draw)
                made = self._collect(draw, self._gate)
                self._idle()
                self._put((draw, made))
        except Stopped:
            pass
        except CoreRunError as error:
            self._failure = error
        except BaseException as error:
            self._failure = ContractError("producer", f"{type(error).__name__}: {error}")
            self._failure.__cause__ = error
        finally:
            self._idle()

    def _wait_until_fresh(self, draw: Draw) -> None:
        ahead = draw.collection - self._first
        start = self._first_version + ahead * self._clock.steps_per_collection
        least = self._clock.least_version(start)
        while True:
            with self._state:
                if self._stopped:
                    raise Stopped
                held = self._serving_version()
                if not self._pauses and held is not None and held >= least:
                    return
                self._state.wait(_POLL)

    def _put(self, item: tuple[Draw, Any]) -> None:
        while True:
            if self._stopped:
                raise Stopped
            with contextlib.suppress(queue.Full):
                return self._ready.put(item, timeout=_POLL)
