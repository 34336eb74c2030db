"""The engine in this process: sampling, padding, versions, loading and comparing weights."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from tiny import VOCABULARY, hf_model, tiny

from capture.core.engines import sampling
from capture.core.engines.base import Generation, prompt_seeds
from capture.core.engines.gate import Gate
from capture.core.engines.transformers_engine import TransformersEngine
from capture.core.errors import ContractError, PublicationError, RefusedError

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [40], [20, 21, 22], [5, 6, 7, 8]]
EOS = 3
ROUNDING = 2e-5  # nats; float32 on both sides, while a wrong mask or position shows at 1e-2


def engine(family: str = "llama", seed: int = 0, dtype=torch.float32, **settings):
    config, state = tiny(family, seed)
    model = hf_model(config, state)
    model.load_state_dict(state)
    return TransformersEngine(model.to(dtype), **{"eos_ids": [EOS], "batch_size": 8, **settings})


def weights(seed: int = 1, family: str = "llama"):
    return list(tiny(family, seed)[1].items())


def reference_logps(model, tokens, prompt_len, temperature):
    """Log-probabilities from a forward without cache and padding, in numpy float64."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0]
    scaled = logits.double().numpy()[prompt_len - 1 : -1] / temperature
    scaled -= scaled.max(-1, keepdims=True)
    logp = scaled - np.log(np.exp(scaled).sum(-1, keepdims=True))
    return logp[np.arange(len(logp)), list(tokens)[prompt_len:]]


