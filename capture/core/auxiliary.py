"""The router losses as plain functions of scores, expert ids and document lengths. torch only.

For T model tokens of one layer in D documents of n_1 .. n_D tokens, E experts and K of them a
token: p_t [E] are the router's probabilities, c(S)_e the number of times that the tokens of a set
S chose expert e, and g(d) the group of document d, which is all T tokens for "pack" and the
document itself for "sequence". A document's balancing penalty and z penalty are

    B_d = (E / K) sum_e  c(g(d))_e / |g(d)|  *  mean over t in d of p_t,e
    Z_d = mean over t in d of  logsumexp(logits_t)^2

and both reduce in the same way, N model tokens and M documents being those of the whole optimizer
step on all ranks:

    token      sum_d n_d B_d / N        response   sum_d B_d / M

Each call adds the documents of one forward; the sum over the forwards and ranks of a step is the
step's loss. Counts carry no gradient. B is 1 where experts are used evenly, and at most E / K.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .errors import ContractError, RefusedError

GROUPINGS = ("pack", "sequence")
REDUCTIONS = ("token", "response")
COUNT_SOURCES = ("executed", "router_selected")

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """The six router controls of `[core]`, and whether recorded expert ids are replayed."""

    grouping: str = "pack"
    reduction: str = "token"
    z_reduction: str = "token"
    count_source: str = "executed"
    balancing_weight: float = 0.01
    z_weight: float = 1e-5
    replay: bool = False

    def __post_init__(self) -> None:
        for name, value, known in (
            ("router_aux_loss_grouping", self.grouping, GROUPINGS),
            ("router_aux_loss_reduction", self.reduction, REDUCTIONS),
            ("router_z_loss_reduction", self.z_reduction, REDUCTIONS),
            ("router_aux_count_source", self.count_source, COUNT_SOURCES),
        ):
            _known(value, known, name)
        for name, weight in (
            ("router_aux_loss_weight", self.balancing_weight),
            ("router_z_loss_weight", self.z_weight),
        ):
            if not isinstance(weight, int | float) or not 0 <= weight < math.inf:
                raise RefusedError(f"{name} must be finite and at least 0, not {weight!r}", name)

    @property
    def native(self) -> bool:
        """Whether Core's own loss functions compute the objective: pack, token, token."""
        return (self.grouping, self.reduction, self.z_reduction) == ("pack", "token", "token")


def settings_of(config) -> RouterSettings:
    """The router settings of a run's configuration."""
    core = config.core
    return RouterSettings(
        grouping=core.router_aux_loss_grouping,
        reduction=core.router_aux_loss_reduction,
        z_reduction=core.router_z_loss_reduction,
        count_source=core.router_aux_count_source,
        balancing_weight=core.router_aux_loss_weight,
        z_weight=core.router_z_loss_weight,
        replay=config.replays_routes,
    )


def balancing_loss(
    scores: torch.Tensor,
    ids: torch.Tensor | None,
    doc_lens: Sequence[int],
    *,
    topk: int | None = None,
    grouping: str = "pack",
    reduction: str = "token",
    count_source: str = "executed",
    denominator: float | None = None,
    padding: int = 0,
) -> torch.Tensor:
    """The balancing loss of one layer's forward, without its coefficient: a scalar.

    scores: probabilities [T + padding, E] or [1, T + padding, E], each row summing to 1; float64
    is kept, any other float is computed in float32. Gradients go to them alone.
    ids: int [T + padding, K], the experts that ran; with count_source "router_selected" the top
    `topk` of the scores, the first of equal ones, are counted in their place, and ids may be None.
    doc_lens: tokens of each document, in order, all above 0, T in all.
    denominator: model tokens for "token" and documents for "response" of the optimizer step on all
    ranks, divided by the number of ranks where gradients are averaged over them; None: of this
    call. padding: rows after the documents that belong to none; they count nowhere.
    Raises ContractError "auxiliary" for what does not fit together, with an id outside of the
    layer's experts among it, and RefusedError for an unknown word.
    """
    _known(grouping, GROUPINGS, "router_aux_loss_grouping")
    _known(reduction, REDUCTIONS, "router_aux_loss_reduction")
    _known(count_source, COUNT_SOURCES, "router_aux_count_source")
    doc_lens = _lengths(doc_lens, padding)
    scores = _rows(scores, doc_lens, padding)
    if ids is not None:
        ids = _ids(ids, len(scores), padding, scores.shape[-1])
        if topk not in (None, ids.shape[-1]):
            raise ContractError("auxiliary", f"topk {topk} and {ids.shape[-1]} ids a token")
        topk = ids.shape[-1]
    if count_source == "router_selected":
        if topk is None:
            raise ContractError("auxiliary", "router_selected counts need topk or ids")
        if not 1 <= topk <= scores.shape[-1]:
            raise ContractError("auxiliary", f"topk {topk} of {scores.shape[-1]} experts")
        ids = scores.detach().sort(dim=-1, descending=True, stable=True).indices[:, :topk]
    elif ids is None:
        raise ContractError("auxiliary", "executed counts need expert ids")
    return counted_balancing(
        scores, ids, doc_lens, grouping=grouping, reduction=reduction, denominator=denominator
    )


