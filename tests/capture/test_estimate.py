"""The memory estimate: counts, ranges, and no claim beyond what runs showed."""

import json
import lzma
import re
from pathlib import Path

import kit
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mileskit.estimate import estimatecheck, memoryplan, modelsize
from mileskit.estimate.memoryplan import DOES_NOT, FITS, GB, OPEN, Ask

STORED = Path(kit.__file__).parent / "out-h200-miles"
NODE = 121.69  # GB that Ray prints for a GB10


def plan(params: float, memory: float, unified: bool, **more) -> memoryplan.Plan:
    ask = Ask(modelsize.of_count(params), memory, unified, more.pop("fraction", 0.4), **more)
    return memoryplan.plan(ask, estimatecheck.seen())


def tiny(**changes) -> dict:
    config = {
        "model_type": "llama",
        "vocab_size": 10,
        "hidden_size": 4,
        "intermediate_size": 6,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
    }
    return {**config, **changes}


# -- counting ------------------------------------------------------------------------------------


def test_a_tiny_model_is_counted_matrix_by_matrix():
    # q 4x4, k and v 4x2 each, o 4x4, three 4x6 of the MLP, two norms of 4
    layer = 16 + 8 + 8 + 16 + 3 * 24 + 8
    assert modelsize.count(tiny(), "m").params == 40 + 2 * layer + 4
    untied = modelsize.count(tiny(tie_word_embeddings=False), "m")
    assert untied.params == 80 + 2 * layer + 4
    assert untied.doubled == 0
    assert modelsize.count(tiny(), "m").doubled == 40


def test_qwen_biases_and_norms_are_counted():
    plain = modelsize.count(tiny(), "m").params
    assert modelsize.count(tiny(model_type="qwen2"), "m").params == plain + 2 * (4 + 2 + 2)
    assert modelsize.count(tiny(model_type="qwen3"), "m").params == plain + 2 * 2 * 2
    assert modelsize.count(tiny(attention_bias=True), "m").params == plain + 2 * (4 + 2 + 2 + 4)


def test_the_counts_of_the_known_models_are_those_their_makers_name():
    found = {n: modelsize.count(c, n) for n, c in modelsize.KNOWN.items()}
    assert found["SmolLM2-135M-Instruct"].params == 134_515_008
    assert round(found["Qwen3-0.6B"].params / 1e9, 1) == 0.6


