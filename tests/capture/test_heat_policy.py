"""Properties of the pure rule: hold for every series of samples and every set of valid limits."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mileskit.heat.gpusample import Sample
from mileskit.heat.heat_policy import Limits, State, decide, due_in, interrupted, why_not_paused
from mileskit.host.containers import Container

temperatures = st.one_of(st.none(), st.floats(20, 110, allow_nan=False))
steps = st.lists(st.tuples(st.floats(0, 200, allow_nan=False), temperatures), max_size=30)


@st.composite
def limit_sets(draw):
    resume_c = draw(st.floats(30, 90))
    low_s = draw(st.floats(0, 100))
    return Limits(
        pause_c=resume_c + draw(st.floats(0.5, 30)),
        resume_c=resume_c,
        min_pause_s=low_s,
        max_pause_s=low_s + draw(st.floats(0.5, 100)),
    )


def drive(limits, series):
    """[(time, temperature, state before, action)] of the rule over (seconds passed, temp_c)."""
    state, now, told = State(), 0.0, []
    for passed_s, temp_c in series:
        now += passed_s
        before = state
        state, action = decide(limits, state, Sample(0.0, temp_c=temp_c), now)
        told.append((now, temp_c, before, action))
    return told


@given(limit_sets(), steps)
def test_no_check_after_the_longest_pause_leaves_the_run_paused(limits, series):
    for now, _, before, action in drive(limits, series):
        if before.paused_at is not None and now - before.paused_at >= limits.max_pause_s:
            assert action is not None
            assert action.kind == "resume"


@given(limit_sets(), steps)
def test_pauses_and_resumes_alternate(limits, series):
    kinds = [action.kind for *_, action in drive(limits, series) if action]
    assert kinds[::2] == ["pause"] * len(kinds[::2])
    assert kinds[1::2] == ["resume"] * len(kinds[1::2])


@given(limit_sets(), steps)
def test_two_pauses_begin_at_least_the_shortest_pause_apart(limits, series):
    begins = [
        now for now, _, _, action in drive(limits, series) if action and action.kind == "pause"
    ]
    for first, second in itertools.pairwise(begins):
        assert second - first >= limits.min_pause_s


@given(limit_sets(), steps)
def test_a_pause_needs_a_hot_reading_and_a_cool_resume_a_cool_one(limits, series):
    for now, temp_c, before, action in drive(limits, series):
        if action is None:
            continue
        if action.kind == "pause":
            assert temp_c >= limits.pause_c
        elif action.reason == "cool":
            assert temp_c <= limits.resume_c
            assert now - before.paused_at >= limits.min_pause_s
        else:
            assert action.reason == ("unreadable" if temp_c is None else "max-time")
            assert action.paused_s >= limits.max_pause_s


@given(limit_sets(), steps)
def test_a_hot_reading_while_running_always_pauses(limits, series):
    for _, temp_c, before, action in drive(limits, series):
        if before.paused_at is None and temp_c is not None and temp_c >= limits.pause_c:
            assert action is not None


@given(limit_sets(), steps)
def test_the_time_left_never_passes_the_longest_pause(limits, series):
    for now, _, before, _ in drive(limits, series):
        left_s = due_in(limits, before, now)
        assert (left_s is None) == (before.paused_at is None)
        assert left_s is None or 0 <= left_s <= limits.max_pause_s + 1e-6  # float rounding


def test_the_default_limits_are_those_of_the_issue():
    assert Limits() == Limits(84.0, 74.0, 45.0, 120.0)


@pytest.mark.parametrize(
    ("series", "told"),
    [
        ([(0, 83.9), (5, 84)], ["pause hot"]),
        ([(0, 84), (5, 74), (39.9, 74)], ["pause hot"]),
        ([(0, 84), (5, 74), (40, 74)], ["pause hot", "resume cool"]),
        ([(0, 84), (60, 74.1)], ["pause hot"]),
        ([(0, 84), (119.9, 75), (0.1, 75)], ["pause hot", "resume max-time"]),
        ([(0, 84), (60, None), (60, None)], ["pause hot", "resume unreadable"]),
        ([(0, None), (5, None)], []),
    ],
)
def test_the_default_rule_acts_exactly_at_its_thresholds(series, told):
    actions = [action for *_, action in drive(Limits(), series) if action]
    assert [f"{action.kind} {action.reason}" for action in actions] == told


@given(limit_sets(), st.floats(0, 300), st.floats(0, 300))
def test_a_run_that_somebody_resumed_is_left_alone_for_the_shortest_pause(
    limits, paused_s, later_s
):
    hot = Sample(0.0, temp_c=limits.pause_c)
    state, action = interrupted(limits, State(paused_at=0.0), "unpaused", paused_s)
    assert (action.kind, action.paused_s) == ("resume", paused_s)
    _, again = decide(limits, state, hot, paused_s + later_s)
    assert (again is None) == (paused_s + later_s < paused_s + limits.min_pause_s)


def test_a_restarted_run_may_be_paused_at_once():
    state, _ = interrupted(Limits(), State(paused_at=0.0), "restarted", 10.0)
    assert decide(Limits(), state, Sample(0.0, temp_c=90.0), 10.0)[1].kind == "pause"


@pytest.mark.parametrize(
    ("limits", "wrong"),
    [
        (Limits(), False),
        (Limits(pause_c=74.0), True),
        (Limits(resume_c=90.0), True),
        (Limits(min_pause_s=121.0), True),
        (Limits(min_pause_s=-1.0), True),
        (Limits(min_pause_s=0.0, max_pause_s=0.0), True),
        (Limits(min_pause_s=120.0), False),
    ],
)
def test_limits_that_cannot_work_are_named(limits, wrong):
    assert bool(limits.wrong()) is wrong


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (None, "gone"),
        (("paused", "t0"), ""),
        (("running", "t0"), "unpaused"),
        (("running", "t1"), "restarted"),
        (("paused", "t1"), "restarted"),
        (("exited", "t0"), "ended"),
        (("dead", "t0"), "ended"),
    ],
)
def test_how_a_pause_ended_by_itself_is_told_from_the_container(seen, reason):
    before = Container("id", "miles-plain", "", "", "running", "t0")
    now = seen and before._replace(status=seen[0], started_at=seen[1])
    assert why_not_paused(before, now) == reason
