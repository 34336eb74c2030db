"""Fixed-bin histograms of the probability error, and quantile bounds that need no raw values.

numpy only. The probability error of an active response token is |anchor - behaviour|, the absolute
difference in nats between the trainer-policy and the engine log-probability of that token.
Bin i holds values in (BOUNDS[i - 1], BOUNDS[i]]; bin 0 holds exact zeros; the last bin, the
overflow, holds everything above 1.0. Bins never depend on data, so counts of ranks simply add.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from .errors import ContractError

BOUNDS: tuple[float, ...] = (
    0.0,
    *(float(f"{digit}e{power}") for power in range(-6, 0) for digit in (1, 2, 5)),
    1.0,
)
"""Upper bounds of the bins below the overflow: 0, then 1, 2, 5 per decade from 1e-6 to 1."""

BINS = len(BOUNDS) + 1
QUANTILES: dict[str, tuple[int, int]] = {"p50": (1, 2), "p95": (19, 20), "p99": (99, 100)}
"""Name to an exact fraction: ranks are whole numbers, and 0.95 * 20 in floats is not 19."""

THIRDS = ("first", "middle", "last")
LENGTH_BOUNDS: tuple[int, ...] = (8, 32, 128, 512, 2048, 8192)
LENGTHS: tuple[str, ...] = (
    *(f"{a + 1}-{b}" for a, b in zip((0, *LENGTH_BOUNDS), LENGTH_BOUNDS, strict=False)),
    f"{LENGTH_BOUNDS[-1] + 1}+",
)
"""Buckets of the response length R, in generated tokens, active or not."""

SEGMENTS = ("all", *THIRDS, *LENGTHS)


def bin_of(values: np.ndarray) -> np.ndarray:
    """Bin index of each value, int64 [N]. Compares in float64: float32 0.1 lies above 0.1."""
    return np.searchsorted(np.asarray(BOUNDS), np.asarray(values, np.float64), side="left")


def quantile_rank(count: int, fraction: tuple[int, int]) -> int:
    """Which of `count` ordered values, from 1, is the quantile: the smallest rank >= q count."""
    top, bottom = fraction
    return max(1, -(-count * top // bottom))


def quantile_upper(counts: Sequence[int], fraction: tuple[int, int]) -> float | None:
    """Upper bound of the bin that holds the quantile; None when that is the overflow bin.

    The true quantile (inverted distribution function) lies in that bin, so it is at most the
    bound and above the bound before. Raises ContractError without observations: None never
    stands for missing values.
    """
    total = int(sum(counts))
    if not total:
        raise ContractError("histogram", "no observation has no quantile")
    left = quantile_rank(total, fraction)
    for index, count in enumerate(counts):
        left -= int(count)
        if left <= 0:
            return None if index == len(BOUNDS) else BOUNDS[index]
    raise AssertionError("unreachable: ranks are at most the total")


def thirds_of(response_len: int) -> np.ndarray:
    """Index into THIRDS of each of R response positions: floor(3 i / R), so shorts fill early."""
    return 3 * np.arange(response_len) // response_len


def length_bucket(response_len: int) -> int:
    """Index into LENGTHS of a response of R tokens."""
    return int(np.searchsorted(LENGTH_BOUNDS, response_len, side="left"))


class ErrorHistogram:
    """Counts, sums and exact maxima of the probability error: all, by third, by length bucket.

    counts int64 [SEGMENTS, BINS]; sums and maxima float64 [SEGMENTS], maxima 0 where empty;
    responses int64 [LENGTHS]. Add local tokens, reduce over ranks, then read `summary`.
    """

    __slots__ = ("counts", "maxima", "responses", "sums")

    def __init__(self) -> None:
        self.counts = np.zeros((len(SEGMENTS), BINS), np.int64)
        self.sums = np.zeros(len(SEGMENTS), np.float64)
        self.maxima = np.zeros(len(SEGMENTS), np.float64)
        self.responses = np.zeros(len(LENGTHS), np.int64)

    @property
    def total(self) -> int:
        """Observations."""
        return int(self.counts[0].sum())

    def add(self, anchor: np.ndarray, behaviour: np.ndarray, mask: np.ndarray) -> None:
        """Count one response: log-probabilities [R], nats, and bool mask [R] of active tokens.

        Raises ContractError for unequal lengths and for an active value that is not finite.
        """
        anchor, behaviour = np.asarray(anchor, np.float64), np.asarray(behaviour, np.float64)
        mask = np.asarray(mask, bool)
        if not anchor.shape == behaviour.shape == mask.shape or anchor.ndim != 1 or not len(mask):
            raise ContractError(
                "histogram", f"shapes {anchor.shape}, {behaviour.shape}, {mask.shape} of a response"
            )
        length = len(mask)
        error = np.abs(anchor[mask] - behaviour[mask])
        if not np.isfinite(error).all():
            at = int(np.flatnonzero(mask)[~np.isfinite(error)][0])
            raise ContractError(
                "non-finite-logp",
                f"probability error at response position {at}: anchor {anchor[at]},"
                f" behaviour {behaviour[at]}",
            )
        bucket = length_bucket(length)
        self.responses[bucket] += 1
        bins, third = bin_of(error), thirds_of(length)[mask]
        everything = np.ones(len(error), bool)
        chosen = [(0, everything), (1 + len(THIRDS) + bucket, everything)]
        chosen += [(1 + index, third == index) for index in range(len(THIRDS))]
        for row, members in chosen:
            if members.any():
                self.counts[row] += np.bincount(bins[members], minlength=BINS)
                self.sums[row] += error[members].sum()
                self.maxima[row] = max(self.maxima[row], error[members].max())

    def merge(self, other: ErrorHistogram) -> ErrorHistogram:
        """Return both together; the order does not matter but for the rounding of sums."""
        result = ErrorHistogram()
        result.counts = self.counts + other.counts
        result.responses = self.responses + other.responses
        result.sums = self.sums + other.sums
        result.maxima = np.maximum(self.maxima, other.maxima)
        return result

    def reduced(
        self,
        add: Callable[[np.ndarray], np.ndarray],
        maximum: Callable[[np.ndarray], np.ndarray],
    ) -> ErrorHistogram:
        """Return the histogram of all ranks.

        add and maximum all-reduce a float64 vector; counts below 2**53 pass through exactly.
        """
        flat = np.concatenate([self.counts.ravel(), self.responses, self.sums]).astype(np.float64)
        flat = np.asarray(add(flat), np.float64)
        cells = self.counts.size
        result = ErrorHistogram()
        result.counts = np.rint(flat[:cells]).astype(np.int64).reshape(self.counts.shape)
        result.responses = np.rint(flat[cells : cells + len(LENGTHS)]).astype(np.int64)
        result.sums = flat[cells + len(LENGTHS) :].copy()
        result.maxima = np.asarray(maximum(self.maxima.copy()), np.float64)
        return result

    def summary(self) -> dict:
        """The plain form that `contract.ProbabilityError` takes."""
        first = 1 + len(THIRDS)
        return {
            "bounds": list(BOUNDS),
            "all": self._segment(0),
            "thirds": {name: self._segment(1 + row) for row, name in enumerate(THIRDS)},
            "lengths": {
                name: {"responses": int(self.responses[row]), **self._segment(first + row)}
                for row, name in enumerate(LENGTHS)
            },
        }

    def _segment(self, row: int) -> dict:
        counts = self.counts[row].tolist()
        total = sum(counts)
        segment: dict = {"tokens": total, "counts": counts}
        if total:
            segment["mean"] = float(self.sums[row] / total)
            segment["max"] = float(self.maxima[row])
            segment["upper"] = {
                name: quantile_upper(counts, part) for name, part in QUANTILES.items()
            }
        return segment


def of_samples(
    anchors: Mapping[int, np.ndarray] | Sequence[np.ndarray], samples: Iterable
) -> ErrorHistogram:
    """Histogram of samples (`samples.Sample`) against their anchors [R], by position."""
    result = ErrorHistogram()
    for index, sample in enumerate(samples):
        result.add(anchors[index], sample.behaviour_logp, sample.loss_mask)
    return result


def mean_bounds(counts: Sequence[int]) -> tuple[float, float]:
    """Smallest and largest mean that such counts allow; the overflow has no upper end."""
    total = sum(counts)
    low = sum(n * (BOUNDS[i - 1] if i else 0.0) for i, n in enumerate(counts)) / total
    if counts[-1]:
        return low, math.inf
    return low, sum(n * b for n, b in zip(counts, BOUNDS, strict=False)) / total
