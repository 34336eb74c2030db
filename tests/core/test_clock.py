"""The policy clock and the rollout cursor."""

import pytest

from capture.core.clock import PolicyClock, Vote
from capture.core.cursor import RolloutCursor, check_cursor
from capture.core.errors import CheckpointError, ContractError


def vote(rank=0, step=1, ok=True, used=0.1, following=0.1, reason=""):
    return Vote(rank, step, ok, used, following, reason)


def clock(**settings):
    return PolicyClock(**{"steps_per_collection": 1, **settings})


def published(steps=0, **settings):
    """A clock after `steps` steps, with its version published."""
    own = clock(**settings)
    for step in range(steps):
        own.advance([vote(rank, step + 1) for rank in range(own.world_size)])
    own.publish(steps)
    return own


def test_version_counts_optimizer_steps():
    own = clock(steps_per_collection=2)
    assert [own.advance([vote(step=step)]) for step in (1, 2, 3)] == [1, 2, 3]
    assert own.version == own.optimizer_step == 3


@pytest.mark.parametrize(
    ("votes", "check"),
    [
        ([vote(0), vote(1, ok=False, reason="skipped")], "optimizer-skip"),
        ([vote(0), vote(1, step=2)], "clock-step"),
        ([vote(0, step=0), vote(1, step=0)], "clock-step"),
        ([vote(0), vote(1, used=0.2)], "clock-lr"),
        ([vote(0), vote(1, following=0.2)], "clock-lr"),
        ([vote(0, used=float("nan")), vote(1, used=float("nan"))], "clock-lr"),
        ([vote(0)], "rank-votes"),
        ([vote(0), vote(0)], "rank-votes"),
        ([vote(0), vote(1), vote(2)], "rank-votes"),
    ],
)
def test_one_rank_that_disagrees_keeps_the_version(votes, check):
    own = clock(world_size=2, lr=0.1)
    with pytest.raises(ContractError) as error:
        own.advance(votes)
    assert error.value.check == check
    assert (own.version, own.lr) == (0, 0.1)


def test_rate_of_a_step_is_the_one_announced_before_it():
    own = clock()
    own.advance([vote(used=0.1, following=0.05)])
    assert own.lr == 0.05
    with pytest.raises(ContractError, match=r"used 0\.1, the schedule said 0\.05"):
        own.advance([vote(step=2, used=0.1)])
    assert own.version == 1


def test_only_the_trainers_version_is_published():
    own = clock()
    assert own.published is None
    own.publish(0)
    own.publish(0)
    for version in (1, -1):
        with pytest.raises(ContractError, match="version-order"):
            own.publish(version)
    own.advance([vote()])
    assert own.published == 0
    own.publish(1)
    assert own.published == 1


def test_synchronous_data_is_of_the_version_that_trains():
    own = published(3)
    own.consume([(3, 3)])
    assert own.consumed == 3
    with pytest.raises(ContractError, match="1 steps old; 0 allowed"):
        own.consume([(2, 3)])
    assert own.consumed == 3


def test_later_steps_of_a_collection_may_be_as_old_as_they_must():
    own = published(4, steps_per_collection=2)
    own.consume([(4, 4), (4, 4)])
    with pytest.raises(ContractError, match="stale-version"):
        own.consume([(4, 4), (3, 4)])


@pytest.mark.parametrize(("lag", "oldest", "accepted"), [(1, 4, True), (1, 3, False), (2, 3, True)])
def test_lag_is_counted_in_optimizer_steps(lag, oldest, accepted):
    own = published(5, max_lag=lag)
    if accepted:
        return own.consume([(oldest, 5)])
    with pytest.raises(ContractError, match="stale-version"):
        own.consume([(oldest, 5)])


def test_lag_includes_the_steps_of_the_collection_itself():
    own = published(6, steps_per_collection=3, max_lag=3)
    own.consume([(5, 6)] * 3)  # ages 1, 2 and 3
    with pytest.raises(ContractError, match="optimizer step 9 would train on version 4, 4 steps"):
        own.consume([(5, 6), (5, 6), (4, 6)])


def test_least_version_is_the_oldest_that_is_still_consumed():
    own = published(6, steps_per_collection=3, max_lag=3)
    least = own.least_version(6)
    own.consume([(least, 6)] * 3)
    with pytest.raises(ContractError, match="stale-version"):
        own.consume([(least - 1, 6)] * 3)


