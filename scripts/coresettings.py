"""Settings of the OLMo-core trainer that a page may state: `core:rollout.num_rollout` is a default,
`core/mechanics:rollout.num_rollout` the value in `capture/core/examples/mechanics.toml`.
"""

from __future__ import annotations

import re
from typing import Any

from scripts.tree import Tree, toml

SETTING = re.compile(r"core(?:/(?P<file>[\w-]+))?:(?P<key>[a-z][\w.]*)")

#: last part of a key -> what its number counts
COUNTS: dict[str, tuple[str, ...]] = {
    "num_rollout": ("collection", "rollout"),
    "rollout_batch_size": ("prompt", "group"),
    "n_samples_per_prompt": ("sample", "response", "answer"),
    "global_batch_size": ("sample", "response"),
    "pack_tokens": ("token",),
    "max_new_tokens": ("token",),
    "train_prompts": ("prompt",),
    "eval_prompts": ("prompt",),
    "warm_steps": ("step",),
    "warmup_steps": ("step",),
    "compare_interval": ("step", "update"),
    "save_interval": ("collection",),
    "debug_exit_after_rollout": ("collection",),
    "world_size": ("process", "rank"),
    "bucket_bytes": ("byte",),
    "timeout": ("s",),
    "n_layers": ("layer",),
    "d_model": (),
}


def value(tree: Tree, setting: re.Match[str]) -> str | None:
    """The number of a setting as text, None for a key or a file that is not there."""
    from capture.core.config import RunConfig

    found: Any = RunConfig().model_dump()
    if setting["file"]:
        path = f"capture/core/examples/{setting['file']}.toml"
        if not tree.exists(path):
            return None
        found = RunConfig.model_validate(toml(tree.text(path))).model_dump()
    for part in setting["key"].split("."):
        if not isinstance(found, dict) or part not in found:
            return None
        found = found[part]
    return str(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def counted(key: str) -> tuple[str, ...]:
    """What the number of a key counts; () for a bare number."""
    return COUNTS.get(key.rpartition(".")[2], ())
