"""A client of an SGLang server that somebody else started; standard library and numpy.

Endpoints and fields are those of SGLang as bundled with the `miles-rl` 0.0.2 wheel, read there.
Nothing here was tried against a live server: the tests replay a synthetic exchange.

- Log-probabilities: the server divides logits by the temperature and takes the log-softmax over
  the whole vocabulary before top-p and top-k, which is the rule of `base`. A server started with
  SGLANG_RETURN_ORIGINAL_LOGPROB answers without the temperature and must not be used.
- Seeds: the server obeys `sampling_seed` only with deterministic inference enabled.
- Versions: the server names one version a response, the one at its end. When that is not the one
  at the request's start, every token counts as of the start: the oldest that it can be.
- Weights travel through a folder that both programs see (`update_weights_from_disk`), one shard at
  a time. The NCCL and IPC transports of SGLang are not used.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ContractError, PublicationError, RefusedError
from . import base
from .base import Difference, Generation, LoadReport
from .http import JsonClient, ServerError

SHARD_BYTES = 2 * 2**30
#: how the server calls the weights that it was started with
FIRST_VERSION = "default"
_DIFFERENCE = re.compile(r"name=(\S+) max_abs_err=([-+.\w]+)")


class SGLangEngine:
    """See `base.Engine`. `load` may be called from another thread than `generate`.

    refresh: "mixed" retracts running requests for the load, and they go on with the new weights;
    "barrier" waits for them; "drain" aborts them.
    expected: names that every load must bring, of the HF folder that the server started from.
    fp32_lm_head: what the server's enable_fp32_lm_head must be; None does not ask. It is a flag of
    the server's start, so RefusedError ("fp32-conflict") where the server says something else.
    """

    def __init__(
        self,
        url: str,
        *,
        eos_ids: Sequence[int],
        timeout: float = 300.0,
        refresh: str = "mixed",
        batch_size: int = 64,
        dtype: str = "bfloat16",
        exchange: Path | str | None = None,
        expected: Iterable[str] = (),
        fp32_lm_head: bool | None = None,
        client: JsonClient | None = None,
    ) -> None:
        if refresh not in ("mixed", "barrier", "drain"):
            raise RefusedError(f"refresh {refresh!r} is none of mixed, barrier, drain", "refresh")
        self.client = client or JsonClient(url, timeout=timeout)
        self.eos_ids = [int(token) for token in eos_ids]
        self.refresh, self.batch_size, self.dtype = refresh, batch_size, dtype
        self.expected = frozenset(expected)
        if fp32_lm_head is not None:
            self._check_head(fp32_lm_head)
        self._root = Path(tempfile.mkdtemp(prefix="weights-", dir=exchange))
        self._loads = 0
        self._state = threading.Lock()
        self._version: int | None = self._server_version()
        self._newest = self._version or 0

    def _server_version(self) -> int:
        try:
            told = self.client.get("/model_info").get("weight_version")
        except AttributeError:
            told = None
        if told == FIRST_VERSION:
            return 0
        if isinstance(told, str) and told.isdecimal():
            return int(told)
        raise ContractError("engine-version", f"the server's weight_version is {told!r}")

    def _check_head(self, wanted: bool) -> None:
        """Compare the server's own settings with the run's; an old server has no such setting."""
        told = self.client.get("/server_info")
        told = told.get("enable_fp32_lm_head", False) if isinstance(told, dict) else None
        if told is not wanted:
            raise RefusedError(
                f"the server has enable_fp32_lm_head = {json.dumps(told)[:40]}, the run"
                f" {json.dumps(wanted)}: start the server with the trainer's setting",
                "fp32-conflict",
            )

    @property
    def version(self) -> int | None:
        """The policy version of the weights; None while they are of no one version."""
        return self._version

    def abort(self) -> None:
        """End what the server generates."""
        self.client.post("/abort_request", {"abort_all": True})

    def close(self) -> None:
        """Remove the exchange folder; the server goes on."""
        shutil.rmtree(self._root, ignore_errors=True)

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
        """See `base.Engine.generate`. ContractError "engine-answer" for an answer without sense."""
        base.check_request(
            prompts,
            n=n,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
        )
        if kept_sets:
            raise RefusedError("this client asks no server for kept sets", "sampling-replay-sglang")
        base.check_version(self._held(), version)
        common = {
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k if top_k > 0 else -1,
            "stop_token_ids": self.eos_ids,
            "skip_special_tokens": False,
        }
        keys = base.prompt_seeds(prompts, seed)
        rows = [
            ([int(token) for token in prompt], {**common, "sampling_seed": _seed(key, i)})
            for prompt, key in zip(prompts, keys, strict=True)
            for i in range(n)
        ]
        found: list[Generation] = []
        for start in range(0, len(rows), self.batch_size):
            found += self._batch(rows[start : start + self.batch_size], max_new_tokens)
        return found

    def _held(self) -> int | None:
        """The version, after a load that is under way."""
        with self._state:
            return self._version

    def _batch(self, rows: list[tuple[list[int], dict[str, Any]]], longest: int) -> list[Any]:
        held = base.check_version(self._held(), None)
        body = {
            "input_ids": [prompt for prompt, _ in rows],
            "sampling_params": [params for _, params in rows],
            "return_logprob": True,
        }
        try:
            answers = self.client.post("/generate", body)
        except ServerError as error:
            raise ContractError("engine-http", str(error)) from None
        if not isinstance(answers, list) or len(answers) != len(rows):
            count = len(answers) if isinstance(answers, list) else type(answers).__name__
            raise ContractError("engine-answer", f"{count} answers to {len(rows)} requests")
        return [_generation(answer, held, longest) for answer in answers]

    def load(
        self, named: Iterable[tuple[str, Any]], version: int, *, strict: bool = True
    ) -> LoadReport:
        """See `base.Engine.load`. Missing names are known only when `expected` was given."""
        if version < self._newest:
            raise PublicationError(
                f"version {version} after version {self._newest}: serving weights never go back"
            )
        started = time.perf_counter()
        with self._state:
            repeated = version == self._newest
            self._loads += 1
            folder = self._root / f"{self._loads:06d}"
            names, size = self._write(named, folder)
            missing = sorted(self.expected - names)
            if strict and missing:
                raise PublicationError(
                    f"version {version}: {missing[0]} did not arrive, {len(missing)} in all"
                )
            self._version = None  # from here on the server may hold anything
            self._update(folder, version)
            told = self._server_version()
            if told != version:
                raise PublicationError(f"version {version} was loaded, the server says {told}")
            self._version = self._newest = version
            for old in self._root.iterdir():
                if old != folder:  # the server rereads its newest folder when a load fails
                    shutil.rmtree(old, ignore_errors=True)
        return LoadReport(
            version, len(names), size, time.perf_counter() - started, tuple(missing), repeated
        )

    def _write(self, named: Iterable[tuple[str, Any]], folder: Path) -> tuple[set[str], int]:
        """The stream as safetensors shards; gives names and bytes as they came."""
        import torch
        from safetensors.torch import save_file

        kind = {"float32": torch.float32, "bfloat16": torch.bfloat16}[self.dtype]
        folder.mkdir()
        names: set[str] = set()
        shard: dict[str, Any] = {}
        size = held = shards = 0

        def flush() -> None:
            nonlocal held, shards
            if shard:
                shards += 1
                save_file(shard, str(folder / f"model-{shards:05d}.safetensors"))
                shard.clear()
                held = 0

        for name, value in named:
            if name in names:
                raise PublicationError(f"{name}: came twice")
            names.add(name)
            size += value.numel() * value.element_size()
            value = value.detach().to("cpu", copy=True)
            shard[name] = (value.to(kind) if value.is_floating_point() else value).contiguous()
            held += shard[name].numel() * shard[name].element_size()
            if held >= SHARD_BYTES:
                flush()
        flush()
        if not names:
            raise PublicationError("no tensor to load")
        return names, size

    def _update(self, folder: Path, version: int) -> None:
        body = {
            "model_path": str(folder),
            "weight_version": str(version),
            "abort_all_requests": self.refresh == "drain",
            "flush_cache": True,
        }
        mixed = self.refresh == "mixed"
        try:
            if mixed:
                # retracted requests lose their cache, so none of the old weights' stays behind
                self.client.post("/pause_generation", {"mode": "retract"})
            try:
                answer = self.client.post("/update_weights_from_disk", body)
            finally:
                if mixed:
                    self.client.post("/continue_generation", {})
        except ServerError as error:
            raise PublicationError(f"version {version}: {error}") from None
        if not isinstance(answer, dict) or answer.get("success") is not True:
            raise PublicationError(f"version {version}: the server answered {answer!r}"[:300])

    def snapshot(self) -> None:
        """See `base.Engine.snapshot`; the copy is the server's."""
        self._check("snapshot")

    def reset(self) -> None:
        """See `base.Engine.reset`; the server fills with random numbers."""
        self._version = None
        self._check("reset_tensors")

    def compare(self, named: Mapping[str, Any] | None = None) -> list[Difference]:
        """See `base.Engine.compare`; only against the snapshot.

        The server compares tensors under its own, fused names and leaves out those that it
        computes itself.
        """
        if named is not None:
            raise RefusedError(
                "the server compares with its own snapshot only, not with given tensors",
                "sglang-compare",
            )
        try:
            self._check("compare")
        except ServerError as error:
            if "tensor equality failed" not in error.body:
                raise
            text = json.loads(error.body).get("message", "")
            found = [
                Difference(name, "value", float(gap)) for name, gap in _DIFFERENCE.findall(text)
            ]
            return found or [Difference("?", "value", detail=text[:300])]
        return []

    def _check(self, action: str) -> None:
        answer = self.client.post("/weights_checker", {"action": action})
        if not isinstance(answer, dict) or answer.get("success") is not True:
            raise ContractError("engine-answer", f"{action}: {answer!r}"[:300])

    def score(self, tokens: Sequence[int], prompt_len: int, temperature: float = 1.0) -> np.ndarray:
        """See `base.Engine.score`; at temperature 1 only, which is what the server gives."""
        if temperature != 1.0:
            raise RefusedError("the server scores at temperature 1 only", "sglang-score")
        if not 1 <= prompt_len < len(tokens):
            raise ContractError("engine-request", f"prompt_len {prompt_len} of {len(tokens)}")
        whole = [int(token) for token in tokens]
        body = {
            "input_ids": whole,
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": prompt_len - 1,
        }
        try:
            answer = self.client.post("/generate", body)
            entries = answer["meta_info"]["input_token_logprobs"]
        except ServerError as error:
            raise ContractError("engine-http", str(error)) from None
        except (KeyError, TypeError):
            raise ContractError("engine-answer", "no input_token_logprobs") from None
        # the first entry is the token at the start itself, which nothing predicts
        values, ids = _pairs(entries[-(len(whole) - prompt_len) :])
        if ids != whole[prompt_len:]:
            raise ContractError("engine-answer", f"scores of tokens {ids[:8]}, not of those asked")
        return np.asarray(values, dtype=np.float32)