def test_no_version_from_the_future():
    own = published(2)
    with pytest.raises(ContractError, match="version-ahead"):
        own.consume([(2, 3)])
    with pytest.raises(ContractError, match="version-ahead"):
        clock().consume([(0, 0)])


def test_collection_has_its_number_of_steps():
    with pytest.raises(ContractError, match="schedule"):
        published(0, steps_per_collection=2).consume([(0, 0)])


def test_lag_that_no_data_could_meet_is_refused():
    for lag in (0, 1):
        with pytest.raises(ContractError):
            clock(steps_per_collection=3, max_lag=lag)


def test_clock_survives_a_checkpoint_but_not_the_publication():
    own = published(3)
    own.consume([(3, 3)])
    other = clock()
    other.restore(own.state())
    assert other.state() == own.state()
    assert other.published is None


@pytest.mark.parametrize("change", [{"optimizer_step": -1}, {"optimizer_step": True}, {"lr": "x"},
                                    {"consumed": 1.5}, {"optimizer_step": 3}])  # fmt: skip
def test_no_clock_state_but_its_own(change):
    with pytest.raises(CheckpointError):
        clock(steps_per_collection=2).restore(
            {"optimizer_step": 2, "consumed": 0, "lr": 0.1} | change
        )


def cursor(**settings):
    return RolloutCursor(**{"pool": 10, "batch": 4, "seed": 7, **settings})


def take(own, collections):
    return [own.draw() for _ in range(collections)]


def test_order_depends_on_seed_and_epoch_alone():
    assert take(cursor(), 8) == take(cursor(), 8)
    assert take(cursor(), 8) != take(cursor(seed=8), 8)
    straight = take(cursor(shuffle=False), 3)
    assert [draw.prompts for draw in straight] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 0, 1)]


def test_an_epoch_holds_every_prompt_once():
    prompts = [place for draw in take(cursor(), 10) for place in draw.prompts]
    for start in range(0, 40, 10):
        assert sorted(prompts[start : start + 10]) == list(range(10))
    assert prompts[:10] != prompts[10:20]


def test_pending_prompts_are_drawn_again_in_their_order():
    own = cursor()
    take(own, 3)
    own.commit(0)
    state = own.state()
    assert state["collection"] == 1
    assert [item["collection"] for item in state["pending"]] == [1, 2]
    other = cursor()
    other.restore(state)
    assert other.state() == state
    straight = take(cursor(), 6)
    assert take(other, 5) == straight[1:]


def test_pending_prompts_are_pristine():
    own = cursor()
    take(own, 1)
    assert own.state()["pending"] == [
        {"collection": 0, "prompts": list(take(cursor(), 1)[0].prompts)}
    ]
    state = own.state()
    state["pending"][0]["response"] = [1, 2]
    with pytest.raises(CheckpointError, match="pristine"):
        cursor().restore(state)


def test_only_the_oldest_pending_collection_commits():
    own = cursor()
    with pytest.raises(ContractError, match="cursor"):
        own.commit(0)
    take(own, 2)
    with pytest.raises(ContractError, match="collection 1 is done, collection 0 is due"):
        own.commit(1)
    own.commit(0)
    with pytest.raises(ContractError):
        own.commit(0)
    other = cursor()
    other.restore(own.state())
    with pytest.raises(ContractError, match="never generated"):
        other.commit(1)


@pytest.mark.parametrize("change", [{"seed": 8}, {"pool": 11}, {"batch": 2}, {"shuffle": False}])
def test_cursor_of_other_data_is_refused(change):
    own = cursor()
    take(own, 1)
    own.commit(0)
    other = cursor(**change)
    with pytest.raises(CheckpointError, match=f"cursor.{next(iter(change))}"):
        other.restore(own.state())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("collection", -1),
        ("collection", True),
        ("drawn", 5),
        ("pool", 0),
        ("shuffle", 1),
        ("pending", None),
        ("pending", [{"collection": 2, "prompts": [0, 1, 2, 3]}]),
        ("pending", [{"collection": 1, "prompts": [0, 1, 2]}]),
        ("pending", [{"collection": 1, "prompts": [0, 1, 2, 10]}]),
        ("pending", ["x"]),
    ],
)
def test_cursor_that_contradicts_itself_is_refused(key, value):
    own = cursor()
    take(own, 2)
    own.commit(0)
    state = own.state()
    check_cursor(state)
    with pytest.raises(CheckpointError, match="cursor"):
        check_cursor({**state, key: value})
