"""Turns of generating and of loading weights in one process, so that no forward sees half a load.

Standard library only. A load that waits goes before the next step: a generating thread that takes
turn after turn would otherwise keep it out for good.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """One turn at a time. Not reentrant."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._busy = False
        self._loads_waiting = 0
        self.loads = 0  # asked for so far

    @property
    def load_waits(self) -> bool:
        """Whether a load waits for its turn."""
        return self._loads_waiting > 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """A turn of generating."""
        with self._free:
            self._free.wait_for(lambda: not self._busy and not self._loads_waiting)
            self._busy = True
        try:
            yield
        finally:
            self._end()

    @contextmanager
    def load(self) -> Iterator[None]:
        """A turn of changing the weights."""
        with self._free:
            self._loads_waiting += 1
            self.loads += 1
            try:
                self._free.wait_for(lambda: not self._busy)
                self._busy = True
            finally:
                self._loads_waiting -= 1
        try:
            yield
        finally:
            self._end()

    def _end(self) -> None:
        with self._free:
            self._busy = False
            self._free.notify_all()
