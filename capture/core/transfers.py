"""Publications of a run: all ranks export, rank 0 streams into the engine, every clock follows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from . import publish
from .clock import PolicyClock
from .errors import PublicationError
from .publish import Publication, Serving


class Transfers:
    """The driver's publications. serving: rank 0's door to the engine, None on other ranks."""

    def __init__(self, actor: Any, clock: PolicyClock, serving: Serving | None) -> None:
        self.actor, self.clock, self.serving = actor, clock, serving

    def publish(self) -> Publication:
        """The trainer's version, streamed once."""
        return self._transfer(lambda serving, export: serving.publish(export(), self.clock.version))

    def first_of_fresh_run(self) -> Publication:
        """The first publication, compared with what the engine loaded from the HF folder."""
        return self._transfer(
            lambda serving, export: publish.initial_comparison(serving, export, self.clock.version)
        )

    def repeat(self) -> Publication:
        """The serving version once more into reset weights, compared with the first transfer."""
        return self._transfer(publish.same_version_round_trip)

    def _transfer(
        self, action: Callable[[Serving, Callable[[], Iterable[Any]]], Publication]
    ) -> Publication:
        from . import collective

        record = None
        with collective.guard("publication"):
            passes: list[Any] = []

            def export() -> Iterable[Any]:
                passes.append(iter(self.actor.export()))
                return passes[-1]

            try:
                if self.serving is not None:
                    record = action(self.serving, export)
            finally:
                # sharded weights are gathered by all ranks: whoever stopped early goes on to the
                # end, or the others would wait for ever
                if not passes:
                    export()
                deque(passes[0], maxlen=0)
        found = collective.gather(record)[0]
        if found is None or found.version != self.clock.version:
            raise PublicationError(f"version {self.clock.version} was not published: {found}")
        self.clock.publish(found.version)
        return found
