"""The objective against two trainers of other people: TRL's and Miles', losses and gradients.

Kit "response" is TRL "grpo" and Miles without calculate_per_token_loss; kit "token" is TRL "bnpo"
and "dapo", and Miles with it. MILES_RL names the folder of the unpacked wheel `miles-rl`.
"""

from collections import defaultdict
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from batches import Batch, config_of, make, run
from reference_numpy import Settings

from capture.core.findings.common import beside_miles
from capture.core.objective import Denominators, pack_inputs, policy_objective, response_logps
from capture.core.packing import make_pack

HERE = Path(__file__).resolve().parent
SHAPES = [(3, 4), (5, 2), (2, 6), (1, 1)]


# --- TRL -------------------------------------------------------------------------------------


def trl_loss(batch: Batch, settings: Settings, loss_type: str, accumulate: int = 1):
    """TRL's loss and its gradient for each sample's logits, from padded tensors of its own kind."""
    from trl.trainer.grpo_trainer import GRPOTrainer
    from trl.trainer.utils import selective_log_softmax_and_entropy

    leaves = [torch.tensor(own, dtype=torch.float64, requires_grad=True) for own in batch.logits]
    prompts = max(sample.prompt_len for sample in batch.samples)
    answers = max(sample.response_len for sample in batch.samples)
    shape, count = (len(batch.samples), answers), len(batch.samples)
    ids = torch.zeros(count, prompts + answers, dtype=torch.long)
    attention, mask = torch.zeros_like(ids), torch.zeros(shape)
    old, ref, behaviour = (torch.zeros(shape, dtype=torch.float64) for _ in range(3))
    padded = []
    for i, (sample, leaf) in enumerate(zip(batch.samples, leaves, strict=True)):
        left = prompts - sample.prompt_len
        right = answers - sample.response_len
        ids[i, left : left + len(sample.tokens)] = torch.tensor(sample.tokens)
        attention[i, left : left + len(sample.tokens)] = 1
        mask[i, : sample.response_len] = torch.tensor(sample.loss_mask).float()
        old[i, : sample.response_len] = torch.tensor(batch.old[i])
        ref[i, : sample.response_len] = torch.tensor(batch.ref[i])
        behaviour[i, : sample.response_len] = torch.tensor(sample.behaviour_logp).nan_to_num()
        padded.append(torch.nn.functional.pad(leaf, (0, 0, left, right)))
    logits = torch.stack(padded)

    def score(model, input_ids, attention_mask, logits_to_keep, **_):
        kept = logits[:, -logits_to_keep - 1 : -1]
        targets = input_ids[:, -logits_to_keep:]
        found = selective_log_softmax_and_entropy(kept, targets, temperature=settings.temperature)
        return (*found, None)

    low, high = settings.tis if settings.tis is not None else (0.0, 2.0)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=score,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="token",
        beta=settings.kl_coef,
        loss_type=loss_type,
        epsilon_low=settings.eps_low,
        epsilon_high=settings.eps_high,
        use_vllm=settings.tis is not None,
        vllm_importance_sampling_correction=True,
        max_completion_length=answers,
        current_gradient_accumulation_steps=accumulate,
        model=SimpleNamespace(training=True),
        args=SimpleNamespace(
            use_bias_correction_kl=False, delta=settings.dual, steps_per_generation=accumulate
        ),
        accelerator=SimpleNamespace(
            num_processes=1,
            sync_gradients=True,
            gather=lambda value: value,
            reduce=lambda value, reduction: value,
            autocast=nullcontext,
        ),
        _entropy_bonus_enabled=settings.entropy_coef != 0,
        use_adaptive_entropy=False,
        entropy_coef=settings.entropy_coef,
        _metrics={"train": defaultdict(list)},
    )
    inputs = {
        "prompt_ids": ids[:, :prompts],
        "prompt_mask": attention[:, :prompts],
        "completion_ids": ids[:, prompts:],
        "completion_mask": mask,
        "advantages": torch.tensor([s.advantage for s in batch.samples], dtype=torch.float64),
        "old_per_token_logps": old,
        "ref_per_token_logps": ref,
        "importance_sampling_ratio": (old - behaviour).exp().clamp(low, high),
        "num_items_in_batch": mask.sum(),
    }
    loss = GRPOTrainer._compute_loss(trainer, trainer.model, inputs)
    loss.backward()
    return loss.item(), [leaf.grad.numpy() for leaf in leaves], trainer._metrics["train"]


TRL_CASES = list(
    product(
        (("response", "grpo"), ("token", "bnpo"), ("token", "dapo")),
        (0.0, 0.05),
        (None, (0.0, 2.0), (0.5, 1.5)),
        (None, 3.0),
    )
)


