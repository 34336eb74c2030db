"""An engine in this process: a transformers model with a KV cache, on a CPU or a GPU.

Prompts of a batch are padded on the left; padding is masked out of every attention and does not
count in positions, so a row sees the same numbers as alone, up to rounding. The weights are
the engine's own copy, in the engine's dtype.

`refresh` says what a load does to running responses: "mixed" lets them go on with the new weights
and the cache of the old ones, token by token under the version that sampled it; "barrier" waits
until they are finished; "drain" ends them (finish "abort") and then loads.

`decode` "cache" lets the host read every token and lets the cache grow; "graph" does neither, and
is the fast way on a GPU: see `decode_graph`. A load then goes between its looks.

`expert_ids` records which experts ran for every token of a prompt and its response but the last.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import fp32head
from ..errors import ContractError, PublicationError, RefusedError
from ..keptsets import KeptSets
from . import base, sampling
from .base import Generation
from .decode_graph import GraphDecoder
from .routers import ExpertIds, of_response
from .weights import HeldWeights, NamedWeights

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
REFRESHES = ("mixed", "barrier", "drain")
DECODES = ("cache", "graph")


class TransformersEngine(HeldWeights):
    """See `base.Engine`. `load` may be called from another thread than `generate`."""

    def __init__(
        self,
        model: Any,
        *,
        eos_ids: Sequence[int],
        pad_id: int = 0,
        refresh: str = "mixed",
        batch_size: int = 64,
        decode: str = "cache",
        expert_ids: bool = False,
        version: int = 0,
    ) -> None:
        if decode not in DECODES:
            raise RefusedError(f"decode {decode!r} is none of {', '.join(DECODES)}", "decode")
        if refresh not in REFRESHES:
            raise RefusedError(f"refresh {refresh!r} is none of {', '.join(REFRESHES)}", "refresh")
        self.model = model.eval().requires_grad_(False)
        self.device = next(model.parameters()).device
        self.eos_ids = frozenset(int(token) for token in eos_ids)
        self.pad_id, self.refresh, self.batch_size = pad_id, refresh, batch_size
        parameters = inspect.signature(model.forward).parameters
        # newer transformers call it cache, and warn about the older name
        self.cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self.experts = ExpertIds(model) if expert_ids else None
        self._decoder = GraphDecoder(self) if decode == "graph" else None
        self._hold(NamedWeights(model), version)
        self._whole = threading.Lock()  # held by a call of generate: one at a time
        self._abort = threading.Event()
        self._loads = 0  # asked for before the running call; one more ends it under "drain"

    @classmethod
    def from_folder(
        cls,
        folder: Path | str,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        fp32_lm_head: bool = False,
        **settings: Any,
    ) -> TransformersEngine:
        """The engine of an HF folder, without any download. PublicationError if it is unusable."""
        from transformers import AutoModelForCausalLM

        try:
            model = AutoModelForCausalLM.from_pretrained(
                str(folder),
                dtype=DTYPES[dtype],
                attn_implementation="sdpa",
                local_files_only=True,
            )
        except (OSError, ValueError) as error:
            raise PublicationError(f"{folder}: no usable HF model: {error}") from None
        if fp32_lm_head:
            fp32head.install_serving(model)
        return cls(model.to(device), **settings)

    def abort(self) -> None:
        """End the running call of `generate`, if any."""
        self._abort.set()

    def close(self) -> None:
        """Free the model."""
        self.abort()
        with self._whole, self._gate.load():
            self._version = None
            self.model = self._weights = self._snapshot = self._decoder = None

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
        """See `base.Engine.generate`."""
        base.check_request(
            prompts,
            n=n,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            kept_sets=kept_sets,
        )
        settings = {
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "kept_sets": kept_sets,
        }
        keys = base.prompt_seeds(prompts, seed)
        rows = [
            (list(prompt), key, i)
            for prompt, key in zip(prompts, keys, strict=True)
            for i in range(n)
        ]
        with self._whole:
            self._abort.clear()
            # a step's turn comes after a load that is under way; a barrier keeps it to the end
            with self._gate.step():
                base.check_version(self._version, version)
                self._loads = self._gate.loads
                if self.refresh == "barrier":
                    return self._rows(rows, max_new_tokens, settings)
            return self._rows(rows, max_new_tokens, settings)

    def _rows(self, rows: list[Any], longest: int, settings: Mapping[str, Any]) -> list[Generation]:
        found: list[Generation] = []
        with torch.no_grad():
            for start in range(0, len(rows), self.batch_size):
                part = rows[start : start + self.batch_size]
                if self._decoder is not None:
                    found += self._decoder.run(part, longest, settings)
                else:
                    found += _Batch(self, part, longest).run(settings)
        return found

    def _turn(self) -> Any:
        return nullcontext() if self.refresh == "barrier" else self._gate.step()

    @property
    def _ended(self) -> bool:
        return self._abort.is_set() or (self.refresh == "drain" and self._gate.loads != self._loads)

    def score(self, tokens: Sequence[int], prompt_len: int, temperature: float = 1.0) -> np.ndarray:
        """See `base.Engine.score`. One forward without cache and without padding."""
        if not 1 <= prompt_len < len(tokens):
            raise ContractError("engine-request", f"prompt_len {prompt_len} of {len(tokens)}")
        ids = torch.as_tensor([list(tokens)], dtype=torch.int64, device=self.device)
        with self._gate.step(), torch.no_grad():
            logits = self.model(input_ids=ids, use_cache=False).logits[0, prompt_len - 1 : -1]
        logp = sampling.logps(logits, temperature)
        return logp.gather(-1, ids[0, prompt_len:, None])[:, 0].cpu().numpy()


class _Batch:
    """One batch of rows (prompt, key, sample) while it is generated."""

    def __init__(
        self,
        engine: TransformersEngine,
        rows: Sequence[tuple[list[int], tuple[int, ...], int]],
        max_new_tokens: int,
    ) -> None:
        from transformers import DynamicCache

        self.engine, self.max_new_tokens = engine, max_new_tokens
        self.lengths = [len(prompt) for prompt, _, _ in rows]
        longest = max(self.lengths)
        device = engine.device
        padded = [[engine.pad_id] * (longest - len(p)) + p for p, _, _ in rows]
        real = [[0] * (longest - size) + [1] * size for size in self.lengths]
        self.ids = torch.tensor(padded, dtype=torch.int64, device=device)
        self.mask = torch.tensor(real, dtype=torch.int64, device=device)
        # padding gets position 0, which nothing reads
        self.positions = (self.mask.cumsum(dim=-1) - 1).clamp(min=0)
        draws = np.stack([sampling.uniforms(key, i, max_new_tokens) for _, key, i in rows])
        self.uniform = torch.from_numpy(draws).to(device)
        self.tokens: list[list[int]] = [[] for _ in rows]
        self.logps: list[list[float]] = [[] for _ in rows]
        self.versions: list[list[int]] = [[] for _ in rows]
        self.kept: list[list[np.ndarray]] = [[] for _ in rows]
        self.routes: list[list[np.ndarray]] = [[] for _ in rows]
        self.finish = ["abort"] * len(rows)
        self.alive = list(range(len(rows)))  # places of the rows that still run
        self.cache = DynamicCache(config=engine.model.config)  # the forward adds to it in place

    def run(self, settings: Mapping[str, Any]) -> list[Generation]:
        """Generate with the settings of `sampling.pick`, until every row or the engine ends."""
        for step in range(self.max_new_tokens):
            if not self.alive:
                break
            with self.engine._turn():
                if self.engine._ended:  # asked in the turn: a load may have had the one before it
                    break
                version = base.check_version(self.engine._version, None)
                logits = self._forward()
            picked = sampling.pick(logits, self.uniform[:, step], **settings)
            sampling.check(picked)
            self._append(picked, version, last=step + 1 == self.max_new_tokens)
        return [
            Generation(
                np.asarray(self.tokens[i], dtype=np.int64),
                np.asarray(self.logps[i], dtype=np.float32),
                np.asarray(self.versions[i], dtype=np.int64),
                self.finish[i],
                expert_ids=of_response(self.routes[i]),
                kept=KeptSets.of(self.kept[i]) if settings["kept_sets"] else None,
            )
            for i in range(len(self.tokens))
        ]

    def _forward(self) -> torch.Tensor:
        """Logits [alive, V] after the newest token of each running row."""
        experts = self.engine.experts
        if experts is not None:
            experts.begin()
        out = self.engine.model(
            input_ids=self.ids,
            attention_mask=self.mask,
            position_ids=self.positions,
            use_cache=True,
            logits_to_keep=1,
            **{self.engine.cache_argument: self.cache},
        )
        if experts is not None:
            ids = experts.take(len(self.alive)).cpu().numpy()
            for row, of_row in zip(self.alive, ids, strict=True):
                # the first forward is of the padded prompts, every other one of one token a row
                real = self.lengths[row] if not self.routes[row] else 1
                self.routes[row].append(of_row[-real:])
        return out.logits[:, -1]

    def _append(self, picked: sampling.Picked, version: int, *, last: bool) -> None:
        """Note the picked tokens [alive], end rows, and make the next forward's inputs."""
        chosen, values = picked.tokens, picked.logps.tolist()
        if picked.kept_ids is not None:
            for row, ids in zip(self.alive, sampling.kept_rows(picked), strict=True):
                self.kept[row].append(ids)
        keep = []
        for place, (row, token, value) in enumerate(
            zip(self.alive, chosen.tolist(), values, strict=True)
        ):
            self.tokens[row].append(token)
            self.logps[row].append(value)
            self.versions[row].append(version)
            if token in self.engine.eos_ids:
                self.finish[row] = "stop"
            elif last:
                self.finish[row] = "length"
            else:
                keep.append(place)
        self.ids = chosen[:, None]
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], dim=-1)
        self.positions = self.positions[:, -1:] + 1
        if 0 < len(keep) < len(self.alive):
            kept = torch.tensor(keep, device=self.ids.device)
            self.cache.batch_select_indices(kept)
            self.ids, self.mask, self.positions, self.uniform = (
                value[kept] for value in (self.ids, self.mask, self.positions, self.uniform)
            )
        self.alive = [self.alive[place] for place in keep]
