"""The router objectives in numpy float64, one token and one expert at a time.

Written from the page's words alone, without the trainer's code; the gradient is by central
differences. A document is (first token, end) in a forward; forwards make an optimizer step.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np


def softmax(row: np.ndarray) -> np.ndarray:
    """Probabilities of one token's logits."""
    shifted = [math.exp(value - max(row)) for value in row]
    return np.array([value / sum(shifted) for value in shifted])


def top(row: np.ndarray, k: int) -> list[int]:
    """The k largest, the first of equal ones."""
    return sorted(range(len(row)), key=lambda expert: (-row[expert], expert))[:k]


def spans(doc_lens) -> list[tuple[int, int]]:
    """(first token, end) of each document."""
    found, start = [], 0
    for length in doc_lens:
        found.append((start, start + length))
        start += length
    return found


def histogram(choices, tokens, experts: int) -> list[int]:
    """How often some tokens chose each expert."""
    counts = [0] * experts
    for token in tokens:
        for expert in choices[token]:
            counts[expert] += 1
    return counts


def balancing(forwards, *, k, grouping, reduction, source) -> float:
    """The balancing loss of a step. forwards: (logits [T, E] float64, ids [T][K], doc_lens)."""
    documents, model_tokens = 0, 0
    total = 0.0
    for logits, executed, doc_lens in forwards:
        experts = logits.shape[1]
        probabilities = [softmax(row) for row in logits]
        chosen = executed if source == "executed" else [top(row, k) for row in logits]
        everything = range(sum(doc_lens))
        for first, end in spans(doc_lens):
            own = range(first, end)
            group = everything if grouping == "pack" else own
            counts = histogram(chosen, group, experts)
            penalty = 0.0
            for expert in range(experts):
                fraction = counts[expert] / (k * len(group))
                mean = math.fsum(probabilities[token][expert] for token in own) / len(own)
                penalty += experts * fraction * mean
            total += penalty * (len(own) if reduction == "token" else 1)
            documents += 1
            model_tokens += len(own)
    return total / (model_tokens if reduction == "token" else documents)


def z(forwards, *, reduction) -> float:
    """The z loss of a step."""
    documents, model_tokens = 0, 0
    total = 0.0
    for logits, _, doc_lens in forwards:
        for first, end in spans(doc_lens):
            squares = []
            for row in logits[first:end]:
                largest = max(row)
                log_sum = largest + math.log(math.fsum(math.exp(v - largest) for v in row))
                squares.append(log_sum**2)
            mean = math.fsum(squares) / len(squares)
            total += mean * (len(squares) if reduction == "token" else 1)
            documents += 1
            model_tokens += len(squares)
    return total / (model_tokens if reduction == "token" else documents)


def gradient(loss: Callable[[], float], values: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """Central differences of a loss in every entry of `values`, which it reads."""
    found = np.zeros_like(values)
    for place in np.ndindex(values.shape):
        kept = values[place]
        values[place] = kept + step
        above = loss()
        values[place] = kept - step
        below = loss()
        values[place] = kept
        found[place] = (above - below) / (2 * step)
    return found