def test_keys_and_values_of_a_token_count_only_their_own_heads():
    assert modelsize.count(tiny(), "m").kv_values == 2 * 2 * 1 * 2
    assert modelsize.count(tiny(num_key_value_heads=2), "m").kv_values == 2 * 2 * 2 * 2
    assert modelsize.count(tiny(head_dim=8), "m").kv_values == 2 * 2 * 1 * 8


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_experts": 8}, "mixture of experts"),
        ({"kv_lora_rank": 512}, "MLA"),
        ({"hidden_size": "4"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"vocab_size": True}, "vocab_size"),
        ({"num_attention_heads": 3}, "no multiple of 3"),
    ],
)
def test_a_config_that_cannot_be_counted_is_refused_by_key(tmp_path, capsys, changes, said):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(tiny(**changes)))
    assert kit.main(["estimate", "--config", str(path), "--memory-gb", "24"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(path) in error
    assert said in error


def test_a_kind_that_is_not_known_is_counted_with_a_note():
    assert "counted as a dense Llama" in modelsize.count(tiny(model_type="other"), "m").notes[0]


# -- what runs say -------------------------------------------------------------------------------


def test_every_rule_is_near_what_every_run_printed():
    supports, missing = estimatecheck.supports()
    assert {s.rule for s in supports} == {
        "KV bytes of a token",
        "engine weights",
        "KV cache from the fraction",
        "16 bytes a parameter",
        "activations",
    }
    assert all(abs(s.off) < 0.02 for s in supports), [(s.rule, s.run, s.off) for s in supports]
    assert {s.run for s in supports if s.rule == "KV bytes of a token"} >= {
        "h200-miles/plain_s1234",
        "h200-miles/n16",
        "GB10 plain",
    }
    assert missing == ["h200-miles/topp: no start-up lines of the engine"]


def test_the_trainer_numbers_are_those_of_the_log():
    raw = lzma.decompress((STORED / "plain_s1234" / "run.log.xz").read_bytes())
    pair = rb"before offload model: .*'allocated_GB': ([\d.]+), 'reserved_GB': ([\d.]+)"
    before = re.findall(pair, raw)
    after = re.findall(rb"after offload model: .*'allocated_GB': ([\d.]+)", raw)
    supports, _ = estimatecheck.supports()
    printed = {s.rule: s.printed for s in supports if s.run == estimatecheck.ALONE}
    state = max(float(a) for a, _ in before[1:]) - min(float(a) for a in after[1:])
    assert printed["16 bytes a parameter"] == pytest.approx(state)
    peak = max(float(r) - float(a) for a, r in before[1:])
    assert printed["activations"] == pytest.approx(peak)
    assert 0 <= estimatecheck.OVERHEAD_GB - estimatecheck.seen().overhead_gb < 0.1


def test_a_rule_that_is_off_says_by_how_much():
    off = estimatecheck.Support("r", "run", "measured", 8.0, 9.0, 10.0, "GB").off
    assert off == pytest.approx(-0.1)


# -- verdicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "limit", "verdict"),
    [
        (0.6e9, 1024, FITS),
        (1.7e9, 256, FITS),
        (1.7e9, 1024, OPEN),
        (2.5e9, 256, OPEN),
        (4e9, 256, DOES_NOT),
        (8e9, 256, DOES_NOT),
    ],
)
def test_unified_memory_is_judged_as_the_reported_runs_went(params, limit, verdict):
    assert plan(params, NODE, True, limit=limit).verdict == verdict


@pytest.mark.parametrize("memory", [NODE, 128.0])
@pytest.mark.parametrize("fraction", [0.02, 0.2, 0.4])
def test_half_of_the_memory_is_never_called_safe_for_a_unified_run(memory, fraction):
    half = memory * GB / 2 / memoryplan.STATE
    found = plan(half, memory, True, fraction=fraction, limit=256)
    killed = fraction >= 0.2  # the fraction of the smaller reported run that was killed
    assert found.verdict == DOES_NOT if killed else found.verdict != FITS


def test_the_rule_of_half_is_printed_with_the_run_that_contradicts_it(capsys):
    kit.main(["estimate", "--params", "0.6e9", "--memory-gb", "128", "--unified"])
    out = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "is not safe: 0.5 x 128 GB are 64 GB, the estimate of the 4B model that did" in out
    assert "half-memory-rule" in out


FOUR = {
    **modelsize.KNOWN["Qwen3-0.6B"],
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
}


def asked(config: dict, memory: float, unified: bool, **more) -> memoryplan.Plan:
    model = modelsize.count(config, "m")
    ask = Ask(model, memory, unified, more.pop("fraction", 0.4), **more)
    return memoryplan.plan(ask, estimatecheck.seen())


def test_a_run_smaller_than_the_killed_ones_is_not_said_to_fail():
    smaller = {"reference": False, "kv_tokens": 20_000, "micro_tokens": 1024, "limit": 256}
    found = asked(FOUR, 128.0, True, **smaller)
    assert max(high for _, high in found.peaks.values()) < found.room_gb
    assert found.verdict == OPEN
    assert "a reference model, micro-batches" in found.why[-1]
    assert asked(FOUR, 128.0, True, limit=256, fraction=0.2).verdict == DOES_NOT
    small = asked(modelsize.KNOWN["Qwen3-0.6B"], 16.0, True, limit=256, fraction=0.2)
    assert small.verdict == OPEN


@pytest.mark.parametrize(
    ("more", "verdict"),
    [
        ({"fraction": 0.01}, DOES_NOT),  # less than the engine's weights
        ({"kv_tokens": 100}, DOES_NOT),
        ({"kv_tokens": 1535}, DOES_NOT),
        ({"kv_tokens": 1536}, FITS),
        ({"fraction": 0.016}, OPEN),  # the low end holds no sample
    ],
)
def test_a_cache_that_holds_no_sample_does_not_fit(more, verdict):
    found = asked(modelsize.KNOWN["Qwen3-0.6B"], 80.0, False, **more)
    assert found.verdict == verdict
    assert ("one longest sample" in found.why[0]) == (verdict != FITS)


@pytest.mark.parametrize(("fraction", "verdict"), [(0.03, DOES_NOT), (0.04, OPEN), (0.1, FITS)])
def test_a_cache_of_unknown_tokens_needs_room_for_one_sample_too(fraction, verdict):
    assert plan(1.7e9, 80.0, False, fraction=fraction).verdict == verdict


def test_the_verdict_line_says_that_host_memory_is_not_judged(capsys):
    kit.main(["estimate", "--params", "4e9", "--memory-gb", "141"])
    found = plan(4e9, 141.0, False)
    said = f"\nfits on the GPU; up to {found.host_gb:.2f} GB of host memory for what is offloaded:"
    assert f"{said} not judged\n" in capsys.readouterr().out
    assert plan(0.6e9, NODE, True).line == FITS


def test_separate_memory_that_fits_is_said_to_be_an_estimate_alone():
    found = plan(0.6e9, 139.8, False)
    assert found.verdict == FITS
    assert "by the estimate alone" in found.why[-1]
    assert plan(8e9, 80.0, False).verdict == DOES_NOT
    assert plan(4e9, 70.0, False).verdict == OPEN


def test_the_stored_alone_run_lies_inside_its_own_estimate():
    model = modelsize.count(modelsize.KNOWN["SmolLM2-135M-Instruct"], "m")
    found = memoryplan.plan(Ask(model, 139.8, False, 0.3, limit=256), estimatecheck.seen())
    raw = lzma.decompress((STORED / "plain_s1234" / "run.log.xz").read_bytes())
    used = max(map(float, re.findall(rb"before offload.*'used_GB': ([\d.]+)", raw)))
    low, high = found.peaks["training"]
    assert low <= used <= high
    kv = {row.name: row for row in found.rows}["KV cache"]
    assert kv.low <= 41.94
    assert found.verdict == FITS


# -- properties ----------------------------------------------------------------------------------

sizes = st.floats(2e6, 1e12)
memories = st.floats(4, 2000)


@settings(deadline=None)
@given(sizes, memories, st.booleans(), st.booleans(), st.floats(0.05, 0.9))
def test_low_never_passes_high_and_the_verdict_keeps_to_the_bounds(p, memory, unified, offload, f):
    found = plan(p, memory, unified, offload=offload, fraction=f)
    assert all(0 <= row.low <= row.high for row in found.rows)
    assert all(low <= high for low, high in found.peaks.values())
    if max(low for low, _ in found.peaks.values()) > found.room_gb:
        assert found.verdict == DOES_NOT
    if max(high for _, high in found.peaks.values()) > found.room_gb:
        assert found.verdict != FITS
    kv = next(row for row in found.rows if row.name == "KV cache")
    if kv.high == 0:
        assert found.verdict == DOES_NOT


@settings(deadline=None)
@given(sizes, memories, st.booleans())
def test_more_memory_never_turns_a_fit_into_less(params, memory, unified):
    order = [DOES_NOT, OPEN, FITS]
    fixed = {"fraction": 0.1, "limit": 256}
    small, large = (plan(params, m, unified, **fixed) for m in (memory, 2 * memory))
    assert order.index(large.verdict) >= order.index(small.verdict)


@settings(deadline=None)
@given(sizes, memories, st.booleans())
def test_keeping_everything_loaded_never_needs_less(params, memory, unified):
    kept, moved = (plan(params, memory, unified, offload=o) for o in (False, True))
    for end in (0, 1):
        need, less = (max(v[end] for v in found.peaks.values()) for found in (kept, moved))
        assert need >= less - 1e-9


# -- the verb ------------------------------------------------------------------------------------


def test_json_holds_what_the_text_says(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(modelsize.KNOWN["Qwen3-0.6B"]))
    args = ["estimate", "--config", str(tmp_path), "--memory-gb", str(NODE), "--unified"]
    assert kit.main([*args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert kit.main(args) == 0
    text = capsys.readouterr().out
    assert found["verdict"] == "fits"
    assert "\nfits\n" in text
    assert f"{found['model']['params']:,} parameters" in text
    assert "114,688 bytes a token" in text
    assert found["kv_wanted"] == 32 * 8 * (512 + 1024)
    assert max(map(len, text.splitlines()[1:])) <= 100


def test_a_fixed_cache_is_tokens_times_bytes(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(modelsize.KNOWN["Qwen3-0.6B"]))
    args = ["estimate", "--config", str(tmp_path), "--memory-gb", "24", "--kv-tokens", "100000"]
    kit.main([*args, "--json"])
    rows = {r["name"]: r for r in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["KV cache"]["low"] == rows["KV cache"]["high"] == 100_000 * 114_688 / GB


@pytest.mark.parametrize(
    "args",
    [
        ["--params", "0", "--memory-gb", "24"],
        ["--params", "nan", "--memory-gb", "24"],
        ["--params", "1e9", "--memory-gb", "-1"],
        ["--params", "1e9", "--memory-gb", "24", "--mem-fraction", "1.5"],
        ["--params", "1e9", "--memory-gb", "24", "--limit", "0"],
        ["--params", "1e9", "--memory-gb", "24", "--kv-tokens", "5"],
        ["--config", "absent.json", "--memory-gb", "24"],
    ],
)
def test_a_bad_value_is_one_line(capsys, args):
    assert kit.main(["estimate", *args]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("estimate: ")
