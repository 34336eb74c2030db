"""What is said about a gap between two sets of log-probabilities. numpy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def gap(trainer: Sequence[np.ndarray], engine: Sequence[np.ndarray]) -> dict[str, float | int]:
    """Statistics of d = trainer - engine over the tokens of all samples ([R] each), nats.

    kl is the mean of exp(d) - 1 - d, whose expectation under the engine is KL(engine || trainer).
    ess is the effective share of samples, (sum w)^2 / (n sum w^2), of w = exp(d) cut at d = 20.
    """
    one = np.concatenate([np.asarray(part, np.float64) for part in trainer])
    other = np.concatenate([np.asarray(part, np.float64) for part in engine])
    if one.shape != other.shape or not len(one):
        raise ValueError(f"{len(one)} and {len(other)} log-probabilities")
    d = one - other
    size = np.abs(d)
    weight = np.exp(np.minimum(d, 20.0))
    return {
        "tokens": len(d),
        "mean_abs": float(size.mean()),
        "mean_signed": float(d.mean()),
        "p50_abs": float(np.quantile(size, 0.5)),
        "p99_abs": float(np.quantile(size, 0.99)),
        "max_abs": float(size.max()),
        "share_equal": float((d == 0).mean()),
        "share_above_0.1": float((size > 0.1).mean()),
        "kl": float((weight - 1 - np.minimum(d, 20.0)).mean()),
        "ess": float(weight.sum() ** 2 / (len(d) * (weight**2).sum())),
    }
