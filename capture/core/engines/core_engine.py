"""The exact engine: the trainer's own forward generates, over the trainer's own shapes. torch.

It holds a second copy of the train module, with the master weights, and no cache: for every new
token it runs the whole grid (`grid.Grid`) through Core's forward, in the mode in which the trainer
scores, and samples at the last token of each row. A prompt stands in the row in which its sample
will be trained. Kernels, shapes and order of sums are then the same on both sides, and so are the
log-probabilities, bit by bit; the price is a forward of all tokens for every single one.

What is not in our hands: a softmax whose vocabulary does not fill whole vectors of the processor
may sum a row differently where the row begins elsewhere in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import models
from ..errors import ContractError
from ..keptsets import KeptSets
from ..objective import response_logps
from . import base, sampling
from .base import Generation
from .weights import HeldWeights, NamedWeights


class CoreEngine(HeldWeights):
    """See `base.Engine`. A load waits until what is being generated is finished."""

    def __init__(
        self,
        module: Any,
        tensors: Mapping[str, torch.Tensor],
        *,
        eos_ids: Sequence[int],
        version: int = 0,
    ) -> None:
        self.module, self.grid = module, module.grid
        self.device: torch.device = module.device
        self.eos_ids = frozenset(int(token) for token in eos_ids)
        self._hold(NamedWeights(tensors), version)
        self._abort = threading.Event()

    @classmethod
    def from_folder(cls, config: Any, folder: Path | str, *, eos_ids: Sequence[int]) -> CoreEngine:
        """The engine of a run, with the weights of an HF folder as version 0.

        CheckpointError for an unusable folder.
        """
        hf, state = models.read(folder)
        backend, module = models.train_module(config, hf, state)
        # an unsharded model exports its own memory: what is copied in there is loaded
        return cls(module, dict(backend.export_hf(module, hf)), eos_ids=eos_ids)

    def abort(self) -> None:
        """End the running call of `generate`, if any."""
        self._abort.set()

    def close(self) -> None:
        """Free the model."""
        self.abort()
        with self._gate.load():
            self._version = self.module = self._weights = self._snapshot = None

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        n: int = 1,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = -1,
        kept_sets: bool = False,
        seed: int | Sequence[int] = 0,
        version: int | None = None,
    ) -> list[Generation]:
        """See `base.Engine.generate`. A prompt and its longest response must fit a row."""
        settings = {
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "kept_sets": kept_sets,
        }
        base.check_request(prompts, n=n, max_new_tokens=max_new_tokens, **settings)
        for prompt in prompts:
            self.grid.check(len(prompt) + max_new_tokens, "a prompt with its longest response")
        keys = base.prompt_seeds(prompts, seed)
        rows = [
            (list(prompt), key, i)
            for prompt, key in zip(prompts, keys, strict=True)
            for i in range(n)
        ]
        found: list[Generation] = []
        self._abort.clear()
        with self._gate.step(), torch.no_grad():
            held = base.check_version(self._version, version)
            self.module._train_mode()
            for part in self.grid.parts(rows):
                found += self._pack(part, max_new_tokens, settings, held)
        return found

    def _pack(
        self,
        rows: Sequence[tuple[list[int], tuple[int, ...], int]],
        longest: int,
        settings: Mapping[str, Any],
        version: int,
    ) -> list[Generation]:
        """Responses to one grid of prompts."""
        width = self.grid.tokens
        tokens = torch.zeros(self.grid.documents, width, dtype=torch.int64, device=self.device)
        for row, (prompt, _, _) in enumerate(rows):
            tokens[row, : len(prompt)] = torch.tensor(prompt, device=self.device)
        draws = np.stack([sampling.uniforms(key, i, longest) for _, key, i in rows])
        uniform = torch.from_numpy(draws).to(self.device)
        sizes = [len(prompt) for prompt, _, _ in rows]
        made = [_Response() for _ in rows]
        alive = list(range(len(rows)))
        for step in range(longest):
            if not alive or self._abort.is_set():
                break
            # where the newest token of each running row is
            last = torch.tensor([row * width + sizes[row] - 1 for row in alive], device=self.device)
            flat = tokens.view(-1)
            logits = self.module.grid_logits(flat)
            picked = sampling.pick(logits[0, last], uniform[alive, step], **settings)
            sampling.check(picked)
            flat[last + 1] = picked.tokens
            kept = sampling.kept_rows(picked) if settings["kept_sets"] else None
            # the trainer's own function, over the trainer's layout, gives the number on record
            logps, _ = response_logps(
                logits,
                flat,
                last,
                temperature=settings["temperature"] or 1.0,
                kept=None if kept is None else KeptSets.of(kept),
            )
            going = []
            chosen, values = picked.tokens.tolist(), logps.float().cpu().numpy()
            for place, row in enumerate(alive):
                made[row].add(chosen[place], values[place], kept and kept[place])
                sizes[row] += 1
                if chosen[place] in self.eos_ids:
                    made[row].finish = "stop"
                elif step + 1 == longest:
                    made[row].finish = "length"
                else:
                    going.append(row)
            alive = going
        return [response.generation(version, settings["kept_sets"]) for response in made]

    def score(self, tokens: Sequence[int], prompt_len: int, temperature: float = 1.0) -> np.ndarray:
        """See `base.Engine.score`. In the first row of a grid."""
        if not 1 <= prompt_len < len(tokens):
            raise ContractError("engine-request", f"prompt_len {prompt_len} of {len(tokens)}")
        self.grid.check(len(tokens), "a sample")
        flat = torch.zeros(self.grid.documents * self.grid.tokens, dtype=torch.int64)
        flat[: len(tokens)] = torch.tensor(list(tokens))
        flat = flat.to(self.device)
        places = torch.arange(prompt_len - 1, len(tokens) - 1, device=self.device)
        with self._gate.step(), torch.no_grad():
            self.module._train_mode()
            logits = self.module.grid_logits(flat)
            logps, _ = response_logps(logits, flat, places, temperature=temperature or 1.0)
        return logps.float().cpu().numpy()


class _Response:
    """One response while it grows."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logps: list[float] = []
        self.kept: list[np.ndarray] = []
        self.finish = "abort"

    def add(self, token: int, logp: float, kept: np.ndarray | None) -> None:
        self.tokens.append(token)
        self.logps.append(logp)
        if kept is not None:
            self.kept.append(kept)

    def generation(self, version: int, kept_sets: bool) -> Generation:
        return Generation(
            np.asarray(self.tokens, dtype=np.int64),
            np.asarray(self.logps, dtype=np.float32),
            np.full(len(self.tokens), version, dtype=np.int64),
            self.finish,
            kept=KeptSets.of(self.kept) if kept_sets else None,
        )