@pytest.mark.parametrize("family", ["llama", "qwen3", "olmo2"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_are_those_of_a_forward_without_cache_and_padding(family, temperature):
    own = engine(family)
    made = own.generate(PROMPTS, n=2, max_new_tokens=9, temperature=temperature, seed=3)
    for i, response in enumerate(made):
        prompt = PROMPTS[i // 2]
        whole = [*prompt, *response.tokens.tolist()]
        expected = reference_logps(own.model, whole, len(prompt), temperature)
        np.testing.assert_allclose(response.logps, expected, atol=ROUNDING)
        scored = own.score(whole, len(prompt), temperature)
        np.testing.assert_allclose(scored, expected, atol=ROUNDING)
        assert response.logps.dtype == scored.dtype == np.float32


def test_top_p_and_top_k_leave_log_probabilities_over_the_whole_vocabulary():
    own = engine()
    for kept in ({"top_k": 3}, {"top_p": 0.5}):
        for i, response in enumerate(own.generate(PROMPTS, max_new_tokens=6, seed=1, **kept)):
            whole = [*PROMPTS[i], *response.tokens.tolist()]
            expected = reference_logps(own.model, whole, len(PROMPTS[i]), 1.0)
            np.testing.assert_allclose(response.logps, expected, atol=ROUNDING)


def test_greedy_takes_the_most_probable_token_of_temperature_one():
    own = engine()
    for i, response in enumerate(own.generate(PROMPTS, max_new_tokens=5, temperature=0.0)):
        whole = [*PROMPTS[i], *response.tokens.tolist()]
        with torch.no_grad():
            logits = own.model(input_ids=torch.tensor([whole])).logits[0]
        assert logits.argmax(-1)[len(PROMPTS[i]) - 1 : -1].tolist() == response.tokens.tolist()
        np.testing.assert_allclose(response.logps, own.score(whole, len(PROMPTS[i])), atol=ROUNDING)


def test_positions_begin_with_the_prompt_and_not_with_the_padding():
    # rotary models see only differences of positions, so no log-probability would show it
    own, seen = engine(eos_ids=[]), []
    forward = own.model.forward

    def spy(*arguments, **named):
        seen.append(named["position_ids"])
        return forward(*arguments, **named)

    own.model.forward = spy
    own.generate(PROMPTS, max_new_tokens=3)
    for row, prompt in enumerate(PROMPTS):
        assert seen[0][row, -len(prompt) :].tolist() == list(range(len(prompt)))
        assert [step[row].tolist() for step in seen[1:]] == [[len(prompt)], [len(prompt) + 1]]


def test_other_prompts_order_and_batch_size_do_not_change_a_sample():
    wanted = {}
    for i, prompt in enumerate(PROMPTS):
        for j, one in enumerate(engine().generate([prompt], n=3, max_new_tokens=9, seed=7)):
            wanted[i, j] = one
    for size in (1, 2, 5, 64):
        made = engine(batch_size=size).generate(PROMPTS[::-1], n=3, max_new_tokens=9, seed=7)
        for i in range(len(PROMPTS)):
            for j in range(3):
                alone, among = wanted[i, j], made[(len(PROMPTS) - 1 - i) * 3 + j]
                assert alone.tokens.tolist() == among.tokens.tolist()
                np.testing.assert_allclose(alone.logps, among.logps, atol=ROUNDING)


def test_a_longer_limit_only_adds_tokens():
    short = engine().generate(PROMPTS, max_new_tokens=3, seed=5)
    for a, b in zip(short, engine().generate(PROMPTS, max_new_tokens=9, seed=5), strict=True):
        assert b.tokens[: len(a.tokens)].tolist() == a.tokens.tolist()


def test_samples_of_a_prompt_and_equal_prompts_differ_and_seeds_decide():
    own = engine()
    made = own.generate([PROMPTS[0], PROMPTS[0]], n=4, max_new_tokens=8, seed=0)
    assert len({tuple(response.tokens) for response in made}) == 8
    again = own.generate([PROMPTS[0], PROMPTS[0]], n=4, max_new_tokens=8, seed=0)
    assert [r.tokens.tolist() for r in made] == [r.tokens.tolist() for r in again]
    other = own.generate([PROMPTS[0]], n=4, max_new_tokens=8, seed=1)
    assert [r.tokens.tolist() for r in made[:4]] != [r.tokens.tolist() for r in other]
    given = own.generate([PROMPTS[0], PROMPTS[0]], max_new_tokens=8, seed=[9, 9])
    assert given[0].tokens.tolist() == given[1].tokens.tolist()
    with pytest.raises(ContractError, match="1 seeds for 2 prompts"):
        prompt_seeds([[1], [2]], [3])


def test_the_random_state_of_the_process_is_not_touched():
    torch.manual_seed(4)
    before = torch.random.get_rng_state()
    own = engine()
    torch.random.set_rng_state(before)
    own.generate(PROMPTS, max_new_tokens=4)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_draws_follow_the_distribution():
    logp = torch.log_softmax(torch.tensor([2.0, 1.0, 0.0, -1.0, -8.0]), -1)
    count = 40_000
    uniform = torch.from_numpy(sampling.uniforms((1,), 0, count))
    found = sampling.pick(
        logp.expand(count, 5), uniform, temperature=1.0, top_p=1.0, top_k=-1
    ).tokens
    share = np.bincount(found.numpy(), minlength=5) / count
    # five standard deviations of a binomial share
    np.testing.assert_allclose(share, logp.exp().numpy(), atol=5 * 0.5 / np.sqrt(count))


@pytest.mark.parametrize(
    ("top_p", "top_k", "kept"),
    [
        (1.0, 2, {1, 3}),
        (0.5, -1, {1}),
        (0.51, -1, {1, 3}),
        (0.8, 3, {1, 3}),  # after top_k, 0.5 and 0.3 are 8/9 of what is kept
        (0.95, 3, {0, 1, 3}),
        (1e-9, -1, {1}),
        (1.0, 0, {0, 1, 2, 3, 4}),
        (1.0, 9, {0, 1, 2, 3, 4}),
    ],
)
def test_only_kept_tokens_are_drawn_and_all_of_them(top_p, top_k, kept):
    logp = torch.tensor([0.1, 0.5, 0.06, 0.3, 0.04]).log()
    uniform = torch.linspace(0, 1 - 2**-53, 4001, dtype=torch.float64)
    found = sampling.pick(logp.expand(4001, 5), uniform, temperature=1.0, top_p=top_p, top_k=top_k)
    assert set(found.tokens.tolist()) == kept


def test_a_draw_never_takes_an_impossible_token():
    logp = torch.tensor([[-np.inf, 0.0, -np.inf, -np.inf]], dtype=torch.float32)
    for value in (0.0, 0.5, 1 - 2**-53):
        for settings in ({"top_p": 1.0, "top_k": -1}, {"top_p": 0.9, "top_k": 3}):
            uniform = torch.tensor([value], dtype=torch.float64)
            found = sampling.pick(logp, uniform, temperature=1.0, **settings)
            assert found.tokens.tolist() == [1]


@pytest.mark.parametrize("cut", [{}, {"top_p": 0.9}, {"top_k": 40, "top_p": 0.95}])
def test_the_largest_draw_takes_the_last_token_that_is_kept(cut):
    """No product with the total reaches it, whatever the rounding: then the first one came out."""
    logits = torch.randn(20_000, 60, generator=torch.Generator().manual_seed(3)) * 3
    uniform = torch.full((len(logits),), np.nextafter(1.0, 0.0), dtype=torch.float64)
    found = sampling.pick(logits, uniform, temperature=1.0, **cut, kept_sets=bool(cut))
    if cut:
        last = found.kept_ids.gather(-1, found.kept_counts[:, None] - 1)[:, 0]
    else:
        last = torch.full_like(found.tokens, 59)
    torch.testing.assert_close(found.tokens, last, rtol=0, atol=0)


def test_a_large_vocabulary_loses_no_rare_token():
    """float32 sums of so many probabilities are off by more than most of them."""
    logits = torch.randn(1, 150_000, generator=torch.Generator().manual_seed(5))
    uniform = torch.linspace(0.01, 0.99999, 64, dtype=torch.float64)
    found = sampling.pick(logits.expand(64, -1), uniform, temperature=1.0)
    sums = torch.log_softmax(logits[0], dim=-1).double().numpy()
    sums = np.exp(sums).cumsum()
    wanted = np.searchsorted(sums, uniform.numpy() * sums[-1], side="right")
    np.testing.assert_array_equal(found.tokens.numpy(), wanted)


def test_logits_that_are_no_numbers_are_an_error():
    own = engine()
    with torch.no_grad():
        own.model.lm_head.weight[4] = float("nan")
    with pytest.raises(ContractError, match="engine-logits"):
        own.generate(PROMPTS, max_new_tokens=2)


def test_a_response_ends_with_the_end_token_or_at_the_limit():
    made = engine(eos_ids=list(range(0, VOCABULARY, 4))).generate(PROMPTS, n=8, max_new_tokens=4)
    assert {response.finish for response in made} == {"stop", "length"}
    for response in made:
        ends = [int(token) % 4 == 0 for token in response.tokens]
        assert ends.index(True) == len(ends) - 1 if response.finish == "stop" else not any(ends)
        assert response.finish == "stop" or len(response.tokens) == 4


def test_bfloat16_logps_are_float32_and_near_the_cacheless_forward():
    own = engine(dtype=torch.bfloat16)
    made = own.generate(PROMPTS, max_new_tokens=6, seed=2)
    gaps = []
    for i, response in enumerate(made):
        whole = [*PROMPTS[i], *response.tokens.tolist()]
        assert response.logps.dtype == np.float32
        gaps.append(np.abs(response.logps - own.score(whole, len(PROMPTS[i]))).mean())
    assert np.mean(gaps) < 0.1  # bfloat16 has 8 bits


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"n": 0}, "n is 0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"prompts": [[1], []]}, "without a token"),
    ],
)
def test_arguments_without_a_meaning_are_refused(arguments, named):
    arguments = {"prompts": PROMPTS, "max_new_tokens": 2, **arguments}
    with pytest.raises(ContractError, match=named):
        engine().generate(arguments.pop("prompts"), **arguments)


