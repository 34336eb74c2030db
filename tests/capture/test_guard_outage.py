"""The outage rule: what counts as a failed request, and what takes a bad check back."""

import minilog as m
import pytest
from guardlog import HOUR, decode, failing, judge, live, slowest, startup, steps, stops
from hypothesis import given, settings
from hypothesis import strategies as st
from mileskit.guard.guardlimits import Limits
from mileskit.guard.rule_outage import Outage
from mileskit.log.events import Retry

BASE = [*startup(), *steps(HOUR + 250, 5)]
END = HOUR + 250 + 4 * 170
DEAD = END + 20


def retry(at, count=1, status=503):
    return Retry(1, at, status, 1, 60, None, None, count)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_an_engine_that_fails_every_request_is_dead_whatever_the_status(status):
    outcomes = live(*BASE, *failing(DEAD, DEAD + 600, status=status))
    assert stops(outcomes) == {"engine-dead"}
    assert slowest(outcomes) <= 345


@pytest.mark.parametrize("status", [401, 403, 404, 407])
def test_requests_that_are_refused_are_not_a_dead_engine(status):
    outcomes = live(*BASE, *failing(DEAD, DEAD + 600, status=status))
    assert stops(outcomes) == {"request-refused"}


def test_a_connection_that_is_refused_is_a_failed_request_without_a_status():
    lines = [
        m.sourced(
            DEAD + k / 3,
            f"Error: All connection attempts failed, retrying... (attempt {1 + k // 100}/60, "
            "url=http://[2001:db8::1]:20035/generate, response=None)",
            m.MANAGER,
        )
        for k in range(1800)
    ]
    outcomes = live(*BASE, *lines)
    assert stops(outcomes) == {"engine-dead"}
    assert set(outcomes[0].guard.outage.statuses) == {None}


def test_the_word_of_the_majority_of_statuses_holds():
    rows = [m.retry(DEAD + k / 3, 1, 404 if k % 5 == 0 else 503) for k in range(1800)]
    assert stops(live(*BASE, *rows)) == {"engine-dead"}


def test_a_counter_that_advances_takes_all_bad_checks_back():
    lines = list(BASE)
    for k in range(8):
        at = DEAD + 105 * k
        lines += [*failing(at, at + 60, 10), decode(at + 61)]
    assert stops(live(*lines)) == {""}


def test_a_last_answer_amid_the_first_failures_delays_the_stop_by_seconds_only():
    lines = [*failing(DEAD, DEAD + 3), decode(DEAD + 3), *failing(DEAD + 3, DEAD + 600)]
    outcomes = live(*BASE, *lines)
    assert stops(outcomes) == {"engine-dead"}
    assert slowest(outcomes) <= 345


def test_an_outage_that_ends_before_ten_checks_is_survived():
    lines = [*failing(DEAD, DEAD + 200, 5), *steps(DEAD + 400, 2, start=5)]
    assert stops(live(*BASE, *lines)) == {""}
    assert judge(*BASE, *lines).verdict == "healthy"


def test_an_engine_that_restarts_under_fault_tolerance_is_waited_for():
    die = m.engine(DEAD, "Subprocess scheduler_0 (pid=5) crashed with exit code -9. Triggering")
    back = [*failing(DEAD + 5, DEAD + 250), *startup(DEAD + 250), decode(DEAD + 262)]
    lines = [*BASE, die, *back, *steps(DEAD + 500, 2, start=5)]
    assert stops(live(*lines, fault_tolerance=True)) == {""}
    assert stops(live(*lines)) == {"engine-dead"}


def test_failures_on_both_sides_of_an_advance_are_two_outages():
    lines = list(BASE)
    for k in range(7):
        at = DEAD + 100 * k
        lines += [*failing(at, at + 100, 10), decode(at + 100)]
    outcomes = live(*lines)
    assert stops(outcomes) == {""}
    assert max(r.longest for r in outcomes) < 5


def test_an_engine_that_loads_for_minutes_under_fault_tolerance_is_waited_for():
    die = m.engine(DEAD, "Subprocess scheduler_0 (pid=5) crashed with exit code -9. Triggering")
    loads = startup(DEAD + 200)[:-1]
    lines = [*BASE, die, *failing(DEAD + 5, DEAD + 200), *loads, *failing(DEAD + 208, DEAD + 420)]
    lines += [m.engine(DEAD + 421, "The server is fired up and ready to roll!")]
    lines += steps(DEAD + 600, 2, start=5)
    assert stops(live(*lines, fault_tolerance=True)) == {""}


@pytest.mark.parametrize("status", [503, 404])
def test_an_outage_that_held_is_not_forgotten_in_the_silence_after_it(status):
    word = "request-refused" if status == 404 else "engine-dead"
    outage = failing(DEAD, DEAD + 425, status=status)
    for after in (0, 61, 700, 4000):
        decision = judge(*BASE, *outage, now_after=after)
        assert decision.verdict == word
        assert "in each of 1" in decision.why  # ten checks and more
    again = [*outage, *steps(DEAD + 600, 2, start=5)]
    assert judge(*BASE, *again).verdict == "healthy"
    assert judge(*BASE, *failing(DEAD, DEAD + 200), now_after=700).verdict == "no-progress"


def test_the_limit_itself_is_not_too_many():
    rule = Outage(60, 100, 1)
    rule.failed(retry(10.0, count=100), 10.0)
    rule.check(20.0)
    assert not rule.holds
    rule.failed(retry(11.0), 11.0)
    rule.check(20.0)
    assert rule.holds


def test_a_failure_leaves_the_window_after_sixty_seconds():
    rule = Outage(60, 0, 1)
    rule.failed(retry(10.0), 10.0)
    assert (rule.count(69.9), rule.count(70.0)) == (1, 0)


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 50)), max_size=60))
@settings(max_examples=60, deadline=None)
def test_the_window_counts_what_a_plain_sum_counts(pairs):
    rule, seen = Outage(60, 100, 10), []
    for at, count in sorted(pairs):
        rule.failed(retry(float(at), count), float(at))
        seen.append((at, count))
        assert rule.count(float(at)) == sum(n for t, n in seen if at - 60 < t <= at)
        assert len(rule._seconds) <= 130


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_check_that_does_not_count_changes_no_streak(data):
    from mileskit.guard.rules import Guard

    guard = Guard(Limits())
    now = 1000.0
    for _ in range(data.draw(st.integers(0, 8))):
        guard.observe(retry(now, 200), now)
        guard.check(now)
        now += 30
    before = guard.outage.streak
    for _ in range(data.draw(st.integers(1, 5))):
        now += 30
        if data.draw(st.booleans()):
            guard.observe(retry(now, data.draw(st.integers(1, 500))), now)
        paused = data.draw(st.booleans())
        decision = guard.check(now, paused=paused, docker_ok=paused)
        assert not decision.counted
        assert not decision.stop
        assert guard.outage.streak == before
