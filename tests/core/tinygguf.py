"""A tiny Llama as a GGUF file, written by the gguf package: SmolLM2's shape, sizes of a test."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

CHAT = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("t h", "th e", "Ġ t", "Ġ a", "Ġt h", "Ġth e")
LAYERS, WIDTH, HEADS, KV_HEADS, FFN = 2, 64, 4, 2, 96


def texts() -> list[str]:
    """The vocabulary: special tokens, 256 bytes in their printable form, merged pairs."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in letters]
    letters |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [
        *SPECIAL,
        *(letters[byte] for byte in range(256)),
        *(m.replace(" ", "") for m in MERGES),
    ]


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Tensors by GGUF name, in float32, query and key rows in GGUF's order."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(0, 0.15, (rows, columns)).astype(np.float32)

    dim = WIDTH // HEADS
    found = {
        "token_embd.weight": matrix(len(texts()), WIDTH),
        "output_norm.weight": rng.normal(1, 0.1, WIDTH).astype(np.float32),
    }
    for layer in range(LAYERS):
        for name, shape in (
            ("attn_q", (HEADS * dim, WIDTH)), ("attn_k", (KV_HEADS * dim, WIDTH)),
            ("attn_v", (KV_HEADS * dim, WIDTH)), ("attn_output", (WIDTH, WIDTH)),
            ("ffn_gate", (FFN, WIDTH)), ("ffn_up", (FFN, WIDTH)), ("ffn_down", (WIDTH, FFN)),
        ):  # fmt: skip
            found[f"blk.{layer}.{name}.weight"] = matrix(*shape)
        for name in ("attn_norm", "ffn_norm"):
            found[f"blk.{layer}.{name}.weight"] = rng.normal(1, 0.1, WIDTH).astype(np.float32)
    return found


def write(path: Path, *, seed: int = 0) -> dict[str, np.ndarray]:
    """Write the file; gives what the gguf package reads back from its own quantization."""
    own = gguf.GGUFWriter(str(path), "llama")
    own.add_name("tiny")
    own.add_block_count(LAYERS)
    own.add_context_length(2048)
    own.add_embedding_length(WIDTH)
    own.add_feed_forward_length(FFN)
    own.add_head_count(HEADS)
    own.add_head_count_kv(KV_HEADS)
    own.add_rope_freq_base(10000.0)
    own.add_layer_norm_rms_eps(1e-5)
    own.add_rope_dimension_count(WIDTH // HEADS)
    own.add_vocab_size(len(texts()))
    own.add_tokenizer_model("gpt2")
    own.add_tokenizer_pre("smollm")
    own.add_token_list(texts())
    own.add_token_types([3] * len(SPECIAL) + [1] * (len(texts()) - len(SPECIAL)))
    own.add_token_merges(list(MERGES))
    own.add_bos_token_id(1)
    own.add_eos_token_id(2)
    own.add_unk_token_id(0)
    own.add_pad_token_id(2)
    own.add_chat_template(CHAT)
    found = {}
    for name, value in weights(seed).items():
        kind = gguf.GGMLQuantizationType.F32
        if value.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q4_1
        if name.startswith("token_embd"):
            kind = gguf.GGMLQuantizationType.Q8_0
        packed = gguf.quants.quantize(value, kind)
        found[name] = gguf.quants.dequantize(packed, kind)
        own.add_tensor(name, packed, raw_dtype=kind)
    own.write_header_to_file()
    own.write_kv_data_to_file()
    own.write_tensors_to_file()
    own.close()
    return found