def _seed(key: tuple[int, ...], sample: int) -> int:
    """A seed that the server takes, 0 to 2**31 - 1."""
    return base.digest(key, sample) % 2**31


def _generation(answer: Any, held: int, longest: int) -> Generation:
    """One answer of /generate as a Generation."""
    try:
        meta = answer["meta_info"]
        reason = meta["finish_reason"]["type"]
        values, ids = _pairs(meta["output_token_logprobs"])
        told = str(meta["weight_version"])
    except (KeyError, TypeError) as error:
        raise ContractError("engine-answer", f"an answer without {error}") from None
    if reason not in base.FINISHES:
        raise ContractError("engine-answer", f"finish_reason {reason!r}")
    given = answer.get("output_ids")
    if given is not None and list(given) != ids:
        raise ContractError("engine-answer", "output_ids and output_token_logprobs disagree")
    if len(ids) > longest:
        raise ContractError("engine-answer", f"{len(ids)} tokens, {longest} were asked for")
    if told != FIRST_VERSION and not (told.isdecimal() and int(told) >= held):
        raise ContractError("engine-version", f"a response of version {told}, {held} was held")
    return Generation(
        np.asarray(ids, dtype=np.int64),
        np.asarray(values, dtype=np.float32),
        np.full(len(ids), held, dtype=np.int64),
        reason,
    )


def _pairs(entries: Any) -> tuple[list[float], list[int]]:
    """Values and token ids of the server's [log-probability, id, text or null] entries."""
    values, ids = [], []
    for entry in entries:
        value, token = entry[0], entry[1]
        if not isinstance(value, int | float) or not math.isfinite(value) or value > 0:
            raise ContractError("engine-answer", f"log-probability {value!r} of token {token!r}")
        if type(token) is not int or token < 0:
            raise ContractError("engine-answer", f"token id {token!r}")
        values.append(float(value))
        ids.append(token)
    return values, ids


def tensor_names(folder: Path | str) -> set[str]:
    """The tensor names in an HF folder's safetensors files, from their headers alone."""
    names: set[str] = set()
    for path in Path(folder).glob("*.safetensors"):
        with path.open("rb") as file:
            header = file.read(int.from_bytes(file.read(8), "little"))
        names |= set(json.loads(header)) - {"__metadata__"}
    return names
