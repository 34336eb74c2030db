"""Publication: bounded buckets, no version ahead of its weights, and the audits."""

import threading

import fakes
import numpy as np
import pytest
import torch

from capture.core import publish
from capture.core.errors import ContractError, PublicationError
from capture.core.publish import Serving, _Tally, flattened
from capture.core.samples import Sample


def serving(engine=None, **settings):
    return Serving(engine or fakes.Engine(), **{"bucket_bytes": 1 << 20, **settings})


def weights(add=0.0):
    return {name: tensor + add for name, tensor in fakes.first_weights().items()}


def stream(named, limit):
    tally = _Tally()
    return [(name, tensor.clone()) for name, tensor in flattened(named, limit, tally)], tally


@pytest.mark.parametrize("limit", [1, 8, 40, 41, 1000])
def test_buckets_change_no_value_and_keep_the_bound(limit):
    torch.manual_seed(0)
    named = [
        (f"t{i}", torch.randn(shape)) for i, shape in enumerate([(3,), (2, 4), (), (7,), (1, 1)])
    ]
    made, tally = stream(named, limit)
    assert [name for name, _ in made] == [name for name, _ in named]
    assert all(torch.equal(a, b) and a.shape == b.shape
               for (_, a), (_, b) in zip(named, made, strict=True))  # fmt: skip
    assert tally.bytes == sum(tensor.numel() * 4 for _, tensor in named)
    assert tally.tensors == 5
    largest_tensor = 32
    assert tally.largest <= max(limit, largest_tensor)
    assert tally.buckets == {1: 5, 8: 5, 40: 3, 41: 3, 1000: 1}[limit]


def test_bucket_holds_one_dtype():
    named = [("a", torch.ones(2)), ("b", torch.ones(2, dtype=torch.bfloat16)), ("c", torch.ones(2))]
    made, tally = stream(named, 1000)
    assert tally.buckets == 3
    assert [tensor.dtype for _, tensor in made] == [torch.float32, torch.bfloat16, torch.float32]


def test_buckets_are_streamed_not_collected():
    produced, tally = [], _Tally()

    def export():
        for i in range(6):
            produced.append(i)
            yield f"t{i}", torch.ones(4)

    views = flattened(export(), 32, tally)
    next(views)
    assert len(produced) <= 3  # one bucket of two, and the tensor that did not fit


def test_transposed_views_and_gradients_arrive_as_values():
    tensor = torch.arange(6.0).reshape(2, 3).requires_grad_()
    made, _ = stream([("t", tensor.T)], 1000)
    assert torch.equal(made[0][1], tensor.detach().T)
    assert not made[0][1].requires_grad


def test_record_counts_what_moved():
    own = serving(bucket_bytes=16)
    record = own.publish(weights().items(), 0)
    assert (record.tensors, record.bytes, record.buckets, record.largest_bucket) == (2, 32, 2, 16)
    assert record.repeated_version is False
    assert record.seconds > 0
    assert own.log == [record]
    assert record.as_json()["repeated_version"] is False


def test_nothing_is_generated_before_the_first_publication():
    own = serving()
    assert own.version is None
    with pytest.raises(PublicationError, match="nothing has been published"):
        own.generate([[1]], n=1, max_new_tokens=2, seed=[0])


def test_version_is_set_after_the_last_tensor():
    engine = fakes.Engine()
    own = serving(engine, bucket_bytes=16)
    own.publish(weights().items(), 0)
    seen = []

    def export():
        for name, tensor in weights(1).items():
            seen.append((own.version, engine.version))
            yield name, tensor

    own.publish(export(), 1)
    assert seen == [(None, None)] * 2
    assert own.version == engine.version == 1


@pytest.mark.parametrize(
    "who", ["engine", "exporter", "engine stops early", "names", "twice", "none"]
)
def test_failure_on_the_way_leaves_it_torn_and_silent(who):
    engine = fakes.Engine(fail_at=2 if who == "engine" else None)
    own = serving(engine, bucket_bytes=16)
    own.publish(weights().items(), 0)

    def export():
        if who == "none":
            return
        first, second = weights(1).items()
        yield first
        if who == "exporter":
            raise RuntimeError("out of memory")
        yield first if who == "twice" else second
        if who == "names":
            yield "third.weight", torch.ones(2)

    if who == "names":
        engine.load = lambda named, version: list(named)
    if who == "engine stops early":
        engine.load = lambda named, version: next(iter(named))
    with pytest.raises(PublicationError):
        own.publish(export(), 1)
    assert own.version is None
    assert "version 1 was being published" in own.torn
    with pytest.raises(PublicationError, match="torn"):
        own.generate([[1]], n=1, max_new_tokens=2, seed=[0])
    with pytest.raises(PublicationError, match="torn"):
        own.score(np.array([1, 2]), 1)

    engine.__dict__.pop("load", None)
    engine.fail_at = None
    own.publish(weights(1).items(), 1)
    assert own.version == 1
    assert own.generate([[1]], n=1, max_new_tokens=2, seed=[0])


def test_versions_never_go_back_and_repeat_only_on_purpose():
    own = serving()
    own.publish(weights().items(), 3)
    for version, repeated in ((2, False), (3, False), (4, True), (2, True)):
        with pytest.raises(PublicationError, match=f"version {version} after version 3"):
            own.publish(weights().items(), version, repeated=repeated)
    assert own.version == 3
    assert own.publish(weights().items(), 3, repeated=True).repeated_version is True


