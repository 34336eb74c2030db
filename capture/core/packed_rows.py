"""Do several sequences in one row stay apart?  Needs torch and transformers, and no GPU.

Four sequences go through a tiny random model twice: each alone, and all in one row that only
position numbers divide.  A token must get the same log-probability both times.  One line per case:
the largest difference in each of the four sequences.  Exit code 0; it judges nothing.
"""

from __future__ import annotations

import torch
import transformers
from transformers import Qwen3Config, Qwen3ForCausalLM

LENGTHS = (20, 31, 17, 25)
WORDS = 97
# case: attention, training mode, gradient checkpointing, gradients on, use_cache of the config
CASES = (
    ("sdpa", False, False, False, True),
    ("eager", False, False, False, True),
    ("sdpa", True, False, True, True),
    ("sdpa", True, True, True, True),
    ("sdpa", True, True, False, True),
    ("sdpa", False, False, False, False),
    ("eager", False, False, False, False),
)


def tiny_model() -> Qwen3ForCausalLM:
    """Three layers with random weights, the same ones each time."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=WORDS,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
    )
    model = Qwen3ForCausalLM(config).float()
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.normal_(0, 0.15)
    return model


def token_logprobs(model: Qwen3ForCausalLM, ids: torch.Tensor, places: torch.Tensor, **more):
    """Log-probabilities of every word at every place of one row."""
    out = model(input_ids=ids[None], position_ids=places[None], **more)
    return out.logits[0].float().log_softmax(-1)


def differences(model: Qwen3ForCausalLM, gradients: bool) -> list[float]:
    """For each sequence, the largest difference between alone and in one row."""
    torch.manual_seed(1)
    sequences = [torch.randint(0, WORDS, (length,)) for length in LENGTHS]
    places = [torch.arange(length) for length in LENGTHS]
    with torch.set_grad_enabled(gradients):
        row = token_logprobs(model, torch.cat(sequences), torch.cat(places)).detach()
    found, start = [], 0
    with torch.no_grad():
        for sequence, place in zip(sequences, places, strict=True):
            alone = token_logprobs(model, sequence, place, use_cache=False)[:-1]
            part = row[start : start + len(sequence)][:-1]
            target = sequence[1:, None]
            found.append((alone.gather(-1, target) - part.gather(-1, target)).abs().max().item())
            start += len(sequence)
    return found


def main() -> None:
    transformers.logging.set_verbosity_error()
    print(f"transformers {transformers.__version__}")
    for attention, training, checkpointing, gradients, cache in CASES:
        model = tiny_model()
        model.set_attn_implementation(attention)
        model.config.use_cache = cache
        model.train(training)
        if checkpointing:
            model.gradient_checkpointing_enable()
        words = (
            attention,
            "train" if training else "eval",
            *(("checkpointing",) if checkpointing else ()),
            "gradients" if gradients else "no gradients",
            *(() if cache else ("use_cache=False",)),
        )
        cells = "  ".join(f"{cell:7.1e}" for cell in differences(model, gradients))
        print(f"{', '.join(words):42} {cells}")


if __name__ == "__main__":
    main()
