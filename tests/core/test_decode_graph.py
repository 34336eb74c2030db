"""Decoding over a static cache: the numbers of the plain way, without its waits.

On a CPU the step that a GPU would record runs as it is; all but the recording is tested here.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types

import numpy as np
import pytest
import torch
from tiny import hf_model, tiny

from capture.core.engines import decode_graph
from capture.core.engines.lean import problem
from capture.core.engines.staticcache import StaticCache, attend, prompt_mask
from capture.core.engines.transformers_engine import TransformersEngine
from capture.core.errors import ContractError, RefusedError

# ragged, and two are the same
PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [40], [20, 21, 22], [5, 6, 7, 8], [40], [60] * 13]
ENDS = [3, 17, 50, 61]  # so that responses of a random model end at many lengths
ROUNDING = 1e-6  # nats: float64 models, float32 log-probabilities
CUTS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.6, "top_p": 0.8},
    {"top_k": 5},
    {"top_k": 7, "top_p": 0.9, "kept_sets": True},
    {"top_p": 0.7, "kept_sets": True},
]


def pair(
    family: str = "llama", dtype=torch.float64, changes=None, **settings
) -> list[TransformersEngine]:
    """The plain engine and the one over a static cache, of the same weights.

    In float64, so that no random number falls between two roundings of the same sum.
    """
    config, state = tiny(family, **(changes or {}))
    settings = {"eos_ids": ENDS, "batch_size": 32, **settings}
    found = []
    for decode in ("cache", "graph"):
        model = hf_model(config, state).to(dtype)
        for module in model.modules() if dtype == torch.float64 else ():
            if hasattr(module, "variance_epsilon"):
                # transformers' own rounds to float32 in between
                module.forward = functools.partial(norm, module)
        found.append(TransformersEngine(model, decode=decode, **settings))
    return found


def norm(module, x):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], module.weight, module.variance_epsilon)


def same(plain, graph) -> None:
    for one, other in zip(plain, graph, strict=True):
        assert one.finish == other.finish
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.versions, other.versions)
        np.testing.assert_allclose(one.logps, other.logps, atol=ROUNDING)
        assert (one.tokens.dtype, one.logps.dtype) == (other.tokens.dtype, other.logps.dtype)
        assert (one.kept is None) == (other.kept is None)
        if one.kept is not None:
            np.testing.assert_array_equal(one.kept.offsets, other.kept.offsets)
            np.testing.assert_array_equal(one.kept.ids, other.kept.ids)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
        ("qwen3", {"head_dim": 24}),
        ("olmo2", {}),
    ],
)
def test_tokens_and_log_probabilities_are_those_of_the_plain_way(family, changes):
    plain, graph = pair(family, changes=changes)
    assert (graph._decoder.lean is None) == (family == "olmo2")
    finishes = set()
    for cut in CUTS:
        made = [e.generate(PROMPTS, n=8, max_new_tokens=40, seed=1, **cut) for e in (plain, graph)]
        same(*made)
        finishes |= {response.finish for response in made[0]}
        if cut.get("temperature") != 0.0:
            # or the rows would all have ended at once
            assert len({len(response.tokens) for response in made[0]}) > 8
    assert finishes == {"stop", "length"}


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 2e-5), (torch.bfloat16, 0.15)])
def test_log_probabilities_are_those_of_a_forward_without_cache(dtype, near):
    _, graph = pair(dtype=dtype)
    made = graph.generate(PROMPTS, n=4, max_new_tokens=30, seed=3, temperature=0.8)
    for i, response in enumerate(made):
        prompt = PROMPTS[i // 4]
        scored = graph.score([*prompt, *response.tokens.tolist()], len(prompt), 0.8)
        np.testing.assert_allclose(response.logps, scored, atol=near)


def test_rows_that_run_move_together_and_the_steps_get_smaller():
    _, graph = pair()
    decoder = graph._decoder
    graph.generate(PROMPTS, n=8, max_new_tokens=40, seed=1)
    rows = [key[0] for key in decoder._graphs]
    assert (rows[0], rows[-1]) == (32, 8)
    assert sorted(rows, reverse=True) == rows


def test_a_longer_request_makes_a_larger_cache_and_a_shorter_one_uses_it():
    plain, graph = pair(eos_ids=[])
    for prompts, longest in (([[5]], 4), ([[7] * 100], 60), ([[8, 9]], 9)):
        made = [e.generate(prompts, max_new_tokens=longest, seed=2) for e in (plain, graph)]
        same(*made)
        columns = graph._decoder.cache.columns
    assert columns == 256
    # attention reads the filled part alone
    assert {key[1] for key in graph._decoder._graphs} == {128, 256}


def test_a_longer_response_in_a_cache_that_is_large_enough():
    plain, graph = pair(eos_ids=[])
    for prompts, longest in (([[7] * 90], 4), ([[5]], 70)):
        same(*(e.generate(prompts, max_new_tokens=longest, seed=2) for e in (plain, graph)))
    assert graph._decoder.cache.columns == 128


def test_steps_recorded_over_another_buffer_of_kept_sets_are_dropped():
    _, graph = pair()
    kept = []
    for top_k in (5, 9):
        graph.generate(PROMPTS, max_new_tokens=4, top_k=top_k, kept_sets=True)
        kept.append({key for key in graph._decoder._graphs if ("kept_sets", True) in key})
    assert kept[0]
    assert kept[1]
    assert not kept[0] & kept[1]
    graph.generate(PROMPTS, max_new_tokens=4, top_k=9, kept_sets=True, temperature=0.5)
    assert kept[1] <= set(graph._decoder._graphs)


def test_every_prompt_is_read_once():
    _, graph = pair()
    read = []
    forward = graph.model.forward

    def seen(*arguments, input_ids, **named):
        read.append(tuple(input_ids.shape))
        return forward(*arguments, input_ids=input_ids, **named)

    graph._decoder.lean = None  # steps go through transformers too, and are seen
    graph.model.forward = seen
    graph.generate(PROMPTS, n=5, max_new_tokens=2, seed=1)
    assert read[0] == (5, 13)
    assert {shape[1] for shape in read[1:]} == {1}


def test_the_host_looks_every_few_steps_and_not_every_token(monkeypatch):
    _, graph = pair(eos_ids=[])
    looks = []
    read = decode_graph.GraphDecoder._read

    def counted(self, steps, *others, **named):
        looks.append(steps)
        return read(self, steps, *others, **named)

    monkeypatch.setattr(decode_graph.GraphDecoder, "_read", counted)
    graph.generate(PROMPTS, max_new_tokens=40, seed=1)
    assert looks == [1, 16, 16, 7]
    # a buffer of kept sets that would be too large is looked at more often
    monkeypatch.setattr(decode_graph, "LARGEST_SETS", 4 * 32 * 96 * 3)
    looks.clear()
    graph.generate(PROMPTS, max_new_tokens=10, seed=1, top_p=0.9, kept_sets=True)
    assert looks == [1, 3, 3, 3]


def test_new_weights_reach_recorded_steps():
    plain, graph = pair()
    for seed in (1, 2):
        weights = list(tiny("llama", seed)[1].items())
        for own in (plain, graph):
            own.load(iter(weights), seed)
        steps = dict(graph._decoder._graphs)
        same(*(e.generate(PROMPTS, n=4, max_new_tokens=20, seed=5) for e in (plain, graph)))
    assert steps.items() <= graph._decoder._graphs.items()
    assert steps


@pytest.mark.parametrize("refresh", ["mixed", "barrier", "drain"])
def test_a_load_goes_between_two_looks(refresh):
    _, graph = pair(refresh=refresh, eos_ids=[])
    load = threading.Thread(target=lambda: graph.load(iter(list(tiny("llama", 1)[1].items())), 1))
    calls, forward = 0, graph._decoder.lean.step

    def hooked(*arguments):
        nonlocal calls
        calls += 1
        if calls == 5:  # in the first 16 decode steps
            load.start()
            while not graph._gate.load_waits:
                threading.Event().wait(0.001)
        return forward(*arguments)

    graph._decoder.lean.step = hooked
    made = graph.generate(PROMPTS, max_new_tokens=40, seed=1)
    load.join(20)
    assert graph.version == 1
    versions = {tuple(response.versions.tolist()) for response in made}
    finishes = {response.finish for response in made}
    if refresh == "mixed":
        assert (versions, finishes) == ({(0,) * 17 + (1,) * 23}, {"length"})
    elif refresh == "barrier":
        assert (versions, finishes) == ({(0,) * 40}, {"length"})
    else:
        assert (versions, finishes) == ({(0,) * 17}, {"abort"})


def test_numbers_that_are_none_are_an_error_and_leave_no_trace():
    plain, graph = pair()
    good = list(tiny("llama", 0)[1].items())
    bad = [(name, value.clone()) for name, value in good]
    bad[0][1].fill_(float("nan"))
    graph.load(iter(bad), 1)
    with pytest.raises(ContractError, match="engine-logits"):
        graph.generate(PROMPTS, max_new_tokens=20)
    for own in (plain, graph):
        own.load(iter(good), 2)
    same(*(e.generate(PROMPTS[:2], max_new_tokens=20, seed=1) for e in (plain, graph)))


def test_abort_ends_at_the_next_look():
    _, graph = pair(eos_ids=[], batch_size=4)
    forward, calls = graph._decoder.lean.step, 0

    def hooked(*arguments):
        nonlocal calls
        calls += 1
        if calls == 3:
            graph.abort()
        return forward(*arguments)

    graph._decoder.lean.step = hooked
    made = graph.generate(PROMPTS, max_new_tokens=40)
    assert [(r.finish, len(r.tokens)) for r in made] == [("abort", 17)] * 4 + [("abort", 0)] * 2


def test_attention_over_groups_of_heads_is_that_of_repeated_heads():
    made = torch.Generator().manual_seed(0)
    key, value = (torch.randn(3, 2, 10, 8, generator=made) for _ in range(2))
    mask = torch.zeros(3, 1, 1, 10)
    mask[1, :, :, :4] = mask[2, :, :, 7:] = -torch.inf
    query = torch.randn(3, 6, 1, 8, generator=made)
    grouped, _ = attend(None, query, key, value, mask, 0.3)
    repeated = torch.nn.functional.scaled_dot_product_attention(
        query, key.repeat_interleave(3, 1), value.repeat_interleave(3, 1), mask, scale=0.3
    )
    assert torch.allclose(grouped, repeated.transpose(1, 2), atol=1e-6)


def test_a_prompt_mask_has_no_empty_row_and_hides_padding():
    real = torch.tensor([[False, False, True, True], [True] * 4])
    mask = prompt_mask(real, torch.float32)[:, 0]
    seen = mask == 0
    assert seen[0].tolist() == [
        [True, False, False, False],
        [False, True, False, False],
        [False, False, True, False],
        [False, False, True, True],
    ]
    assert torch.equal(seen[1], torch.ones(4, 4, dtype=torch.bool).tril())
    assert set(mask.unique().tolist()) == {0.0, -float("inf")}


def test_rows_of_the_cache_move_with_their_columns():
    cache = StaticCache(4, 6, torch.device("cpu"))
    cache.prompt(torch.tensor([0, 1, 1]))
    key = torch.arange(2 * 3 * 2.0).view(2, 1, 3, 2)
    cache.update(key, -key, 0)
    assert torch.equal(cache.keys[0][2, :, :3], key[1])
    cache.keep(torch.tensor([2]), 3)
    assert torch.equal(cache.values[0][0, :, :3], -key[1])
    cache.column.fill_(3)
    cache.step(1, 4)
    seen, _ = cache.update(key[:1, :, :1], key[:1, :, :1], 0)
    assert seen.shape == (1, 1, 4, 2)
    assert torch.equal(seen[0, :, 3:], key[0, :, :1])


def test_weights_that_lie_together_are_still_the_models_own():
    _, graph = pair("qwen3", dtype=torch.float32)
    state = tiny("qwen3")[1]
    assert graph.compare(state) == []
    graph.snapshot()
    layer = graph._decoder.lean.layers[1]
    new = {name: value + 1 for name, value in state.items()}
    graph.load(iter(new.items()), 1)
    assert graph.compare(new) == []
    assert {item.kind for item in graph.compare()} == {"value"}
    name = "model.layers.1.self_attn.{}.weight"
    parts = [new[name.format(part)] for part in ("q_proj", "k_proj", "v_proj")]
    assert torch.equal(layer.qkv, torch.cat(parts))
    norms = [new[name.format(part)] for part in ("q_norm", "k_norm")]
    assert torch.equal(layer.head_norms, torch.stack(norms))


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("olmo2", {}, "family"),
        ("llama", {"attention_bias": True}, "biases"),
        ("llama", {"hidden_act": "gelu"}, "activation"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
         "rope_type"),
    ],
)  # fmt: skip
def test_other_models_keep_transformers_forward(family, changes, named):
    config, _ = tiny(family, **changes)
    assert named in problem(hf_model(config, tiny(family, **changes)[1]))
    assert problem(hf_model(*tiny("llama"))) is None


class _Recording:
    """A CUDA graph on a CPU: what runs between begin and end is undone, a replay runs it."""

    decoder, running, log = None, None, None

    def capture_begin(self, pool, capture_error_mode):
        assert capture_error_mode == "thread_local"
        self.log.append("record")
        own = self.decoder
        self.buffers = [
            own.bias, own.ids, own.positions, own.step, own.slot, own.tokens, own.logps,
            own.cache.column, *own.cache.keys, *own.cache.values,
        ]  # fmt: skip
        self.before = [buffer.clone() for buffer in self.buffers]
        self.decode = self.running

    def capture_end(self):
        for buffer, before in zip(self.buffers, self.before, strict=True):
            buffer.copy_(before)

    def replay(self):
        self.log.append("replay")
        self.decode()


def recording(monkeypatch, decoder) -> list[str]:
    """Make a decoder record as it does on a GPU; gives what it does, in order."""
    log: list[str] = []
    monkeypatch.setattr(_Recording, "decoder", decoder)
    monkeypatch.setattr(_Recording, "log", log)
    recorded = decoder._recorded

    def noted(decode):
        _Recording.running = staticmethod(decode)
        log.append("run")
        return recorded(decode)

    stream = types.SimpleNamespace(wait_stream=lambda _: None)
    monkeypatch.setattr(decoder, "_recorded", noted)
    monkeypatch.setattr(decoder, "_stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", _Recording)
    return log


def test_a_step_runs_once_is_recorded_and_then_replayed(monkeypatch):
    plain, graph = pair()
    log = recording(monkeypatch, graph._decoder)
    same(*(e.generate(PROMPTS, n=4, max_new_tokens=30, seed=1) for e in (plain, graph)))
    assert log[:3] == ["run", "record", "replay"]
    assert log.count("run") == log.count("record") == len(graph._decoder._graphs)
    assert log.count("replay") > 15
    log.clear()
    same(*(e.generate(PROMPTS, n=4, max_new_tokens=30, seed=1) for e in (plain, graph)))
    assert set(log) == {"replay"}


def test_a_step_that_cannot_be_recorded_says_what_to_do(monkeypatch):
    _, graph = pair()
    recording(monkeypatch, graph._decoder)
    step, calls = graph._decoder.lean.step, []

    def once(*given):
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("operation not permitted when stream is capturing")
        return step(*given)

    graph._decoder.lean.step = once
    with pytest.raises(RefusedError, match=r"not permitted.*engine\.decode"):
        graph.generate(PROMPTS, max_new_tokens=5)


def test_another_way_of_decoding_is_refused():
    with pytest.raises(RefusedError, match="decode"):
        pair()[0].__class__(hf_model(*tiny()), eos_ids=ENDS, decode="paged")
