"""Decoding without a wait for the host: a static cache, and on a GPU one CUDA graph a token.

A decode step is the model's forward of one token a row over a cache of fixed size, sampling, and
noting what was sampled in buffers on the device; nothing in it depends on a number that the host
would have to read. On a GPU it is recorded once for every shape and then replayed, which takes the
place of some thousand launches; on a CPU the same step runs as it is. The host looks every `EVERY`
steps: which rows are finished, whether a load waits, whether numbers went wrong. What a row samples
after its end token is thrown away there. When half of the rows are finished, the others move to the
front and the steps get smaller.

Prompts that several rows share are read once. Weights are loaded in place, so recorded graphs stay
right; a load waits until the host looks, and the tokens of one look have one version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from ..errors import RefusedError
from . import base, sampling
from .base import Generation
from .decoderows import Look, Rows
from .lean import LeanForward, problem
from .staticcache import StaticCache, attention, prompt_mask

EVERY = 16
"""Decode steps from one look of the host to the next; at most as many tokens a row are wasted."""

COLUMNS = 128
"""The part of the cache that attention reads, and the cache itself, grow in steps of so many
positions: one graph each."""

SMALLEST = 8
"""Rows of the smallest step; below it a step takes the same time."""

LARGEST_SETS = 1 << 30
"""Bytes of the buffer of kept sets: a truncated sampler over a large vocabulary is looked at more
often."""


class GraphDecoder:
    """Generates batches of an engine's rows; one caller at a time.

    Make it before the engine lists its weights: `lean` moves some of them together.
    """

    def __init__(self, engine: Any, *, every: int = EVERY) -> None:
        self.engine, self.every = engine, every
        self.device: torch.device = engine.device
        self.rows = engine.batch_size
        self.cache: StaticCache | None = None
        self.lean = None if problem(engine.model) else LeanForward(engine.model)
        self._draws = 0
        self._graphs: dict[tuple[Any, ...], Callable[[], None]] = {}
        self._pool: Any = None
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._sets: tuple[int, int] = (0, 0)  # slots and columns of the buffer of kept sets

    # -- a batch ---------------------------------------------------------------------------------

    def run(
        self,
        rows: Sequence[tuple[list[int], tuple[int, ...], int]],
        max_new_tokens: int,
        settings: Mapping[str, Any],
    ) -> list[Generation]:
        """Responses to rows of (prompt, key, sample), at most the engine's batch size of them."""
        try:
            return self._run(rows, max_new_tokens, settings)
        except BaseException:
            # what is in the cache may be no numbers, and 0 times that is not 0
            self.cache = None
            raise

    def _run(
        self, rows: Sequence[tuple[list[int], Any, int]], max_new_tokens: int, settings: Any
    ) -> list[Generation]:
        engine = self.engine
        prompts = [len(prompt) for prompt, _, _ in rows]
        batch = Rows(prompts, max_new_tokens, engine.eos_ids, settings["kept_sets"])
        longest = max(prompts)
        with engine._turn():
            if engine._ended:  # asked in the turn: a load may have had the one before it
                return batch.generations()
            version = base.check_version(engine._version, None)
            self._reserve(longest + max_new_tokens, max_new_tokens)
            count = self._fit(len(rows))
            logits = self._prompts(rows, count, longest, max_new_tokens)
            every = self._sets_for(logits, settings)
            self._sample(logits, settings)
            batch.note(self._read(1, count, settings, start=True), version)
        filled = longest  # columns of the cache that hold something
        while batch.places:
            smaller = self._fit(len(batch.places))
            if smaller < count:
                count = smaller
                self._keep(batch.compact(count), filled)
            steps = min(every, max_new_tokens - batch.length)
            limit = _up(filled + steps, COLUMNS)
            with engine._turn():
                if engine._ended:
                    break
                version = base.check_version(engine._version, None)
                self.slot.zero_()
                for _ in range(steps):
                    self._step(count, limit, settings)
                batch.note(self._read(steps, count, settings), version)
            filled += steps
        return batch.generations()

    def _fit(self, rows: int) -> int:
        """Rows of the step for so many: the batch size halved as often as it goes."""
        count = self.rows
        while count > SMALLEST and (count + 1) // 2 >= rows:
            count = (count + 1) // 2
        return count

    def _reserve(self, columns: int, draws: int) -> None:
        """Make the buffers, or larger ones; the graphs of the old ones are then gone."""
        columns = _up(columns, COLUMNS)
        if self.cache is not None and self.cache.columns >= columns and self._draws >= draws:
            return
        columns = max(columns, self.cache.columns if self.cache else 0)
        self._draws = max(draws, self._draws)
        self._forget()
        device, rows = self.device, self.rows
        dtype = next(self.engine.model.parameters()).dtype
        # the old cache is freed before the new one is made
        self.cache = None
        self.cache = StaticCache(rows, columns, device)
        if self.lean is not None:
            self.lean.reserve(columns)
        self.bias = torch.zeros(rows, 1, 1, columns, dtype=dtype, device=device)
        self.ids = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self.positions = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self.uniform = torch.zeros(rows, self._draws, dtype=torch.float64, device=device)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.slot = torch.zeros(1, dtype=torch.int64, device=device)
        self.tokens = torch.zeros(self.every, rows, dtype=torch.int64, device=device)
        self.logps = torch.zeros(self.every, rows, dtype=torch.float32, device=device)
        if (experts := self.engine.experts) is not None:
            shape = (self.every, rows, experts.layers, experts.topk)
            self.routes = torch.zeros(shape, dtype=torch.int32, device=device)

    def _forget(self) -> None:
        """Drop the recorded steps, and the memory that they share."""
        self._graphs.clear()
        self._pool = None

    def _sets_for(self, logits: torch.Tensor, settings: Mapping[str, Any]) -> int:
        """Make room for kept sets, if they are asked for; gives the steps between two looks."""
        if not settings["kept_sets"]:
            return self.every
        top_k, vocab = settings["top_k"], logits.shape[-1]
        width = top_k if 0 < top_k < vocab else vocab
        slots = max(1, min(self.every, LARGEST_SETS // (4 * width * self.rows)))
        if self._sets != (slots, width):
            self._forget()
            self._sets = (slots, width)
            shape = (slots, self.rows, width)
            self.kept_ids = torch.zeros(shape, dtype=torch.int32, device=self.device)
            self.kept_counts = torch.zeros(shape[:2], dtype=torch.int64, device=self.device)
        return slots

    def _prompts(
        self, rows: Sequence[tuple[list[int], Any, int]], count: int, longest: int, draws: int
    ) -> torch.Tensor:
        """Logits [count, V] after the prompts; every different prompt is read once."""
        engine, device = self.engine, self.device
        places: dict[tuple[int, ...], int] = {}
        source = [places.setdefault(tuple(prompt), len(places)) for prompt, _, _ in rows]
        source += [0] * (count - len(rows))
        given = torch.full((len(places), longest), engine.pad_id, dtype=torch.int64)
        real = torch.zeros(len(places), longest, dtype=torch.bool)
        for place, prompt in enumerate(places):
            given[place, longest - len(prompt) :] = torch.tensor(prompt)
            real[place, longest - len(prompt) :] = True
        uniform = np.stack([sampling.uniforms(key, i, draws) for _, key, i in rows])
        of_row = torch.tensor(source, device=device)
        given, real = given.to(device), real.to(device)
        self.cache.prompt(of_row)
        self.cache.column.fill_(longest - 1)
        positions = (real.long().cumsum(dim=-1) - 1).clamp(min=0)
        logits = self._forward(given, positions, prompt_mask(real, self.bias.dtype))
        if self._ran is not None:
            ids = self._ran.cpu().numpy()
            self._prompt_routes = [ids[place] for place in source[: len(rows)]]
        self.bias.fill_(-torch.inf)
        self.bias[:count, 0, 0, :longest].masked_fill_(real[of_row], 0.0)
        self.positions[:count] = positions[of_row, -1:]
        self.uniform[: len(rows), :draws] = torch.from_numpy(uniform).to(device)
        self.step.zero_()
        self.slot.zero_()
        return logits[of_row]

    def _forward(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Logits [rows, V] after the last of ids [rows, tokens], under an additive 4-d mask."""
        experts = self.engine.experts
        if experts is not None:
            experts.begin()
        with attention(self.engine.model):
            out = self.engine.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                logits_to_keep=1,
                **{self.engine.cache_argument: self.cache},
            )
        self._ran = None if experts is None else experts.take(len(ids))
        return out.logits[:, -1]

    # -- a token ---------------------------------------------------------------------------------

    def _step(self, count: int, limit: int, settings: Mapping[str, Any]) -> None:
        """One token for the first rows: recorded if it is new, else replayed."""
        key = (count, limit, *sorted(settings.items()))
        graph = self._graphs.get(key)
        if graph is not None:
            graph()
            return

        def decode() -> None:
            self.cache.step(count, limit)
            self.bias[:count].index_fill_(3, self.cache.column, 0.0)
            given = (self.ids[:count], self.positions[:count], self.bias[:count, :, :, :limit])
            if self.lean is not None:
                logits = self.lean.step(*given, self.cache)
            else:
                logits = self._forward(*given)
                if self._ran is not None:
                    ran = self._ran.transpose(0, 1)
                    self.routes[:, :count].index_copy_(0, self.slot, ran)
            self._sample(logits, settings)

        self._graphs[key] = decode if self._stream is None else self._recorded(decode)
        if self._stream is None:
            decode()

    def _recorded(self, decode: Callable[[], None]) -> Callable[[], None]:
        """Run a step once, which sets up the libraries it calls, and record it for the next."""
        stream, current = self._stream, torch.cuda.current_stream(self.device)
        stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            decode()
            torch.cuda.synchronize(self.device)
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            # other threads may use the GPU meanwhile: a trainer beside an async producer
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                decode()
            except RuntimeError as error:
                with suppress(RuntimeError):
                    graph.capture_end()
                raise RefusedError(
                    f"a decode step cannot be recorded as a CUDA graph ({error});"
                    ' engine.decode = "cache" needs none',
                    "decode-graph",
                ) from error
            graph.capture_end()
        current.wait_stream(stream)
        return graph.replay

    def _sample(self, logits: torch.Tensor, settings: Mapping[str, Any]) -> None:
        """Pick a token a row of logits [rows, V], note it, and make it the next step's input."""
        count = len(logits)
        draw = self.uniform[:count].index_select(1, self.step)[:, 0]
        picked = sampling.pick(logits, draw, **settings)
        self.tokens[:, :count].index_copy_(0, self.slot, picked.tokens[None])
        self.logps[:, :count].index_copy_(0, self.slot, picked.logps[None])
        if picked.kept_ids is not None:
            ids = picked.kept_ids.to(torch.int32)
            self.kept_ids[:, :count].index_copy_(0, self.slot, ids[None])
            self.kept_counts[:, :count].index_copy_(0, self.slot, picked.kept_counts[None])
        self.ids[:count].copy_(picked.tokens[:, None])
        for counter in (self.positions[:count], self.cache.column, self.step, self.slot):
            counter.add_(1)

    def _read(
        self, steps: int, count: int, settings: Mapping[str, Any], *, start: bool = False
    ) -> Look:
        """What the last steps sampled and ran; here the host waits for the device.

        start: it was the prompts that ran.
        """
        kept = routes = None
        if self.engine.experts is not None:
            routes = self._prompt_routes
            if not start:
                routes = self.routes[:steps, :count].transpose(0, 1).cpu().numpy()
        if settings["kept_sets"]:
            counts = self.kept_counts[:steps, :count].cpu().numpy()
            ids = self.kept_ids[:steps, :count, : int(counts.max())].cpu().numpy()
            kept = (ids, counts)
        return Look(
            self.tokens[:steps, :count].cpu().numpy(),
            self.logps[:steps, :count].cpu().numpy(),
            kept,
            routes,
        )

    def _keep(self, places: Sequence[int], filled: int) -> None:
        """Move rows to the front, in the cache and in everything that a step reads."""
        kept = torch.tensor(places, device=self.device)
        self.cache.keep(kept, filled)
        for buffer in (self.bias, self.ids, self.positions, self.uniform):
            buffer[: len(kept)] = buffer.index_select(0, kept)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