def test_generation_arrays_must_agree():
    one = np.zeros(1, np.int64)
    with pytest.raises(ContractError, match="entries"):
        Generation(one, np.zeros(2, np.float32), one, "stop")
    with pytest.raises(ContractError, match="finish"):
        Generation(one, np.zeros(1, np.float32), one, "done")
    with pytest.raises(ContractError, match="no token"):
        Generation(one[:0], np.zeros(0, np.float32), one[:0], "stop")


# -- weights -------------------------------------------------------------------------------------


def test_a_load_changes_all_weights_and_the_version():
    own, other = engine(seed=0), engine(seed=1)
    report = own.load(iter(weights(1)), 4)
    assert (own.version, report.version, report.missing) == (4, 4, ())
    assert report.tensors == len(weights(1))
    assert report.bytes == sum(4 * value.numel() for _, value in weights(1))
    assert own.compare(dict(weights(1))) == []
    a = own.generate(PROMPTS, max_new_tokens=5, version=4)
    b = other.generate(PROMPTS, max_new_tokens=5)
    assert [r.tokens.tolist() for r in a] == [r.tokens.tolist() for r in b]
    assert all((r.versions == 4).all() for r in a)


def test_another_version_than_expected_generates_nothing():
    with pytest.raises(ContractError, match="holds version 0, not 1"):
        engine().generate(PROMPTS, max_new_tokens=2, version=1)


