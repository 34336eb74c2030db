"""Run Megatron's own router functions on prepared cases. A program of its own: the wheel
`miles-rl` brings packages named megatron and sglang, which must not reach the tests' process.

Usage: megatron_router_driver.py WHEEL_DIR CASES.pt RESULTS.pt
"""

import sys

sys.path.insert(0, sys.argv[1])

import torch
from megatron.core.transformer.moe.moe_utils import (
    switch_load_balancing_loss_func,
    z_loss_func,
)
from megatron.core.transformer.moe.router_replay import (
    RouterReplay,
    RouterReplayAction,
)


def run(case: dict) -> dict:
    """Losses and gradients of one set of tokens, and the replay of its ids."""
    logits = case["logits"].clone().requires_grad_()
    ids, experts = case["ids"], case["logits"].shape[-1]
    counts = torch.bincount(ids.reshape(-1), minlength=experts)
    balancing = switch_load_balancing_loss_func(
        torch.softmax(logits, -1), counts, len(logits), ids.shape[-1], experts, 1.0
    )
    z = z_loss_func(logits, 1.0)
    slopes = [torch.autograd.grad(loss, logits)[0] for loss in (balancing, z)]
    RouterReplay.clear_global_router_replay_instances()
    replay = RouterReplay()
    RouterReplay.set_replay_data([ids])
    RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
    weights, chosen = replay.get_replay_topk(torch.softmax(case["logits"], -1), ids.shape[-1])
    return {
        "balancing": balancing.detach(),
        "z": z.detach(),
        "slopes": slopes,
        "weights": weights,
        "ids": chosen,
    }


torch.save([run(case) for case in torch.load(sys.argv[2])], sys.argv[3])
