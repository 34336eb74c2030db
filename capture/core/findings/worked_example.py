"""Two documents on eight tokens, every router objective: the example of the trainer's page.

Four experts, one a token. The router gives expert 0 a probability of 1/4 at both tokens of the
first document, 1/4 to each other expert, and of 3/4 at the six of the second. Once all tokens run
expert 0, then a balancing penalty is four times that probability, 1 and 3; once the first document
runs expert 1 instead, so that a common histogram differs from two. An even router selects nobody,
so what the router itself would select is shown on a first document that prefers expert 1.
"""

from __future__ import annotations

from itertools import product

import torch

from ..auxiliary import COUNT_SOURCES, GROUPINGS, REDUCTIONS, balancing_loss, z_loss
from .record import Finding, Value

LENGTHS = (2, 6)
WEIGHT = 0.01
EVEN, TILTED = (0.25, 0.25, 0.25, 0.25), (0.25, 0.45, 0.2, 0.1)
SECOND = (0.75, 1 / 12, 1 / 12, 1 / 12)
TOTALS = {"token": float(sum(LENGTHS)), "response": float(len(LENGTHS))}


def scores_of(first: tuple[float, ...]) -> torch.Tensor:
    """Probabilities [1, 8, 4], float64."""
    rows = [torch.tensor(first), torch.tensor(SECOND)]
    parts = [row.double().expand(length, -1) for row, length in zip(rows, LENGTHS, strict=True)]
    return torch.cat(parts)[None]


def balancing(
    first: tuple[float, ...], first_expert: int, grouping: str, reduction: str, source: str
) -> float:
    """The unweighted balancing loss of the two documents."""
    ids = torch.zeros(1, sum(LENGTHS), 1, dtype=torch.long)
    ids[0, : LENGTHS[0]] = first_expert
    return float(
        balancing_loss(
            scores_of(first), ids, LENGTHS, topk=1, grouping=grouping, reduction=reduction,
            count_source=source, denominator=TOTALS[reduction],
        )
    )  # fmt: skip


def penalty(number: int) -> float:
    """The balancing penalty of one document alone, all of it on expert 0."""
    place = slice(0, LENGTHS[0]) if number == 0 else slice(LENGTHS[0], None)
    scores = scores_of(EVEN)[:, place]
    ids = torch.zeros(1, LENGTHS[number], 1, dtype=torch.long)
    return float(balancing_loss(scores, ids, LENGTHS[number : number + 1], topk=1))


def measure() -> Finding:
    """Run it; see the module."""
    executed = list(product(GROUPINGS, REDUCTIONS))
    every = list(product(GROUPINGS, REDUCTIONS, COUNT_SOURCES))
    same = [balancing(EVEN, 0, *one, "executed") for one in executed]
    other = [balancing(EVEN, 1, *one, "executed") for one in executed]
    tilted = [balancing(TILTED, 0, *one) for one in every]
    logits = 2 * scores_of(TILTED).log()
    z = [float(z_loss(logits, LENGTHS, reduction=one, denominator=TOTALS[one])) for one in TOTALS]
    token = same[executed.index(("sequence", "token"))]
    response = same[executed.index(("sequence", "response"))]
    right = abs(token - 2.5) < 1e-6 and abs(response - 2.0) < 1e-6
    return Finding(
        name="",
        outcome="reproduced" if right else "differs",
        noted="2.5 and 2, weighted 0.025 and 0.02; with the first document on expert 1: pack 2.0"
        " and 1.6667, sequence 2.5 and 2.0",
        claim="Penalties {penalties} of documents of {lengths} tokens: token averaging gives"
        " {token}, response averaging {response}; weighted {weighted_token} and"
        " {weighted_response}.",
        values={
            "lengths": Value(list(LENGTHS), "tokens", "documents", "exact"),
            "penalties": Value([penalty(0), penalty(1)], "1", "of each document", "close", 1e-6),
            "token": Value(token, "1", "sequence grouping, token averaging", "close", 1e-6),
            "response": Value(response, "1", "sequence, response averaging", "close", 1e-6),
            "weighted_token": Value(WEIGHT * token, "1", "times the weight", "close", 1e-6),
            "weighted_response": Value(WEIGHT * response, "1", "times the weight", "close", 1e-6),
            "executed": Value(
                [list(one) for one in executed], "1", "grouping and reduction of the next two",
                "exact",
            ),
            "one_expert": Value(same, "1", "all tokens on expert 0", "close", 1e-6),
            "two_experts": Value(other, "1", "the first document on expert 1", "close", 1e-6),
            "every": Value(
                [list(one) for one in every], "1", "grouping, reduction, count source of the next",
                "exact",
            ),
            "tilted": Value(
                tilted, "1", "all tokens run expert 0, the first document prefers expert 1",
                "close", 1e-6,
            ),
            "z": Value(z, "1", "z loss, token and response averaging", "close", 1e-6),
        },
        settings={"experts": 4, "topk": 1, "weight": WEIGHT, "even": list(EVEN),
                  "tilted": list(TILTED), "second": list(SECOND)},
    )  # fmt: skip