def bad_streams():
    good = weights(1)
    yield "missing", good[:-1], "lm_head.weight did not arrive"
    yield "unknown", [*good, ("model.extra", torch.zeros(2))], "model.extra"
    yield "twice", [*good, good[0]], "came twice"
    yield "shape", [(good[0][0], good[0][1][:-1]), *good[1:]], "shape"


@pytest.mark.parametrize(("stream", "named"), [s[1:] for s in bad_streams()],
                         ids=[s[0] for s in bad_streams()])  # fmt: skip
def test_a_load_that_fails_leaves_no_version_until_a_whole_one(stream, named):
    own = engine()
    with pytest.raises(PublicationError, match=named):
        own.load(iter(stream), 1)
    assert own.version is None
    with pytest.raises(ContractError, match="engine-version"):
        own.generate(PROMPTS, max_new_tokens=2)
    own.load(iter(weights(1)), 1)
    assert own.version == 1
    assert own.compare(dict(weights(1))) == []


def test_a_stream_that_raises_leaves_no_version():
    def broken():
        yield from weights(1)[:3]
        raise RuntimeError("the trainer died")

    own = engine()
    with pytest.raises(RuntimeError):
        own.load(broken(), 1)
    assert own.version is None


def test_versions_never_go_back_and_a_repetition_is_noted():
    own = engine()
    assert not own.load(iter(weights(1)), 3).repeated_version
    assert own.load(iter(weights(1)), 3).repeated_version
    with pytest.raises(PublicationError, match="version 2 after version 3"):
        own.load(iter(weights(0)), 2)
    assert own.version == 3  # nothing was touched
    assert own.compare(dict(weights(1))) == []


