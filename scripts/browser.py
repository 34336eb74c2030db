"""Where the system's Chromium is, and how the tests and the print start it.

Nothing is downloaded: Playwright drives the browser that the machine has.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")


class NoBrowser(RuntimeError):
    """This machine has no Chromium; the text says how to name one."""


def executable() -> str:
    """Path of the browser: $CHROMIUM, else the first of NAMES that is installed."""
    named = os.environ.get("CHROMIUM", "")
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        wanted = f"CHROMIUM={named}" if named else f"one of {', '.join(NAMES)}"
        raise NoBrowser(f"no Chromium: {wanted} is not installed; set CHROMIUM=/path/to/chromium")
    return found


def launch_options() -> dict[str, Any]:
    """Keyword arguments of Playwright's `chromium.launch`."""
    arguments = ["--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # the sandbox refuses the superuser
        arguments.append("--no-sandbox")
    return {"executable_path": executable(), "args": arguments}
