"""Tasks: prompts, held-out prompts and a reward, each in a module of its own. numpy only."""

from __future__ import annotations

from .base import Prompt, Task, check_lengths, load

__all__ = ["Prompt", "Task", "check_lengths", "load"]
