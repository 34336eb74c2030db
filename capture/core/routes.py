"""Recorded expert ids of samples: what they must be, and how they lie along a pack. numpy only.

A sample of T tokens carries ids [T-1, layers, K]: those of every token that was forwarded to sample
another one. Its last token was never forwarded by the engine, and the trainer forwards it: it gets
the synthetic tail, experts 0 to K-1 in every layer, as Miles fills it. That row decides which
experts run for a token that predicts nothing, so it reaches no policy loss; it does count among
the model tokens of the router losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .errors import ContractError
from .packing import Pack
from .samples import Sample


@dataclass(frozen=True, slots=True)
class RouterShape:
    """What a model's routers look like: recorded ids must fit it."""

    layers: int  # layers with routed experts
    experts: int  # routed experts of a layer
    topk: int  # experts that run for a token


def synthetic_tail(layers: int, topk: int) -> np.ndarray:
    """The ids of a sample's last token, int64 [layers, K]: 0 to K-1 in every layer."""
    return np.tile(np.arange(topk, dtype=np.int64), (layers, 1))


def check_routes(sample: Sample, n_layers: int, n_experts: int, topk: int) -> None:
    """Raise ContractError "routes" for ids that cannot be replayed, naming the first wrong one.

    Missing ids, another number of tokens, layers or experts a token, an id outside the layer's
    experts, and an expert that comes twice for one token of a layer.
    """

    def wrong(what: str) -> ContractError:
        return ContractError("routes", f"sample {sample.sample_id}: {what}")

    routes = sample.routes
    if routes is None:
        raise wrong("no recorded expert ids, and routing replay is on")
    if not np.issubdtype(routes.dtype, np.integer):
        raise wrong(f"expert ids are {routes.dtype}, no integers")
    rows = len(sample.tokens) - 1
    if routes.ndim != 3 or len(routes) != rows:
        raise wrong(f"expert ids of shape {routes.shape} for {rows + 1} tokens, not ({rows}, ...)")
    if routes.shape[1] != n_layers:
        raise wrong(f"expert ids of {routes.shape[1]} layers, the model routes in {n_layers}")
    if routes.shape[2] != topk:
        raise wrong(f"{routes.shape[2]} expert ids a token, the model's routers choose {topk}")
    outside = np.argwhere((routes < 0) | (routes >= n_experts))
    if len(outside):
        token, layer, slot = outside[0]
        raise wrong(
            f"token {token}, layer {layer}: expert id {routes[token, layer, slot]}, the layer has"
            f" experts 0 to {n_experts - 1}"
        )
    ordered = np.sort(routes, axis=-1)
    twice = np.argwhere(ordered[..., 1:] == ordered[..., :-1])
    if len(twice):
        token, layer, slot = twice[0]
        raise wrong(
            f"token {token}, layer {layer}: expert id {ordered[token, layer, slot]} twice in"
            f" {routes[token, layer].tolist()}"
        )


def check_samples(samples: Sequence[Sample], shape: RouterShape | None, *, replay: bool) -> None:
    """Raise ContractError "routes" where samples and the replay switch do not fit together.

    shape: of the model's routers; None for a dense model, which replays nothing.
    """
    for sample in samples:
        if replay and shape is not None:
            check_routes(sample, shape.layers, shape.experts, shape.topk)
        elif sample.routes is not None:
            raise ContractError(
                "routes",
                f"sample {sample.sample_id}: has recorded expert ids, and routing replay is off",
            )


def pack_routes(pack: Pack, samples: Sequence[Sample]) -> np.ndarray:
    """The ids of a pack's L tokens, int64 [L, layers, K], its documents one after the other.

    samples: all planned samples; `check_samples` has passed on them. Every document ends with the
    synthetic tail. A filler has it in every row: what runs there weighs nothing.
    """
    first = samples[0].routes
    if first is None:
        raise ContractError(
            "routes", f"sample {samples[0].sample_id}: no recorded expert ids to pack"
        )
    tail = synthetic_tail(*first.shape[1:])
    if pack.is_filler:
        return np.tile(tail, (len(pack.tokens), 1, 1))
    rows = []
    for index, length in zip(pack.sample_indexes, pack.doc_lens, strict=True):
        routes = samples[index].routes
        if routes is None or routes.shape != (length - 1, *tail.shape):
            shown = None if routes is None else routes.shape
            raise ContractError(
                "routes",
                f"sample {samples[index].sample_id}: expert ids of shape {shown}, not"
                f" {(length - 1, *tail.shape)}",
            )
        rows += [routes.astype(np.int64), tail[None]]
    return np.concatenate(rows)


def recorded_rows(doc_lens: Sequence[int]) -> np.ndarray:
    """Which of a pack's L rows are recorded ones, bool [L]: all but each document's last."""
    rows = np.ones(sum(doc_lens), np.bool_)
    rows[np.cumsum(doc_lens) - 1] = False
    return rows