def test_engine_with_another_version_is_caught():
    engine = fakes.Engine()
    own = serving(engine)
    own.publish(weights().items(), 1)
    engine.version = 0
    with pytest.raises(PublicationError, match="holds version 0, version 1 was published"):
        own.generate([[1]], n=1, max_new_tokens=2, seed=[0])


def test_generation_and_publication_exclude_each_other():
    engine = fakes.Engine()
    own = serving(engine)
    own.publish(weights().items(), 0)
    inside, go, order = threading.Event(), threading.Event(), []

    def during():
        inside.set()
        assert go.wait(5)
        order.append("generated")

    engine.during = during
    thread = threading.Thread(
        target=lambda: own.generate([[1]], n=1, max_new_tokens=2, seed=[0]), daemon=True
    )
    thread.start()
    assert inside.wait(5)
    other = threading.Thread(
        target=lambda: (own.publish(weights(1).items(), 1), order.append("published")), daemon=True
    )
    other.start()
    other.join(0.1)
    assert other.is_alive()
    go.set()
    thread.join(5)
    other.join(5)
    assert order == ["generated", "published"]


def test_mixed_generation_waits_for_a_publication_under_way():
    engine = fakes.Engine()
    own = serving(engine, mixed=True)
    own.publish(weights().items(), 0)
    inside, go, made = threading.Event(), threading.Event(), []

    def export():
        for name, tensor in weights(1).items():
            inside.set()
            assert go.wait(5)
            yield name, tensor

    publishing = threading.Thread(target=lambda: own.publish(export(), 1), daemon=True)
    publishing.start()
    assert inside.wait(5)
    asking = threading.Thread(
        target=lambda: made.extend(own.generate([[1]], n=1, max_new_tokens=2, seed=[0])),
        daemon=True,
    )
    asking.start()
    asking.join(0.1)
    assert not made
    go.set()
    publishing.join(5)
    asking.join(5)
    assert made[0].versions.tolist() == [1] * len(made[0].tokens)


def test_round_trip_repeats_the_version_and_keeps_it():
    own = serving()
    own.publish(weights(1).items(), 4)
    record = publish.same_version_round_trip(own, lambda: weights(1).items())
    assert (record.version, record.repeated_version) == (4, True)
    assert own.version == 4
    assert torch.equal(own.engine.weights[fakes.NAMES[0]], weights(1)[fakes.NAMES[0]])


def test_round_trip_finds_the_tensor_that_did_not_arrive():
    own = serving()
    own.publish(weights(1).items(), 4)
    own.engine.weights[fakes.NAMES[1]] += 1
    with pytest.raises(PublicationError, match=r"1 of 2 tensors differ: second\.weight"):
        publish.same_version_round_trip(own, lambda: weights(1).items())
    assert own.version is None


def test_round_trip_finds_a_tensor_that_never_arrives():
    """Without the reset the same gap would look equal both times."""
    own = serving()
    own.publish(weights(1).items(), 4)
    load = own.engine.load

    def dropping(named, version):
        kept = [(name, tensor) for name, tensor in named if name != fakes.NAMES[1]]
        return load(kept, version, strict=False)

    own.engine.load = dropping
    with pytest.raises(PublicationError, match=r"1 of 2 tensors differ: second\.weight"):
        publish.same_version_round_trip(own, lambda: weights(1).items())


def test_round_trip_needs_a_version():
    with pytest.raises(PublicationError, match="no version to repeat"):
        publish.same_version_round_trip(serving(), lambda: weights().items())


def test_first_publication_is_compared_with_what_the_engine_loaded():
    own = serving()
    assert publish.initial_comparison(own, lambda: weights().items(), 0).repeated_version is False
    assert own.version == 0
    other = serving()
    with pytest.raises(PublicationError, match="hf-snapshot: 2 of 2"):
        publish.initial_comparison(other, lambda: weights(1e-3).items(), 0)
    assert other.version is None


def sample(mask=(True, True)):
    return Sample(
        0, 0, np.array([1, 2, 3]), 1, np.array(mask), np.zeros(2), np.zeros(2, np.int64), 1.0
    )


def scores(values):
    return lambda samples: [fakes.logp(values, one.tokens, one.prompt_len) for one in samples]


def test_log_probabilities_of_both_sides_agree_or_it_says_by_how_much():
    own = serving()
    own.publish(weights().items(), 0)
    assert publish.log_probability_check(own, scores(weights()), [sample()], 1e-6).mean == 0
    with pytest.raises(ContractError, match="log-probability: trainer and engine differ by"):
        publish.log_probability_check(own, scores(weights(1)), [sample()], 1e-6)
    with pytest.raises(ContractError, match="nan"):
        publish.log_probability_check(own, scores(weights(np.nan)), [sample()], 1e9)
    with pytest.raises(ContractError, match="no token"):
        publish.log_probability_check(own, scores(weights()), [], 1e-6)


def test_log_probability_check_looks_at_active_tokens_alone():
    own = serving()
    own.publish(weights().items(), 0)
    off = [np.array([0.0, fakes.logp(weights(), [1, 2, 3], 1)[1]])]
    gap = publish.log_probability_gap(own, lambda samples: off, [sample((False, True))])
    assert (gap.tokens, gap.mean) == (1, 0.0)