def test_a_tied_head_may_be_left_out_but_may_not_differ():
    config, state = tiny("llama", 0, tie_word_embeddings=True)
    model = hf_model(config, state)
    model.load_state_dict(state)
    model.tie_weights()
    own = TransformersEngine(model, eos_ids=[EOS])
    fresh = dict(tiny("llama", 1, tie_word_embeddings=True)[1])
    fresh["lm_head.weight"] = fresh["model.embed_tokens.weight"]
    without = {name: value for name, value in fresh.items() if name != "lm_head.weight"}
    own.load(iter(without.items()), 1)
    assert own.compare(without) == own.compare(fresh) == []
    own.load(iter(fresh.items()), 2)
    with pytest.raises(PublicationError, match="tied"):
        own.load(iter({**fresh, "lm_head.weight": fresh["lm_head.weight"] + 1}.items()), 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_round_trip_is_exact_after_rounding_to_the_engines_dtype(dtype):
    own = engine(dtype=dtype)
    own.load(iter(weights(1)), 1)
    own.snapshot()
    own.reset()
    assert own.version is None
    assert len(own.compare()) == len(weights(1))  # nothing survives a reset
    own.load(iter(weights(1)), 1)
    assert own.compare() == []
    assert own.compare(dict(weights(1))) == []


def test_the_round_trip_sees_a_dropped_tensor_and_a_changed_value():
    own = engine()
    own.snapshot()
    own.reset()
    report = own.load(iter(weights(0)[:-1]), 0, strict=False)
    assert report.missing == ("lm_head.weight",)
    assert [(d.name, d.kind) for d in own.compare()] == [("lm_head.weight", "value")]
    changed = dict(weights(0))
    changed["model.norm.weight"] = changed["model.norm.weight"].clone()
    changed["model.norm.weight"][3] += 0.25
    own.load(iter(changed.items()), 0)
    (difference,) = own.compare()
    assert (difference.name, difference.kind) == ("model.norm.weight", "value")
    assert difference.max_abs == pytest.approx(0.25)


def test_compare_names_what_is_missing_unexpected_and_misshapen():
    own, expected = engine(), dict(weights(0))
    norm = expected.pop("model.norm.weight")
    expected["model.extra"] = norm
    expected["lm_head.weight"] = expected["lm_head.weight"][:-1]
    found = {(item.name, item.kind) for item in own.compare(expected)}
    assert found == {
        ("model.norm.weight", "missing"),
        ("model.extra", "unexpected"),
        ("lm_head.weight", "shape"),
    }
    with pytest.raises(ContractError, match="without a snapshot"):
        own.compare()


# -- loads and ends during generation ------------------------------------------------------------


class _Meanwhile:
    """Runs `action` in another thread when the model's forward number `at` begins."""

    def __init__(self, own, at: int, action, wait_for) -> None:
        self.thread = threading.Thread(target=action)
        calls, forward = 0, own.model.forward

        def hooked(*arguments, **named):
            nonlocal calls
            calls += 1
            if calls == at:
                self.thread.start()
                while not wait_for():
                    threading.Event().wait(0.001)
            return forward(*arguments, **named)

        own.model.forward = hooked


@pytest.mark.parametrize("refresh", ["mixed", "barrier", "drain"])
def test_what_a_load_does_to_running_responses(refresh):
    own = engine(refresh=refresh, eos_ids=[])
    meanwhile = _Meanwhile(
        own, 4, lambda: own.load(iter(weights(1)), 1), lambda: own._gate.load_waits
    )
    made = own.generate(PROMPTS, max_new_tokens=8, seed=1)
    meanwhile.thread.join(20)
    assert own.version == 1
    versions = {tuple(response.versions.tolist()) for response in made}
    finishes = {response.finish for response in made}
    if refresh == "mixed":
        assert (versions, finishes) == ({(0,) * 4 + (1,) * 4}, {"length"})
    elif refresh == "barrier":
        assert (versions, finishes) == ({(0,) * 8}, {"length"})
    else:
        assert (versions, finishes) == ({(0,) * 4}, {"abort"})


@pytest.mark.parametrize("decode", ["cache", "graph"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_drained_response_has_no_token_of_a_load_that_came_right_before_its_turn(decode, at):
    own = engine(refresh="drain", eos_ids=[], decode=decode)
    turns, turn = 0, own._turn

    def late():
        nonlocal turns
        turns += 1
        if turns == at:
            own.load(iter(weights(1)), 1)
        return turn()

    own._turn = late
    made = own.generate(PROMPTS, max_new_tokens=40, seed=1)
    assert own.version == 1
    assert {response.finish for response in made} == {"abort"}
    assert {int(v) for response in made for v in response.versions} == ({0} if at > 1 else set())


def test_a_load_that_fails_in_between_ends_the_generation():
    own = engine(eos_ids=[])

    def fail():
        with pytest.raises(PublicationError):
            own.load(iter(weights(1)[:2]), 1)

    meanwhile = _Meanwhile(own, 3, fail, lambda: own._gate.load_waits)
    with pytest.raises(ContractError, match="engine-version"):
        own.generate(PROMPTS, max_new_tokens=8)
    meanwhile.thread.join(20)


def test_abort_ends_what_runs_and_not_what_comes_later():
    own = engine(eos_ids=[], batch_size=2)
    meanwhile = _Meanwhile(own, 3, own.abort, own._abort.is_set)
    made = own.generate(PROMPTS, max_new_tokens=8)
    meanwhile.thread.join(20)
    assert [(r.finish, len(r.tokens)) for r in made] == [("abort", 3)] * 2 + [("abort", 0)] * 2
    later = own.generate(PROMPTS, max_new_tokens=8)
    assert {r.finish for r in later} == {"length"}


def test_a_waiting_load_goes_before_the_next_step():
    gate, order = Gate(), []
    with gate.step():
        load = threading.Thread(target=lambda: _turn(gate.load(), order, "load"))
        load.start()
        while not gate.load_waits:
            threading.Event().wait(0.001)
    # this thread is awake and the other one is not: without the rule it would be first
    _turn(gate.step(), order, "step")
    load.join(20)
    assert order == ["load", "step"]


def _turn(turn, order, name):
    with turn:
        order.append(name)


def test_an_engine_from_a_folder_holds_its_weights(tmp_path):
    config, state = tiny()
    model = hf_model(config, state)
    model.load_state_dict(state)
    model.save_pretrained(str(tmp_path / "hf"))
    own = TransformersEngine.from_folder(tmp_path / "hf", eos_ids=[EOS])
    assert own.version == 0
    assert own.compare(state) == []
    own.close()
    with pytest.raises(ContractError, match="engine-version"):
        own.generate(PROMPTS, max_new_tokens=1)


def test_a_folder_without_a_model_and_an_unknown_refresh_are_refused(tmp_path):
    with pytest.raises(PublicationError, match="no usable HF model"):
        TransformersEngine.from_folder(tmp_path, eos_ids=[EOS])
    with pytest.raises(RefusedError, match="refresh"):
        engine(refresh="later")
