"""Columns that a log's own numbers show to be wrong (pure functions)."""

from __future__ import annotations

REFERENCE_AWAY = 0.1  # mean log-probabilities of the same weights differ by rounding only


def wrong_reference(options: dict, summary_run: dict) -> dict[str, str]:
    """Columns that must be marked unusable -> why, from the log's own numbers.

    At step 0 the reference model and the policy are the same weights, so their log-probabilities
    must agree. They do not where the reference forward pass mixes packed sequences (seen with
    sdpa attention in the trainer). The KL loss is computed from them. Only runs whose KL
    coefficients are 0 are judged: with a KL term, training itself would be in doubt.
    """
    coefficients = (options.get("kl-loss-coef", 0), options.get("kl-coef", 0))
    if "ref-load" not in options or options.get("attn-implementation") != "sdpa":
        return {}
    if options["ref-load"] != options.get("hf-checkpoint") or any(coefficients):
        return {}
    columns = summary_run["rollouts"]["columns"]
    cells = [
        (columns.get(f"rollout/{name}") or [None])[0] for name in ("ref_log_probs", "log_probs")
    ]
    if summary_run["rollouts"]["index"][:1] != [0] or None in cells:
        return {}
    away = abs(float(cells[0]) - float(cells[1]))
    if away <= REFERENCE_AWAY:
        return {}
    reason = (
        f"at step 0 it is {away:.2f} away from rollout/log_probs, though reference and policy are "
        "the same weights then"
    )
    found = {"rollout/ref_log_probs": reason}
    if "train/kl_loss" in summary_run["steps"]["columns"]:
        found["train/kl_loss"] = f"computed from rollout/ref_log_probs: {reason}"
    return found
