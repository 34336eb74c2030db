"""How the heat guard is told to end: signals and the stop file."""

import contextlib
import os
import select
import signal
import time
from pathlib import Path


class Stop:
    """Turns SIGINT, SIGTERM, SIGHUP, SIGQUIT and the stop file into a reason to end."""

    def __init__(self, stop_file: Path | None):
        self.stop_file = stop_file
        self.reason = ""
        self._wake, self._woken = os.pipe()
        os.set_blocking(self._woken, False)
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
            number = getattr(signal, name)
            # nohup ignores SIGHUP on purpose: leave it so.
            if name != "SIGHUP" or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: object) -> None:
        self.reason = self.reason or signal.Signals(number).name
        with contextlib.suppress(BlockingIOError):
            os.write(self._woken, b"!")

    def asked(self) -> bool:
        if not self.reason and self.stop_file is not None and self.stop_file.exists():
            self.reason = "stop-file"
        return bool(self.reason)

    def wait(self, seconds: float) -> bool:
        """Sleep, looking for the stop file each second; True as soon as the guard must end."""
        until = time.monotonic() + seconds
        while not self.asked():
            left = until - time.monotonic()
            if left <= 0:
                return False
            select.select([self._wake], [], [], min(1.0, left))
        return True
