"""Prints how eight made-up samples become optimizer steps, ranks and packs. Needs numpy, no torch.

python3 capture/core/plan_example.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from capture.core.packing import plan
from capture.core.samples import Sample

# tokens of the prompt, of the response, and of it those that the mask leaves out at its start
LENGTHS = ((3, 5, 0), (3, 2, 0), (4, 4, 2), (4, 8, 0), (2, 6, 0), (2, 1, 0), (5, 3, 0), (5, 9, 4))
RANKS = 2
STEPS = 2
PACK_TOKENS = 16


def samples() -> list[Sample]:
    """Samples of these lengths; token ids and log-probabilities do not matter for a plan."""
    made = []
    for number, (prompt, response, left_out) in enumerate(LENGTHS):
        made.append(
            Sample(
                sample_id=number,
                group_id=number // 2,
                tokens=np.arange(prompt + response),
                prompt_len=prompt,
                loss_mask=np.arange(response) >= left_out,
                behaviour_logp=np.full(response, -1.0),
                behaviour_version=np.zeros(response, np.int64),
                reward=float(number % 2),
            )
        )
    return made


def main() -> int:
    """Print the plan; returns 0."""
    made = plan(samples(), world_size=RANKS, optimizer_steps=STEPS, pack_tokens=PACK_TOKENS)
    print("step  rank  pack  samples   model tokens  active tokens")
    for number, step in enumerate(made.steps):
        for rank, packs in enumerate(step.ranks):
            for place, pack in enumerate(packs):
                name = " ".join(map(str, pack.sample_indexes)) or "filler"
                print(
                    f"{number:>4}  {rank:>4}  {place:>4}  {name:<8}  {pack.model_tokens:>12}"
                    f"  {pack.active_tokens:>13}"
                )
        own = step.denominators
        print(
            f"  divided by {own.global_tokens} active tokens or {own.global_responses} responses;"
            f" {step.model_tokens} model tokens in {step.documents} documents"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
