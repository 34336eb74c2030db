"""The async producer: order, age, pauses and failures."""

import threading
import time

import pytest

from capture.core.clock import PolicyClock, Vote
from capture.core.cursor import RolloutCursor
from capture.core.errors import ContractError, PublicationError
from capture.core.producer import Producer


class Bench:
    """A producer with a clock and a list of what it generated."""

    def __init__(self, *, lag=1, steps=1, horizon=6, ready=1, collect=None):
        self.clock = PolicyClock(steps_per_collection=steps, max_lag=lag)
        self.cursor = RolloutCursor(pool=12, batch=2, seed=0)
        self.generated = []
        self.clock.publish(0)
        self.producer = Producer(
            collect or self.collect,
            cursor=self.cursor,
            clock=self.clock,
            serving_version=lambda: self.clock.published,
            horizon=horizon,
            ready=ready,
        )

    def collect(self, draw, gate):
        gate()
        self.generated.append((draw.collection, self.clock.published))
        return self.clock.published

    def train(self):
        for _ in range(self.clock.steps_per_collection):
            step = self.clock.version + 1
            self.clock.advance([Vote(0, step, True, 0.1, 0.1)])

    def settle(self):
        """Wait until the producer has done what it can."""
        last = None
        while last != (last := list(self.generated)):
            time.sleep(0.2)
        return last


@pytest.fixture
def bench():
    made = []

    def make(**settings):
        made.append(Bench(**settings))
        made[-1].producer.start()
        return made[-1]

    yield make
    for own in made:
        own.producer.stop()


def test_synchronous_clock_is_refused():
    with pytest.raises(ContractError, match="lag"):
        Producer(
            None,
            cursor=RolloutCursor(pool=1, batch=1, seed=0),
            clock=PolicyClock(steps_per_collection=1),
            serving_version=None,
            horizon=1,
        )


def test_collections_come_in_order_until_the_horizon(bench):
    own = bench(lag=100, horizon=5)
    taken = [own.producer.take(5)[0].collection for _ in range(5)]
    assert taken == [0, 1, 2, 3, 4]
    with pytest.raises(ContractError, match="ended before"):
        own.producer.take(5)


@pytest.mark.parametrize(("lag", "steps", "started"), [(1, 1, 2), (2, 1, 3), (3, 2, 2), (5, 2, 3)])
def test_no_collection_is_started_that_would_be_too_old(bench, lag, steps, started):
    own = bench(lag=lag, steps=steps, ready=10)
    assert [index for index, _ in own.settle()] == list(range(started))
    own.train()
    assert len(own.settle()) == started  # trained, but the new version does not serve yet
    own.clock.publish(own.clock.version)
    assert [index for index, _ in own.settle()] == list(range(started + 1))


def test_what_the_producer_makes_is_young_enough_to_consume(bench):
    own = bench(lag=3, steps=2, horizon=8)
    for index in range(8):
        draw, version = own.producer.take(5)
        assert draw.collection == index
        own.clock.consume([(version, version)] * 2)
        own.train()
        own.cursor.commit(index)
        own.clock.publish(own.clock.version)


def test_stale_collection_is_refused_when_it_is_taken():
    own = Bench(lag=1)
    for _ in range(3):
        own.train()
        own.clock.publish(own.clock.version)
    with pytest.raises(ContractError, match="stale-version"):
        own.clock.consume([(1, 3)])


def test_nothing_is_generated_while_paused(bench):
    own = bench(lag=100, horizon=50)
    own.producer.take(5)
    with own.producer.paused():
        before = list(own.generated)
        own.producer._ready.queue.clear()  # room for more
        time.sleep(0.3)
        assert own.generated == before
    own.producer.take(5)
    own.settle()
    assert len(own.generated) > len(before)


def test_pause_waits_for_the_chunk_under_way():
    events, inside, go = [], threading.Event(), threading.Event()

    def collect(draw, gate):
        for chunk in range(2):
            gate()
            events.append(f"start {chunk}")
            inside.set()
            assert go.wait(5)
            events.append(f"end {chunk}")

    own = Bench(lag=100, collect=collect)
    own.producer.start()
    assert inside.wait(5)
    threading.Timer(0.1, go.set).start()
    with own.producer.paused():
        events.append("paused")
        time.sleep(0.2)
        events.append("resumed")
    own.producer.take(5)
    own.producer.stop()
    assert events[:6] == ["start 0", "end 0", "paused", "resumed", "start 1", "end 1"]


def test_stop_leaves_what_was_under_way_pending():
    inside = threading.Event()

    def collect(draw, gate):
        gate()
        inside.set()
        while True:
            gate()
            time.sleep(0.01)

    own = Bench(lag=100, collect=collect)
    own.producer.start()
    assert inside.wait(5)
    own.producer.stop()
    assert [item["collection"] for item in own.cursor.state()["pending"]] == [0]
    assert own.cursor.committed == 0


@pytest.mark.parametrize("error", [PublicationError("torn"), RuntimeError("lost the server")])
def test_death_of_the_producer_reaches_the_trainer(error):
    def collect(draw, gate):
        gate()
        raise error

    own = Bench(lag=100, collect=collect)
    own.producer.start()
    with pytest.raises((PublicationError, ContractError), match=r"torn|lost the server"):
        own.producer.take(5)
    with own.producer.paused():
        pass  # a dead producer blocks nobody
    own.producer.stop()


def test_silent_producer_is_noticed():
    own = Bench(lag=100, collect=lambda draw, gate: time.sleep(1))
    own.producer.start()
    with pytest.raises(ContractError, match=r"no collection in 0\.2 s"):
        own.producer.take(0.2)
    own.producer.stop()
