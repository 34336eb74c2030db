"""The final HF export: weights as safetensors beside the source folder's config and tokenizer.

Written under another name and renamed when complete, so the export folder is whole or not there.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .errors import CheckpointError, ConfigError

_WEIGHTS = (".safetensors", ".bin", ".gguf", ".index.json")


def refuse_occupied(folder: Path | str) -> None:
    """Raise ConfigError when the export folder holds something already."""
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"miles.save_hf: {str(folder)!r}: not empty")


def per_expert(named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The pairs with the standard names of experts: one tensor an expert and projection.

    A layer's experts come as `...experts.gate_up_proj` [E, 2 F, D] and `...experts.down_proj`
    [E, D, F]; all else passes through.
    """
    for name, tensor in named:
        stem, _, last = name.rpartition(".")
        if not stem.endswith(".mlp.experts"):
            yield name, tensor
            continue
        for expert, value in enumerate(tensor):
            parts = {"down": value}
            if last == "gate_up_proj":
                parts = dict(zip(("gate", "up"), value.chunk(2), strict=True))
            for kind, part in parts.items():
                yield f"{stem}.{expert}.{kind}_proj.weight", part


def write_hf(
    named: Iterable[tuple[str, Any]], source: Path | str, folder: Path | str, *, dtype: Any = None
) -> Path:
    """Write (HF name, tensor) pairs and the source's other files; give the folder.

    Experts are written one by one, as HF folders have them.

    dtype: of the written weights; None keeps that of the tensors. Raises CheckpointError when it
    cannot be written, and leaves no folder then.
    """
    from safetensors.torch import save_file

    source, folder = Path(source), Path(folder)
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        weights = {
            name: tensor.detach().to("cpu", dtype=dtype, copy=True).contiguous()
            for name, tensor in per_expert(named)
        }
        save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
        for path in sorted(source.iterdir()):
            if path.is_file() and not path.name.endswith(_WEIGHTS):
                shutil.copy2(path, partial / path.name)
        if folder.is_dir():
            folder.rmdir()  # `refuse_occupied` saw to it that it is empty
        partial.rename(folder)
    except Exception as error:
        shutil.rmtree(partial, ignore_errors=True)
        text = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{folder}: no HF export: {type(error).__name__}: {text}") from error
    return folder