@pytest.mark.parametrize(("reduction", "kl_coef", "tis", "dual"), TRL_CASES)
@pytest.mark.parametrize("drift", [0.02, 1.0])
def test_trl_has_the_same_loss_and_gradient(reduction, kl_coef, tis, dual, drift):
    settings = Settings(
        reduction=reduction[0],
        kl_coef=kl_coef,
        tis=tis,
        dual=dual,
        eps_high=0.28,
        temperature=0.8,
    )
    batch = make(21, SHAPES, drift=drift)
    expected, slopes, metrics = trl_loss(batch, settings, reduction[1])
    for limit in (None, 14):
        loss, grads, terms = run(batch, settings, pack_tokens=limit)
        assert loss == pytest.approx(expected, rel=1e-13)
        for own, slope in zip(grads, slopes, strict=True):
            np.testing.assert_allclose(own, slope, rtol=1e-11, atol=1e-15)
    assert terms["clipped"] / terms["tokens"] == pytest.approx(
        metrics["clip_ratio/region_mean"][0], abs=1e-6
    )


@pytest.mark.parametrize("seed", range(8))
def test_trl_agrees_on_other_batches_and_on_entropy(seed):
    """TRL's entropy bonus is always a token mean, so only the token reduction is comparable."""
    rng = np.random.default_rng(seed)
    shapes = [tuple(rng.integers(1, 6, 2)) for _ in range(int(rng.integers(1, 6)))]
    settings = Settings(kl_coef=0.1, tis=(0.0, 2.0), entropy_coef=0.03)
    batch = make(seed, shapes, drift=float(rng.uniform(0, 2)), holes=float(rng.uniform(0, 1)))
    expected, slopes, _ = trl_loss(batch, settings, "bnpo")
    loss, grads, _ = run(batch, settings, pack_tokens=20)
    assert loss == pytest.approx(expected, rel=1e-12)
    for own, slope in zip(grads, slopes, strict=True):
        np.testing.assert_allclose(own, slope, rtol=1e-10, atol=1e-14)


# --- Miles -----------------------------------------------------------------------------------


def miles_case(batch: Batch, settings: Settings, head: str, *, ranks=1, batch_size=None) -> dict:
    """The batch in Miles' own form.

    head "on-policy": its true-on-policy path, which keeps float64 but fails on a response of one
    token; "megatron": the fused cross entropy, float32; "plain": that path with a plain softmax.
    """
    dtype = torch.float64 if head == "on-policy" else torch.float32

    def put(values):
        return [torch.tensor(np.nan_to_num(value)).to(dtype) for value in values]

    low, high = settings.tis if settings.tis is not None else (0.0, 2.0)
    return {
        "args": {
            "calculate_per_token_loss": settings.reduction == "token",
            "global_batch_size": batch_size or len(batch.samples),
            "rollout_temperature": settings.temperature,
            "eps_clip": settings.eps_low,
            "eps_clip_high": settings.eps_high,
            "entropy_coef": settings.entropy_coef,
            "use_kl_loss": settings.kl_coef != 0,
            "kl_loss_coef": settings.kl_coef,
            "kl_loss_type": settings.kl_type,
            "use_tis": settings.tis is not None,
            "tis_clip": high,
            "tis_clip_low": low,
        },
        "ranks": ranks,
        "head": head,
        "logits": put(batch.logits),
        "tokens": [torch.tensor(sample.tokens) for sample in batch.samples],
        "masks": [torch.tensor(sample.loss_mask).to(dtype) for sample in batch.samples],
        "advantages": put([np.full(s.response_len, s.advantage) for s in batch.samples]),
        "old": put(batch.old),
        "ref": put(batch.ref),
        "behaviour": put([sample.behaviour_logp for sample in batch.samples]),
    }


MILES_SETTINGS = [
    Settings(
        reduction=reduction,
        kl_coef=0.05 if kl_type else 0.0,
        kl_type=kl_type or "k3",
        tis=tis,
        entropy_coef=entropy,
        eps_high=0.28,
        temperature=0.9,
    )
    for reduction, kl_type, tis, entropy in product(
        ("token", "response"),
        (None, "k1", "k2", "k3", "low_var_kl"),
        (None, (0.0, 2.0), (0.5, 1.5)),
        (0.0, 0.01),
    )
]
FEW_SETTINGS = [
    Settings(reduction=reduction, kl_coef=0.05, tis=(0.0, 2.0), entropy_coef=entropy)
    for reduction in ("token", "response")
    for entropy in (0.0, 0.01)
]
BATCHES = [make(31, [(3, 4), (5, 2), (2, 6), (1, 3)], drift=0.05), make(32, SHAPES[:3], drift=1.0)]
UNEQUAL = [make(33, SHAPES, drift=0.5), make(34, [(1, 1)], drift=0.5), make(35, SHAPES, drift=1.5)]
HALVES = (slice(0, 2), slice(2, 4))


