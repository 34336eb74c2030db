"""Prints how recorded expert ids lie along a pack, and what is refused. Needs numpy, no torch.

python3 capture/core/routes_example.py
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from capture.core.errors import ContractError
from capture.core.packing import make_pack
from capture.core.routes import check_routes, pack_routes, recorded_rows
from capture.core.samples import Sample

LENGTHS = ((1, 2), (2, 2))  # tokens of the prompt and of the response
LAYERS, EXPERTS, TOPK = 2, 4, 2


def sample(number: int, prompt: int, response: int) -> Sample:
    """A sample whose ids are made up: experts of a token follow from its place."""
    tokens = prompt + response
    first = (np.arange(tokens - 1)[:, None] + np.arange(LAYERS) + number) % EXPERTS
    return Sample(
        sample_id=number,
        group_id=0,
        tokens=10 * (number + 1) + np.arange(tokens),
        prompt_len=prompt,
        loss_mask=np.ones(response, bool),
        behaviour_logp=np.full(response, -1.0),
        behaviour_version=np.zeros(response, np.int64),
        reward=0.0,
        routes=np.stack([first, (first + 2) % EXPERTS], axis=-1),
    )


def refusal(wrong: np.ndarray) -> str:
    """What the check says about the first sample with these ids."""
    try:
        changed = replace(sample(0, *LENGTHS[0]), routes=wrong)
        check_routes(changed, LAYERS, EXPERTS, TOPK)
    except ContractError as error:
        return str(error)
    return "accepted"


def main() -> int:
    """Print the rows of a pack and three refusals; returns 0."""
    samples = [sample(number, *lengths) for number, lengths in enumerate(LENGTHS)]
    for one in samples:
        check_routes(one, LAYERS, EXPERTS, TOPK)
    pack = make_pack(samples, range(len(samples)))
    routes, recorded = pack_routes(pack, samples), recorded_rows(pack.doc_lens)
    owners = np.repeat(pack.sample_indexes, pack.doc_lens)
    print("row  sample  token  layer 0  layer 1  ids are")
    for row, (owner, token, ids) in enumerate(zip(owners, pack.tokens, routes, strict=True)):
        shown = "".join(f"  {' '.join(map(str, layer)):<7}" for layer in ids)
        print(
            f"{row:>3}  {owner:>6}  {token:>5}{shown}  "
            f"{'recorded' if recorded[row] else 'the synthetic tail'}"
        )
    good = np.array(samples[0].routes)
    print("refused:")
    for place, value in (((1, 0, 1), EXPERTS), ((1, 0, 1), good[1, 0, 0])):
        wrong = good.copy()
        wrong[place] = value
        print(" ", refusal(wrong))
    print(" ", refusal(good[:1]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
