"""Run Miles' own loss_function on prepared cases. A program of its own, for two reasons.

The wheel `miles-rl` brings packages named megatron and sglang, which must not reach the tests'
process; and Miles imports ray, for which five lines stand in.

Usage: miles_driver.py WHEEL_DIR CASES.pt RESULTS.pt; needs TORCHDYNAMO_DISABLE=1.
"""

import sys
import types
from argparse import Namespace

ray, util, strategies = (types.ModuleType(n) for n in ("ray", "ray.util", "strategies"))
ray.remote = lambda **options: lambda decorated: decorated
strategies.NodeAffinitySchedulingStrategy = object
sys.modules |= {"ray": ray, "ray.util": util, "ray.util.scheduling_strategies": strategies}
sys.path.insert(0, sys.argv[1])

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from miles.backends.training_utils.loss import loss_function  # noqa: E402
from miles.backends.training_utils.parallel import (  # noqa: E402
    GroupInfo,
    ParallelState,
    set_parallel_state,
)
from miles.utils import ppo_utils  # noqa: E402

MEGATRON_HEAD = ppo_utils.compute_log_probs


def plain_head(logits, tokens, process_group, **_):
    """Megatron's cross entropy without its bfloat16 backward; same shapes, [R, V] to [R, 1]."""
    return torch.log_softmax(logits, -1).gather(-1, tokens[:, None])


def run(case: dict) -> dict:
    """One call, forward and backward."""
    exact = case["head"] == "on-policy"
    ppo_utils.compute_log_probs = plain_head if case["head"] == "plain" else MEGATRON_HEAD
    alone = GroupInfo(rank=0, size=1, group=None if exact else dist.group.WORLD)
    ranks = GroupInfo(rank=0, size=case["ranks"], group=None)
    set_parallel_state(
        ParallelState(
            intra_dp=ranks, intra_dp_cp=ranks, cp=alone, tp=alone, pp=alone, ep=alone, etp=alone
        )
    )
    args = Namespace(
        loss_type="policy_loss",
        advantage_estimator="grpo",
        qkv_format="thd",
        true_on_policy_mode=exact,
        allgather_cp=False,
        log_probs_chunk_size=-1,
        use_rollout_logprobs=False,
        use_opsm=False,
        get_mismatch_metrics=False,
        custom_tis_function_path=None,
        use_unbiased_kl=False,
        recompute_loss_function=False,
        use_dynamic_global_batch_size=False,
        **case["args"],
    )
    rows = [row.clone().requires_grad_() for row in case["logits"]]
    batch = {
        "unconcat_tokens": case["tokens"],
        "total_lengths": [len(tokens) for tokens in case["tokens"]],
        "response_lengths": [len(mask) for mask in case["masks"]],
        "loss_masks": case["masks"],
        "advantages": case["advantages"],
        "log_probs": case["old"],
        "ref_log_probs": case["ref"],
        "rollout_log_probs": case["behaviour"],
    }
    loss, normalizer, log = loss_function(args, batch, 1, torch.cat(rows)[None])
    loss.backward()
    return {
        "loss": loss.detach(),
        "normalizer": normalizer,
        "grads": [row.grad for row in rows],
        "log": dict(zip(log["keys"], log["values"][1:].tolist(), strict=True)),
    }


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.save([run(case) for case in torch.load(sys.argv[2])], sys.argv[3])
dist.destroy_process_group()