def half(part: slice) -> Batch:
    whole = BATCHES[0]
    return Batch(whole.samples[part], whole.logits[part], whole.old[part], whole.ref[part])


@pytest.fixture(scope="session")
def miles():
    """Results of every case, from one process: loss, normalizer, gradients, log."""
    cases = {
        **{
            ("on-policy", b, s): miles_case(batch, settings, "on-policy")
            for b, batch in enumerate(BATCHES)
            for s, settings in enumerate(MILES_SETTINGS)
        },
        **{
            (head, b, s): miles_case(batch, settings, head)
            for head in ("plain", "megatron")
            for b, batch in enumerate(UNEQUAL)
            for s, settings in enumerate(FEW_SETTINGS)
        },
        **{
            ("ranks", h): miles_case(
                half(part), Settings(reduction="response"), "on-policy", ranks=2, batch_size=4
            )
            for h, part in enumerate(HALVES)
        },
    }
    found = beside_miles([str(HERE / "miles_driver.py")], list(cases.values()))
    return dict(zip(cases, found, strict=True))


def assert_like_miles(batch, settings, found, *, value: float, slope: float):
    loss, grads, terms = run(batch, settings, pack_tokens=14)
    divisor = float(found["normalizer"])
    assert loss == pytest.approx(float(found["loss"]) / divisor, rel=value, abs=value)
    for own, other in zip(grads, found["grads"], strict=True):
        np.testing.assert_allclose(own, other.numpy() / divisor, rtol=0, atol=slope)
    return terms


@pytest.mark.parametrize("number", range(len(MILES_SETTINGS)))
@pytest.mark.parametrize("which", range(len(BATCHES)))
def test_miles_has_the_same_loss_and_gradient(miles, which, number):
    settings = MILES_SETTINGS[number]
    # Miles takes its KL in float32
    value, slope = (1e-6, 1e-7) if settings.kl_coef else (1e-12, 1e-13)
    assert_like_miles(
        BATCHES[which], settings, miles["on-policy", which, number], value=value, slope=slope
    )


@pytest.mark.parametrize("number", range(len(FEW_SETTINGS)))
@pytest.mark.parametrize("which", range(len(UNEQUAL)))
@pytest.mark.parametrize(("head", "slope"), [("plain", 1e-6), ("megatron", 1e-3)])
def test_miles_agrees_in_float32_and_on_one_token_responses(miles, which, number, head, slope):
    """Megatron's fused backward rounds its gradient to bfloat16, hence the second bound."""
    assert_like_miles(
        UNEQUAL[which], FEW_SETTINGS[number], miles[head, which, number], value=1e-5, slope=slope
    )


@pytest.mark.parametrize("number", range(len(MILES_SETTINGS)))
def test_miles_has_the_same_statistics(miles, number):
    settings = MILES_SETTINGS[number]
    _, _, terms = run(BATCHES[1], settings)
    log = miles["on-policy", 1, number]["log"]
    names = {
        "pg": "pg_loss",
        "ppo_kl": "ppo_kl",
        "clipfrac": "pg_clipfrac",
        "abs_diff": "train_rollout_logprob_abs_diff",
        "train_rollout_kl": "train_rollout_kl",
    }
    if settings.tis is not None:
        names |= {"tis": "tis", "tis_abs": "tis_abs", "tis_clipfrac": "tis_clipfrac"}
    if settings.kl_coef:
        names["kl"] = "kl_loss"
    if settings.entropy_coef:
        names["entropy"] = "entropy_loss"
    for ours, theirs in names.items():
        assert terms[ours] == pytest.approx(log[theirs], rel=1e-5, abs=1e-6), ours


def test_miles_scales_a_local_loss_alike(miles):
    """Two ranks, half the batch each: world size over the global batch size, on both sides."""
    settings = Settings(reduction="response")
    for h, part in enumerate(HALVES):
        batch = half(part)
        pack = make_pack(batch.samples, [0, 1])
        row = torch.tensor(np.concatenate(batch.logits))
        logps, _ = response_logps(row, torch.tensor(pack.tokens), torch.tensor(pack.positions))
        inputs = pack_inputs(pack, batch.samples, old_logp=batch.old, dtype=torch.float64)
        tokens = sum(sample.active_tokens for sample in BATCHES[0].samples)
        loss, _ = policy_objective(
            logps, None, inputs, Denominators(tokens, 4, 2), config_of(settings)
        )
        assert loss.item() == pytest.approx(float(miles["ranks", h]["loss"]), rel=1e-12)