def counted_balancing(
    scores: torch.Tensor,
    ids: torch.Tensor,
    doc_lens: tuple[int, ...],
    *,
    grouping: str,
    reduction: str,
    denominator: float | None,
) -> torch.Tensor:
    """`balancing_loss` of scores [T, E] and ids [T, K] that are known to fit: nothing is checked.

    A check of the ids would have the host wait for a GPU in every layer.
    """
    experts, topk = scores.shape[-1], ids.shape[-1]
    owner, lengths = _layout(doc_lens, scores.device)
    counts = document_counts(ids, owner, len(doc_lens), experts).double()
    if grouping == "pack":
        shares = (counts.sum(0) / lengths.sum()).expand(len(doc_lens), experts)
    else:
        shares = counts / lengths[:, None]
    # the loss is linear in the probabilities: one factor for each document and expert
    factors = shares * (experts / topk) * _weights(lengths, reduction, denominator)[:, None]
    return (scores * factors.to(scores.dtype)[owner]).sum()


def z_loss(
    logits: torch.Tensor,
    doc_lens: Sequence[int],
    *,
    reduction: str = "token",
    denominator: float | None = None,
    padding: int = 0,
) -> torch.Tensor:
    """The z loss of one layer's forward, without its coefficient: a scalar.

    logits: [T + padding, E] or [1, T + padding, E], before the softmax. The rest is as in
    `balancing_loss`; there is no histogram, so no grouping.
    """
    _known(reduction, REDUCTIONS, "router_z_loss_reduction")
    doc_lens = _lengths(doc_lens, padding)
    logits = _rows(logits, doc_lens, padding)
    owner, lengths = _layout(doc_lens, logits.device)
    weights = _weights(lengths, reduction, denominator).to(logits.dtype)
    return (torch.logsumexp(logits, dim=-1).square() * weights[owner]).sum()


@functools.lru_cache(maxsize=4)  # the same for every layer of a forward, and its recomputation
def _layout(doc_lens: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The document that each token belongs to, int64 [T], and documents' tokens, float64 [D]."""
    lengths = torch.tensor(doc_lens)
    owner = torch.repeat_interleave(torch.arange(len(doc_lens)), lengths)
    return owner.to(device), lengths.double().to(device)


def document_counts(
    ids: torch.Tensor, owner: torch.Tensor, documents: int, experts: int
) -> torch.Tensor:
    """How often each document's tokens chose each expert, int64 [D, E]; ids [T, K], owner [T]."""
    places = (owner[:, None] * experts + ids).reshape(-1)
    flat = torch.zeros(documents * experts, dtype=torch.int64, device=ids.device)
    return flat.scatter_add_(0, places, torch.ones_like(places)).view(documents, experts)


def _weights(lengths: torch.Tensor, reduction: str, denominator: float | None) -> torch.Tensor:
    """What a token of each document weighs, float64 [D]."""
    if denominator is None:
        denominator = float(lengths.sum()) if reduction == "token" else len(lengths)
    if not 0 < denominator < math.inf:
        raise ContractError("auxiliary", f"denominator {denominator}")
    ones = torch.ones_like(lengths)
    return (ones if reduction == "token" else ones / lengths) / denominator


def _lengths(doc_lens: Sequence[int], padding: int) -> tuple[int, ...]:
    """The documents' tokens as plain integers."""
    try:
        found = tuple(operator.index(length) for length in doc_lens)
    except TypeError:
        raise ContractError("auxiliary", f"documents of {doc_lens!r} tokens") from None
    if not found or min(found) < 1 or padding < 0:
        raise ContractError("auxiliary", f"documents of {found} tokens and {padding} of padding")
    return found


def _rows(values: torch.Tensor, doc_lens: tuple[int, ...], padding: int) -> torch.Tensor:
    """The rows of documents, [T, E], in float32 or float64."""
    if not isinstance(values, torch.Tensor) or not values.is_floating_point():
        raise ContractError(
            "auxiliary", f"scores or logits are {_kind(values)}, not a tensor of floats"
        )
    if values.dim() == 3 and len(values) == 1:
        values = values[0]
    if values.dim() != 2 or not values.shape[-1]:
        raise ContractError(
            "auxiliary", f"shape {tuple(values.shape)}: one unpadded instance of tokens is needed"
        )
    total = sum(doc_lens)
    if len(values) != total + padding:
        raise ContractError(
            "auxiliary",
            f"{len(values)} rows for documents of {total} tokens"
            + (f" and {padding} of padding" if padding else ""),
        )
    return (values if values.dtype == torch.float64 else values.float())[:total]


def _ids(ids: torch.Tensor, tokens: int, padding: int, experts: int) -> torch.Tensor:
    """The documents' expert ids, [T, K]; every one is below `experts`."""
    if not isinstance(ids, torch.Tensor) or ids.dtype not in _INTEGERS:
        raise ContractError("auxiliary", f"expert ids are {_kind(ids)}, not a tensor of integers")
    if ids.dim() == 3 and len(ids) == 1:
        ids = ids[0]
    if ids.dim() != 2 or len(ids) != tokens + padding or not 1 <= ids.shape[-1] <= experts:
        raise ContractError(
            "auxiliary",
            f"expert ids of shape {tuple(ids.shape)} for {tokens + padding} rows of {experts}"
            " experts",
        )
    # the place of an id among the counts is that of its document too: one that is too large would
    # be another document's
    ids = ids[:tokens].long()
    wrong = ((ids < 0) | (ids >= experts)).nonzero()
    if len(wrong):
        row, slot = wrong[0].tolist()
        raise ContractError(
            "auxiliary",
            f"row {row}: expert id {int(ids[row, slot])}, the layer has experts 0 to {experts - 1}",
        )
    return ids


def _kind(value: object) -> str:
    return str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__name__


def _known(value: str, known: tuple[str, ...], name: str) -> None:
    if value not in known:
        raise RefusedError(f"{name} must be {' or '.join(known)}, not {value!r}", name)
